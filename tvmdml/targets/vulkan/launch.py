"""Launches on a Vulkan device: on arrays that lie there, and on NumPy's, which are moved there and back."""

from __future__ import annotations

import ctypes
from collections.abc import Callable, Iterator, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from tvmdml.device_arrays import DeviceArray
from tvmdml.targets import Form
from tvmdml.targets._device import VECTOR_BYTES

if TYPE_CHECKING:
    from tvmdml.arrays import NumpyArray
    from tvmdml.targets.vulkan import VulkanTarget
    from tvmdml.targets.vulkan.driver import Device, Memory, Pipeline
    from tvmdml.targets._program import Program


class Loaded:
    """A program with its pipelines."""

    def __init__(self, target: VulkanTarget, program: Program) -> None:
        self.program = program
        self._ready = self._made(target.device)

    def pipelines(self, device: Device) -> tuple[Pipeline, ...]:
        """Its pipelines on a device: other ones than before, where the device was lost and opened again."""
        found = self._ready
        if found[0] is not device:
            found = self._ready = self._made(device)
        return found[1]

    def _made(self, device: Device) -> tuple[Device, tuple[Pipeline, ...]]:
        images, functions = self.program.images, self.program.functions
        return device, tuple(device.pipeline(images[f.image].content, f.buffers, f.scalar_bytes) for f in functions)


class _Placed(NamedTuple):
    """Where a tensor lies on the device, for one run."""

    memory: Memory
    offset: int
    nbytes: int


class VulkanLaunch:
    """A program with its integers and the sizes of its temporaries."""

    def __init__(
        self, target: VulkanTarget, loaded: Loaded, scalars: Sequence[int], temporaries: Sequence[tuple[str, int]]
    ) -> None:
        self._target, self._device, self._loaded = target, target.device, loaded
        self._launches = loaded.program.launches(scalars)
        self._temporaries = tuple(np.dtype(dtype).itemsize * count for dtype, count in temporaries)
        self._reads, self._writes = frozenset(loaded.program.reads), frozenset(loaded.program.writes)

    def __call__(self, *arrays: NumpyArray | DeviceArray) -> None:
        """Run. On device arrays alone it returns before the work is done; what NumPy's arrays get is there on return."""
        device = self._device = self._target.device  # another one, after it was lost
        places, after = [], []
        for number, array in enumerate(arrays):
            place, finish = self._place(array, number in self._reads, number in self._writes)
            places.append(place)
            if finish is not None:
                after.append(finish)
        places += self._scratch()
        for step in self._steps(places):
            device.dispatch(*step)
        for finish in after:
            finish()

    def bind(self, *arrays: NumpyArray | DeviceArray) -> Callable[[], None]:
        """A launch on these arrays; where all lie on the device, and begin well, its commands are recorded now."""
        self._device = self._target.device
        if not all(isinstance(array, DeviceArray) and self._begins_well(array) for array in arrays):
            return lambda: self(*arrays)
        places = [self._place(array, read=True, written=True)[0] for array in arrays] + self._scratch()
        prepared = self._device.prepare(list(self._steps(places)))

        def run() -> None:
            prepared.run()

        run.held = places  # type: ignore[attr-defined] # what it works on is kept alive
        return run

    def fit(self, forms: tuple[Form, ...]) -> Callable[..., bool]:
        """A launch on device arrays that have these forms."""
        present = [i for i, form in enumerate(forms) if form is not None]
        target = self._target

        def launch(*arrays: Any) -> bool:
            if len(arrays) != len(forms):
                return False
            memories = set()
            for array, form in zip(arrays, forms, strict=True):
                if form is None:
                    if array is not None:
                        return False
                    continue
                dtype, shape, strides, _ = form
                if type(array) is not DeviceArray or array.shape != shape or array.strides != strides or array.dtype != dtype:
                    return False
                if array.target is not target:
                    return False
                memories.add(id(array.memory))
            if len(memories) != len(present):  # two that may overlap are looked at one by one
                return False
            self(*(arrays[i] for i in present))
            return True

        return launch

    def _steps(self, places: Sequence[_Placed]) -> Iterator[tuple[Pipeline, list[_Placed], bytes, tuple[int, int, int]]]:
        pipelines = self._loaded.pipelines(self._device)
        for function, buffers, scalars, groups in self._launches:
            yield pipelines[function], [places[buffer] for buffer in buffers], scalars, groups

    def _scratch(self) -> list[_Placed]:
        return [_Placed(self._device.allocate(size), 0, size) for size in self._temporaries]

    def _begins_well(self, array: DeviceArray) -> bool:
        """Whether an array begins where a binding may, and where vectors lie in one piece."""
        return array.offset % max(self._device.storage_alignment, VECTOR_BYTES) == 0

    def _place(self, array: NumpyArray | DeviceArray, read: bool, written: bool) -> tuple[_Placed, Callable[[], None] | None]:
        """Where an array lies for this run, and what is left to do after it."""
        device = self._device
        if isinstance(array, DeviceArray):
            own = _Placed(array.memory, array.offset, max(array.span, 1))
            if self._begins_well(array):
                return own, None
            # A slice that begins where no binding can: the kernel works on a copy.
            copy = _Placed(device.allocate(own.nbytes), 0, own.nbytes)
            device.copy(own.memory, own.offset, copy.memory, 0, own.nbytes)
            if not written:
                return copy, None
            return copy, lambda: device.copy(copy.memory, 0, own.memory, own.offset, own.nbytes)
        nbytes = _span(array)
        place = _Placed(device.allocate(max(nbytes, 1)), 0, max(nbytes, 1))
        memory = np.ctypeslib.as_array((ctypes.c_uint8 * nbytes).from_address(array.__array_interface__["data"][0]))
        if read and nbytes:
            device.upload(place.memory, 0, memory)
        if not written or not nbytes:
            return place, None
        if array.flags.c_contiguous:
            return place, lambda: device.download(place.memory, 0, memory)

        def spread() -> None:
            held = np.empty(nbytes, np.uint8)
            device.download(place.memory, 0, held)
            np.copyto(array, np.ndarray(array.shape, array.dtype, buffer=held, strides=array.strides))

        return place, spread


def _span(array: NumpyArray) -> int:
    """Bytes from the first element to the end of the last; no stride is negative."""
    if not array.size:
        return 0
    steps: int = sum((n - 1) * step for n, step in zip(array.shape, array.strides, strict=True))
    return steps + array.itemsize
