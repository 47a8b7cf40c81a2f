"""Elements as 32-bit words, which every device can load, store and count, whatever types it lacks."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from tvmdml.kernels import tensorir as T

_UNBOUNDED = 1 << 48  # words: more than any memory has, as the buffer's own length is not known here


def words(buffer: Any) -> Any:
    """A buffer's memory as words, for the launch in which this is called."""
    if str(buffer.dtype) == "uint32":
        return buffer
    return T.decl_buffer((_UNBOUNDED,), "uint32", data=buffer.data)


def load(buffer: Any, at: Any, count: int) -> list[Any]:
    """``count`` neighbours of a buffer, loaded at once."""
    held, whole = T.local(str(buffer.dtype), count), T.run(T.const(0, "int32"), count)
    T.store(held, whole, buffer[T.run(at, count)])
    return [held[i] for i in range(count)]


def save(buffer: Any, at: Any, values: Sequence[Any]) -> None:
    """Store neighbours at once."""
    count = len(values)
    if count == 1:
        T.store(buffer, at, values[0])
        return
    held = T.local(str(buffer.dtype), count)
    for i, value in enumerate(values):
        T.store(held, i, value)
    T.store(buffer, T.run(at, count), held[T.run(T.const(0, "int32"), count)])


def unravel(index: Any, sizes: Sequence[Any]) -> list[Any]:
    """The coordinates of a row-major index, as uint32."""
    return T.unravel_word(index, sizes)


def offset(coordinates: Sequence[Any], steps: Sequence[Any], dtype: str) -> Any:
    """The offset of the element at these coordinates."""
    return T.dot([T.cast(coordinate, dtype) for coordinate in coordinates], steps)
