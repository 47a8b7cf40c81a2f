"""``DeviceArray``: an array in a device's own memory, which functions and compiled operators take and give without moving it."""

from __future__ import annotations

import functools
import importlib
import itertools
import math
import operator
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, nullcontext
from typing import TYPE_CHECKING, Any, Literal, NamedTuple, Protocol, overload

import numpy as np

from tvmdml.errors import InvalidArgument, message, safe_repr
from tvmdml.tensors import native

if TYPE_CHECKING:
    from tvmdml.arrays import NumpyArray
    from tvmdml.targets import Target


class Device(Protocol):
    """What holds memory. Everything happens in the order it was asked for; only ``download`` waits."""

    def allocate(self, nbytes: int) -> Any:
        """A piece of memory of at least so many bytes."""

    def upload(self, memory: Any, offset: int, data: Any) -> None:
        """Write bytes."""

    def download(self, memory: Any, offset: int, into: Any) -> None:
        """Read bytes, when all that was asked for before has been done."""

    def wait(self) -> None:
        """Return when all that was asked for has been done."""

    def copy(self, source: Any, source_offset: int, target: Any, target_offset: int, nbytes: int) -> None:
        """Copy bytes from one piece of memory to another."""


class Flags(NamedTuple):
    """What NumPy says about an array's memory."""

    aligned: bool = True
    writeable: bool = True
    c_contiguous: bool = True


