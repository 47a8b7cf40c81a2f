"""Functions that are made of exp and log1p so that nothing overflows, and no small result loses digits."""

from __future__ import annotations

from typing import Any

from tvmdml.kernels import tensorir_values as T
from tvmdml.mathematics._steps import choice, fixed, not_below, power_of_two
from tvmdml.mathematics.exponential import exp, reduced
from tvmdml.mathematics.logarithm import log1p_of_positive

_LEAST = {32: -174.0, 64: -1415.0}
"""The power of two of exp is a product of two normal numbers from here on."""
_LITTLE = {32: -20.0, 64: -40.0}
"""Below, log1p(exp(x)) is exp(x), after rounding."""


def sigmoid(x: Any) -> Any:
    """1 / (1 + exp(-x))."""
    one = T.like(x, 1)
    return one / (one + exp(T.negative(x)))


def swish(x: Any, t: Any) -> Any:
    """The product of x and the sigmoid of t, which may be less than the smallest float where the result is not."""
    zero, one = T.like(x, 0), T.like(x, 1)
    t = fixed(t)
    fraction, first, second, least = _decaying(t)
    whole = fixed(fraction + one)
    power = fixed(T.rounded(T.rounded(whole * first) * second))
    small = T.rounded(T.rounded(T.rounded(x * whole) * first) * second)
    product = choice(t > zero, x, choice(least, x * zero, small))
    return product / (one + choice(least, zero, power))


def softplus(t: Any, times: Any) -> Any:
    """``times(log(1 + exp(t)))``, where ``times`` is a product with a constant, or a quotient by one."""
    zero = T.like(t, 0)
    t = fixed(t)
    fraction, first, second, least = _decaying(t)
    whole = fixed(T.rounded((fraction + T.like(t, 1)) * first))
    found = choice(t > zero, t, zero) + log1p_of_positive(fixed(T.rounded(whole * second)))
    # Where the logarithm is less than the smallest float, its multiple need not be.
    small = T.rounded(times(whole)) * second
    return choice(t < T.like(t, _LITTLE[T.bits_of(t)]), choice(least, T.like(t, 0), small), times(fixed(found)))


def _decaying(t: Any) -> tuple[Any, Any, Any, Any]:
    """exp(-abs(t)): a fraction, to which 1 is added, and two powers of two; and whether they are 0 instead."""
    least = _LEAST[T.bits_of(t)]
    some = fixed(T.negative(T.absolute(t)))
    fraction, raised = reduced(not_below(some, least))
    return (fraction, *power_of_two(raised), fixed(some < T.like(t, least)))
