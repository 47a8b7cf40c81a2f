"""``OrtValue``: an array on a device, as ONNX Runtime's programs make and bind it."""

from __future__ import annotations

import ctypes
import math
from collections.abc import Sequence
from typing import Any

import numpy as np

from tvmdml import arrays
from tvmdml.arrays import NumpyArray
from tvmdml.arrays.device_array import DeviceArray
from tvmdml.errors import InvalidArgument, Unsupported, message, safe_repr
from tvmdml.onnx.options import device
from tvmdml.onnx.types import dtype_of, is_ours
from tvmdml.targets import Target

_MOST_RANK = 64


class OrtValue:
    """An array: ``array`` is NumPy's or a ``tvmdml.DeviceArray``.

    ``numpy()`` gives its elements on the CPU.
    """

    def __init__(self, array: Any) -> None:
        """An array of any library; its memory is shared."""
        self.array: Any = arrays.view(array, "OrtValue")

    @classmethod
    def ortvalue_from_numpy(cls, numpy_obj: Any, device_type: str = "cpu", device_id: int = 0) -> OrtValue:
        """A copy of a NumPy array on a device; on the CPU the array itself.

        Raises:
            InvalidArgument: there is no such device, or it is not an array.
            DeviceError: this machine has no such device.
        """
        array = np.ascontiguousarray(arrays.view(numpy_obj, "ortvalue_from_numpy"))
        return cls(device(device_type, device_id).asarray(array.reshape(np.shape(numpy_obj))))

    @classmethod
    def ortvalue_from_shape_and_type(
        cls, shape: Sequence[int], element_type: Any = np.float32, device_type: str = "cpu", device_id: int = 0
    ) -> OrtValue:
        """Memory of a shape, with undefined elements.

        Raises:
            InvalidArgument: there is no such shape, type or device.
            DeviceError: this machine has no such device.
        """
        return cls(device(device_type, device_id).empty(checked_shape(shape), element(element_type)))

    @classmethod
    def from_dlpack(cls, data: Any, /) -> OrtValue:
        """The same memory as an array of another library."""
        return cls(data)

    def __array__(self, dtype: Any = None, copy: bool | None = None) -> NumpyArray:
        """``numpy.asarray(value)``."""
        return np.asarray(self.numpy(), dtype)

    def __dlpack__(self, **given: Any) -> Any:
        """``from_dlpack`` of other libraries calls this."""
        return self.array.__dlpack__(**given)

    def __dlpack_device__(self) -> tuple[int, int]:
        """The device, in DLPack's terms."""
        found: tuple[int, int] = self.array.__dlpack_device__()
        return found

    def __repr__(self) -> str:
        """The type, sizes and device."""
        return f"<OrtValue {self.array.dtype}{self.shape()} on {self.device_name()}>"

    def numpy(self) -> NumpyArray:
        """The elements as a NumPy array: those of the CPU are not copied."""
        found: NumpyArray = self.array.numpy() if type(self.array) is DeviceArray else self.array
        return found

    def update_inplace(self, np_arr: Any) -> None:
        """Copy elements of the same type and shape into this memory.

        Raises:
            InvalidArgument: they are not of the same type and shape.
        """
        view = arrays.view(np_arr, "update_inplace")
        if view.dtype != self.array.dtype or tuple(view.shape) != self.array.shape:
            allowed = f"{self.array.dtype}{self.shape()}"
            raise InvalidArgument(message("update_inplace", f"{view.dtype}{list(view.shape)}", allowed))
        arrays.assign(self.array, view)

    def data_ptr(self) -> int:
        """The address of the first element.

        Raises:
            Unsupported: the device's memory has no addresses.
        """
        if type(self.array) is not DeviceArray:
            return int(self.array.ctypes.data)
        space, address = self.array.start
        if space is not None:
            raise Unsupported(message("data_ptr", f"memory of {self.array.device}, which has no addresses", "CPU and CUDA"))
        return address

    def device_name(self) -> str:
        """The kind of device: cpu, cuda or vulkan."""
        return self.array.target.kind if type(self.array) is DeviceArray else "cpu"

    def shape(self) -> list[int]:
        """The sizes."""
        return list(self.array.shape)

    def data_type(self) -> str:
        """ONNX's name of the type: ``tensor(float)``."""
        import onnx

        return f"tensor({onnx.TensorProto.DataType.Name(self.element_type()).lower()})"

    def element_type(self) -> int:
        """ONNX's number of the type of the elements."""
        import onnx

        return int(onnx.helper.np_dtype_to_tensor_dtype(self.array.dtype))

    def tensor_size_in_bytes(self) -> int:
        """The bytes of all elements."""
        return int(self.array.nbytes)

    def has_value(self) -> bool:
        """True: there are no empty values."""
        return True

    def is_tensor(self) -> bool:
        """True: there are only tensors."""
        return True

    def is_sparse_tensor(self) -> bool:
        """False: there are no sparse tensors."""
        return False

    def is_tensor_sequence(self) -> bool:
        """False: there are no sequences."""
        return False


def element(given: Any) -> np.dtype[Any]:
    """A NumPy type, or the type of ONNX's number.

    Raises:
        InvalidArgument: it is neither, or DirectML has no such type.
    """
    found: np.dtype[Any] | None
    try:
        found = dtype_of(given) if isinstance(given, int) else np.dtype(given)
    except (TypeError, ValueError):
        found = None
    if found is None or not is_ours(found):
        raise InvalidArgument(
            message("element_type", safe_repr(given), "a NumPy type or ONNX's number of a type that DirectML has")
        )
    return found


def checked_shape(given: Any) -> tuple[int, ...]:
    """Sizes as integers.

    Raises:
        InvalidArgument: they are none.
    """
    try:
        found = tuple(int(n) for n in given)
        if len(found) <= _MOST_RANK and min(found, default=0) >= 0 and math.prod(found) < 1 << 48:
            return found
    except (TypeError, ValueError):
        pass
    raise InvalidArgument(message("shape", safe_repr(given), "integers of 0 or more"))


def at_address(address: int, shape: Any, element_type: Any, target: Target) -> Any:
    """Memory of the caller as an array. It must stay alive, and be as large as the caller says.

    Raises:
        InvalidArgument: the address, shape or type is none.
        Unsupported: the device's memory has no addresses.
    """
    sizes, dtype = checked_shape(shape), element(element_type)
    if not isinstance(address, int) or address <= 0 or address % dtype.itemsize:
        raise InvalidArgument(message("buffer_ptr", safe_repr(address), f"the address of aligned memory of {dtype}{list(sizes)}"))
    if target.kind == "cpu":
        memory = memoryview((ctypes.c_ubyte * (dtype.itemsize * math.prod(sizes))).from_address(address))
        return np.frombuffer(memory, dtype).reshape(sizes)
    if target.kind == "cuda":
        about = {"shape": sizes, "typestr": dtype.str, "data": (address, False), "version": 3, "strides": None}
        return arrays.view(_Foreign(about), "buffer_ptr", write=True)
    raise Unsupported(message("buffer_ptr", f"an address on {target}", "the CPU and CUDA", "Bind an OrtValue instead."))


class _Foreign:
    """Memory at an address of a CUDA device."""

    def __init__(self, about: dict[str, Any]) -> None:
        self.__cuda_array_interface__ = about
