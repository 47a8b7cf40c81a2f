"""Sums of products in registers: the innermost part of products of matrices, convolutions, attention and recurrent networks."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from tvmdml.kernels import tensorir_values as T

ProductStep = Callable[[Any, Any, Any], Any]
"""``step(a, b, total)``: the total with the product of both, in each lane."""


class Sums:
    """A tile of sums: rows of vectors. A step of its loop adds to each the product of a row's scalar and a column's vector."""

    def __init__(self, rows: int, vectors: int, start: Callable[[int, int], Any], step: ProductStep) -> None:
        self.rows, self.vectors, self._step = rows, vectors, step
        self._sums = [[_variable(start(i, j)) for j in range(vectors)] for i in range(rows)]

    def get(self, row: int, vector: int) -> Any:
        """A vector of sums."""
        return self._sums[row][vector].value

    def set(self, row: int, vector: int, value: Any) -> None:
        """Change one."""
        self._sums[row][vector].set(value)

    def add(self, scalar: Callable[[int], Any], vectors: list[Any]) -> None:
        """To each sum the product of its row's scalar and its column's vector."""
        for row in range(self.rows):
            self.add_row(row, scalar(row), vectors)

    def add_row(self, row: int, scalar: Any, vectors: list[Any]) -> None:
        """The same for one row."""
        factor = T.let(T.splat(scalar, T.lanes(vectors[0])))
        for total, vector in zip(self._sums[row], vectors, strict=True):
            total.set(self._step(factor, vector, total.value))


def _variable(value: Any) -> T.Variable:
    return T.Variable(T.type_of(value), value)


def zeros(lanes: int, dtype: str = "float32") -> Any:
    """A vector of zeros."""
    return T.splat(T.const(0, dtype), lanes)
