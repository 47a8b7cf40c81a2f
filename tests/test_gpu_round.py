"""ELEMENT_WISE_ROUND on a device: every float16, awkward wider floats, every layout and length, in place too."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
import pytest
from support import (
    LAYOUT_PAIRS,
    SIZES,
    Array,
    Placed,
    assert_agrees,
    assert_same_bits,
    awkward,
    mixture,
    ready,
    reference,
    round_desc,
    seeded,
)

import tvmdml
from tvmdml import RoundingMode, TensorDataType, TensorDesc, knobs
from tvmdml.targets import Target

FLOATS = (TensorDataType.FLOAT16, TensorDataType.FLOAT32, TensorDataType.FLOAT64)
modes = pytest.mark.parametrize("mode", tuple(RoundingMode), ids=lambda mode: mode.name.lower())
types = pytest.mark.parametrize("data_type", FLOATS, ids=str)


@pytest.fixture(params=[8192, 1], ids=["many groups", "one group"])
def groups(request: pytest.FixtureRequest) -> Iterator[None]:
    with knobs.using(element_wise_round={"most_groups": request.param, "threads": 64}):
        yield


def agrees(target: Target, mode: RoundingMode, values: Array, layout_in: str = "packed", layout_out: str = "packed") -> None:
    x = Placed.holding(values, layout_in)
    assert_agrees(round_desc(x.desc, mode, layout_out), target, x.array)


@modes
def test_every_float16_is_rounded_right(device: Target, mode: RoundingMode) -> None:
    agrees(device, mode, np.arange(1 << 16, dtype=np.uint16).view(np.float16))


@modes
@types
def test_awkward_values_are_rounded_right(device: Target, data_type: TensorDataType, mode: RoundingMode) -> None:
    values = awkward(data_type)
    values = values[: values.size // 9 * 9].reshape(9, -1)
    agrees(device, mode, values)
    agrees(device, mode, values, "spread", "padded")


@pytest.mark.usefixtures("groups")
@types
def test_every_length_is_rounded_to_its_end(device: Target, data_type: TensorDataType) -> None:
    values = mixture(seeded(data_type), data_type, (5000,))
    for length in (*range(1, 36), 63, 64, 65, 255, 256, 257, 511, 513, 1023, 1025, 4097, 5000):
        agrees(device, RoundingMode.HALVES_TO_NEAREST_EVEN, values[:length])


@pytest.mark.parametrize("layouts", LAYOUT_PAIRS, ids=str)
@types
def test_every_layout_agrees(device: Target, data_type: TensorDataType, layouts: tuple[str, str]) -> None:
    for i, sizes in enumerate(((33, 70), (3, 40, 64), (40, 7), SIZES[4])):
        agrees(device, tuple(RoundingMode)[i % 3], mixture(seeded(sizes), data_type, sizes), *layouts)


@pytest.mark.parametrize("rank", SIZES)
def test_every_rank_agrees(device: Target, rank: int) -> None:
    for layouts in (("packed", "packed"), ("padded", "shuffled")):
        values = mixture(seeded(rank), TensorDataType.FLOAT32, SIZES[rank])
        agrees(device, RoundingMode.TOWARD_ZERO, values, *layouts)


@pytest.mark.usefixtures("groups")
@types
def test_tiles_cover_every_size(device: Target, data_type: TensorDataType) -> None:
    values = mixture(seeded(data_type), data_type, (9, 70, 70))
    for height, width in ((8, 8), (32, 32), (33, 32), (32, 31), (70, 33), (9, 65)):
        for x in (values[0, :height, :width], values[:, :height, :width]):
            for layouts in (("transposed", "packed"), ("packed", "transposed")):
                desc = round_desc(Placed(data_type, x.shape, layouts[0]).desc, "toward_infinity", layouts[1])
                assert device.kernel(desc).name == "tiles"
                agrees(device, RoundingMode.TOWARD_INFINITY, x, *layouts)


@types
def test_as_many_neighbours_move_at_once_as_every_row_allows(device: Target, data_type: TensorDataType) -> None:
    memory = mixture(seeded(data_type), data_type, (20, 3, 48))
    most = 16 // data_type.itemsize
    for width in (32, 28, 26, 25):
        x = memory[:, 1, :width]
        desc = round_desc(TensorDesc(data_type, x.shape, tuple(step // x.itemsize for step in x.strides)))
        lanes = next(n for n in (8, 4, 2, 1) if n <= most and width % n == 0)
        assert dict(device.kernel(desc).parameters)["lanes"] == lanes
        assert_agrees(desc, device, x)


@pytest.mark.parametrize("layout", ["packed", "shifted", "padded", "transposed"])
@modes
@types
def test_in_place_gives_the_same(device: Target, data_type: TensorDataType, mode: RoundingMode, layout: str) -> None:
    values = mixture(seeded(data_type), data_type, (21, 37))
    x = Placed.holding(values, layout)
    desc = round_desc(x.desc, mode, layout)
    (expected,) = reference(desc, values)
    ready(desc, device)(x.array, x.array)
    assert_same_bits(x.array, expected, any_nan=True)
    x.assert_nothing_else_was_written()


@pytest.mark.usefixtures("numbers")
@pytest.mark.parametrize(
    "layouts", [("packed", "packed"), ("padded", "padded"), ("padded", "shuffled"), ("transposed", "packed")], ids=str
)
@modes
@types
def test_numbers_of_every_kind_agree(
    device: Target, data_type: TensorDataType, mode: RoundingMode, layouts: tuple[str, str]
) -> None:
    for sizes in ((40, 64), (333,), (3, 9, 34)):
        agrees(device, mode, mixture(seeded(sizes), data_type, sizes), *layouts)


@pytest.mark.usefixtures("numbers")
@pytest.mark.parametrize("rank", SIZES)
def test_numbers_of_every_kind_agree_in_every_rank(device: Target, rank: int) -> None:
    agrees(device, RoundingMode.TOWARD_ZERO, mixture(seeded(rank), TensorDataType.FLOAT16, SIZES[rank]), "padded", "shuffled")


@pytest.mark.usefixtures("numbers")
@types
def test_numbers_of_every_kind_agree_in_place(device: Target, data_type: TensorDataType) -> None:
    for layout in ("packed", "transposed", "padded"):
        values = mixture(seeded(data_type), data_type, (21, 37))
        x = Placed.holding(values, layout)
        desc = round_desc(x.desc, "toward_zero", layout)
        ready(desc, device)(x.array, x.array)
        assert_same_bits(x.array, reference(desc, values)[0], any_nan=True)


def test_arrays_on_the_device_are_rounded_there(device: Target) -> None:
    values = mixture(seeded("there"), TensorDataType.FLOAT32, (50, 60))
    there = tvmdml.asarray(values, device)
    (expected,) = reference(round_desc(TensorDesc("float32", values.shape), "halves_to_nearest_even"), values)
    assert_same_bits(tvmdml.round(there).numpy(), expected, any_nan=True)
    tvmdml.round(there, out=there)
    assert_same_bits(there.numpy(), expected, any_nan=True)
