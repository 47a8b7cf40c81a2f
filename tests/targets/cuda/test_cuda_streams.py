"""CUDA streams and captures: everything is done in order, on whatever stream, and captures are not spoiled."""

from __future__ import annotations

import asyncio
import ctypes
import gc
from typing import Any

import numpy as np
import pytest
from cuda_work import Captured, churn, churned, image, launch, new_stream, ok, raw, run, scale, synchronize
from device_work import counted, fetched, placed
from support import at_once

from tvmdml.errors import DeviceError, InvalidArgument
from tvmdml.targets.cuda import driver, header, streams
from tvmdml.targets.cuda.driver import Device, Memory, using_stream

# Streams


def test_streams_wait_for_each_other(device: Device) -> None:
    n, rounds = 3000, 50
    with new_stream(device) as one, new_stream(device) as other:
        x, y = placed(device, counted(n)), device.allocate(4 * n)
        expected = counted(n)
        for step in range(10):
            with using_stream(one):
                launch(device, churn(device, x, rounds), x)
                run(device, x, y, 3, step)
            with using_stream(other):
                assert device.stream() == other
                run(device, y, x, 1, 1)
            expected = churned(expected, rounds) * np.uint32(3) + np.uint32(step + 1)
        assert x.stream == streams.LEFT
        np.testing.assert_array_equal(fetched(device, x), expected)
        assert x.stream == 0


def test_streams_wait_for_each_other_without_using_stream(device: Device) -> None:
    n = 3000
    with new_stream(device) as one, new_stream(device) as other:
        x, y = placed(device, counted(n)), device.allocate(4 * n, other)
        assert y.stream == other
        for stream in (one, other, one):
            for memory in (x, y):
                device.order(memory, stream)
                assert memory.stream == stream
            device.launch(*churn(device, x, 50), stream)
            device.launch(*scale(device, x, y, 7), stream)
        np.testing.assert_array_equal(fetched(device, y), churned(counted(n), 150) * np.uint32(7))
        assert y.stream == 0
        z = device.allocate(4 * n)
        device.launch(*churn(device, y, 50), 0)
        device.follow(one, 0)
        device.follow(one, one)
        device.launch(*scale(device, y, z, 1), one)
        device.follow(0, one)
        np.testing.assert_array_equal(fetched(device, z), churned(churned(counted(n), 150) * np.uint32(7), 50))


def test_every_way_of_moving_bytes_waits_for_other_streams(device: Device) -> None:
    n = 3000
    with new_stream(device) as stream:
        for _ in range(5):
            x, y = placed(device, counted(n)), device.allocate(4 * n)
            with using_stream(stream):
                launch(device, churn(device, x, 50), x)
            device.copy(x, 0, y, 0, 4 * n)
            with using_stream(stream):
                device.upload(x, 0, np.zeros(n, np.uint32))
            np.testing.assert_array_equal(fetched(device, y), churned(counted(n), 50))
            assert not fetched(device, x).any()
            launch(device, churn(device, y, 10), y)
            with using_stream(stream):
                np.testing.assert_array_equal(fetched(device, y), churned(counted(n), 60))
                launch(device, churn(device, x, 10), x)
            device.upload(x, 0, counted(n))
            with using_stream(stream):
                launch(device, churn(device, y, 10), y)
            device.copy(x, 0, y, 0, 4 * n)
            for memory in (x, y):
                np.testing.assert_array_equal(fetched(device, memory), counted(n))


def test_a_stream_may_be_gone_after_using_it(device: Device) -> None:
    n = 3000
    kept = []
    for step in range(10):
        with new_stream(device) as stream, using_stream(stream):
            x = placed(device, counted(n) + np.uint32(step))
            with using_stream(stream):
                launch(device, churn(device, x, 50), x)
            assert x.stream == stream
            kept.append((step, x))
            kept.append((step, placed(device, counted(1))))  # dropped later, when its stream no longer exists
            placed(device, counted(n))  # dropped immediately
    del kept[1::2]
    for step, x in kept:
        assert x.stream == streams.LEFT
        np.testing.assert_array_equal(fetched(device, x), churned(counted(n) + np.uint32(step), 50))
    in_use = device.memory_use().in_use
    del kept, x
    assert device.memory_use().in_use == in_use - 10 * 4 * n
    assert not any(device.streams._visiting.values())


