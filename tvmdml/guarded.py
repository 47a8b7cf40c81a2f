"""``Place``: a tensor in memory of its own with guards around it, for running code that nobody vouches for yet."""

from __future__ import annotations

import numpy as np

from tvmdml.arrays import NumpyArray
from tvmdml.tensors import TensorDesc

GUARD = 256
"""Bytes around each tensor that nobody may write to: as many as any device asks a tensor to begin on a multiple of."""
_UNTOUCHED = 0xA5


class Place:
    """A tensor in memory of its own, with guards on both sides.

    Args:
        desc: the tensor.
        shift: by how many elements it begins past a multiple of ``GUARD``; arrays of programs may begin at any element.
    """

    def __init__(self, desc: TensorDesc, shift: int = 0) -> None:
        self._desc = desc
        size = desc.span * desc.data_type.itemsize + 2 * GUARD
        memory = np.full(size + GUARD, _UNTOUCHED, np.uint8)
        start = (shift * desc.data_type.itemsize - memory.ctypes.data) % GUARD
        self.memory: NumpyArray = memory[start : start + size]
        self.array = self._within(self.memory)

    def _within(self, memory: NumpyArray) -> NumpyArray:
        dtype = self._desc.data_type.numpy
        strides = tuple(stride * dtype.itemsize for stride in self._desc.layout)
        found: NumpyArray = np.ndarray(self._desc.sizes, dtype, buffer=memory.data, offset=GUARD, strides=strides)
        return found

    def holding(self, values: NumpyArray) -> Place:
        """It, when values were put there; of elements that share a place, the last one stays."""
        self.array[...] = values
        return self

    def clear(self) -> Place:
        """It, as it was when it was made."""
        self.memory[...] = _UNTOUCHED
        return self

    def is_guarded(self) -> bool:
        """Whether all that is not the tensor's is as it was."""
        if self.array.flags.c_contiguous:
            return bool((self.memory[:GUARD] == _UNTOUCHED).all() and (self.memory[-GUARD:] == _UNTOUCHED).all())
        untouched = np.full_like(self.memory, _UNTOUCHED)
        self._within(untouched)[...] = self.array
        return np.array_equal(untouched, self.memory)
