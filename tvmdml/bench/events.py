"""Timing by a device's own clock: events in the stream that work is asked for on, before it and after it.

A call comes back before its work is done, so the host's clock says nothing about the work. There are two ways to take a sample.
Small work is bound by what a launch costs, and is timed as a program has it: many calls in a row. Large work is bound by memory,
and each call finds the caches without its data, as in a program that works on other things meanwhile.
"""

from __future__ import annotations

import itertools
import math
import statistics
import time
from collections.abc import Callable
from typing import Any, Protocol

from tvmdml.bench.measure import Contender, Sample, filling

BATCH = 0.002
"""Seconds that a row of calls lasts, at least."""
COLD = 0.010
"""Seconds that single calls fill, with what goes before each."""
LEAST_COLD, MOST_COLD = 3, 50
"""Single calls in a sample."""
HEAD_START = 1.5
"""How much longer the device is kept busy than the host needs to ask for a call."""
MOST_FLUSHES = 8
"""Before a call: a call that waits for the device by itself would have ever more of them."""


class Event(Protocol):
    """A moment in a stream, as the CUDA driver layer has it."""

    def record(self, stream: int) -> None:
        """Take the moment that the stream has come to."""

    def seconds_since(self, other: Any) -> float:
        """How long it came after another; waits for both."""


class Batches:
    """Many calls in a row, between two events.

    Args:
        event: makes an event.
    """

    def __init__(self, event: Callable[[], Event]) -> None:
        self._begin, self._end = event(), event()

    def calls(self, contender: Contender) -> int:
        """How many calls fill a sample."""
        contender.prepare()
        contender.call()
        return filling(lambda calls: calls * max(self._timed(contender, calls)), BATCH)

    def sample(self, contender: Contender, calls: int) -> Sample:
        """Take a sample of so many calls."""
        contender.prepare()
        for _ in range(max(1, calls // 8)):  # the device is at work on these while the host asks for the first that counts
            contender.call()
        return self._timed(contender, calls)

    def _timed(self, contender: Contender, calls: int) -> Sample:
        call = contender.call
        self._begin.record(contender.stream)
        start = time.perf_counter()
        for _ in itertools.repeat(None, calls):
            call()
        host = time.perf_counter() - start
        self._end.record(contender.stream)
        return Sample(self._end.seconds_since(self._begin) / calls, host / calls)


class Cold:
    """Single calls, each between two events, after the caches were filled with something else.

    Writing to memory that nobody needs does that, and gives the host the time to ask for the call: what lies between the events is
    the device's time alone. It is on the same stream, and not between the events.

    Args:
        event: makes an event.
        flush: ``flush(stream)`` writes to at least twice as much memory as the caches hold.
        wait: waits for the device.
    """

    def __init__(self, event: Callable[[], Event], flush: Callable[[int], object], wait: Callable[[], object]) -> None:
        self._pairs = [(event(), event()) for _ in range(MOST_COLD)]
        self._flush, self._wait = flush, wait
        self._flush_seconds = min(self._flushing() for _ in range(3))

    def calls(self, contender: Contender) -> int:
        """How many calls fill a sample."""
        contender.prepare()
        contender.call()
        seconds = self._flush_seconds + max(self._timed(contender, 1, 1))
        return min(MOST_COLD, max(LEAST_COLD, math.ceil(COLD / max(seconds, 1e-9))))

    def sample(self, contender: Contender, calls: int) -> Sample:
        """Take a sample of so many calls."""
        contender.prepare()
        self._wait()
        start = time.perf_counter()
        contender.call()
        asking = time.perf_counter() - start
        flushes = math.ceil(HEAD_START * asking / max(self._flush_seconds, 1e-9))
        return self._timed(contender, calls, min(MOST_FLUSHES, max(1, flushes)))

    def _timed(self, contender: Contender, calls: int, flushes: int) -> Sample:
        call, stream, host = contender.call, contender.stream, 0.0
        for begin, end in self._pairs[:calls]:
            for _ in range(flushes):
                self._flush(stream)
            begin.record(stream)
            start = time.perf_counter()
            call()
            host += time.perf_counter() - start
            end.record(stream)
        return Sample(statistics.median(end.seconds_since(begin) for begin, end in self._pairs[:calls]), host / calls)

    def _flushing(self) -> float:
        begin, end = self._pairs[0]
        begin.record(0)
        self._flush(0)
        end.record(0)
        return end.seconds_since(begin)