def test_memory_of_a_stream_that_may_be_gone_is_given_back_after_its_last_use(device: Device) -> None:
    with new_stream(device) as stream:
        with using_stream(stream):
            x = placed(device, counted(3000))
            launch(device, churn(device, x, 100), x)
        del x
        device.memory_use()
        synchronize(device, device.streams._own)  # the emulator frees it now
        synchronize(device, stream)


def test_what_was_used_on_a_stream_is_not_remembered_for_ever(device: Device) -> None:
    with new_stream(device) as stream, using_stream(stream):
        kept = [device.allocate(4) for _ in range(10)]
        for _ in range(100):
            device.allocate(4)
        device.memory_use()
        assert len(device.streams._visiting[stream]) == 10
        for memory in kept[:5]:
            device.order(memory, 0)
        assert len(device.streams._visiting[stream]) == 5
    assert [memory.stream for memory in kept] == [0] * 5 + [streams.LEFT] * 5
    assert stream not in device.streams._visiting


def test_memory_is_not_used_again_before_its_last_use(device: Device) -> None:
    """New memory may be what was just dropped: work on that, on another stream, comes first."""
    n = 5000
    with new_stream(device) as one, new_stream(device) as other:
        for left in range(20):
            with using_stream(one):
                x, y = placed(device, counted(n)), device.allocate(4 * n)
                launch(device, churn(device, x, 100), x)
                run(device, x, y, 1)
                del x
                if left % 2:
                    z = device.allocate(4 * n, other)
            if not left % 2:
                z = device.allocate(4 * n, other)
            with using_stream(other):
                device.upload(z, 0, np.full(n, 0xFFFFFFFF, np.uint32))
            np.testing.assert_array_equal(fetched(device, y), churned(counted(n), 100))


def test_the_current_stream_is_a_threads_own(device: Device) -> None:
    seen: list[int] = []

    async def task(stream: int) -> None:
        with using_stream(stream):
            await asyncio.sleep(0)
            seen.append(device.stream() - stream)

    async def tasks() -> None:
        await asyncio.gather(*(task(stream) for stream in both))

    with new_stream(device) as one, new_stream(device) as other:
        both = one, other
        with using_stream(one):
            at_once(lambda _: seen.append(device.stream()), 1)
            with using_stream(other):
                assert device.stream() == other
                with using_stream(0):
                    assert device.stream() == 0
            assert device.stream() == one
            with pytest.raises(ZeroDivisionError), using_stream(other):
                raise ZeroDivisionError
            assert device.stream() == one
        assert device.stream() == 0
        asyncio.run(tasks())
    assert seen == [0, 0, 0]
    assert not streams._inside
    with using_stream(np.int64(header.CU_STREAM_LEGACY)):
        assert device.stream() == 0


@pytest.mark.parametrize("handle", [-1, "0", None, 1.0, header.CU_STREAM_PER_THREAD])
def test_what_is_no_streams_handle_is_refused(handle: Any) -> None:
    with pytest.raises(InvalidArgument, match=r"using_stream handle: given .*; allowed: a CUDA stream's handle, as an integer"):
        using_stream(handle)


class Foreign:
    """Another library's memory, as that may come to us."""

    def __init__(self, memory: Memory, stream: int) -> None:
        self.address, self.nbytes, self.device, self.owner = memory.address, memory.nbytes, memory.device, memory
        self._stream = stream

    def stream(self) -> int:
        return self._stream


