"""The scan family: running sums along the last axis and the first, of every kind of type, and products."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from tvmdml.proof.bench.cases import LAUNCH, WITHIN_3, Case, Group, K, M, strided
from tvmdml.proof.bench.task import Kind
from tvmdml.proof.bench.work import Operand, Work

GROUP = Group("scans")
SCANS = 0.4
"""Goal on a device: the share of the rate at which it copies memory; rows in tiles are read twice."""

# The other libraries add all elements one after the other.
KIND = Kind(close=True, steps=1 << 12)


def summed(*sizes: int, axis: int = 1, door: str = "bound", in_place: bool = False, dtype: str = "float32", **fields: Any) -> Work:
    """CUMULATIVE_SUMMATION."""
    return Work.on("CUMULATIVE_SUMMATION", Operand(sizes, dtype, **fields), in_place=in_place, door=door, axis=axis)


def multiplied(*sizes: int, axis: int = 1) -> Work:
    """CUMULATIVE_PRODUCT, of ones."""
    return Work.on("CUMULATIVE_PRODUCT", Operand(sizes, data="constant"), axis=axis)


def _goals() -> Iterator[Case]:
    for sizes in ((K, 64), (256, 256), (K, K), (4 * K, 4 * K), (1, 4 * M)):
        yield Case("running sum f32", f"{sizes}", summed(*sizes), 1.5, sizes == (K, K), group=GROUP)
    for sizes in ((256, 256), (K, K), (4 * K, 4 * K)):
        yield Case("running sum f32, axis 0", f"{sizes}", summed(*sizes, axis=0), 3, sizes == (K, K), group=GROUP)
    for dtype in ("float16", "int32", "int64"):
        yield Case("running sum, other types", f"{dtype} {(K, K)}", summed(K, K, dtype=dtype), 1.0, group=GROUP)
    yield Case("running product f32", f"{(K, K)}", multiplied(K, K), 1.5, group=GROUP)
    yield Case("running product f32", f"{(K, K)}, axis 0", multiplied(K, K, axis=0), 3, group=GROUP)
    yield Case("running sum f32", f"{(K, K)}, in place", summed(K, K, in_place=True))
    yield strided(f"running sum f32 {(K, K)}, padded rows", summed(K, K), "padded")
    short = summed(64 * K, 8)
    yield Case("running sum f32", "(65536, 8), against (512, 1024)", short, WITHIN_3, baseline=summed(512, K))


def _on_cuda() -> Iterator[Case]:
    yield Case("running sum f32", "(64,)", summed(1, 64), quick=True, share=LAUNCH)
    for sizes, axis in (((8 * K, 8 * K), 1), ((8 * K, 8 * K), 0), ((1, 64 * M), 1)):
        yield Case("running sum f32", f"{sizes}, axis {axis}", summed(*sizes, axis=axis), quick=True, share=SCANS)


CASES = tuple(_goals())
CASES_ON = {"cuda": tuple(_on_cuda())}
