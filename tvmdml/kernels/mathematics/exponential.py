"""exp and what follows from it: ``x = n * ln(2) + r``, a polynomial of ``r``, and the power of two as bits.

No result overflows, or loses digits, on the way: a power of two is applied as two factors.
"""

from __future__ import annotations

import math
from typing import Any

import numpy as np

from tvmdml.kernels import tensorir_values as T
from tvmdml.kernels.contraction import multiply_add
from tvmdml.kernels.mathematics._steps import (
    FloatFormat,
    choice,
    fixed,
    fused,
    not_above,
    not_below,
    polynomial,
    power_of_two,
    rounded_product,
    scaled,
)
from tvmdml.kernels.mathematics.coefficients import EXP, EXP2_SHORT, LN2

_LIMITS = {32: (-104.0, 89.5), 64: (-746.0, 711.0)}
"""exp is 0 below and infinite above, and sinh and cosh are infinite above."""
_LARGEST_SINH = {32: 89.5, 64: 710.6}
"""sinh is infinite above; a quarter of exp is not yet."""
_LINEAR = {32: 2.0**-12, 64: 2.0**-27}
"""sinh(x) is x below, after rounding."""
_LARGEST_TANH = {32: 9.1, 64: 19.1}
"""tanh is 1 from here on."""


def exp(x: Any) -> Any:
    """The power of e to x."""
    return exp_between(x, *_LIMITS[T.bits_of(x)])


def exp_between(x: Any, low: float, high: float, where: Any = None, less: int = 0) -> Any:
    """The same for an x that is limited, less a number of powers of two ``where`` a condition holds."""
    return exp_above(not_above(x, high), low, where, less)


def exp_above(x: Any, low: float, where: Any = None, less: int = 0) -> Any:
    """The same for an x whose integer fits into ``FloatFormat.magic``. Below ``low`` it is as there, or 0."""
    x = fixed(x)
    r, raised = _rest(x if T.has_steps(x) else not_below(x, low))
    raised = raised if where is None else choice(where, fixed(raised - T.like(x, less)), raised)
    one = T.like(x, 1)
    return scaled(fused(fused(polynomial(r, EXP[T.scalar_type(x)]), r, one), r, one), raised, limit=(x, low))


def decay(x: Any) -> Any:
    """The power of e to an x that is not positive, in few steps: 0 where it is below the normal numbers; NaN stays NaN.

    It may be off by ``2 - x`` spacings of the type at 1, relative to it, and differs between targets: it is for differences, which
    have been rounded already, and for sums.
    """
    form, factor = FloatFormat(x), T.like(x, 1 / math.log(2))
    least = T.like(x, math.log(float(np.finfo(form.dtype).tiny)))
    product = x * factor
    rest = T.by_instruction("rest", product)
    if rest is not None:  # infinities have none, so that nothing becomes NaN
        rest = fixed(rest)
        return T.by_instruction("scale_from", _short(rest, form.dtype), fixed(product - rest), x, least)
    raised = fixed(multiply_add(x, factor, T.like(x, form.magic)))
    rest = fixed(multiply_add(x, factor, T.like(x, form.magic) - raised))
    bits = T.reinterpret(raised, form.word)  # the lowest are the exponent's
    bits = fixed(T.reinterpret(_short(rest, form.dtype), form.word) + (bits << T.like(bits, form.fraction)))
    return choice(x >= least, T.reinterpret(bits, form.dtype), not_below(x, 0.0))


def _short(x: Any, dtype: str) -> Any:
    """The power of 2 to an x from -1/2 to 1/2, in few steps."""
    first, *others = reversed(EXP2_SHORT[dtype])
    total = T.like(x, first)
    for c in (*others, 1.0):
        total = fixed(multiply_add(total, x, T.like(x, c)))
    return total


def expm1(x: Any) -> Any:
    """The power of e to x, less 1, without cancellation near 0."""
    low, high = _LIMITS[T.bits_of(x)]
    fraction, raised = reduced(not_below(not_above(x, high), low))
    first, second = power_of_two(raised)
    form = FloatFormat(x)
    bits = T.reinterpret(second, form.word)
    inverse = T.reinterpret(T.like(bits, (2 * form.bias) << form.fraction) - bits, form.dtype)  # of a power of two
    return T.rounded(fused(fraction, first, fixed(first - inverse)) * second)


def sinh(x: Any) -> Any:
    """The hyperbolic sine: with ``h = (exp(abs(x)) - 1) / 4`` it is twice ``h + h / (4 * h + 1)``; near 0 it is x."""
    size = fixed(T.absolute(x))
    fraction, raised = reduced(not_above(size, _LARGEST_SINH[T.bits_of(x)]))
    power = _single_power(raised, less=2)
    h = fused(fraction, power, fixed(power - T.like(x, 0.25)))
    some = not_above(h, 2.0**100)
    half = fixed(h + some / fused(some, T.like(x, 4), T.like(x, 1)))
    near = size < T.like(x, _LINEAR[T.bits_of(x)])
    return T.with_sign_of(choice(near, size, half + half), x)


def cosh(x: Any) -> Any:
    """The hyperbolic cosine: with ``h = exp(abs(x)) / 2`` it is ``h + 1 / (4 * h)``."""
    fraction, raised = reduced(not_above(T.absolute(x), _LIMITS[T.bits_of(x)][1]))
    half = fixed(scaled(fixed(fraction + T.like(x, 1)), raised, less=1))
    return half + T.like(x, 0.25) / half


def tanh(x: Any) -> Any:
    """The hyperbolic tangent: with ``e = exp(2 * abs(x)) - 1`` it is ``e / (e + 2)``."""
    some = not_above(T.absolute(x), _LARGEST_TANH[T.bits_of(x)])
    fraction, raised = reduced(fixed(some + some))
    power = _single_power(raised)
    e = fused(fraction, power, fixed(power - T.like(x, 1)))
    return T.with_sign_of(e / (e + T.like(x, 2)), x)


def reduced(x: Any) -> tuple[Any, Any]:
    """``exp(r) - 1`` for the rest ``r`` of x, and the integer ``n`` as in ``rounded_to_integer``."""
    r, raised = _rest(x)
    return fused(fixed(r * r), polynomial(r, EXP[T.scalar_type(x)]), r), raised


def _rest(x: Any) -> tuple[Any, Any]:
    number, raised = rounded_product(x, 1 / math.log(2))
    high, low = LN2[T.scalar_type(x)]
    return fused(number, T.like(x, -low), fused(number, T.like(x, -high), x)), raised


def _single_power(raised: Any, less: int = 0) -> Any:
    """2 to the integer in ``raised`` (``rounded_to_integer``), less a number, if that is a normal number."""
    form = FloatFormat(raised)
    bits = T.reinterpret(raised, form.word)
    field = (bits - T.like(bits, form.magic_bits - form.bias + less)) << T.like(bits, form.fraction)
    return fixed(T.reinterpret(field, form.dtype))
