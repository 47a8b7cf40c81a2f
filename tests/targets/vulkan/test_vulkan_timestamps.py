"""Timestamps of a Vulkan device: their order, durations that agree with the host's clock, and every failure."""

from __future__ import annotations

import ctypes
import itertools
import time
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from tvmdml.errors import DeviceError
from tvmdml.targets import Target
from tvmdml.targets.vulkan import driver, structures
from tvmdml.targets.vulkan.driver import Device, Event, Memory
from tvmdml.targets.vulkan.timestamps import seconds_between

LARGE = 16 << 20


def needs_timestamps(device: Device) -> None:
    if not driver.has_timestamps(device):
        pytest.skip(f"{device.info.name} has no timestamps")


@pytest.fixture
def opened(vulkan: Target) -> Device:
    """The device that all tests share."""
    found: Device = vulkan.device  # type: ignore[attr-defined]
    needs_timestamps(found)
    return found


@pytest.fixture
def own(vulkan: Target, monkeypatch: pytest.MonkeyPatch) -> Iterator[Device]:
    """A device of this test's own, to be broken."""
    monkeypatch.setattr(driver, "_open", {})
    found = driver.open_device(0)
    needs_timestamps(found)
    yield found
    for device in list(driver._open.values()):
        assert device.close()


@pytest.fixture
def memory(opened: Device) -> Memory:
    return opened.allocate(LARGE)


def work(memory: Memory, nbytes: int = LARGE) -> None:
    memory.device.fill(memory, 0, nbytes, 7)


def recorded(device: Device) -> Event:
    event = Event(device)
    event.record()
    return event


def pools(device: Device) -> int:
    return sum(what == "QueryPool" for what, _ in device.connection._made)


# Moments


def test_a_span_lies_within_the_hosts(opened: Device, memory: Memory) -> None:
    opened.wait()
    start = time.perf_counter()
    begin = recorded(opened)
    work(memory)
    end = recorded(opened)
    seconds = end.seconds_since(begin)
    assert 0 < seconds <= 1.01 * (time.perf_counter() - start), "the two clocks need not run at quite the same pace"


def test_an_event_comes_after_all_work_before_it(opened: Device, memory: Memory) -> None:
    def span(times: int) -> float:
        begin = recorded(opened)
        for _ in range(times):
            work(memory)
        return recorded(opened).seconds_since(begin)

    assert min(span(0) for _ in range(9)) < min(span(10) for _ in range(3)) / 2


