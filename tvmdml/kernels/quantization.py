"""Floats as integers of few bits, with a scale and a zero point, and back: the formulas.

Where all lanes have one scale, numbers are multiplied by its reciprocal, with the bits of a division: the product is within a
2**-23 of the rounded quotient, relative to it. So both are rounded to the same integer, unless the product is as close as that to
the middle between two. Where it is, which is seldom, all lanes divide.
"""

from __future__ import annotations

import math
from typing import Any

from tvmdml.kernels import tensorir_values as T
from tvmdml.kernels.seldom import seldom
from tvmdml.system import imports
from tvmdml.tensors import TensorDataType

_MAGIC, _MAGIC_BITS = 1.5 * 2.0**23, 0x4B400000
"""A small float that is added to this is rounded to an integer, halves to even, which the lowest bits are."""
_USUAL = 2.0**-125, 2.0**125
"""The reciprocal of such a number, and what its rounding loses, are normal numbers."""
_SURE = 0.5 - 2.0**-13
"""A product of at most 2**9 that is this close to an integer is rounded to it, and so is the quotient; larger ones are limited."""
_FRACTION = (1 << 23) - 1
_REGISTER = 16
"""Lanes."""


def limits(data_type: TensorDataType) -> tuple[int, int]:
    """The least and the greatest integer of a type."""
    values = 1 << data_type.bits
    return (-values // 2, values // 2 - 1) if data_type.is_signed else (0, values - 1)


def quantized(x: Any, scale: Any, zero_point: Any, data_type: TensorDataType) -> Any:
    """``x / scale``, rounded, halves to even, 0 for NaN; plus the zero point, saturated to the type."""
    if not _is_repeated(x, scale):
        return _divided(x, scale, zero_point, data_type)
    x, one, many = T.hold(x), T.hold(scale.value), T.lanes(x)
    size = T.absolute(one)
    usual = (size >= T.like(one, _USUAL[0])) & (size <= T.like(one, _USUAL[1]))
    reciprocal = T.splat(T.hold(T.Select(usual, T.like(one, 1) / one, T.like(one, math.nan))), many)
    # The product with the reciprocal of a power of two is the quotient.
    is_power = T.expression((T.reinterpret(one, "uint32") & T.word(_FRACTION, 32)) == T.word(0, 32))
    sure = T.splat(T.hold(T.Select(is_power, T.like(one, 0.5), T.like(one, _SURE))), min(many, _REGISTER))

    raised = T.hold(T.fused(x, reciprocal, T.like(x, _MAGIC)))
    whole = T.hold(raised - T.like(x, _MAGIC))
    rest = T.absolute(T.fused(x, reciprocal, T.negative(whole)))
    bits = T.reinterpret(raised, "int32")  # in the order of the floats from the least result on
    low, high = (T.like(bits, _MAGIC_BITS + limit) for limit in limits(data_type))
    dtype, number = data_type.unpacked.tvm, None if zero_point is None else T.cast(zero_point, "int32")
    if number is not None:
        low, high = low - number, high - number
    bounded = T.cast(T.min(T.max(bits, low), high), dtype)  # the lowest byte is the integer's
    found = T.Cell(bounded if number is None else bounded + T.cast(number, dtype))
    with seldom(T.any_lane(~(_largest(rest) <= sure))):  # of NaN and infinities, too
        found.set(_divided(x, scale, zero_point, data_type))
    return found.value


def _largest(rest: Any) -> Any:
    """The larger ones of the first and the second half of floats that are not negative, or NaN, until they fill a register."""
    bits = T.hold(T.reinterpret(rest, "int32"))
    while (half := T.lanes(bits) // 2) >= _REGISTER:
        bits = T.hold(T.max(*(T.Shuffle([bits], list(range(begin, begin + half))) for begin in (0, half))))
    return T.reinterpret(bits, "float32")


def _is_repeated(x: Any, scale: Any) -> bool:
    """Whether all lanes of a vector of float32 have one scale, on a processor with fused multiply-adds."""
    if T.lanes(x) == 1 or not T.fuses():
        return False
    imports.tvm()
    from tvm import tirx

    return isinstance(scale, tirx.Broadcast) and T.scalar_type(x) == T.scalar_type(scale) == "float32"


def _divided(x: Any, scale: Any, zero_point: Any, data_type: TensorDataType) -> Any:
    rounded = T.round_even(x / scale)
    rounded = T.select(T.is_nan(rounded), 0, rounded)
    if zero_point is not None:
        rounded = rounded + T.cast(zero_point, T.scalar_type(rounded))  # exact, unless it saturates anyway
    if data_type.is_nibble:
        low, high = limits(data_type)
        rounded = T.select(rounded < T.like(rounded, low), low, T.select(rounded > T.like(rounded, high), high, rounded))
    return T.to(rounded, data_type.unpacked.tvm)


def dequantized(x: Any, scale: Any, zero_point: Any = None) -> Any:
    """``(x - zero_point) * scale``: an exact difference, converted to the scale's type, and the product."""
    if zero_point is not None:
        wide = "int32" if T.bits_of(x) < 32 else "int64"
        x = T.cast(x, wide) - T.cast(zero_point, wide)
    return T.cast(x, T.scalar_type(scale)) * scale
