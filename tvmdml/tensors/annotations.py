"""What functions take beside NumPy's arrays, for annotations; programs import it from ``tvmdml.typing``."""

from __future__ import annotations

from typing import Protocol, TypeAlias

import numpy as np

Number: TypeAlias = float | np.generic
"""A number, which takes the type of the array beside it."""


class Array(Protocol):
    """An array of any library that supports DLPack: NumPy's, PyTorch's, CuPy's, JAX's, and ``DeviceArray``."""

    def __dlpack_device__(self) -> tuple[int, int]:
        """The device that it is on, in DLPack's numbers."""
