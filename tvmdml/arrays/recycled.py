"""New arrays for large results on the CPU, in memory that is used again as soon as nobody has the array any more.

The system fills each page with zeros at its first use, at 2 to 4 GB/s, and the C library soon gives back to the system what a
program frees. A model with large results, such as a decoder that returns its past, would pay for that in every run.
"""

from __future__ import annotations

import threading
from collections import deque
from typing import Any

import numpy as np

from tvmdml.arrays import NumpyArray

LEAST = 1 << 18
"""Bytes of the smallest array that is worth it."""
MOST = 1 << 28
"""The most bytes that are kept while no array uses them."""
_ALIGNMENT = 64


def empty(shape: tuple[int, ...], dtype: Any) -> NumpyArray:
    """A new array with undefined contents, as ``numpy.empty`` makes it; its memory is kept for later arrays of about this size."""
    made = np.dtype(dtype)
    nbytes = made.itemsize
    for size in shape:
        nbytes *= size
    return np.empty(shape, made) if nbytes < LEAST or made.hasobject else np.asarray(_Lease(_KEPT.take(_room(nbytes)), shape, made))


def clear() -> None:
    """Give the memory that no array uses now back to the system."""
    _KEPT.clear()


def _room(nbytes: int) -> int:
    """The bytes of a block for this many: at most an eighth more, so that results that grow find the blocks of earlier ones."""
    step = 1 << max(12, (nbytes - 1).bit_length() - 4)
    return -(-nbytes // step) * step


class _Kept:
    """Blocks of memory that no array uses."""

    def __init__(self) -> None:
        self.bytes = 0
        self._blocks: list[NumpyArray] = []
        """The oldest first."""
        self._returned: deque[NumpyArray] = deque()
        """Blocks that came back while a thread was in here. Both ends of a deque may be used at the same time."""
        self._lock = threading.Lock()

    def take(self, room: int) -> NumpyArray:
        """A block of exactly this many bytes, and some for its alignment."""
        with self._lock:
            self._collect()
            for i in reversed(range(len(self._blocks))):
                if self._blocks[i].nbytes == room + _ALIGNMENT:
                    self.bytes -= self._blocks[i].nbytes
                    return self._blocks.pop(i)
        return np.empty(room + _ALIGNMENT, np.uint8)

    def give(self, block: NumpyArray) -> None:
        """Take a block back. This may run at any moment, even while ``take`` runs in the same thread: it never waits."""
        self._returned.append(block)
        if self._lock.acquire(blocking=False):
            try:
                self._collect()
            finally:
                self._lock.release()

    def clear(self) -> None:
        """Free all blocks."""
        with self._lock:
            self._collect()
            self._blocks.clear()
            self.bytes = 0

    def _collect(self) -> None:
        while self._returned:
            block = self._returned.popleft()
            self._blocks.append(block)
            self.bytes += block.nbytes
        while self.bytes > MOST:
            self.bytes -= self._blocks.pop(0).nbytes


_KEPT = _Kept()


class _Lease:
    """What an array's memory belongs to: when the last array and view of it is gone, the memory is free again."""

    __slots__ = ("__array_interface__", "_block")

    def __init__(self, block: NumpyArray, shape: tuple[int, ...], dtype: np.dtype[Any]) -> None:
        address = block.ctypes.data
        self._block = block
        self.__array_interface__ = {
            "data": (address + -address % _ALIGNMENT, False),
            "shape": shape,
            "typestr": dtype.str,
            "version": 3,
        }

    def __del__(self, give: Any = _KEPT.give) -> None:
        give(self._block)
