"""The window family in NumPy: what windows hold, and what a sum may differ from the exact one."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import Any, NamedTuple

import numpy as np

from tvmdml.operators._accuracy import NumpyArray
from tvmdml.operators._window import Window, WindowAxis


class TapTable(NamedTuple):
    """The taps of all windows along a dimension: rows are windows, columns taps. Taps that are outside of all are left out."""

    dimension: int
    places: NumpyArray
    inside: NumpyArray
    counted: NumpyArray
    """How many taps each window has before the end of the padding."""


def tables(desc: Window) -> list[TapTable]:
    """A table for each dimension with windows."""
    sizes, pooled = desc.whole().sizes, desc.pooled().sizes
    return [table(one, sizes[one.dimension], pooled[one.dimension]) for one in desc.windows()]


def table(along: WindowAxis, size: int, count: int) -> TapTable:
    """The taps of windows along a dimension of this size, of so many windows."""
    first = np.arange(count, dtype=np.int64) * along.stride - along.start
    least = max(0, (along.dilation - 1 - int(first[-1])) // along.dilation)
    most = min(along.size, (size - 1 - int(first[0])) // along.dilation + 1)
    taps = np.arange(least, max(most, least), dtype=np.int64)
    places = first[:, None] + taps * along.dilation
    before = np.clip(-(-(size + along.end - first) // along.dilation), 0, along.size)
    return TapTable(along.dimension, places, (places >= 0) & (places < size), before)


def combined(x: NumpyArray, found: Sequence[TapTable], reduce: Callable[..., NumpyArray], nothing: Any) -> NumpyArray:
    """What ``reduce`` makes of the elements inside of each window, one dimension after the other."""
    for dimension, places, inside, _ in found:
        shape = (*x.shape[:dimension], *places.shape, *x.shape[dimension + 1 :])
        taken = np.take(x, np.clip(places, 0, x.shape[dimension] - 1).reshape(-1), dimension).reshape(shape)
        mask = inside.reshape(*inside.shape, *[1] * (x.ndim - dimension - 1))
        x = reduce(np.where(mask, taken, nothing), axis=dimension + 1, initial=nothing)
    return x


def product(found: Sequence[TapTable], counts: Callable[[TapTable], NumpyArray], rank: int) -> NumpyArray:
    """The product over dimensions of a number for each window, of sizes that can be broadcast to the pooled tensor's."""
    total: NumpyArray = np.ones([1] * rank, np.float64)
    for one in found:
        total = total * counts(one).reshape([-1 if i == one.dimension else 1 for i in range(rank)])
    return total


def inside(found: Sequence[TapTable], rank: int) -> NumpyArray:
    """How many taps of each window are inside."""
    return product(found, lambda one: one.inside.sum(1), rank)


def in_order(found: Sequence[TapTable], rank: int) -> Iterator[tuple[tuple[NumpyArray, ...], NumpyArray]]:
    """For each tap, in row-major order: its coordinate in all windows, along each dimension with windows; whether it is inside."""

    def shaped(values: NumpyArray, dimension: int) -> NumpyArray:
        return values.reshape([-1 if i == dimension else 1 for i in range(rank)])

    for tap in np.ndindex(*(one.places.shape[1] for one in found)):
        parts = [(one, t) for one, t in zip(found, tap, strict=True)]
        fits: NumpyArray = np.ones([1] * rank, bool)
        for one, t in parts:
            fits = fits & shaped(one.inside[:, t], one.dimension)
        yield tuple(shaped(np.where(one.inside[:, t], one.places[:, t], 0), one.dimension) for one, t in parts), fits


def indices(shape: tuple[int, ...], found: Sequence[TapTable], places: Sequence[NumpyArray]) -> tuple[NumpyArray, ...]:
    """An index of a whole tensor, with a tap's coordinates in the dimensions with windows."""
    own: list[NumpyArray] = list(np.ogrid[tuple(slice(n) for n in shape)])
    for one, place in zip(found, places, strict=True):
        own[one.dimension] = place
    return tuple(own)


def wide(x: NumpyArray) -> NumpyArray:
    """In higher precision: float64, or NumPy's longest float for float64."""
    return x.astype(np.longdouble if x.dtype == np.float64 else np.float64)


def unit(dtype: Any) -> float:
    """The spacing at 1 of the type in which sums are computed: float32 for float16."""
    return 2.0**-52 if dtype == np.float64 else 2.0**-23


def growth(count: NumpyArray, dtype: Any) -> NumpyArray:
    """What adding so many terms may cost, relative to the sum of their magnitudes."""
    terms = np.maximum(np.asarray(count, np.float64), 1)
    return unit(dtype) * np.where(terms <= 1, 0, np.minimum(terms / 2, 32 + 4 * np.ceil(np.log2(terms))))


def unless_overflow(error: NumpyArray, magnitudes: NumpyArray, given: NumpyArray, dtype: Any) -> NumpyArray:
    """The error, or NaN (anything) where a part of the sum may overflow, unless the terms make the sum NaN anyway."""
    most = float(np.finfo(np.float64 if dtype == np.float64 else np.float32).max)
    return np.where((magnitudes > most * 0.499) & ~np.isnan(given), np.nan, error).astype(np.float64)
