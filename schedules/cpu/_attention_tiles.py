"""Registers for attention, and powers of e of numbers that are not positive."""

from __future__ import annotations

from typing import Any, NamedTuple

from tvmdml.kernels import tensorir_values as T
from tvmdml.mathematics._steps import Form, fixed, fused, not_below, scaled
from tvmdml.mathematics.coefficients import EXP, LN2
from tvmdml.targets import Target

_LEAST = -87.0
"""The power is 0 from here on, a little before it is below the normal numbers: those take a processor a hundred times as long."""


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


__all__ = ["Registers", "power", "registers", "safe_base"]
