"""The results of a run, and the file they are stored in."""

from __future__ import annotations

import contextlib
import dataclasses
import hashlib
import importlib.metadata
import json
import os
import platform
import re
import tempfile
from collections.abc import Iterable
from datetime import datetime, timezone
from pathlib import Path
from typing import TYPE_CHECKING, Any

from tvmdml.errors import InvalidArgument, message
from tvmdml.proof.bench.measure import CallTiming

if TYPE_CHECKING:
    from tvmdml.targets import Target

SCHEMA = "tvmdml-bench"
VERSION = 1
"""The version of the file format; files of other versions are refused."""

_LIBRARIES = (
    *("tvmdml", "numpy", "apache-tvm", "apache-tvm-ffi", "torch", "onnxruntime", "onnx", "openvino"),
    *("cupy", "cupy-cuda12x", "cupy-cuda13x", "pylibraft-cu12", "pylibraft-cu13"),
)
# Default values of fields that older files do not have.
_LATER_RUN: dict[str, Any] = {"logs": []}
_LATER_RESULT: dict[str, Any] = {"share": None, "limit_of": "memory", "log": None, "group": "", "group_goal": None}
_LATER_TIMING = {"host": 0.0}


@dataclasses.dataclass
class ContenderResult:
    """One contender's result in a race."""

    role: str
    library: str
    name: str
    threads: int
    timing: CallTiming | None = None
    note: str = ""
    problem: str = ""
    """Why there is no timing."""

    @property
    def seconds(self) -> float:
        """The median."""
        return float("inf") if self.timing is None else self.timing.median


@dataclasses.dataclass
class LogFolder:
    """A folder of tuning logs that was in force."""

    folder: str
    records: int
    """The number of its records that no earlier folder overrides."""


@dataclasses.dataclass
class LogUsed:
    """The tuning record that a case used."""

    kind: str = "none"
    """``exact``, ``nearest`` (a record of another shape class), or ``none``."""
    folder: str = ""
    """The folder that the record is from."""
    knobs: dict[str, int | str] = dataclasses.field(default_factory=dict)
    """The knobs that the record sets to other values than the defaults."""


@dataclasses.dataclass
class CaseResult:
    """The result of a case."""

    name: str
    row: str
    point: str
    work: dict[str, Any]
    goal: float | None
    against_base: bool
    threads: int
    entries: list[ContenderResult]
    failures: list[str]
    """Wrong outputs, and kernels that do not compile."""
    traffic: dict[str, int]
    """Bytes that must be moved, by kind."""
    limit: float | None = None
    """Seconds in which memory can move them; or the time of a launch, if that is longer."""
    compile_seconds: float = 0.0
    compiled: int = 0
    """The number of kernels that had to be compiled."""
    share: float | None = None
    """Another kind of goal: the share of the limit."""
    limit_of: str = "memory"
    """What sets the limit: ``memory``, or the ``launch`` that no work can avoid."""
    log: LogUsed | None = None
    """The tuning record that was in force; ``None`` in files without this information."""
    group: str = ""
    """The name of the group that the case is counted in."""
    group_goal: float | None = None
    """What the geometric mean of the group's ratios must be."""

    def _best(self, *roles: str) -> ContenderResult | None:
        timed = [entry for entry in self.entries if entry.role in roles and entry.timing is not None]
        return min(timed, key=lambda entry: entry.seconds, default=None)

    @property
    def ours(self) -> ContenderResult | None:
        """The result of tvmdml."""
        return self._best("ours")

    @property
    def best(self) -> ContenderResult | None:
        """The best peer with its best number of threads, or the baseline."""
        return self._best("peer", "base")

    @property
    def aside(self) -> ContenderResult | None:
        """The best of the libraries that are not part of the goals."""
        return self._best("aside")

    @property
    def rounded(self) -> ContenderResult | None:
        """The result of tvmdml with factors of bfloat16."""
        return self._best("rounded")

    @property
    def ratio(self) -> float | None:
        """How many times as fast as the best of the others tvmdml is."""
        return self._ratio_to(self.best)

    @property
    def aside_ratio(self) -> float | None:
        """The same, against the libraries that are not part of the goals."""
        return self._ratio_to(self.aside)

    def _ratio_to(self, other: ContenderResult | None) -> float | None:
        return other.seconds / self.ours.seconds if self.ours and other else None

    @property
    def fraction(self) -> float | None:
        """The share of the limit that tvmdml reached."""
        return self.limit / self.ours.seconds if self.ours and self.limit else None

    def reaches(self, goal: float | None, figure: float | None) -> str:
        """The verdict on one goal; empty if there is no goal."""
        if goal is None:
            return ""
        if self.failures:
            return "failed"
        if figure is None:
            return "no peer"
        return "reached" if figure >= goal else "missed"

    @property
    def verdict(self) -> str:
        """A word: ``failed``, ``missed`` (one of two goals is enough), ``no peer``, ``reached``; empty without a goal."""
        if self.failures:
            return "failed"
        verdicts = {self.reaches(self.goal, self.ratio), self.reaches(self.share, self.fraction)}
        return next((verdict for verdict in ("missed", "no peer", "reached") if verdict in verdicts), "")


