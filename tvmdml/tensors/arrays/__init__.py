"""Arrays of any library as NumPy views of the same memory, and results converted to the caller's kind of array.

This module contains only the rules of each kind of array. It does not depend on operators or targets.
"""

from __future__ import annotations

import functools
import sys
import weakref
from collections.abc import Callable, Sequence
from contextlib import suppress
from typing import Any

import numpy as np

from tvmdml.errors import InvalidArgument, message
from tvmdml.tensors import NO_BFLOAT16, TYPE_NAMES
from tvmdml.tensors.arrays.device_array import ROOMS, DeviceArray, Home, overlap, room
from tvmdml.tensors.arrays.device_array import NumpyArray as NumpyArray
from tvmdml.tensors.sizes import is_open

Restore = Callable[[NumpyArray], Any]
"""Converts a NumPy result to the caller's kind of array, without a copy."""

_CUDA = ROOMS[2]
"""The kind of target for CUDA arrays of other libraries."""
_DLPACK_CPU = 1
"""DLPack's number for the memory of the CPU."""
ROOM_OF_TYPE: dict[type, str] = {}
"""Types of arrays that are always on devices of one kind of target, so that each array need not be asked. The target's package adds
entries."""

ACCEPTED = "a NumPy array, a PyTorch tensor, or any array that supports DLPack, on the CPU or on a CUDA device"


class Traced:
    """Base class of tensors without elements: functions hand calls with such an input to its ``tracer``."""

    __slots__ = ()
    dtype: np.dtype[Any]

    @property
    def tracer(self) -> Any:
        """What records the calls; see ``functions.Tracer``."""
        raise NotImplementedError


def view(array: Any, where: str, write: bool = False) -> NumpyArray:
    """A NumPy view of an array's memory; read-only if the array is. With ``write``, writing to the view writes to the array.

    A ``DeviceArray`` is returned as it is: it has all attributes that the checks read. For another library's array on a device, the
    view is a ``DeviceArray`` too.

    Raises:
        InvalidArgument: it is not an array, or its memory cannot be accessed from here.
    """
    if type(array) is np.ndarray:
        return array
    if type(array) is DeviceArray:
        return array  # type: ignore[return-value]
    if is_torch(array):
        return _view_torch(array, where, write)
    kind = type(array)  # an object may say that it is of another class
    if issubclass(kind, np.ma.MaskedArray):
        raise InvalidArgument(message(where, "a masked array", ACCEPTED, "Masks are not supported: pass x.filled(…)."))
    if issubclass(kind, np.ndarray) or (issubclass(kind, np.generic) and not write):
        return np.asarray(array)
    if kind in ROOM_OF_TYPE:
        return room(ROOM_OF_TYPE[kind]).view(array, where, write)
    try:
        if hasattr(array, "__dlpack__") or hasattr(array, "__cuda_array_interface__"):
            place = _room_of(array)
            return np.from_dlpack(array) if place is None else room(place).view(array, where, write)
    except InvalidArgument:
        raise
    except Exception as error:  # other libraries may raise anything
        raise _unseen(array, where, error) from error
    if is_open(array):
        raise InvalidArgument(message(where, "a size that is open", ACCEPTED, "Give the number as an input of the graph."))
    raise InvalidArgument(message(where, type(array).__name__, ACCEPTED, "Convert it with numpy.asarray(x, dtype=…)."))


def _unseen(array: Any, where: str, error: Exception) -> InvalidArgument:
    """The error for an array that NumPy cannot access, with advice. The reason may be its type, or the device it is on."""
    kind, on_cpu = type(array).__name__, False
    with suppress(Exception):  # these queries may fail too
        if str(array.dtype) == "bfloat16":
            return InvalidArgument(message(where, f"{kind} of bfloat16", TYPE_NAMES, NO_BFLOAT16))
        on_cpu = array.__dlpack_device__()[0] == _DLPACK_CPU
    advice = "Convert it first: numpy.asarray(x, dtype=…)." if on_cpu else "Copy it to the CPU first."
    given = f"{kind} that NumPy cannot access ({type(error).__name__}: {error})"
    return InvalidArgument(message(where, given, ACCEPTED, advice))


