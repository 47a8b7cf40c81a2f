"""Arrays of this package on CUDA devices, given to other libraries: by DLPack, and by ``__cuda_array_interface__``."""

from __future__ import annotations

import operator
from typing import Any

from tvmdml.errors import InvalidArgument, message, safe_repr
from tvmdml.targets.cuda import dlpack, header
from tvmdml.tensors.arrays.device_array import DeviceArray


def dlpack_device(array: DeviceArray) -> tuple[int, int]:
    """``__dlpack_device__`` of an array."""
    return dlpack.CUDA, number(array.target)


def to_dlpack(array: DeviceArray, stream: Any, max_version: Any, dl_device: Any, copy: bool | None) -> Any:
    """``__dlpack__`` of an array.

    Raises:
        BufferError: the array cannot be exported as requested.
        InvalidArgument: there is no such stream, or an argument is invalid.
    """
    if copy is not None and not isinstance(copy, bool):
        raise InvalidArgument(message("DeviceArray.__dlpack__ copy", safe_repr(copy), "True, False or None"))
    version, device = _two("max_version", max_version), _two("dl_device", dl_device)
    versioned = version is not None and version >= (1, 0)
    here = dlpack_device(array)
    if device is not None and device != here:
        if device != (1, 0) or copy is False:
            given, allowed = f"device {device}", f"{here}, or (1, 0) if a copy is allowed"
            raise BufferError(message("DeviceArray.__dlpack__", given, allowed))
        keywords: dict[str, Any] = {"max_version": version} if versioned else {}
        return array.numpy().__dlpack__(**keywords)
    if copy:
        array = array.copy()
    elif not array.writeable and not versioned:
        raise BufferError("DeviceArray.__dlpack__: an older capsule cannot mark the array as read-only: request version 1")
    flags = (0 if array.writeable else dlpack.READ_ONLY) | (dlpack.COPIED if copy else 0)
    address = array.memory.address + array.offset
    capsule = dlpack.make(array.memory, address, here[1], array.shape, array.strides, array.dtype, versioned, flags)
    consumer = _consumer(stream)
    if consumer is not None:
        _hand_over(array, consumer)
    return capsule


def _two(name: str, value: Any) -> tuple[int, int] | None:
    """A DLPack argument that is two integers, or absent."""
    if value is None:
        return None
    try:
        one, other = value
        return operator.index(one), operator.index(other)
    except (TypeError, ValueError):
        raise InvalidArgument(message(f"DeviceArray.__dlpack__ {name}", safe_repr(value), "two integers, or None")) from None


def interface(array: DeviceArray) -> dict[str, Any]:
    """``__cuda_array_interface__`` of an array, version 3."""
    stream = _hand_over(array, None)
    return {
        "shape": array.shape,
        "typestr": array.dtype.str,
        "data": (array.memory.address + array.offset if array.size else 0, not array.writeable),
        "strides": None if array.flags.c_contiguous else array.strides,
        "stream": stream or header.CU_STREAM_LEGACY,
        "version": 3,
    }


def _consumer(stream: Any) -> int | None:
    """The stream that DLPack's argument names; ``None`` if the consumer handles the order itself."""
    if stream is None:
        return 0
    try:
        wanted = operator.index(stream)
    except TypeError:
        wanted = 0
    if wanted == 0 or wanted < -1:
        allowed = "None, -1, 1 (the legacy default stream), 2 (the per-thread one), or a stream's handle"
        raise InvalidArgument(message("DeviceArray.__dlpack__ stream", safe_repr(stream), allowed))
    return None if wanted == -1 else handle(wanted)


def _hand_over(array: DeviceArray, stream: int | None) -> int:
    """Make a stream wait for the work on an array. If no stream is given, use the one that the array was last used on."""
    memory = array.memory
    if array.is_foreign:
        last: int = memory.stream()
        if stream is not None:
            memory.device.follow(stream, last)
        return last
    if stream is None:
        stream = memory.stream if memory.stream >= 0 else memory.device.stream()
    memory.device.order(memory, stream)
    return stream


def handle(stream: int) -> int:
    """One handle for the legacy and the per-thread default streams, because these wait for each other."""
    return 0 if stream in (header.CU_STREAM_LEGACY, header.CU_STREAM_PER_THREAD) else stream


def number(target: Any) -> int:
    """A device's number."""
    return target.info.index
