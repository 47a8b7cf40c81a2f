"""Pictures of tuning: how the best candidate was found, and the gain of winners. The caller loads Matplotlib."""

from __future__ import annotations

import importlib
import itertools
import math
from collections.abc import Callable, Mapping, Sequence
from io import BytesIO
from pathlib import Path
from typing import Any

from tvmdml.library.log_terms import Tuned
from tvmdml.system.console import printable
from tvmdml.tuning.display import title
from tvmdml.tuning.rivals import Rival

# Okabe and Ito's colours, which colour-blind people can distinguish; shapes repeat the information.
_BLUE, _ORANGE, _VERMILION, _GREEN, _GREY = "#0072B2", "#E69F00", "#D55E00", "#009E73", "#666666"
_COLUMNS = 3
_MOST_PIXELS = 60000
"""The maximum height of a picture: PNG readers do not support more."""


def convergence(tuned: Tuned) -> bytes:
    """A job's trials, and the best so far, as SVG."""
    figure = _figure(7.0, 2.8)
    _draw_convergence(figure.subplots(), tuned)
    return _svg(figure)


def winners(tuned: Sequence[Tuned], peers: Mapping[int, Rival]) -> bytes:
    """Winners compared with the defaults and the best peers, as SVG."""
    figure = _figure(12.0, _height(tuned))
    _draw_winners(figure, tuned, peers)
    return _svg(figure)


def all_in_one(tuned: Sequence[Tuned], peers: Mapping[int, Rival], path: Path) -> None:
    """All pictures in one PNG file."""
    top, rows = _height(tuned), max(1, math.ceil(len(tuned) / _COLUMNS))
    height = top + 3.0 * rows
    figure = _figure(17.0, height)
    above, below = figure.subfigures(2, 1, height_ratios=(top, 3.0 * rows))
    _draw_winners(above, tuned, peers)
    grid = below.subplots(rows, _COLUMNS, squeeze=False).flat
    for axes, one in itertools.zip_longest(grid, tuned):
        if one is None:
            axes.set_axis_off()
        else:
            _draw_convergence(axes, one)
            axes.set_title(_label(one, 60), fontsize=7, parse_math=False)
    figure.savefig(path, format="png", dpi=min(110, _MOST_PIXELS / height))


def _draw_convergence(axes: Any, tuned: Tuned) -> None:
    """A dot for each trial; failed trials are at the bottom."""
    ratios = [trial.outcome.ratio for trial in tuned.trials]
    numbers = range(1, len(ratios) + 1)
    timed = [(number, ratio) for number, ratio in zip(numbers, ratios, strict=True) if ratio]
    failed = [number for number, trial in zip(numbers, tuned.trials, strict=True) if trial.outcome.problem]
    axes.axhline(1, color=_GREY, linewidth=1, linestyle="--", label="default")
    if timed:
        axes.scatter(*zip(*timed, strict=True), s=12, color=_BLUE, zorder=3, label="trial")
    if ratios:
        best = list(itertools.accumulate(ratios, max, initial=1.0))[1:]
        axes.step(numbers, best, where="post", color=_ORANGE, linewidth=1.8, label="best so far")
    if failed:
        floor = axes.get_xaxis_transform()
        axes.scatter(failed, [0.04] * len(failed), transform=floor, marker="x", s=22, color=_VERMILION, label="failed")
    axes.set_xlabel("trial", fontsize=8)
    axes.set_ylabel("times as fast as the default", fontsize=8)
    axes.tick_params(labelsize=8)
    axes.xaxis.get_major_locator().set_params(integer=True)
    axes.grid(alpha=0.3)
    axes.legend(fontsize=7, loc="center left", bbox_to_anchor=(1.0, 0.5), frameon=False)


def _draw_winners(figure: Any, tuned: Sequence[Tuned], peers: Mapping[int, Rival]) -> None:
    """A dot for each winner relative to the default, and beside it one relative to the best peer, if there are peers."""
    against = [("default", dict(enumerate(one.record.ratio for one in tuned)), _BLUE, "o")]
    if peers:
        against.append(("best peer", {place: peer.ratio for place, peer in peers.items()}, _GREEN, "D"))
    panels = figure.subplots(1, len(against), sharey=True, squeeze=False)[0]
    for axes, (whom, ratios, colour, marker) in zip(panels, against, strict=True):
        axes.hlines(list(ratios), 1, list(ratios.values()), color=colour, linewidth=2)
        axes.scatter(list(ratios.values()), list(ratios), color=colour, marker=marker, s=28, zorder=3)
        axes.axvline(1, color="black", linewidth=0.8)
        axes.set_xlabel(f"times as fast as the {whom}", fontsize=9)
        axes.grid(alpha=0.3)
    if peers:
        panels[-1].set_xscale("log", base=2)
        panels[-1].xaxis.set_major_formatter(_plain_number)
    panels[0].set_yticks(range(len(tuned)), [_label(one, 90) for one in tuned], fontsize=8, parse_math=False)
    panels[0].set_ylim(max(len(tuned), 1) - 0.5, -0.5)


def _plain_number(value: float, position: int) -> str:
    return f"{value:g}"


def _label(tuned: Tuned, length: int) -> str:
    name = printable(title(tuned.job))
    return name if len(name) <= length else f"{name[: length - 1]}…"


def _height(tuned: Sequence[Tuned]) -> float:
    return 1.4 + 0.28 * max(len(tuned), 3)


def _figure(width: float, height: float) -> Any:
    # The object interface: it needs no display, and does not affect the program's own figures.
    figure_class: Callable[..., Any] = importlib.import_module("matplotlib.figure").Figure
    return figure_class(figsize=(width, height), layout="constrained")


def _svg(figure: Any) -> bytes:
    matplotlib: Any = importlib.import_module("matplotlib")
    content = BytesIO()
    # Text stays text, which takes a tenth of the size; and equal figures make equal files.
    with matplotlib.rc_context({"svg.fonttype": "none", "svg.hashsalt": "tvmdml", "font.family": "sans-serif"}):
        figure.savefig(content, format="svg", metadata={"Date": None})
    return content.getvalue()
