"""Inputs that never change (OWNED_BY_DML): copied once, packed if their kernel takes them packed, and kept."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np

from tvmdml.kernels.kernel import Owned
from tvmdml.targets import Launch, Target
from tvmdml.tensors import TensorDesc
from tvmdml.tensors.arrays import NumpyArray, assign

ALIGNMENT = 256
"""Persistent and temporary memory begins at multiples of these bytes."""


class Packing(NamedTuple):
    """How an input is packed."""

    owned: Owned
    """What is packed."""
    launch: Launch
    """Packs it: launched on the arrays of ``owned.inputs``, and the buffer, whose bytes were 0."""


def size(nbytes: int) -> int:
    """The bytes of a buffer, with those that are lost before the next one."""
    return -(-nbytes // ALIGNMENT) * ALIGNMENT


def keep(
    present: Sequence[tuple[str, TensorDesc]], packings: Sequence[Packing], arrays: Mapping[str, NumpyArray], target: Target
) -> dict[str, Any]:
    """What a kernel is launched on in place of owned inputs, by their names; the arrays may change afterwards.

    Args:
        present: the owned inputs.
        packings: how some of them are packed.
        arrays: their arrays, which were checked.
        target: where they are kept.
    """
    found: dict[str, Any] = {}
    for owned, launch in packings:
        buffer = empty((owned.elements,), np.dtype(owned.dtype), target)
        launch(*(arrays[name] for name in owned.inputs), buffer)
        found[owned.name] = buffer
    for name, desc in present:
        if name not in found:
            found[name] = target.place(arrays[name]) if target.moves else _copied(arrays[name], desc)
    target.wait()
    return found


def empty(shape: tuple[int, ...], dtype: np.dtype[Any], target: Target) -> Any:
    """Memory of zeros for a packed input."""
    if target.moves:
        return target.asarray(np.zeros(shape, dtype))
    return _aligned(int(np.prod(shape)) * dtype.itemsize).view(dtype).reshape(shape)


def _aligned(nbytes: int) -> NumpyArray:
    memory = np.zeros(nbytes + ALIGNMENT, np.uint8)
    start = -memory.ctypes.data % ALIGNMENT
    return memory[start : start + nbytes]


def _copied(array: NumpyArray, desc: TensorDesc) -> NumpyArray:
    """A copy with the strides of the description."""
    stored = desc.stored
    dtype = stored.data_type.numpy
    memory = _aligned(stored.span * dtype.itemsize).view(dtype)
    found: NumpyArray = np.ndarray(stored.sizes, dtype, memory, 0, tuple(step * dtype.itemsize for step in stored.layout))
    assign(found, array)
    return found
