"""The inverse trigonometric functions: odd polynomials on [0, 1] and [0, 1/2], and reflections at 1 and 1/2."""

from __future__ import annotations

import math
from typing import Any

from tvmdml.kernels import tensorir_values as T
from tvmdml.kernels.mathematics._steps import choice, fixed, fused, nan, polynomial
from tvmdml.kernels.mathematics.coefficients import ASIN, ATAN, HALF_PI


def asin(x: Any) -> Any:
    """The inverse of the sine: above 1/2, pi / 2 less twice that of sqrt((1 - x) / 2)."""
    some = fixed(T.absolute(x))
    s, small = _arc(some)
    high, low = _half_pi(x)
    far = fused(T.like(x, -2), s, high) + low
    found = choice(small, s, far)
    return T.with_sign_of(choice(some <= T.like(x, 1), found, nan(x)), x)


def acos(x: Any) -> Any:
    """The inverse of the cosine: 2 * asin(sqrt((1 - abs(x)) / 2)), or that less than pi, and within 1/2 it is pi / 2 - asin(x)."""
    some, zero = fixed(T.absolute(x)), T.like(x, 0)
    s, small = _arc(some)
    high, low = _half_pi(x)
    signed = fixed(T.with_sign_of(s, x))
    middle = high - (signed - low)
    twice = fixed(s + s)
    below = (high + high) - (twice - (low + low))
    far = choice(x > zero, twice, below)
    return choice(some <= T.like(x, 1), choice(small, middle, far), nan(x))


def atan(x: Any) -> Any:
    """The inverse of the tangent: above 1, pi / 2 less that of 1 / x."""
    one, some = T.like(x, 1), fixed(T.absolute(x))
    far = some > one
    t = fixed(choice(far, one, some) / choice(far, some, one))
    return T.with_sign_of(_turned(_arc_tangent(t), far), x)


def atan2(y: Any, x: Any) -> Any:
    """The angle of the point (x, y), from -pi to pi, as in C: zeros and infinities of both have angles, too."""
    one, zero = T.like(x, 1), T.like(x, 0)
    across, up = fixed(T.absolute(x)), fixed(T.absolute(y))
    most = T.like(x, math.inf)
    both = (across == most) & (up == most)
    far = fixed(up > across)
    above, below = choice(far, across, up), choice(far, up, across)
    quotient = choice(both, one, above / choice(T.expression(below == zero), one, below))
    angle = _arc_tangent(fixed(quotient))
    is_left = T.with_sign_of(one, x) < zero
    # From the axis that the point is near: 0, pi / 2 or pi, and the angle added or subtracted.
    high, low = _half_pi(x)
    base, rest = (choice(far, part, choice(is_left, part + part, zero)) for part in (high, low))
    back = choice((far & ~is_left) | (is_left & ~far), angle, T.negative(angle))
    found = T.with_sign_of(fixed(base - (back - rest)), y)
    return choice(T.is_nan(x) | T.is_nan(y), nan(x), found)


def _arc(some: Any) -> tuple[Any, Any]:
    """The arc sine of a value up to 1/2, and of sqrt((1 - value) / 2) above that, and whether it is small."""
    half = T.like(some, 0.5)
    small = fixed(some <= half)
    rest = fixed(T.rounded((T.like(some, 1) - some) * half))
    z = choice(small, T.rounded(some * some), rest)
    s = choice(small, some, T.sqrt(rest))
    found = fused(fixed(s * z), polynomial(z, ASIN[T.scalar_type(some)]), s)
    return found, small


def _arc_tangent(t: Any) -> Any:
    z = fixed(T.rounded(t * t))
    return fused(fixed(t * z), polynomial(z, ATAN[T.scalar_type(t)]), t)


def _turned(angle: Any, far: Any) -> Any:
    """The angle, or pi / 2 less it where the point is far."""
    high, low = _half_pi(angle)
    return choice(far, high - (angle - low), angle)


def _half_pi(x: Any) -> tuple[Any, Any]:
    high, low = HALF_PI[T.scalar_type(x)]
    return T.like(x, high), T.like(x, low)