class DeviceArray:
    """An array on a device: ``asarray`` and ``empty`` make one, and functions given one return one.

    It has NumPy's ``shape``, ``dtype`` and ``strides``; ``numpy()`` copies it back. Slices share its memory, which is given back
    when the array and all its slices are dropped. Work is done in the order it was asked for, and reading waits for it.

    On CUDA, other libraries take it without a copy (``torch.from_dlpack(x)``, ``cupy.asarray(x)``), and ``asarray`` takes theirs.

    A slice that does not begin on a multiple of the device's alignment is copied, on the device, for each call. Slices with gaps
    between their elements are moved whole: threads must not write to interleaved ones at the same time. ``==`` is identity.
    """

    __slots__ = ("__weakref__", "dtype", "memory", "offset", "shape", "strides", "target")

    def __init__(
        self,
        target: Target,
        memory: Any,
        offset: int,
        shape: tuple[int, ...],
        dtype: np.dtype[Any],
        strides: tuple[int, ...] | None = None,
    ) -> None:
        """Not for callers: ``asarray``, ``empty`` and functions make them."""
        self.target = target
        self.memory = memory
        self.offset = offset
        self.shape = shape
        self.dtype = dtype
        self.strides = packed(shape, dtype.itemsize) if strides is None else strides

    @classmethod
    def empty(cls, target: Target, shape: tuple[int, ...], dtype: Any) -> DeviceArray:
        """Not for callers, who have ``tvmdml.empty``: a packed array whose content is undefined.

        Raises:
            DeviceError: the device has not enough memory.
        """
        dtype = np.dtype(dtype)
        memory = _device(target).allocate(max(math.prod(shape) * dtype.itemsize, 1))
        return cls(target, memory, 0, tuple(shape), dtype)

    @classmethod
    def of(cls, target: Target, array: NumpyArray) -> DeviceArray:
        """Not for callers, who have ``tvmdml.asarray``: a packed copy of a NumPy array."""
        found = cls.empty(target, array.shape, native(array.dtype))
        found.write(array)
        return found

    # -- What it looks like ---------------------------------------------------------------------------------------

    @property
    def device(self) -> str:
        """The device's name, such as ``vulkan:0``."""
        return self.target.name

    @property
    def ndim(self) -> int:
        """How many dimensions it has."""
        return len(self.shape)

    @property
    def size(self) -> int:
        """How many elements it has."""
        return math.prod(self.shape)

    @property
    def itemsize(self) -> int:
        """Bytes of an element."""
        return self.dtype.itemsize

    @property
    def nbytes(self) -> int:
        """Bytes of all elements."""
        return self.size * self.itemsize

    @property
    def span(self) -> int:
        """Bytes from the beginning of the lowest element to the end of the highest, with the gaps between them."""
        low, high = extent(self.shape, self.strides, self.itemsize)
        return high - low

    @property
    def start(self) -> tuple[object, int]:
        """Where its first element lies: in which space of addresses, and at which of them."""
        address = getattr(self.memory, "address", None)
        return (self.memory, self.offset) if address is None else (None, address + self.offset)

    @property
    def is_foreign(self) -> bool:
        """Whether its memory is another library's."""
        return hasattr(self.memory, "owner")

    @property
    def library(self) -> Any:
        """How to talk to the library whose memory it is; ``None`` for tvmdml's own."""
        return getattr(self.memory, "library", None)

    @property
    def aligned(self) -> bool:
        """Whether it begins on a multiple of its elements' size. Memory of tvmdml's own does; others' has an address."""
        memory = self.memory
        return not hasattr(memory, "owner") or (memory.address + self.offset) % self.dtype.itemsize == 0

    @property
    def writeable(self) -> bool:
        """Whether it may be written to: another library may say no."""
        return bool(getattr(self.memory, "writeable", True))

    @property
    def flags(self) -> Flags:
        """As NumPy has them."""
        return Flags(self.aligned, self.writeable, self._packed)

    @property
    def _packed(self) -> bool:
        own = packed(self.shape, self.itemsize)
        if own == self.strides:
            return True
        return not self.size or all(n == 1 or a == b for n, a, b in zip(self.shape, self.strides, own, strict=True))

    def __len__(self) -> int:
        """The first dimension's size."""
        if not self.shape:
            raise TypeError("len() of a DeviceArray without dimensions")
        return self.shape[0]

    def __repr__(self) -> str:
        """Device, type and shape; the elements stay where they are."""
        return f"<DeviceArray {self.dtype} {self.shape} on {self.device}>"

    # -- Moving elements ------------------------------------------------------------------------------------------

    def numpy(self) -> NumpyArray:
        """A copy in NumPy's memory. Waits for the work that the array comes from.

        Raises:
            DeviceError: that work failed, or the device is lost.
        """
        if self._packed:
            whole: NumpyArray = np.empty(self.shape, self.dtype)
            if whole.size:
                with _working(self.memory):
                    _device(self.target).download(self.memory, self.offset, whole.reshape(-1).view(np.uint8))
            return whole
        return np.array(self._held()[1])

    def _held(self) -> tuple[NumpyArray, NumpyArray]:
        """A copy of its memory from the lowest element to the highest, and the array in that."""
        low, high = extent(self.shape, self.strides, self.itemsize)
        held = np.empty(high - low, np.uint8)
        with _working(self.memory):
            _device(self.target).download(self.memory, self.offset + low, held)
        return held, np.ndarray(self.shape, self.dtype, buffer=held, offset=-low, strides=self.strides)

    def __array__(self, dtype: Any = None, copy: bool | None = None) -> NumpyArray:
        """``numpy.asarray(x)`` is ``x.numpy()``."""
        if copy is False:
            raise ValueError("a DeviceArray's elements are not in NumPy's memory: they have to be copied")
        return self.numpy() if dtype is None else self.numpy().astype(dtype)

    def tolist(self) -> Any:
        """The elements as Python's numbers, in lists."""
        return self.numpy().tolist()

    def item(self) -> Any:
        """The only element, as Python's number."""
        return self.numpy().item()

    def __int__(self) -> int:
        """The only element, as an integer."""
        return int(self.item())

    def __float__(self) -> float:
        """The only element, as a float."""
        return float(self.item())

    def __bool__(self) -> bool:
        """The only element's truth."""
        return bool(self.item())

    def __index__(self) -> int:
        """The only element, of an integer type."""
        return operator.index(self.numpy().reshape(())[()])

    def __iter__(self) -> Iterator[DeviceArray]:
        """Slices along the first dimension."""
        return (self[i] for i in range(len(self)))

    __contains__ = None  # what is equal is a question for NumPy
    __hash__ = object.__hash__

    def __copy__(self) -> DeviceArray:
        """As NumPy's, a copy has memory of its own."""
        return self.copy()

    def __deepcopy__(self, memo: object) -> DeviceArray:
        """As NumPy's, a copy has memory of its own."""
        return self.copy()

    def __reduce__(self) -> Any:
        """No other process reaches a device's memory."""
        raise TypeError("a DeviceArray cannot be pickled: send x.numpy(), and have tvmdml.asarray move it to a device there")

    def view(self, dtype: Any) -> DeviceArray:
        """The same bits as elements of another type of the same size.

        Raises:
            InvalidArgument: its size is another.
        """
        allowed = f"types of {self.itemsize} bytes, as {self.dtype} has"
        try:
            kind = np.dtype(dtype)
        except (TypeError, ValueError, SyntaxError):
            raise InvalidArgument(message("DeviceArray.view", safe_repr(dtype), allowed)) from None
        if kind.itemsize != self.itemsize or kind.hasobject:  # whose bytes are addresses
            raise InvalidArgument(message("DeviceArray.view", f"{kind}", allowed))
        return DeviceArray(self.target, self.memory, self.offset, self.shape, kind, self.strides)

    def copy(self) -> DeviceArray:
        """A packed copy on the same device, in memory of the same library."""
        make = DeviceArray.empty if self.library is None else self.library.empty
        found: DeviceArray = make(self.target, self.shape, self.dtype)
        found.write(self)
        return found

    def write(self, source: Any) -> None:
        """Take over the elements of an array of the same shape, cast to this array's type within its kind (int64 to int32).

        Between packed arrays of one device, of one type, nothing leaves the device, nor where one of two there is PyTorch's or
        CuPy's. Else an array with gaps is read, changed and written back: what others write into the gaps meanwhile is lost.

        Args:
            source: a DeviceArray, NumPy's, PyTorch's, CuPy's, or any that speaks DLPack.

        Raises:
            InvalidArgument: it is no array, or of another shape or kind of type; or this one is read-only.
        """
        from tvmdml import arrays

        source = arrays.view(source, "DeviceArray.write source")
        if not np.can_cast(source.dtype, self.dtype, "same_kind"):
            allowed = f"types that cast to {self.dtype} within their kind"
            raise InvalidArgument(
                message("DeviceArray.write", f"elements of {source.dtype}", allowed, "Convert them with astype first.")
            )
        if tuple(source.shape) != self.shape:
            raise InvalidArgument(message("DeviceArray.write", f"shape {tuple(source.shape)}", str(self.shape)))
        if not self.writeable:
            raise InvalidArgument(message("DeviceArray.write", "a read-only array to write to", "a writable one"))
        if not self.size:
            return
        device = _device(self.target)
        if isinstance(source, DeviceArray):
            if source.target == self.target:
                if source.dtype == self.dtype and source._packed and self._packed:
                    with _working(self.memory, source.memory):
                        device.copy(source.memory, source.offset, self.memory, self.offset, self.nbytes)
                    return
                library = self.library or source.library
                if library is not None:
                    library.assign(self, source)
                    return
            source = source.numpy()
        if self._packed:
            ready = np.ascontiguousarray(source.astype(self.dtype, copy=False))
            with _working(self.memory):
                device.upload(self.memory, self.offset, ready.reshape(-1).view(np.uint8))
            return
        held, elements = self._held()  # what lies between the elements stays as it is
        elements[...] = source
        with _working(self.memory):
            device.upload(self.memory, self.offset + extent(self.shape, self.strides, self.itemsize)[0], held)

    # -- Other libraries ------------------------------------------------------------------------------------------

    def __dlpack__(self, *, stream: Any = None, max_version: Any = None, dl_device: Any = None, copy: bool | None = None) -> Any:
        """What ``from_dlpack`` of any library asks for: this memory, once the work on it is done, in the order of ``stream``.

        Raises:
            BufferError: it is on no CUDA device.
        """
        return _exchange(self, "__dlpack__").to_dlpack(self, stream, max_version, dl_device, copy)

    def __dlpack_device__(self) -> tuple[int, int]:
        """Where it lies, as DLPack says it."""
        device: tuple[int, int] = _exchange(self, "__dlpack_device__").dlpack_device(self)
        return device

    @property
    def __cuda_array_interface__(self) -> dict[str, Any]:
        """The same for libraries that have no DLPack; only arrays on a CUDA device have it."""
        try:
            room = _exchange(self, "__cuda_array_interface__")
        except BufferError as error:
            raise AttributeError(str(error)) from None
        found: dict[str, Any] = room.interface(self)
        return found

    # -- Slices ---------------------------------------------------------------------------------------------------

    def __getitem__(self, key: Any) -> DeviceArray:
        """Integers, slices of positive step and ``...``: an array that shares this one's memory.

        Raises:
            InvalidArgument: another kind of index.
            IndexError: an index that the array does not have.
        """
        keys = self._full(key if isinstance(key, tuple) else (key,))
        offset = self.offset
        shape, strides = [], []
        keys += [slice(None)] * (self.ndim - len(keys))
        for one, size, step in zip(keys, self.shape, self.strides, strict=True):
            if isinstance(one, slice):
                try:
                    begin, end, by = one.indices(size)
                except (TypeError, ValueError):
                    begin = end = by = 0
                by = by if by <= 0 else min(by, max(size, 1))
                if by <= 0:
                    allowed = "slices of positive step, with integers"
                    raise InvalidArgument(message("DeviceArray index", safe_repr(one), allowed, "x.numpy() has the rest."))
                length = len(range(begin, end, by))
                offset += begin * step if length else 0
                shape.append(length)
                strides.append(step * by)
            else:
                if not -size <= one < size:
                    raise IndexError(f"index {one} is out of bounds for a dimension of size {size}")
                offset += (one % size) * step
        return DeviceArray(self.target, self.memory, offset, tuple(shape), self.dtype, tuple(strides))

    def _full(self, keys: Sequence[Any]) -> list[Any]:
        """The keys with ``...`` written out."""
        found: list[Any] = []
        for key in keys:
            if key is Ellipsis:
                if any(other is Ellipsis for other in found):
                    raise InvalidArgument(message("DeviceArray index", "two of ...", "one"))
                found.append(key)
            elif isinstance(key, slice):
                found.append(key)
            else:
                try:
                    if isinstance(key, (bool, np.bool_)):
                        raise TypeError
                    found.append(operator.index(key))
                except TypeError:
                    allowed = "integers, slices and Ellipsis"
                    raise InvalidArgument(
                        message("DeviceArray index", type(key).__name__, allowed, "x.numpy() has the rest.")
                    ) from None
        if Ellipsis in found:
            at = found.index(Ellipsis)
            found[at : at + 1] = [slice(None)] * (self.ndim - len(found) + 1)
        if len(found) > self.ndim:
            raise IndexError(f"{len(found)} indices for an array of {self.ndim} dimensions")
        return found


