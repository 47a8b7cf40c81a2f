"""Products of matrices of integers, with zero points, and quantized."""

from __future__ import annotations

from collections.abc import Iterator

from tvmdml.proof.bench.cases import Case, Group, K
from tvmdml.proof.bench.task import Kind
from tvmdml.proof.bench.work import Operand, Work

GROUP = Group("matrix products of integers")
KIND = Kind(close=True)
"""Quotients that are nearly halves have either neighbour."""


def integers(m: int, k: int, n: int, a: str = "uint8", zero_points: bool = True, turned: bool = False) -> Work:
    """MATRIX_MULTIPLY_INTEGER; the second factor may lie turned, each column's places side by side."""
    zeros = (Operand((1, 1), a), Operand((1, 1), "int8")) if zero_points else (None, None)
    b = Operand((k, n), "int8", layout="transposed" if turned else "packed")
    return Work.on("MATRIX_MULTIPLY_INTEGER", Operand((m, k), a), zeros[0], b, zeros[1])


def scaled(m: int, k: int, n: int) -> Work:
    """MATRIX_MULTIPLY_INTEGER_TO_FLOAT, with a scale for each column."""
    a, scale, zero = Operand((m, k), "uint8"), Operand((1, 1), "float32"), Operand((1, 1), "uint8")
    b, each = Operand((k, n), "int8"), Operand((1, n), "float32")
    return Work.on("MATRIX_MULTIPLY_INTEGER_TO_FLOAT", a, scale, zero, b, each)


def quantized(m: int, k: int, n: int) -> Work:
    """QUANTIZED_LINEAR_MATRIX_MULTIPLY."""
    one, u, i = Operand((1, 1), "float32"), Operand((1, 1), "uint8"), Operand((1, 1), "int8")
    a, b = Operand((m, k), "uint8"), Operand((k, n), "int8")
    return Work.on("QUANTIZED_LINEAR_MATRIX_MULTIPLY", a, one, u, b, one, i, one, u)


def _goals() -> Iterator[Case]:
    shapes = ((64, 64, 64), (512, 512, 512), (K, K, K), (32, 768, 3072), (197, 768, 3072), (1, 4 * K, 4 * K))
    for sizes in shapes:
        yield Case("product of uint8 and int8", f"{sizes}", integers(*sizes), 1.1, sizes == (512, 512, 512), group=GROUP)
    few = ((1, 768, 3072), (4, 768, 3072))
    for sizes in few:
        yield Case("product of uint8 and int8", f"{sizes}", integers(*sizes), 1.1, group=GROUP)
        yield Case("quantized product", f"{sizes}", quantized(*sizes), 1.1, group=GROUP)
    for sizes in (*few, shapes[-1]):
        turned = integers(*sizes, turned=True)
        yield Case("product with a transposed factor of uint8 and int8", f"{sizes}", turned, 1.1, group=GROUP)
    for sizes in shapes[1:5]:
        yield Case("product of int8", f"{sizes}", integers(*sizes, a="int8", zero_points=False), 1.1, group=GROUP)
        yield Case("quantized product", f"{sizes}", quantized(*sizes), 1.1, sizes == (512, 512, 512), group=GROUP)
        yield Case("scaled product of integers", f"{sizes}", scaled(*sizes), 1.1, sizes == (512, 512, 512), group=GROUP)


CASES = tuple(_goals())
