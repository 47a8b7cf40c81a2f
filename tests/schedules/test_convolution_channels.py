"""Depthwise convolutions of images whose channels are last: the same sums as channel by channel, and nothing outside is touched."""

from __future__ import annotations

import dataclasses
from typing import Any

import fenced
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from support import assert_outputs_agree, seeded

import tvmdml
from tvmdml import TensorDesc, knobs, targets
from tvmdml.library.scheduling import kernel_for
from tvmdml.proof.conformance.cases.convolution import channels_last
from tvmdml.schedules.cpu import convolution
from tvmdml.targets.cpu import host

CPU = targets.resolve("cpu")
PLACES = [CPU, *(targets.resolve(f"cpu:{one}") for one in ("x86-64-v3", "x86-64") if host.host().runs(host.parse(one)))]


@st.composite
def geometries(draw: Any) -> tuple[tuple[int, ...], tuple[int, ...], dict[str, Any]]:
    """The sizes of an image and its filters, and numbers."""
    rank = draw(st.integers(1, 2))
    some = [
        (draw(st.integers(2, 5)), *(draw(st.integers(1, 2)) for _ in range(2)), *(draw(st.integers(0, 3)) for _ in range(2)))
        for _ in range(rank)
    ]
    spans = [(kernel - 1) * dilation + 1 for kernel, _, dilation, _, _ in some]
    image = [max(1, span - begin - end) + draw(st.integers(0, 17)) for span, (*_, begin, end) in zip(spans, some, strict=True)]
    channels = draw(st.integers(4, 40))
    names = ("strides", "dilations", "start_padding", "end_padding")
    numbers = {name: tuple(one[i] for one in some) for i, name in enumerate(names, 1)}
    return (draw(st.integers(1, 2)), channels, *image), (channels, 1, *(one[0] for one in some)), numbers


def owning(desc: Any) -> Any:
    return dataclasses.replace(desc, filter_tensor=dataclasses.replace(desc.filter_tensor, flags="OWNED_BY_DML"))


def check(sizes: tuple[int, ...], filters: tuple[int, ...], numbers: dict[str, Any]) -> set[bool]:
    """Sums of whole numbers, which are exact; returns whether the kernels divide their work."""
    random, ones = seeded(sizes, filters), (1,) * (len(sizes) - 2)
    x, w, bias = (random.integers(-9, 10, one).astype(np.float32) for one in (sizes, filters, (1, sizes[1], *ones)))
    usual = {"mode": "cross_correlation", "direction": "forward", "output_padding": (0,) * len(ones), "group_count": sizes[1]}
    tensors = (TensorDesc("float32", one.shape) for one in (x, w, bias))
    desc: Any = tvmdml.Convolution.of(*tensors, **usual, **numbers, fused_activation=tvmdml.ActivationRelu.fused())
    wanted = [np.empty(one.sizes, one.data_type.numpy) for one in desc.outputs()]
    tvmdml.compile(desc)(x, w, bias, *wanted)
    last: Any = channels_last(desc)
    divided: set[bool] = set()
    if convolution.matrix.plain(last.contraction().simplified()) is not None:
        return divided
    for one in (last, owning(last)):
        for target in PLACES:
            kernel = kernel_for(one, target)
            assert kernel.name == "channels"
            assert bool(kernel.owned) == (one is not last), "filters that never change are arranged once"
            divided.add(kernel.scalars[-1] > 1)  # tasks
            for source, result in ((True, False), (False, True)):
                work = fenced.Work(one, target)
                found = fenced.run(work, (x, w, bias), "kernel", fenced.Place(at_end=source), fenced.Place(at_end=result))
                assert_outputs_agree(one, found, tuple(wanted))
    return divided


@pytest.mark.full
@settings(max_examples=5)
@given(geometries())
def test_channels_last_have_the_sums_of_channels_first(geometry: Any) -> None:
    check(*geometry)


@pytest.mark.full
@pytest.mark.usefixtures("in_parallel")
@pytest.mark.parametrize("width", [3, 7, 13])
def test_tasks_have_rows_of_the_output(width: int) -> None:
    numbers = {"strides": (1, 1), "dilations": (1, 1), "start_padding": (2, 2), "end_padding": (2, 2)}
    with knobs.using(matrix={"task_image_products": 1 << 10}):
        assert check((2, 37, 9, width), (37, 1, 5, 5), numbers) == {True}
