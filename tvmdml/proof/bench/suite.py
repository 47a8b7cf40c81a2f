"""``tvmdml bench --models``: well-known models beside other libraries. Each is measured in processes of its own."""

from __future__ import annotations

import json
import math
import os
import subprocess
import tempfile
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any, NamedTuple

from tvmdml.errors import InvalidArgument, message
from tvmdml.proof.bench import command, logs_in_force, results
from tvmdml.proof.bench.command import BenchRequest
from tvmdml.proof.bench.results import BenchRun, CaseResult
from tvmdml.proof.bench.sources import ModelSource, exported, sources
from tvmdml.system import children
from tvmdml.system.console import shown_seconds
from tvmdml.targets.cpu.thread_count import thread_count

GOAL = 1.0
_MINUTES = 15
"""A child process that needs more is ended."""
_CODE = "from tvmdml.proof.bench import model_process; model_process.main()"
COLUMNS = (
    *("model", "threads", "tvmdml", "best peer", "its time", "ratio", "OpenVINO's own", "of bf16", "words/s", "difference"),
    *("load cold", "load warm", "peer's load", "memory, MB", "to peer's", "most of the time"),
)
_SHARES = 2
"""The families in the table that take most of a model's time."""


class Point(NamedTuple):
    """A line of the report."""

    source: ModelSource
    threads: int
    loads: bool
    """Whether loading is measured, too: once for each file, with the most threads."""

    @property
    def name(self) -> str:
        """The result's name."""
        return f"{self.source.title}, {self.threads} thread{'s' if self.threads > 1 else ''}"


def points(full: bool, text: str = "", threads: int | None = None) -> list[Point]:
    """What is measured: with ``full`` also batches of 8, and one thread beside all."""
    counts = (threads,) if threads else (1, thread_count()) if full else (thread_count(),)
    found, files = [], set[str]()
    for one in sources():
        if full or one.batch == 1:
            found += [Point(one, count, count == counts[-1] and one.file not in files) for count in dict.fromkeys(counts)]
            files.add(one.file)
    if chosen := [one for one in found if text in one.name]:
        return chosen
    names = ", ".join(dict.fromkeys(one.source.name for one in found))
    raise InvalidArgument(message("--models --filter", repr(text), f"a part of a model's name: {names}"))


def run(request: BenchRequest, note: Callable[[str], object]) -> BenchRun:
    """Measure what the request's file lacks; a file has every line as soon as it is measured.

    Raises:
        InvalidArgument: the request is not valid.
    """
    wanted = points(request.full, request.text, request.threads)
    new = BenchRun(request.threads or thread_count(), "full" if request.full else "quick", logs=logs_in_force.folders())
    found, path = command.opened(new, request)
    left = [one for one in wanted if one.name not in found.done()]
    folder = exported()
    for i, point in enumerate(left):
        note(f"{i + 1} of {len(left)}: {point.name}")
        result = measured(point, folder, request.full, request.prepare)
        if request.prepare:
            for failure in result.failures:
                note(f"{point.name}: {failure}")
            continue
        found.add(result)
        found.in_order([one.name for one in points(True)])
        if path is not None:
            results.write(found, path)
    return found


def measured(point: Point, folder: Path, full: bool, prepare: bool = False) -> CaseResult:
    """One line; to prepare one, kernels are compiled and nothing is timed."""
    source, entries, failures = point.source, [], []
    work: dict[str, Any] = {"operator": source.name, "model": source.name, "batch": source.batch, "words": source.words}
    if lacking := source.lacks():
        failures.append(f"{lacking} is not installed")
    else:
        try:
            path = source.path(folder)
            if point.loads and not prepare:
                work["loads"] = _loads(point, path)
            answer = _child(point, path, "prepare" if prepare else "race", full)
            entries = [results.entry_of(one) for one in answer["entries"]]
            work["difference"], work["shares"] = answer["difference"], answer["shares"]
            failures = [f"{one.library}: {one.problem}" for one in entries if one.problem and one.role == "ours"]
        except subprocess.CalledProcessError as error:
            failures.append(error.stderr.strip().splitlines()[-1][:300] if error.stderr.strip() else f"exit {error.returncode}")
        except subprocess.TimeoutExpired:
            failures.append(f"it takes more than {_MINUTES} minutes")
    row, column = source.name, f"batch {source.batch}"
    return CaseResult(point.name, row, column, work, GOAL, False, point.threads, entries, failures, {"copied": 0}, group="models")


