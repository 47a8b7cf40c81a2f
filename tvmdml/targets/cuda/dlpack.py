"""Read and make DLPack's capsules.

Whoever takes a capsule returns its memory by calling the deleter in it. This can happen on any thread, with or without Python's
interpreter lock, while an exception is being raised, or after Python has ended. A Python function would be unsafe in all of these
cases. Therefore the deleter is C's ``time``, which is quick and always safe: it writes the time to the address in its argument,
here the first word of the lent structure. That word is checked from time to time; when it has changed, the memory was returned.
"""

from __future__ import annotations

import ctypes
import gc
import sys
import threading
from typing import Any, NamedTuple

import numpy as np

READ_ONLY, COPIED = 1, 2
"""Flags of newer capsules."""
CUDA, CUDA_MANAGED = 2, 13
"""Device types."""
_VERSION = (1, 0)  # what we write; a capsule of another major version has another layout
_NAMES = (b"dltensor", b"dltensor_versioned")
MAX_RANK = 64
"""NumPy's limit."""

_KINDS = {"i": 0, "u": 1, "f": 2, "c": 5, "b": 6}
_TYPES = {
    (code, np.dtype(f"{kind}{size}").itemsize * 8): np.dtype(f"{kind}{size}")
    for kind, code in _KINDS.items()
    for size in {"f": (2, 4, 8), "c": (8, 16), "b": (1,)}.get(kind, (1, 2, 4, 8))
}


class _Tensor(ctypes.Structure):
    """``DLTensor``."""

    _fields_ = (
        ("data", ctypes.c_void_p),
        ("device_type", ctypes.c_int32),
        ("device_id", ctypes.c_int32),
        ("ndim", ctypes.c_int32),
        ("code", ctypes.c_uint8),
        ("bits", ctypes.c_uint8),
        ("lanes", ctypes.c_uint16),
        ("shape", ctypes.POINTER(ctypes.c_int64)),
        ("strides", ctypes.POINTER(ctypes.c_int64)),
        ("byte_offset", ctypes.c_uint64),
    )


class _Managed(ctypes.Structure):
    """``DLManagedTensor``."""

    _fields_ = (("tensor", _Tensor), ("manager", ctypes.c_void_p), ("deleter", ctypes.c_void_p))


class _Versioned(ctypes.Structure):
    """``DLManagedTensorVersioned``."""

    _fields_ = (
        ("major", ctypes.c_uint32),
        ("minor", ctypes.c_uint32),
        ("manager", ctypes.c_void_p),
        ("deleter", ctypes.c_void_p),
        ("flags", ctypes.c_uint64),
        ("tensor", _Tensor),
    )


def _function(name: str, result: Any, *arguments: Any) -> Any:
    return ctypes.PYFUNCTYPE(result, *arguments)((name, ctypes.pythonapi))


_new = _function("PyCapsule_New", ctypes.py_object, ctypes.c_void_p, ctypes.c_void_p, ctypes.c_void_p)
_is_valid = _function("PyCapsule_IsValid", ctypes.c_int, ctypes.py_object, ctypes.c_char_p)
_pointer = _function("PyCapsule_GetPointer", ctypes.c_void_p, ctypes.py_object, ctypes.c_char_p)
_keep_for_ever = _function("Py_IncRef", None, ctypes.py_object)


# -- Reading ------------------------------------------------------------------------------------------------------


class Read(NamedTuple):
    """The contents of a capsule. They are valid as long as the capsule."""

    address: int
    device: tuple[int, int]
    shape: tuple[int, ...]
    strides: tuple[int, ...] | None
    """In bytes; ``None`` for a packed array."""
    dtype: np.dtype[Any]
    writeable: bool


def read(capsule: Any) -> Read:
    """Read a capsule. It is not consumed: when it is dropped, it releases what it holds.

    Raises:
        BufferError: it is not a DLPack capsule, or has contents that are not supported.
    """
    versioned = bool(_is_valid(capsule, _NAMES[True]))
    if not versioned and not _is_valid(capsule, _NAMES[False]):
        raise BufferError(f"{capsule!r} is not a DLPack capsule, or was already taken")
    address = _pointer(capsule, _NAMES[versioned])
    if versioned:
        held = _Versioned.from_address(address)
        if held.major != _VERSION[0]:
            raise BufferError(f"a capsule of DLPack {held.major}.{held.minor}, but only version {_VERSION[0]} is supported")
        writeable, tensor = not held.flags & READ_ONLY, held.tensor
    else:  # it has no flags; NumPy treats such an array as read-only too
        writeable, tensor = False, _Managed.from_address(address).tensor
    dtype = _TYPES.get((tensor.code, tensor.bits)) if tensor.lanes == 1 else None
    if dtype is None:
        raise BufferError(f"elements of DLPack's type {tensor.code} with {tensor.bits} bits in {tensor.lanes} lanes")
    rank = tensor.ndim
    if not 0 <= rank <= MAX_RANK:
        raise BufferError(f"{rank} dimensions, but only 0 to {MAX_RANK} are supported")
    if rank and not tensor.shape:
        raise BufferError("dimensions without sizes")
    strides = tuple(step * dtype.itemsize for step in tensor.strides[:rank]) if rank and tensor.strides else None
    return Read(
        (tensor.data or 0) + tensor.byte_offset,
        (tensor.device_type, tensor.device_id),
        tuple(tensor.shape[:rank]) if rank else (),
        strides,
        dtype,
        writeable,
    )


