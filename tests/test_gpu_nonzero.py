"""NONZERO_COORDINATES on a device: every algorithm gives the reference's rows, and writes nowhere else."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest
from support import (
    ALL,
    FLOATING,
    INPUT_LAYOUTS,
    SIZES,
    Array,
    Placed,
    assert_agrees,
    bits_of,
    nonzero_desc,
    seeded,
    sparse,
    special_values,
)

import tvmdml
from tvmdml import NonzeroCoordinates, TensorDataType, TensorDesc, knobs
from tvmdml.kernel import Kernel
from tvmdml.schedules.gpu import nonzero_coordinates
from tvmdml.targets import Target
from tvmdml.targets._device import DeviceTarget

DENSITIES = (0, 0.01, 0.1, 0.5, 1)
SMALL: dict[str, Any] = {"threads": 32, "least_threads": 32, "alone_elements": 1}
# An algorithm, and its knobs: the default; a small tile, and several for each group; counts summed in a separate launch.
WAYS: dict[str, dict[str, Any]] = {
    "alone": {"algorithm": "alone"},
    "alone, many tiles": {"algorithm": "alone", **SMALL},
    "scan": {"algorithm": "scan"},
    "scan, a group a tile": {"algorithm": "scan", **SMALL, "most_parts": 1},
    "scan, many tiles": {"algorithm": "scan", **SMALL, "most_groups": 4},
    "scan in three": {"algorithm": "scan", **SMALL, "direct_tiles": 1},
    "lookback": {"algorithm": "lookback"},
    "lookback, many tiles": {"algorithm": "lookback", **SMALL, "most_groups": 4},
}


@pytest.fixture
def way(request: pytest.FixtureRequest, device: Target) -> Iterator[Target]:
    """The device, while the knobs of a way are in force."""
    with knobs.using(nonzero_coordinates=WAYS[request.param]):
        yield device


def ways(*names: str) -> pytest.MarkDecorator:
    return pytest.mark.parametrize("way", names or WAYS, indirect=True)


def check(x: Array, target: Target, layout: str = "packed", columns: int | None = None, **options: Any) -> None:
    placed = Placed.holding(x, layout)
    assert_agrees(nonzero_desc(placed.desc, columns, **options), target, placed.array, shifted=options.get("layout") is None)


def examples(shape: tuple[int, ...], data_type: TensorDataType = TensorDataType.FLOAT32) -> list[Array]:
    """Of several densities, with the first element alone, the last alone, and all in one part."""
    rng = seeded("nonzero", shape, data_type)
    found = [sparse(rng, data_type, shape, density) for density in DENSITIES]
    size = int(np.prod(shape))
    for part in (slice(0, 1), slice(size - 1, size), slice(size // 3, size // 2)):
        x = np.zeros(size, data_type.numpy)
        x[part] = 1
        found.append(x.reshape(shape))
    return found


@ways()
@pytest.mark.parametrize("shape", [(9000,), (40,), (64, 256), (90, 101), (17, 1, 30, 25)], ids=str)
def test_every_way_agrees(way: Target, shape: tuple[int, ...]) -> None:
    for x in examples(shape):
        check(x, way)


@ways("scan, many tiles")
@pytest.mark.parametrize("data_type", ALL, ids=lambda t: t.tvm)
def test_every_type_agrees(way: Target, data_type: TensorDataType) -> None:
    for x in (*examples((2051,), data_type), np.resize(special_values(data_type), 2051)):
        check(x, way)


@ways("lookback, many tiles")
@pytest.mark.parametrize("rank", SIZES)
def test_every_rank_agrees(way: Target, rank: int) -> None:
    for x in examples(SIZES[rank]):
        check(x, way)


LENGTHS = (1, 3, 4, 5, 7, 8, 15, 16, 17, 31, 32, 33, 1023, 1024, 1025, 2047, 2049, 4097)


@ways("scan, many tiles")
@pytest.mark.parametrize("data_type", ["uint8", "float16", "float32", "int64"])
def test_lengths_around_a_piece_a_word_and_a_tile(way: Target, data_type: str) -> None:
    for length in LENGTHS:
        for density in (0.3, 1):
            check(sparse(seeded("length", length), TensorDataType.of(data_type, ""), (length,), density), way)


@ways("alone, many tiles", "scan in three", "lookback, many tiles")
def test_every_way_takes_every_length(way: Target) -> None:
    for length in LENGTHS:
        check(sparse(seeded("length", length), TensorDataType.FLOAT32, (length,), 0.5), way)


@ways("scan in three", "scan, many tiles", "lookback, many tiles")
def test_many_more_tiles_than_groups(way: Target) -> None:
    rng = seeded("tiles")
    for length in (300_000, 262_144):
        for density in (0.001, 0.4, 1):
            check(sparse(rng, TensorDataType.FLOAT32, (length,), density), way)


@ways("scan, many tiles")
@pytest.mark.parametrize("layout", INPUT_LAYOUTS)
@pytest.mark.parametrize("data_type", [TensorDataType.FLOAT16, TensorDataType.INT64], ids=str)
def test_every_input_layout_agrees(way: Target, layout: str, data_type: TensorDataType) -> None:
    rng = seeded(layout, data_type)
    for shape in ((5, 450), (430, 5), (40, 64), (3, 4, 5, 64), SIZES[8]):
        for density in (0.3, 1):
            check(sparse(rng, data_type, shape, density), way, layout)


@ways("scan, many tiles")
@pytest.mark.parametrize("data_type", [TensorDataType.UINT8, TensorDataType.FLOAT16, TensorDataType.INT64], ids=str)
def test_rows_that_are_whole_vectors_apart_are_read_so(way: Target, data_type: TensorDataType) -> None:
    memory = sparse(seeded(data_type), data_type, (40, 3, 96), 0.3)
    for x in (memory[:, 1, :64], memory[::2, :2, :32]):
        desc = TensorDesc(data_type, x.shape, tuple(step // x.itemsize for step in x.strides))
        assert dict(way.kernel(nonzero_desc(desc)).parameters)["vector"]
        assert_agrees(nonzero_desc(desc), way, x)


@ways("scan", "scan, many tiles", "scan in three")
@pytest.mark.parametrize("data_type", [TensorDataType.FLOAT16, TensorDataType.INT64], ids=str)
def test_words_are_gathered_where_elements_lie_in_another_order(way: Target, data_type: TensorDataType) -> None:
    for sizes, axes in (((70, 64), (1, 0)), ((9, 100), (1, 0)), ((12, 5, 8, 40), (3, 1, 2, 0)), ((10, 33, 40), (2, 1, 0))):
        memory = sparse(seeded(sizes), data_type, tuple(sizes[axis] for axis in axes), 0.4)
        x = memory.transpose(axes)
        desc = nonzero_desc(TensorDesc(data_type, x.shape, tuple(step // x.itemsize for step in x.strides)))
        assert dict(way.kernel(desc).parameters)["gathered"]
        assert_agrees(desc, way, x)


@ways("alone")
@pytest.mark.parametrize("layout", ["packed", "padded", "transposed", "spread"])
@pytest.mark.parametrize("index", ["uint32", "uint64"])
def test_every_layout_of_rows_and_width_of_coordinates(way: Target, layout: str, index: str) -> None:
    for shape in ((2000,), (9, 150), (7, 5, 31), (2, 3, 4, 5, 12)):
        for x in examples(shape)[3:]:
            check(x, way, index=index, layout=layout)


@ways("alone")
@pytest.mark.parametrize("columns", [2, 3, 4, 5])
def test_leading_coordinates_that_a_row_need_not_hold(way: Target, columns: int) -> None:
    for x in examples((1, 1, 1, 15, 170)):
        check(x, way, columns=columns)


@pytest.mark.usefixtures("numbers")
@ways("alone, many tiles", "scan, many tiles", "scan in three", "lookback, many tiles")
def test_numbers_of_every_kind_agree(way: Target) -> None:
    for shape in ((4100,), (40, 70), (70, 40, 3)):
        for layout in ("packed", "padded", "transposed"):
            x = Placed.holding(sparse(seeded(shape), TensorDataType.FLOAT32, shape, 0.3), layout)
            assert_agrees(nonzero_desc(x.desc, layout="padded"), way, x.array)


@pytest.mark.usefixtures("numbers")
@ways("scan, many tiles")
@pytest.mark.parametrize("data_type", ALL, ids=lambda t: t.tvm)
def test_numbers_of_every_kind_agree_for_every_type(way: Target, data_type: TensorDataType) -> None:
    for shape, layout in (((2051,), "packed"), ((9, 70), "transposed"), ((5, 9, 35), "padded")):
        check(sparse(seeded(shape), data_type, shape, 0.3), way, layout, index="uint64")


@pytest.mark.usefixtures("numbers")
@ways("alone", "scan")
@pytest.mark.parametrize("rank", SIZES)
def test_numbers_of_every_kind_agree_in_every_rank(way: Target, rank: int) -> None:
    check(sparse(seeded(rank), TensorDataType.FLOAT16, SIZES[rank], 0.3), way, "shuffled")


def test_zeros_of_both_signs_are_zero_and_everything_else_is_not(device: Target) -> None:
    for data_type in FLOATING:
        x = np.resize(special_values(data_type), 3000)
        unsigned = bits_of(x)
        nonzero = np.flatnonzero(unsigned << unsigned.dtype.type(1))
        assert np.array_equal(tvmdml.nonzero_coordinates(x, device=device.name)[:, 0], nonzero)


@pytest.mark.parametrize("index", ["uint32", "int64"])
def test_the_function_agrees_with_numpy(device: Target, index: str) -> None:
    rng = seeded("function", index)
    for dtype in (np.bool_, np.float32):
        x = (rng.random((270, 137)) < 0.3).astype(dtype)
        for view in (x, x.T, x[:, ::2], x[::3, 5:], x[:, :1]):
            found = tvmdml.nonzero_coordinates(view, index_dtype=index, device=device.name)
            assert found.dtype == index
            assert np.array_equal(found, np.argwhere(view))


@pytest.fixture
def waiting(device: Target, monkeypatch: pytest.MonkeyPatch) -> DeviceTarget:
    """A device whose groups may wait for one another."""
    assert isinstance(device, DeviceTarget)
    monkeypatch.setattr(device, "lookback", True)
    return device


def kernel(elements: int, target: DeviceTarget) -> Kernel:
    """What the schedule decides, on a device that such arrays fit on."""
    desc = NonzeroCoordinates(
        input_tensor=TensorDesc("float32", (elements,)),
        output_count_tensor=TensorDesc("uint32", (1,)),
        output_coordinates_tensor=TensorDesc("uint32", (elements, 1)),
    )
    return nonzero_coordinates.kernel(desc, target, False)


def test_the_way_goes_by_the_size_and_the_device(waiting: DeviceTarget, monkeypatch: pytest.MonkeyPatch) -> None:
    lengths = (1, 1 << 12, (1 << 12) + 1, 1 << 28, 1 << 30)  # for the last length, the counts need all bits of a word
    assert [kernel(n, waiting).name for n in lengths] == ["alone", "alone", "lookback", "lookback", "scan"]
    with knobs.using(nonzero_coordinates={"algorithm": "lookback"}):
        assert kernel(1 << 30, waiting).name == "scan"
    monkeypatch.setattr(waiting, "lookback", False)
    assert [kernel(n, waiting).name for n in lengths] == ["alone", "alone", "scan", "scan", "scan"]


def test_a_group_takes_no_more_than_the_device_has(waiting: DeviceTarget, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(waiting, "max_threads", 128)
    assert {dict(kernel(n, waiting).parameters)["threads"] for n in (100, 1 << 25)} == {128}
    monkeypatch.setattr(waiting, "max_threads", 1024)
    monkeypatch.setattr(waiting, "max_shared_bytes", 16384)
    with knobs.using(nonzero_coordinates={"threads": 512}):
        assert {dict(kernel(n, waiting).parameters)["threads"] for n in (100, 1 << 25)} == {256}
