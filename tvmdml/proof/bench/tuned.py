"""The gain from tuning logs: each case with the knobs from the logs and with the default knobs, in one process."""

from __future__ import annotations

import dataclasses
import sys
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from tvmdml import compiler, targets
from tvmdml.errors import DeviceError, InvalidArgument, message
from tvmdml.kernels import knobs
from tvmdml.kernels.kernel import Kernel
from tvmdml.kernels.knobs import Value
from tvmdml.proof.bench import checks, command, logs_in_force, measure, results, runner, venues
from tvmdml.proof.bench.cases import Case
from tvmdml.proof.bench.command import BenchRequest
from tvmdml.proof.bench.means import geometric_mean
from tvmdml.proof.bench.measure import CallTiming, Contender, RacePace
from tvmdml.proof.bench.runner import Options, Room
from tvmdml.proof.bench.task import Task
from tvmdml.proof.bench.venues import Venue
from tvmdml.system import console
from tvmdml.system.console import shown_seconds
from tvmdml.targets import Target
from tvmdml.tensors.arrays.device_array import DeviceArray

SCHEMA = "tvmdml-bench-tuned"
VERSION = 1
PACE = RacePace(rounds=41, budget=2.5, least_rounds=11)
"""More samples than in other races: most ratios are near 1."""


class TunedRow(NamedTuple):
    """The result of a case."""

    name: str
    log: str
    """What the logs have for the case: ``exact``, ``nearest`` (another shape class) or ``none``."""
    knobs: Mapping[str, Value]
    """The knobs that the log sets to other values than the defaults."""
    same: bool = False
    """Whether both give the same kernel, launched in the same way. Then nothing is measured."""
    default: CallTiming | None = None
    tuned: CallTiming | None = None
    problem: str = ""
    """Why there are no times."""
    folder: str = ""
    """The folder that the log's record is from."""

    @property
    def ratio(self) -> float | None:
        """How many times as fast as with the defaults."""
        if self.same:
            return 1.0
        return self.default.median / self.tuned.median if self.default and self.tuned else None

    @property
    def spread(self) -> float | None:
        """The larger spread of the two times in the ratio."""
        return max(self.default.spread, self.tuned.spread) if self.default and self.tuned else None

    def as_json(self) -> dict[str, Any]:
        """For programs that read results."""
        timings = {name: timing and timing._asdict() for name, timing in (("default", self.default), ("tuned", self.tuned))}
        return {**self._asdict(), "knobs": dict(self.knobs), **timings, "ratio": self.ratio, "spread": self.spread}


# -- Measuring ----------------------------------------------------------------------------------------------------


def measured(case: Case, options: Options) -> TunedRow:
    """Race a case's two kernels, if they differ."""
    if options.size is not None:
        case = case.at_most(options.size)
    venue = venues.of(options.target)
    venue.open()
    try:
        with runner.limited(case.threads or options.threads):
            return _Pair(case, options.target or targets.resolve("cpu")).row(venue, options.pace)
    finally:
        venue.close()


class _Pair:
    """A case with the knobs of the logs, and with the default knobs."""

    def __init__(self, case: Case, target: Target) -> None:
        # A function keeps its plans, so in one process it has only one kernel: the operator is called instead.
        door = "operator" if case.work.door == "function" else case.work.door
        self._name, self._target = case.name, target
        self._work = dataclasses.replace(case.work, door=door)

    def row(self, venue: Venue, pace: RacePace) -> TunedRow:
        """Compare the two kernels, and time them if they differ."""
        desc = self._work.describe().canonical()
        log = logs_in_force.used(desc, self._work.shared(), self._target)
        row = TunedRow(self._name, log.kind, log.knobs, folder=log.folder)
        try:
            tuned = _decided(compiler.ready(desc, self._target, self._work.shared())[0])
            with knobs.untuned():
                default = _decided(compiler.ready(desc, self._target, self._work.shared())[0])
            return row._replace(same=True) if tuned == default else self._race(row, venue, pace)
        except Exception as error:  # a defect in one kernel must not stop the run: the row reports it
            return row._replace(problem=f"{type(error).__name__}: {error}")

    def _race(self, row: TunedRow, venue: Venue, pace: RacePace) -> TunedRow:
        task = Task(self._work)
        room = runner.room(task, self._target)  # one for both: the addresses of arrays may change times by some per cent
        with knobs.untuned():
            default = runner.ours(task, self._target, room)
        contenders = []
        for role, attempt in (("base", default), ("ours", runner.ours(task, self._target, room))):
            _wipe(task, room)
            if problem := checks.ours(task, attempt.results()):
                return row._replace(problem=f"{'tuned' if role == 'ours' else 'default'}: {problem}")
            who = (role, runner.OURS, task.work.door, 0)
            contenders.append(Contender(*who, attempt.call, attempt.prepare, attempt.repeat, stream=attempt.stream))
        before, now = measure.race(contenders, pace, venue.clock(task.traffic))
        return row._replace(default=before, tuned=now)


