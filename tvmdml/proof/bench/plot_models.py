"""A picture of ``tvmdml bench --models``: how many times as fast as each library, and how much memory and time to load."""

from __future__ import annotations

import importlib
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from tvmdml.proof.bench import plot
from tvmdml.proof.bench.results import BenchRun, CaseResult

_MARKERS = {"ONNX Runtime": "o", "PyTorch": "s", "torch.compile": "^", "OpenVINO float32": "D", "OpenVINO": "x"}


def draw(run: BenchRun, path: Path) -> None:
    """Write the picture, as PNG.

    Raises:
        InvalidArgument: the file cannot be written.
    """
    figure_class: Any = importlib.import_module("matplotlib.figure").Figure
    timed = [one for one in run.results if one.ratio is not None]
    loaded = [one for one in run.results if one.work.get("loads")]
    figure = figure_class(figsize=(17, max(5.0, 0.24 * max(len(timed), len(loaded)) + 2)), layout="constrained")
    axes = figure.subplots(1, 2 if loaded else 1, squeeze=False)[0]
    _draw_ratios(axes[0], timed)
    if loaded:
        _draw_loads(axes[1], loaded)
    figure.suptitle(f"Models on {run.machine.get('device') or run.machine.get('cpu', '?')}, {run.updated}")
    plot.save(figure, path)


def _draw_ratios(axes: Any, results: Sequence[CaseResult]) -> None:
    """A bar for the best of the others, and a mark for each."""
    places = range(len(results))
    colours = [plot.COLOURS.get(one.verdict, plot.GREY) for one in results]
    axes.barh(places, [one.ratio for one in results], color=colours, height=0.7, alpha=0.6)
    for library, marker in _MARKERS.items():
        found = [
            (entry.seconds / one.ours.seconds, place)
            for place, one in zip(places, results, strict=True)
            for entry in one.entries
            if one.ours and entry.library == library and entry.timing is not None
        ]
        if found:
            axes.scatter(*zip(*found, strict=True), marker=marker, s=22, color="black", label=library, zorder=3)
    if results:
        axes.legend(loc="lower right")
        axes.set_xscale("log")
        for one in (axes.xaxis.set_major_formatter, axes.xaxis.set_minor_formatter):
            one("{x:.3g}")
    _name(axes, [one.name for one in results], "times as fast as the best of them (bar), and as each (mark)")


def _draw_loads(axes: Any, results: Sequence[CaseResult]) -> None:
    """Times to the first result and memory, as parts of ONNX Runtime's."""
    places = range(len(results))
    for label, marker, name, what in (
        ("seconds to the first result, with stored kernels", "o", "warm", "seconds"),
        ("most memory of the process", "s", "warm", "peak"),
    ):
        parts = [one.work["loads"][name][what] / one.work["loads"]["peer"][what] for one in results]
        axes.scatter(parts, places, marker=marker, s=30, label=label, zorder=3)
    axes.legend(loc="lower right")
    _name(axes, [one.row for one in results], "parts of ONNX Runtime's: below 1 is better")


def _name(axes: Any, names: Sequence[str], label: str) -> None:
    axes.axvline(1, color="black", linewidth=0.8)
    axes.set_yticks(range(len(names)), names, fontsize=7)
    axes.set_ylim(max(len(names), 1) - 0.5, -0.5)
    axes.set_xlabel(label)
    axes.grid(axis="x", alpha=0.3)
