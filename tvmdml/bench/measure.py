"""Timing contenders against each other: in one process, in turns, so that whatever slows the machine down slows all of them.

A round takes one sample of every contender, and every other round goes backwards. A clock says what a sample is. The host's, which
is here, takes as many calls as fill a millisecond, after some that are not timed: everybody's threads are awake by then. Before
each, the process waits until it is quiet: PyTorch's and ONNX Runtime's threads spin for up to 30 ms after a call, which is their
good right between their own calls, and would take a core from the next one.
"""

from __future__ import annotations

import gc
import itertools
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import NamedTuple, Protocol

import numpy as np

from tvmdml._garbage import not_collected


class Pace(NamedTuple):
    """How much time a race may take."""

    rounds: int
    """Samples of each contender, at most."""
    budget: float
    """Seconds after which no new round begins."""
    least_rounds: int = 5


QUICK = Pace(rounds=9, budget=0.8)
FULL = Pace(rounds=25, budget=4.0)

SAMPLE = 0.001
"""Seconds that a sample lasts, at least."""
WARM_UP = 0.006
"""Seconds of calls that are not timed. A system may take some milliseconds to give a thread that slept a processor of its own."""
QUIET = 0.005
"""Seconds in which the process must do nothing before a sample. The system counts processor time by ticks of up to 4 ms."""
PATIENCE = 0.2
"""Seconds after which a process that never rests is measured all the same."""
MOST_CALLS = 1 << 20
"""Calls in a sample, about."""
SLOW = 4.0
"""A contender that takes this many times as long as the best of its role is only sampled every fourth round."""


@dataclass(frozen=True)
class Contender:
    """Something to be timed."""

    role: str
    """``ours``, ``peer``, ``aside`` (a peer that no goal speaks of), ``base`` (our own other figure) or ``limit``."""
    library: str
    name: str
    threads: int
    call: Callable[[], object]
    prepare: Callable[[], object] = lambda: None
    """Runs before each sample, untimed: sets the library's number of threads."""
    repeat: Callable[[int], object] | None = None
    """Does what so many calls do, for a contender that has its own way to go on and on."""
    sample: float = SAMPLE
    stream: int = 0
    """The stream of a device that its calls work on, where a device's clock times them."""

    def run(self, times: int) -> None:
        """Call it so many times."""
        if self.repeat is not None:
            self.repeat(times)
            return
        call = self.call
        for _ in itertools.repeat(None, times):
            call()


class Timing(NamedTuple):
    """Seconds a call."""

    median: float
    low: float
    """The 10th percentile."""
    high: float
    """The 90th."""
    samples: int
    calls: int
    """Calls in a sample."""
    host: float = 0.0
    """Seconds until a call came back, where it comes back before its work is done: the median. Else 0."""

    @property
    def spread(self) -> float:
        """Half of what lies between the percentiles, as a share of the median."""
        return (self.high - self.low) / 2 / self.median if self.median else 0.0


class Sample(NamedTuple):
    """What one sample says about a call."""

    seconds: float
    host: float = 0.0
    """As ``Timing`` has it."""


class Clock(Protocol):
    """How samples are taken. All contenders of a race are timed by one."""

    def calls(self, contender: Contender) -> int:
        """How many calls fill a sample."""

    def sample(self, contender: Contender, calls: int) -> Sample:
        """Take a sample of so many calls."""


class WallClock:
    """The host's clock: for what is done when the call returns."""

    def calls(self, contender: Contender) -> int:
        """How many calls fill a sample."""
        contender.prepare()
        contender.run(1)
        return filling(lambda calls: _timed(contender, calls), contender.sample)

    def sample(self, contender: Contender, calls: int) -> Sample:
        """Take a sample of so many calls."""
        contender.prepare()
        settle()
        end = time.perf_counter() + WARM_UP
        while time.perf_counter() < end:
            contender.run(max(1, calls // 8))
        return Sample(_timed(contender, calls) / calls)


def filling(timed: Callable[[int], float], sample: float) -> int:
    """How many calls last as long as a sample; ``timed(calls)`` says how long some last."""
    calls = 1
    while True:
        seconds = min(timed(calls) for _ in range(2))
        if seconds >= sample / 2 or calls >= MOST_CALLS:
            return max(1, int(np.ceil(calls * sample / max(seconds, 1e-9))))
        calls *= 4


_WALL = WallClock()


def race(contenders: Sequence[Contender], pace: Pace, clock: Clock = _WALL) -> list[Timing]:
    """Time all contenders; they have been called before, so that nothing is done for the first time."""
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
    """Who is a long way behind the best of its role. A second and a third try keep a hiccup from deciding that."""
    estimates = [clock.sample(*pair).seconds for pair in zip(contenders, calls, strict=True)]
    for _ in range(2):
        best = {c.role: min(t for o, t in zip(contenders, estimates, strict=True) if o.role == c.role) for c in contenders}
        slow = [t > SLOW * best[c.role] for c, t in zip(contenders, estimates, strict=True)]
        for i, contender in enumerate(contenders):
            if slow[i]:
                estimates[i] = min(estimates[i], clock.sample(contender, calls[i]).seconds)
    return [t > SLOW * best[c.role] for c, t in zip(contenders, estimates, strict=True)]


def _timed(contender: Contender, calls: int) -> float:
    start = time.perf_counter()
    contender.run(calls)
    return time.perf_counter() - start


def settle() -> None:
    """Wait until the process has done nothing for a moment."""
    end = time.perf_counter() + PATIENCE
    while time.perf_counter() < end:
        before = time.process_time()
        time.sleep(QUIET)
        if time.process_time() - before < QUIET / 5:
            return


def _timing(samples: Sequence[Sample], calls: int) -> Timing:
    low, median, high = (float(q) for q in np.quantile([sample.seconds for sample in samples], (0.1, 0.5, 0.9)))
    return Timing(median, low, high, len(samples), calls, float(np.median([sample.host for sample in samples])))
