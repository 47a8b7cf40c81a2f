"""Elements as the words of 32 bits that they lie in: what every device loads, stores and counts with, whatever types it lacks."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from tvmdml import tensorir as T

_UNBOUNDED = 1 << 48


def words(buffer: Any) -> Any:
    """A buffer's memory as words, for the launch that this is called in."""
    if str(buffer.dtype) == "uint32":
        return buffer
    return T.decl_buffer((_UNBOUNDED,), "uint32", data=buffer.data)


def load(buffer: Any, at: Any, count: int) -> list[Any]:
    """So many neighbours of a buffer, loaded at once."""
    held, whole = T.local(str(buffer.dtype), count), T.run(T.const(0, "int32"), count)
    T.store(held, whole, buffer[T.run(at, count)])
    return [held[i] for i in range(count)]


def save(buffer: Any, at: Any, values: Sequence[Any]) -> None:
    """Write neighbouring words at once."""
    count = len(values)
    if count == 1:
        T.store(buffer, at, values[0])
        return
    held = T.local("uint32", count)
    for i, value in enumerate(values):
        T.store(held, i, value)
    T.store(buffer, T.run(at, count), held[T.run(T.const(0, "int32"), count)])


def unravel(index: Any, sizes: Sequence[Any]) -> list[Any]:
    """The coordinates of a row-major index, as unsigned 32-bit numbers: no tensor has more elements, and they divide fastest."""
    return T.unravel(T.cast(index, "uint32"), [T.cast(size, "uint32") for size in sizes])


def offset(coordinates: Sequence[Any], steps: Sequence[Any], dtype: str) -> Any:
    """Where the element at these coordinates lies."""
    return T.dot([T.cast(coordinate, dtype) for coordinate in coordinates], steps)
