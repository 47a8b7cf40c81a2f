"""Registers for attention."""

from __future__ import annotations

from typing import Any, NamedTuple

from tvmdml.kernels import tensorir_values as T
from tvmdml.targets import Target


class Registers(NamedTuple):
    """A processor's vectors of float32, and how many sums of products fit into its registers."""

    lanes: int
    sums: int

    def rows(self, vectors: int, most: int = 12) -> int:
        """The rows of a tile with so many vectors in a row."""
        return max(1, min(most, self.sums // vectors))


def registers(target: Target) -> Registers:
    """Those of a target's processor."""
    processor = getattr(target, "processor", None)
    if processor is not None and processor.has("avx512f"):
        return Registers(16, 24)
    if processor is not None and processor.has("fma"):
        return Registers(8, 12)
    return Registers(4, 8)


def safe_base(most: Any) -> Any:
    """The largest score of a row; 0 if there is none but -inf."""
    return T.hold(T.select(T.expression(most == T.like(most, float("-inf"))), 0.0, most))


__all__ = ["Registers", "registers", "safe_base"]
