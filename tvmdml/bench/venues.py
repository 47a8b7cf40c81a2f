"""Where a race takes place: who takes part there, by which clock, and what it allows."""

from __future__ import annotations

import functools
from functools import partial
from typing import TYPE_CHECKING, Any, ClassVar

from tvmdml.bench import cuda_limits, limits, peers
from tvmdml.bench.events import Batches, Cold
from tvmdml.bench.measure import Clock, Contender, WallClock
from tvmdml.bench.work import Traffic
from tvmdml.targets import Target
from tvmdml.targets._device import DeviceTarget

if TYPE_CHECKING:
    from tvmdml.targets.cuda.driver import Device


class Venue:
    """The processor. Everybody runs there, and the host's clock times them."""

    peers: ClassVar[str] = "cpu"
    """Those of ``peers.LIBRARIES`` that take part."""
    goals: ClassVar[bool] = True
    """Whether the goals speak of it."""

    def open(self) -> None:
        """See to it that work can be done here.

        Raises:
            DeviceError: it cannot.
        """

    def close(self) -> None:
        """Give back what is kept between calls: a case is over."""

    def clock(self, traffic: Traffic) -> Clock:
        """What times work that moves so much."""
        return WallClock()

    def limits(self, traffic: Traffic, threads: int) -> list[Contender]:
        """Who shows what is possible."""
        return limits.contenders(traffic, threads)

    def limit_of(self, traffic: Traffic) -> str:
        """What it is that sets the limit: ``memory`` or ``launch``."""
        return "memory"

    def placed(self, array: Any) -> Any:
        """An array as the function door is best given it."""
        return array


class Waiting(Venue):
    """A device whose work is waited for. Peers stay on the processor, and no goal speaks of it."""

    goals = False

    def __init__(self, target: DeviceTarget) -> None:
        self._target = target

    def limits(self, traffic: Traffic, threads: int) -> list[Contender]:
        """The device's own copy."""
        return limits.device_contenders(traffic, self._target)


class Cuda(Venue):
    """A CUDA device. Peers run on it too, and its own events time everybody."""

    peers = "cuda"

    def __init__(self, target: DeviceTarget) -> None:
        self._target = target

    @property
    def _device(self) -> Device:
        device: Any = self._target.device
        found: Device = device
        return found

    def open(self) -> None:
        """Have everybody use this device."""
        self._device.context.usable()
        peers.use(self._device.info.index)

    def close(self) -> None:
        """Give back the memory that peers keep."""
        peers.release()

    def clock(self, traffic: Traffic) -> Clock:
        """Batches of small work, and large work from cold caches."""
        from tvmdml.targets.cuda.driver import Event

        device, event = self._device, partial(Event, self._device)
        if self.limit_of(traffic) == "launch":
            return Batches(event)
        return Cold(event, _flush(device), device.wait)

    def limits(self, traffic: Traffic, threads: int) -> list[Contender]:
        """Kernels that only move bytes, or an empty one."""
        return cuda_limits.contenders(self._device, traffic)

    def limit_of(self, traffic: Traffic) -> str:
        """Little work is bound by launches."""
        return "memory" if traffic.total >= cuda_limits.COLD_BYTES else "launch"

    def placed(self, array: Any) -> Any:
        """On the device."""
        return self._target.place(array)


@functools.lru_cache(maxsize=1)
def _flush(device: Device) -> Any:
    """What fills the caches; the memory is the same for all races."""
    return cuda_limits.mover(device, "written", cuda_limits.flush_bytes(device))


_VENUES = {"cuda": Cuda}


def of(target: Target | None) -> Venue:
    """The place that a target stands for; ``None`` is the processor."""
    if not isinstance(target, DeviceTarget):
        return Venue()
    return _VENUES.get(target.kind, Waiting)(target)