def _loads(point: Point, path: Path) -> dict[str, dict[str, float]]:
    """The time to the first result and the memory: tvmdml without stored kernels and with them, and ONNX Runtime."""
    with tempfile.TemporaryDirectory(prefix="tvmdml-bench-") as folder:
        found = {name: _child(point, path, "tvmdml", False, {"TVMDML_CACHE_DIR": folder}) for name in ("cold", "warm")}
    return {**found, "peer": _child(point, path, "ONNX Runtime", False)}


def _child(point: Point, path: Path, what: str, full: bool, variables: Mapping[str, str] | None = None) -> dict[str, Any]:
    request = {"title": point.source.title, "path": str(path), "threads": point.threads, "what": what, "full": full}
    done = subprocess.run(
        children.command(_CODE),
        input=json.dumps(request),
        capture_output=True,
        text=True,
        check=True,
        timeout=60 * _MINUTES,
        env={**os.environ, **(variables or {})},
    )
    return dict(json.loads(done.stdout.splitlines()[-1]))


# -- The report ---------------------------------------------------------------------------------------------------


def row(one: CaseResult) -> dict[str, Any]:
    """A line of the table."""
    loads, ours, best = one.work.get("loads", {}), one.ours, one.best
    found: dict[str, Any] = dict.fromkeys(COLUMNS, "")
    found |= {"model": f"{one.row}, {one.point}", "threads": one.threads}
    if one.failures:
        return found | {"best peer": one.failures[0]}
    if ours is not None:
        found |= {"tvmdml": shown_seconds(ours.seconds), "difference": f"{one.work['difference']:.0e}"}
        if one.work["words"]:
            found["words/s"] = f"{int(one.point.split()[1]) * one.work['words'] / ours.seconds:.0f}"
    if best is not None:
        found |= {"best peer": best.library, "its time": shown_seconds(best.seconds)}
    if one.ratio is not None:
        found["ratio"] = f"{one.ratio:.2f}"
    if one.aside_ratio is not None:
        found["OpenVINO's own"] = f"{one.aside_ratio:.2f}"
    if one.aside is not None and one.rounded is not None:
        found["of bf16"] = f"{one.aside.seconds / one.rounded.seconds:.2f}"
    if loads:
        for name, column in (("cold", "load cold"), ("warm", "load warm"), ("peer", "peer's load")):
            found[column] = shown_seconds(loads[name]["seconds"])
        found["memory, MB"] = f"{loads['warm']['peak'] / 2**20:.0f}"
        found["to peer's"] = f"{loads['warm']['peak'] / loads['peer']['peak']:.2f}"
    found["most of the time"] = ", ".join(f"{name} {100 * part:.0f} %" for name, part in one.work.get("shares", ())[:_SHARES])
    return found


def summary(run: BenchRun) -> Iterator[str]:
    """The geometric means."""
    for threads in sorted({one.threads for one in run.results}):
        ratios = {one.name: one.ratio for one in run.results if one.threads == threads and one.ratio}
        if ratios:
            mean = math.exp(sum(map(math.log, ratios.values())) / len(ratios))
            worst = min(ratios, key=lambda name: ratios[name])
            yield f"{len(ratios)} models, threads {threads}: geometric mean {mean:.2f}, lowest {ratios[worst]:.2f} ({worst})"


def report(request: BenchRequest, note: Callable[[str], object], table: Callable[[Any, Any], object]) -> int:
    """Carry the command out; returns the exit code."""
    plot_path, html_path = command.plot_file(request), command.html_file(request)
    found = run(request, note)
    if request.prepare:
        return 0
    table(COLUMNS, [row(one) for one in found.results])
    for line in summary(found):
        note(line)
    if plot_path is not None and found.results:
        from tvmdml.proof.bench import plot_models

        plot_models.draw(found, plot_path)
    if html_path is not None:
        from tvmdml.proof.bench import models_html

        models_html.write(html_path, found, COLUMNS, row, list(summary(found)))
    return 0
