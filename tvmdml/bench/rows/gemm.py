"""Products of matrices: square ones, those of networks' layers, of a vector, and batches of small ones."""

from __future__ import annotations

from collections.abc import Iterator

from tvmdml.bench.cases import Case, Group, K
from tvmdml.bench.task import Kind
from tvmdml.bench.work import Operand, Work

GROUP = Group("matrix products")
KIND = Kind(close=True, steps=64)
"""Sums of floats."""


def product(
    m: int, k: int, n: int, dtype: str = "float32", batch: tuple[int, ...] = (), trans_b: str = "none", bias: bool = False
) -> Work:
    """GEMM, perhaps with a bias for each column."""
    a = Operand((*batch, m, k), dtype, "unit")
    b = Operand((*batch, *((n, k) if trans_b == "transpose" else (k, n))), dtype, "unit")
    more = (Operand((1, n), dtype, "unit"),) if bias else ()
    return Work.on("GEMM", a, b, *more, trans_b=trans_b)


def is_quick(dtype: str, sizes: tuple[int, int, int]) -> bool:
    """One of the square ones."""
    return dtype == "float32" and sizes == (512, 512, 512)


def _goals() -> Iterator[Case]:
    squares = tuple((side, side, side) for side in (64, 512, K, 2 * K))
    layers = ((32 * 197, 768, 3072), (197, 768, 3072), (1, 4 * K, 4 * K), (32, 4 * K, 4 * K))
    for dtype, shapes in (("float32", (*squares, *layers)), ("float16", (*squares[1:3], *layers[1:3]))):
        for sizes in shapes:
            work = product(*sizes, dtype=dtype)
            yield Case(f"product {dtype}", f"{sizes}", work, 1.0, is_quick(dtype, sizes), group=GROUP)
    for sizes in ((512, 512, 512), (197, 768, 3072)):
        yield Case("product with bias float32", f"{sizes}", product(*sizes, bias=True), 1.0, group=GROUP)
        turned = product(*sizes, trans_b="transpose")
        yield Case("product with a transposed factor float32", f"{sizes}", turned, 1.0, group=GROUP)
    for batch, sizes in (((96,), (128, 64, 128)), ((96,), (128, 128, 64)), ((512,), (16, 16, 16))):
        yield Case("batch of products float32", f"{batch[0]} x {sizes}", product(*sizes, batch=batch), 1.0, group=GROUP)


CASES = tuple(_goals())