@dataclasses.dataclass
class BenchRun:
    """All results of a run, and the machine they were measured on."""

    threads: int
    chosen: str
    """``quick`` or ``full``."""
    machine: dict[str, Any] = dataclasses.field(default_factory=lambda: machine())
    versions: dict[str, str] = dataclasses.field(default_factory=lambda: versions())
    started: str = dataclasses.field(default_factory=lambda: now())
    updated: str = dataclasses.field(default_factory=lambda: now())
    results: list[CaseResult] = dataclasses.field(default_factory=list)
    logs: list[LogFolder] = dataclasses.field(default_factory=list)
    """The tuning logs that were in force."""

    def add(self, result: CaseResult) -> None:
        """Store a result; it replaces an older one of the same case."""
        self.results = [other for other in self.results if other.name != result.name] + [result]
        self.updated = now()

    def done(self) -> set[str]:
        """The cases that need not be measured again."""
        return {result.name for result in self.results if not result.failures}

    def in_order(self, names: Iterable[str]) -> None:
        """Sort the results into the order of the table."""
        place = {name: i for i, name in enumerate(names)}
        self.results.sort(key=lambda result: place.get(result.name, len(place)))


# -- The file -----------------------------------------------------------------------------------------------------


def write(run: BenchRun, path: Path) -> None:
    """Store a run in a file."""
    save({"schema": SCHEMA, "version": VERSION, **_as_json(run)}, path)


def save(fields: dict[str, Any], path: Path) -> None:
    """Write JSON to a temporary file beside its file and rename it: a reader never sees half a file, even after a crash.

    Raises:
        InvalidArgument: the file cannot be written.
    """
    content = json.dumps(fields, indent=1)
    try:
        handle, beside = tempfile.mkstemp(dir=path.parent, prefix=f".{path.name}.")
        try:
            with open(handle, "w") as stream:
                stream.write(content + "\n")
            os.chmod(beside, 0o644)
            os.replace(beside, path)
        except BaseException:
            with contextlib.suppress(OSError):
                os.unlink(beside)
            raise
    except OSError as error:
        raise InvalidArgument(message("bench file", path, f"a file that can be written ({error.strerror})")) from None


def _as_json(run: BenchRun) -> dict[str, Any]:
    content = dataclasses.asdict(run)
    for result, row in zip(run.results, content["results"], strict=True):
        for entry, written in zip(result.entries, row["entries"], strict=True):
            written["timing"] = entry.timing and entry.timing._asdict()
        row.update(ratio=result.ratio, fraction_of_limit=result.fraction, verdict=result.verdict)  # for other readers
    return content


def read(path: Path) -> BenchRun:
    """Read a run from a file.

    Raises:
        InvalidArgument: the file was not written by ``write``.
    """
    content = load(path)
    try:
        return _run(content)
    except (KeyError, TypeError, ValueError, AttributeError) as error:
        raise _refusal(path, f"does not hold a run ({type(error).__name__}: {error})") from None


def load(path: Path, schema: str = SCHEMA, version: int = VERSION) -> dict[str, Any]:
    """Read what ``save`` wrote, if it has this schema and version.

    Raises:
        InvalidArgument: it does not.
    """
    try:
        content = json.loads(path.read_text())
    except OSError as error:
        raise _refusal(path, f"cannot be read ({error.strerror})") from None
    except ValueError as error:
        raise _refusal(path, f"is not JSON ({error})") from None
    if not isinstance(content, dict) or content.get("schema") != schema:
        raise _refusal(path, f"has no schema {schema!r}")
    if content.get("version") != version:
        raise _refusal(path, f"has version {content.get('version')!r}, and this program reads version {version}")
    return content


