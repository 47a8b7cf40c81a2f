"""The arrays that contenders work on: their layouts in memory, and their contents."""

from __future__ import annotations

import functools
import math
from collections.abc import Callable
from typing import Any

import numpy as np

from tvmdml.tensors import NumpyArray as NumpyArray
from tvmdml.tensors import packed_strides

Sizes = tuple[int, ...]

SEED = 2024
"""A fixed seed: every run measures the same numbers."""

_LINE = 64
_PADDING = 16


def empty(sizes: Sizes, dtype: Any) -> NumpyArray:
    """An array that starts on a cache line, as in PyTorch, ONNX Runtime and DirectML. NumPy's own arrays do so only by chance."""
    dtype = np.dtype(dtype)
    size = math.prod(sizes) * dtype.itemsize
    memory = np.empty(size + _LINE, np.uint8)
    start = -memory.ctypes.data % _LINE
    return memory[start : start + size].view(dtype).reshape(sizes)


def _transposed(sizes: Sizes, dtype: Any) -> NumpyArray:
    return np.transpose(empty(sizes[::-1], dtype))


def _padded(sizes: Sizes, dtype: Any) -> NumpyArray:
    return empty((*sizes[:-1], sizes[-1] + _PADDING), dtype)[..., : sizes[-1]]


def _spread(sizes: Sizes, dtype: Any) -> NumpyArray:
    return empty((*sizes[:-1], 2 * sizes[-1]), dtype)[..., ::2]


LAYOUTS: dict[str, Callable[[Sizes, Any], NumpyArray]] = {
    "packed": empty,
    "transposed": _transposed,  # the last dimension has the largest stride
    "padded": _padded,  # a gap after each row
    "spread": _spread,  # every second element
}


def steps(sizes: Sizes, layout: str) -> Sizes:
    """The strides of a layout, in elements."""
    if layout == "packed":
        return packed_strides(sizes)
    return tuple(step for step in LAYOUTS[layout](sizes, np.uint8).strides)


def like(array: NumpyArray) -> NumpyArray:
    """A packed copy that starts on a cache line."""
    copy = empty(array.shape, array.dtype)
    copy[...] = array
    return copy


# -- Contents -----------------------------------------------------------------------------------------------------

Fill = Callable[[np.random.Generator, Sizes, np.dtype[Any]], NumpyArray]


def _normal(rng: np.random.Generator, sizes: Sizes, dtype: np.dtype[Any]) -> NumpyArray:
    """Numbers of both signs with fractions; for an integer type, any number."""
    if dtype.kind != "f":
        limits = np.iinfo(dtype)
        return rng.integers(limits.min, limits.max, sizes, dtype, endpoint=True)
    return (rng.standard_normal(sizes, np.float32) * 100).astype(dtype)


def _positive(rng: np.random.Generator, sizes: Sizes, dtype: np.dtype[Any]) -> NumpyArray:
    """Numbers from 1 to 100, with fractions: every type has their integral parts."""
    return (rng.random(sizes, np.float32) * 99 + 1).astype(dtype)


def _usual(rng: np.random.Generator, sizes: Sizes, dtype: np.dtype[Any]) -> NumpyArray:
    """Numbers as functions get them: of both signs, mostly below 6."""
    return (rng.standard_normal(sizes, np.float32) * 3).astype(dtype)


def _unit(rng: np.random.Generator, sizes: Sizes, dtype: np.dtype[Any]) -> NumpyArray:
    """Numbers between -1 and 1."""
    return (rng.random(sizes, np.float32) * 1.98 - 0.99).astype(dtype)


def _weights(rng: np.random.Generator, sizes: Sizes, dtype: np.dtype[Any]) -> NumpyArray:
    """Numbers as of a layer that is not trained yet: sums of products with a row of them are about as large as the factors."""
    return ((rng.random(sizes, np.float32) * 2 - 1) * np.float32(sizes[-1] ** -0.5)).astype(dtype)