def restorer(array: Any) -> Restore | None:
    """The function that converts results to the same kind as ``array``; ``None`` if no conversion is needed."""
    if isinstance(array, (np.ndarray, np.generic, DeviceArray)):
        return None
    if is_torch(array):
        return sys.modules["torch"].from_numpy
    from_dlpack = importer(array, "from_dlpack")
    return None if from_dlpack is None else lambda result: _adopt(from_dlpack, result)


def importer(array: Any, name: str) -> Restore | None:
    """The function with which an array's library imports other arrays, such as ``from_dlpack``; ``None`` if there is none."""
    if hasattr(array, "__array_namespace__"):
        library = array.__array_namespace__()
    else:  # the nearest module around the array's class that has the function
        module = type(array).__module__
        while module and not hasattr(sys.modules.get(module), name):
            module = module.rpartition(".")[0]
        library = sys.modules.get(module)
    return getattr(library, name, None)


def _adopt(from_dlpack: Restore, result: NumpyArray) -> Any:
    try:
        return from_dlpack(result)
    except (RuntimeError, ValueError, BufferError):  # some libraries accept only memory aligned to a cache line
        room = np.empty(result.nbytes + 64, np.uint8)
        start = -room.ctypes.data % 64
        aligned = room[start : start + result.nbytes].view(result.dtype).reshape(result.shape)
        aligned[...] = result
        return from_dlpack(aligned)


def is_torch(array: Any) -> bool:
    """Whether this is a PyTorch tensor; never imports PyTorch."""
    torch = sys.modules.get("torch")
    return torch is not None and isinstance(array, getattr(torch, "Tensor", ()))


def device_of(array: Any) -> str | None:
    """The name of the device that an array is on, if its target supports device arrays."""
    if type(array) is np.ndarray:
        return None
    if type(array) is DeviceArray:
        return array.device
    found: Any = None
    with suppress(Exception):  # a later check reports what is wrong with the array
        if array.is_cuda if is_torch(array) else _room_of(array) is not None:
            found = view(array, "out", write=True)
    return None if found is None else str(found.device)


def _room_of(array: Any) -> str | None:
    """The kind of target that accepts an array of another library, by the array's own attributes."""
    if type(array) in ROOM_OF_TYPE:
        return ROOM_OF_TYPE[type(array)]
    if hasattr(array, "__dlpack_device__"):
        return ROOMS.get(array.__dlpack_device__()[0])
    return _CUDA if hasattr(array, "__cuda_array_interface__") else None


def writable_alias(array: NumpyArray) -> NumpyArray:
    """A read-only array's memory as an array that the runtime accepts as an input. Kernels do not write to inputs."""
    return np.asarray(_Memory(array))


class _Memory:
    """An array's memory, declared writable."""

    def __init__(self, array: NumpyArray) -> None:
        self.owner = array
        self.__array_interface__ = {**array.__array_interface__, "data": (array.__array_interface__["data"][0], False)}


def fixed(array: Any) -> Any:
    """The same memory, of a NumPy array that cannot be resized as long as the result is there.

    NumPy refuses that for arrays with weak references, even with ``refcheck=False``, which would leave freed memory to a kernel.
    """
    return np.asarray(_Fixed(array)) if isinstance(array, np.ndarray) else array


class _Fixed:
    """An array's memory, with references to the array and to those that it is a view of."""

    def __init__(self, array: NumpyArray) -> None:
        self.__array_interface__ = array.__array_interface__
        self.owner, self.references = array, []
        one: Any = array
        while isinstance(one, np.ndarray):
            self.references.append(weakref.ref(one))
            one = one.base


