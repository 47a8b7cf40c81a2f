"""Types that DirectML has not: bfloat16, the floats of 8, 6 and 4 bits, and integers of 4 and 2 bits.

A graph has their elements as float32, int8 or uint8. Each result is rounded to what the narrow type has, so numbers are those of
the type; arrays outside are of the package ml_dtypes.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np

import tvmdml
from tvmdml.graph import Expression
from tvmdml.onnx.descriptors import NotConvertible
from tvmdml.onnx.types import wide_of


class _Float(NamedTuple):
    """A narrow type of floats."""

    bits: int
    """Of its fractions."""
    least: int
    """The exponent of its least normal number."""
    most: float
    beyond: float
    """What larger numbers become if they do not become ``most``."""
    signed_zero: bool = True


_FLOATS = {
    "float8_e4m3fn": _Float(3, -6, 448.0, np.nan),
    "float8_e4m3fnuz": _Float(3, -7, 240.0, np.nan, False),
    "float8_e5m2": _Float(2, -14, 57344.0, np.inf),
    "float8_e5m2fnuz": _Float(2, -15, 57344.0, np.nan, False),
    "float6_e2m3fn": _Float(3, 0, 7.5, 7.5),
    "float6_e3m2fn": _Float(2, -2, 28.0, 28.0),
    "float4_e2m1fn": _Float(1, 0, 6.0, 6.0),
}
_BITS = {"int4": 4, "uint4": 4, "int2": 2, "uint2": 2}


def rounded(x: Expression, dtype: Any, *, saturate: bool = True, mode: str = "up") -> Expression:
    """Numbers of a narrow type, near others: floats to the nearest ones, of two the even one; integers modulo their range.

    Args:
        x: numbers of any type.
        dtype: the narrow type.
        saturate: whether numbers that are too large become the largest one.
        mode: how powers of two (float8_e8m0fnu) are chosen: ``up``, ``down`` or ``nearest``.
    """
    name = np.dtype(dtype).name
    if name in _BITS:
        return _integer(x, _BITS[name], wide_of(dtype))
    x = x.astype(np.float32)
    if name == "bfloat16":
        return _half_of_float32(x)
    if name == "float8_e8m0fnu":
        return _power(x, mode)
    if name not in _FLOATS:
        raise NotConvertible(f"the type of its output is {name}, which is not one of DirectML's")
    return _few_bits(x, _FLOATS[name], saturate)


def _like(number: Any, x: Expression) -> Expression:
    return x.graph.constant(np.asarray(number, x.dtype))


def _integer(x: Expression, bits: int, wide: Any) -> Expression:
    whole = x.astype(np.int32)
    kept = tvmdml.bit_and(whole.view(np.uint32), _like((1 << bits) - 1, whole.view(np.uint32))).view(np.int32)
    if wide == np.int8:
        half = _like(1 << (bits - 1), kept)
        kept = tvmdml.where(tvmdml.less_than(kept, half), kept, kept - _like(1 << bits, kept))
    return kept.astype(wide)


def _half_of_float32(x: Expression) -> Expression:
    """The upper 16 bits; half of the last one is added before, less a little if it is even."""
    bits = x.view(np.uint32)
    odd = tvmdml.bit_and(tvmdml.bit_shift_right(bits, _like(16, bits)), _like(1, bits))
    near = tvmdml.bit_and(bits + odd + _like(0x7FFF, bits), _like(0xFFFF0000, bits))
    return tvmdml.where(tvmdml.is_nan(x), x, near.view(np.float32))


def _power(x: Expression, mode: str) -> Expression:
    """A power of two, of numbers of 0 or more; below all of them is the least."""
    more = {"up": 0x7FFFFF, "nearest": 0x400000, "down": 0}
    if mode not in more:
        raise NotConvertible(f"its round_mode is {mode}")
    bits = x.view(np.uint32)
    near = tvmdml.bit_and(bits + _like(more[mode], bits), _like(0x7F800000, bits))
    least = _like(1 << 22, bits)  # 2^-127
    return tvmdml.where(tvmdml.equals(near, _like(0, bits)), least, near).view(np.float32)


def _few_bits(x: Expression, kind: _Float, saturate: bool) -> Expression:
    """Multiples of the last bit's value, which an exponent decides."""
    bits = x.view(np.uint32)
    power = tvmdml.bit_and(bits, _like(0x7F800000, bits)).view(np.float32)
    step = tvmdml.max(power, _like(2.0**kind.least, x)) * _like(2.0**-kind.bits, x)
    infinite = tvmdml.is_infinity(x)
    near = tvmdml.where(infinite, x, tvmdml.round(x / step) * step)
    if saturate or kind.beyond == kind.most:
        found = tvmdml.where(tvmdml.is_nan(x), x, tvmdml.clip(near, min=-kind.most, max=kind.most))
    else:
        beyond = tvmdml.where(tvmdml.less_than(x, _like(0, x)), _like(-kind.beyond, x), _like(kind.beyond, x))
        found = tvmdml.where(tvmdml.greater_than(tvmdml.abs(near), _like(kind.most, x)), beyond, near)
    if kind.beyond == kind.most:
        found = tvmdml.where(tvmdml.is_nan(x), _like(-0.0, x), found)  # there is no NaN
    if not kind.signed_zero:
        found = tvmdml.where(tvmdml.equals(found, _like(0, x)), _like(0, x), found)
    return found


def limits(dtype: Any) -> tuple[float, float]:
    """The least and the largest number of a narrow type of integers."""
    half = 1 << (_BITS[np.dtype(dtype).name] - 1)
    return (-half, half - 1) if wide_of(dtype) == np.int8 else (0, 2 * half - 1)
