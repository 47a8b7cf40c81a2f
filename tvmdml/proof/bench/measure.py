"""Timing contenders against each other: in one process, in turns, so that a slowdown of the machine affects all of them.

A round takes one sample of every contender; every second round runs in reverse order. A clock defines what a sample is. The host's
clock, defined here, times as many calls as fill a millisecond, after untimed warm-up calls that wake up all threads. Before each
sample, it waits until the process is idle: the threads of PyTorch and ONNX Runtime spin for up to 30 ms after a call, which makes
their own next call faster, but would take a core from the next contender.
"""

from __future__ import annotations

import gc
import itertools
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import NamedTuple, Protocol

import numpy as np

from tvmdml.system import not_collected


class RacePace(NamedTuple):
    """How much time a race may use."""

    rounds: int
    """The most samples of each contender."""
    budget: float
    """Seconds after which no new round begins."""
    least_rounds: int = 5


QUICK = RacePace(rounds=9, budget=0.8)
FULL = RacePace(rounds=25, budget=1.5)

SAMPLE = 0.001
"""The least duration of a sample, in seconds."""
WARM_UP = 0.006
"""Seconds of untimed warm-up calls. A system may take some milliseconds to give a thread that slept its own processor."""
QUIET = 0.005
"""Seconds for which the process must be idle before a sample. The system counts processor time in ticks of up to 4 ms."""
PATIENCE = 0.2
"""Seconds after which a process that is never idle is measured anyway."""
MOST_CALLS = 1 << 20
"""Approximate number of calls in a sample."""
SLOW = 4.0
"""A contender this many times as slow as the best of its role is only sampled in every fourth round."""


@dataclass(frozen=True)
class Contender:
    """Something to time."""

    role: str
    """``ours``, ``peer``, ``aside`` (a peer that is not part of the goals), ``rounded`` (tvmdml with factors of bfloat16), ``base``
    (tvmdml's own baseline) or ``limit``."""
    library: str
    name: str
    threads: int
    call: Callable[[], object]
    prepare: Callable[[], object] = lambda: None
    """Runs before each sample, untimed: sets the library's number of threads."""
    repeat: Callable[[int], object] | None = None
    """Runs this many calls, for a contender with its own way to repeat them."""
    sample: float = SAMPLE
    stream: int = 0
    """The device stream on which its calls run, if a device's clock times them."""

    def run(self, times: int) -> None:
        """Call it this many times."""
        if self.repeat is not None:
            self.repeat(times)
            return
        call = self.call
        for _ in itertools.repeat(None, times):
            call()


class CallTiming(NamedTuple):
    """Seconds per call."""

    median: float
    low: float
    """The 10th percentile."""
    high: float
    """The 90th."""
    samples: int
    calls: int
    """Calls in a sample."""
    host: float = 0.0
    """The median of the seconds until a call returned, if it returns before its work is done; otherwise 0."""

    @property
    def spread(self) -> float:
        """Half of the distance between the percentiles, as a share of the median."""
        return (self.high - self.low) / 2 / self.median if self.median else 0.0


class Sample(NamedTuple):
    """The result of one sample: seconds per call."""

    seconds: float
    host: float = 0.0
    """As in ``CallTiming``."""


class Clock(Protocol):
    """How samples are taken. All contenders of a race are timed by the same clock."""

    def calls(self, contender: Contender) -> int:
        """How many calls fill a sample."""

    def sample(self, contender: Contender, calls: int) -> Sample:
        """Take a sample of this many calls."""


class WallClock:
    """The host's clock: for work that is done when the call returns."""

    def __init__(self, now: Callable[[], float] = time.perf_counter) -> None:
        """``now``: the seconds since a fixed moment."""
        self._now = now

    def calls(self, contender: Contender) -> int:
        """How many calls fill a sample."""
        contender.prepare()
        contender.run(1)
        return filling(lambda calls: self._timed(contender, calls), contender.sample)

    def sample(self, contender: Contender, calls: int) -> Sample:
        """Take a sample of this many calls."""
        contender.prepare()
        settle()
        end = time.perf_counter() + WARM_UP
        while time.perf_counter() < end:
            contender.run(max(1, calls // 8))
        return Sample(self._timed(contender, calls) / calls)

    def _timed(self, contender: Contender, calls: int) -> float:
        start = self._now()
        contender.run(calls)
        return self._now() - start


def filling(timed: Callable[[int], float], sample: float) -> int:
    """How many calls fill a sample; ``timed(calls)`` returns the duration of some calls."""
    calls = 1
    while True:
        seconds = min(timed(calls) for _ in range(2))
        if seconds >= sample / 2 or calls >= MOST_CALLS:
            return max(1, int(np.ceil(calls * sample / max(seconds, 1e-9))))
        calls *= 4


WALL = WallClock()
"""The default."""
PROCESSOR = WallClock(time.process_time)
"""The processor's time of this process: for work of one thread, which other programs of the machine disturb less."""


def race(contenders: Sequence[Contender], pace: RacePace, clock: Clock = WALL) -> list[CallTiming]:
    """Time all contenders. They must have been called before, so that no first call is timed."""
    gc.collect()
    with not_collected():
        calls = [clock.calls(contender) for contender in contenders]
        slow = _slow(contenders, calls, clock)
        samples: list[list[Sample]] = [[] for _ in contenders]
        end = time.perf_counter() + pace.budget
        for turn in range(pace.rounds):
            if turn >= pace.least_rounds and time.perf_counter() >= end:
                break
            order = range(len(contenders))
            for i in order if turn % 2 == 0 else reversed(order):
                if not slow[i] or turn % 4 == 0:
                    samples[i].append(clock.sample(contenders[i], calls[i]))
    return [_timing(taken, count) for taken, count in zip(samples, calls, strict=True)]


def _slow(contenders: Sequence[Contender], calls: Sequence[int], clock: Clock) -> list[bool]:
    """Which contenders are much slower than the best of their role. Two more tries keep a short disturbance from deciding that."""
    estimates = [clock.sample(*pair).seconds for pair in zip(contenders, calls, strict=True)]
    for _ in range(2):
        best = {c.role: min(t for o, t in zip(contenders, estimates, strict=True) if o.role == c.role) for c in contenders}
        slow = [t > SLOW * best[c.role] for c, t in zip(contenders, estimates, strict=True)]
        for i, contender in enumerate(contenders):
            if slow[i]:
                estimates[i] = min(estimates[i], clock.sample(contender, calls[i]).seconds)
    return [t > SLOW * best[c.role] for c, t in zip(contenders, estimates, strict=True)]


def settle() -> None:
    """Wait until the process has been idle for a moment."""
    end = time.perf_counter() + PATIENCE
    while time.perf_counter() < end:
        before = time.process_time()
        time.sleep(QUIET)
        if time.process_time() - before < QUIET / 5:
            return


def _timing(samples: Sequence[Sample], calls: int) -> CallTiming:
    low, median, high = (float(q) for q in np.quantile([sample.seconds for sample in samples], (0.1, 0.5, 0.9)))
    return CallTiming(median, low, high, len(samples), calls, float(np.median([sample.host for sample in samples])))
