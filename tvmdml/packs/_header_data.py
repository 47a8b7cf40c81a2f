"""The file with the weights of a header's graphs, and what names and types are in C."""

from __future__ import annotations

import hashlib
import re
from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np

from tvmdml.tensors import TensorDataType
from tvmdml.tensors.arrays import NumpyArray

_ALIGNMENT = 64
_MARK_BYTES = 64


class Data:
    """The file: equal arrays of the pack are there once."""

    def __init__(self) -> None:
        self._arrays: dict[tuple[int, int], tuple[NumpyArray, int]] = {}
        self.nbytes = _MARK_BYTES

    def add(self, array: NumpyArray) -> int:
        """The byte where an array begins."""
        key = array.__array_interface__["data"][0], array.nbytes
        if key not in self._arrays:
            self._arrays[key] = array, self.nbytes
            self.nbytes += -(-array.nbytes // _ALIGNMENT) * _ALIGNMENT
        return self._arrays[key][1]

    def pieces(self) -> Iterator[bytes]:
        """Its content, after the mark."""
        for array, _ in self._arrays.values():
            yield array.reshape(-1).view(np.uint8).tobytes() if array.nbytes else b""
            yield b"\0" * (-array.nbytes % _ALIGNMENT)

    def mark(self) -> bytes:
        """The first bytes of the file, which the header has, too."""
        digest = hashlib.sha512()
        for piece in self.pieces():
            digest.update(piece)
        return digest.digest()


def kind_of(dtype: np.dtype[Any]) -> TensorDataType:
    """The type of a tensor with elements of NumPy's type."""
    return TensorDataType.from_numpy(dtype)


def c_type(data_type: TensorDataType) -> str:
    """The C type of elements."""
    names = {TensorDataType.FLOAT64: "double", TensorDataType.FLOAT32: "float", TensorDataType.FLOAT16: "uint16_t"}
    return names.get(data_type) or f"{data_type.stored.tvm}_t"


def identifier(name: str) -> str:
    """The same in letters, digits and ``_``."""
    return re.sub(r"\W", "_", name, flags=re.ASCII)[:60] or "_"


def distinct(names: Sequence[str]) -> list[str]:
    """Names, with a number where they would be equal."""
    different: list[str] = []
    for name in names:
        own, times = name, 2
        while own in different:
            own, times = f"{name}_{times}", times + 1
        different.append(own)
    return different
