"""The clocks that time a trial. A search takes thousands of samples, so each is short; the bench takes few, and longer ones."""

from __future__ import annotations

import time
from collections.abc import Callable
from functools import partial
from typing import TYPE_CHECKING, Any

from tvmdml.proof.bench.events import Batches
from tvmdml.proof.bench.measure import Clock, Contender, Sample, filling
from tvmdml.targets import Target

if TYPE_CHECKING:
    from tvmdml.proof.bench.work import Traffic
    from tvmdml.targets.vulkan.driver import Device


class QuickClock:
    """The host's clock, for when no other program's threads are running: it waits for nothing but the calls themselves.

    Args:
        wait: waits for the work of calls that return before it is finished.
    """

    def __init__(self, wait: Callable[[], object] = lambda: None) -> None:
        self._wait = wait

    def calls(self, contender: Contender) -> int:
        """The number of calls in a sample."""
        contender.prepare()
        contender.run(1)
        return filling(partial(self._timed, contender), contender.sample)

    def sample(self, contender: Contender, calls: int) -> Sample:
        """Take a sample of so many calls, after a few calls that wake the threads and fill the caches."""
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
    """A device's timestamps around many calls in a row, which are submitted in full batches.

    If each call were submitted as soon as the device is idle, the time would include waits for the host, whatever the kernel.
    """

    def __init__(self, device: Device) -> None:
        from tvmdml.targets.vulkan.driver import Event

        self._device, self._batches = device, Batches(partial(Event, device))

    def calls(self, contender: Contender) -> int:
        """The number of calls in a sample."""
        with self._device.held():
            return self._batches.calls(contender)

    def sample(self, contender: Contender, calls: int) -> Sample:
        """Take a sample of so many calls."""
        with self._device.held():
            return self._batches.sample(contender, calls)


def of(target: Target, traffic: Traffic | None = None) -> Clock:
    """The clock for work on a target. There is no wait after a call on a device, because the device's clock measures its work.

    Args:
        target: where the work runs.
        traffic: the memory traffic of the work. On a CUDA device, work with much traffic is timed with cold caches, as in the
            bench; the default is little traffic.

    Raises:
        DeviceError: the device is unusable.
    """
    clock = _CLOCKS.get(target.kind)
    return QuickClock(target.wait) if clock is None else clock(target, traffic)


def _cuda(target: Any, traffic: Traffic | None) -> Clock:
    from tvmdml.proof.bench import venues
    from tvmdml.proof.bench.work import Traffic

    return venues.of(target).clock(traffic or Traffic())


def _vulkan(target: Any, traffic: Traffic | None) -> Clock:
    from tvmdml.targets.vulkan.driver import has_timestamps

    return VulkanBatches(target.device) if has_timestamps(target.device) else QuickClock(target.wait)


_CLOCKS: dict[str, Callable[[Any, Traffic | None], Clock]] = {"cuda": _cuda, "vulkan": _vulkan}