ROOMS = {2: "cuda", 13: "cuda"}
"""The kinds of target that take other libraries' arrays, and give them theirs, by DLPack's types of device."""


@functools.cache
def room(kind: str) -> Any:
    """What such a kind of target knows of other libraries."""
    return importlib.import_module(f"tvmdml.targets.{kind}.foreign")


def _exchange(array: DeviceArray, name: str) -> Any:
    if array.target.kind not in ROOMS.values():
        allowed = f"one on {', '.join(sorted(set(ROOMS.values())))}"
        raise BufferError(message(f"DeviceArray.{name}", f"an array on {array.target}", allowed, "x.numpy() is a copy for all."))
    return room(array.target.kind)


def launched(launch: Callable[..., object], arrays: Sequence[Any]) -> None:
    """Launch on arrays; where they are of several libraries, whose streams may differ, these wait for each other."""
    several = _of_several(arrays)
    if several:
        with several[0].together(several[1:]):
            launch(*arrays)
    else:
        launch(*arrays)


def bound(run: Callable[[], None], arrays: Sequence[Any]) -> Callable[[], None]:
    """The same for a launch that was bound to arrays."""
    several = _of_several(arrays)
    if not several:
        return run

    def together() -> None:
        with several[0].together(several[1:]):
            run()

    return together


