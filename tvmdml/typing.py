"""Types for annotations: what functions take and return. Nothing is converted here."""

from __future__ import annotations

from typing import Protocol, TypeAlias

import numpy as np

from tvmdml.tensors import DType, NumpyArray

__all__ = ["Array", "DType", "Number", "NumpyArray"]

Number: TypeAlias = float | np.generic
"""A number, which takes the type of the array beside it."""


class Array(Protocol):
    """An array of any library that supports DLPack: NumPy's, PyTorch's, CuPy's, JAX's, and ``DeviceArray``."""

    def __dlpack_device__(self) -> tuple[int, int]:
        """The device that it is on, in DLPack's numbers."""
