"""``OrtValue``: an array on a device, or a sequence of such, as ONNX Runtime's programs make and bind it."""

from __future__ import annotations

import ctypes
import math
from collections.abc import Sequence
from typing import Any

import numpy as np

from tvmdml.errors import InvalidArgument, Unsupported, counted, message, safe_repr
from tvmdml.onnx.kinds import Kind
from tvmdml.onnx.providers import DEVICES, device
from tvmdml.onnx.types import dtype_of, is_ours
from tvmdml.system import at_hand
from tvmdml.targets import Target
from tvmdml.tensors import arrays
from tvmdml.tensors.arrays import NumpyArray
from tvmdml.tensors.arrays.device_array import DeviceArray

_MOST_RANK = 64


class OrtValue:
    """An array: ``array`` is NumPy's or a ``tvmdml.DeviceArray``; of a sequence, it is a list of them, and of nothing ``None``.

    ``numpy()`` gives its elements on the CPU.
    """

    def __init__(self, array: Any, dtype: Any = None) -> None:
        """An array of any library, whose memory is shared; a list of them for a sequence; or ``None`` for an optional value that is
        not there. ``dtype`` is the type of the tensors of a sequence without any.
        """
        self.array: Any
        if array is None:
            self.array = None
        elif isinstance(array, (list, tuple)):
            self.array = [arrays.view(held(one), "OrtValue") for one in array]
            dtype = self.array[0].dtype if self.array else dtype
        else:
            self.array = arrays.view(array, "OrtValue")
            dtype = self.array.dtype
        self._dtype = dtype

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
    def ortvalue_from_numpy_with_onnx_type(cls, data: Any, onnx_element_type: int) -> OrtValue:
        """The memory of a NumPy array, with its elements as those of another type of the same size.

        Raises:
            InvalidArgument: it is not an array, DirectML has no such type, or its elements have another size.
        """
        array, dtype = np.asarray(arrays.view(data, "ortvalue_from_numpy_with_onnx_type")), element(onnx_element_type)
        if array.dtype.itemsize != dtype.itemsize:
            given, allowed = f"elements of {array.dtype}", f"elements of {dtype.itemsize} bytes, as {dtype} has"
            raise InvalidArgument(message("ortvalue_from_numpy_with_onnx_type", given, allowed))
        return cls(array.view(dtype))

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
        return self.array.__dlpack_device__()

    def __repr__(self) -> str:
        """The type, sizes and device."""
        if self.array is None:
            return "<OrtValue of nothing>"
        if isinstance(self.array, list):
            return f"<OrtValue of {counted(len(self.array), 'tensor')} of {self._dtype}>"
        return f"<OrtValue {self.array.dtype}{self.shape()} on {self.device_name()}>"

    def numpy(self) -> NumpyArray:
        """The elements as a NumPy array: those of the CPU are not copied.

        Raises:
            InvalidArgument: it is not a tensor.
        """
        array = self._tensor("numpy")
        return array.numpy() if type(array) is DeviceArray else array

    def update_inplace(self, np_arr: Any) -> None:
        """Copy elements of the same type and shape into this memory.

        Raises:
            InvalidArgument: they are not of the same type and shape.
        """
        view, own = arrays.view(held(np_arr), "update_inplace"), self._tensor("update_inplace")
        if view.dtype != own.dtype or tuple(view.shape) != own.shape:
            allowed = f"{own.dtype}{self.shape()}"
            raise InvalidArgument(message("update_inplace", f"{view.dtype}{list(view.shape)}", allowed))
        arrays.assign(own, view)

    def data_ptr(self) -> int:
        """The address of the first element.

        Raises:
            Unsupported: the device's memory has no addresses.
        """
        array = self._tensor("data_ptr")
        if type(array) is not DeviceArray:
            return int(array.ctypes.data)
        space, address = array.start
        if space is not None:
            raise Unsupported(message("data_ptr", f"memory of {array.device}, which has no addresses", "CPU and CUDA"))
        return address

    def device_name(self) -> str:
        """The kind of device: cpu, cuda or vulkan."""
        array = self._tensor("device_name")
        return array.target.kind if type(array) is DeviceArray else "cpu"

    def shape(self) -> list[int]:
        """The sizes."""
        return list(self._tensor("shape").shape)

    def data_type(self) -> str:
        """ONNX's name of the type: ``tensor(float)``, ``seq(tensor(float))``."""
        at_hand("tvmdml.operators._onnx_messages")
        from tvmdml.operators._onnx_messages import messages

        tensor = f"tensor({messages().TensorProto.DataType.Name(self.element_type()).lower()})"
        return Kind(is_sequence=self.is_tensor_sequence()).named(tensor)

    def element_type(self) -> int:
        """ONNX's number of the type of the elements.

        Raises:
            InvalidArgument: it is nothing, or a sequence without tensors whose type nobody gave.
        """
        at_hand("tvmdml.operators._onnx_messages")
        from tvmdml.operators._onnx_messages import element_of

        if self._dtype is None:
            raise InvalidArgument(message("OrtValue element_type", f"{self!r}, whose type is not known", "a tensor"))
        return int(element_of(self._dtype))

    def tensor_size_in_bytes(self) -> int:
        """The bytes of all elements."""
        return int(self._tensor("tensor_size_in_bytes").nbytes)

    def has_value(self) -> bool:
        """Whether it is not an optional value that is not there."""
        return self.array is not None

    def is_tensor(self) -> bool:
        """Whether it is a tensor."""
        return self.array is not None and not isinstance(self.array, list)

    def is_sparse_tensor(self) -> bool:
        """False: there are no sparse tensors."""
        return False

    def is_tensor_sequence(self) -> bool:
        """Whether it is a sequence of tensors."""
        return isinstance(self.array, list)

    def _tensor(self, what: str) -> Any:
        """The array of a tensor."""
        if not self.is_tensor():
            advice = "Its tensors are in the list .array." if isinstance(self.array, list) else "has_value() says what is there."
            raise InvalidArgument(message(f"OrtValue {what}", repr(self), "a tensor", advice))
        return self.array


