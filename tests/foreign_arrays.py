"""Stand-ins for other libraries on a CUDA device: arrays as CuPy's, as PyTorch's, and as those that only speak a protocol."""

from __future__ import annotations

import ctypes
import gc
import math
import textwrap
import types
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import programs
import pytest

import tvmdml
from tvmdml import DeviceArray, InvalidArgument, functions, targets
from tvmdml.targets.cuda import CudaTarget, dlpack, driver, foreign
from tvmdml.targets.cuda.driver import using_stream

LEGACY, PER_THREAD = 1, 2


at_once_alone = pytest.mark.parametrize("device", ["at once"], indirect=True)
"""For what is refused before any work."""


# -- A library as CuPy is: by its own names, over memory of the driver's ----------------------------------------------


class Pointer:
    """``cupy.cuda.MemoryPointer``."""

    def __init__(self, memory: driver.Memory, offset: int = 0) -> None:
        self.mem, self.offset = memory, offset
        self.ptr, self.device_id = memory.address + offset, memory.device.info.index

    def __add__(self, offset: int) -> Pointer:
        return Pointer(self.mem, self.offset + offset)


class CupyArray:
    """``cupy.ndarray``."""

    made: int = 0
    current: int = 0

    def __init__(self, shape: Any, dtype: Any = float, memptr: Any = None, strides: Any = None) -> None:
        self.shape, self.dtype = tuple(shape), np.dtype(dtype)
        if memptr is None:
            CupyArray.made += 1
            device = driver.open_device(Guard.device)
            memptr = Pointer(device.allocate(math.prod(self.shape) * self.dtype.itemsize, CupyArray.current))
        self.data = memptr
        self.strides = np.empty(self.shape, self.dtype).strides if strides is None else tuple(strides)

    def __dlpack_device__(self) -> tuple[int, int]:
        return (2, self.data.device_id)

    def __dlpack__(self, **options: Any) -> Any:
        raise AssertionError("there is a shorter way")

    def view(self) -> DeviceArray:
        """Its elements; those who see them have to work on the library's stream."""
        self.data.mem.stream = CupyArray.current  # which the library reads
        target = targets.resolve(f"cuda:{self.data.device_id}")
        return DeviceArray(target, self.data.mem, self.data.offset, self.shape, self.dtype, self.strides)

    def get(self) -> np.ndarray:
        with using_stream(CupyArray.current):
            return self.view().numpy()

    def set(self, values: np.ndarray) -> None:
        with using_stream(CupyArray.current):
            self.view().write(values)

    def copy(self, order: str = "C") -> CupyArray:
        assert order == "C"
        found = CupyArray(self.shape, self.dtype)
        found.set(self.get())
        return found

    def __setitem__(self, key: object, source: CupyArray) -> None:
        assert key is Ellipsis
        self.set(source.get().astype(self.dtype))

    def __getitem__(self, key: Any) -> CupyArray:
        """As NumPy's basic indices."""
        grid = np.ndarray(self.shape, self.dtype, np.empty(1 << 16, np.uint8), 1 << 15, self.strides)
        part = grid[key]
        moved = part.__array_interface__["data"][0] - grid.__array_interface__["data"][0]
        return CupyArray(part.shape, self.dtype, self.data + moved, part.strides)


class Guard:
    """``cupy.cuda.Device``."""

    device = 0

    def __init__(self, index: int) -> None:
        self._index = index

    def __enter__(self) -> None:
        self._before, Guard.device = Guard.device, self._index

    def __exit__(self, *_: object) -> None:
        Guard.device = self._before


def cupy_from_dlpack(array: Any) -> CupyArray:
    found = dlpack.read(array.__dlpack__(stream=CupyArray.current or LEGACY, max_version=(1, 0)))
    memory = driver.Memory(driver.open_device(0), found.address, 1 << 40, CupyArray.current)
    memory.loan = None  # type: ignore[assignment] # it is array's
    result = CupyArray(found.shape, found.dtype, Pointer(memory), found.strides)
    result.owner = array  # type: ignore[attr-defined]
    return result


@contextmanager
def refused(monkeypatch: pytest.MonkeyPatch, *names: str) -> Iterator[None]:
    """Within it, these are not asked of a device."""

    def fail(*_: object) -> None:
        raise AssertionError("a device is asked to wait, to move or to allocate")

    with monkeypatch.context() as patch:
        for name in names:
            patch.setattr(driver.Device, name, fail)
        yield


