"""log and what follows from it: ``x = 2**e * m``, and a polynomial of ``m - 1``.

log1p keeps what ``1 + x`` loses, and adds it to ``m - 1``. log, asinh, acosh and atanh of float16 are computed in float32, with
shorter polynomials.
"""

from __future__ import annotations

import math
from typing import Any

from tvmdml.kernels import tensorir_values as T
from tvmdml.kernels.mathematics._steps import FloatFormat, apart, apart_of_any, choice, fixed, fused, infinity, nan, polynomial
from tvmdml.kernels.mathematics.coefficients import ACOSH, ASINH, ATANH, LN2, LOG, LOG_RATIO, LOG_WHOLE

_FAR = {32: 2.0**28, 64: 2.0**60}
"""From here on x + sqrt(x**2 + 1) is 2 * x, after rounding."""


_NEAR = 0.53125
"""Below, asinh is a polynomial; above, it is at least 1/2."""


def log(x: Any) -> Any:
    """The natural logarithm."""
    dtype, x = T.scalar_type(x), T.wide(x)
    if (parts := apart_of_any(x)) is not None:
        return _logarithm(parts[0], fixed(parts[1] - T.like(x, 1)), dtype)
    form = FloatFormat(x)
    small = x < T.like(x, 2.0 ** (1 - form.bias))
    digits = form.fraction + 1
    # A device may take a subnormal for 0 here, although it does not when it compares: only this number is looked at from here on.
    whole = choice(small, T.rounded(x * T.like(x, 2.0**digits)), x)
    exponent, mantissa = apart(whole)
    exponent = choice(small, exponent - T.like(x, digits), exponent)
    found = fixed(_logarithm(exponent, fixed(mantissa - T.like(x, 1)), dtype))
    zero, most = T.like(x, 0), infinity(x)
    special = choice(whole < zero, nan(x), choice(T.expression(whole == zero), infinity(x, -1), whole))  # infinity and NaN stay
    return choice((whole > zero) & (whole < most), found, special)


def log1p(x: Any) -> Any:
    """log(1 + x), without cancellation near 0."""
    one, zero, most = T.like(x, 1), T.like(x, 0), infinity(x)
    found = _log_of_one_and(x)
    special = choice(x < -one, nan(x), choice(T.expression(x == -one), infinity(x, -1), x))
    return choice((x > -one) & (x < most) & (x != zero), found, special)


def log1p_of_positive(x: Any) -> Any:
    """The same for finite values that are not negative, and NaN."""
    return _log_of_one_and(x)


def asinh(x: Any) -> Any:
    """The inverse of the hyperbolic sine: log(a + sqrt(a**2 + 1)), a = abs(x), and near 0 a polynomial."""
    dtype, x = T.scalar_type(x), T.wide(x)
    some = fixed(T.absolute(x))
    z = fixed(T.rounded(some * some))
    small = fused(fixed(some * z), polynomial(z, ASINH[dtype]), some)
    found = _log_of_sum(some, T.sqrt(fused(some, some, T.like(x, 1))), dtype)
    found = choice(some < T.like(x, _NEAR), small, found)
    return T.with_sign_of(choice(some < infinity(x), found, some), x)


def acosh(x: Any) -> Any:
    """The inverse of the hyperbolic cosine: log(x + sqrt(x**2 - 1)), and below 3/2 sqrt(2 * t) times a polynomial, t = x - 1."""
    dtype, x = T.scalar_type(x), T.wide(x)
    near = x < T.like(x, 1.5)
    t = fixed(x - T.like(x, 1))
    root = fixed(T.sqrt(choice(near, t + t, fused(x, x, T.like(x, -1)))))
    small = fused(fixed(root * t), polynomial(t, ACOSH[dtype]), root)
    found = choice(near, small, _log_of_sum(x, root, dtype))
    return choice(x < infinity(x), found, x)


def atanh(x: Any) -> Any:
    """The inverse of the hyperbolic tangent: log((1 + a) / (1 - a)) / 2, a = abs(x), and below 1/2 a polynomial."""
    dtype, x = T.scalar_type(x), T.wide(x)
    one, half, some = T.like(x, 1), T.like(x, 0.5), fixed(T.absolute(x))
    z = fixed(T.rounded(some * some))
    small = fused(fixed(some * z), polynomial(z, ATANH[dtype]), some)
    found = fixed(T.rounded(half * _log_of_normal(fixed((some + one) / (one - some)), dtype)))
    special = choice(T.expression(some == one), infinity(x), nan(x))
    return T.with_sign_of(choice(some < one, choice(some < half, small, found), special), x)


def _log_of_sum(x: Any, root: Any, dtype: str) -> Any:
    """The logarithm of a positive number and a root: of twice the number where that is large, and its square may be infinite."""
    other = choice(x >= T.like(x, _FAR[T.bits_of(x)]), x, root)
    half = T.like(x, 0.5)
    return _log_of_normal(fixed(T.rounded(other * half) + T.rounded(x * half)), dtype, twice=True)


def _log_of_normal(x: Any, dtype: str, twice: bool = False) -> Any:
    """The logarithm of a positive normal number, or of twice that."""
    exponent, mantissa = apart(x)
    exponent = fixed(exponent + T.like(x, 1)) if twice else exponent
    return fixed(_logarithm(exponent, fixed(mantissa - T.like(x, 1)), dtype))


def _log_of_one_and(x: Any) -> Any:
    one = T.like(x, 1)
    total = fixed(x + one)
    back = fixed(total - one)
    lost = fixed((x - back) + (one - (total - back)))  # total + lost is 1 + x exactly
    exponent, mantissa = apart(total)
    form = FloatFormat(x)
    # lost / 2**exponent: the total and the mantissa differ in the exponent only. Half and twice: the exponent may be the largest.
    bits, own = T.reinterpret(total, form.word), T.reinterpret(mantissa, form.word)
    twice = T.reinterpret(T.like(bits, (form.bias + 1) << form.fraction) + own - bits, form.dtype)
    return _logarithm(exponent, fused(fixed(lost * T.like(x, 0.5)), twice, fixed(mantissa - one)), T.scalar_type(x))


def _logarithm(exponent: Any, f: Any, dtype: str) -> Any:
    """``exponent * ln(2) + ln(1 + f)`` for f from -1/4 to 1/2, as precise as a type needs it."""
    if dtype == "float16":
        return fused(exponent, T.like(f, math.log(2)), fixed(T.rounded(f * polynomial(f, LOG_WHOLE[dtype]))))
    high, low = LN2[dtype]
    square = fixed(T.rounded(f * f))
    lowest = fixed(T.rounded(exponent * T.like(f, low)))
    if dtype == "float32":
        rest = fused(square, T.like(f, -0.5), fused(fixed(f * square), polynomial(f, LOG[dtype]), lowest))
        return fused(exponent, T.like(f, high), fixed(f + rest))
    half = fixed(T.rounded(square * T.like(f, 0.5)))
    s = fixed(f / (f + T.like(f, 2)))
    w = fixed(T.rounded(s * s))
    rest = fused(s, fused(w, polynomial(w, LOG_RATIO[dtype]), half), lowest)
    return fused(exponent, T.like(f, high), fixed(f - fixed(half - rest)))
