"""What is measured on a processor: the table of performance goals, row by row.

A goal is how many times as fast as the best peer tvmdml must be. Rows without a peer compare with a baseline of tvmdml itself:
there 0.33 means "within three times". Another kind of goal is a share of what the machine allows; no row here has one.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator
from typing import Any

from tvmdml.bench.inputs import DENSITIES, Sizes
from tvmdml.bench.work import NO_BOUND, Attribute, Work

K, M = 1 << 10, 1 << 20

EVEN, ZERO, AWAY = "halves_to_nearest_even", "toward_zero", "toward_infinity"
WITHIN_3 = 0.33
"""The goal for cases that may take up to three times as long as their baseline."""


@dataclasses.dataclass(frozen=True)
class Case:
    """A row of the table."""

    row: str
    """The row of the goals that the case belongs to."""
    point: str
    """Which of the row's figures it is."""
    work: Work
    goal: float | None = None
    """How many times as fast as the best peer, or as the baseline, tvmdml must be."""
    quick: bool = False
    """Whether the case is in the quick set."""
    rivals: tuple[str, ...] = ()
    """Names of the peers that the goal applies to; empty for all."""
    baseline: Work | None = None
    """The baseline to compare with instead of peers."""
    threads: int | None = None
    """The most threads that every library may use; ``None`` for all."""
    share: float | None = None
    """Another kind of goal: the share of what the machine allows."""

    @property
    def name(self) -> str:
        """The name that results are stored under."""
        return f"{self.row}: {self.point}"

    def at_most(self, size: int) -> Case:
        """The same case with dimensions limited to a size."""
        baseline = self.baseline and self.baseline.at_most(size)
        return dataclasses.replace(self, work=self.work.at_most(size), baseline=baseline)


# -- The operators' work ------------------------------------------------------------------------------------------


def _work(operator: str, sizes: Sizes, attributes: dict[str, Attribute], **fields: Any) -> Work:
    return Work(operator, sizes, attributes=tuple(attributes.items()), **fields)


def rounding(*sizes: int, mode: str = EVEN, **fields: Any) -> Work:
    """ELEMENT_WISE_ROUND."""
    return _work("ELEMENT_WISE_ROUND", sizes, {"rounding_mode": mode}, **fields)


def nonzero(*sizes: int, **fields: Any) -> Work:
    """NONZERO_COORDINATES."""
    return _work("NONZERO_COORDINATES", sizes, {}, **fields)


def diagonal(*sizes: int, value: int = 1, begin: int = 0, end: int = 1, **fields: Any) -> Work:
    """DIAGONAL_MATRIX1; the identity by default."""
    return _work("DIAGONAL_MATRIX1", sizes, {"value": value, "begin": begin, "end": end}, **{"data": "", **fields})


def triangle(*sizes: int, **fields: Any) -> Work:
    """The elements above the diagonal of an input, and zeros."""
    return diagonal(*sizes, value=0, begin=NO_BOUND[0], end=1, **{"data": "normal", **fields})


def band(*sizes: int, **fields: Any) -> Work:
    """An input with eleven diagonals overwritten."""
    return diagonal(*sizes, value=7, begin=-5, end=6, **{"data": "normal", **fields})


def top_k(*sizes: int, k: int, axis: int = 1, direction: str = "decreasing", **fields: Any) -> Work:
    """TOP_K1."""
    return _work("TOP_K1", sizes, {"axis": axis, "k": k, "axis_direction": direction}, **fields)


def sort(size: int, **fields: Any) -> Work:
    """TOP_K1 of all elements, the smallest first."""
    return top_k(1, size, k=size, direction="increasing", **fields)


# -- The goals ----------------------------------------------------------------------------------------------------


def _round() -> Iterator[Case]:
    for point, size, goal, quick in (
        ("64", 64, 2.5, True),
        ("1K", K, 2.5, False),
        ("64K, in L2", 64 * K, 1.4, True),
        ("1M, in L3", M, 1.05, True),
        ("16M", 16 * M, 1.4, True),
        ("64M", 64 * M, 1.4, False),
    ):
        yield Case("round half-even f32", point, rounding(size), goal, quick)
    for point, size, goal, quick in (
        ("64", 64, 6, True),
        ("64K", 64 * K, 2.2, True),
        ("4M", 4 * M, 1.6, False),
        ("16M", 16 * M, 1.6, True),
    ):
        yield Case("round half-even f16", point, rounding(size, dtype="float16"), goal, quick)
    for row, mode, goals in (("round toward zero f32", ZERO, (2, 2, 1.5)), ("round half-away f32", AWAY, (15, 12, 5.5))):
        places = (("64K, in L2", 64 * K), ("1M, in L3", M), ("16M", 16 * M))
        for (point, size), goal in zip(places, goals, strict=True):
            yield Case(row, point, rounding(size, mode=mode), goal, quick=size == M)
    for point, size, quick in (("1M", M, True), ("16M", 16 * M, False)):
        yield Case("round in place f32", point, rounding(size, in_place=True), 0.98, quick)


def _nonzero() -> Iterator[Case]:
    for row, shapes, dtype, goals, quick in (
        ("nonzero f32 1M", ((K, K), (M,), (8, 16, 64, 128)), "float32", (15, 25, 60, 12), tuple(DENSITIES)),
        ("nonzero f32 16M", ((4 * K, 4 * K),), "float32", (5, 12, 30, 6), ("10 %",)),
        ("nonzero bool 1M", ((K, K),), "uint8", (15, 15, 10, 10), ("10 %",)),
    ):
        for sizes in shapes:
            for density, goal in zip(DENSITIES, goals, strict=True):
                point = f"{density}, rank {len(sizes)}"
                yield Case(row, point, nonzero(*sizes, dtype=dtype, data=density), goal, len(sizes) == 2 and density in quick)


