"""Arrays of written plans: ``[type, sizes, place]``. What has the plan knows places: the cache, a file, or a pack."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any

import numpy as np

from tvmdml.errors import safe_repr
from tvmdml.tensors.arrays import NumpyArray

_MOST_RANK = 64

Content = Callable[[Any, int], NumpyArray]
"""Finds the bytes of an array by its place and their number. Raises ``ValueError`` if they are not there."""


def form(array: NumpyArray, place: int) -> list[Any]:
    """An array as JSON."""
    return [array.dtype.str, list(array.shape), place]


def bytes_of(array: NumpyArray) -> memoryview:
    """The elements of an array, row-major."""
    array = np.ascontiguousarray(array)
    return array.reshape(-1).view(np.uint8).data if array.nbytes else memoryview(b"")


def aligned(size: int, alignment: int) -> int:
    """The bytes of an array, with those that are lost before the next one."""
    return -(-size // alignment) * alignment


def places(begin: int, sizes: Sequence[int], alignment: int) -> Iterator[int]:
    """Where arrays begin that follow each other, and where the last one ends."""
    for size in sizes:
        yield begin
        begin += aligned(size, alignment)
    yield begin


def laid(head: bytes, arrays: Iterable[NumpyArray], alignment: int) -> Iterator[Any]:
    """The bytes of a file: a head, and arrays from multiples of the alignment on."""
    yield head + bytes(-len(head) % alignment)
    for array in arrays:
        yield bytes_of(array)
        yield bytes(-array.nbytes % alignment)


def natural(value: Any) -> int:
    """An index or a count in JSON.

    Raises:
        ValueError: it is none.
    """
    if type(value) is not int or value < 0:
        raise ValueError(f"the number {value!r}")
    return value


def array_of(given: Any, content: Content, type_of: Callable[[Any], np.dtype[Any]]) -> NumpyArray:
    """The array of a form. Nothing of it is trusted.

    Raises:
        ValueError, TypeError: it is damaged.
    """
    kind, sizes, place = given
    dtype = type_of(kind)
    if type(sizes) is not list or len(sizes) > _MOST_RANK or any(type(n) is not int or not 0 <= n < 1 << 32 for n in sizes):
        raise ValueError(f"sizes {safe_repr(sizes)}")
    size = math.prod(sizes) * dtype.itemsize
    return content(place, size).view(dtype).reshape(sizes) if size else np.empty(sizes, dtype)
