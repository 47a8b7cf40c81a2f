"""A run as a page of Markdown: the speed of each operator beside its best peer, family by family."""

from __future__ import annotations

import textwrap
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path

from tvmdml.errors import InvalidArgument, message
from tvmdml.proof.bench import report
from tvmdml.proof.bench.means import Compared, each_operator, families
from tvmdml.proof.bench.plot import machine
from tvmdml.proof.bench.results import BenchRun

_MEANING = (
    "A ratio is the time of the best peer divided by tvmdml's, and a mean the geometric mean of ratios. "
    "The case is the one with the lowest ratio."
)
_WIDTH = 128
_LIBRARIES = ("numpy", "torch", "onnxruntime", "cupy")


def lines(run: BenchRun) -> Iterator[str]:
    """The page's lines."""
    libraries = ", ".join(f"{name} {run.versions[name]}" for name in _LIBRARIES if run.versions.get(name))
    measured = f"`tvmdml bench` on {machine(run)}, {run.updated[:10]}, beside {libraries}."
    yield from textwrap.wrap(f"{measured} {_MEANING}", _WIDTH)
    yield ""
    yield from _table(("family", "cases", "mean", "lowest", "case"), (_family_row(one) for one in families(run.results)))
    for one in families(run.results):
        yield from ("", f"### {one.name[:1].upper()}{one.name[1:]}", "")
        of = each_operator(one.results)
        yield from _table(("operator", "cases", "mean", "lowest", "case", "tvmdml", "best peer"), map(_operator_row, of))


def _family_row(one: Compared) -> tuple[str, ...]:
    lowest = one.lowest
    return one.name, str(len(one.results)), f"{one.mean:.2f}", f"{lowest.ratio:.2f}", lowest.name


def _operator_row(one: Compared) -> tuple[str, ...]:
    lowest = one.lowest
    peer = lowest.best.library if lowest.best else ""
    times = report.shown_entry(lowest.ours), f"{report.shown_entry(lowest.best)} {peer}"
    return f"`{one.name}`", str(len(one.results)), f"{one.mean:.2f}", f"{lowest.ratio:.2f}", lowest.name, *times


def _table(columns: Sequence[str], rows: Iterable[Sequence[str]]) -> Iterator[str]:
    yield f"| {' | '.join(columns)} |"
    yield f"|{' --- |' * len(columns)}"
    for row in rows:
        yield f"| {' | '.join(cell.replace('|', '/') for cell in row)} |"


def write(run: BenchRun, path: Path) -> None:
    """Write the page.

    Raises:
        InvalidArgument: the file cannot be written.
    """
    try:
        path.write_text("\n".join((*lines(run), "")), encoding="utf-8")
    except OSError as error:
        raise InvalidArgument(message("--page", path, f"a file that can be written ({error.strerror})")) from None