def _diagonal() -> Iterator[Case]:
    yield Case("diagonal, no input", "64 MB", diagonal(4 * K, 4 * K), 2.0, quick=True)
    yield Case("diagonal, no input", "4 MB", diagonal(K, K), 1.6, quick=True)
    for row, make, goals in (("triangle over input f32", triangle, (2.8, 2.2)), ("band over input f32", band, (2.5, 1.4))):
        for point, size, goal in (("256 KB, in L2", 256, goals[0]), ("64 MB", 4 * K, goals[1])):
            yield Case(row, point, make(size, size), goal, quick=True)
    for dtype, goal in (("float16", 6), ("uint8", 45)):
        yield Case("triangle over input, narrow", dtype, triangle(K, K, dtype=dtype), goal, quick=True)
    yield Case("diagonal 16 x 16", "no input", diagonal(16, 16), 4, quick=True)


def _top_k() -> Iterator[Case]:
    for sizes, k, goal, quick in (
        ((1, 16), 4, 4.4, True),
        ((1, 32000), 50, 12, True),
        ((1, 128256), 1, 2.2, True),
        ((1, 128256), 8, 12, False),
        ((1, 128256), 50, 12, False),
        ((1, 128256), 256, 9, True),
        ((32, 32000), 50, 14, True),
        ((1024, 1000), 5, 12, True),
        ((4096, 128), 8, 16, True),
        ((8, 1000000), 100, 5, False),
    ):
        yield Case("top-k f32", f"{sizes}, k {k}", top_k(*sizes, k=k), goal, quick)
    columns = (1000, 4096)
    yield Case("top-k f32, axis 0", f"{columns}, k 5", top_k(*columns, k=5, axis=0), 20, quick=True)
    one = top_k(*columns, k=1, axis=0)
    ordered = ("topk", "TopK", "argpartition + argsort")
    yield Case("top-k f32, axis 0", f"{columns}, k 1", one, 45, quick=True, rivals=ordered)
    yield Case("top-k f32, axis 0", f"{columns}, k 1, against argmax", one, rivals=("argmax", "max"))
    for dtype, goal in (("float16", 12), ("uint8", 12), ("int64", 5)):
        yield Case("top-k, other types", f"{dtype} (32, 32000), k 50", top_k(32, 32000, k=50, dtype=dtype), goal, quick=True)
    for rivals, goal, names in (
        ("unstable np.argsort", 5, ("argsort",)),
        ("stable peers", 25, ("argsort stable", "sort stable", "TopK")),
    ):
        for size in (4096, 65536):
            yield Case(f"full sort f32, against {rivals}", f"{size}", sort(size), goal, size == 65536, rivals=names)


# -- Cases that must not be slow ----------------------------------------------------------------------------------


def adversaries() -> Iterator[Case]:
    """Inputs that may be difficult for a selection."""
    for point, random, quick in (
        ("(32, 32000), k 50", top_k(32, 32000, k=50), True),
        ("(1, 128256), k 256", top_k(1, 128256, k=256), False),
        ("sort of 65536", sort(65536), False),
    ):
        for data in ("ascending", "descending", "constant", "all NaN", "dense block"):
            work = dataclasses.replace(random, data=data)
            yield Case("top-k, adversarial input", f"{point}, {data}", work, WITHIN_3, quick, baseline=random)


def layouts() -> Iterator[Case]:
    """Arrays with gaps, or with their dimensions in another order in memory."""
    for point, packed, layout in (
        ("round f32, transposed", rounding(K, K), "transposed"),
        ("round f32, every second", rounding(K, K), "spread"),
        ("round f32, padded rows", rounding(K, K), "padded"),
        ("nonzero f32 10 %, transposed", nonzero(K, K, data="10 %"), "transposed"),
        ("nonzero f32 10 %, padded rows", nonzero(K, K, data="10 %"), "padded"),
        ("diagonal, no input, padded rows", diagonal(K, K), "padded"),
        ("triangle over input, padded rows", triangle(K, K), "padded"),
        ("triangle over input, transposed", triangle(K, K), "transposed"),
        ("top-k (32, 32000), k 50, padded rows", top_k(32, 32000, k=50), "padded"),
        ("top-k (32, 32000), k 50, every second", top_k(32, 32000, k=50), "spread"),
        ("top-k (32, 32000), k 50, transposed", top_k(32, 32000, k=50), "transposed"),
    ):
        work = dataclasses.replace(packed, layout=layout)
        yield Case("strided", point, work, WITHIN_3, layout == "padded", baseline=packed)


# -- For comparison, without a goal -------------------------------------------------------------------------------


def doors() -> Iterator[Case]:
    """Ways to call that do more work than a bound call."""
    for door in ("operator", "function"):
        yield Case("doors: round f32", f"{door}, 64", rounding(64, door=door), quick=True)
    yield Case("doors: round f32", "function, 1M", rounding(M, door="function"))


def _one_thread() -> Iterator[Case]:
    for point, work in (
        ("round f32 16M", rounding(16 * M)),
        ("nonzero f32 16M, 10 %", nonzero(4 * K, 4 * K, data="10 %")),
        ("triangle over input f32, 64 MB", triangle(4 * K, 4 * K)),
        ("top-k f32 (32, 32000), k 50", top_k(32, 32000, k=50)),
    ):
        yield Case("one thread", point, work, threads=1)


CASES = (
    *_round(),
    *_nonzero(),
    *_diagonal(),
    *_top_k(),
    *adversaries(),
    *layouts(),
    *doors(),
    *_one_thread(),
)
