"""Files in memory: mapped, or copied. Nothing here keeps a descriptor open, of which a process has 1,024 at first.

(Python's own ``mmap`` keeps one for each map, before version 3.13 in any case.)
"""

from __future__ import annotations

import ctypes
import os
from typing import Any, BinaryIO

import numpy as np

NumpyArray = np.ndarray[Any, np.dtype[Any]]

ALIGNMENT = 64
"""Any type may be read from memory that begins at a multiple of it."""
_PROT_READ, _MAP_SHARED = 1, 1  # Linux's numbers for mmap
_FAILED = ctypes.c_void_p(-1).value

_libc = ctypes.CDLL(None, use_errno=True)
_libc.mmap.restype = ctypes.c_void_p
_libc.mmap.argtypes = (ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int, ctypes.c_int, ctypes.c_int, ctypes.c_long)
_libc.munmap.argtypes = (ctypes.c_void_p, ctypes.c_size_t)


class _Pages:
    """Pages of a file, which go with the last array that shows them."""

    def __init__(self, descriptor: int, size: int) -> None:
        found = _libc.mmap(None, size, _PROT_READ, _MAP_SHARED, descriptor, 0)
        if found == _FAILED:
            problem = ctypes.get_errno()
            raise OSError(problem, os.strerror(problem))
        self._place, self._unmap = (found, size), _libc.munmap
        self.__array_interface__ = {"shape": (size,), "typestr": "|u1", "data": (found, True), "version": 3}

    def __del__(self) -> None:
        if hasattr(self, "_place"):
            self._unmap(*self._place)


def mapped(descriptor: int, size: int) -> NumpyArray:
    """The first bytes of an open file, mapped: they stay readable when the file is closed or removed.

    Raises:
        OSError: it cannot be mapped, or is shorter.
    """
    if os.fstat(descriptor).st_size < size:
        raise OSError(f"a file of less than {size} bytes")  # to read behind its end would end the process
    return np.asarray(_Pages(descriptor, size)) if size else np.empty(0, np.uint8)


def copied(file: BinaryIO, size: int) -> NumpyArray:
    """The next bytes of an open file, read into memory that any type may be read from.

    Raises:
        OSError: it cannot be read, or is shorter.
    """
    found = _aligned(size)
    if file.readinto(found.data) != size:  # type: ignore[attr-defined] # files that are opened have it
        raise OSError("it became shorter")
    found.flags.writeable = False
    return found


def copied_from(descriptor: int, start: int, size: int) -> NumpyArray:
    """The same from a byte on. Several threads may do so at the same time.

    Raises:
        OSError: it cannot be read, or is shorter.
    """
    found = _aligned(size)
    done = 0
    while done < size:
        count = os.preadv(descriptor, [found[done:].data], start + done)
        if not count:
            raise OSError("it became shorter")
        done += count
    found.flags.writeable = False
    return found


def _aligned(size: int) -> NumpyArray:
    memory = np.empty(size + ALIGNMENT, np.uint8)
    first = -memory.ctypes.data % ALIGNMENT
    return memory[first : first + size]
