"""What is measured on a CUDA device, with its own table of performance goals.

The goals are of two kinds: how many times as fast as the best peer on the device, and the share of what the device allows. Small
cases are limited by the launch: their limit is the launch of an empty kernel.
"""

from __future__ import annotations

import math
from collections.abc import Iterator

from tvmdml.bench.cases import (
    AWAY,
    EVEN,
    ZERO,
    Case,
    K,
    M,
    adversaries,
    band,
    diagonal,
    doors,
    layouts,
    nonzero,
    rounding,
    sort,
    top_k,
    triangle,
)
from tvmdml.bench.inputs import DENSITIES

MOVES = 0.9
"""Goal: the share of the rate at which the device copies or writes memory."""
FINDS = 0.7
"""The same for cases that find coordinates."""
LAUNCH = 1 / 1.2
"""Goal: within 1.2 times the launch of an empty kernel."""

SIDE = 8 * K
"""The side of a matrix of 64M elements."""

_MOST_ELEMENTS = 256 * M
_BATCHES = (1, 32, 1024, 4096)
_AXES = (128, 4096, 32000, 128256, M)
_KS = (1, 8, 50, 256, 2048)
_QUICK_TOP_K = {
    (1, 32000, 50),
    (1, 128256, 1),
    (1, 128256, 256),
    (32, 32000, 50),
    (32, M, 2048),
    (1024, 4096, 8),
    (4096, 128, 8),
}


def _round() -> Iterator[Case]:
    for point, size, quick in (("64", 64, True), ("1K", K, False), ("64K", 64 * K, True)):
        yield Case("round half-even f32", point, rounding(size), quick=quick, share=LAUNCH)
    for point, size, quick in (("1M", M, True), ("16M", 16 * M, False)):
        yield Case("round half-even f32", point, rounding(size), quick=quick)
    for row, mode, dtype, quick in (
        ("round half-even f32", EVEN, "float32", True),
        ("round half-even f16", EVEN, "float16", True),
        ("round toward zero f32", ZERO, "float32", False),
        ("round half-away f32", AWAY, "float32", True),
        ("round half-away f16", AWAY, "float16", False),
    ):
        yield Case(row, "64M", rounding(64 * M, mode=mode, dtype=dtype), quick=quick, share=MOVES)
    yield Case("round in place f32", "64M", rounding(64 * M, in_place=True), quick=True, share=MOVES)


def _nonzero() -> Iterator[Case]:
    yield Case("nonzero f32, small", "64", nonzero(64, data="10 %"), quick=True, share=LAUNCH)
    yield Case("nonzero f32, small", "4K", nonzero(4 * K, data="10 %"), share=LAUNCH)
    for row, shapes, dtype, quick in (
        ("nonzero f32 1M", ((K, K),), "float32", ("10 %",)),
        ("nonzero f32 64M", ((SIDE, SIDE), (64 * M,)), "float32", tuple(DENSITIES)),
        ("nonzero bool 64M", ((SIDE, SIDE),), "uint8", ("10 %",)),
    ):
        for sizes in shapes:
            for density in DENSITIES:
                large, tenth = math.prod(sizes) == 64 * M, density == "10 %"
                yield Case(
                    row,
                    f"{density}, rank {len(sizes)}",
                    nonzero(*sizes, dtype=dtype, data=density),
                    goal=2.0,
                    quick=len(sizes) == 2 and density in quick,
                    share=FINDS if large and tenth else None,
                )


def _diagonal() -> Iterator[Case]:
    yield Case("diagonal, small", "16 x 16, no input", diagonal(16, 16), quick=True, share=LAUNCH)
    yield Case("diagonal, small", "256 x 256, triangle over input", triangle(256, 256), share=LAUNCH)
    for row, make, quick in (
        ("diagonal, no input, 64M", diagonal, ("float32", "uint8")),
        ("triangle over input, 64M", triangle, ("float32",)),
        ("band over input, 64M", band, ("float32",)),
    ):
        for dtype in ("float32", "float16", "uint8"):
            yield Case(row, dtype, make(SIDE, SIDE, dtype=dtype), quick=dtype in quick, share=MOVES)


def _top_k() -> Iterator[Case]:
    yield Case("top-k, small", "f32 (1, 16), k 4", top_k(1, 16, k=4), quick=True, share=LAUNCH)
    yield Case("top-k, small", "f32 (32, 128), k 8", top_k(32, 128, k=8), share=LAUNCH)
    for row, dtype in (("top-k f32", "float32"), ("top-k f16", "float16")):
        for batch in _BATCHES:
            for axis in _AXES:
                for k in (k for k in _KS if k <= axis and batch * axis <= _MOST_ELEMENTS):
                    quick = (batch, axis, k) in _QUICK_TOP_K if dtype == "float32" else (batch, axis, k) == (32, 32000, 50)
                    yield Case(row, f"{(batch, axis)}, k {k}", top_k(batch, axis, k=k, dtype=dtype), goal=1.5, quick=quick)
    yield Case("top-k f32, axis 0", "(1000, 4096), k 5", top_k(1000, 4096, k=5, axis=0), quick=True)
    for dtype in ("uint8", "int64"):
        yield Case("top-k, other types", f"{dtype} (32, 32000), k 50", top_k(32, 32000, k=50, dtype=dtype))
    for size, quick in ((64 * K, True), (16 * M, False)):
        yield Case("full sort f32", f"{size}", sort(size), quick=quick)


CASES = (*_round(), *_nonzero(), *_diagonal(), *_top_k(), *adversaries(), *layouts(), *doors())