def test_other_libraries_memory_is_worked_on_in_order(device: Device) -> None:
    n = 3000
    with new_stream(device) as stream:
        x = placed(device, counted(n))
        device.follow(stream, 0)
        device.launch(*churn(device, x, 50), stream)
        theirs, y = Foreign(x, stream), device.allocate(4 * n)
        device.copy(theirs, 0, y, 0, 4 * n)
        device.launch(*churn(device, x, 50), stream)  # they continue after our copy
        synchronize(device, stream)
        np.testing.assert_array_equal(fetched(device, y), churned(counted(n), 50))
        np.testing.assert_array_equal(fetched(device, theirs), churned(counted(n), 100))
        device.upload(theirs, 0, counted(n))
        device.launch(*churn(device, x, 50), stream)
        np.testing.assert_array_equal(fetched(device, theirs), churned(counted(n), 50))
        device.order(theirs, stream)
        device.order(theirs, 0)
        device.wait()


# Captures


def test_prepared_launches_can_be_captured(device: Device) -> None:
    n = 2000
    x, y = placed(device, counted(n)), device.allocate(4 * n)
    prepared = device.prepare([churn(device, x, 20), scale(device, x, y, 3, 1)])
    launch(device, churn(device, x, 30), x)  # which the capture cannot wait for: the host does
    with new_stream(device) as stream:
        with Captured(device, stream) as graph, using_stream(stream):
            assert device.capturing(stream)
            for memory in (x, y):
                device.order(memory, stream)
            prepared.run(stream)
            device.launch(*scale(device, y, x, 5, 2), stream)
            device.copy(x, 0, y, 0, 4)
        assert not device.capturing(stream)
        assert x.stream == y.stream == 0
        np.testing.assert_array_equal(fetched(device, x), churned(counted(n), 30))  # none of it has run
        expected = churned(counted(n), 30)
        for _ in range(3):
            graph.replay(0)
            expected = (churned(expected, 20) * np.uint32(3) + np.uint32(1)) * np.uint32(5) + np.uint32(2)
        np.testing.assert_array_equal(fetched(device, x), expected)
        launch(device, churn(device, x, 30), x)
        with Captured(device, stream) as late:
            device.order(x, stream)
            device.launch(*scale(device, x, x, 1, 1), stream)
        late.replay(stream)  # which does not wait for the launch before the capture; that is not needed
        synchronize(device, stream)
        device.follow(0, stream)
        np.testing.assert_array_equal(fetched(device, x), churned(expected, 30) + np.uint32(1))
        device.launch(*scale(device, x, x, 1, 5), 0)
        device.launch(*scale(device, x, y), 0)
        late.close()
        np.testing.assert_array_equal(fetched(device, y), churned(expected, 30) + np.uint32(6))
        graph.close()


@pytest.mark.parametrize("mode", [0, 1, 2])
def test_what_cannot_be_captured_is_refused_and_spoils_nothing(device: Device, mode: int) -> None:
    x = placed(device, counted(10))
    device.wait()
    with new_stream(device) as stream:
        with Captured(device, stream, mode) as graph:
            with using_stream(stream):
                for attempt in (
                    lambda: device.upload(x, 0, counted(10)),
                    lambda: fetched(device, x),
                    lambda: device.allocate(4),
                    lambda: device.copy(x, 0, x, 4, 20),
                    device.wait,
                    lambda: driver.Event(device).record(stream),
                ):
                    with pytest.raises(DeviceError, match=r"its stream is being captured, or .*Do this before the capture"):
                        attempt()
            device.launch(*scale(device, x, x, 1, 1), stream)
        graph.replay(stream)
        device.follow(0, stream)
        np.testing.assert_array_equal(fetched(device, x), counted(10) + 1)
        graph.close()


