"""How many kernels the schedules of the CPU have: sizes choose among a few, however many sizes there are."""

from __future__ import annotations

import dataclasses
import random
from collections.abc import Callable
from typing import Any

import pytest

import tvmdml
from tvmdml import TensorDesc as T
from tvmdml import targets
from tvmdml.library.scheduling import kernel_for
from tvmdml.operators import Operator

SHAPES = 250
"""Of each network layer below: 2,500 in all."""
LEVELS = ("cpu:x86-64-v3", "cpu:x86-64-v4")
Size = Callable[[int, int], int]


def owned(*sizes: int) -> T:
    return T("float32", sizes, flags="OWNED_BY_DML")


def convolution(size: Size, filters: tuple[int, ...], stride: int, groups: int = 1, last: bool = False) -> Operator:
    sizes = (1, filters[1] * groups, size(8, 400), size(8, 400))
    reach = filters[-1] // 2
    desc = tvmdml.Convolution.of(
        T("float32", sizes), owned(*filters), None, mode="cross_correlation", direction="forward", output_padding=(0, 0),
        strides=(stride, stride), dilations=(1, 1), start_padding=(reach, reach), end_padding=(reach, reach), group_count=groups,
    )  # fmt: skip
    if not last:
        return desc
    turned = {name: channels_last(getattr(desc, name)) for name in ("input_tensor", "output_tensor")}
    return dataclasses.replace(desc, **turned)  # type: ignore[arg-type] # fields of the descriptor


def channels_last(tensor: T) -> T:
    _, c, h, w = tensor.sizes
    return dataclasses.replace(tensor, strides=(c * h * w, 1, c * w, c))


def pooled(size: Size) -> Operator:
    tensor = T("float32", (1, 32, size(8, 400), size(8, 400)))
    return tvmdml.MaxPooling.of(tensor, window_size=(3, 3), strides=(2, 2), start_padding=(1, 1), end_padding=(1, 1))


LAYERS: dict[str, tuple[Callable[[Size], Operator], int]] = {
    "filters of 3 x 3": (lambda size: convolution(size, (64, 64, 3, 3), 1), 2),
    "filters of 3 x 3, channels last": (lambda size: convolution(size, (96, 48, 3, 3), 2, last=True), 2),
    "filters of 1 x 1": (lambda size: convolution(size, (120, 40, 1, 1), 1), 2),
    "a filter for each channel": (lambda size: convolution(size, (32, 1, 3, 3), 1, 32), 6),
    "the same, channels last": (lambda size: convolution(size, (32, 1, 5, 5), 1, 32, last=True), 3),
    "rows by weights": (lambda size: tvmdml.Gemm.of(T("float32", (1, 1, size(1, 900), 768)), owned(1, 1, 768, 768)), 4),
    "queries by keys": (
        lambda size: (
            lambda rows: tvmdml.Gemm.of(T("float32", (1, 12, rows, 64)), T("float32", (1, 12, rows, 64)), trans_b="transpose")
        )(size(8, 900)),
        9,
    ),
    "softmax": (lambda size: tvmdml.ActivationSoftmax1.of(T("float32", (1, 12, size(8, 900), size(8, 900))), axes=(3,)), 6),
    "pooling": (pooled, 20),
    "addition": (lambda size: tvmdml.ElementWiseAdd.of(*[T("float32", (1, 64, size(1, 400), size(1, 400)))] * 2), 4),
}
"""A layer, and the most kernels that it has on a processor, for all sizes of its images or rows."""


@pytest.mark.parametrize("level", LEVELS)
@pytest.mark.parametrize("layer", LAYERS)
def test_sizes_choose_among_few_kernels(layer: str, level: str) -> None:
    describe, most = LAYERS[layer]
    (target,) = targets.elsewhere(level)
    rng = random.Random(layer)
    descs: list[Any] = [describe(rng.randint) for _ in range(SHAPES)]
    found = {kernel_for(desc.canonical(), target).identity for desc in descs}
    assert len(found) <= most, sorted(map(str, found))