def _ascending(rng: np.random.Generator, sizes: Sizes, dtype: np.dtype[Any]) -> NumpyArray:
    return np.sort(_normal(rng, sizes, dtype), axis=-1)


def _descending(rng: np.random.Generator, sizes: Sizes, dtype: np.dtype[Any]) -> NumpyArray:
    return _ascending(rng, sizes, dtype)[..., ::-1]


def _constant(rng: np.random.Generator, sizes: Sizes, dtype: np.dtype[Any]) -> NumpyArray:
    return np.ones(sizes, dtype)


def _zeros(rng: np.random.Generator, sizes: Sizes, dtype: np.dtype[Any]) -> NumpyArray:
    return np.zeros(sizes, dtype)


def _nan(rng: np.random.Generator, sizes: Sizes, dtype: np.dtype[Any]) -> NumpyArray:
    return np.full(sizes, np.nan, dtype)


def _block(rng: np.random.Generator, sizes: Sizes, dtype: np.dtype[Any]) -> NumpyArray:
    """The largest elements are all adjacent, in the middle of a row."""
    values = _normal(rng, sizes, dtype)
    length = sizes[-1]
    block = values[..., length // 2 : length // 2 + max(1, min(1024, length // 4))]
    if dtype.kind == "f":
        block += dtype.type(1000)
        return values
    top = np.iinfo(dtype).max
    values //= 2
    block[...] = top - rng.integers(0, top // 2, block.shape, dtype)
    return values


def _regions(rng: np.random.Generator, sizes: Sizes, dtype: np.dtype[Any]) -> NumpyArray:
    """Corners of rectangles: x1, y1, x2, y2."""
    corners = rng.random((*sizes[:-1], 2)) * 500
    return np.concatenate([corners, corners + 16 + rng.random(corners.shape) * 250], -1).astype(dtype)


def _permuted(rng: np.random.Generator, sizes: Sizes, dtype: np.dtype[Any]) -> NumpyArray:
    """Along each dimension every number below the largest size once at most, in no order."""
    total = functools.reduce(np.add.outer, [rng.permutation(size) for size in sizes])
    return (total % max(sizes)).astype(dtype)


def _sparse(share: float, rng: np.random.Generator, sizes: Sizes, dtype: np.dtype[Any]) -> NumpyArray:
    """Zeros, except for a share of the elements at random positions."""
    chosen = rng.random(sizes, np.float32) < share
    if dtype.kind == "f":
        return np.where(chosen, rng.random(sizes, np.float32) + 1, np.float32(0)).astype(dtype)
    return chosen.astype(dtype)


DENSITIES = {"0.1 %": 0.001, "10 %": 0.1, "50 %": 0.5, "100 %": 1.0}

FILLS: dict[str, Fill] = {
    "normal": _normal,
    "ascending": _ascending,
    "descending": _descending,
    "positive": _positive,
    "usual": _usual,
    "unit": _unit,
    "weights": _weights,
    "constant": _constant,
    "zeros": _zeros,
    "all NaN": _nan,
    "dense block": _block,
    "permuted": _permuted,
    "regions": _regions,
    **{density: functools.partial(_sparse, share) for density, share in DENSITIES.items()},
}


def filled(sizes: Sizes, dtype: str, data: str, layout: str, place: int = 0, bounds: tuple[int, int] | None = None) -> NumpyArray:
    """An array of a layout, filled with one of ``FILLS``.

    Args:
        sizes: its sizes.
        dtype: its type.
        data: the name of the fill.
        layout: the name of the layout.
        place: which of the operator's inputs it is: each has other random numbers.
        bounds: the least and the greatest value, if others are of no use.
    """
    array = LAYOUTS[layout](sizes, dtype)
    found = FILLS[data](np.random.default_rng(SEED + place), sizes, np.dtype(dtype))
    array[...] = found if bounds is None else bounds[0] + found % (bounds[1] - bounds[0] + 1)
    return array
