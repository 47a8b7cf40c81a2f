"""What is particular to TOP_K on a device: its limits, rows that are split or get better, which kernel is chosen."""

from __future__ import annotations

import itertools
import re
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest
from support import (
    VALUES,
    Array,
    assert_agrees,
    mixture,
    ordinary,
    random_bits,
    seeded,
    top_k_desc,
)

from tvmdml import AxisDirection, TensorDataType, TensorDesc, knobs, targets
from tvmdml.library.scheduling import kernel_for
from tvmdml.targets._device import DeviceTarget
from tvmdml.targets._lower import lower
from tvmdml.targets.vulkan import VulkanTarget
from tvmdml.tensors import packed_strides

# Small buffers and short loops: short rows reach the boundaries, and a driver compiles less code.
SMALL: dict[str, Any] = {
    "threads": 64, "per_thread": 1, "batch": 1, "queue_entries": 128, "select_entries": 256, "tile_per_thread": 2,
    "part_elements": 1 << 16,
}  # fmt: skip
PARTS: dict[str, Any] = {**SMALL, "part_elements": 64, "part_per_k": 1}
# An algorithm: its knobs, and the name of the resulting kernel.
WAYS: dict[str, tuple[dict[str, Any], str]] = {
    "short": (SMALL | {"algorithm": "short"}, "short"),
    "queue": (SMALL | {"algorithm": "queue"}, "queue"),
    "select": (SMALL | {"algorithm": "select"}, "select"),
    "sort": (SMALL | {"algorithm": "sort"}, "sort"),
}
VARIANTS: dict[str, tuple[dict[str, Any], str]] = {
    "queue, as it is": ({"algorithm": "queue"}, "queue"),
    "queue, 32 threads": (SMALL | {"algorithm": "queue", "threads": 32, "queue_entries": 64, "bests_per_k": 1}, "queue"),
    "queue, parts": (PARTS | {"algorithm": "queue"}, "queue"),
    "queue, joined twice": (PARTS | {"algorithm": "queue", "join_elements": 1}, "queue"),
    "select, as it is": ({"algorithm": "select", "part_elements": 1 << 16}, "select"),
    "select, 4 bits": (SMALL | {"algorithm": "select", "digit_bits": 4, "select_entries": 64}, "select"),
    "select, 11 bits": (SMALL | {"algorithm": "select", "digit_bits": 11}, "select"),
    "select, parts": (PARTS | {"algorithm": "select"}, "select"),
    "select, joined twice": (PARTS | {"algorithm": "select", "join_elements": 1}, "select"),
    "sort, large tiles": ({"algorithm": "sort", "tile_per_thread": 4}, "sort"),
    "sort, one block": (SMALL | {"algorithm": "sort", "sort_groups": 1}, "sort"),
}
EVERY = {**WAYS, **VARIANTS}
# One type of each width and form: variants that only tile or compile the same code differently are tested with these.
SOME = tuple(TensorDataType[name] for name in ("FLOAT16", "FLOAT32", "INT64", "UINT8"))
FLOAT32 = TensorDataType.FLOAT32


@pytest.fixture(scope="module")
def gpu(device: targets.Target) -> DeviceTarget:
    assert isinstance(device, DeviceTarget)
    return device


