"""What is particular to DIAGONAL_MATRIX1 on a device: tiles, vectors that lie apart, steps that are never taken."""

from __future__ import annotations

import numpy as np
import pytest
from support import (
    INT_MAX,
    INT_MIN,
    Placed,
    assert_agrees,
    assert_same_bits,
    diagonal_desc,
    random_bits,
    seeded,
)

import tvmdml
from tvmdml import TensorDataType, TensorDesc
from tvmdml.library.scheduling import kernel_for
from tvmdml.targets import Target
from tvmdml.tensors import packed_strides

# Elements are moved as bits, so one type of each size is enough.
TYPES = (TensorDataType.UINT8, TensorDataType.FLOAT16, TensorDataType.FLOAT32, TensorDataType.INT64)
BANDS = (
    *((0, 1), (-2, 3), (7, 8), (-60, 70)),
    *((INT_MIN, 1), (1, INT_MAX), (INT_MIN, INT_MAX)),
    *((1, 0), (3, -2), (50, -40), (INT_MAX, INT_MIN)),  # inverted
    *((4, 4), (1000, 2000), (INT_MIN, INT_MIN + 1)),  # nothing to fill
)
types = pytest.mark.parametrize("data_type", TYPES, ids=str)


def agrees(
    target: Target,
    data_type: TensorDataType,
    sizes: tuple[int, ...],
    has_input: bool,
    layouts: tuple[str, str] = ("packed", "packed"),
) -> None:
    """For every band."""
    x = Placed.holding(random_bits(seeded(data_type, sizes), data_type, sizes), layouts[0])
    for begin, end in BANDS:
        assert_agrees(diagonal_desc(x.desc, 7, begin, end, has_input, layouts[1]), target, x.array if has_input else None)


@pytest.mark.full
@types
def test_columns_that_become_rows_take_tiles(device: Target, data_type: TensorDataType) -> None:
    for sizes in ((8, 8), (32, 32), (33, 31), (2, 45, 100)):
        x = Placed.holding(random_bits(seeded(sizes), data_type, sizes), "transposed")
        desc = diagonal_desc(x.desc, 7, -3, 2)
        tiled = kernel_for(desc, device).name == "tiles"
        assert tiled == (len(sizes) == 2)  # in a batch, the matrices are contiguous
        agrees(device, data_type, sizes, True, ("transposed", "packed"))


@pytest.mark.full(first=1)
@types
def test_rows_that_are_whole_vectors_apart_are_moved_so(device: Target, data_type: TensorDataType) -> None:
    memory = random_bits(seeded(data_type), data_type, (3, 40, 5, 48))
    x = memory[:, :, 2, :32]
    desc = TensorDesc(data_type, x.shape, tuple(step // x.itemsize for step in x.strides))
    for begin, end in BANDS:
        found = diagonal_desc(desc, 7, begin, end)
        assert kernel_for(found, device).name == "vectors"
        assert_agrees(found, device, x)


@pytest.mark.parametrize("sizes", [(1, 5), (5, 1), (2, 1, 20), (1, 1, 1), (20, 1, 3, 1)], ids=str)
def test_a_step_that_is_never_taken_may_have_any_size(device: Target, sizes: tuple[int, ...]) -> None:
    x = random_bits(seeded(sizes), TensorDataType.FLOAT32, sizes)
    steps = tuple((1 << 32) - 1 if size == 1 else step for size, step in zip(sizes, packed_strides(sizes), strict=True))
    desc = TensorDesc("float32", sizes, steps)
    assert dict(kernel_for(diagonal_desc(desc, 7, 0, 1), device).parameters)["counted in"] == "int32"
    assert_agrees(diagonal_desc(desc, 7, 0, 1), device, x)


def test_the_function_may_write_into_its_input(device: Target) -> None:
    x = random_bits(seeded("in place"), TensorDataType.FLOAT32, (50, 65))
    expected = np.tril(x)
    there = tvmdml.asarray(x, device)
    tvmdml.diagonal_matrix(there, value=0, diagonal_fill_begin=1, diagonal_fill_end=INT_MAX, out=there)
    assert_same_bits(there.numpy(), expected)
