"""Arrays of other libraries on CUDA devices: PyTorch, CuPy, and all with DLPack or ``__cuda_array_interface__``.

Kernels work directly on their memory, on the library's current stream. Results for PyTorch and CuPy use memory that the library
allocates. Results for other libraries use tvmdml's memory, which the library takes over through DLPack.
"""

from __future__ import annotations

import abc
import ctypes
import itertools
import math
import operator
import sys
import weakref
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager, suppress
from typing import Any, TypeAlias

import numpy as np

from tvmdml import targets
from tvmdml.errors import InvalidArgument, Unsupported, message
from tvmdml.targets.cuda import CudaTarget, dlpack, driver, header, loader
from tvmdml.targets.cuda.lending import dlpack_device as dlpack_device
from tvmdml.targets.cuda.lending import handle, number
from tvmdml.targets.cuda.lending import interface as interface
from tvmdml.targets.cuda.lending import to_dlpack as to_dlpack
from tvmdml.tensors import BYTE_TYPES, NO_BFLOAT16, TYPE_NAMES, arrays
from tvmdml.tensors.arrays.device_array import DeviceArray, extent, packed

_Dtype: TypeAlias = "np.dtype[Any]"
_DEVICE_ORDINAL = 9
"""``CU_POINTER_ATTRIBUTE_DEVICE_ORDINAL``."""
_NO_ADDRESS = 1
"""``CUDA_ERROR_INVALID_VALUE``."""
_MAX_RANK = dlpack.MAX_RANK
_MAX_BYTES = 2**63 - 1
_ADDRESSES = 2**64


class ForeignMemory:
    """Another library's memory, kept alive.

    Attributes:
        address: the start of its array; with negative strides, the lowest element's address.
        device: the opened device.
        library: the interface to the library.
        owner: the library's array.
        writeable: whether it may be written to.
        shape: that array's shape.
        strides: that array's strides, in bytes.
        dtype: that array's data type.
        fixed: the stream to use; ``None`` for the library's current stream.
    """

    __slots__ = ("__weakref__", "address", "device", "dtype", "fixed", "library", "owner", "shape", "strides", "writeable")

    def __init__(
        self,
        library: ArrayLibrary,
        owner: Any,
        address: int,
        device: driver.Device,
        shape: tuple[int, ...],
        strides: tuple[int, ...],
        dtype: _Dtype,
        writeable: bool = True,
        fixed: int | None = None,
    ) -> None:
        self.library, self.owner, self.address, self.device = library, owner, address, device
        self.shape, self.strides, self.dtype, self.writeable, self.fixed = shape, strides, dtype, writeable, fixed

    @property
    def nbytes(self) -> int:
        """The size in bytes."""
        low, high = extent(self.shape, self.strides, self.dtype.itemsize)
        return high - low

    def stream(self) -> int:
        """The stream to use now."""
        return self.library.stream(self.device.info.index) if self.fixed is None else self.fixed

    def working(self) -> AbstractContextManager[None]:
        """A context manager: work inside is submitted to that stream."""
        return driver.using_stream(self.stream())

    def room(self, nbytes: int) -> Any:
        """Temporary memory from the library."""
        target = _HOMES[self.device.info.index][0]
        return self.library.empty(target, (nbytes,), np.dtype(np.uint8)).memory

    @contextmanager
    def together(self, others: Sequence[ForeignMemory]) -> Iterator[None]:
        """Inside, one stream also serves the others' memory: it first waits for their streams, and they wait for it afterwards."""
        stream = self.stream()
        apart = {other.stream() for other in others} - {stream}
        for other in apart:
            self.device.follow(stream, other)
        yield
        for other in apart:
            self.device.follow(other, stream)


