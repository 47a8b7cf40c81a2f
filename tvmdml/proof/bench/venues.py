"""Where a race takes place: which libraries take part, which clock times them, and what the machine allows."""

from __future__ import annotations

import functools
from functools import partial
from typing import TYPE_CHECKING, Any, ClassVar

from tvmdml.proof.bench import cuda_limits, limits, peers
from tvmdml.proof.bench.events import Batches, Cold
from tvmdml.proof.bench.measure import Clock, Contender, WallClock
from tvmdml.proof.bench.work import Traffic
from tvmdml.targets import Target
from tvmdml.targets._device import DeviceTarget

if TYPE_CHECKING:
    from tvmdml.targets.cuda.driver import Device


class Venue:
    """The processor. All contenders run on it, and the host's clock times them."""

    peers: ClassVar[str] = "cpu"
    """The key of ``peers.LIBRARIES`` for the libraries that take part."""
    goals: ClassVar[bool] = True
    """Whether the goals apply here."""

    def open(self) -> None:
        """Prepare to run work here.

        Raises:
            DeviceError: work cannot run here.
        """

    def close(self) -> None:
        """Free memory that is kept between calls: called at the end of a case."""

    def clock(self, traffic: Traffic) -> Clock:
        """The clock for work that moves this many bytes."""
        return WallClock()

    def limits(self, traffic: Traffic, threads: int) -> list[Contender]:
        """The contenders that show what is possible."""
        return limits.contenders(traffic, threads)

    def limit_of(self, traffic: Traffic) -> str:
        """What sets the limit: ``memory`` or ``launch``."""
        return "memory"

    def placed(self, array: Any) -> Any:
        """An array in the memory that suits the ``function`` way of calling best."""
        return array


class Waiting(Venue):
    """A device whose work the host waits for. Peers run on the processor, and no goal applies."""

    goals = False

    def __init__(self, target: DeviceTarget) -> None:
        self._target = target

    def limits(self, traffic: Traffic, threads: int) -> list[Contender]:
        """The device's own copy."""
        return limits.device_contenders(traffic, self._target)


class Cuda(Venue):
    """A CUDA device. Peers also run on it, and its events time all contenders."""

    peers = "cuda"

    def __init__(self, target: DeviceTarget) -> None:
        self._target = target

    @property
    def _device(self) -> Device:
        device: Any = self._target.device
        return device

    def open(self) -> None:
        """Select this device for all libraries."""
        self._device.context.usable()
        peers.use(self._device.info.index)

    def close(self) -> None:
        """Free the memory that peers keep."""
        peers.release()

    def clock(self, traffic: Traffic) -> Clock:
        """Small work is timed in batches, large work with cold caches."""
        from tvmdml.targets.cuda.driver import Event

        device, event = self._device, partial(Event, self._device)
        if self.limit_of(traffic) == "launch":
            return Batches(event)
        return Cold(event, _flush(device), device.wait)

    def limits(self, traffic: Traffic, threads: int) -> list[Contender]:
        """Kernels that only move bytes, or an empty one."""
        return cuda_limits.contenders(self._device, traffic)

    def limit_of(self, traffic: Traffic) -> str:
        """Small work is limited by launches."""
        return "memory" if traffic.total >= cuda_limits.COLD_BYTES else "launch"

    def placed(self, array: Any) -> Any:
        """An array on the device."""
        return self._target.place(array)


@functools.lru_cache(maxsize=1)
def _flush(device: Device) -> Any:
    """A function that fills the caches; its memory is shared by all races."""
    return cuda_limits.mover(device, "written", cuda_limits.flush_bytes(device))


_VENUES = {"cuda": Cuda}


def of(target: Target | None) -> Venue:
    """The venue of a target; ``None`` is the processor."""
    if not isinstance(target, DeviceTarget):
        return Venue()
    return _VENUES.get(target.kind, Waiting)(target)
