"""What times a trial. A search takes thousands of samples, so each is short; the bench, which takes few, has patience."""

from __future__ import annotations

import time
from collections.abc import Callable
from functools import partial
from typing import TYPE_CHECKING, Any

from tvmdml.bench.events import Batches
from tvmdml.bench.measure import Clock, Contender, Sample, filling
from tvmdml.targets import Target

if TYPE_CHECKING:
    from tvmdml.bench.work import Traffic
    from tvmdml.targets.vulkan.driver import Device


class QuickClock:
    """The host's clock, where nobody else's threads are at work: nothing is waited for but the calls themselves.

    Args:
        wait: waits for the work of calls that come back before it is done.
    """

    def __init__(self, wait: Callable[[], object] = lambda: None) -> None:
        self._wait = wait

    def calls(self, contender: Contender) -> int:
        """How many calls fill a sample."""
        contender.prepare()
        contender.run(1)
        return filling(partial(self._timed, contender), contender.sample)

    def sample(self, contender: Contender, calls: int) -> Sample:
        """Take a sample of so many calls, after a few that wake the threads and fill the caches."""
        contender.prepare()
        contender.run(max(1, calls // 8))
        return Sample(self._timed(contender, calls) / calls)

    def _timed(self, contender: Contender, calls: int) -> float:
        self._wait()
        start = time.perf_counter()
        contender.run(calls)
        self._wait()
        return time.perf_counter() - start


class VulkanBatches:
    """A device's timestamps around many calls in a row, which it is given in full batches.

    Given a call as soon as it is idle, it would be timed waiting for the host, whichever way the kernel was cut.
    """

    def __init__(self, device: Device) -> None:
        from tvmdml.targets.vulkan.driver import Event

        self._device, self._batches = device, Batches(partial(Event, device))

    def calls(self, contender: Contender) -> int:
        """How many calls fill a sample."""
        with self._device.held():
            return self._batches.calls(contender)

    def sample(self, contender: Contender, calls: int) -> Sample:
        """Take a sample of so many calls."""
        with self._device.held():
            return self._batches.sample(contender, calls)


def of(target: Target, traffic: Traffic | None = None) -> Clock:
    """What times work on a target. A device is not waited for after a call: its clock sees to that.

    Args:
        target: where the work runs.
        traffic: how much it moves. Much work on a CUDA device is timed from cold caches, as the bench does; by default it is
            little.

    Raises:
        DeviceError: the device cannot be used.
    """
    clock = _CLOCKS.get(target.kind)
    return QuickClock(target.wait) if clock is None else clock(target, traffic)


def _cuda(target: Any, traffic: Traffic | None) -> Clock:
    from tvmdml.bench import venues
    from tvmdml.bench.work import Traffic

    return venues.of(target).clock(traffic or Traffic())


def _vulkan(target: Any, traffic: Traffic | None) -> Clock:
    from tvmdml.targets.vulkan.driver import has_timestamps

    return VulkanBatches(target.device) if has_timestamps(target.device) else QuickClock(target.wait)


_CLOCKS: dict[str, Callable[[Any, Traffic | None], Clock]] = {"cuda": _cuda, "vulkan": _vulkan}
