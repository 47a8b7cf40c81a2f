"""Targets with thread groups and memory of their own: what GPU schedules need to know about them."""

from __future__ import annotations

import abc
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar

import numpy as np

from tvmdml.errors import CompileError, DeviceError, message
from tvmdml.targets import Build, Launcher, Target
from tvmdml.tensors.arrays.device_array import DeviceArray

if TYPE_CHECKING:
    from tvm.tirx import PrimFunc

    from tvmdml.system.disk.stores import Artifact
    from tvmdml.targets._program import KernelProgram
    from tvmdml.tensors.arrays import NumpyArray
    from tvmdml.tensors.arrays.device_array import Device


VECTOR_BYTES = 16
"""The bytes that a thread of a GPU kernel loads or stores at once. Arrays passed to kernels are aligned to it."""


class DeviceTarget(Target):
    """A device. Schedules read the properties that differ between devices from it."""

    schedules: ClassVar[str] = "gpu"
    moves: ClassVar[bool] = True
    subgroup_size: int
    """Threads that run in lockstep; 1 if the device has no subgroup operations."""
    lockstep: int = 1
    """Each aligned run of so many threads of a group is one full subgroup. 1 if the device does not guarantee this."""
    max_threads: int
    """The maximum number of threads of a group."""
    max_shared_bytes: int
    """The maximum shared memory of a group."""
    lookback: bool
    """Whether a running group may wait for a group that started before it (decoupled look-back)."""
    max_groups: int
    """The maximum number of groups in one launch. A launch with more is split, and gains nothing."""

    @property
    def is_cpu(self) -> bool:
        """Whether it is a driver for the CPU."""
        return False

    @property
    def max_rounds(self) -> int | None:
        """The most rounds of loops that a thread makes before the driver silently leaves its loops; ``None`` where all are made."""
        return None

    @property
    @abc.abstractmethod
    def device(self) -> Device:
        """The object that manages its memory; the device is started at the first access."""

    @abc.abstractmethod
    def has(self, feature: str) -> bool:
        """Whether the device has an optional feature: ``int64``, ``float64``, ``subgroup_ballot``, ``tensor_cores`` …

        With ``predicates``, what is read under a condition costs no more than what is read always. With ``unrolled_loops``, its
        compilers unroll long loops of a few rounds.
        """

    def matrices(self, dtype: str) -> tuple[int, int, int] | None:
        """Rows, columns and products of the small matrices of a type that a subgroup multiplies; ``None`` if it cannot."""
        return None

    @abc.abstractmethod
    def program(self, function: PrimFunc) -> KernelProgram:
        """Compile a kernel.

        Raises:
            CompileError: the kernel does not compile.
        """

    @abc.abstractmethod
    def loaded(self, program: KernelProgram) -> Launcher:
        """Load a program, for ``launch``."""

    def lacking(self, function: PrimFunc) -> str:
        """The optional feature that a kernel needs and the device does not have, by the driver's name; empty if there is none."""
        return ""

    def advice(self, feature: str) -> str:
        """What to do about a feature that it lacks, by the driver's name."""
        return "Run it on another device."

    def wait(self) -> None:
        """Wait for the device."""
        self.device.wait()

    def build(self, function: PrimFunc) -> Build:
        """Compile a kernel to a program."""
        return _ProgramBuild(self, self.program(function))

    def unit(self, function: PrimFunc, symbol: str) -> bytes:
        """The program's file. A program contains its own function names, so it needs no symbol."""
        return self.program(function).to_bytes()

    def is_unit(self, content: bytes, symbol: str) -> bool:
        """Whether the content is a program."""
        from tvmdml.targets._program import KernelProgram

        try:
            KernelProgram.from_bytes(content)
        except ValueError:
            return False
        return True

    def open(self, artifact: Artifact) -> Launcher:
        """Read a program, and load it on the device."""
        from tvmdml.targets._program import KernelProgram

        try:
            return self.loaded(KernelProgram.from_bytes(artifact.content))
        except ValueError as error:
            raise CompileError(f"{self.name}: a program of a pack cannot be loaded: {error}") from error

    def entry(self, opened: Launcher, symbol: str) -> Launcher:
        """The program itself."""
        return opened

    def load(self, artifact: Artifact) -> Launcher:
        """Read a program, and load it on the device.

        Raises:
            CompileError: the file is not a valid program.
        """
        from tvmdml.targets._program import KernelProgram

        try:
            return self.loaded(KernelProgram.from_bytes(artifact.content))
        except ValueError as error:
            raise CompileError(f"{self.name}: a stored kernel cannot be loaded: {error}.") from error

    def tasks(self) -> int:
        """The number of groups that keeps a large device busy."""
        return 1024

    def empty(self, shape: tuple[int, ...], dtype: Any) -> DeviceArray:
        """A new array in the device's memory."""
        return DeviceArray.empty(self.home, shape, dtype)

    def asarray(self, array: NumpyArray) -> DeviceArray:
        """A copy in the device's memory."""
        return DeviceArray.of(self.home, array)

    def place(self, array: NumpyArray) -> DeviceArray:
        """A copy with the same strides; the bytes between the elements are undefined."""
        own = DeviceArray(self.home, None, 0, array.shape, array.dtype, array.strides)
        own.memory = self.device.allocate(max(own.span, 1))
        own.write(array)
        return own

    @contextmanager
    def holding(self, buffers: Iterable[NumpyArray]) -> Iterator[Callable[[Any], Any]]:
        """Copy the buffers to the device, and back on exit. Other arrays get their own copy, one way only."""
        held = [(_start(buffer), buffer, self.asarray(buffer)) for buffer in buffers]

        def there(array: Any) -> Any:
            if not isinstance(array, np.ndarray):
                return array
            for start, buffer, copy in held:
                offset = _start(array) - start
                if 0 <= offset < buffer.nbytes:
                    return DeviceArray(self.home, copy.memory, copy.offset + offset, array.shape, array.dtype, array.strides)
            return self.place(array)

        yield there
        for _, buffer, copy in held:
            buffer[...] = copy.numpy()


class _ProgramBuild(Build):
    def __init__(self, target: DeviceTarget, program: KernelProgram) -> None:
        self._target, self._program = target, program

    def write(self, folder: Path) -> Path | None:
        path = folder / f"kernel{self._target.suffixes[0]}"
        path.write_bytes(self._program.to_bytes())
        return path

    def launcher(self) -> Launcher:
        return self._target.loaded(self._program)


def bytes_of(data: Any) -> NumpyArray:
    """The bytes of a C-contiguous buffer, without a copy.

    Raises:
        DeviceError: the buffer has gaps between its elements.
    """
    if not isinstance(data, np.ndarray):
        data = np.frombuffer(data, np.uint8) if memoryview(data).nbytes else np.empty(0, np.uint8)
    if not data.flags.c_contiguous:
        raise DeviceError(message("bytes to copy", "an array with gaps", "C-contiguous ones"))
    return data.reshape(-1).view(np.uint8)


def _start(array: NumpyArray) -> int:
    return array.__array_interface__["data"][0]
