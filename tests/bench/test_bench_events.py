"""The bench's device clock: which work is between the events, what is flushed, and the limits of the device."""

from __future__ import annotations

import gc
import itertools
from functools import partial
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from tvmdml import errors, targets
from tvmdml.proof.bench import cuda_limits, events, limits, measure, venues
from tvmdml.proof.bench.events import Batches, Cold
from tvmdml.proof.bench.measure import Contender, RacePace
from tvmdml.proof.bench.work import Traffic

MICRO = 1e-6


class Made:
    """A device and a host whose time goes on when they are told to work, and what they were told."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.said: list[str] = []
        self.device = self.host = 0.0
        self.names = itertools.count()
        monkeypatch.setattr(events, "time", SimpleNamespace(perf_counter=lambda: self.host))

    def work(self, name: str, device: float, host: float = 0.0) -> None:
        self.said.append(name)
        self.device += device
        self.host += host

    def event(self) -> MadeEvent:
        return MadeEvent(self, next(self.names))

    def contender(self, device: float, host: float = 0.0, stream: int = 0) -> Contender:
        call = partial(self.work, "call", device, host)
        return Contender("peer", "lib", "f", 1, call, lambda: self.said.append("prepare"), stream=stream)

    def flush(self, stream: int) -> None:
        self.work(f"flush {stream}", 40 * MICRO)

    def cold(self) -> Cold:
        return Cold(self.event, self.flush, lambda: self.said.append("wait"))


class MadeEvent:
    def __init__(self, made: Made, name: int) -> None:
        self.made, self.name, self.at = made, name, 0.0

    def record(self, stream: int) -> None:
        self.made.said.append(f"event {stream}")
        self.at = self.made.device

    def seconds_since(self, other: MadeEvent) -> float:
        return self.at - other.at


@pytest.fixture
def made(monkeypatch: pytest.MonkeyPatch) -> Made:
    return Made(monkeypatch)


# -- Batches ------------------------------------------------------------------------------------------------------


def test_a_batch_lies_between_two_events_on_the_contenders_stream(made: Made) -> None:
    sample = Batches(made.event).sample(made.contender(3 * MICRO, 2 * MICRO, stream=7), 16)
    assert made.said == ["prepare", *["call"] * 2, "event 7", *["call"] * 16, "event 7"], "the first calls are not timed"
    assert sample == pytest.approx((3 * MICRO, 2 * MICRO))


def test_a_batch_is_as_long_as_a_sample(made: Made) -> None:
    assert Batches(made.event).calls(made.contender(10 * MICRO)) == pytest.approx(events.BATCH / (10 * MICRO), abs=1)


def test_a_device_that_says_nothing_of_time_is_believed_the_host(made: Made) -> None:
    assert Batches(made.event).calls(made.contender(0.0, 10 * MICRO)) == pytest.approx(events.BATCH / (10 * MICRO), abs=1)


# -- Cold ---------------------------------------------------------------------------------------------------------


def test_each_cold_call_comes_after_a_flush_which_is_not_counted(made: Made) -> None:
    clock = made.cold()
    made.said.clear()
    sample = clock.sample(made.contender(30 * MICRO, 5 * MICRO, stream=3), 2)
    assert made.said == ["prepare", "wait", "call", *["flush 3", "event 3", "call", "event 3"] * 2]
    assert sample == pytest.approx((30 * MICRO, 5 * MICRO))


def test_a_slow_host_gets_a_longer_start(made: Made) -> None:
    clock = made.cold()
    for host, flushes in ((5, 1), (100, 4), (10_000, events.MOST_FLUSHES)):
        made.said.clear()
        clock.sample(made.contender(30 * MICRO, host * MICRO), 3)
        assert made.said.count("flush 0") == 3 * flushes


def test_a_cold_sample_is_the_median_of_its_calls(made: Made) -> None:
    clock, times = made.cold(), iter([1.0, 5.0, 4.0, 100.0])  # the first one is not timed
    contender = Contender("peer", "lib", "f", 1, lambda: made.work("call", next(times)))
    assert clock.sample(contender, 3).seconds == 5.0


def test_few_cold_calls_of_what_takes_long(made: Made) -> None:
    clock = made.cold()
    assert clock.calls(made.contender(60 * MICRO)) == events.MOST_COLD
    assert clock.calls(made.contender(960 * MICRO)) == 10
    assert clock.calls(made.contender(1.0)) == events.LEAST_COLD


def test_a_race_is_timed_by_the_clock_it_is_given(made: Made) -> None:
    contenders = [made.contender(30 * MICRO, 5 * MICRO), made.contender(60 * MICRO, 6 * MICRO)]
    for clock in (Batches(made.event), made.cold()):
        timings = measure.race(contenders, RacePace(3, 10.0), clock)
        assert [timing.median for timing in timings] == pytest.approx([30 * MICRO, 60 * MICRO])
        assert [timing.host for timing in timings] == pytest.approx([5 * MICRO, 6 * MICRO])
        assert [timing.samples for timing in timings] == [3, 3]


# -- What is flushed, and what allows what ------------------------------------------------------------------------


def test_twice_the_cache_is_flushed() -> None:
    class Device:
        def __init__(self, cache: int | None) -> None:
            self.cache = cache

        def attribute(self, number: int) -> int:
            assert number == 38, "CU_DEVICE_ATTRIBUTE_L2_CACHE_SIZE"
            if self.cache is None:
                raise errors.DeviceError("no such attribute")
            return self.cache

    sizes: list[Any] = [cuda_limits.flush_bytes(Device(cache)) for cache in (50 << 20, 0, None)]  # type: ignore[arg-type]
    assert sizes == [100 << 20, 256 << 20, 256 << 20]


@pytest.fixture
def opened(cuda: Any) -> Any:
    """A CUDA device's driver."""
    return cuda.device