@contextmanager
def current(stream: int) -> Iterator[None]:
    before, CupyArray.current = CupyArray.current, stream
    yield
    CupyArray.current = before


# -- A library as PyTorch is: PyTorch itself, whose memory is the driver's --------------------------------------------


def torch_library(torch: Any, monkeypatch: pytest.MonkeyPatch) -> Any:
    """A stand-in for PyTorch's CUDA tensors: its CPU tensors, of a class that says otherwise, over memory of the emulator's."""

    class CudaTensor(torch.Tensor):  # type: ignore[misc,name-defined]
        is_cuda = True

        def get_device(self) -> int:
            return 0

        def clone(self, **options: Any) -> Any:
            found = proxy.empty(self.shape, dtype=self.dtype)
            found.copy_(self)
            return found

        def resolve_neg(self) -> Any:
            return self.clone() if self.is_neg() else self

    def empty(shape: Any, dtype: Any = torch.float32, device: Any = None) -> Any:
        kind = np.dtype(str(dtype).removeprefix("torch."))
        nbytes = math.prod(shape) * kind.itemsize
        memory = driver.open_device(0).allocate(nbytes)
        raw = (ctypes.c_uint8 * max(nbytes, 1)).from_address(memory.address)
        raw.owner = memory
        proxy.made += 1
        flat = np.ctypeslib.as_array(raw)[:nbytes].view(kind)
        return torch.from_numpy(flat).reshape(tuple(shape)).as_subclass(CudaTensor)

    def make(values: Any) -> Any:
        driver.open_device(0).wait()
        values = torch.as_tensor(values)
        found = empty(values.shape, values.dtype)
        found.copy_(values)
        return found

    def from_dlpack(array: Any) -> Any:
        found = dlpack.read(array.__dlpack__(stream=LEGACY, max_version=(1, 0)))
        driver.open_device(0).wait()
        raw = (ctypes.c_uint8 * (1 << 20)).from_address(found.address)
        view = np.ndarray(found.shape, found.dtype, np.ctypeslib.as_array(raw), 0, found.strides)
        return torch.from_numpy(view)

    proxy: Any = types.ModuleType("a stand-in for torch")
    vars(proxy).update(vars(torch))
    proxy.empty, proxy.from_dlpack, proxy.tensor, proxy.made = empty, from_dlpack, make, 0
    proxy.current, proxy.CudaTensor = 0, CudaTensor
    proxy.device = lambda *name: name
    proxy._C = types.SimpleNamespace(_cuda_getCurrentRawStream=lambda index: proxy.current)
    monkeypatch.setattr(foreign, "_libraries", {CudaTensor: foreign._Torch(proxy)})
    monkeypatch.setattr(functions, "_plans", {})
    return proxy


def seen(tensor: Any) -> np.ndarray:
    """The elements of a stand-in's tensor."""
    driver.open_device(0).wait()
    import torch

    return np.array(tensor.as_subclass(torch.Tensor).numpy())


# -- Libraries that only speak ------------------------------------------------------------------------------------


class Speaks:
    """An array that speaks DLPack, and nothing else."""

    taken: Any = None

    def __init__(self, array: DeviceArray) -> None:
        self.array = array

    def __dlpack__(self, *, stream: Any = None, max_version: Any = None) -> Any:
        Speaks.taken = stream
        return self.array.__dlpack__(stream=stream, max_version=max_version)

    def __dlpack_device__(self) -> tuple[int, int]:
        return self.array.__dlpack_device__()


class SpeaksOld(Speaks):
    """The same, of the older kind."""

    def __dlpack__(self, *, stream: Any = None) -> Any:  # type: ignore[override]
        return self.array.__dlpack__(stream=stream)


class Shows:
    """An array that has the interface, and nothing else."""

    def __init__(self, array: DeviceArray, **changes: Any) -> None:
        self.array, self.changes = array, changes

    @property
    def __cuda_array_interface__(self) -> dict[str, Any]:
        return {**self.array.__cuda_array_interface__, **self.changes}


SPEAKERS = [Speaks, SpeaksOld, Shows]


def on(device: CudaTarget, values: Any) -> DeviceArray:
    found = tvmdml.asarray(np.asarray(values), device)
    assert isinstance(found, DeviceArray)
    return found


VALUES = np.array([[2.5, -1.5, 0.5, 7], [3.5, 0, -0.4, 1e9], [0, 0, 0.75, -0.5]], np.float32)