def overlaps(one: NumpyArray, other: NumpyArray) -> bool:
    """Whether two arrays share memory; if the exact answer is too costly, whether their address ranges overlap."""
    if type(one) is DeviceArray or type(other) is DeviceArray:
        return overlap(one, other)
    if not np.may_share_memory(one, other):
        return False
    try:
        return np.shares_memory(one, other, max_work=10_000)  # type: ignore[arg-type] # any bound will do
    except (np.exceptions.TooHardError, OverflowError):
        return True


def overlaps_any(one: NumpyArray, others: Sequence[NumpyArray]) -> bool:
    """Whether an array shares memory with one of several: quick if all are NumPy's, and far from it."""
    if {type(one), *map(type, others)} == {np.ndarray} and not any(map(functools.partial(np.may_share_memory, one), others)):
        return False
    return any(overlaps(one, other) for other in others)


def may_overlap(one: NumpyArray, other: NumpyArray) -> bool:
    """Whether the address ranges of two arrays overlap; quick to compute."""
    if type(one) is DeviceArray or type(other) is DeviceArray:
        return overlap(one, other)
    return np.may_share_memory(one, other)


def are_one(one: NumpyArray, other: NumpyArray) -> bool:
    """Whether two arrays consist of the same memory with the same shape, strides and type."""
    if type(one) is not type(other):
        return False
    if isinstance(one, DeviceArray):
        (space, begin), (other_space, other_begin) = one.start, other.start
        return (
            space is other_space
            and begin == other_begin
            and (one.shape, one.strides, one.dtype) == (other.shape, other.strides, other.dtype)
        )
    begin, other_begin = (array.__array_interface__["data"][0] for array in (one, other))  # whether it may be written is no matter
    return begin == other_begin and (one.shape, one.strides, one.dtype) == (other.shape, other.strides, other.dtype)


def assign(array: NumpyArray, source: NumpyArray) -> None:
    """``array[...] = source``, for arrays on any devices."""
    if type(array) is DeviceArray:
        array.write(source)
    else:
        np.copyto(array, source.numpy() if type(source) is DeviceArray else source, casting="unsafe")


def require_on(array: NumpyArray, target: Home, where: str) -> None:
    """Raise ``InvalidArgument`` if an array is not on the target's device."""
    if type(array) is DeviceArray and array.target != target and array.target != target.home:
        given, allowed = f"an array on {array.target}", f"one on {target}"
        move = "x.numpy()" if target.kind == "cpu" else f"tvmdml.asarray(x, device={target.name!r})"
        if array.library is not None:
            move = f"{move.replace('x.numpy()', 'tvmdml.asarray(x)')}, or with {array.library.name}'s own function"
        raise InvalidArgument(message(where, given, allowed, f"Copy it with {move}."))


_NO_GRADIENT = "Pass x.detach(). If you need gradients, `import tvmdml.torch` and call the operator in torch.ops.tvmdml."


def _view_torch(tensor: Any, where: str, write: bool) -> NumpyArray:
    if tensor.requires_grad and sys.modules["torch"].is_grad_enabled():
        given = "a PyTorch tensor that requires a gradient"
        raise InvalidArgument(message(where, given, "one that does not", _NO_GRADIENT))
    if write and (tensor.is_conj() or tensor.is_neg()):
        given = "a PyTorch tensor that is a lazy conjugate or negative view"
        raise InvalidArgument(
            message(
                where, given, "a tensor that stores its own elements", "Pass x.resolve_neg(), and read the result from that tensor."
            )
        )
    if tensor.is_cuda:
        return room(_CUDA).view(tensor, where, write)
    try:
        found: NumpyArray = tensor.detach().resolve_conj().resolve_neg().numpy()
    except (TypeError, RuntimeError) as error:
        if str(tensor.dtype) == "torch.bfloat16":
            raise InvalidArgument(message(where, "a PyTorch tensor of torch.bfloat16", TYPE_NAMES, NO_BFLOAT16)) from None
        given = f"a PyTorch tensor {tensor.dtype} on {tensor.device} that NumPy cannot access ({error})"
        raise InvalidArgument(message(where, given, ACCEPTED, "Move it to the CPU or convert it first.")) from error
    return found


DeviceArray._any_view = view
