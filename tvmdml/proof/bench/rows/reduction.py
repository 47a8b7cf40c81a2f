"""The reduction family: sums, largest elements and their places, softmax, normalisation; along rows, columns and everything."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np

from tvmdml.proof.bench.cases import LAUNCH, Case, Group, K
from tvmdml.proof.bench.task import Kind
from tvmdml.proof.bench.work import Operand, Work

GROUP = Group("reductions")
READ = 0.9
"""Goal of large sums: the share of the rate at which memory is read."""
LARGE = 1 << 24
"""The least bytes of those on the CPU."""
# Some libraries add all elements one after the other.
KIND = Kind(close=True, steps=1 << 10)


def reduced(function: str, *sizes: int, axes: tuple[int, ...] = (1,), dtype: str = "float32") -> Work:
    """REDUCE."""
    return Work.on("REDUCE", Operand(sizes, dtype), function=function, axes=axes)


def along(operator: str, *sizes: int, axes: tuple[int, ...] = (1,), dtype: str = "float32", **attributes: Any) -> Work:
    """An operator with axes."""
    return Work.on(operator, Operand(sizes, dtype), axes=axes, **attributes)


def normalized(*sizes: int, dtype: str = "float32", **attributes: Any) -> Work:
    """Layer normalisation, with a scale and a bias."""
    own = Operand((1, sizes[1]), dtype)
    return Work.on("MEAN_VARIANCE_NORMALIZATION1", Operand(sizes, dtype), own, own, axes=(1,), **attributes)


def of_batch(*sizes: int, training: bool = False, dtype: str = "float32") -> Work:
    """Batch normalisation."""
    own = Operand((1, sizes[1], 1, 1), dtype, "positive")
    if training:
        return Work.on("BATCH_NORMALIZATION_TRAINING", Operand(sizes, dtype), own, own)
    return Work.on("BATCH_NORMALIZATION", Operand(sizes, dtype), own, own, own, own)


def is_quick(function: str, axes: tuple[int, ...], sizes: tuple[int, int]) -> bool:
    """A sum of rows."""
    return (function, axes, sizes) == ("sum", (1,), (2 * K, 2 * K))


def _goals() -> Iterator[Case]:
    for dtype in ("float32", "float16"):
        for side in (256, 2 * K, 4 * K):
            sizes = (side, side)
            for function in ("sum", "max"):
                for axes, goal in (((1,), 1.0), ((0,), 1.2), ((0, 1), 1.0)):
                    yield Case(
                        f"{function} {dtype}",
                        f"{sizes} axes {axes}",
                        reduced(function, *sizes, axes=axes, dtype=dtype),
                        goal,
                        is_quick(function, axes, sizes),
                        share=READ if axes != (0,) and side * side * np.dtype(dtype).itemsize >= LARGE else None,
                        group=GROUP,
                    )
            yield Case(f"argmax {dtype}", f"{sizes} axes (1,)", along("ARGMAX", *sizes, dtype=dtype), 2.0, group=GROUP)
            yield Case(f"argmax {dtype}", f"{sizes} axes (0,)", along("ARGMAX", *sizes, axes=(0,), dtype=dtype), 2, group=GROUP)
        for sizes in ((64, 1000), (K, 1000), (128, 32000)):
            yield Case(
                f"softmax {dtype}",
                f"{sizes}",
                along("ACTIVATION_SOFTMAX1", *sizes, dtype=dtype),
                1.5,
                sizes == (K, 1000),
                group=GROUP,
            )
        for sizes in ((K, 768), (4 * K, 4 * K)):
            yield Case(
                f"layer normalisation {dtype}", f"{sizes}", normalized(*sizes, dtype=dtype), 1.5, sizes == (K, 768), group=GROUP
            )
            fused = normalized(*sizes, dtype=dtype, fused_activation="ACTIVATION_RELU")
            yield Case(f"layer normalisation and relu {dtype}", f"{sizes}", fused, 1.5, group=GROUP)
    yield Case("log-sum-exp float32", f"{(K, 1000)}", reduced("log_sum_exp", K, 1000), 1.5, group=GROUP)
    yield Case("log-softmax float32", f"{(K, 1000)}", along("ACTIVATION_LOG_SOFTMAX1", K, 1000), 1.5, group=GROUP)
    image = (16, 64, 56, 56)
    yield Case("batch normalisation float32", f"{image}", of_batch(*image), 1.0, group=GROUP)
    yield Case("batch normalisation that trains float32", f"{image}", of_batch(*image, training=True), 1.5, group=GROUP)


def _on_cuda() -> Iterator[Case]:
    yield Case("sum float32", "(1, 64)", reduced("sum", 1, 64), quick=True, share=LAUNCH)
    for axes in ((1,), (0,), (0, 1)):
        yield Case("sum float32", f"{(8 * K, 8 * K)} axes {axes}", reduced("sum", 8 * K, 8 * K, axes=axes), quick=True, share=READ)


CASES = tuple(_goals())
CASES_ON = {"cuda": tuple(_on_cuda())}
