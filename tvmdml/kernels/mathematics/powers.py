"""Powers: ``2 ** (y * log2(abs(x)))``, where the logarithm and the product are sums of two floats.

A product of two numbers with half of the bits each is exact, so a factor is cut to its upper half, and the rest is kept beside it.
"""

from __future__ import annotations

from typing import Any

from tvmdml.kernels import tensorir_values as T
from tvmdml.kernels.mathematics._steps import (
    FloatFormat,
    apart,
    choice,
    fixed,
    fused,
    infinity,
    nan,
    not_above,
    not_below,
    polynomial,
    rounded_to_integer,
    scaled,
)
from tvmdml.kernels.mathematics.coefficients import EXP2, LOG2_RATIO, LOG2_SCALE

_LIMITS = {32: (-152.0, 129.0), 64: (-1077.0, 1025.0)}
"""2 to a power is 0 below and infinite above."""
_FAR = {32: 2.0**31, 64: 2.0**65}
"""From here on, a power of any number but 1 is 0 or infinite."""


def power(x: Any, y: Any) -> Any:
    """The power of x to y, as in C: 1 for an exponent of 0 and for a base of 1, NaN or not."""
    one, zero, most = T.like(x, 1), T.like(x, 0), infinity(x)
    size = fixed(T.absolute(x))
    found, whole, odd = _of_size(size, y), *_integral(y)
    form = FloatFormat(x)
    bits, sign = (T.reinterpret(number, form.word) for number in (found, x))
    sign = choice(odd, sign & T.like(sign, 1 << (form.width - 1)), T.like(sign, 0))
    signed = T.reinterpret(fixed(bits | sign), form.dtype)
    none = ((x < zero) & (size < most) & ~whole) | T.is_nan(x) | T.is_nan(y)
    is_one = T.expression(y == zero) | T.expression(x == one)
    return choice(is_one, one, choice(none, nan(x), signed))


def _of_size(size: Any, y: Any) -> Any:
    """The power of a number that is not negative."""
    low, high = _LIMITS[T.bits_of(size)]
    far = _FAR[T.bits_of(size)]
    zero = T.like(size, 0)
    high_log, low_log = _log2(size)
    exponent = not_below(not_above(y, far), -far)
    first = _upper(exponent)
    rest = fixed(exponent - first)
    upper = fixed(T.rounded(first * high_log))
    lower = fixed(T.rounded(rest * high_log) + T.rounded(exponent * low_log))
    is_zero, is_infinite = T.expression(size == zero), T.expression(size == infinity(size))
    edge = T.rounded(exponent * choice(is_zero, infinity(size, -1), infinity(size)))
    total = choice(is_zero | is_infinite, edge, upper + lower)
    bounded = not_below(not_above(total, high), low)
    number, raised = rounded_to_integer(bounded)
    r = choice(T.expression(bounded == total), fixed(upper - number) + lower, zero)
    return scaled(fused(r, polynomial(r, EXP2[T.scalar_type(size)]), T.like(r, 1)), raised, limit=(total, low))


def _log2(x: Any) -> tuple[Any, Any]:
    """The logarithm to base 2 of a positive number as a sum, the first part of which has half of the bits.

    It is the exponent and ``2 / (3 * ln(2)) * s * (3 + s**2 + s**4 * p(s**2))`` with ``s = (m - 1) / (m + 1)``.
    """
    form = FloatFormat(x)
    one, three = T.like(x, 1), T.like(x, 3)
    small = x < T.like(x, 2.0 ** (1 - form.bias))
    digits = form.fraction + 1
    exponent, m = apart(choice(small, T.rounded(x * T.like(x, 2.0**digits)), x))
    exponent = choice(small, exponent - T.like(x, digits), exponent)
    f = fixed(m - one)
    total = fixed(m + one)
    inverse = fixed(one / total)
    s = fixed(T.rounded(f * inverse))
    s_high, t_high = _upper(s), _upper(total)
    t_low = fixed(m - fixed(t_high - one))
    s_low = fixed(T.rounded(inverse * (fixed(f - T.rounded(s_high * t_high)) - T.rounded(s_high * t_low))))
    w = fixed(T.rounded(s * s))
    tail = T.rounded(T.rounded(w * w) * polynomial(w, LOG2_RATIO[form.dtype]))
    tail = fixed(tail + T.rounded(s_low * (s_high + s)))
    w = fixed(T.rounded(s_high * s_high))
    high = _upper(fixed((three + w) + tail))
    low = fixed(tail - fixed(fixed(high - three) - w))
    first, rest = T.rounded(s_high * high), fixed(T.rounded(s_low * high) + T.rounded(low * s))
    first = fixed(first)
    p_high = _upper(fixed(first + rest))
    p_low = fixed(rest - fixed(p_high - first))
    scale_high, scale_low = (T.like(x, number) for number in LOG2_SCALE[form.dtype])
    z_high = fixed(T.rounded(scale_high * p_high))
    z_low = fixed(T.rounded(scale_low * p_high) + T.rounded(p_low * (scale_high + scale_low)))
    high = _upper(fixed(fixed(z_high + z_low) + exponent))
    return high, fixed(z_low - fixed(fixed(high - exponent) - z_high))


def _upper(x: Any) -> Any:
    """A number cut to half of its bits."""
    form = FloatFormat(x)
    bits = T.reinterpret(x, form.word)
    cut = form.fraction // 2 + 1
    return fixed(T.reinterpret(bits & ~T.like(bits, (1 << cut) - 1), form.dtype))


def _integral(y: Any) -> tuple[Any, Any]:
    """Whether a number, or infinity, is integral, and whether it is odd."""
    form = FloatFormat(y)
    size = fixed(T.absolute(y))
    point = T.like(y, 2.0**form.fraction)
    raised = fixed(size + point)
    big = size >= point  # such numbers are integral, and from twice that on they are even
    whole = fixed(big | T.expression(fixed(raised - point) == size))
    last = T.reinterpret(choice(big, size, raised), form.word)
    odd = T.expression((last & T.like(last, 1)) != T.like(last, 0)) & (size < point + point)
    return whole, fixed(whole & odd)