class ArrayLibrary(abc.ABC):
    """A library with arrays on CUDA devices."""

    name: str
    """The library's name, for messages."""
    one_stream: bool = True
    """Whether all its arrays on a device use the stream that is current there."""

    @abc.abstractmethod
    def view(self, array: Any, where: str, write: bool) -> DeviceArray:
        """A view of an array's memory.

        Raises:
            InvalidArgument: the memory is not accessible, or not writable.
        """

    @abc.abstractmethod
    def stream(self, index: int) -> int:
        """The library's current stream on a device."""

    @abc.abstractmethod
    def empty(self, target: CudaTarget, shape: tuple[int, ...], dtype: _Dtype) -> DeviceArray:
        """A new packed array for a result."""

    @abc.abstractmethod
    def restore(self, array: DeviceArray) -> Any:
        """The library's own array for the result of ``empty`` or ``view``, or for a part of it."""

    @abc.abstractmethod
    def packed(self, array: DeviceArray) -> DeviceArray:
        """A packed copy, made on the device.

        Raises:
            InvalidArgument: the library cannot make one.
        """

    @abc.abstractmethod
    def assign(self, into: DeviceArray, source: DeviceArray) -> None:
        """Copy elements on the device, and convert them to the other data type. One of the arrays is this library's.

        Raises:
            InvalidArgument: the library cannot do this.
        """

    def _foreign(self, array: DeviceArray, take: Callable[[DeviceArray], Any]) -> Any:
        """The library's own array for any array on the same device."""
        return self.restore(array) if array.library is self else take(array)


def view(array: Any, where: str, write: bool) -> DeviceArray:
    """A view of another library's array on a CUDA device.

    Raises:
        InvalidArgument: its memory is not accessible.
        DeviceError: the device is unusable.
    """
    library = _libraries.get(type(array))
    if library is None:
        library = _others.get(type(array)) or _library(array)
    return library.view(array, where, write)


# -- PyTorch ------------------------------------------------------------------------------------------------------