LAYOUTS = {
    "transposed": lambda x: x.T,
    "padded": lambda x: x[:, 1:3],
    "spread": lambda x: x[::2, ::3],
    "repeated": lambda x: x[:1].expand(5, 4) if hasattr(x, "expand") else np.broadcast_to(x[:1], (5, 4)),
    "one element": lambda x: x[1, 2],
    "empty": lambda x: x[:, :0],
    "many ones": lambda x: x[None, :, None],
}


def assert_calls(x: Any, values: np.ndarray, kind: type, get: Callable[[Any], np.ndarray]) -> None:
    results, expected = calls(x), calls(values)
    assert tuple(results.pop()) == expected.pop()
    for result, wanted in zip(results, expected, strict=True):
        assert isinstance(result, kind)
        assert np.array_equal(get(result), wanted)
        assert get(result).dtype == wanted.dtype


def calls(x: Any) -> list[Any]:
    """Every function on an array, all results."""
    values, indices = tvmdml.top_k(x, 2, axis=-1, index_dtype="int64")
    count, rows = tvmdml.nonzero_coordinates(x, trim=False)
    found = tvmdml.nonzero_coordinates(x, index_dtype="int64")
    return [tvmdml.round(x), values, indices, count, found, tvmdml.diagonal_matrix(x, value=3), rows.shape]


def copy_on(device: driver.Device, stream: int, address: int, into: np.ndarray) -> None:
    """What another library does on a stream."""
    with device.context.entered():
        assert device.cuda.cuMemcpyDtoHAsync_v2(into.ctypes.data, address, into.nbytes, stream) == 0
        assert device.cuda.cuStreamSynchronize(stream) == 0


def lent(generation: int = 1) -> int:
    gc.collect(generation)  # of all that there is, a collection takes long
    return len(dlpack._lent)


def run(code: str, **variables: str) -> str:
    """What a program of its own prints that finds this file too."""
    return programs.python(f"import sys\nsys.path.append({str(Path(__file__).parent)!r})\n{textwrap.dedent(code)}", **variables)


class Consumer:
    """Who takes a capsule as every library does: by C, and gives it back by a call of the deleter, whenever."""

    def __init__(self, capsule: Any) -> None:
        self.said = dlpack.read(capsule)
        names = [b"used_dltensor", b"used_dltensor_versioned"]
        self.versioned = bool(dlpack._is_valid(capsule, dlpack._NAMES[1]))
        address = dlpack._pointer(capsule, dlpack._NAMES[self.versioned])
        self._name = ctypes.create_string_buffer(names[self.versioned])
        dlpack._keep_for_ever(self._name)
        rename = ctypes.PYFUNCTYPE(ctypes.c_int, ctypes.py_object, ctypes.c_void_p)(("PyCapsule_SetName", ctypes.pythonapi))
        assert rename(capsule, ctypes.addressof(self._name)) == 0
        held = (dlpack._Versioned if self.versioned else dlpack._Managed).from_address(address)
        self.release = lambda: ctypes.CFUNCTYPE(None, ctypes.c_void_p)(held.deleter)(address)


class Says:
    """An array that gives what it is told to, as DLPack."""

    def __init__(self, capsule: Callable[[], Any], device: Any = (2, 0)) -> None:
        self.capsule, self.device = capsule, device

    def __dlpack__(self, **_: Any) -> Any:
        return self.capsule()

    def __dlpack_device__(self) -> Any:
        return self.device


def capsule(array: DeviceArray, versioned: bool, changes: dict[str, Any]) -> Any:
    """A capsule for an array that has other fields."""
    changes = dict(changes)
    shape, strides = changes.pop("sizes", array.shape), changes.pop("steps", array.strides)
    made = dlpack.make(array, array.memory.address, 0, shape, strides, array.dtype, versioned)
    held = (dlpack._Versioned if versioned else dlpack._Managed).from_address(dlpack._pointer(made, dlpack._NAMES[versioned]))
    for name, value in changes.items():
        setattr(held.tensor, name, value)
    return made


def assert_refused(x: DeviceArray, array: Any, match: str) -> None:
    """An array is refused wherever one is taken, in the house form, and the device works on."""
    for take in (
        lambda: tvmdml.round(array),
        lambda: tvmdml.round(x, out=array),
        lambda: tvmdml.top_k(array, 1),
        lambda: tvmdml.asarray(array, x.device),
    ):
        with pytest.raises(InvalidArgument, match=match) as caught:
            take()
        assert "; allowed: " in str(caught.value)
    assert np.array_equal(tvmdml.round(x).numpy(), np.rint(VALUES))
