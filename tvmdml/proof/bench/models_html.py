"""``tvmdml bench --models --html``: speed beside each library, the first result and memory, as one page without scripts."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from tvmdml.proof.bench.plot import machine
from tvmdml.proof.bench.results import BenchRun, CaseResult
from tvmdml.system import html
from tvmdml.system.console import shown_bytes, shown_seconds


def content(run: BenchRun, columns: Sequence[str], row: Callable[[CaseResult], Mapping[str, Any]], summary: Sequence[str]) -> str:
    """The page of a run.

    Args:
        run: what was measured.
        columns: those of the table.
        row: a line of it.
        summary: sentences below the heading.
    """
    timed = [one for one in run.results if one.ratio is not None and one.ours is not None]
    loaded = [one for one in run.results if one.work.get("loads")]
    speeds = html.bars([(one.name, _speeds(one)) for one in timed], 1.0)
    first = html.bars([(one.row, _loads(one, "seconds", shown_seconds)) for one in loaded])
    memory = html.bars([(one.row, _loads(one, "peak", shown_bytes)) for one in loaded])
    sections = [
        ("Speed", html.figure(speeds, "Runs in the time of one of tvmdml: longer is faster.")),
        ("First result, without stored kernels and with them", html.figure(first, "Seconds in a new process.")),
        ("Memory", html.figure(memory, "The most of a process.")),
        ("All figures", html.table(columns, map(row, run.results))),
    ]
    return html.page(f"Models on {machine(run)}", f"{run.updated}. {' '.join(f'{line}.' for line in summary)}", sections)


def _speeds(one: CaseResult) -> list[tuple[str, float, str]]:
    """How often each library runs in the time of tvmdml's run."""
    assert one.ours is not None
    timed = [entry for entry in one.entries if entry.timing is not None and entry.role in ("ours", "peer")]
    return [(entry.library, one.ours.seconds / entry.seconds, shown_seconds(entry.seconds)) for entry in timed]


def _loads(one: CaseResult, what: str, shown: Callable[[float], str]) -> list[tuple[str, float, str]]:
    loads = one.work["loads"]
    names = {"cold": "tvmdml, first run", "warm": "tvmdml", "peer": "ONNX Runtime"}
    return [(names[key], loads[key][what], shown(loads[key][what])) for key in names if key in loads]


def write(path: Path, *about: Any) -> None:
    """Write ``content`` to a file."""
    html.write(path, content(*about))
