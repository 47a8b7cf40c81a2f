"""A picture of a run: how many times as fast as the best peer, and how close to the limit of memory."""

from __future__ import annotations

import importlib
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from tvmdml.errors import InvalidArgument, counted, message
from tvmdml.proof.bench import report
from tvmdml.proof.bench.results import BenchRun, CaseResult

COLOURS = {"reached": "tab:green", "missed": "tab:orange", "failed": "tab:red"}
"""By verdict."""
GREY = "tab:gray"
"""Without a goal."""
MOST_CASES = 200
"""Of more cases than this, the picture has a bar for each operator."""
_MARKERS = "osD^v<>P"


def draw(run: BenchRun, path: Path) -> None:
    """Write the picture, as PNG."""
    # Matplotlib's object interface needs no display, and does not touch the program's own figures.
    figure_class: Any = importlib.import_module("matplotlib.figure").Figure
    compared = [result for result in run.results if result.ratio is not None]
    figure = figure_class(figsize=(17, max(5.0, 0.22 * len(compared) + 2)), layout="constrained")
    ratios, roofline = figure.subplots(1, 2, width_ratios=(1, 1))
    _draw_ratios(ratios, compared)
    _draw_roofline(roofline, [result for result in run.results if result.ours and result.limit and result.limit_of == "memory"])
    figure.suptitle(f"tvmdml on {machine(run)}, {run.updated}\n{report.logs_line(run)}")
    save(figure, path)


def save(figure: Any, path: Path, dpi: int = 120) -> None:
    """Write a figure.

    Raises:
        InvalidArgument: the file cannot be written.
    """
    try:
        figure.savefig(path, format="png", dpi=dpi)
    except OSError as error:
        raise InvalidArgument(message("plot", path, f"a file that can be written ({error.strerror})")) from None


def machine(run: BenchRun) -> str:
    """The processor and the threads, or the device."""
    return str(run.machine.get("device") or f"{run.machine.get('cpu', '?')}, {counted(run.threads, 'thread')}")


def _draw_ratios(axes: Any, results: list[CaseResult]) -> None:
    """A bar for each case, with a line at its goal."""
    colours = [COLOURS.get(result.verdict, GREY) for result in results]
    places = bars(axes, [result.name for result in results], [result.ratio for result in results], colours)
    with_goal = [(place, result.goal) for place, result in zip(places, results, strict=True) if result.goal is not None]
    if with_goal:
        axes.scatter([goal for _, goal in with_goal], [place for place, _ in with_goal], marker="|", color="black", label="goal")
        axes.legend(loc="lower right")
    axes.set_xlabel("times as fast as the best peer (or as the case's baseline)")


def bars(axes: Any, names: Sequence[str], ratios: Sequence[float | None], colours: Sequence[Any]) -> range:
    """Draw a horizontal bar for each ratio, on a logarithmic scale, and a line at 1; the bars' places."""
    places = range(len(names))
    axes.barh(places, ratios, color=colours, height=0.7)
    axes.axvline(1, color="black", linewidth=0.8)
    axes.set_xscale("log")
    axes.set_yticks(places, names, fontsize=7)
    axes.set_ylim(max(len(names), 1) - 0.5, -0.5)
    axes.grid(axis="x", alpha=0.3)
    return places


def _draw_roofline(axes: Any, results: list[CaseResult]) -> None:
    """Bytes that work must move against the rate at which they were moved; a tick above each shows the limit of memory."""
    groups = list(dict.fromkeys(result.group or result.work["operator"] for result in results))
    for i, group in enumerate(groups):
        mine = [result for result in results if (result.group or result.work["operator"]) == group]
        sizes = [_bytes(result) for result in mine]
        rates = [_bytes(result) / result.ours.seconds / 1e9 for result in mine if result.ours]
        axes.scatter(sizes, rates, marker=_MARKERS[i % len(_MARKERS)], s=30, label=group, alpha=0.8)
    bounds = [(_bytes(result), _bytes(result) / result.limit / 1e9) for result in results if result.limit]
    if bounds:
        axes.scatter(*zip(*bounds, strict=True), marker="_", s=60, color="black", label="limit of memory")
        axes.legend(fontsize=8)
        axes.set_xscale("log", base=2)
        axes.set_yscale("log")
    axes.set_xlabel("bytes that must be moved")
    axes.set_ylabel("GB/s")
    axes.grid(alpha=0.3)


def _bytes(result: CaseResult) -> int:
    moved = result.traffic
    return 2 * (moved["copied"] + moved["rewritten"]) + moved["read"] + moved["written"] + moved["zeroed"]