def test_events_come_in_the_order_of_their_recording(opened: Device, memory: Memory) -> None:
    events = []
    for _ in range(8):
        events.append(recorded(opened))
        work(memory, LARGE // 4)
    steps = [after.seconds_since(before) for before, after in itertools.pairwise(events)]
    assert min(steps) > 0
    assert events[-1].seconds_since(events[0]) == pytest.approx(sum(steps))
    assert events[0].seconds_since(events[-1]) == pytest.approx(-sum(steps))
    assert events[0].seconds_since(events[0]) == 0


def test_both_are_waited_for(opened: Device, memory: Memory) -> None:
    opened.wait()
    with opened.held():
        begin = recorded(opened)
        work(memory)
        end = recorded(opened)
        assert not opened.queue.done(end._last_use)
        assert begin.seconds_since(end) < 0
        assert opened.queue.done(end._last_use)


# The clock


@pytest.mark.parametrize(("bits", "period"), [(36, 1.0), (64, 52.083)])
def test_a_clock_that_starts_again_goes_on(bits: int, period: float) -> None:
    last = (1 << bits) - 1
    for begin, end, ticks in ((0, 0, 0), (10, 25, 15), (25, 10, -15), (last, 0, 1), (last - 4, 10, 15), (10, last - 4, -15)):
        assert seconds_between(begin, end, bits, period) == pytest.approx(ticks * period * 1e-9)


def test_ticks_are_read_by_the_devices_bits_and_period(own: Device, monkeypatch: pytest.MonkeyPatch) -> None:
    begin, end = recorded(own), recorded(own)
    own.wait()
    says = {begin._query: (1 << 36) - 5, end._query: 3}

    def results(_device: int, query: int, _first: int, _count: int, _size: int, into: Any, *_: int) -> int:
        ctypes.cast(into, ctypes.POINTER(ctypes.c_uint64))[0] = says[query]
        return 0

    monkeypatch.setattr(own.vk, "vkGetQueryPoolResults", results)
    monkeypatch.setattr(own, "timestamp_bits", 36)
    monkeypatch.setattr(own, "timestamp_period", 2.5)
    assert end.seconds_since(begin) == pytest.approx(20e-9)


@pytest.mark.parametrize("lacking", ["timestamp_bits", "timestamp_period"])
def test_without_timestamps_it_says_what_to_do(opened: Device, monkeypatch: pytest.MonkeyPatch, lacking: str) -> None:
    monkeypatch.setattr(opened, lacking, 0)
    assert not driver.has_timestamps(opened)
    with pytest.raises(DeviceError, match=r"this device has no timestamps: wait for its work, and use the host's clock"):
        Event(opened)
    with pytest.raises(DeviceError, match="this device has no timestamps"):
        opened.timed()


# What is dropped


def test_events_that_are_dropped_are_freed(own: Device) -> None:
    memory = own.allocate(4096)
    events = [recorded(own) for _ in range(50)] + [Event(own) for _ in range(50)]
    assert pools(own) == 100
    del events
    own.wait()
    assert pools(own) == 0
    with own.timed():
        work(memory, 4096)
    own.wait()
    assert pools(own) == 0


def test_a_dropped_event_stays_until_the_device_is_past_it(own: Device) -> None:
    with own.held():
        event = recorded(own)
        del event
        own.allocate(4096)  # looks at what was dropped
        assert pools(own) == 1
    own.wait()
    assert pools(own) == 0


def test_events_that_come_and_go_share_few_queries(own: Device) -> None:
    memory = own.allocate(4096)
    with own.held():  # most are reused by another event before the device reaches the first
        for _ in range(1000):
            begin = recorded(own)
            work(memory, 4096)
            end = recorded(own)
    assert end.seconds_since(begin) >= 0
    assert pools(own) <= 4


# Held work


def test_held_work_is_not_begun_until_somebody_waits(opened: Device, memory: Memory) -> None:
    opened.wait()
    with opened.held():
        serial = opened.queue.serial
        work(memory, 4096)
        assert opened.queue.serial == serial, "the batch is still open"
        opened.wait()
        assert opened.queue.serial == serial + 1
    work(memory, 4096)
    assert opened.queue.serial == serial + 2, "an idle device begins at once"


# What goes wrong


def test_an_event_that_was_not_recorded(opened: Device) -> None:
    event = recorded(opened)
    for pair in ((event, Event(opened)), (Event(opened), event)):
        with pytest.raises(DeviceError, match="an event was not recorded"):
            pair[0].seconds_since(pair[1])


def test_events_of_two_devices(opened: Device) -> None:
    here, there = recorded(opened), recorded(driver.open_device(0, staging=opened.unified))
    with pytest.raises(DeviceError, match="event: given one of another device; allowed: one of this device"):
        here.seconds_since(there)


def test_a_recording_that_is_interrupted_is_none(own: Device, monkeypatch: pytest.MonkeyPatch) -> None:
    def interrupt(*_: object) -> None:
        raise KeyboardInterrupt

    begin, event = recorded(own), recorded(own)
    with monkeypatch.context() as patch:
        patch.setattr(own.vk, "vkCmdWriteTimestamp", interrupt)
        with pytest.raises(KeyboardInterrupt):
            event.record()
    with pytest.raises(DeviceError, match="an event was not recorded"):
        event.seconds_since(begin)
    event.record()
    assert event.seconds_since(begin) >= 0


def test_a_moment_that_is_taken_anew_meanwhile(own: Device, monkeypatch: pytest.MonkeyPatch) -> None:
    begin, end = recorded(own), recorded(own)
    monkeypatch.setattr(own.vk, "vkGetQueryPoolResults", lambda *_: structures.VK_NOT_READY)
    with pytest.raises(DeviceError, match="recorded again while another thread waited for it"):
        end.seconds_since(begin)


@pytest.mark.parametrize("call", ["vkQueueSubmit", "vkGetQueryPoolResults", "vkWaitSemaphores"])
def test_a_lost_device_says_so(own: Device, monkeypatch: pytest.MonkeyPatch, call: str) -> None:
    begin, event = recorded(own), Event(own)
    own.wait()

    def taken() -> None:
        with own.held():
            event.record()
            event.seconds_since(begin)

    with monkeypatch.context() as patch:
        patch.setattr(own.vk, call, lambda *_: structures.VK_ERROR_DEVICE_LOST)
        patch.setattr(own.vk, "vkGetSemaphoreCounterValue", lambda *_: 0)  # it is waited for, however fast the device is
        with pytest.raises(DeviceError, match=rf"{call} failed: VK_ERROR_DEVICE_LOST"):
            taken()
    late: list[Callable[[], object]] = [event.record, lambda: event.seconds_since(begin), lambda: Event(own)]
    for attempt in late:
        with pytest.raises(DeviceError, match="VK_ERROR_DEVICE_LOST"):
            attempt()
    again = driver.open_device(0)
    assert again is not own
    with pytest.raises(DeviceError, match="VK_ERROR_DEVICE_LOST"):
        recorded(again).seconds_since(begin)
    assert recorded(again).seconds_since(recorded(again)) <= 0


def test_an_event_outlives_its_device(own: Device) -> None:
    event = recorded(own)
    assert own.close()
    for attempt in (event.record, lambda: event.seconds_since(event), lambda: Event(own)):
        with pytest.raises(DeviceError, match="the process is ending"):
            attempt()
