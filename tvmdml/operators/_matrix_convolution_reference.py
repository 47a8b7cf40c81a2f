"""Convolutions in NumPy: exact or wide sums, the sums of magnitudes, and where a result is open."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np

from tvmdml.operators._accuracy import NumpyArray
from tvmdml.operators._matrix_convolution import ConvolutionAxis, Convolving

Slices = tuple[slice, ...]


def _reach(along: ConvolutionAxis, place: int, near: Any, far: Any) -> tuple[slice, slice]:
    """For a place in the filter: those ``t`` of ``near`` elements whose ``t * stride + place`` is inside of ``far``, and these."""
    offset = place * along.dilation - along.start
    first = max(0, -(offset // along.stride))
    last = min(near - 1, (far - 1 - offset) // along.stride)
    if last < first:
        return slice(0, 0), slice(0, 0)
    begin = first * along.stride + offset
    return slice(first, last + 1), slice(begin, begin + (last - first) * along.stride + 1, along.stride)


def taps(desc: Convolving) -> Iterator[tuple[tuple[int, ...], Slices, Slices]]:
    """For each element of a filter: its index, the elements of the image that it meets, and those of the output."""
    each = desc.along()
    for places in np.ndindex(*(one.kernel for one in each)):
        image, output = [], []
        for along, place in zip(each, places, strict=True):
            near, far = (along.image, along.output) if desc.backward else (along.output, along.image)
            few, many = _reach(along, place, near, far)
            image.append(few if desc.backward else many)
            output.append(many if desc.backward else few)
        index = tuple(one.kernel - 1 - place if desc.turned else place for one, place in zip(each, places, strict=True))
        yield index, tuple(image), tuple(output)


def grouped(desc: Any, x: NumpyArray, w: NumpyArray) -> tuple[NumpyArray, NumpyArray]:
    """The image with its groups, and the filters as (group, filter, channel, ...)."""
    groups, (filters, channels) = desc.group_count, desc.filters()
    image = x.reshape(x.shape[0], groups, channels, *x.shape[2:])
    if desc.backward:
        return image, w.reshape(groups, channels, filters, *w.shape[2:]).swapaxes(1, 2)
    return image, w.reshape(groups, filters, channels, *w.shape[2:])


def convolved(desc: Any, x: NumpyArray, w: NumpyArray) -> NumpyArray:
    """The sums, in the type of both."""
    image, filters = grouped(desc, x, w)
    finite = w.dtype.kind != "f" or bool(np.isfinite(x).all() and np.isfinite(w).all())
    n, groups = image.shape[:2]
    total = np.zeros((n, groups, filters.shape[1], *desc.output_tensor.sizes[2:]), x.dtype)
    outer = (slice(None),) * 3
    for index, source, result in taps(desc):
        part = image[outer + source]
        if not part.size:
            continue
        own, flat = filters[outer + index], part.reshape(*part.shape[:3], -1)
        found = own[None] @ flat if finite else np.einsum("gmc,ngcp->ngmp", own, flat)
        total[outer + result] += found.reshape(n, groups, -1, *part.shape[3:])
    return total.reshape(desc.output_tensor.sizes)


def meeting(desc: Any, x: NumpyArray, w: NumpyArray) -> NumpyArray:
    """Where a filter's element that is infinite or NaN meets no element of the image: nobody says what a result is there."""
    _, filters = grouped(desc, x, ~np.isfinite(w))
    sizes = desc.output_tensor.sizes
    found = np.zeros((*filters.shape[:2], *sizes[2:]), bool)
    outer = (slice(None),) * 3
    if filters.any():
        for index, _, result in taps(desc):
            alone = np.ones(sizes[2:], bool)
            alone[result] = False
            found |= filters[outer + index].any(-1).reshape(*found.shape[:2], *[1] * alone.ndim) & alone
    return np.broadcast_to(found.reshape(1, *sizes[1:]), sizes)


def wide(x: NumpyArray) -> NumpyArray:
    """In higher precision: float64, or NumPy's longest float for float64."""
    return x.astype(np.longdouble if x.dtype == np.float64 else np.float64)


def magnitudes(x: NumpyArray) -> NumpyArray:
    """The magnitudes of finite elements; 0 for others."""
    return np.where(np.isfinite(x), np.abs(x), 0)


# -- Integers


def of_integers(desc: Any, x: Any, w: Any, x_zero: NumpyArray | None, w_zero: NumpyArray | None) -> NumpyArray:
    """Sums of products of integers whose zero points are subtracted first: exact, as sums in float64 are here."""
    a = x.astype(np.float64) - (0 if x_zero is None else float(x_zero.reshape(-1)[0]))
    b = w.astype(np.float64)
    if w_zero is not None:
        b = b - w_zero.astype(np.float64).reshape(-1, *[1] * (w.ndim - 1))
    return convolved(desc, a, b).astype(np.int64)


def wrapped(total: NumpyArray) -> NumpyArray:
    """Integers modulo 2^32, as int32."""
    return (total & 0xFFFFFFFF).astype(np.uint32).view(np.int32)