# -- Making -------------------------------------------------------------------------------------------------------


class _Slot:
    """The structures of one capsule. A slot is reused and never freed, because the capsule's consumer may outlive Python."""

    def __init__(self) -> None:
        self.room = ctypes.create_string_buffer(ctypes.sizeof(_Versioned) + 2 * MAX_RANK * 8)
        _keep_for_ever(self.room)
        self.address = ctypes.addressof(self.room)
        self.first = ctypes.c_uint64.from_address(self.address)
        self.lent = 0
        """The value of the first word while it is lent."""
        self.owner: Any = None
        self.capsule: Any = None

    def fill(self, versioned: bool, flags: int, tensor: _Tensor, shape: tuple[int, ...], strides: tuple[int, ...]) -> None:
        sizes = (ctypes.c_int64 * (2 * MAX_RANK)).from_address(self.address + ctypes.sizeof(_Versioned))
        sizes[: len(shape)] = list(shape)
        sizes[MAX_RANK : MAX_RANK + len(shape)] = list(strides)
        tensor.shape = ctypes.cast(ctypes.addressof(sizes), ctypes.POINTER(ctypes.c_int64))
        tensor.strides = ctypes.cast(ctypes.addressof(sizes) + MAX_RANK * 8, ctypes.POINTER(ctypes.c_int64))
        if versioned:
            held = _Versioned.from_address(self.address)
            held.major, held.minor = _VERSION
            held.manager, held.deleter, held.flags, held.tensor = None, _DELETER, flags, tensor
        else:
            plain = _Managed.from_address(self.address)
            plain.tensor, plain.manager, plain.deleter = tensor, None, _DELETER
        self.lent = self.first.value

    def is_free(self) -> bool:
        """Whether nobody holds it any more."""
        if self.first.value != self.lent:
            return True
        if self.capsule is not None:
            if not any(_is_valid(self.capsule, name) for name in _NAMES):  # it was taken: the consumer will call the deleter
                self.capsule = None
            elif self.holders() <= _ALONE:  # nobody took it, and nobody will
                return True
        return False

    def holders(self) -> int:
        return sys.getrefcount(self.capsule)


def _alone() -> int:
    slot = _Slot.__new__(_Slot)
    slot.capsule = object()
    return slot.holders()


_ALONE = _alone()
"""The reference count of a capsule that only its slot holds."""
_LIBRARY = ctypes.CDLL("ucrtbase" if sys.platform == "win32" else None)
_DELETER = ctypes.cast(_LIBRARY._time64 if sys.platform == "win32" else _LIBRARY.time, ctypes.c_void_p).value
_C_NAMES = tuple(ctypes.create_string_buffer(name) for name in _NAMES)
for _name in _C_NAMES:  # a capsule holds only the address of its name
    _keep_for_ever(_name)
_free: list[_Slot] = []
_lent: set[_Slot] = set()
_lock = threading.RLock()


def make(
    owner: Any,
    address: int,
    device: int,
    shape: tuple[int, ...],
    strides: tuple[int, ...],
    dtype: np.dtype[Any],
    versioned: bool,
    flags: int = 0,
) -> Any:
    """A capsule for an array on a CUDA device.

    Args:
        owner: the object to keep alive while the memory is lent.
        address: the address of the first element.
        device: the CUDA device's number.
        shape: sizes.
        strides: in bytes.
        dtype: data type.
        versioned: whether to make the newer kind, which has flags.
        flags: ``READ_ONLY``, ``COPIED``.

    Raises:
        BufferError: a capsule cannot describe the array.
    """
    if any(step % dtype.itemsize for step in strides):
        raise BufferError(f"strides {strides} are not multiples of the {dtype.itemsize} bytes of an element")
    code, steps = _KINDS[dtype.kind], tuple(step // dtype.itemsize for step in strides)
    tensor = _Tensor(address, CUDA, device, len(shape), code, dtype.itemsize * 8, 1)
    give_back()
    if give_back not in gc.callbacks:
        gc.callbacks.append(give_back)
    try:
        slot = _free.pop()
    except IndexError:
        slot = _Slot()
    slot.fill(versioned, flags, tensor, shape, steps)
    slot.owner = owner
    capsule = slot.capsule = _new(slot.address, ctypes.addressof(_C_NAMES[versioned]), None)
    _lent.add(slot)
    return capsule


def give_back(phase: str = "start", info: object = None) -> None:
    """Release what is no longer lent. The garbage collector calls this too."""
    if phase != "start" or not _lent or not _lock.acquire(blocking=False):
        return
    try:
        for slot in [slot for slot in _lent.copy() if slot.is_free()]:
            _lent.discard(slot)
            slot.owner = slot.capsule = None
            _free.append(slot)
    finally:
        _lock.release()
