"""What is particular to NONZERO_COORDINATES on a device: which kernel is chosen, vectors, words in another order."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
from support import (
    Array,
    Placed,
    assert_agrees,
    nonzero_desc,
    seeded,
    sparse,
)

from tvmdml import NonzeroCoordinates, TensorDataType, TensorDesc, knobs
from tvmdml.kernels.kernel import Kernel
from tvmdml.library.scheduling import kernel_for
from tvmdml.schedules.gpu import nonzero_coordinates
from tvmdml.targets import Target
from tvmdml.targets._device import DeviceTarget

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


@pytest.mark.full
@ways("scan in three", "scan, many tiles", "lookback, many tiles")
def test_many_more_tiles_than_groups(way: Target) -> None:
    rng = seeded("tiles")
    for length in (300_000, 262_144):
        for density in (0.001, 0.4, 1):
            check(sparse(rng, TensorDataType.FLOAT32, (length,), density), way)


@pytest.mark.full
@ways("scan, many tiles")
@pytest.mark.parametrize("data_type", [TensorDataType.UINT8, TensorDataType.FLOAT16, TensorDataType.INT64], ids=str)
def test_rows_that_are_whole_vectors_apart_are_read_so(way: Target, data_type: TensorDataType) -> None:
    memory = sparse(seeded(data_type), data_type, (40, 3, 96), 0.3)
    for x in (memory[:, 1, :64], memory[::2, :2, :32]):
        desc = TensorDesc(data_type, x.shape, tuple(step // x.itemsize for step in x.strides))
        assert dict(kernel_for(nonzero_desc(desc), way).parameters)["vector"]
        assert_agrees(nonzero_desc(desc), way, x)


@pytest.mark.full
@ways("scan", "scan, many tiles", "scan in three")
@pytest.mark.parametrize("data_type", [TensorDataType.FLOAT16, TensorDataType.INT64], ids=str)
def test_words_are_gathered_where_elements_lie_in_another_order(way: Target, data_type: TensorDataType) -> None:
    for sizes, axes in (((70, 64), (1, 0)), ((9, 100), (1, 0)), ((12, 5, 8, 40), (3, 1, 2, 0)), ((10, 33, 40), (2, 1, 0))):
        memory = sparse(seeded(sizes), data_type, tuple(sizes[axis] for axis in axes), 0.4)
        x = memory.transpose(axes)
        desc = nonzero_desc(TensorDesc(data_type, x.shape, tuple(step // x.itemsize for step in x.strides)))
        assert dict(kernel_for(desc, way).parameters)["gathered"]
        assert_agrees(desc, way, x)


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
    return kernel_for(desc, nonzero_coordinates, target)


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
