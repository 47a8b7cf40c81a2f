"""Polynomials with a small largest error: least squares, weighted again and again, in many digits. It needs mpmath."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import mpmath
import numpy as np

mp = mpmath.mp.clone()
mp.dps = 60  # 2 / pi is needed to more: see Payne and Hanek's reduction
_ROUNDS = 10


class Points:
    """A function and a weight at points of an interval, which are denser towards its ends."""

    def __init__(self, of: Callable[[Any], Any], low: Any, high: Any, weight: Callable[[Any], Any], count: int = 150) -> None:
        places = (low + (high - low) * (1 - mp.cos(mp.pi * i / count)) / 2 for i in range(count + 1))
        found = [(x, of(x), weight(x)) for x in places]
        self.points = [p for p in found if p[2] > 0]

    def polynomial(self, degree: int, fixed: Sequence[Any] = ()) -> list[Any]:
        """The coefficients, from the constant one on; the first ones may be fixed."""
        powers = range(len(fixed), degree + 1)
        rows = [[w * x**power for power in powers] for x, _, w in self.points]
        right = [w * (y - value(fixed, x)) for x, y, w in self.points]
        counts = [mp.mpf(1)] * len(rows)
        best: tuple[Any, list[Any]] | None = None
        for _ in range(_ROUNDS):
            solved = _least(rows, right, counts, len(powers))
            errors = [abs(mp.fdot(row, solved) - y) for row, y in zip(rows, right, strict=True)]
            largest = max(errors)
            if best is None or largest < best[0]:
                best = largest, solved
            counts = [n * (e / largest + mp.mpf("0.001")) for n, e in zip(counts, errors, strict=True)]
            total = mp.fsum(counts)
            counts = [n / total for n in counts]
        assert best is not None
        return [*fixed, *best[1]]

    def error(self, coefficients: Sequence[float]) -> Any:
        """The largest weighted error."""
        exact = [mp.mpf(c) for c in coefficients]
        return max(w * abs(y - value(exact, x)) for x, y, w in self.points)


def _least(rows: Sequence[Sequence[Any]], right: Sequence[Any], counts: Sequence[Any], size: int) -> list[Any]:
    """The weighted least squares' solution."""
    matrix, vector = mp.matrix(size, size), mp.matrix(size, 1)
    for row, y, n in zip(rows, right, counts, strict=True):
        for i in range(size):
            weighted = n * row[i]
            vector[i] += weighted * y
            for j in range(i, size):
                matrix[i, j] += weighted * row[j]
    for i in range(size):
        for j in range(i):
            matrix[i, j] = matrix[j, i]
    return list(mp.lu_solve(matrix, vector))


def value(coefficients: Sequence[Any], x: Any) -> Any:
    """A polynomial's value."""
    total = mp.mpf(0)
    for c in reversed(coefficients):
        total = total * x + c
    return total


def to_float(number: Any, dtype: str) -> float:
    """A number in the type that a type is computed in: float16 in float32."""
    return float(number) if dtype == "float64" else float(np.float32(float(number)))
