"""``DeviceArray``: an array in a device's own memory. Functions and compiled operators accept and return it without a copy."""

from __future__ import annotations

import functools
import importlib
import math
import operator
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, nullcontext
from types import EllipsisType
from typing import TYPE_CHECKING, Any, ClassVar, NamedTuple, Protocol, TypeAlias

import numpy as np

from tvmdml.errors import InvalidArgument, message, safe_repr
from tvmdml.tensors import NumpyArray as NumpyArray
from tvmdml.tensors import native

if TYPE_CHECKING:
    import numpy.typing as npt

    from tvmdml.tensors.annotations import Array

    Key: TypeAlias = int | slice | EllipsisType


class Device(Protocol):
    """A device's memory. All operations run in the order of the calls; only ``download`` waits."""

    def allocate(self, nbytes: int) -> Any:
        """Allocate memory of at least so many bytes."""

    def upload(self, memory: Any, offset: int, data: Any) -> None:
        """Write bytes."""

    def download(self, memory: Any, offset: int, into: Any) -> None:
        """Read bytes, after all earlier work is finished."""

    def wait(self) -> None:
        """Return when all earlier work is finished."""

    def copy(self, source: Any, source_offset: int, target: Any, target_offset: int, nbytes: int) -> None:
        """Copy bytes from one piece of memory to another."""


class Home(Protocol):
    """The target that owns an array's memory, as the array sees it; ``Target`` documents the members."""

    kind: ClassVar[str]
    name: str

    @property
    def home(self) -> Home:
        """The target that owns its arrays' memory."""


class Flags(NamedTuple):
    """NumPy's flags of an array's memory."""

    aligned: bool = True
    writeable: bool = True
    c_contiguous: bool = True


