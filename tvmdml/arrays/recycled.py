"""New arrays for large results on the CPU, in memory that is used again as soon as nobody has the array any more.

The system fills each page with zeros at its first use, at 2 to 4 GB/s, and the C library soon gives back to the system what a
program frees. A model with large results, such as a decoder that returns its past, would pay for that in every run.
"""

from __future__ import annotations

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


class _Block:
    """Some memory. Two of them are never equal, so that a list finds one without looking at the memory."""

    __slots__ = ("address", "memory", "room")

    def __init__(self, room: int) -> None:
        self.room = room
        self.memory = np.empty(room + _ALIGNMENT, np.uint8)
        address = self.memory.ctypes.data
        self.address = address + -address % _ALIGNMENT


class _Kept:
    """Blocks of memory that no array uses.

    There is no lock: a signal, or the collector, may come back into these functions anywhere, and a forked process would wait for
    ever for a thread that it does not have. Each change of the list is a single step, after which the list is whole.
    """

    def __init__(self) -> None:
        self._blocks: list[_Block] = []
        """The oldest first."""
        self._largest = 0
        """No block was larger."""

    @property
    def bytes(self) -> int:
        """The bytes of all blocks."""
        return sum([block.room for block in self._blocks[:]])

    def take(self, room: int) -> _Block:
        """A block of exactly this many bytes, and some for its alignment."""
        for block in reversed(self._blocks[:]):
            if block.room == room:
                try:
                    self._blocks.remove(block)
                except ValueError:  # another thread has taken it meanwhile
                    continue
                return block
        return _Block(room)

    def give(self, block: _Block) -> None:
        """Take a block back, and free the oldest ones if there are too many."""
        if block.room > MOST:
            return
        self._largest = max(
            self._largest, block.room
        )  # a thread may undo what another one did meanwhile: then it is done next time
        self._blocks.append(block)
        if len(self._blocks) * self._largest <= MOST:
            return
        more = self.bytes - MOST
        while more > 0 and self._blocks:
            try:
                more -= self._blocks.pop(0).room
            except IndexError:  # another thread has taken the last one meanwhile
                return

    def clear(self) -> None:
        """Free all blocks."""
        self._blocks.clear()


_KEPT = _Kept()


class _Lease:
    """What an array's memory belongs to: when the last array and view of it is gone, the memory is free again."""

    __slots__ = ("__array_interface__", "_block")

    def __init__(self, block: _Block, shape: tuple[int, ...], dtype: np.dtype[Any]) -> None:
        self._block = block
        self.__array_interface__ = {
            "data": (block.address, False),
            "shape": shape,
            "typestr": dtype.str,
            "version": 3,
        }

    def __del__(self, give: Any = _KEPT.give) -> None:
        give(self._block)
