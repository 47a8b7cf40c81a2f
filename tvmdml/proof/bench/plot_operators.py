"""A picture of a run of many cases: how many times as fast as the best peer each operator is."""

from __future__ import annotations

import importlib
import math
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from tvmdml.proof.bench import plot
from tvmdml.proof.bench.means import Compared, each_operator, family
from tvmdml.proof.bench.results import BenchRun

COLUMNS = 3
"""The operators stand in so many columns, each with axes of its own."""


def draw(run: BenchRun, path: Path) -> None:
    """Write the picture, as PNG: a bar for the mean of each operator's cases, a mark for the lowest."""
    figure_class: Any = importlib.import_module("matplotlib.figure").Figure
    colours = importlib.import_module("matplotlib").colormaps["tab20"].colors
    found = sorted(each_operator(run.results), key=lambda one: (family(one.name), one.name))
    families = list(dict.fromkeys(family(one.name) for one in found))
    length = math.ceil(len(found) / COLUMNS)
    figure = figure_class(figsize=(17, 0.2 * length + 2), layout="constrained")
    most = max(one.mean for one in found)
    marks = []
    for i, axes in enumerate(figure.subplots(1, COLUMNS)):
        part = found[i * length : (i + 1) * length]
        marks = _draw_part(axes, part, [colours[families.index(family(one.name)) % len(colours)] for one in part])
        axes.set_xlim(0.5, 1.2 * most)
    patch: Any = importlib.import_module("matplotlib.patches").Patch
    keys = [patch(color=colours[i % len(colours)], label=name) for i, name in enumerate(families)]
    figure.legend(handles=[*keys, *marks], loc="outside lower center", ncols=9, fontsize=8)
    cases = sum(len(one.results) for one in found)
    figure.suptitle(f"tvmdml on {plot.machine(run)}, {run.updated[:10]}: {cases} cases of {len(found)} operators")
    plot.save(figure, path)


def _draw_part(axes: Any, part: Sequence[Compared], colours: Sequence[Any]) -> list[Any]:
    """Draw an axes' bars; the marks, for the legend."""
    places = plot.bars(axes, [one.name for one in part], [one.mean for one in part], colours)
    marks = axes.scatter([one.lowest.ratio for one in part], places, marker="|", color="black", label="the lowest case")
    axes.set_xlabel("times as fast as the best peer, geometric mean")
    axes.xaxis.set_major_formatter("{x:g}")
    return [marks]
