"""The Vulkan driver layer: pipelines, dispatches, those that are prepared, and their times."""

from __future__ import annotations

import time

import numpy as np
import pytest
from device_work import counted, fetched, placed
from vulkan_work import THREADS, pipeline, run, scale, shader

from tvmdml.errors import DeviceError
from tvmdml.targets.vulkan import commands, driver
from tvmdml.targets.vulkan.driver import Device


def test_a_shader_that_is_none(device: Device) -> None:
    for code in (b"", b"abc", b"abcd" * 10, shader()[:-1]):
        with pytest.raises(DeviceError, match="must be SPIR-V"):
            device.pipeline(code, 2, 20)
    with pytest.raises(DeviceError, match="bytes of push constants: given 65536"):
        device.pipeline(shader(), 2, 65536)
    with pytest.raises(DeviceError, match="buffers of a shader: given 1048576"):
        device.pipeline(shader(), 1 << 20, 20)
    memory = device.allocate(4)
    with pytest.raises(DeviceError, match="dispatch: given 1 buffers and 20 bytes of push constants; allowed: 2 and 20"):
        device.dispatch(pipeline(device), [(memory, 0, 4)], scale(1), (1, 1, 1))
    with pytest.raises(DeviceError, match="groups: given"):
        device.dispatch(pipeline(device), [(memory, 0, 4)] * 2, scale(1), (1, -1, 1))


def test_a_pipeline_of_another_device_is_refused(device: Device) -> None:
    foreign = pipeline(driver.open_device(0, staging=device.unified))
    assert foreign.device is not device
    memory = device.allocate(4)
    step = (foreign, [(memory, 0, 4)] * 2, scale(1), (1, 1, 1))
    for attempt in (lambda: device.dispatch(*step), lambda: device.prepare([step])):
        with pytest.raises(DeviceError, match="pipeline: given another device's; allowed: this device's own"):
            attempt()


def test_pipelines_that_nobody_holds_are_destroyed(own: Device) -> None:
    made = len(own.connection._made)
    assert pipeline(own, salt=1) is pipeline(own, salt=1) is not pipeline(own, salt=2)
    own._pipelines._kept = type(own._pipelines._kept)(maxlen=4)
    for salt in range(100, 130):
        memory = placed(own, counted(10))
        own.dispatch(pipeline(own, salt), [(memory, 0, 40)] * 2, scale(10, 1, 1), (1, 1, 1))
    own.wait()
    assert len(own.connection._made) <= made + 20


@pytest.mark.parametrize("groups", [(10, 1, 1), (4, 5, 7), (3, 2, 2)])
def test_more_groups_than_a_dispatch_may_have_are_split(
    device: Device, monkeypatch: pytest.MonkeyPatch, groups: tuple[int, int, int]
) -> None:
    monkeypatch.setattr(device, "max_groups", (3, 2, 2))
    row = groups[0] * THREADS
    n = row * groups[1] * groups[2]
    x = placed(device, counted(n))
    push = scale(n, 1, 1, row, groups[1])
    step = (pipeline(device), [(x, 0, 4 * n), (x, 0, 4 * n)], push, groups)
    device.dispatch(*step)  # in place, so that running twice changes the result
    prepared = device.prepare([step])
    prepared.run()
    np.testing.assert_array_equal(fetched(device, x), counted(n) + 2)


def test_no_groups_are_no_work(device: Device) -> None:
    x = placed(device, counted(10))
    for groups in ((0, 1, 1), (1, 0, 1), (1, 1, 0)):
        step = (pipeline(device), [(x, 0, 40), (x, 0, 40)], scale(10, 2), groups)
        device.dispatch(*step)
        device.prepare([step]).run()
    device.prepare([]).run()
    np.testing.assert_array_equal(fetched(device, x), counted(10))


def test_prepared_dispatches_run_again_and_again(device: Device) -> None:
    x, y = placed(device, counted(1000)), device.allocate(4000)
    there, back = [(x, 0, 4000), (y, 0, 4000)], [(y, 0, 4000), (x, 0, 4000)]
    groups = (-(-1000 // THREADS), 1, 1)
    steps = [(pipeline(device), there, scale(1000, 3, 1), groups), (pipeline(device), back, scale(1000, 1, 2), groups)]
    prepared = device.prepare(steps)
    expected = counted(1000)
    for round_ in range(200):
        prepared.run()
        expected = expected * np.uint32(3) + np.uint32(3)
        if round_ % 50 == 0:
            run(device, x, x, 1, 1)
            expected += np.uint32(1)
    del prepared, y
    np.testing.assert_array_equal(fetched(device, x), expected)
    device.wait()


@pytest.mark.parametrize("runs", [0, 1])
def test_prepared_dispatches_that_are_dropped_do_not_pile_up(device: Device, runs: int) -> None:
    x = placed(device, counted(10))
    step = (pipeline(device), [(x, 0, 40), (x, 0, 40)], scale(10, 1, 1), (1, 1, 1))
    most = 0
    for _ in range(500):
        prepared = device.prepare([step])
        for _ in range(runs):
            prepared.run()
        del prepared
        most = max(most, len(device.dropped_prepared))
    assert most <= 2 * commands.BATCH * (commands.RING + 1) * runs + 64
    np.testing.assert_array_equal(fetched(device, x), counted(10) + np.uint32(500 * runs))
    device.wait()
    assert not device.dropped_prepared


def test_descriptor_sets_are_bounded_and_never_mixed_up(device: Device, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(device.descriptor_sets, "limit", 4)
    device.wait()
    memories = [placed(device, np.full(64, number, np.uint32)) for number in range(100)]
    for memory in memories:
        run(device, memory, memory, 2, 1)
        device.wait()
    for number, memory in enumerate(memories):
        assert (fetched(device, memory) == 2 * number + 1).all()
    kept = len(device.descriptor_sets)
    for memory in memories:  # all of them pending at once
        run(device, memory, memory, 2, 1)
    for number, memory in enumerate(memories):
        assert (fetched(device, memory) == 4 * number + 3).all()
    assert len(device.descriptor_sets) <= kept + 100


def test_descriptor_sets_go_with_their_buffer(own: Device) -> None:
    for n in (2 << 20, 3 << 20, 2 << 20):
        x = placed(own, counted(n))
        run(own, x, x, 1, 1)
        np.testing.assert_array_equal(fetched(own, x), counted(n) + 1)
        assert len(own.descriptor_sets) == 1
        del x
        own.trim()
        assert len(own.descriptor_sets) == 0


def test_the_device_says_how_long_it_took(device: Device) -> None:
    if not device.timestamp_period:
        pytest.skip("this device has no clock")
    x = placed(device, counted(1 << 20))
    run(device, x, x)
    device.wait()
    begin = time.perf_counter()
    with device.timed() as timer:
        for _ in range(10):
            run(device, x, x)
    took = time.perf_counter() - begin
    assert 0 < timer.seconds <= took
    with device.timed() as nothing:
        pass
    assert 0 <= nothing.seconds < timer.seconds
    with pytest.raises(ZeroDivisionError), device.timed():
        1 / 0  # noqa: B018
    assert device.queue._holding == 0
