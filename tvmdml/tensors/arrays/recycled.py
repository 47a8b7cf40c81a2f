"""New arrays for large results on the CPU, in memory that is used again as soon as nobody has the array any more.

The system fills each page with zeros at its first use, at 2 to 4 GB/s, and the C library soon gives back to the system what a
program frees. A model with large results, such as a decoder that returns its past, would pay for that in every run.
"""

from __future__ import annotations

import itertools
from typing import Any

import numpy as np

from tvmdml.tensors.arrays import NumpyArray

LEAST = 1 << 18
"""Bytes of the smallest array that is worth it."""
MOST = 1 << 28
"""The most bytes that are kept while no array uses them."""
_ALIGNMENT = 64  # a cache line


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
    """Some memory."""

    __slots__ = ("address", "memory", "room", "turn")

    def __init__(self, room: int) -> None:
        self.room = room
        self.memory = np.empty(room + _ALIGNMENT, np.uint8)
        address = self.memory.ctypes.data
        self.address = address + -address % _ALIGNMENT
        self.turn = 0
        """Of two blocks, the one with the smaller number was given back before the other one."""


class _Shelf(list[_Block]):
    """Blocks of as many bytes as each other, the oldest first."""

    def __init__(self, room: int) -> None:
        super().__init__()
        self.room = room


class _Kept:
    """Blocks of memory that no array uses.

    There is no lock: a signal, or the collector, may come back into these functions anywhere, and a forked process would wait for
    ever for a thread that it does not have. Each change of a shelf, or of the shelves, is a single step, after which all is whole.
    """

    def __init__(self) -> None:
        self._shelves: dict[int, _Shelf] = {}
        """By their blocks' bytes. None is ever taken away: there are a few for each power of two."""
        self._turns = itertools.count()

    @property
    def bytes(self) -> int:
        """The bytes of all blocks."""
        total = 0
        for shelf in list(self._shelves.values()):
            total += len(shelf) * shelf.room
        return total

    def take(self, room: int) -> _Block:
        """A block of exactly this many bytes, and some for its alignment."""
        try:
            return self._shelves[room].pop()
        except (KeyError, IndexError):
            return _Block(room)

    def give(self, block: _Block) -> None:
        """Take a block back, and free the oldest ones if there are too many."""
        if block.room > MOST:
            return
        block.turn = next(self._turns)
        if (shelf := self._shelves.get(block.room)) is None:
            shelf = self._shelves.setdefault(block.room, _Shelf(block.room))
        shelf.append(block)
        more = self.bytes - MOST
        while more > 0:
            try:
                oldest = min(filter(None, list(self._shelves.values())), key=_turn)
                more -= oldest.pop(0).room
            except (IndexError, ValueError):  # another thread has taken the last one meanwhile
                return

    def clear(self) -> None:
        """Free all blocks."""
        for shelf in list(self._shelves.values()):
            shelf.clear()


def _turn(shelf: _Shelf) -> int:
    return shelf[0].turn


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