def copy_tensors(src: Sequence[OrtValue], dst: Sequence[OrtValue], stream: Any = None) -> None:
    """Copy the elements of values to others of the same types and shapes, on any devices; ``stream`` has no effect.

    Raises:
        InvalidArgument: there are not as many of both, or a type or shape differs.
    """
    if len(src) != len(dst):
        raise InvalidArgument(message("copy_tensors dst", counted(len(dst), "value"), f"{len(src)}, as many as in src"))
    for one, other in zip(src, dst, strict=True):
        other.update_inplace(one.numpy())


class OrtDevice:
    """``onnxruntime.OrtDevice``: the name and number of a device, in ONNX Runtime's numbers. ``make`` makes one."""

    def __init__(self, name: str, number: int) -> None:
        """Not public: ``make`` makes devices."""
        self._name, self._number = name, number

    @staticmethod
    def make(ort_device_name: str, device_id: int, vendor_id: int = -1) -> OrtDevice:
        """A device by its name: cpu, cuda, dml, gpu or vulkan; this machine need not have it. ``vendor_id`` has no effect.

        Raises:
            InvalidArgument: there is no such name, or the number is none.
        """
        name = ort_device_name.lower() if isinstance(ort_device_name, str) else ""
        if name not in DEVICES:
            raise InvalidArgument(message("OrtDevice.make", safe_repr(ort_device_name), ", ".join(DEVICES)))
        if not isinstance(device_id, (int, np.integer)) or device_id < 0:
            raise InvalidArgument(message("OrtDevice.make device_id", safe_repr(device_id), "an integer of 0 or more"))
        return OrtDevice(name, int(device_id))

    def __repr__(self) -> str:
        """The name and number."""
        return f"<OrtDevice {self._name}:{self._number}>"

    def device_id(self) -> int:
        """The number of the device."""
        return self._number

    def device_type(self) -> int:
        """0 for a processor, and 1 for a GPU."""
        return int(self._name != "cpu")

    def device_vendor_id(self) -> int:
        """The number of the vendor that the name stands for; 0 for none."""
        return {"cuda": 0x10DE, "dml": 0x1414}.get(self._name, 0)

    def device_mem_type(self) -> int:
        """0: the device's usual memory."""
        return 0


def held(one: Any) -> Any:
    """What an ``OrtValue`` holds; anything else as it is."""
    return one.array if isinstance(one, OrtValue) else one


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
