"""Launches on a Vulkan device."""

from __future__ import annotations

import itertools
import time
from collections.abc import Callable, Iterator, Sequence
from typing import TYPE_CHECKING

from tvmdml.targets._device import VECTOR_BYTES
from tvmdml.targets._device_launch import DeviceLaunch, Placed
from tvmdml.targets.vulkan.timestamps import Event, has_timestamps

if TYPE_CHECKING:
    from tvmdml.targets._device import DeviceTarget
    from tvmdml.targets._program import KernelProgram
    from tvmdml.targets.vulkan.driver import Device, Pipeline, Prepared
    from tvmdml.tensors.arrays.device_array import DeviceArray


class Loaded:
    """A program with its pipelines."""

    def __init__(self, device: Device, program: KernelProgram) -> None:
        self.program = program
        self._ready = self._made(device)

    def pipelines(self, device: Device) -> tuple[Pipeline, ...]:
        """Its pipelines on a device: new ones, if the device was lost and opened again."""
        found = self._ready
        if found[0] is not device:
            found = self._ready = self._made(device)
        return found[1]

    def _made(self, device: Device) -> tuple[Device, tuple[Pipeline, ...]]:
        images, functions = self.program.images, self.program.functions
        return device, tuple(device.pipeline(images[f.image].content, f.buffers, f.scalar_bytes) for f in functions)


class VulkanLaunch(DeviceLaunch):
    """A program with its integer arguments and the sizes of its temporaries."""

    def __init__(
        self, target: DeviceTarget, loaded: Loaded, scalars: Sequence[int], temporaries: Sequence[tuple[str, int]]
    ) -> None:
        super().__init__(target, loaded.program, scalars, temporaries)
        self._loaded = loaded

    def dispatch(self, device: Device, places: Sequence[Placed]) -> None:
        """Dispatch all steps."""
        for step in self.steps(device, places):
            device.dispatch(*step)

    @staticmethod
    def runner(device: Device, prepared: Prepared, places: Sequence[Placed]) -> Callable[[], None]:
        """A run of recorded commands."""

        def run() -> None:
            prepared.run()

        return run

    @staticmethod
    def identity(place: Placed) -> object:
        """The slice of memory, which prepared steps keep: another array may have got it meanwhile."""
        return id(place.memory.slice), place.offset, place.nbytes

    @staticmethod
    def longest(device: Device, nbytes: int) -> int:
        """The size of a binding is limited."""
        return min(nbytes, device.max_storage_range)

    @staticmethod
    def seconds(device: Device, runs: Sequence[Callable[[], None]]) -> Sequence[float]:
        """By timestamps; by the host's clock on a device that has none."""
        if not has_timestamps(device):
            return _waited(device, runs)
        with device.held():
            events = [Event(device)]
            events[0].record()
            for run in runs:
                run()
                events.append(Event(device))
                events[-1].record()
        return [after.seconds_since(before) for before, after in itertools.pairwise(events)]

    def steps(
        self, device: Device, places: Sequence[Placed]
    ) -> Iterator[tuple[Pipeline, list[Placed], bytes, tuple[int, int, int]]]:
        """What ``Device.dispatch`` takes."""
        pipelines = self._loaded.pipelines(device)
        for function, buffers, scalars, groups in self._launches:
            yield pipelines[function], [places[buffer] for buffer in buffers], scalars, groups

    @staticmethod
    def alignment(device: Device) -> int:
        """That of bindings, and of vector loads and stores."""
        return max(device.storage_alignment, VECTOR_BYTES)

    @classmethod
    def begins_well(cls, device: Device, array: DeviceArray) -> bool:
        """Whether it is aligned for a binding, and for vector loads and stores."""
        return array.offset % cls.alignment(device) == 0


def _waited(device: Device, runs: Sequence[Callable[[], None]]) -> Sequence[float]:
    device.wait()
    times = [time.perf_counter()]
    for run in runs:
        run()
        device.wait()
        times.append(time.perf_counter())
    return [after - before for before, after in itertools.pairwise(times)]