class _Torch(ArrayLibrary):
    name = "PyTorch"

    def __init__(self, torch: Any) -> None:
        self._torch, self._empty, self._devices = torch, torch.empty, _Devices(torch)
        names = [*(kind.tvm for kind in BYTE_TYPES), "bool"]  # PyTorch has unsigned types since 2.3
        pairs = [(getattr(torch, name), np.dtype(name)) for name in names if hasattr(torch, name)]
        self._numpy = {kind: (dtype, dtype.itemsize) for kind, dtype in pairs}
        self._own = {dtype: kind for kind, dtype in pairs}
        self._raw_stream = getattr(torch._C, "_cuda_getCurrentRawStream", None) or (
            lambda index: torch.cuda.current_stream(index).cuda_stream
        )

    def view(self, tensor: Any, where: str, write: bool) -> DeviceArray:
        try:
            dtype, itemsize = self._numpy[tensor.dtype]
            if tensor.is_neg():  # an input: it must not be written to
                tensor = tensor.resolve_neg()
            shape, strides = tuple(tensor.shape), tuple([step * itemsize for step in tensor.stride()])
            address, index = tensor.data_ptr(), tensor.get_device()
        except KeyError:
            given = f"a PyTorch tensor {tensor.dtype} on {tensor.device}"
            advice = NO_BFLOAT16 if "bfloat16" in given else "Convert it first."
            raise InvalidArgument(message(where, given, TYPE_NAMES, advice)) from None
        except (RuntimeError, TypeError) as error:  # sparse, without memory …
            raise self._hidden(tensor, where, error) from error
        if not address and 0 not in shape:
            raise self._hidden(tensor, where, "it has no memory of its own")
        target, device = _HOMES[index]
        return DeviceArray(target, ForeignMemory(self, tensor, address, device, shape, strides, dtype), 0, shape, dtype, strides)

    def stream(self, index: int) -> int:
        return handle(self._raw_stream(index))

    def empty(self, target: CudaTarget, shape: tuple[int, ...], dtype: _Dtype) -> DeviceArray:
        kind = self._own.get(dtype)
        if kind is None:
            advice = "Ask for results of a signed type where that can be chosen, or update PyTorch."
            raise Unsupported(message("a result", f"data type {dtype}", "PyTorch's own types", advice))
        index = number(target)
        tensor, strides = self._empty(shape, dtype=kind, device=self._devices[index]), packed(shape, dtype.itemsize)
        memory = ForeignMemory(self, tensor, tensor.data_ptr(), _HOMES[index][1], shape, strides, dtype)
        return DeviceArray(target, memory, 0, shape, dtype, strides)

    def restore(self, array: DeviceArray) -> Any:
        memory, tensor = array.memory, array.memory.owner
        if array.dtype != memory.dtype:
            tensor = tensor.view(self._own[array.dtype])
        if array.shape == memory.shape and array.strides == memory.strides and not array.offset:
            return tensor
        itemsize = array.itemsize
        start = tensor.storage_offset() + array.offset // itemsize
        return tensor.as_strided(array.shape, [step // itemsize for step in array.strides], start)

    def packed(self, array: DeviceArray) -> DeviceArray:
        torch = self._torch
        return self.view(self.restore(array).clone(memory_format=torch.contiguous_format), "a copy", False)

    def assign(self, into: DeviceArray, source: DeviceArray) -> None:
        take = self._torch.from_dlpack
        self._foreign(into, take).copy_(self._foreign(source, take))

    def _hidden(self, tensor: Any, where: str, why: object) -> InvalidArgument:
        given = f"a {type(tensor).__name__} {tensor.dtype} on {tensor.device} whose memory is not accessible ({why})"
        return InvalidArgument(message(where, given, "a tensor of strided elements in memory"))


class _Devices(dict[int, Any]):
    """PyTorch's device object, by the device's number."""

    def __init__(self, torch: Any) -> None:
        self._torch = torch

    def __missing__(self, index: int) -> Any:
        self[index] = found = self._torch.device("cuda", index)
        return found


# -- CuPy ---------------------------------------------------------------------------------------------------------


class _Cupy(ArrayLibrary):
    name = "CuPy"

    def __init__(self, cupy: Any) -> None:
        self._cupy, self._current_stream = cupy, cupy.cuda.get_current_stream

    def view(self, array: Any, where: str, write: bool) -> DeviceArray:
        data, dtype, shape, strides = array.data, array.dtype, array.shape, array.strides
        target, device = _HOMES[data.device_id]
        return _placed(ForeignMemory(self, array, data.ptr, device, shape, strides, dtype), target)

    def stream(self, index: int) -> int:
        return handle(self._current_stream(index).ptr)

    def empty(self, target: CudaTarget, shape: tuple[int, ...], dtype: _Dtype) -> DeviceArray:
        with self._on(target):
            return self.view(self._cupy.empty(shape, dtype), "a result", True)

    def restore(self, array: DeviceArray) -> Any:
        memory, owner = array.memory, array.memory.owner
        if (array.shape, array.strides, array.dtype) == (memory.shape, memory.strides, memory.dtype) and not _moved(array):
            return owner
        begins = owner.data + (memory.address + array.offset - owner.data.ptr)
        with self._on(array.target):
            return self._cupy.ndarray(array.shape, array.dtype, memptr=begins, strides=array.strides)

    def packed(self, array: DeviceArray) -> DeviceArray:
        with self._on(array.target):
            return self.view(self.restore(array).copy(order="C"), "a copy", True)

    def assign(self, into: DeviceArray, source: DeviceArray) -> None:
        take = self._cupy.from_dlpack
        with self._on(into.target):
            self._foreign(into, take)[...] = self._foreign(source, take)

    def _on(self, target: Any) -> Any:
        return self._cupy.cuda.Device(number(target))


# -- Other libraries ----------------------------------------------------------------------------------------------


class _Other(ArrayLibrary):
    """A library known only by its array protocols. Results become its own arrays if it can import them."""

    one_stream = False

    def __init__(self, array: Any) -> None:
        self.name = type(array).__module__.partition(".")[0]
        self._take = arrays.importer(array, "from_dlpack") or arrays.importer(array, "as_cuda_array")

    def view(self, array: Any, where: str, write: bool) -> DeviceArray:
        # DLPack has more information about order, and the interface about whether an array is writable.
        shows = hasattr(array, "__cuda_array_interface__")
        if shows and (write or not hasattr(array, "__dlpack_device__")):
            return self._by_interface(array, where)
        return self._by_dlpack(array, where)

    def stream(self, index: int) -> int:
        return driver.open_device(index).stream()

    def empty(self, target: CudaTarget, shape: tuple[int, ...], dtype: _Dtype) -> DeviceArray:
        return target.empty(shape, dtype)

    def restore(self, array: DeviceArray) -> Any:
        return array if self._take is None else self._take(array)  # type: ignore[arg-type] # it has DLPack

    def packed(self, array: DeviceArray) -> DeviceArray:
        given = f"an array of {self.name} with strides {array.strides} in bytes at address {array.memory.address + array.offset:#x}"
        allowed = "strides from 0 up that are multiples of the element's size, as the address is"
        raise InvalidArgument(message(f"{self.name} array", given, allowed, "Make a packed copy of it first."))

    def assign(self, into: DeviceArray, source: DeviceArray) -> None:
        kinds = " and ".join(f"{array.dtype} with strides {array.strides}" for array in (source, into))
        raise InvalidArgument(message(f"{self.name} array", f"a copy between {kinds}", "packed arrays of one type"))

    def _by_dlpack(self, array: Any, where: str) -> DeviceArray:
        kind, index = (operator.index(number) for number in array.__dlpack_device__())
        target, device = _HOMES[index]
        stream = device.stream()
        try:
            capsule = array.__dlpack__(stream=stream or header.CU_STREAM_LEGACY, max_version=(1, 0))
        except TypeError:
            capsule = array.__dlpack__(stream=stream or header.CU_STREAM_LEGACY)
        found = dlpack.read(capsule)
        if found.device != (kind, index):
            given = f"a capsule of device {found.device} from an array of device {(kind, index)}"
            raise InvalidArgument(message(where, given, "the same device in both", _ITS_LIBRARY))
        shape, strides = _layout(where, found.address, found.shape, found.strides, found.dtype)
        there = _index(where, found.address, shape, index)
        if there != index:
            if kind != dlpack.CUDA_MANAGED:  # managed memory may be reported on any device
                given = f"an array of device {index} with memory of device {there}"
                raise InvalidArgument(message(where, given, "memory of the array's device", _ITS_LIBRARY))
            target, device = _HOMES[there]
        held = (array, capsule)
        memory = ForeignMemory(self, held, found.address, device, shape, strides, found.dtype, found.writeable, stream)
        return _placed(memory, target)

    def _by_interface(self, array: Any, where: str) -> DeviceArray:
        said = array.__cuda_array_interface__
        if said.get("mask") is not None:
            raise InvalidArgument(message(where, "a masked array", "one without a mask"))
        dtype = _typestr(where, said["typestr"])
        address, read_only = said["data"]
        try:
            address = 0 if address is None else operator.index(address)
        except TypeError:
            given = f"memory address {address!r}"
            raise InvalidArgument(message(where, given, "an integer", _ITS_LIBRARY)) from None
        shape, strides = _layout(where, address, said["shape"], said.get("strides"), dtype)
        target, device = _HOMES[_index(where, address, shape, 0)]
        stream = said.get("stream")
        try:
            stream = device.stream() if stream is None else handle(operator.index(stream))
            if not 0 <= stream < _ADDRESSES:
                raise TypeError
        except TypeError:
            allowed = "None, 1 (the legacy default stream), 2 (the per-thread one), or a stream's handle"
            raise InvalidArgument(message(where, f"stream {said['stream']!r}", allowed, _ITS_LIBRARY)) from None
        return _placed(ForeignMemory(self, array, address, device, shape, strides, dtype, not read_only, stream), target)


_ITS_LIBRARY = "Ask its library for another array, or copy it to the CPU first."
"""The advice for an array with an inconsistent description."""


def _typestr(where: str, typestr: Any) -> _Dtype:
    """The element type from the interface."""
    dtype = None
    if isinstance(typestr, str):  # NumPy would convert None to a type too
        with suppress(TypeError, ValueError, SyntaxError):
            dtype = np.dtype(typestr)
    if dtype is None or dtype.kind not in "iufcb":
        raise InvalidArgument(message(where, f"elements {typestr!r}", TYPE_NAMES, "Convert it first."))
    if not dtype.isnative:
        raise InvalidArgument(message(where, f"elements {dtype.str}", "the machine's byte order", "Convert it first."))
    return dtype


def _layout(where: str, address: int, shape: Any, strides: Any, dtype: _Dtype) -> tuple[tuple[int, ...], tuple[int, ...]]:
    """The checked shape, and strides in bytes."""
    itemsize = dtype.itemsize
    try:
        sizes = _integers(shape)
        steps = packed(sizes, itemsize) if strides is None else _integers(strides)
    except TypeError:
        good = False
    else:
        good = (
            len(sizes) == len(steps) <= _MAX_RANK
            and min(sizes, default=0) >= 0
            and itemsize * math.prod([size or 1 for size in sizes]) <= _MAX_BYTES
            and all(abs(step) <= _MAX_BYTES for step in steps)
        )
    if good:
        low, high = extent(sizes, steps, itemsize)
        good = high - low <= _MAX_BYTES and 0 <= address + low <= address + high <= _ADDRESSES
    if not good:
        given = f"shape {shape!r} with strides {strides!r} in bytes at address {address:#x}"
        allowed = f"up to {_MAX_RANK} sizes from 0 up, and as many strides, all integers, within the memory of a device"
        raise InvalidArgument(message(where, given, allowed, _ITS_LIBRARY))
    return sizes, steps


def _integers(given: Any) -> tuple[int, ...]:
    """A tuple of integers, no longer than an array can have: the iterable may be endless."""
    return tuple([operator.index(one) for one in itertools.islice(given, _MAX_RANK + 1)])


# -- Shared helpers -----------------------------------------------------------------------------------------------


class _Homes(dict[int, "tuple[CudaTarget, driver.Device]"]):
    """A device's target and the opened device, by the device's number."""

    def __missing__(self, index: int) -> tuple[CudaTarget, driver.Device]:
        target = targets.resolve(f"cuda:{index}")
        assert isinstance(target, CudaTarget)
        self[index] = found = target, target.device
        return found


_HOMES = _Homes()
_libraries: dict[type, ArrayLibrary] = {}
"""PyTorch and CuPy, by their array types."""
_others: weakref.WeakKeyDictionary[type, ArrayLibrary] = weakref.WeakKeyDictionary()
"""Other libraries, by array type. Weak keys, because types can be created and dropped at any time."""
_known: dict[Any, ArrayLibrary] = {}
"""The same libraries, by module."""


def _library(array: Any) -> ArrayLibrary:
    own = False
    for name, attribute, make in (("torch", "Tensor", _Torch), ("cupy", "ndarray", _Cupy)):
        module = sys.modules.get(name)
        kind = getattr(module, attribute, None)
        if kind is not None and isinstance(array, kind):
            found = _known.get(module)
            if found is None:
                found = _known[module] = make(module)
            own = type(array) is kind or type(array).__module__.partition(".")[0] == name
            if own and name == "cupy":
                arrays.ROOM_OF_TYPE[type(array)] = "cuda"
            break
    else:
        found = _Other(array)
    (_libraries if own else _others)[type(array)] = found
    return found


def _placed(memory: ForeignMemory, target: CudaTarget) -> DeviceArray:
    """The whole array in a piece of foreign memory, of which only the first element's address is known."""
    low = sum((n - 1) * step for n, step in zip(memory.shape, memory.strides, strict=True) if step < 0 < n)
    memory.address += low
    return DeviceArray(target, memory, -low, memory.shape, memory.dtype, memory.strides)


def _moved(array: DeviceArray) -> bool:
    """Whether it begins elsewhere than the library's own array."""
    return bool(array.memory.address + array.offset != array.memory.owner.data.ptr)


def _index(where: str, address: int, shape: tuple[int, ...], otherwise: int) -> int:
    """The device that an address belongs to. An array without elements may have any address."""
    if not address:
        if 0 not in shape:
            given = "an array whose memory is not accessible (it has no memory of its own)"
            raise InvalidArgument(message(where, given, "an array of elements in memory", _ITS_LIBRARY))
        return otherwise
    found, ask = ctypes.c_int(), loader.cuda().cuPointerGetAttribute
    code = ask(ctypes.byref(found), _DEVICE_ORDINAL, address)
    if code == header.CUDA_ERROR_INVALID_CONTEXT:  # any context is enough
        with driver.open_device(otherwise).context.entered():
            code = ask(ctypes.byref(found), _DEVICE_ORDINAL, address)
    if code == _NO_ADDRESS or (not code and found.value < 0):
        if 0 in shape:
            return otherwise
        given = f"address {address:#x}, not in a CUDA device's memory"
        raise InvalidArgument(message(where, given, "memory of a CUDA device", _ITS_LIBRARY))
    loader.check(code, f"asking which device has address {address:#x}")
    return found.value
