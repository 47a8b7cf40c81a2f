"""Functions that are made of exp and log1p so that nothing overflows, and no small result loses digits."""

from __future__ import annotations

from typing import Any

from tvmdml.kernels import tensorir_values as T
from tvmdml.kernels.seldom import seldom
from tvmdml.mathematics._steps import choice, fixed, not_below, polynomial, power_of_two
from tvmdml.mathematics.coefficients import LOG1P
from tvmdml.mathematics.exponential import exp, exp_above, exp_between, reduced
from tvmdml.mathematics.logarithm import log1p_of_positive

_LEAST = {32: -174.0, 64: -1415.0}
"""The power of two of exp is a product of two normal numbers from here on."""
_LITTLE = {32: -20.0, 64: -40.0}
"""Below, log1p(exp(x)) is exp(x), after rounding."""
_FAR = {32: (-87.0, (-104.0, 176.5), 126), 64: (-709.0, (-746.0, 1420.0), 1022)}
"""Below, exp(-t) may be infinite: so many powers of two are taken from it; and the limits of -t: exp is 0, or infinite even so."""


def sigmoid(x: Any) -> Any:
    """1 / (1 + exp(-x))."""
    one = T.like(x, 1)
    return one / (one + exp(T.negative(x)))


def swish(x: Any, t: Any) -> Any:
    """The product of x and the sigmoid of t, which may be less than the smallest float where the result is not."""
    x, t, one = fixed(x), fixed(t), T.like(t, 1)
    far, limits, less = _FAR[T.bits_of(t)]
    is_far = t < T.like(t, far)

    def of_any() -> Any:
        factor = choice(is_far, T.like(t, 2.0**-less), one)
        return T.rounded(x * factor) / (factor + exp_between(T.negative(t), *limits, is_far, less))

    if T.lanes(t) == 1 or not T.fuses():
        return of_any()
    found = T.Cell(x / (one + exp_above(T.negative(t), limits[0])))
    with seldom(T.any_lane(is_far)):
        found.set(of_any())
    return found.value


def softplus(t: Any, times: Any) -> Any:
    """``times(log(1 + exp(t)))``, where ``times`` is a product with a constant, or a quotient by one."""
    zero = T.like(t, 0)
    t = fixed(t)
    least = _LEAST[T.bits_of(t)]
    some = fixed(T.negative(T.absolute(t)))
    fraction, raised = reduced(not_below(some, least))
    first, second = power_of_two(raised)
    whole = fixed(T.rounded((fraction + T.like(t, 1)) * first))
    found = choice(t > zero, t, zero) + _log1p_up_to_1(fixed(T.rounded(whole * second)))
    # Where the logarithm is less than the smallest float, its multiple need not be: the second power of two is applied to that.
    is_little = t < T.like(t, _LITTLE[T.bits_of(t)])
    multiple = fixed(times(choice(is_little, whole, found)))
    second = choice(some < T.like(t, least), zero, second)
    return choice(is_little, T.rounded(multiple * second), multiple)


def _log1p_up_to_1(x: Any) -> Any:
    """log(1 + x) for x from 0 to 1."""
    dtype = T.scalar_type(x)
    if dtype not in LOG1P:
        return log1p_of_positive(x)
    return T.rounded(x * polynomial(fixed(x - T.like(x, 0.5)), LOG1P[dtype]))
