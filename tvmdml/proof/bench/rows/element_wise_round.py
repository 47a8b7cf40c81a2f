"""Rounding, which stands for all work that only passes through memory: each size, type, mode and way to call."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from tvmdml.proof.bench.cases import LAUNCH, MOVES, Case, Group, K, M, strided
from tvmdml.proof.bench.work import Operand, Work

EVEN, ZERO, AWAY = "halves_to_nearest_even", "toward_zero", "toward_infinity"
GROUP = Group("round")


def rounding(*sizes: int, mode: str = EVEN, in_place: bool = False, door: str = "bound", **fields: Any) -> Work:
    """ELEMENT_WISE_ROUND."""
    return Work.on("ELEMENT_WISE_ROUND", Operand(sizes, **fields), rounding_mode=mode, in_place=in_place, door=door)


def _goals() -> Iterator[Case]:
    for point, size, goal, quick in (
        ("64", 64, 2.5, True),
        ("1K", K, 2.5, False),
        ("64K, in L2", 64 * K, 1.4, True),
        ("1M, in L3", M, 1.05, True),
        ("16M", 16 * M, 1.4, True),
        ("64M", 64 * M, 1.4, False),
    ):
        yield Case("round half-even f32", point, rounding(size), goal, quick, group=GROUP)
    for point, size, goal, quick in (
        ("64", 64, 6, True),
        ("64K", 64 * K, 2.2, True),
        ("4M", 4 * M, 1.6, False),
        ("16M", 16 * M, 1.6, True),
    ):
        yield Case("round half-even f16", point, rounding(size, dtype="float16"), goal, quick, group=GROUP)
    for row, mode, goals in (("round toward zero f32", ZERO, (2, 2, 1.5)), ("round half-away f32", AWAY, (15, 12, 5.5))):
        places = (("64K, in L2", 64 * K), ("1M, in L3", M), ("16M", 16 * M))
        for (point, size), goal in zip(places, goals, strict=True):
            yield Case(row, point, rounding(size, mode=mode), goal, quick=size == M, group=GROUP)
    for point, size, quick in (("1M", M, True), ("16M", 16 * M, False)):
        yield Case("round in place f32", point, rounding(size, in_place=True), 0.98, quick, group=GROUP)


def _layouts() -> Iterator[Case]:
    for point, layout in (("transposed", "transposed"), ("every second", "spread"), ("padded rows", "padded")):
        yield strided(f"round f32, {point}", rounding(K, K), layout)


def _doors() -> Iterator[Case]:
    """Ways to call that do more work than a bound call: for comparison, without a goal."""
    for door in ("operator", "function"):
        yield Case("doors: round f32", f"{door}, 64", rounding(64, door=door), quick=True)
    yield Case("doors: round f32", "function, 1M", rounding(M, door="function"))


def _on_cuda() -> Iterator[Case]:
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


CASES = (*_goals(), *_layouts(), *_doors(), Case("one thread", "round f32 16M", rounding(16 * M), threads=1))
CASES_ON = {"cuda": (*_on_cuda(), *_layouts(), *_doors())}
