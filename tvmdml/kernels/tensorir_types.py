"""Words for types, constants, conversions and choices, for scalars and vectors alike. ``tensorir_values`` has all of them.

Conversions saturate, and constants are safe from TVM's simplifier.
"""

from __future__ import annotations

import functools
import math
import operator
from typing import Any

import numpy as np

from tvmdml.kernels import extremes
from tvmdml.kernels import tensorir as T
from tvmdml.kernels.launched import Word


def __getattr__(name: str) -> Any:
    return getattr(T, name)


# -- Types and constants ------------------------------------------------------------------------------------------


def scalar_type(value: Any) -> str:
    """The data type of a value's lanes: ``float32`` for ``float32x16``."""
    return T.type_of(value).partition("x")[0]


def expression(value: Any) -> Any:
    """The value itself, of a comparison with ``==`` or ``!=`` too, which TVM gives as an object that is not an expression yet."""
    return value.asobject() if hasattr(value, "asobject") else value


def is_float(value: Any) -> bool:
    """Whether it is a value of a floating-point type."""
    return scalar_type(value).startswith("float")


def bits_of(value: Any) -> int:
    """The number of bits of each lane."""
    return value.ty.dtype.bits


def like(value: Any, number: int | float | Word) -> Any:
    """A constant with the type and the lanes of a value. A number is converted as by DirectML's CAST: toward zero, saturating."""
    is_word, dtype, many = isinstance(number, Word), scalar_type(value), T.lanes(value)
    one = cast(number.expression(), dtype) if is_word else _constant(number, dtype)  # type: ignore[union-attr,arg-type]
    return _splat(one, many)


def _splat(value: Any, many: int) -> Any:
    return T.splat(value, many) if many > 1 else value


def _constant(number: int | float, dtype: str) -> Any:
    if dtype.startswith("float"):
        return _zero(number, dtype) if number == 0 else T.const(float(number), dtype)
    whole = saturated(number, dtype)
    return T.word(whole, 64) if dtype == "uint64" else T.const(whole, dtype)


def _zero(number: float, dtype: str) -> Any:
    """A zero that TVM's simplifier does not see: it drops products and sums with 0, which is wrong for NaN, infinities and -0."""
    width = int(dtype[5:])
    negative = T.reinterpret(dtype, T.word(1 << (width - 1), width))
    if math.copysign(1, number) < 0:
        return negative
    # TVM cannot translate the bits of 0 to LLVM.
    return T.reinterpret(dtype, T.word(0, width)) if T.is_on_device() else negative * T.const(-1, dtype)


def saturated(number: int | float, dtype: str) -> int:
    """A Python number as an integer of a type: toward zero, the nearest limit beyond the range, and 0 for NaN."""
    limits = np.iinfo(dtype)
    if isinstance(number, float) and not math.isfinite(number):
        return 0 if math.isnan(number) else int(limits.max if number > 0 else limits.min)
    return min(max(math.trunc(number), int(limits.min)), int(limits.max))


# -- Conversions --------------------------------------------------------------------------------------------------


def cast(value: Any, dtype: str) -> Any:
    """The value in another type, with the same lanes: of an integer the low bits; of a float only what is in range."""
    if scalar_type(value) == dtype:
        return value
    many = T.lanes(value)
    return T.cast(value, f"{dtype}x{many}" if many > 1 else dtype)


def reinterpret(value: Any, dtype: str) -> Any:
    """The same bits as another type of the same width."""
    if scalar_type(value) == dtype:
        return value
    many = T.lanes(value)
    number = T.constant(value)
    if number is not None and ("int" in dtype or number == 0):  # TVM cannot translate a reinterpreted 0 to LLVM
        return _splat(_zero(0.0, dtype) if "float" in dtype else T.word_as(number, dtype), many)
    # Not a conversion of integers: TVM's simplifier takes their range along, and then sees no negative numbers.
    return T.reinterpret(f"{dtype}x{many}" if many > 1 else dtype, value)


def to(value: Any, dtype: str) -> Any:
    """The value in another type, converted as by DirectML's CAST.

    A float becomes an integer toward zero, saturating, and 0 for NaN; an integer becomes another one by its low bits; everything
    else is rounded once, halves to even. A truth value becomes 1 or 0, and a number becomes a truth value by not being 0.
    """
    value = expression(value)
    own = scalar_type(value)
    if own == dtype:
        return value
    if dtype == "bool":
        return or_nan(value != like(value, 0), value)
    if own == "bool":
        many = T.lanes(value)
        one, zero = (T.splat(T.const(n, dtype), many) if many > 1 else T.const(n, dtype) for n in (1, 0))
        return T.Select(value, one, zero)
    if own.startswith("float") and not dtype.startswith("float"):
        return _to_integer(wide(value), dtype)
    if (own, dtype) == ("float64", "float16"):
        return cast(_to_odd(value), dtype)
    if dtype == "float16" and own != "float32":
        # Integers that float32 would round are larger than the largest float16 anyway.
        return cast(cast(value, "float32"), dtype)
    return cast(value, dtype)


