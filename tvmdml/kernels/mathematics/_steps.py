"""Steps that functions share: polynomials, powers of two, exponents and mantissas. Every step is rounded by itself."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

from tvmdml.kernels import tensorir_values as T


class FloatFormat:
    """What a float type is made of: the numbers that bits are taken apart with."""

    def __init__(self, value: Any) -> None:
        self.dtype = T.scalar_type(value)
        self.width = T.bits_of(value)
        self.fraction = {32: 23, 64: 52}[self.width]
        """The number of bits of the fraction."""
        self.bias = {32: 127, 64: 1023}[self.width]
        self.word = f"uint{self.width}"
        self.signed = f"int{self.width}"
        self.magic = 1.5 * 2.0**self.fraction
        """A float of a quarter of this magnitude and less that is added to this is rounded to an integral value, halves to even."""
        self.magic_bits = ((self.bias + self.fraction) << self.fraction) | (1 << (self.fraction - 1))


def polynomial(x: Any, coefficients: Sequence[float]) -> Any:
    """The polynomial with these coefficients, from the constant one on."""
    total = T.like(x, coefficients[-1])
    for c in reversed(coefficients[:-1]):
        total = fused(total, x, T.like(x, c))
    return fixed(total)


def fused(a: Any, b: Any, c: Any) -> Any:
    """``a * b + c``, rounded once."""
    return fixed(T.fused(a, b, c))


def fixed(value: Any) -> Any:
    """A value that TVM's simplifier does not look into: it would simplify ``(x + 1) - x``, and examine each choice twice."""
    return T.hold(value)


def rounded_to_integer(x: Any) -> tuple[Any, Any]:
    """A small float as an integral float, halves to even, and that plus ``FloatFormat.magic``: its low bits are the integer's."""
    magic = T.like(x, FloatFormat(x).magic)
    raised = fixed(x + magic)
    return fixed(raised - magic), raised


def rounded_product(x: Any, number: float) -> tuple[Any, Any]:
    """``rounded_to_integer`` of a product, which is not rounded before."""
    magic = T.like(x, FloatFormat(x).magic)
    raised = fused(x, T.like(x, number), magic)
    return fixed(raised - magic), raised


def power_of_two(raised: Any, less: int = 0) -> tuple[Any, Any]:
    """Two powers of two, whose product is 2 to the integer in ``raised`` (``rounded_to_integer``), less a number.

    Their product may be out of range. Of NaN the powers are any floats.
    """
    form = FloatFormat(raised)
    bits = T.reinterpret(raised, form.word)
    exponent = fixed(bits - T.like(bits, form.magic_bits - 2 * form.bias + less))
    first = fixed(exponent >> T.like(bits, 1))
    second = fixed(exponent - first)
    fraction = T.like(bits, form.fraction)
    return fixed(T.reinterpret(first << fraction, form.dtype)), fixed(T.reinterpret(second << fraction, form.dtype))


def choice(condition: Any, a: Any, b: Any) -> Any:
    """The first value where the condition holds, otherwise the second."""
    return fixed(T.Select(condition, a, b))


def not_above(x: Any, limit: float) -> Any:
    """The value, or the limit if that is less; NaN stays NaN."""
    most = T.like(x, limit)
    return fixed(T.Select(most < x, most, x))


def not_below(x: Any, limit: float) -> Any:
    """The value, or the limit if that is greater; NaN stays NaN."""
    least = T.like(x, limit)
    return fixed(T.Select(least > x, least, x))


def nan(x: Any) -> Any:
    """A quiet NaN of a value's type and lanes."""
    form = FloatFormat(x)
    bits = T.word(((2 * form.bias + 1) << form.fraction) | (1 << (form.fraction - 1)), form.width)
    return T.reinterpret(T.splat(bits, T.lanes(x)) if T.lanes(x) > 1 else bits, form.dtype)


def infinity(x: Any, sign: int = 1) -> Any:
    """An infinity of a value's type and lanes."""
    return T.like(x, math.copysign(math.inf, sign))


def scaled(x: Any, raised: Any, less: int = 0, limit: tuple[Any, float] | None = None) -> Any:
    """``x`` times 2 to the integer in ``raised`` (``rounded_to_integer``), less a number; for ``x`` near 1.

    ``limit``: a value and the least for which the result is not 0; below, ``x`` and ``raised`` may be anything if ``T.has_steps``.
    """
    number = fixed(raised - T.like(x, FloatFormat(x).magic + less))
    if T.has_steps(x):
        if limit is None:
            return T.by_instruction("scale", x, number)
        return T.by_instruction("scale_from", x, number, limit[0], T.like(x, limit[1]))
    first, second = power_of_two(raised, less)
    return T.rounded(T.rounded(x * first) * second)


def apart_of_any(x: Any) -> tuple[Any, Any] | None:
    """``apart`` of any float by instructions, if there are any.

    The exponents of 0 and infinity are infinite, and the mantissa of negative numbers is NaN.
    """
    mantissa = T.by_instruction("mantissa", x)
    if mantissa is None:
        return None
    mantissa, exponent = fixed(mantissa), fixed(T.by_instruction("exponent", x))
    return choice(mantissa < T.like(x, 1), exponent + T.like(x, 1), exponent), mantissa


def apart(x: Any) -> tuple[Any, Any]:
    """A positive normal float as an exponent, which is a float, and a mantissa from 3/4 to 3/2."""
    if (parts := apart_of_any(x)) is not None:
        return parts
    form = FloatFormat(x)
    bits = T.reinterpret(x, form.word)
    one = form.bias << form.fraction
    root = one - (1 << (form.fraction - 1))  # 3/4
    # The exponent field counts from that of 3/4; so much is added that it is not negative.
    moved = fixed(bits + T.like(bits, one - root))
    exponent = moved >> T.like(bits, form.fraction)
    mantissa = (moved & T.like(bits, (1 << form.fraction) - 1)) + T.like(bits, root)
    # The exponent's bits below those of 1.5 * 2**fraction are a float without a conversion of integers.
    number = T.reinterpret(exponent + T.like(bits, form.magic_bits), form.dtype) - T.like(x, form.magic + form.bias)
    return fixed(number), fixed(T.reinterpret(mantissa, form.dtype))
