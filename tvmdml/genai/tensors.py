"""``Tensor`` and ``NamedTensors``: arrays as ONNX Runtime GenAI hands them around."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np

from tvmdml.errors import InvalidArgument, message, safe_repr
from tvmdml.genai.refusing import Refused
from tvmdml.tensors import arrays
from tvmdml.tensors.arrays import NumpyArray
from tvmdml.tensors.arrays.device_array import DeviceArray


class Tensor:
    """An array of any library."""

    def __init__(self, array: Any) -> None:
        """Share an array's memory.

        Raises:
            Refused: it is none.
        """
        self._array = held(array, "Tensor")

    def as_numpy(self) -> NumpyArray:
        """The elements as a NumPy array; on the CPU without a copy."""
        return self._array

    def shape(self) -> list[int]:
        """The sizes."""
        return list(self._array.shape)

    def type(self) -> int:
        """ONNX's number of the type of the elements."""
        from tvmdml.onnx.ortvalue import OrtValue

        return OrtValue(self._array).element_type()

    def data(self) -> Any:
        """The memory, as a capsule of DLPack."""
        return self._array.__dlpack__()

    def __array__(self, dtype: Any = None, copy: bool | None = None) -> NumpyArray:
        """``numpy.asarray(tensor)``."""
        return np.asarray(self._array, dtype)

    def __repr__(self) -> str:
        """The type and sizes."""
        return f"<Tensor {self._array.dtype}{self.shape()}>"


class NamedTensors:
    """Tensors by the names of a model's inputs."""

    def __init__(self) -> None:
        self._tensors: dict[str, Tensor] = {}

    def __getitem__(self, name: str) -> Tensor:
        if name not in self._tensors:
            raise Refused(message("NamedTensors", safe_repr(name), ", ".join(self._tensors) or "no names: there are no tensors"))
        return self._tensors[name]

    def __setitem__(self, name: str, tensor: Any) -> None:
        if not isinstance(name, str):
            raise Refused(message("NamedTensors name", safe_repr(name), "a string"))
        self._tensors[name] = tensor if isinstance(tensor, Tensor) else Tensor(tensor)

    def __delitem__(self, name: str) -> None:
        self[name]
        del self._tensors[name]

    def __contains__(self, name: object) -> bool:
        return name in self._tensors

    def __iter__(self) -> Iterator[str]:
        return iter(self._tensors)

    def __len__(self) -> int:
        return len(self._tensors)

    def keys(self) -> list[str]:
        """The names."""
        return list(self._tensors)


def held(given: Any, where: str) -> NumpyArray:
    """An array of any library, a ``Tensor``, or lists of numbers, as a NumPy array.

    Raises:
        Refused: it is none.
    """
    if isinstance(given, Tensor):
        return given.as_numpy()
    try:
        view = np.asarray(given) if isinstance(given, (list, tuple, int, float)) else arrays.view(given, where)
        array: NumpyArray = view.numpy() if type(view) is DeviceArray else view
        if array.dtype.kind not in "biuf" and array.dtype.names is None and array.dtype.kind != "V":
            raise ValueError(f"elements of {array.dtype}")
    except (InvalidArgument, ValueError, TypeError, OverflowError):
        raise Refused(message(where, safe_repr(given), "an array of numbers, or lists of them")) from None
    return array
