"""DIAGONAL_MATRIX and DIAGONAL_MATRIX1 on a device: every algorithm gives the reference's matrix, and writes nowhere else."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
import pytest
from support import (
    ALL,
    INT_MAX,
    INT_MIN,
    LAYOUT_PAIRS,
    SIZES,
    Placed,
    assert_agrees,
    assert_same_bits,
    diagonal_desc,
    random_bits,
    seeded,
    tensor,
)

import tvmdml
from tvmdml import DiagonalMatrix, TensorDataType, TensorDesc, knobs
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
inputs = pytest.mark.parametrize("has_input", [False, True], ids=["zeros", "input"])


@pytest.fixture(params=[8192, 1], ids=["many groups", "one group"])
def groups(request: pytest.FixtureRequest) -> Iterator[None]:
    with knobs.using(diagonal_matrix={"most_groups": request.param, "threads": 64}):
        yield


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


@pytest.mark.usefixtures("groups")
@inputs
@types
def test_rows_of_any_length_agree(device: Target, data_type: TensorDataType, has_input: bool) -> None:
    # Rows that are whole vectors; that share vectors; that are slightly longer than a vector; that are shorter.
    for sizes in ((23, 160), (3, 9, 64), (2, 23, 151), (2, 2, 517), (31, 17), (40, 3)):
        agrees(device, data_type, sizes, has_input)


@inputs
@types
def test_widths_around_a_vector_agree(device: Target, data_type: TensorDataType, has_input: bool) -> None:
    for width in (1, 2, 3, 4, 5, 7, 8, 9, 15, 16, 17, 31, 32, 33):
        for height in (1, 5):
            x = random_bits(seeded(width, height), data_type, (2, height, width))
            for begin, end in ((0, 1), (1, INT_MAX), (2, -1), (-3, 9)):
                desc = diagonal_desc(TensorDesc(data_type, x.shape), 7, begin, end, has_input)
                assert_agrees(desc, device, x if has_input else None)


@pytest.mark.parametrize("data_type", ALL, ids=str)
def test_every_type_agrees(device: Target, data_type: TensorDataType) -> None:
    sizes = (37, 53)
    x = random_bits(seeded(data_type), data_type, sizes)
    value = -0.0 if data_type.is_float else int(np.iinfo(data_type.tvm).max) - 5
    for begin, end in BANDS:
        assert_agrees(diagonal_desc(TensorDesc(data_type, sizes), value, begin, end), device, x)
        assert_agrees(diagonal_desc(TensorDesc(data_type, sizes), value, begin, end, has_input=False), device, None)


@pytest.mark.parametrize("layouts", LAYOUT_PAIRS, ids=str)
@pytest.mark.parametrize("data_type", [TensorDataType.UINT8, TensorDataType.INT64], ids=str)
def test_every_layout_agrees(device: Target, data_type: TensorDataType, layouts: tuple[str, str]) -> None:
    for sizes in ((3, 21, 37), (40, 70)):
        agrees(device, data_type, sizes, True, layouts)


@pytest.mark.parametrize("layout", ["padded", "transposed", "spread", "shuffled"])
def test_every_layout_of_zeros_agrees(device: Target, layout: str) -> None:
    for sizes in ((3, 21, 37), (2, 70, 32)):
        agrees(device, TensorDataType.FLOAT16, sizes, False, ("packed", layout))


@types
def test_columns_that_become_rows_take_tiles(device: Target, data_type: TensorDataType) -> None:
    for sizes in ((8, 8), (32, 32), (33, 31), (2, 45, 100)):
        x = Placed.holding(random_bits(seeded(sizes), data_type, sizes), "transposed")
        desc = diagonal_desc(x.desc, 7, -3, 2)
        tiled = device.kernel(desc).name == "tiles"
        assert tiled == (len(sizes) == 2)  # in a batch, the matrices are contiguous
        agrees(device, data_type, sizes, True, ("transposed", "packed"))


@types
def test_rows_that_are_whole_vectors_apart_are_moved_so(device: Target, data_type: TensorDataType) -> None:
    memory = random_bits(seeded(data_type), data_type, (3, 40, 5, 48))
    x = memory[:, :, 2, :32]
    desc = TensorDesc(data_type, x.shape, tuple(step // x.itemsize for step in x.strides))
    for begin, end in BANDS:
        found = diagonal_desc(desc, 7, begin, end)
        assert device.kernel(found).name == "vectors"
        assert_agrees(found, device, x)


@pytest.mark.parametrize("rank", [rank for rank in SIZES if rank > 1])
def test_every_rank_agrees(device: Target, rank: int) -> None:
    sizes = SIZES[rank]
    agrees(device, TensorDataType.FLOAT32, (*sizes[:-1], 9), True)
    agrees(device, TensorDataType.FLOAT32, sizes, True, ("padded", "shuffled"))


@pytest.mark.usefixtures("numbers")
@inputs
@pytest.mark.parametrize("data_type", ALL, ids=str)
def test_numbers_of_every_kind_agree(device: Target, data_type: TensorDataType, has_input: bool) -> None:
    values = (-1, 5, -3) if data_type.is_signed or data_type.is_float else (int(np.iinfo(data_type.tvm).max), 5, 200)
    cases = ((40, 64), "packed", "packed"), ((3, 21, 37), "packed", "packed"), ((21, 37), "transposed", "packed")
    for sizes, *layouts in (*cases, ((2, 3, 9, 10), "padded", "shuffled")):
        x = Placed.holding(random_bits(seeded(sizes), data_type, sizes), layouts[0])
        for value, band in zip(values, ((0, 1), (-3, 70), (3, -2)), strict=True):
            assert_agrees(diagonal_desc(x.desc, value, *band, has_input, layouts[1]), device, x.array if has_input else None)


@pytest.mark.usefixtures("numbers")
@pytest.mark.parametrize("rank", [rank for rank in SIZES if rank > 1])
def test_numbers_of_every_kind_agree_in_every_rank(device: Target, rank: int) -> None:
    x = Placed.holding(random_bits(seeded(rank), TensorDataType.INT8, SIZES[rank]), "padded")
    for has_input in (True, False):
        assert_agrees(diagonal_desc(x.desc, -7, 0, 2, has_input, "shuffled"), device, x.array if has_input else None)


@pytest.mark.parametrize("sizes", [(1, 5), (5, 1), (2, 1, 20), (1, 1, 1), (20, 1, 3, 1)], ids=str)
def test_a_step_that_is_never_taken_may_have_any_size(device: Target, sizes: tuple[int, ...]) -> None:
    x = random_bits(seeded(sizes), TensorDataType.FLOAT32, sizes)
    steps = tuple((1 << 32) - 1 if size == 1 else step for size, step in zip(sizes, packed_strides(sizes), strict=True))
    desc = TensorDesc("float32", sizes, steps)
    assert dict(device.kernel(diagonal_desc(desc, 7, 0, 1)).parameters)["counted in"] == "int32"
    assert_agrees(diagonal_desc(desc, 7, 0, 1), device, x)


def test_a_single_diagonal_agrees(device: Target) -> None:
    for offset in (INT_MIN, -3, 0, 5, INT_MAX):
        desc = DiagonalMatrix(output_tensor=tensor("int8", (2, 3, 20, 33)), offset=offset, value=-2.5)
        assert_agrees(desc, device)


def test_the_function_may_write_into_its_input(device: Target) -> None:
    x = random_bits(seeded("in place"), TensorDataType.FLOAT32, (50, 65))
    expected = np.tril(x)
    there = tvmdml.asarray(x, device)
    tvmdml.diagonal_matrix(there, value=0, diagonal_fill_begin=1, diagonal_fill_end=INT_MAX, out=there)
    assert_same_bits(there.numpy(), expected)
