"""Loops whose ends depend on values: in an emulator that ends a launch after a while, the values that they take longest for."""

from __future__ import annotations

import itertools

import numpy as np
import pytest
from support import Array, assert_outputs_agree, reference

import tvmdml
from tvmdml import Operator
from tvmdml.targets import Target

LIMIT = np.finfo(np.float32)
FLOATS = np.array(
    [LIMIT.max, -LIMIT.max, LIMIT.smallest_subnormal, 1e-40, LIMIT.tiny, 3.5, -0.0, np.inf, -np.inf, np.nan], np.float32
)
WHOLE = np.array([0, 1, -1, 2, 3, 2**30 + 1, 2**31 - 1, -(2**31)], np.int32)


def pairs(values: Array) -> tuple[Array, Array]:
    a, b = np.array([*itertools.product(values, repeat=2)], values.dtype).T
    return a.copy(), b.copy()


def like(*arrays: Array) -> list[tvmdml.TensorDesc]:
    return [tvmdml.TensorDesc(one.dtype, one.shape) for one in arrays]


def cases() -> dict[str, tuple[Operator, tuple[Array, ...]]]:
    floats, whole = pairs(FLOATS), pairs(WHOLE)
    same, regions = np.full((2, 5000), np.nan, np.float32), np.array([*itertools.product(FLOATS[2:], repeat=4)][::97], np.float32)
    image, numbers = np.ones((1, 1, 9, 9), np.float32), np.zeros(len(regions), np.uint32)
    pooled = tvmdml.TensorDesc("float32", (len(regions), 1, 3, 3))
    return {
        "remainders": (tvmdml.ElementWiseModulusTruncate.of(*like(*floats)), floats),
        "remainders of floors": (tvmdml.ElementWiseModulusFloor.of(*like(*floats)), floats),
        "powers": (tvmdml.ElementWisePow.of(*like(*whole)), whole),
        "digits of equal keys": (tvmdml.TopK1.of(*like(same), k=600, axis=1), (same,)),
        "searches": (
            tvmdml.RoiAlign.of(
                *like(image, regions, numbers), output_tensor=pooled, reduction_function="average", interpolation_mode="linear",
                spatial_scale_x=1.0, spatial_scale_y=1.0, out_of_bounds_input_value=0.0, minimum_samples_per_output=1,
                maximum_samples_per_output=4,
            ),
            (image, regions, numbers),
        ),
    }  # fmt: skip


@pytest.mark.full
@pytest.mark.parametrize("name", cases())
def test_they_end(cuda: Target, name: str) -> None:
    desc, arrays = cases()[name]
    outputs = [cuda.empty(tensor.sizes, tensor.data_type.numpy) for tensor in desc.outputs()]
    tvmdml.compile(desc, cuda)(*map(cuda.place, arrays), *outputs)
    assert_outputs_agree(desc, tuple(np.asarray(one.numpy()) for one in outputs), reference(desc, *arrays))
