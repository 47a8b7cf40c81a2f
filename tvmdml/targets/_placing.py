"""``asarray`` and ``empty``: arrays on any device."""

from __future__ import annotations

import itertools
import math
import operator
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, Literal, overload

import numpy as np

from tvmdml import targets
from tvmdml.errors import InvalidArgument, message, safe_repr
from tvmdml.targets import Target
from tvmdml.tensors import MAX_RANK, TYPE_NAMES, TensorDataType, arrays
from tvmdml.tensors.arrays import NumpyArray
from tvmdml.tensors.arrays.device_array import DeviceArray

if TYPE_CHECKING:
    import numpy.typing as npt

    from tvmdml.typing import Array, DType


@overload
def asarray(array: Array | npt.ArrayLike, device: Literal["cpu"] = "cpu") -> NumpyArray: ...
@overload
def asarray(array: Array | npt.ArrayLike, device: Literal["cuda", "cuda:0", "vulkan", "vulkan:0"]) -> DeviceArray: ...
@overload
def asarray(array: Array | npt.ArrayLike, device: str | Target) -> NumpyArray | DeviceArray: ...
def asarray(array: Any, device: str | Target = "cpu") -> Any:
    """An array on a device: a ``DeviceArray``, or on the CPU a NumPy array.

    Args:
        array: an array of NumPy, PyTorch, CuPy or any library with DLPack, a DeviceArray, or nested lists of numbers.
        device: the device: ``"cpu"``, ``"cuda:0"``, ``"vulkan"``, ``"vulkan:0"``.

    Returns:
        A packed copy of the array, or the array itself if it is already there. For another library's array that is already there, a
        DeviceArray that shares its memory and keeps it alive.

    Raises:
        InvalidArgument: it is not an array, its data type is not one of DirectML's, or no device has that name.
        DeviceError: this machine has no such device, or the device does not have enough memory.
    """
    target = targets.resolve(device, "asarray device")
    if isinstance(array, (list, tuple, int, float, bool)):
        try:
            array = np.asarray(array)
        except Exception as error:  # an element's conversion may raise anything
            given = f"a {type(array).__name__} that is not an array ({error})"
            raise InvalidArgument(
                message("asarray array", given, "nested lists that all have the same length at each depth")
            ) from None
    view = arrays.view(array, "asarray array")
    if type(view) is DeviceArray:
        return view if view.target == target or view.target == target.home else target.asarray(view.numpy())
    if view.dtype != np.bool_:
        TensorDataType.from_numpy(view.dtype, "asarray array")
    return target.asarray(view)


@overload
def empty(shape: int | Sequence[int], *, dtype: DType = "float32", device: Literal["cpu"] = "cpu") -> NumpyArray: ...
@overload
def empty(
    shape: int | Sequence[int], *, dtype: DType = "float32", device: Literal["cuda", "cuda:0", "vulkan", "vulkan:0"]
) -> DeviceArray: ...
@overload
def empty(shape: int | Sequence[int], *, dtype: DType = "float32", device: str | Target) -> NumpyArray | DeviceArray: ...
def empty(shape: int | Sequence[int], *, dtype: DType = "float32", device: str | Target = "cpu") -> Any:
    """A new array on a device, with undefined content, for use as an output.

    Args:
        shape: the sizes, or the size of a one-dimensional array.
        dtype: one of DirectML's data types, by name or as a NumPy type.
        device: the device: ``"cpu"``, ``"cuda:0"``, ``"vulkan"``, ``"vulkan:0"``.

    Returns:
        A ``DeviceArray``, or on the CPU a NumPy array.

    Raises:
        InvalidArgument: the shape, data type or device is invalid.
        DeviceError: this machine has no such device, or the device does not have enough memory.
    """
    data_type = TensorDataType.of(dtype, "empty dtype")
    if data_type.is_nibble:
        advice = "TensorDesc.stored has the number of bytes for 4-bit elements, of type uint8."
        raise InvalidArgument(message("empty dtype", data_type.tvm, TYPE_NAMES, advice))
    kind = data_type.numpy
    try:
        given = (shape,) if isinstance(shape, (int, np.integer)) else itertools.islice(shape, MAX_RANK + 1)  # it may be endless
        sizes = tuple(operator.index(n) for n in given)
    except (TypeError, RuntimeError):  # PyTorch raises RuntimeError for a tensor that is too large
        sizes = (-1,)
    if len(sizes) > MAX_RANK or any(n < 0 for n in sizes) or math.prod(n or 1 for n in sizes) * kind.itemsize >= 1 << 63:
        allowed = f"up to {MAX_RANK} non-negative integers, for an array that fits in memory"
        raise InvalidArgument(message("empty shape", safe_repr(shape), allowed))
    return targets.resolve(device, "empty device").empty(sizes, kind)