def _decided(kernel: Kernel) -> tuple[object, ...]:
    """Everything that may make two kernels, or their launches, differ."""
    return (kernel.module, kernel.name, kernel.parameters, tuple(kernel.scalars), tuple(kernel.temporaries))


def _wipe(task: Task, room: Room) -> None:
    """Erase the outputs, so that correct results must come from this kernel, not from an earlier one."""
    for array in room.outputs:
        dtype = np.dtype(array.dtype)
        junk = np.broadcast_to(np.frombuffer(b"\xa5" * dtype.itemsize, dtype), array.shape)
        content = task.x if any(array is one for one in room.inputs) else junk
        if isinstance(array, DeviceArray):
            array.write(content)
        else:
            array[...] = content


# -- The command --------------------------------------------------------------------------------------------------


def run(request: BenchRequest) -> int:
    """Measure the requested cases, store and show them; returns the exit code.

    Raises:
        InvalidArgument: the request is not valid.
        DeviceError: the device cannot be used.
    """
    refused = (
        ("--plot", request.plot_path),
        ("--page", request.page_path),
        ("--compare", request.old),
        ("--resume", request.resume),
    )
    for option, given in refused:
        if given:
            raise InvalidArgument(message("bench --tuned", option, "--full, --operator, --filter, --device, --threads, --json"))
    cases = command.select(request)
    path = None if request.json_path is None else Path(request.json_path)
    if path is not None and path.exists():
        results.load(path, SCHEMA, VERSION)  # an earlier run may be overwritten, but no other file
    venues.of(request.target).open()
    if path is not None:
        _save([], request.target, path)  # if this fails, it should fail before the first case
    options = Options(PACE, threads=request.threads, target=request.target)
    rows: list[TunedRow] = []
    stopped, code = "", 0
    try:
        with command.bar(cases) as each:
            for case in each:
                rows.append(measured(case, options))
                if path is not None:
                    _save(rows, request.target, path)
    except KeyboardInterrupt:
        stopped, code = "interrupted", console.INTERRUPTED
    except DeviceError as error:  # the device is unusable for the rest of this process
        stopped, code = str(error), 1
    if rows:
        console.table(("case", "knobs", "log", "default", "tuned", "ratio", "spread"), map(_shown, rows))
    for line in summary(rows, request.target or targets.resolve("cpu")):
        sys.stdout.write(f"{line}\n")
    if stopped:
        sys.stdout.write(f"{stopped}, with {len(cases) - len(rows)} cases left\n")
        return code
    return 1 if any(row.problem for row in rows) else 0


def _save(rows: Sequence[TunedRow], target: Target | None, path: Path) -> None:
    about: dict[str, Any] = {"machine": results.machine(target), "versions": results.versions(), "updated": results.now()}
    about["logs"] = [dataclasses.asdict(folder) for folder in logs_in_force.folders()]
    ratios = [row.ratio for row in rows if row.ratio is not None]
    figures = {"geometric_mean": geometric_mean(ratios), "least": min(ratios, default=None)}
    results.save({"schema": SCHEMA, "version": VERSION, **about, **figures, "rows": [row.as_json() for row in rows]}, path)


def _shown(row: TunedRow) -> dict[str, str]:
    return {
        "case": row.name,
        "knobs": ", ".join(f"{name}={value}" for name, value in row.knobs.items()),
        "log": row.log,
        "default": shown_seconds(row.default.median) if row.default else "same kernel" if row.same else "",
        "tuned": shown_seconds(row.tuned.median) if row.tuned else "",
        "ratio": "failed" if row.ratio is None else f"{row.ratio:.3f}",
        "spread": "" if row.spread is None else f"±{row.spread * 100:.1f} %",
    }


def summary(rows: Sequence[TunedRow], target: Target) -> Iterator[str]:
    """The lines after the table."""
    ratios = {row.name: row.ratio for row in rows if row.ratio is not None}
    if (mean := geometric_mean(ratios.values())) is not None:
        least = min(ratios, key=lambda name: ratios[name])
        yield f"geometric mean of default/tuned: {mean:.3f}, over {len(ratios)} rows"
        yield f"least: {ratios[least]:.3f}, {least}"
    changed = sum(not row.same for row in rows)
    exact, nearest = (sum(row.log == log for row in rows) for log in ("exact", "nearest"))
    yield (
        f"rows tuned: {changed} of {len(rows)} have another kernel than by default; "
        f"the logs have {exact} exact and {nearest} nearest records"
    )
    if rows and not exact + nearest:
        yield f"there is no log for this machine: {target}, {target.machine().processor}. `tvmdml tune` makes one."
    for row in rows:
        if row.problem:
            yield f"failed: {row.name}: {row.problem}"