def _to_integer(value: Any, dtype: str) -> Any:
    limits = np.iinfo(dtype)
    low = like(value, float(limits.min))
    number = select(is_nan(value), 0, value) if limits.min < 0 else value
    bounded = _not_below(number, low)  # 0 of NaN if the type is unsigned
    # Processors convert vectors to 32 bits.
    through = "int32" if limits.bits < 32 else dtype
    if limits.bits < np.finfo(scalar_type(value)).nmant:  # the float type has the greatest integer, too
        high = like(value, float(limits.max))
        return cast(cast(_not_above(bounded, high), through), dtype)
    fits = bounded < like(value, float(limits.max + 1))  # a power of two, and so exact
    return select(fits, cast(select(fits, bounded, 0), through), limits.max)


def _not_below(value: Any, low: Any) -> Any:
    """The float, or the constant if that is greater or the float is NaN."""
    if T.is_on_device():
        return T.Select(value > low, value, low)
    # One instruction; of a choice in a vector of several registers LLVM makes masks of bytes, and a blend by them.
    return T.call_llvm_pure_intrin(T.type_of(value), "llvm.maxnum", value, low)


def _not_above(value: Any, high: Any) -> Any:
    """The float, or the constant if that is less or the float is NaN."""
    if T.is_on_device():
        return T.Select(value < high, value, high)
    return T.call_llvm_pure_intrin(T.type_of(value), "llvm.minnum", value, high)


def _to_odd(value: Any) -> Any:
    """A float64 as float32, inexact ones as the neighbour whose last bit is odd: rounding that again is like rounding once."""
    near = cast(value, "float32")
    back, bits = cast(near, "float64"), reinterpret(near, "int32")
    too_far = T.abs(back) > T.abs(value)
    inexact = too_far | (T.abs(back) < T.abs(value))
    toward_zero = select(too_far, bits - like(bits, 1), bits)
    return reinterpret(select(inexact, toward_zero | like(bits, 1), bits), "float32")


def wide(value: Any) -> Any:
    """A float16 as float32, in which it is computed until the one rounding at the end; other values stay as they are."""
    if scalar_type(value) != "float16":
        return value
    found = cast(value, "float32")
    # Otherwise LLVM computes some functions on the float16 itself, element by element.
    return T.rounded(found) if T.lanes(found) > 1 else found


def repeated(value: Any, lanes: int) -> Any:
    """A vector with the value in each lane."""
    if scalar_type(value) != "float16" or T.is_on_device():
        return T.splat(value, lanes)
    # x86 loads a float16 into a part of a register, which so depends on what was there before; its bits are loaded into all lanes.
    return reinterpret(T.splat(reinterpret(value, "uint16"), lanes), "float16")


class Cell:
    """A variable for a scalar or a vector."""

    def __init__(self, value: Any) -> None:
        self._lanes = T.lanes(value)
        self._buffer = T.local(scalar_type(value), self._lanes)
        self.set(value)

    @property
    def _place(self) -> Any:
        return T.run(T.i64(0), self._lanes) if self._lanes > 1 else T.i64(0)

    @property
    def value(self) -> Any:
        """The current value."""
        return self._buffer[self._place]

    def set(self, value: Any) -> None:
        """Write to it."""
        T.store(self._buffer, self._place, value)


# -- Choices and tests --------------------------------------------------------------------------------------------


def select(condition: Any, a: Any, b: Any) -> Any:
    """The first value where the condition holds, otherwise the second. One of them may be a Python number."""
    if isinstance(a, (int, float)):
        a = like(b, a)
    elif isinstance(b, (int, float)):
        b = like(a, b)
    condition = expression(condition)
    if T.lanes(a) > 1 == T.lanes(condition):
        condition = T.splat(condition, T.lanes(a))
    return T.Select(condition, a, b)


def any_lane(condition: Any) -> Any:
    """Whether a condition holds in any lane."""
    count = T.lanes(condition)
    if count == 1:
        return condition
    if not T.is_on_device():
        return T.call_llvm_pure_intrin("bool", "llvm.vector.reduce.or", condition)
    number = T.hold(to(condition, "int32"))
    return functools.reduce(operator.or_, (T.Shuffle([number], [i]) for i in range(count))) != T.const(0, "int32")


def is_nan(value: Any) -> Any:
    """Whether a float is NaN, quiet or signalling."""
    return T.isnan(value)


def is_infinite(value: Any) -> Any:
    """Whether a float is one of the infinities."""
    return expression(T.abs(value) == like(value, math.inf))


def maximum(a: Any, b: Any) -> Any:
    """``a`` if it is greater or NaN, otherwise ``b``: a NaN in either is kept, and of two zeros the result is ``b``."""
    return _extreme("greater", a, b)


def minimum(a: Any, b: Any) -> Any:
    """``a`` if it is less or NaN, otherwise ``b``: a NaN in either is kept, and of two zeros the result is ``b``."""
    return _extreme("less", a, b)


def _extreme(step: str, a: Any, b: Any) -> Any:
    dtype, lanes = scalar_type(a), T.lanes(a)
    if lanes > 1 and dtype in ("float32", "float64") and T.has_instructions("x86"):
        own = T.call_imported(T.type_of(a), extremes.name(step, dtype, lanes), extremes.source(step, dtype, lanes), a, b)
        return T.Select(is_nan(a), a, own)
    return T.Select(or_nan(a > b if step == "greater" else a < b, a), a, b)


def or_nan(condition: Any, value: Any) -> Any:
    """Whether the condition holds, or the value is NaN."""
    return condition | is_nan(value) if is_float(value) else condition