@pytest.mark.parametrize("mode", [0, 1, 2])
def test_a_capture_beside_us_is_not_spoiled(device: Device, mode: int) -> None:
    """Whatever is asked for on other streams meanwhile, and by whatever thread."""
    x, dropped = placed(device, counted(1000)), placed(device, counted(1000))
    device.wait()

    def beside(_: int = 0) -> None:
        for _ in range(3):
            y, z = placed(device, counted(1000)), device.allocate(4000)
            run(device, y, z, 2)
            np.testing.assert_array_equal(fetched(device, z), counted(1000) * 2)
            with using_stream(other):
                run(device, z, y, 2)
            device.copy(y, 0, z, 0, 4000)
            np.testing.assert_array_equal(fetched(device, z), counted(1000) * 4)
            device.module(image(device))
            device.timed(lambda: None, other)
            assert device.memory_use().in_use
            assert not device.capturing(other)
            assert not device.capturing(0)

    with new_stream(device) as stream, new_stream(device) as other:
        with Captured(device, stream, mode) as graph:
            device.launch(*scale(device, x, x, 1, 1), stream)
            del dropped
            beside()
            at_once(beside, 2)
            device.launch(*scale(device, x, x, 2), stream)
        graph.replay(stream)
        device.follow(0, stream)
        np.testing.assert_array_equal(fetched(device, x), (counted(1000) + 1) * 2)
        graph.close()


def test_a_capture_that_stops_the_legacy_stream_is_not_spoiled(device: Device) -> None:
    x, dropped = placed(device, counted(100)), placed(device, counted(100))
    device.wait()
    gc.collect()  # what other tests left in cycles is not counted
    before = device.memory_use().in_use
    with new_stream(device, blocking=True) as stream, new_stream(device) as other:
        with Captured(device, stream) as graph:
            assert device.capturing(0)
            device.order(x, stream)
            device.launch(*scale(device, x, x, 1, 1), stream)
            del dropped
            with using_stream(other):
                y = placed(device, counted(100))
            assert device.memory_use().in_use == before + 400  # what was dropped has to wait
            for attempt in (lambda: device.allocate(4), lambda: fetched(device, x), lambda: device.order(x, other)):
                with pytest.raises(DeviceError, match="its stream is being captured, or is blocked by another"):
                    attempt()
        graph.replay(stream)
        np.testing.assert_array_equal(fetched(device, x), counted(100) + 1)
        np.testing.assert_array_equal(fetched(device, y), counted(100))
        assert device.memory_use().in_use == before
        graph.close()


def test_memory_dropped_while_its_stream_is_captured_is_given_back_later(device: Device) -> None:
    gc.collect()  # what other tests left in cycles is not counted
    with new_stream(device) as stream, using_stream(stream):
        x, y = placed(device, counted(100)), placed(device, counted(100))
        before = device.memory_use().in_use
        with Captured(device, stream) as graph:
            device.launch(*scale(device, x, x, 1, 1), stream)
            del y
            with using_stream(0):
                device.allocate(4)
            assert device.memory_use().in_use == before
        assert device.memory_use().in_use == before - 400
        graph.replay(stream)
        np.testing.assert_array_equal(fetched(device, x), counted(100) + 1)
        graph.close()


def test_streams_of_one_capture_wait_for_each_other(device: Device) -> None:
    event = ctypes.c_void_p()
    with device.context.entered():
        ok(raw().cuEventCreate(ctypes.byref(event), 2))
    with new_stream(device) as stream, new_stream(device) as other:
        x = device.allocate(4000, stream)
        with using_stream(stream):
            device.upload(x, 0, counted(1000))
        device.order(x, stream)
        with Captured(device, stream, 2) as graph:
            with device.context.entered():
                ok(raw().cuEventRecord(event, ctypes.c_void_p(stream)))
                ok(raw().cuStreamWaitEvent(ctypes.c_void_p(other), event, 0))
            device.launch(*churn(device, x, 50), stream)
            device.order(x, other)
            device.launch(*scale(device, x, x, 3), other)
            device.follow(stream, other)
        graph.replay(stream)
        np.testing.assert_array_equal(fetched(device, x), churned(counted(1000), 50) * np.uint32(3))
        graph.close()
    with device.context.entered():
        ok(raw().cuEventDestroy_v2(event))