def _of_several(arrays: Sequence[Any]) -> list[Any]:
    """The memory that is other libraries', if they may have several streams there."""
    found = [array.memory for array in arrays if type(array) is DeviceArray and array.is_foreign]
    library = found[0].library if found else None
    return found if any(memory.library is not library or not library.one_stream for memory in found[1:]) else []


def _working(*memories: Any) -> AbstractContextManager[None]:
    """Within it, work is asked for on the stream of a library whose memory is among these."""
    for memory in memories:
        if hasattr(memory, "owner"):
            found: AbstractContextManager[None] = memory.working()
            return found
    return nullcontext()


@functools.lru_cache(maxsize=8192)
def extent(shape: tuple[int, ...], strides: tuple[int, ...], itemsize: int) -> tuple[int, int]:
    """Where an array's lowest element begins and its highest one ends, in bytes from the beginning of its first."""
    low, high = 0, itemsize
    for n, step in zip(shape, strides, strict=True):
        if not n:
            return 0, 0
        if step < 0:
            low += (n - 1) * step
        else:
            high += (n - 1) * step
    return low, high


@functools.lru_cache(maxsize=8192)
def packed(shape: tuple[int, ...], itemsize: int) -> tuple[int, ...]:
    """The strides, in bytes, of an array without gaps."""
    steps = [itemsize]
    for size in reversed(shape[1:]):
        steps.append(steps[-1] * max(size, 1))
    return tuple(reversed(steps)) if len(shape) else ()


