"""Products of matrices: square ones, those of networks' layers, of a vector, and batches of small ones."""

from __future__ import annotations

from collections.abc import Iterator

from tvmdml.proof.bench.cases import Case, Group, K
from tvmdml.proof.bench.task import Kind
from tvmdml.proof.bench.work import Operand, Work

GROUP = Group("matrix products")
FUSED = Group("matrix products with operators behind")
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


def followed(m: int, k: int, n: int) -> Work:
    """GEMM with a bias for each column, the sum with another matrix, and an activation, as layers of networks have them."""
    matrices = (Operand(sizes, "float32", "unit") for sizes in ((m, k), (k, n), (1, n), (m, n)))
    return Work.on("GEMM", *matrices, behind=("ELEMENT_WISE_ADD", "ACTIVATION_RELU"))


def few_bits(m: int, k: int, n: int) -> Work:
    """GEMM with a matrix of 4 bits, in blocks of 32, as language models have them."""
    matrix = Operand((n, k // 2), "uint8"), Operand((n, k // 32), "float32", "unit")
    a = Operand((m, k), "float32", "unit")
    return Work.on("FUSED_BLOCKWISE_GEMM", a, *matrix, bits=4, block_size=32, is_signed=False, may_round=False)


def is_quick(dtype: str, sizes: tuple[int, int, int]) -> bool:
    """One of the square ones."""
    return dtype == "float32" and sizes == (512, 512, 512)


def _goals() -> Iterator[Case]:
    squares = tuple((side, side, side) for side in (512, K, 2 * K))
    layers = ((1, 768, 3072), (32, 768, 3072), (197, 768, 3072), (1, 4 * K, 4 * K))
    for sizes in (*squares, (32 * 197, 768, 3072), (65, 67, 70)):
        yield Case("product float32", f"{sizes}", product(*sizes), 0.95, is_quick("float32", sizes), group=GROUP)
    for sizes in ((64, 64, 64), *layers, (32, 4 * K, 4 * K)):
        yield Case("product float32", f"{sizes}", product(*sizes), 1.05, group=GROUP)
    for sizes in (*squares[:2], *layers):
        yield Case("product float16", f"{sizes}", product(*sizes, dtype="float16"), 1.1, group=GROUP)
    for sizes in ((512, 512, 512), (197, 768, 3072)):
        yield Case("product with bias float32", f"{sizes}", product(*sizes, bias=True), 1.0, group=GROUP)
    for sizes in ((512, 512, 512), *layers):
        turned = product(*sizes, trans_b="transpose")
        yield Case("product with a transposed factor float32", f"{sizes}", turned, 1.05, group=GROUP)
    for sizes in ((64, 64, 64), (512, 64, 512), *squares[:2], *layers[1:3]):
        yield Case("product, bias, sum and relu float32", f"{sizes}", followed(*sizes), 1.2, group=FUSED)
    for sizes in ((1, 2 * K, 8 * K), (8, 2 * K, 8 * K), (128, 2 * K, 8 * K)):
        yield Case("product with a matrix of 4 bits float32", f"{sizes}", few_bits(*sizes), 1.0, group=GROUP)
    for batch, sizes in (((96,), (128, 64, 128)), ((96,), (128, 128, 64)), ((512,), (16, 16, 16))):
        yield Case("batch of products float32", f"{batch[0]} x {sizes}", product(*sizes, batch=batch), 1.0, group=GROUP)


CASES = tuple(_goals())
