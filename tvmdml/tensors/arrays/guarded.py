"""``GuardedTensor``: a tensor in its own memory with guard bytes around it, for running code that is not trusted yet."""

from __future__ import annotations

import numpy as np

from tvmdml.tensors import TensorDesc
from tvmdml.tensors.arrays import NumpyArray

GUARD = 256
"""The guard bytes on each side of a tensor, which nobody may write to; also the largest alignment that any device needs."""
_UNTOUCHED = 0xA5


class GuardedTensor:
    """A tensor in its own memory, with guard bytes on both sides.

    Args:
        desc: the tensor.
        shift: the number of elements by which its start is moved from a multiple of ``GUARD``: users' arrays may start anywhere.
    """

    def __init__(self, desc: TensorDesc, shift: int = 0) -> None:
        self._desc = desc
        self._stored = desc.stored
        size = desc.span_in_bytes + 2 * GUARD
        memory = np.full(size + GUARD, _UNTOUCHED, np.uint8)
        start = (shift * desc.data_type.itemsize - memory.ctypes.data) % GUARD
        self.memory: NumpyArray = memory[start : start + size]
        self.array = self._within(self.memory)

    def _within(self, memory: NumpyArray) -> NumpyArray:
        dtype = self._stored.data_type.numpy
        strides = tuple(stride * dtype.itemsize for stride in self._stored.layout)
        return np.ndarray(self._stored.sizes, dtype, buffer=memory.data, offset=GUARD, strides=strides)

    def holding(self, values: NumpyArray) -> GuardedTensor:
        """Write the values, and return this; if elements share memory, the last one remains."""
        self._copy(self.array, values)
        return self

    def _copy(self, array: NumpyArray, values: NumpyArray) -> None:
        """Write the values, except the bytes of a 4-bit tensor that have no element."""
        if self._desc.data_type.is_nibble and not self._desc.is_packed:
            used = self._desc.used_bytes()
            array[used] = values[used]
        else:
            array[...] = values

    def clear(self) -> GuardedTensor:
        """Restore the initial contents, and return this."""
        self.memory[...] = _UNTOUCHED
        return self

    def is_guarded(self) -> bool:
        """Whether all bytes outside of the tensor are unchanged."""
        if self._desc.is_packed or self.array.size == 0:
            return bool((self.memory[:GUARD] == _UNTOUCHED).all() and (self.memory[-GUARD:] == _UNTOUCHED).all())
        untouched = np.full_like(self.memory, _UNTOUCHED)
        self._copy(self._within(untouched), self.array)
        return np.array_equal(untouched, self.memory)
