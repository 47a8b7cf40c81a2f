"""The samples of a long run, and the verdicts on them: whether a curve still rises at the end, or exceeds its bound."""

from __future__ import annotations

import os
import threading
from collections.abc import Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

LEAST_SAMPLES = 60
"""Of fewer nothing is said: everything rises while it warms up."""


class Sample(NamedTuple):
    """One moment."""

    seconds: float
    resident: float
    proportional: float
    private: float
    files: float
    threads: float
    mappings: float
    libraries: float
    kernels: float
    plans: float
    cache_kib: float
    cache_files: float
    rate: float
    probe: float


class Curve(NamedTuple):
    """A column of the samples, and what is allowed of it."""

    name: str
    title: str
    slack: float
    """What it may rise by in any case: noise."""
    share: float = 0.04
    """Or this share of itself, whichever is more."""


CURVES = (
    Curve("resident", "resident memory, MiB", 8),
    Curve("proportional", "proportional share of memory (PSS), MiB", 8),
    Curve("private", "private memory (heap), MiB", 8),
    Curve("files", "open files", 4),
    Curve("threads", "threads", 2),
    Curve("mappings", "mappings (/proc/self/maps)", 64),
    Curve("libraries", "kernels' libraries loaded", 16),
    Curve("cache_kib", "cache on disk, KiB", 64),
    Curve("cache_files", "files in the cache", 64),
    Curve("probe", "a known call, µs of CPU time", 0.5, 0.25),
)
_SHOWN = {"rate": "calls a second of CPU time", "kernels": "kernels in memory", "plans": "plans in memory"}
"""What the picture has besides; how many calls a second there are is for what happens to be drawn."""


# -- Sampling -------------------------------------------------------------------------------------------------------


def take(seconds: float, calls: int, cpu: float, probe: float, cache: Path) -> Sample:
    """This moment of this process, and of its cache's folder."""
    from tvmdml import functions
    from tvmdml.library import finding

    memory = _memory()
    lines = Path("/proc/self/maps").read_text().splitlines()
    found = [entry.stat().st_size for entry in _files(cache)]
    return Sample(
        seconds=seconds,
        resident=memory["Rss"],
        proportional=memory["Pss"],
        private=memory["Private_Dirty"],
        files=len(os.listdir("/proc/self/fd")),
        threads=len(os.listdir("/proc/self/task")) if Path("/proc/self/task").exists() else threading.active_count(),
        mappings=len(lines),
        libraries=len(libraries()),
        kernels=len(finding._memory),
        plans=len(functions._plans),
        cache_kib=sum(found) / 1024,
        cache_files=len(found),
        rate=calls / cpu if cpu else 0,
        probe=probe,
    )


def libraries() -> set[str]:
    """The kernels' libraries that this process has loaded, by the numbers of their files: those in memory have one name."""
    lines = Path("/proc/self/maps").read_text().splitlines()
    return {line.split()[4] for line in lines if "/memfd:tvmdml" in line or ("/tvmdml-" in line and ".so" in line)}


def _memory() -> dict[str, float]:
    rows = (line.partition(":") for line in Path("/proc/self/smaps_rollup").read_text().splitlines()[1:])
    return {name: int(value.split()[0]) / 1024 for name, _, value in rows}


def _files(folder: Path) -> list[Path]:
    return [path for path in (folder / "kernels").rglob("*") if path.is_file()]


# -- Judging --------------------------------------------------------------------------------------------------------


class Verdict(NamedTuple):
    """What became of a curve."""

    title: str
    middle: float
    """Its height in the second third of the run: what 19 of 20 samples are no higher than (of speed: half of them)."""
    last: float
    """Its height in the last third."""
    first_slope: float
    """By which it rose an hour in the first half, by least squares."""
    second_slope: float
    """And in the second half."""
    good: bool
    why: str


def judge(samples: Sequence[Sample], cache_limit: int) -> list[Verdict]:
    """A verdict a curve.

    Curves rise and fall all the time: memories fill up, and start afresh. So it is their height that counts, and it may not be
    higher in the last third of the run than in the second by more than a curve's slack.
    """
    if len(samples) < LEAST_SAMPLES:
        return []
    columns = dict(zip(Sample._fields, np.array(samples, float).T, strict=True))
    return [_judge(curve, columns["seconds"] / 3600, columns[curve.name], cache_limit) for curve in CURVES]


def _judge(curve: Curve, hours: Any, values: Any, cache_limit: int) -> Verdict:
    third, half = len(values) // 3, len(values) // 2
    mark = 50 if curve.name == "probe" else 95  # the median of speed: other programs may use the machine, too
    middle, last = (float(np.percentile(part, mark)) for part in (values[third : 2 * third], values[-third:]))
    slopes = [float(np.polyfit(hours[part], values[part], 1)[0]) for part in (slice(None, half), slice(half, None))]
    allowed = max(curve.slack, curve.share * middle)
    why = "" if last - middle <= allowed else f"rose by {last - middle:.4g}, allowed: {allowed:.4g}"
    if curve.name == "cache_kib":
        bound = cache_limit * 33 / 32 / 1024 + 256  # the cache is pruned when it has grown by a 32nd, and one kernel is a few KiB
        why = why if values.max() <= bound else f"reached {values.max():.4g}, its bound is {bound:.4g}"
    return Verdict(curve.title, middle, last, slopes[0], slopes[1], not why, why)


def table(verdicts: Sequence[Verdict]) -> str:
    """The verdicts, for people."""
    if not verdicts:
        return f"too short for a verdict: fewer than {LEAST_SAMPLES} samples"
    rows = [("", "second third", "last third", "slope/h, 1st half", "slope/h, 2nd half", "")]
    rows += [(v.title, *(f"{n:.5g}" for n in (v.middle, v.last, v.first_slope, v.second_slope)), v.why or "good") for v in verdicts]
    widths = [max(len(row[i]) for row in rows) for i in range(6)]
    return "\n".join("  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip() for row in rows)


# -- A picture ------------------------------------------------------------------------------------------------------


def plot(samples: Sequence[Sample], path: Path) -> None:
    """Every curve, in small."""
    import matplotlib as mpl

    mpl.use("Agg")
    from matplotlib import pyplot

    columns = dict(zip(Sample._fields, np.array(samples, float).T, strict=True))
    shown = [(curve.name, curve.title) for curve in CURVES] + list(_SHOWN.items())
    rows = -(-len(shown) // 3)
    figure, grid = pyplot.subplots(rows, 3, figsize=(12, 2 * rows), sharex=True, constrained_layout=True)
    for axes, entry in zip(grid.flat, [*shown, *[None] * (3 * rows - len(shown))], strict=True):
        if entry is None:
            axes.set_visible(False)
            continue
        axes.plot(columns["seconds"] / 60, columns[entry[0]], linewidth=0.8, color="#27609c")
        axes.set_title(entry[1], fontsize=9, loc="left")
        axes.set_ylim(bottom=0)
        axes.tick_params(labelsize=8)
        axes.grid(linewidth=0.3)
        axes.spines[["top", "right"]].set_visible(False)
    for axes in grid[-1]:
        axes.set_xlabel("minutes", fontsize=8)
    figure.savefig(path, dpi=75)
    pyplot.close(figure)