@pytest.fixture
def way(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> Iterator[str]:
    """The name of the kernel that a variant's knobs lead to, while they are in force and the device is taken for a large one."""
    monkeypatch.setattr(VulkanTarget, "tasks", DeviceTarget.tasks)
    given = request.param if isinstance(request.param, tuple) else EVERY[request.param]
    with knobs.using(top_k=given[0]):
        yield given[1]


def rows_of(data_type: TensorDataType, length: int) -> Array:
    """A row of each kind: random, few values, sorted both ways, all equal, zeros, NaN; and one with the largest side by side."""
    rng = seeded(data_type, length)
    rows = [make(rng, data_type, (length,)) for make in VALUES]
    block = ordinary(rng, data_type, (length,))
    block[length // 3 : length // 3 + length // 8 + 1] = block.max()
    return np.stack([*rows, block])


def _agree(
    gpu: targets.Target, way: str, x: Array, axis: int, *ks: int, direction: Any = "decreasing", index: str = "uint32"
) -> None:
    for k in ks:
        desc = top_k_desc(TensorDesc(TensorDataType.from_numpy(x.dtype), x.shape), axis, k, direction, index)
        assert kernel_for(desc, gpu).name == way
        assert_agrees(desc, gpu, x)


# -- Values ---------------------------------------------------------------------------------------------------------


# -- Sizes ----------------------------------------------------------------------------------------------------------


@pytest.mark.full
@pytest.mark.parametrize("way", ["queue, parts", "queue, joined twice", "select, parts", "select, joined twice"], indirect=True)
def test_a_row_split_among_groups_agrees(gpu: DeviceTarget, way: str) -> None:
    for length, k in ((64, 1), (129, 30), (1301, 1), (2601, 64)):
        for row in rows_of(FLOAT32, length):
            desc = top_k_desc(TensorDesc(FLOAT32, (length,)), 0, k, "decreasing")
            assert (dict(kernel_for(desc, gpu).parameters)["levels"] == 1) == (length < 128)
            assert_agrees(desc, gpu, row)


@pytest.mark.full
@pytest.mark.parametrize("way", ["queue, as it is", "queue, 32 threads", "select, 4 bits"], indirect=True)
def test_rows_that_get_better_and_better_agree(gpu: DeviceTarget, way: str) -> None:
    # Each read finds elements that are better than all before: the bound is always too low, and the buffer fills up.
    x = np.stack([np.arange(20000), np.arange(20000)[::-1], np.arange(20000) // 700, np.arange(20000) % 3]).astype(np.int32)
    for direction in AxisDirection:
        _agree(gpu, way, x, 1, 3, 32, direction=direction)


def test_what_no_shared_memory_holds_agrees(gpu: DeviceTarget) -> None:
    x = mixture(seeded("large"), FLOAT32, (2, 40000))
    _agree(gpu, "sort", mixture(seeded("large"), TensorDataType.UINT16, (2, 40000)), 1, 40000, 5000)
    _agree(gpu, "select", x, 1, 1000)
    _agree(gpu, "queue", x, 1, 100)
    _agree(gpu, "short", x[:, :1000].copy(), 1, 1000)


# -- Layouts ----------------------------------------------------------------------------------------------------------


@pytest.mark.full
@pytest.mark.parametrize(
    ("way", "data_type", "sizes"),
    [
        *(("queue", data_type, (70, 40)) for data_type in SOME),
        ("queue", FLOAT32, (3, 33, 31)),
        ("select", FLOAT32, (3, 33, 31)),
        ("sort", TensorDataType.UINT8, (3, 33, 31)),
    ],
    indirect=["way"],
    ids=str,
)
def test_rows_side_by_side_are_copied_first(gpu: DeviceTarget, way: str, data_type: TensorDataType, sizes: tuple[int, ...]) -> None:
    x = random_bits(seeded(sizes), data_type, sizes)
    desc = top_k_desc(TensorDesc(data_type, sizes), len(sizes) - 2, 6, "decreasing")
    assert (kernel_for(desc, gpu).name, dict(kernel_for(desc, gpu).parameters)["gathered"]) == (way, True)
    assert_agrees(desc, gpu, x)


@pytest.mark.full
@pytest.mark.parametrize("way", ["short", "queue, parts", "select", "sort"], indirect=True)
def test_numbers_of_every_kind_agree(gpu: DeviceTarget, way: str, numbers: dict[str, int]) -> None:
    data_type = TensorDataType.UINT8 if way == "sort" else FLOAT32
    x = mixture(seeded("wide"), data_type, (3, 300))
    desc = top_k_desc(TensorDesc(data_type, x.shape), 1, 20, "decreasing")
    kernel = kernel_for(desc, gpu)
    assert (dict(kernel.parameters)["counted in"] == "int64") == ("_NARROW" in numbers)
    assert kernel.scalars == () or "_PUSH_BYTES" not in numbers
    assert_agrees(desc, gpu, x)
    _agree(gpu, way, np.ascontiguousarray(x.T), 0, 20)


@pytest.mark.full
@pytest.mark.parametrize("way", ["short", "queue, parts", "select", "sort"], indirect=True)
def test_a_step_that_is_never_taken_may_have_any_size(gpu: DeviceTarget, way: str) -> None:
    for sizes, axis in (((70, 1), 1), ((1, 70), 0), ((300, 1, 3), 0), ((1, 1), 1)):
        x = mixture(seeded(sizes), FLOAT32, sizes)
        steps = tuple((1 << 32) - 1 if size == 1 else step for size, step in zip(sizes, packed_strides(sizes), strict=True))
        desc = top_k_desc(TensorDesc(FLOAT32, sizes, steps), axis, 1, "decreasing")
        assert dict(kernel_for(desc, gpu).parameters)["counted in"] == "int32"
        assert_agrees(desc, gpu, x)


# -- What a device says -------------------------------------------------------------------------------------------------


def _least(gpu: targets.Target, **lacking: Any) -> VulkanTarget:
    """The same device, but with the limits that every device keeps to."""
    assert isinstance(gpu, VulkanTarget)
    found = gpu.capabilities._replace(max_shared_bytes=16384, max_threads=128, subgroup_size=1, **lacking)
    return VulkanTarget(str(gpu.info.index), found, gpu.info)


@pytest.mark.full(first=1)
@pytest.mark.parametrize("way", EVERY, indirect=True)
def test_groups_share_no_more_than_they_may(gpu: DeviceTarget, way: str) -> None:
    devices = (gpu, _least(gpu)) if isinstance(gpu, VulkanTarget) else (gpu,)
    for target, data_type in itertools.product(devices, (FLOAT32, TensorDataType.INT64)):
        for k in (1, 900):
            kernel = kernel_for(top_k_desc(TensorDesc(data_type, (3, 900)), 1, k, "decreasing"), target)
            assert dict(kernel.parameters)["threads"] in range(target.max_threads + 1)
            for function in lower(kernel.build()).functions.values():
                shared = re.findall(r"alloc_shared\(\((\d+),\), \"u?int(\d+)\"\)", str(function.script()))
                assert 0 < sum(int(size) * int(bits) // 8 for size, bits in shared) <= target.max_shared_bytes


@pytest.mark.full(first=1)
@pytest.mark.parametrize("way", WAYS, indirect=True)
def test_the_least_device_agrees(vulkan: targets.Target, way: str) -> None:
    _agree(_least(vulkan, int64=False), way, rows_of(FLOAT32, 700), 1, 3, 40, index="uint64")


def test_the_way_goes_by_length_and_k(gpu: DeviceTarget) -> None:
    expected = {
        (1, 1): "short", (128, 8): "short", (1000, 5): "queue", (1000, 500): "short", (32000, 50): "queue",
        (32000, 1000): "select", (1 << 20, 1 << 20): "sort",
    }  # fmt: skip
    for (length, k), way in expected.items():
        assert kernel_for(top_k_desc(TensorDesc(FLOAT32, (1, length)), 1, k, "decreasing"), gpu).name == way
