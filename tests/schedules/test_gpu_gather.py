"""What GPU schedules do whose items gather what they need: several channels in a thread, regions in registers, neighbours."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from drawn import Drawn
from support import seeded, with_subnormals

import tvmdml
from tvmdml import TensorDesc, targets
from tvmdml.kernels.tensorir import reciprocal_of
from tvmdml.library.scheduling import kernel_for
from tvmdml.operators import Operator
from tvmdml.proof.conformance import SEED
from tvmdml.proof.conformance.cases import Case, described
from tvmdml.targets import Target
from tvmdml.targets._lower import lower

SHARED = {"channel_items": 1}
"""Threads have several channels, however few there are."""


def tensor(*sizes: int, last: bool = False) -> TensorDesc:
    """Float32, with the channels last in memory or not."""
    _, c, h, w = sizes
    return TensorDesc("float32", sizes, strides=(c * h * w, 1, w * c, c) if last else None)


def regions(reduction: str) -> dict[str, Any]:
    """What ROI_ALIGN and its gradient have in common."""
    return {
        "roi_tensor": TensorDesc("float32", (5, 4)),
        "batch_indices_tensor": TensorDesc("uint32", (5,)),
        "reduction_function": reduction,
        "interpolation_mode": "linear",
        "spatial_scale_x": 0.75,
        "spatial_scale_y": 0.5,
        "minimum_samples_per_output": 1,
        "maximum_samples_per_output": 3,
    }


def aligned(last: bool, reduction: str) -> Operator:
    image, parts = tensor(2, 11, 6, 5, last=last), tensor(5, 11, 3, 2, last=last)
    return tvmdml.RoiAlign(input_tensor=image, output_tensor=parts, out_of_bounds_input_value=-2.5, **regions(reduction))


def gradients(last: bool, reduction: str) -> Operator:
    image, parts = tensor(2, 11, 6, 5, last=last), tensor(5, 11, 3, 2, last=last)
    return tvmdml.RoiAlignGrad(
        input_tensor=image, input_gradient_tensor=parts, output_gradient_tensor=image,
        output_roi_gradient_tensor=TensorDesc("float32", (5, 4)), input_pixel_offset=0.5, output_pixel_offset=-0.5,
        align_regions_to_corners=False, **regions(reduction),
    )  # fmt: skip


def pooled(last: bool) -> Operator:
    image, bins = tensor(2, 11, 6, 5, last=last), tensor(5, 11, 3, 2, last=last)
    return tvmdml.RoiPooling(
        input_tensor=image,
        roi_tensor=TensorDesc("float32", (1, 1, 5, 5)),
        output_tensor=bins,
        spatial_scale=0.75,
        pooled_size=(2, 3),
    )


def response(size: int, gradient: bool) -> Operator:
    x, given = tensor(2, 37, 3, 4), {"cross_channel": True, "local_size": size, "alpha": 0.5, "beta": 0.75, "bias": 0.5}
    if gradient:
        return tvmdml.LocalResponseNormalizationGrad(input_tensor=x, input_gradient_tensor=x, output_gradient_tensor=x, **given)
    return tvmdml.LocalResponseNormalization(input_tensor=x, output_tensor=x, **given)


SEVERAL = {
    "averages": (aligned(False, "average"), ("channels", 8)),
    "largest, channels last": (aligned(True, "max"), ("channels", 8)),
    "gradients of averages": (gradients(False, "average"), ("channels", 8)),
    "gradients of the largest": (gradients(True, "max"), ("channels", 1)),
    "bins": (pooled(True), ("channels", 8)),
    **{f"regions of {size}": (response(size, False), ("run", 32)) for size in (5, 4)},
    **{f"gradients of regions of {size}": (response(size, True), ("run", 32)) for size in (5, 4)},
}


@pytest.mark.full(first=1)
@pytest.mark.parametrize("name", SEVERAL)
@pytest.mark.parametrize("fill", ["mixed", "normal"])
def test_threads_with_several_channels_agree_with_the_reference(name: str, fill: str, device: Target) -> None:
    desc, choice = SEVERAL[name]
    drawn = Drawn(Case(desc, fill=fill), device, knobs=SHARED)
    kernel = drawn.kernel()
    assert kernel is not None
    assert choice in kernel.parameters
    with_subnormals(device, ["float32"])
    assert not (problem := drawn.problem(SEED)), problem


def test_neighbouring_threads_have_neighbours_in_memory(device: Target) -> None:
    """Whichever dimension is contiguous: in the code, the last division is by its size."""
    found = set()
    for last in (False, True):
        x = tensor(2, 8, 6, 5, last=last)
        desc = tvmdml.MaxPooling(
            input_tensor=x, output_tensor=tensor(2, 8, 3, 2, last=last), strides=(2, 2), window_size=(2, 2), start_padding=(0, 0),
            end_padding=(0, 0),
        )  # fmt: skip
        drawn = Drawn(Case(desc), device)
        kernel = drawn.kernel()
        assert kernel is not None
        found.add(dict(kernel.parameters)["orders"])
        assert not (problem := drawn.problem(SEED)), problem
    assert found == {"0123 0123", "0231 0231"}


def test_reciprocals_divide_exactly() -> None:
    """Numbers up to 2^30, around each multiple of a divisor and at random."""
    rng = seeded("reciprocals")
    powers = [(1 << i) + j for i in range(30) for j in (-1, 0, 1)]
    for divisor in sorted({*powers, *rng.integers(1, 1 << 30, 500).tolist(), *range(1, 200)} - {0}):
        word, bits = reciprocal_of(divisor)
        assert word < 1 << 32
        quotients = rng.integers(0, (1 << 30) // divisor + 1, 300)
        numbers = np.concatenate([quotients * divisor + j for j in (-1, 0, 1)] + [rng.integers(0, 1 << 30, 300), [1 << 30, 0]])
        numbers = numbers[(numbers >= 0) & (numbers <= 1 << 30)].astype(np.uint64)
        found = (numbers * np.uint64(2) * np.uint64(word)) >> np.uint64(32 + bits)
        assert (found == numbers // np.uint64(divisor)).all()


def test_what_two_launches_share_is_no_argument_of_either() -> None:
    desc = described("ROI_ALIGN_GRAD")(TensorDesc("float32", (2, 3, 6, 5)))
    (target,) = targets.elsewhere("vulkan:desktop")
    kernel = kernel_for(desc.canonical(), target)
    passed = {parameter.name for parameter in kernel.build().params}
    functions = lower(kernel.build()).functions.values()
    assert len(functions) == 2
    for function in functions:
        assert {parameter.name.removesuffix("_ptr") for parameter in function.params} <= passed
