"""``Device``: where graphs run. ``Buffer``: a tensor in its memory."""

from __future__ import annotations

import math
import os
from pathlib import Path
from typing import Any

import numpy as np

from tvmdml import targets
from tvmdml.directml.tensors import TensorDesc, check_cast, numpy_type
from tvmdml.tensors.arrays import NumpyArray
from tvmdml.tensors.arrays.device_array import DeviceArray

_NODES = ("/dev/nvidiactl", "/dev/dxg", "/dev/dri")
"""Files that exist where the system has a GPU: without them no driver is asked, which takes time."""


class Device:
    """A device: the best GPU of this machine, or its processor.

    The environment variable ``TVMDML_DEVICE`` names another one for ``use_gpu=True``, as in ``tvmdml.compile``'s ``target``.

    Args:
        use_gpu: whether to use a GPU, if there is one.
        use_debug_layer: accepted; it has no effect.

    Raises:
        ValueError, RuntimeError: ``TVMDML_DEVICE`` names no device, or one that this machine does not have.
    """

    def __init__(self, *, use_gpu: bool = True, use_debug_layer: bool = False) -> None:
        named = os.environ.get("TVMDML_DEVICE", "")
        self._target = targets.resolve((named or _best()) if use_gpu else "cpu", "TVMDML_DEVICE")

    @property
    def target(self) -> targets.Target:
        """The target that graphs of this device are compiled for."""
        return self._target

    def __repr__(self) -> str:
        return f"dml.Device on {'CPU' if self._target.kind == 'cpu' else 'GPU'}"


def _best() -> str:
    """The name of the first GPU that works, else the CPU's."""
    if not any(Path(node).exists() for node in _NODES):
        return "cpu"
    for kind in ("cuda", "vulkan"):
        for row in targets.gpus(kind):
            if kind != "cuda" or "compiles with" in row["state"]:
                return row["target"]
    return "cpu"


class Buffer:
    """A tensor in a device's memory. Where an array can be bound, a Buffer can, and nothing is copied then.

    Args:
        device: the device.
        array: the numbers: all that ``numpy.asarray`` takes.
        dtype: the type; by default the array's.

    Raises:
        TypeError: DirectML has no such type.
        ValueError: the array is not converted to this type without ``astype``.
    """

    def __init__(self, device: Device, array: Any, dtype: Any = None) -> None:
        if not isinstance(device, Device):
            raise TypeError(f"Buffer device: given {type(device).__name__}; allowed: a Device")
        given = np.asarray(array)
        target = numpy_type(given.dtype if dtype is None else dtype)
        check_cast(given, target, "the Buffer")
        self._hold(device, np.array(given, target).reshape(-1), given.shape or (1,))

    def _hold(self, device: Device, memory: Any, shape: tuple[int, ...]) -> None:
        self._device = device
        self._memory = placed(device, memory)
        self._desc = TensorDesc(memory.dtype, shape)

    @classmethod
    def holding(cls, device: Device, array: Any) -> Buffer:
        """A Buffer of an array that nothing else writes to: it is not copied if it is on the device."""
        found = cls.__new__(cls)
        found._hold(device, _flattened(array), tuple(array.shape) or (1,))
        return found

    @property
    def memory(self) -> Any:
        """The array on the device that has the elements in row-major order."""
        return self._memory

    @property
    def desc(self) -> TensorDesc:
        """The tensor."""
        return self._desc

    @property
    def device(self) -> Device:
        """The device."""
        return self._device

    @property
    def shape(self) -> tuple[int, ...]:
        """The sizes."""
        return tuple(self._desc.sizes)

    @property
    def strides(self) -> tuple[int, ...] | None:
        """``None``: a Buffer has no gaps."""
        return None

    @property
    def dtype(self) -> np.dtype[Any]:
        """The NumPy type."""
        return numpy_type(self._desc.data_type)

    @property
    def size(self) -> int:
        """The number of elements."""
        return math.prod(self._desc.sizes)

    @property
    def nbytes(self) -> int:
        """The number of bytes."""
        return self.size * self.dtype.itemsize

    def numpy(self) -> NumpyArray:
        """A copy of the elements."""
        found: NumpyArray = self._memory.numpy() if type(self._memory) is DeviceArray else self._memory.copy()
        return found.reshape(self.shape)

    def __repr__(self) -> str:
        return f"<dml.Buffer {self.dtype.name} {list(self.shape)}>"


def _flattened(array: Any) -> Any:
    """The elements of an array without gaps, as a view."""
    if type(array) is not DeviceArray:
        return array.reshape(-1)
    return DeviceArray(array.target, array.memory, array.offset, (array.size,), array.dtype, (array.itemsize,))


def placed(device: Device, array: Any) -> Any:
    """An array as the device's kernels take it."""
    return array if type(array) is DeviceArray or not device.target.moves else device.target.asarray(array)
