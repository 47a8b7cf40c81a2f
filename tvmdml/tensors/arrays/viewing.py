"""``reinterpret`` and ``broadcast``: the same memory as another tensor, of arrays on any device and of a graph's expressions."""

from __future__ import annotations

import itertools
import math
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, TypeVar

import numpy as np

from tvmdml.errors import InvalidArgument, message, safe_repr
from tvmdml.tensors import MAX_RANK, MOST_VALUES, ArrayTensorDesc, TensorDataType, arrays
from tvmdml.tensors.arrays import NumpyArray
from tvmdml.tensors.arrays.device_array import DeviceArray

if TYPE_CHECKING:
    from tvmdml.tensors import DType
    from tvmdml.tensors.annotations import Array

__all__ = ["broadcast", "reinterpret"]

_Array = TypeVar("_Array", bound="Array | arrays.Traced")


def reinterpret(
    input: _Array,  # noqa: A002
    sizes: Sequence[int],
    strides: Sequence[int] | None = None,
    dtype: DType | None = None,
) -> _Array:
    """A view of an array's memory with other sizes, strides and type, without a copy. DirectML has no operator for this.

    Args:
        input: an array, row-major without gaps; or an expression of a graph, with any strides.
        sizes: the new sizes: at most eight.
        strides: the new strides in elements; 0 repeats a dimension. By default row-major without gaps.
        dtype: the new type; by default the same.

    Returns:
        A view, of the input's kind. It has the input's memory: writing to it writes to the input.

    Raises:
        InvalidArgument: the view would reach outside of the input's memory, or the input has gaps.
    """
    if issubclass(type(input), arrays.Traced):
        return input.reinterpret(sizes, strides, dtype)  # type: ignore[union-attr] # an expression
    array = arrays.view(input, "reinterpret input")
    kind = array.dtype if dtype is None else TensorDataType.of(dtype, "reinterpret dtype").numpy
    shape = _several(sizes, "reinterpret sizes")
    desc = ArrayTensorDesc(TensorDataType.from_numpy(kind, "reinterpret dtype"), shape or (1,), strides)
    if not array.flags.c_contiguous:
        raise InvalidArgument(message("reinterpret input", f"strides {array.strides} in bytes", "a row-major array without gaps"))
    if desc.span_in_bytes > array.nbytes:
        given = f"{desc}, {desc.span_in_bytes} bytes"
        raise InvalidArgument(message("reinterpret sizes", given, f"a view inside of the input's {array.nbytes} bytes"))
    steps = tuple(step * kind.itemsize for step in desc.layout) if shape else ()
    return _seen(input, array, shape, steps, kind)


def broadcast(input: _Array, shape: Sequence[int]) -> _Array:  # noqa: A002
    """A view of an array that repeats it to a shape by NumPy's rules, without a copy: kernels read each element where it is.

    Args:
        input: an array, or an expression of a graph.
        shape: the sizes of the view: at most eight, the last of which agree with the input's, or repeat a size of 1.

    Returns:
        A view, of the input's kind. Do not write to it: its elements share memory.

    Raises:
        InvalidArgument: the input cannot be repeated to this shape.
    """
    sizes = _several(shape, "broadcast shape")
    if issubclass(type(input), arrays.Traced):
        return input.broadcast(*sizes)  # type: ignore[union-attr] # an expression
    array = arrays.view(input, "broadcast input")
    added = len(sizes) - array.ndim
    fits = 0 <= added <= len(sizes) <= MAX_RANK and all(n in (1, m) for n, m in zip(array.shape, sizes[added:], strict=True))
    if not fits or any(not isinstance(n, (int, np.integer)) or n < 0 for n in sizes):
        allowed = f"at most {MAX_RANK} sizes that {list(array.shape)} can be repeated to"
        raise InvalidArgument(message("broadcast shape", safe_repr(shape), allowed))
    own = (step if n == m else 0 for n, m, step in zip(array.shape, sizes[added:], array.strides, strict=True))
    return _seen(input, array, sizes, (0,) * added + tuple(own), array.dtype)


def _several(sizes: Any, where: str) -> tuple[Any, ...]:
    """Sizes, of which the first are enough to see that they are too many."""
    try:
        return tuple(itertools.islice(sizes, MOST_VALUES))
    except TypeError:
        raise InvalidArgument(message(where, safe_repr(sizes), "a sequence of sizes")) from None


def _seen(given: Any, array: NumpyArray, shape: tuple[int, ...], steps: tuple[int, ...], kind: np.dtype[Any]) -> Any:
    """Such a view of the array's memory, as the caller's kind of array."""
    if type(array) is DeviceArray:
        return DeviceArray(array.target, array.memory, array.offset, shape, kind, steps)
    if not math.prod(shape):
        found = np.empty(shape, kind)
    elif kind == array.dtype:
        found = np.lib.stride_tricks.as_strided(array, shape, steps)
    else:
        found = np.ndarray(shape, kind, array.reshape(-1).view(np.uint8), 0, steps)
    restore = arrays.restorer(given)
    return found if restore is None else restore(found)
