"""Weights as packers read and write them. It knows neither operators nor passes."""

from __future__ import annotations

import math
from collections.abc import Iterable
from typing import Any

import numpy as np

from tvmdml.kernels import persistent
from tvmdml.kernels.persistent import Packing
from tvmdml.targets import Target
from tvmdml.tensors import TensorDesc
from tvmdml.tensors.arrays import NumpyArray
from tvmdml.tensors.arrays.device_array import DeviceArray


def reading(array: NumpyArray, offset: int, tensor: TensorDesc) -> NumpyArray:
    """A view of memory as a tensor, from a byte on."""
    stored = tensor.stored
    dtype = stored.data_type.numpy
    flat = array.reshape(-1).view(np.uint8) if array.nbytes else np.empty(0, np.uint8)
    if not math.prod(stored.sizes):
        return np.empty(stored.sizes, dtype)
    part = flat[offset : offset + stored.span_in_bytes]
    strides = tuple(step * dtype.itemsize for step in stored.layout)
    if (part.ctypes.data % dtype.itemsize) != 0:
        part = part.copy()
    return np.ndarray(stored.sizes, dtype, part, 0, strides)


def packed(packing: Packing, read: Iterable[tuple[Any, int, TensorDesc]], target: Target) -> Any:
    """A packed weight.

    Args:
        packing: how it is packed.
        read: what is packed: an array, where it begins there, and how it lies.
        target: where it is.
    """
    given: list[Any] = [
        memory if type(memory) is DeviceArray else target.place(reading(memory, offset, tensor)) for memory, offset, tensor in read
    ]
    buffer = persistent.empty((packing.owned.elements,), np.dtype(packing.owned.dtype), target)
    packing.launch(*given, buffer)
    return buffer