def overlap(one: Any, other: Any) -> bool:
    """Whether two arrays, of which one at least is a device's, may share memory: whether their ranges do."""
    if type(one) is not DeviceArray or type(other) is not DeviceArray:
        return False
    (space, begin), (other_space, other_begin) = one.start, other.start
    if space is not other_space:
        return False
    low, high = extent(one.shape, one.strides, one.dtype.itemsize)
    other_low, other_high = extent(other.shape, other.strides, other.dtype.itemsize)
    return begin + low < other_begin + other_high and other_begin + other_low < begin + high


def _device(target: Target) -> Device:
    device: Device = target.device  # type: ignore[attr-defined] # targets that make device arrays have one
    return device


@overload
def asarray(array: Any, device: Literal["cpu"] = "cpu") -> NumpyArray: ...
@overload
def asarray(array: Any, device: str | Target) -> Any: ...
def asarray(array: Any, device: str | Target = "cpu") -> Any:
    """An array on a device: a ``DeviceArray``, or on the CPU a NumPy array.

    Args:
        array: NumPy's, PyTorch's, CuPy's, any that speaks DLPack, a DeviceArray, or nested lists of numbers.
        device: where to: ``"cpu"``, ``"cuda:0"``, ``"vulkan"``, ``"vulkan:0"``.

    Returns:
        A packed copy of the array, or the array itself where it already is there. Of another library's array that is there, a
        DeviceArray that shares its memory and keeps it.

    Raises:
        InvalidArgument: it is no array, its data type is none of DirectML's, or no device has that name.
        DeviceError: there is no such device here, or the device has not enough memory.
    """
    from tvmdml import arrays, targets
    from tvmdml.tensors import TensorDataType

    target = targets.resolve(device)
    if isinstance(array, (list, tuple, int, float, bool)):
        try:
            array = np.asarray(array)
        except Exception as error:  # what an element of it raises is its own affair
            given = f"a {type(array).__name__} that is no array ({error})"
            raise InvalidArgument(message("asarray array", given, "lists of the same length, nested to one depth")) from None
    view = arrays.view(array, "asarray array")
    if type(view) is DeviceArray:
        return view if view.target == target or view.target == target.home else target.asarray(view.numpy())
    if view.dtype != np.bool_:
        TensorDataType.from_numpy(view.dtype, "asarray array")
    return target.asarray(view)


def empty(shape: int | Sequence[int], *, dtype: Any = "float32", device: str | Target = "cpu") -> Any:
    """A new array on a device, whose content is undefined: room for an output.

    Args:
        shape: sizes, or the size of an array of one dimension.
        dtype: any of DirectML's data types, by name or as NumPy has them.
        device: where: ``"cpu"``, ``"cuda:0"``, ``"vulkan"``, ``"vulkan:0"``.

    Returns:
        A ``DeviceArray``, or on the CPU a NumPy array.

    Raises:
        InvalidArgument: no such shape, data type or device.
        DeviceError: there is no such device here, or the device has not enough memory.
    """
    from tvmdml import targets
    from tvmdml.tensors import MAX_RANK, TensorDataType

    kind = TensorDataType.of(dtype, "empty dtype").numpy
    try:
        given = (shape,) if isinstance(shape, (int, np.integer)) else itertools.islice(shape, MAX_RANK + 1)  # which may have no end
        sizes = tuple(operator.index(n) for n in given)
    except (TypeError, RuntimeError):  # PyTorch's for a tensor that is too large
        sizes = (-1,)
    if len(sizes) > MAX_RANK or any(n < 0 for n in sizes) or math.prod(sizes) * kind.itemsize >= 1 << 63:
        allowed = f"up to {MAX_RANK} integers from 0 up, of what memory can have"
        raise InvalidArgument(message("empty shape", safe_repr(shape), allowed))
    return targets.resolve(device).empty(sizes, kind)
