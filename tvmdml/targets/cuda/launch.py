"""Launches on a CUDA device: on the caller's stream, without waiting."""

from __future__ import annotations

import itertools
import struct
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, nullcontext
from typing import TYPE_CHECKING, Any

from tvmdml.errors import DeviceError
from tvmdml.targets._device import VECTOR_BYTES
from tvmdml.targets._device_launch import DeviceLaunch, Placed
from tvmdml.targets.cuda import architectures, driver
from tvmdml.tensors.arrays.device_array import DeviceArray

if TYPE_CHECKING:
    from tvmdml.targets._device import DeviceTarget
    from tvmdml.targets._program import KernelProgram
    from tvmdml.targets.cuda.driver import Device, Prepared
    from tvmdml.targets.cuda.graphs import CapturedGraph
    from tvmdml.tensors.arrays import NumpyArray

_Dims = tuple[int, int, int]


class Loaded:
    """A program. Its functions are loaded on a device at the first launch there."""

    def __init__(self, program: KernelProgram) -> None:
        self.program = program
        self._functions: dict[int, tuple[int, ...]] = {}

    def functions(self, device: Device) -> tuple[int, ...]:
        """The handles of its functions.

        Raises:
            DeviceError: the program has no image that runs there.
        """
        index = device.info.index
        if (found := self._functions.get(index)) is None:
            images = {image.form: image.content for image in self.program.images}
            form = architectures.best(images, device.info.arch)
            if form is None:
                raise DeviceError(
                    f"cuda:{index}: the kernel was compiled for {', '.join(images)}, but the device is {device.info.arch}. "
                    f"Compile it for 'cuda:{device.info.arch}'."
                )
            module = device.module(images[form])
            found = self._functions[index] = tuple(module.function(function.name) for function in self.program.functions)
        return found


class CudaLaunch(DeviceLaunch):
    """A program with its integer arguments and the sizes of its temporaries."""

    def __init__(
        self, target: DeviceTarget, loaded: Loaded, scalars: Sequence[int], temporaries: Sequence[tuple[str, int]]
    ) -> None:
        super().__init__(target, loaded.program, scalars, temporaries)
        self._loaded = loaded
        self._ready = tuple(
            (number, groups, loaded.program.functions[number].threads, struct.Struct(f"<{len(buffers)}Q").pack, buffers, scalars)
            for number, buffers, scalars, groups in self._launches
        )

    def __call__(self, *arrays: NumpyArray | DeviceArray) -> None:
        """Run on the stream of the library that owns the arrays."""
        with self.on_stream(arrays):
            super().__call__(*arrays)

    def dispatch(self, device: Device, places: Sequence[Placed]) -> None:
        """Launch all steps on the current stream."""
        stream = device.stream()
        _order(device, places, stream)
        for function, groups, threads, parameters in self.steps(device, places):
            device.launch(function, groups, threads, parameters, stream)

    @staticmethod
    def runner(device: Device, prepared: Prepared | CapturedGraph, places: Sequence[Placed]) -> Callable[[], None]:
        """A run on the stream that is current then: the library's, if the arrays belong to a library."""
        foreign = next((place.memory for place in places if hasattr(place.memory, "owner")), None)
        own = [place for place in places if not hasattr(place.memory, "owner")]

        def run() -> None:
            stream = device.stream() if foreign is None else foreign.stream()
            _order(device, own, stream)
            prepared.run(stream)

        return run

    @classmethod
    def replayed(cls, device: Device, prepared: Prepared, places: Sequence[Placed]) -> Callable[[], None]:
        """By a graph of the driver's."""
        return cls.runner(device, device.graphs.of(prepared), places)

    @staticmethod
    def identity(place: Placed) -> object:
        """The address."""
        return place.memory.address + place.offset

    @staticmethod
    def seconds(device: Device, runs: Sequence[Callable[[], None]]) -> Sequence[float]:
        """By events on the current stream."""
        stream = device.stream()
        events = [driver.Event(device)]
        events[0].record(stream)
        for run in runs:
            run()
            events.append(driver.Event(device))
            events[-1].record(stream)
        return [after.seconds_since(before) for before, after in itertools.pairwise(events)]

    @staticmethod
    def on_stream(arrays: Sequence[NumpyArray | DeviceArray]) -> AbstractContextManager[None]:
        """The stream of the library that owns the arrays."""
        stream = _stream_of(arrays)
        return nullcontext() if stream is None else driver.using_stream(stream)

    def steps(self, device: Device, places: Sequence[Placed]) -> Iterator[tuple[int, _Dims, _Dims, bytes]]:
        """What ``Device.launch`` takes."""
        functions = self._loaded.functions(device)
        addresses = [place.memory.address + place.offset for place in places]
        for number, groups, threads, pack, buffers, scalars in self._ready:
            yield functions[number], groups, threads, pack(*[addresses[buffer] for buffer in buffers]) + scalars

    def _scratch(self, device: Device, places: Sequence[Placed]) -> list[Placed]:
        """Temporaries from the library that owns the arrays: its allocator orders their release, and supports graph capture."""
        foreign = next((place.memory for place in places if hasattr(place.memory, "owner")), None)
        if foreign is None:
            return super()._scratch(device, places)
        return [Placed(foreign.room(size), 0, size) for size in self.temporaries]

    @staticmethod
    def alignment(device: Any) -> int:
        """That of vector loads and stores."""
        return VECTOR_BYTES

    @classmethod
    def begins_well(cls, device: Any, array: DeviceArray) -> bool:
        """Whether it is aligned for vector loads and stores."""
        return bool((array.memory.address + array.offset) % VECTOR_BYTES == 0)


def _stream_of(arrays: Sequence[Any]) -> int | None:
    """The stream of the other library that owns an array among these, if there is one."""
    for array in arrays:
        if type(array) is DeviceArray and array.is_foreign:
            return array.memory.stream()
    return None


def _order(device: Device, places: Sequence[Placed], stream: int) -> None:
    """Make the stream wait for work on other streams that uses this memory, where the memory is our own."""
    for place in places:
        memory = place.memory
        if not hasattr(memory, "owner") and memory.stream != stream:
            device.order(memory, stream)
