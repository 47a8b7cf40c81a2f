"""Timing by a device's own clock: events in the stream before and after the work.

A call returns before its work is done, so the host's clock does not measure the work. There are two ways to take a sample. Small
work is limited by the cost of a launch: it is timed as many calls in a row, as in a program. Large work is limited by memory: each
call finds its data not in the caches, as in a program that works on other data between the calls.
"""

from __future__ import annotations

import itertools
import math
import statistics
import time
from collections.abc import Callable
from typing import Any, Protocol

from tvmdml.proof.bench.measure import Contender, Sample, filling

BATCH = 0.002
"""The least duration of a batch of calls, in seconds."""
COLD = 0.010
"""Seconds that single calls fill, including what runs before each."""
LEAST_COLD, MOST_COLD = 3, 50
"""The least number of single calls in a sample."""
HEAD_START = 1.5
"""The device is kept busy this many times as long as the host needs to submit a call."""
MOST_FLUSHES = 8
"""The most flushes before a call: a call that waits for the device itself would otherwise get more and more of them."""


class StreamEvent(Protocol):
    """A point in a stream, as in the CUDA driver layer."""

    def record(self, stream: int) -> None:
        """Record the current point of the stream."""

    def seconds_since(self, other: Any) -> float:
        """The time since another event; waits for both."""


class Batches:
    """Many calls in a row, between two events.

    Args:
        event: makes an event.
    """

    def __init__(self, event: Callable[[], StreamEvent]) -> None:
        self._begin, self._end = event(), event()

    def calls(self, contender: Contender) -> int:
        """How many calls fill a sample."""
        contender.prepare()
        contender.call()
        return filling(lambda calls: calls * max(self._timed(contender, calls)), BATCH)

    def sample(self, contender: Contender, calls: int) -> Sample:
        """Take a sample of this many calls."""
        contender.prepare()
        for _ in range(max(1, calls // 8)):  # the device works on these while the host submits the first timed call
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
    """Single calls, each between two events, with cold caches.

    Before each call, unrelated memory is written, on the same stream and before the first event. This evicts everything else from
    the caches, and gives the host time to submit the call, so that only the device's time is between the events.

    Args:
        event: makes an event.
        flush: ``flush(stream)`` writes to at least twice as much memory as the caches hold.
        wait: waits for the device.
    """

    def __init__(self, event: Callable[[], StreamEvent], flush: Callable[[int], object], wait: Callable[[], object]) -> None:
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
        """Take a sample of this many calls."""
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