@pytest.mark.parametrize(
    ("kind", "a_after", "b_after"),
    [("copied", 5, 5), ("rewritten", 5 ^ 1, 9), ("read", 5, 9), ("written", 5, 1), ("zeroed", 5, 0)],
)
@pytest.mark.parametrize("count", [1, 255, 1024, 5000])
def test_the_kernels_of_the_limits_move_what_they_say(opened: Any, kind: str, a_after: int, b_after: int, count: int) -> None:
    values = np.empty((count + 4, 4), np.uint32)
    memories = []
    for value in (5, 9):
        values[...] = value
        memories.append(opened.allocate(values.nbytes))
        opened.upload(memories[-1], 0, values)
    cuda_limits.launcher(opened, kind, *memories, 16 * count)(0)
    for memory, before, after in zip(memories, (5, 9), (a_after, b_after), strict=True):
        opened.download(memory, 0, values)
        assert (values[:count] == after).all()
        assert (values[count:] == before).all(), "it keeps within its bytes"


def test_little_traffic_is_bound_by_a_launch_and_more_by_each_kind(opened: Any) -> None:
    little = cuda_limits.contenders(opened, Traffic(copied=100))
    assert [contender.name for contender in little] == ["launch of an empty kernel"]
    traffic = Traffic(copied=1 << 20, read=3 << 20, written=1 << 20, zeroed=1 << 10)
    names = [contender.name for contender in cuda_limits.contenders(opened, traffic)]
    assert names == ["copied, by a kernel", "read, by a kernel", "written, by a kernel", "copied, by the driver"]
    assert limits.seconds([]) is None


def test_the_memory_of_a_limit_lives_as_long_as_it(opened: Any) -> None:
    gc.collect()  # what other tests left in cycles is not counted
    before = opened.memory_use().in_use
    contenders = cuda_limits.contenders(opened, Traffic(copied=8 << 20))
    for contender in contenders:
        contender.call()
    opened.wait()
    assert opened.memory_use().in_use - before >= 32 << 20
    del contenders, contender
    assert opened.memory_use().in_use == before


def test_a_real_race_by_events(opened: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    from tvmdml.targets.cuda.driver import Event

    contenders = cuda_limits.contenders(opened, Traffic(written=5 << 20))
    flush = cuda_limits.mover(opened, "written", 1 << 16)
    for clock in (Batches(partial(Event, opened)), Cold(partial(Event, opened), flush, opened.wait)):
        (timing,) = measure.race(contenders, RacePace(2, 0.0, 2), clock)
        assert timing.samples == 2
        assert timing.median > 0
        assert timing.host > 0


def test_venues_choose_the_clock_by_the_traffic(opened: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(cuda_limits, "flush_bytes", lambda device: 1 << 16)
    venues._flush.cache_clear()
    venue = venues.of(targets.resolve("cuda"))
    assert (venue.peers, venue.goals) == ("cuda", True)
    little, much = Traffic(read=100), Traffic(read=cuda_limits.COLD_BYTES)
    assert (venue.limit_of(little), venue.limit_of(much)) == ("launch", "memory")
    assert isinstance(venue.clock(little), Batches)
    assert isinstance(venue.clock(much), Cold)
    venues._flush.cache_clear()


def test_a_real_gpu_is_quicker_to_write_than_a_processor(opened: Any) -> None:
    if "emulator" in opened.info.name:
        pytest.skip("no GPU here: the emulator's times mean nothing")
    from tvmdml.targets.cuda.driver import Event

    size = 256 << 20
    flush = cuda_limits.mover(opened, "written", cuda_limits.flush_bytes(opened))
    contenders = cuda_limits.contenders(opened, Traffic(written=size))
    (timing,) = measure.race(contenders, measure.QUICK, Cold(partial(Event, opened), flush, opened.wait))
    assert 20e9 < size / timing.median < 50e12