class DeviceArray:
    """An array on a device: ``asarray`` and ``empty`` make one, and functions given one return one.

    It has NumPy's ``shape``, ``dtype`` and ``strides``; ``numpy()`` copies it back. Slices share its memory, which is freed when
    the array and all its slices are dropped. Work runs in the order of the calls, and reading waits for it.

    On CUDA, other libraries import it without a copy (``torch.from_dlpack(x)``, ``cupy.asarray(x)``), and ``asarray`` imports
    theirs.

    A slice that is not aligned to the device's alignment is copied, on the device, for each call. Slices with gaps between their
    elements are moved as a whole: threads must not write to interleaved slices at the same time. ``==`` is identity.
    """

    __slots__ = ("__weakref__", "dtype", "memory", "offset", "shape", "strides", "target")
    _any_view: ClassVar[Callable[[Any, str], Any]]
    """``arrays.view``, which sees arrays of every library: the package sets it, because it depends on this class."""

    def __init__(
        self,
        target: Home,
        memory: Any,
        offset: int,
        shape: tuple[int, ...],
        dtype: np.dtype[Any],
        strides: tuple[int, ...] | None = None,
    ) -> None:
        """Not public: ``asarray``, ``empty`` and functions make arrays."""
        self.target = target
        self.memory = memory
        self.offset = offset
        self.shape = shape
        self.dtype = dtype
        self.strides = packed(shape, dtype.itemsize) if strides is None else strides

    @classmethod
    def empty(cls, target: Home, shape: tuple[int, ...], dtype: npt.DTypeLike) -> DeviceArray:
        """A packed array with undefined content. Not public: use ``tvmdml.empty``.

        Raises:
            DeviceError: the device does not have enough memory.
        """
        dtype = np.dtype(dtype)
        memory = _device(target).allocate(max(math.prod(shape) * dtype.itemsize, 1))
        return cls(target, memory, 0, tuple(shape), dtype)

    @classmethod
    def of(cls, target: Home, array: NumpyArray) -> DeviceArray:
        """A packed copy of a NumPy array. Not public: use ``tvmdml.asarray``."""
        found = cls.empty(target, array.shape, native(array.dtype))
        found.write(array)
        return found

    # -- Properties -----------------------------------------------------------------------------------------------

    @property
    def device(self) -> str:
        """The device's name, such as ``vulkan:0``."""
        return self.target.name

    @property
    def ndim(self) -> int:
        """The number of dimensions."""
        return len(self.shape)

    @property
    def size(self) -> int:
        """The number of elements."""
        return math.prod(self.shape)

    @property
    def itemsize(self) -> int:
        """The bytes of an element."""
        return self.dtype.itemsize

    @property
    def nbytes(self) -> int:
        """The bytes of all elements."""
        return self.size * self.itemsize

    @property
    def span(self) -> int:
        """The bytes from the start of the lowest element to the end of the highest, including the gaps between them."""
        low, high = extent(self.shape, self.strides, self.itemsize)
        return high - low

    @property
    def start(self) -> tuple[object, int]:
        """The place of its first element: the address space, and the address in it."""
        address = getattr(self.memory, "address", None)
        return (self.memory, self.offset) if address is None else (None, address + self.offset)

    @property
    def is_foreign(self) -> bool:
        """Whether its memory belongs to another library."""
        return hasattr(self.memory, "owner")

    @property
    def library(self) -> Any:
        """The interface to the library that owns its memory; ``None`` for tvmdml's own memory."""
        return getattr(self.memory, "library", None)

    @property
    def aligned(self) -> bool:
        """Whether it is aligned to its elements' size. tvmdml's own memory is; other libraries' memory has an address to check."""
        memory = self.memory
        return not hasattr(memory, "owner") or (memory.address + self.offset) % self.dtype.itemsize == 0

    @property
    def writeable(self) -> bool:
        """Whether it may be written to: another library's array may be read-only."""
        return bool(getattr(self.memory, "writeable", True))

    @property
    def flags(self) -> Flags:
        """The flags, as in NumPy."""
        return Flags(self.aligned, self.writeable, self._packed)

    @property
    def _packed(self) -> bool:
        own = packed(self.shape, self.itemsize)
        if own == self.strides:
            return True
        return not self.size or all(n == 1 or a == b for n, a, b in zip(self.shape, self.strides, own, strict=True))

    def __len__(self) -> int:
        """Return the first dimension's size."""
        if not self.shape:
            raise TypeError("len() of a DeviceArray without dimensions")
        return self.shape[0]

    def __repr__(self) -> str:
        """Device, type and shape; the elements are not copied."""
        return f"<DeviceArray {self.dtype} {self.shape} on {self.device}>"

    # -- Copies of elements ---------------------------------------------------------------------------------------

    def numpy(self) -> NumpyArray:
        """A copy in NumPy's memory. Waits for the work that computes the array.

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
        """A copy of its memory from the lowest element to the highest, and the array's view of that copy."""
        low, high = extent(self.shape, self.strides, self.itemsize)
        held = np.empty(high - low, np.uint8)
        with _working(self.memory):
            _device(self.target).download(self.memory, self.offset + low, held)
        return held, np.ndarray(self.shape, self.dtype, buffer=held, offset=-low, strides=self.strides)

    def __array__(self, dtype: Any = None, copy: bool | None = None) -> NumpyArray:
        """``numpy.asarray(x)`` is ``x.numpy()``."""
        if copy is False:
            raise ValueError("a DeviceArray's elements are not in NumPy's memory: they must be copied")
        return self.numpy() if dtype is None else self.numpy().astype(dtype)

    def tolist(self) -> Any:
        """The elements as Python numbers, in nested lists."""
        return self.numpy().tolist()

    def item(self) -> Any:
        """The only element, as a Python number."""
        return self.numpy().item()

    def __int__(self) -> int:
        """The only element, as an integer."""
        return int(self.item())

    def __float__(self) -> float:
        """The only element, as a float."""
        return float(self.item())

    def __bool__(self) -> bool:
        """The only element, as a bool."""
        return bool(self.item())

    def __index__(self) -> int:
        """The only element, which must have an integer type."""
        return operator.index(self.numpy().reshape(())[()])

    def __iter__(self) -> Iterator[DeviceArray]:
        """Slices along the first dimension."""
        return (self[i] for i in range(len(self)))

    __contains__ = None  # comparisons of elements are left to NumPy
    __hash__ = object.__hash__

    def __copy__(self) -> DeviceArray:
        """A copy with its own memory, as in NumPy."""
        return self.copy()

    def __deepcopy__(self, memo: object) -> DeviceArray:
        """A copy with its own memory, as in NumPy."""
        return self.copy()

    def __reduce__(self) -> Any:
        """Raise an error: other processes cannot access a device's memory."""
        raise TypeError("a DeviceArray cannot be pickled: send x.numpy(), and call tvmdml.asarray in the other process")

    def view(self, dtype: npt.DTypeLike) -> DeviceArray:
        """The same bytes as elements of another type of the same size.

        Raises:
            InvalidArgument: the other type has another size.
        """
        allowed = f"types of {self.itemsize} bytes, like {self.dtype}"
        try:
            kind = np.dtype(dtype)
        except Exception:  # NumPy asks the object for its fields, and shows it
            raise InvalidArgument(message("DeviceArray.view", safe_repr(dtype), allowed)) from None
        if kind.itemsize != self.itemsize or kind.hasobject:  # the bytes of objects are addresses
            raise InvalidArgument(message("DeviceArray.view", f"{kind}", allowed))
        return DeviceArray(self.target, self.memory, self.offset, self.shape, kind, self.strides)

    def copy(self) -> DeviceArray:
        """A packed copy on the same device, in memory of the same library."""
        make = DeviceArray.empty if self.library is None else self.library.empty
        found: DeviceArray = make(self.target, self.shape, self.dtype)
        found.write(self)
        return found

    def write(self, source: Array) -> None:
        """Copy the elements of an array of the same shape into this one, cast within the kind of type (int64 to int32).

        A copy between packed arrays of one device and one type stays on the device. So does any copy there that involves an array
        of PyTorch or CuPy. Otherwise an array with gaps is read, changed and written back: concurrent writes into the gaps are
        lost.

        Args:
            source: a DeviceArray, or an array of NumPy, PyTorch, CuPy or any library with DLPack.

        Raises:
            InvalidArgument: it is not an array, or has another shape or kind of type; or this array is read-only.
        """
        given = DeviceArray._any_view(source, "DeviceArray.write source")
        if not np.can_cast(given.dtype, self.dtype, "same_kind"):
            allowed = f"types that can be cast to {self.dtype} within the same kind"
            raise InvalidArgument(
                message("DeviceArray.write", f"elements of {given.dtype}", allowed, "Convert them with astype first.")
            )
        if tuple(given.shape) != self.shape:
            raise InvalidArgument(message("DeviceArray.write", f"shape {tuple(given.shape)}", str(self.shape)))
        if not self.writeable:
            raise InvalidArgument(message("DeviceArray.write", "a read-only array to write to", "a writable one"))
        if not self.size:
            return
        device = _device(self.target)
        if isinstance(given, DeviceArray):
            if given.target == self.target:
                if given.dtype == self.dtype and given._packed and self._packed:
                    with _working(self.memory, given.memory):
                        device.copy(given.memory, given.offset, self.memory, self.offset, self.nbytes)
                    return
                library = self.library or given.library
                if library is not None:
                    library.assign(self, given)
                    return
            given = given.numpy()
        if self._packed:
            ready = np.ascontiguousarray(given.astype(self.dtype, copy=False))
            with _working(self.memory):
                device.upload(self.memory, self.offset, ready.reshape(-1).view(np.uint8))
            return
        held, elements = self._held()  # the bytes between the elements stay the same
        elements[...] = given
        with _working(self.memory):
            device.upload(self.memory, self.offset + extent(self.shape, self.strides, self.itemsize)[0], held)

    # -- Other libraries ------------------------------------------------------------------------------------------

    def __dlpack__(self, *, stream: Any = None, max_version: Any = None, dl_device: Any = None, copy: bool | None = None) -> Any:
        """``from_dlpack`` of other libraries calls this. It exports this memory, ordered before later work on ``stream``.

        Raises:
            BufferError: the array is not on a CUDA device.
        """
        return _exchange(self, "__dlpack__").to_dlpack(self, stream, max_version, dl_device, copy)

    def __dlpack_device__(self) -> tuple[int, int]:
        """The device, in DLPack's terms."""
        return _exchange(self, "__dlpack_device__").dlpack_device(self)

    @property
    def __cuda_array_interface__(self) -> dict[str, Any]:
        """The same for libraries without DLPack; only arrays on a CUDA device have it."""
        try:
            room = _exchange(self, "__cuda_array_interface__")
        except BufferError as error:
            raise AttributeError(str(error)) from None
        return room.interface(self)

    # -- Slices ---------------------------------------------------------------------------------------------------

    def __getitem__(self, key: Key | tuple[Key, ...]) -> DeviceArray:
        """Index with integers, slices of positive step and ``...``: the result shares this array's memory.

        Raises:
            InvalidArgument: this kind of index is not supported.
            IndexError: an index is out of bounds, or there are too many.
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
                    allowed = "slices with a positive step and integer bounds"
                    raise InvalidArgument(
                        message("DeviceArray index", safe_repr(one), allowed, "Copy it with x.numpy() for other indices.")
                    )
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
        """The keys with ``...`` replaced by full slices."""
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
                        message("DeviceArray index", type(key).__name__, allowed, "Copy it with x.numpy() for other indices.")
                    ) from None
        if Ellipsis in found:
            at = found.index(Ellipsis)
            found[at : at + 1] = [slice(None)] * (self.ndim - len(found) + 1)
        if len(found) > self.ndim:
            raise IndexError(f"{len(found)} indices for an array of {self.ndim} dimensions")
        return found


ROOMS = {2: "cuda", 13: "cuda"}
"""The kinds of target that exchange arrays with other libraries, by DLPack's device type."""


