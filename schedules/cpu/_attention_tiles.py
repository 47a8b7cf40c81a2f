"""Register tiles for attention: sums of products in registers, and powers of e of numbers that are not positive."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

from tvmdml.kernels import tensorir_values as T
from tvmdml.mathematics._steps import Form, fixed, fused, not_below, scaled
from tvmdml.mathematics.coefficients import EXP, LN2
from tvmdml.targets import Target

_LEAST = -87.0
"""The power is 0 from here on, a little before it is below the normal numbers: those take a processor a hundred times as long."""


PREFETCH = """
declare void @llvm.prefetch.p0(ptr, i32, i32, i32)
define void @tvmdml_prefetch_rows(ptr %p) alwaysinline {
  call void @llvm.prefetch.p0(ptr %p, i32 0, i32 3, i32 1)
  ret void
}
"""
"""LLVM IR of ``prefetch``."""


def prefetch(buffer: Any, at: Any) -> None:
    """Ask for an element, which need not be there, before it is read."""
    T.evaluate(T.call_extern("void", "tvmdml_prefetch_rows", T.address_of(buffer[at])))


class Registers(NamedTuple):
    """A processor's vectors of float32, and how many sums of products fit into its registers."""

    lanes: int
    sums: int
    fma: bool

    def rows(self, vectors: int, most: int = 12) -> int:
        """The rows of a tile with so many vectors in a row."""
        return max(1, min(most, self.sums // vectors))


def registers(target: Target) -> Registers:
    """Those of a target's processor."""
    processor = getattr(target, "processor", None)
    if processor is not None and processor.has("avx512f"):
        return Registers(16, 24, True)
    if processor is not None and processor.has("fma"):
        return Registers(8, 12, True)
    return Registers(4, 8, processor is None or not processor.has("x86"))


def product(a: Any, b: Any, c: Any, fma: bool) -> Any:
    """``a * b + c``: by one instruction if there is one."""
    return T.call_llvm_pure_intrin(T.type_of(c), "llvm.fma", a, b, c) if fma else a * b + c


class Tile:
    """Sums of products in registers: rows of vectors."""

    def __init__(self, rows: int, vectors: int, of: Registers) -> None:
        self.rows, self.vectors, self._of = rows, vectors, of
        self._sums = [[T.local("float32", of.lanes) for _ in range(vectors)] for _ in range(rows)]
        self._whole = T.run(T.i64(0), of.lanes)

    def get(self, row: int, vector: int) -> Any:
        """A vector of sums."""
        return self._sums[row][vector][self._whole]

    def set(self, row: int, vector: int, value: Any) -> None:
        """Change one."""
        T.store(self._sums[row][vector], self._whole, value)

    def clear(self) -> None:
        """All sums become 0."""
        for row in range(self.rows):
            for vector in range(self.vectors):
                self.set(row, vector, zeros(self._of.lanes))

    def add(self, scalar: Callable[[int], Any], vector: Callable[[int], Any]) -> None:
        """To each sum the product of its row's scalar and its column's vector."""
        own = [T.let(vector(j)) for j in range(self.vectors)]
        for i in range(self.rows):
            a = T.let(T.splat(scalar(i), self._of.lanes))
            for j in range(self.vectors):
                self.set(i, j, product(a, own[j], self.get(i, j), self._of.fma))


def zeros(lanes: int) -> Any:
    """A vector of zeros."""
    return T.splat(T.const(0.0, "float32"), lanes)


def power(x: Any, fma: bool) -> Any:
    """The power of e to numbers that are not positive; NaN stays NaN.

    Without an instruction for fused sums, products are rounded: by as much as that, the numbers have been rounded already.
    """
    own = fused if fma else _apart
    some = not_below(x, _LEAST)
    magic = T.like(x, Form(x).magic)
    raised = own(some, T.like(x, 1.4426950408889634), magic)
    number = fixed(raised - magic)
    high, low = LN2["float32"]
    r = own(number, T.like(x, -low), own(number, T.like(x, -high), some))
    total, one = T.like(x, EXP["float32"][-1]), T.like(x, 1)
    for c in reversed(EXP["float32"][:-1]):
        total = own(total, r, T.like(x, c))
    found = scaled(own(own(total, r, one), r, one), raised)
    return fixed(T.Select(x <= T.like(x, _LEAST), T.like(x, 0), found))


def _apart(a: Any, b: Any, c: Any) -> Any:
    return fixed(T.rounded(a * b) + c)


def safe_base(most: Any) -> Any:
    """The largest score of a row; 0 if there is none but -inf."""
    return fixed(T.select(T.expression(most == T.like(most, float("-inf"))), 0.0, most))


__all__ = ["PREFETCH", "Registers", "Tile", "power", "prefetch", "product", "registers", "safe_base", "zeros"]
