"""Keys that are equal only for values of the same type and the same bits.

``==`` is not enough for a kernel that contains a value as a constant: 0.0 equals -0.0 and 1 equals True, but a NaN does not equal
itself, whatever its payload is.
"""

from __future__ import annotations

import dataclasses
import struct
from collections.abc import Iterator
from typing import Any

import numpy as np


def key(value: Any) -> Any:
    """A hashable key of a value, with the floats inside tuples and descriptors compared by their bits.

    Values that are not numbers, tuples or dataclasses are used as they are.
    """
    kind = type(value)
    if kind is int or kind is str or value is None:
        return kind, value
    if issubclass(kind, float):
        return kind, struct.pack("<d", value)
    if issubclass(kind, np.generic):  # an object may say that it is of another class
        return kind, value.dtype, value.tobytes()
    if issubclass(kind, tuple):
        return kind, *map(key, value)
    if dataclasses.is_dataclass(kind):
        return kind, *(key(getattr(value, field.name)) for field in dataclasses.fields(value))
    return kind, value


def bits(value: Any) -> bytes:
    """The bits of the floats in a value, in their order."""
    return b"".join(_bits(key(value)))


def _bits(part: Any) -> Iterator[bytes]:
    if isinstance(part, tuple):
        for one in part:
            yield from _bits(one)
    elif isinstance(part, bytes):
        yield part
