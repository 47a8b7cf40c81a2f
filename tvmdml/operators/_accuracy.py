"""Allowed differences from the reference: none, a number of representable values, or a fraction of the summed magnitudes.

For an output that must be exact bit for bit, a reference returns an array. For any other it returns a ``Near``: the values in
higher precision than the output's, and the bound. Tests, conformance, tuning, packs and the benchmark all use ``difference``.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np

from tvmdml.tensors import NumpyArray as NumpyArray


class Near(NamedTuple):
    """An output that need not be exact. ``within_steps`` and ``within_sum`` make them."""

    values: NumpyArray
    """The correct values, before they are rounded to the output's type: in float64, or in NumPy's longest float."""
    dtype: np.dtype[Any]
    """The output's type."""
    steps: int
    """The largest distance from the correctly rounded value, in representable numbers of the output's type."""
    error: NumpyArray | float
    """The largest absolute error of a result before its last rounding, for each element; NaN of one that may be anything."""

    @property
    def shape(self) -> tuple[int, ...]:
        """The output's sizes."""
        return self.values.shape

    def rounded(self) -> NumpyArray:
        """The values in the output's type; in that of an integer they are cut toward zero, and NaN is 0."""
        if self.dtype.kind != "f":
            return _cut(self.values, self.dtype)
        with np.errstate(over="ignore", under="ignore", invalid="ignore"):
            return self.values.astype(self.dtype)


Expected = NumpyArray | Near


def within_steps(values: NumpyArray, dtype: Any, steps: int, absolute: NumpyArray | float = 0.0) -> Near:
    """Results may differ by ``steps`` representable numbers from the correctly rounded value, or by ``absolute`` from the value.

    A result that is smaller than the smallest normal number may also be zero, or have an error of less than that number.
    """
    return Near(np.asarray(values), np.dtype(dtype), steps, absolute)


def within_sum(values: NumpyArray, dtype: Any, factor: NumpyArray | float, magnitudes: NumpyArray) -> Near:
    """Results may differ by ``factor * eps * magnitudes`` from the value, and are then rounded once.

    Args:
        values: the sums, in higher precision than the kernel's.
        dtype: the output's type. ``eps`` is that of the type in which sums are computed: float32 for float16.
        factor: the allowed number of rounding errors of the whole sum.
        magnitudes: the sum of the terms' magnitudes, for each element.
    """
    eps = np.finfo(np.float64 if np.dtype(dtype) == np.float64 else np.float32).eps
    with np.errstate(over="ignore", invalid="ignore"):
        return Near(np.asarray(values), np.dtype(dtype), 0, factor * float(eps) * np.asarray(magnitudes, np.float64))


def as_array(expected: Expected) -> NumpyArray:
    """The output of a kernel without any error."""
    return expected.rounded() if isinstance(expected, Near) else expected


def difference(actual: NumpyArray, expected: Expected, any_nan: bool = False) -> str:
    """A description of what is wrong with an output of the correct type and shape; empty if nothing is wrong.

    Args:
        actual: the output.
        expected: the values that it must equal bit for bit, or be near to.
        any_nan: accept any NaN where a NaN is expected. This always applies to a ``Near``.
    """
    wanted = as_array(expected)
    wrong = _wrong(actual, expected, wanted, any_nan)
    if not wrong.any():
        return ""
    at = tuple(int(i) for i in np.unravel_index(int(wrong.argmax()), wrong.shape))
    first = f"{actual[at]} ({_bits(actual)[at]:#x}), should be {wanted[at]} ({_bits(wanted)[at]:#x})"
    allowed = ""
    if isinstance(expected, Near):
        error = float(np.broadcast_to(expected.error, expected.shape)[at])
        bounds = [f"{expected.steps} representable numbers"] * bool(expected.steps) + [f"an error of {error:.3g}"] * bool(error)
        allowed = f" (allowed: {' or '.join(bounds) or 'its rounding'})"
    return f"{int(wrong.sum())} of {wrong.size} elements differ, first at {at}: {first}{allowed}"


_FLUSHED = 16
"""So many products of a sum may be subnormal, each of which is less than the smallest normal number."""