def _run(content: dict[str, Any]) -> BenchRun:
    kept = _fields(BenchRun, {**_LATER_RUN, **content})
    folders = [LogFolder(str(row["folder"]), int(row["records"])) for row in kept["logs"]]
    return BenchRun(**{**kept, "results": [_result(row) for row in kept["results"]], "logs": folders})


def _result(row: dict[str, Any]) -> CaseResult:
    fields = _fields(CaseResult, {**_LATER_RESULT, **row})
    log = None if fields["log"] is None else _log(fields["log"])
    result = CaseResult(**{**fields, "entries": [entry_of(entry) for entry in row["entries"]], "log": log})
    if not all(isinstance(text, str) for text in (result.name, result.row, result.point)):
        raise TypeError("a result without a name")
    return result


def _log(log: dict[str, Any]) -> LogUsed:
    return LogUsed(str(log["kind"]), str(log["folder"]), dict(log["knobs"]))


def entry_of(entry: dict[str, Any]) -> ContenderResult:
    """An entry as JSON has it."""
    timing = entry["timing"]
    if timing is not None:
        timing = CallTiming(**_fields(CallTiming, {**_LATER_TIMING, **timing}))
        if not all(isinstance(number, (int, float)) and number >= 0 for number in timing):
            raise TypeError("a timing that is not made of numbers")
    return ContenderResult(**{**_fields(ContenderResult, entry), "timing": timing})


def _fields(cls: Any, content: dict[str, Any]) -> dict[str, Any]:
    names = cls._fields if hasattr(cls, "_fields") else [field.name for field in dataclasses.fields(cls)]
    return {name: content[name] for name in names}


def _refusal(path: Path, reason: str) -> InvalidArgument:
    return InvalidArgument(message("bench file", f"{path}, which {reason}", "a file that `tvmdml bench --json` wrote"))


# -- Where the run was measured -----------------------------------------------------------------------------------


def machine(target: Target | None = None) -> dict[str, Any]:
    """The processor, its cores and caches, and the system; and the device, if tvmdml runs on one."""
    from tvmdml import targets
    from tvmdml.targets.cpu import host

    available = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count()
    device = {} if target is None or target.kind == "cpu" else {"device": targets.shown(target)}
    return {
        "cpu": host.model_name(),
        **device,
        "target": (target or targets.resolve("cpu")).name,
        "cores": available,
        "caches": _caches(Path("/sys/devices/system/cpu/cpu0/cache")),
        "memory": _memory(),
        "system": f"{platform.system()} {platform.release()}",
    }


def _caches(folder: Path) -> dict[str, str]:
    """Cache sizes by name, such as L2: 1024K."""
    found = {}
    for index in sorted(folder.glob("index*")):
        with contextlib.suppress(OSError):
            level, kind, size = ((index / name).read_text().strip() for name in ("level", "type", "size"))
            found[f"L{level}{'' if kind == 'Unified' else kind[0].lower()}"] = size
    return found


def _memory() -> str:
    with contextlib.suppress(OSError, ValueError):
        return f"{os.sysconf('SC_PAGE_SIZE') * os.sysconf('SC_PHYS_PAGES') / 2**30:.0f} GiB"
    return "unknown"


def versions() -> dict[str, str]:
    """The versions of Python, of the libraries that take part, and of the tuning logs in force."""
    found = {"python": platform.python_version()}
    for name in _LIBRARIES:
        with contextlib.suppress(importlib.metadata.PackageNotFoundError):
            found[name] = re.sub(r"\s+", " ", importlib.metadata.version(name))
    return {**found, "tuning logs": _tuning()}


def _tuning() -> str:
    """The tuning logs in force: how many records they have, and a hash of them."""
    from tvmdml.library import log_lines, logs

    if logs.are_off():
        return "none (TVMDML_TUNING=0)"
    lines = sorted(map(log_lines.encode, logs.installed().records))
    return f"{len(lines)} records ({hashlib.sha256(''.join(lines).encode()).hexdigest()[:8]})" if lines else "none"


def now() -> str:
    """The time, in UTC."""
    return datetime.now(timezone.utc).isoformat(timespec="seconds")
