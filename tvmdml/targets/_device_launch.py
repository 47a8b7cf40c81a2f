"""Launches of a program on a device: on arrays in its memory, and on NumPy's, which are copied there and back."""

from __future__ import annotations

import abc
import ctypes
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, nullcontext
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from tvmdml.errors import CompileError
from tvmdml.targets._terms import Form
from tvmdml.tensors.arrays.device_array import DeviceArray

if TYPE_CHECKING:
    from tvmdml.targets._device import DeviceTarget
    from tvmdml.targets._program import KernelProgram
    from tvmdml.tensors.arrays import NumpyArray


class Placed(NamedTuple):
    """A tensor's place on the device, for one run."""

    memory: Any
    offset: int
    nbytes: int


class DeviceLaunch(abc.ABC):
    """A program with its integer arguments and the sizes of its temporaries.

    Raises:
        CompileError: the program does not accept these integers and temporaries.
    """

    def __init__(
        self, target: DeviceTarget, program: KernelProgram, scalars: Sequence[int], temporaries: Sequence[tuple[str, int]]
    ) -> None:
        self.target = target
        try:
            self._launches = program.launches(scalars)
        except ValueError as error:
            raise CompileError(f"{target.name}: a stored kernel cannot be launched: {error}.") from error
        self.arrays = program.parameters - len(scalars) - len(temporaries)
        self.temporaries = tuple(np.dtype(dtype).itemsize * count for dtype, count in temporaries)
        self.reads, self.writes = frozenset(program.reads), frozenset(program.writes)

    @abc.abstractmethod
    def dispatch(self, device: Any, places: Sequence[Placed]) -> None:
        """Start all steps on these tensors and temporaries."""

    @abc.abstractmethod
    def steps(self, device: Any, places: Sequence[Placed]) -> Iterator[Any]:
        """What the device is given for each step, on these tensors and temporaries."""

    @staticmethod
    @abc.abstractmethod
    def runner(device: Any, prepared: Any, places: Sequence[Placed]) -> Callable[[], None]:
        """A run of what the device prepared from ``steps`` on these tensors and temporaries."""

    @staticmethod
    @abc.abstractmethod
    def alignment(device: Any) -> int:
        """Of what places must be multiples, in memory that begins well."""

    @classmethod
    @abc.abstractmethod
    def begins_well(cls, device: Any, array: DeviceArray) -> bool:
        """Whether the array's start is aligned as kernels need it."""

    @classmethod
    def replayed(cls, device: Any, prepared: Any, places: Sequence[Placed]) -> Callable[[], None]:
        """The same as ``runner``, in the way that suits repeated runs of many steps."""
        return cls.runner(device, prepared, places)

    @staticmethod
    @abc.abstractmethod
    def identity(place: Placed) -> object:
        """What must be equal for prepared steps to serve other arrays too."""

    @staticmethod
    @abc.abstractmethod
    def seconds(device: Any, runs: Sequence[Callable[[], None]]) -> Sequence[float]:
        """Run these in turn. Returns the device's time for each; waits for them."""

    @staticmethod
    def longest(device: Any, nbytes: int) -> int:
        """As much of so many bytes as a kernel can reach from one place."""
        return nbytes

    @staticmethod
    def on_stream(arrays: Sequence[NumpyArray | DeviceArray]) -> AbstractContextManager[None]:
        """Inside, work is submitted where the arrays' owner expects it."""
        return nullcontext()

    def __call__(self, *arrays: NumpyArray | DeviceArray) -> None:
        """Run. With device arrays only, it returns before the work is done. NumPy outputs are complete on return."""
        if len(arrays) != self.arrays:
            raise self._other_arrays(len(arrays))
        device = self.target.device  # a new one, if the previous one was lost
        places, after = [], []
        for number, array in enumerate(arrays):
            place, finish = self.place(device, array, number in self.reads, number in self.writes)
            places.append(place)
            if finish is not None:
                after.append(finish)
        self.dispatch(device, places + self._scratch(device, places))
        for finish in after:
            finish()

    def bind(self, *arrays: NumpyArray | DeviceArray) -> Callable[[], None]:
        """A launch on these arrays. If all are on the device and aligned, everything that can be done once is done now."""
        device: Any = self.target.device
        if not all(isinstance(array, DeviceArray) and self.begins_well(device, array) for array in arrays):
            return lambda: self(*arrays)
        places = [self.place(device, array, read=True, written=True)[0] for array in arrays]
        places += self._scratch(device, places)
        steps = list(self.steps(device, places))
        run = self.runner(device, device.prepare(steps), places)
        run.held = places  # type: ignore[attr-defined] # keeps the memory alive
        return run

    def fit(self, forms: tuple[Form, ...]) -> Callable[..., bool]:
        """A launch on device arrays of these forms.

        Raises:
            CompileError: the program takes a different number of arrays.
        """
        present = [i for i, form in enumerate(forms) if form is not None]
        if len(present) != self.arrays:
            raise self._other_arrays(len(present))
        target = self.target

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
                if array.is_foreign or (array.target is not target and array.target != target.home):
                    return False
                memories.add(id(array.memory))
            if len(memories) != len(present):  # two arrays in one allocation may overlap: check one by one
                return False
            self(*(arrays[i] for i in present))
            return True

        return launch

    def _other_arrays(self, given: int) -> CompileError:
        return CompileError(f"{self.target.name}: a stored kernel takes {self.arrays} arrays, not {given}.")

    def _scratch(self, device: Any, places: Sequence[Placed]) -> list[Placed]:
        """Memory for the temporaries of one run on these tensors."""
        return [Placed(device.allocate(size), 0, size) for size in self.temporaries]

    @classmethod
    def place(
        cls, device: Any, array: NumpyArray | DeviceArray, read: bool, written: bool
    ) -> tuple[Placed, Callable[[], None] | None]:
        """The array's place on the device for this run, and the action needed after the run, if any."""
        if isinstance(array, DeviceArray):
            own = Placed(array.memory, array.offset, max(array.span, 1))
            if cls.begins_well(device, array):
                return own, None
            # The slice is not aligned as kernels need it, so the kernel works on a copy.
            copy = Placed(device.allocate(own.nbytes), 0, own.nbytes)
            device.copy(own.memory, own.offset, copy.memory, 0, own.nbytes)
            if not written:
                return copy, None
            return copy, lambda: device.copy(copy.memory, 0, own.memory, own.offset, own.nbytes)
        nbytes = _span(array)
        place = Placed(device.allocate(max(nbytes, 1)), 0, max(nbytes, 1))
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
    """The bytes from the start of the first element to the end of the last one; no stride is negative."""
    if not array.size:
        return 0
    steps: int = sum((n - 1) * step for n, step in zip(array.shape, array.strides, strict=True))
    return steps + array.itemsize