def settled(actual: NumpyArray, expected: Expected, other: Expected, flushes: bool, any_nan: bool = False) -> NumpyArray:
    """An output with the expected values where they, or others, are good as they are, and if it ``flushes`` without subnormals.

    It is for outputs of devices that take subnormals for 0: ``other`` are the values for inputs of which that is true.
    """
    wanted = as_array(expected)
    good = np.zeros(wanted.shape, bool)
    for one in (expected, other):
        values = as_array(one)
        if flushes and isinstance(one, Near):
            one = one._replace(error=one.error + _FLUSHED * float(np.finfo(one.dtype).tiny))
        good |= ~_wrong(actual, one, values, any_nan)
        if flushes:
            flat = flushed(values)
            good |= ~_wrong(flushed(actual), flat, flat, any_nan)
    return np.where(good, wanted, actual)


def flushed(values: NumpyArray) -> NumpyArray:
    """Floats with subnormals as zeros of the same sign."""
    return np.where(np.abs(values) < np.finfo(values.dtype).tiny, np.copysign(values.dtype.type(0), values), values)


def _wrong(actual: NumpyArray, expected: Expected, wanted: NumpyArray, any_nan: bool) -> NumpyArray:
    """Where an output is not as expected; ``wanted`` is that as an array."""
    wrong = _bits(actual) != _bits(wanted)
    if (any_nan or isinstance(expected, Near)) and wanted.dtype.kind == "f":
        wrong &= ~(np.isnan(actual) & np.isnan(wanted))
    if isinstance(expected, Near) and wrong.any():
        wrong &= ~_near(actual, expected, wanted)
    return wrong


def _bits(array: NumpyArray) -> NumpyArray:
    return np.asarray(array, order="C").view(f"u{array.itemsize}")


def _cut(values: Any, dtype: np.dtype[Any]) -> NumpyArray:
    limits = np.iinfo(dtype)
    numbers = np.nan_to_num(np.trunc(values.astype(np.longdouble)), nan=0.0)
    inside = (numbers > limits.min) & (numbers < limits.max)
    found = np.where(inside, numbers, 0).astype(dtype)
    found[numbers >= limits.max], found[numbers <= limits.min] = limits.max, limits.min
    return found


def _near(actual: NumpyArray, expected: Near, rounded: NumpyArray) -> NumpyArray:
    if expected.dtype.kind != "f":
        low, high = (_cut(expected.values + error, expected.dtype) for error in (-expected.error, expected.error))
        return (actual >= low) & (actual <= high)
    limits = np.finfo(expected.dtype)
    wide = np.longdouble if expected.dtype == np.float64 else np.float64
    with np.errstate(all="ignore"):
        found, values = actual.astype(wide), expected.values.astype(wide)
        error = np.asarray(expected.error, wide)
        # The numbers from -inf to inf in order: neighbours differ by 1, and both zeros are the same.
        places = [_ordinals(array) for array in (actual, rounded)]
        near = np.abs(places[0] - places[1]) <= expected.steps
        near &= ~np.isnan(actual) & ~np.isnan(rounded)
        # An error before the last rounding, and that rounding. Denormal results may be flushed to zero.
        last = float(limits.tiny) if expected.dtype != np.float16 else 2.0**-11 * (np.abs(values) + error) + 2.0**-25
        near |= (np.abs(found - values) <= error + last) & np.isfinite(values)
        # A result may be infinite if a value within the error would round to infinity.
        edge = np.ldexp(wide(2), limits.maxexp - 1) - np.ldexp(wide(1), limits.maxexp - limits.nmant - 2)
        near |= np.isinf(actual) & (np.sign(found) == np.sign(values)) & (np.abs(values) + error >= edge)
        near |= np.isnan(error)
    return near


def _ordinals(array: NumpyArray) -> NumpyArray:
    bits = np.asarray(array, order="C").view(f"i{array.itemsize}").astype(np.int64)
    magnitude = bits & np.int64(2 ** (8 * array.itemsize - 1) - 1)
    # As floats, because differences of float64's ordinals do not fit in 64 bits.
    return np.where(bits < 0, -magnitude, magnitude).astype(np.float64 if array.itemsize < 8 else np.longdouble)
