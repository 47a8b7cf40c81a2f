"""What is particular to ELEMENT_WISE_ROUND on a device: how many neighbours move at once, and arrays that are there."""

from __future__ import annotations

import pytest
from support import (
    assert_agrees,
    assert_same_bits,
    mixture,
    reference,
    round_desc,
    seeded,
)

import tvmdml
from tvmdml import TensorDataType, TensorDesc
from tvmdml.library.scheduling import kernel_for
from tvmdml.targets import Target

FLOATS = (TensorDataType.FLOAT16, TensorDataType.FLOAT32, TensorDataType.FLOAT64)
types = pytest.mark.parametrize("data_type", FLOATS, ids=str)


@types
def test_as_many_neighbours_move_at_once_as_every_row_allows(device: Target, data_type: TensorDataType) -> None:
    memory = mixture(seeded(data_type), data_type, (20, 3, 48))
    most = 16 // data_type.itemsize
    for width in (32, 28, 26, 25):
        x = memory[:, 1, :width]
        desc = round_desc(TensorDesc(data_type, x.shape, tuple(step // x.itemsize for step in x.strides)))
        lanes = next(n for n in (8, 4, 2, 1) if n <= most and width % n == 0)
        assert dict(kernel_for(desc, device).parameters)["lanes"] == lanes
        assert_agrees(desc, device, x)


def test_arrays_on_the_device_are_rounded_there(device: Target) -> None:
    values = mixture(seeded("there"), TensorDataType.FLOAT32, (50, 60))
    there = tvmdml.asarray(values, device)
    (expected,) = reference(round_desc(TensorDesc("float32", values.shape), "halves_to_nearest_even"), values)
    assert_same_bits(tvmdml.round(there).numpy(), expected, any_nan=True)
    tvmdml.round(there, out=there)
    assert_same_bits(there.numpy(), expected, any_nan=True)
