"""Weaving: several runs of elements become one in which they take turns, or one such run becomes several, in registers."""

from __future__ import annotations

from typing import Any

from tvmdml.kernels import tensorir as T

MOST = 8
"""The most runs that are woven at once: each needs a register."""


def woven(runs: list[Any]) -> list[Any]:
    """The elements of as many vectors in turns: first those of all runs that come first."""
    count, lanes = len(runs), T.lanes(runs[0])
    if count & (count - 1):
        return [_picked(runs, [(i % count) * lanes + i // count for i in range(v * lanes, (v + 1) * lanes)]) for v in range(count)]
    if count == 1:
        return runs
    # By halves: each step needs two registers only.
    half = range(lanes // 2)
    low = [lane for i in half for lane in (i, lanes + i)]
    high = [lane + lanes // 2 for lane in low]
    pairs = zip(woven(runs[0::2]), woven(runs[1::2]), strict=True)
    return [_picked([a, b], order) for a, b in pairs for order in (low, high)]


def unwoven(vectors: list[Any]) -> list[Any]:
    """The opposite: the runs whose elements take turns."""
    count, lanes = len(vectors), T.lanes(vectors[0])
    if count & (count - 1):
        return [_picked(vectors, [run + i * count for i in range(lanes)]) for run in range(count)]
    if count == 1:
        return vectors
    pairs = list(zip(vectors[0::2], vectors[1::2], strict=True))
    even, odd = (unwoven([_picked([a, b], range(first, 2 * lanes, 2)) for a, b in pairs]) for first in (0, 1))
    return [run for pair in zip(even, odd, strict=True) for run in pair]


def _picked(vectors: list[Any], lanes: Any) -> Any:
    return T.hold(T.Shuffle(vectors, list(lanes)))
