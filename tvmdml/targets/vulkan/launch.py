"""Launches on a Vulkan device."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import TYPE_CHECKING

from tvmdml.targets._device import VECTOR_BYTES
from tvmdml.targets._device_launch import DeviceLaunch, Placed

if TYPE_CHECKING:
    from tvmdml.arrays.device_array import DeviceArray
    from tvmdml.targets._device import DeviceTarget
    from tvmdml.targets._program import Program
    from tvmdml.targets.vulkan.driver import Device, Pipeline


class Loaded:
    """A program with its pipelines."""

    def __init__(self, device: Device, program: Program) -> None:
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

    def _dispatch(self, device: Device, places: Sequence[Placed]) -> None:
        for step in self._steps(device, places):
            device.dispatch(*step)

    def _prepare(self, device: Device, places: Sequence[Placed]) -> Callable[[], None]:
        """Prepare repeated launches: the commands are recorded now."""
        prepared = device.prepare(list(self._steps(device, places)))

        def run() -> None:
            prepared.run()

        return run

    def _steps(
        self, device: Device, places: Sequence[Placed]
    ) -> Iterator[tuple[Pipeline, list[Placed], bytes, tuple[int, int, int]]]:
        pipelines = self._loaded.pipelines(device)
        for function, buffers, scalars, groups in self._launches:
            yield pipelines[function], [places[buffer] for buffer in buffers], scalars, groups

    def _begins_well(self, device: Device, array: DeviceArray) -> bool:
        """Whether it is aligned for a binding, and for vector loads and stores."""
        return array.offset % max(device.storage_alignment, VECTOR_BYTES) == 0