@functools.cache
def room(kind: str) -> Any:
    """The module of such a kind of target that handles other libraries' arrays."""
    return importlib.import_module(f"tvmdml.targets.{kind}.foreign")


def _exchange(array: DeviceArray, name: str) -> Any:
    if array.target.kind not in ROOMS.values():
        allowed = f"one on {', '.join(sorted(set(ROOMS.values())))}"
        raise BufferError(message(f"DeviceArray.{name}", f"an array on {array.target}", allowed, "Copy it with x.numpy()."))
    return room(array.target.kind)


def launched(launch: Callable[..., object], arrays: Sequence[Any]) -> None:
    """Launch on arrays. If they belong to several libraries, whose streams may differ, these streams wait for each other."""
    several = _of_several(arrays)
    if several:
        with several[0].together(several[1:]):
            launch(*arrays)
    else:
        launch(*arrays)


def bound(run: Callable[[], None], arrays: Sequence[Any]) -> Callable[[], None]:
    """The same for a launch that is bound to arrays."""
    several = _of_several(arrays)
    if not several:
        return run

    def together() -> None:
        with several[0].together(several[1:]):
            run()

    return together


def _of_several(arrays: Sequence[Any]) -> list[Any]:
    """The memory of other libraries, if they may use several streams."""
    found = [array.memory for array in arrays if type(array) is DeviceArray and array.is_foreign]
    library = found[0].library if found else None
    return found if any(memory.library is not library or not library.one_stream for memory in found[1:]) else []


def _working(*memories: Any) -> AbstractContextManager[None]:
    """A context manager: work inside is submitted to the stream of a library that owns one of these memories."""
    for memory in memories:
        if hasattr(memory, "owner"):
            return memory.working()
    return nullcontext()


@functools.lru_cache(maxsize=8192)
def extent(shape: tuple[int, ...], strides: tuple[int, ...], itemsize: int) -> tuple[int, int]:
    """The start of an array's lowest element and the end of its highest, in bytes relative to its first element."""
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
    """Whether two arrays may share memory, because their address ranges overlap. At least one is a device's."""
    if type(one) is not DeviceArray or type(other) is not DeviceArray:
        return False
    (space, begin), (other_space, other_begin) = one.start, other.start
    if space is not other_space:
        return False
    low, high = extent(one.shape, one.strides, one.dtype.itemsize)
    other_low, other_high = extent(other.shape, other.strides, other.dtype.itemsize)
    return begin + low < other_begin + other_high and other_begin + other_low < begin + high


def _device(target: Home) -> Device:
    return target.device  # type: ignore[attr-defined] # targets that make device arrays have one
