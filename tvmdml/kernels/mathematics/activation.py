"""Functions that are made of exp and log1p so that nothing overflows, and no small result loses digits."""

from __future__ import annotations

from typing import Any

from tvmdml.kernels import tensorir_values as T
from tvmdml.kernels.mathematics._steps import choice, fixed, polynomial, power_of_two
from tvmdml.kernels.mathematics.coefficients import LOG1P
from tvmdml.kernels.mathematics.exponential import exp_above, exp_between, reduced
from tvmdml.kernels.mathematics.logarithm import log1p_of_positive
from tvmdml.kernels.seldom import seldom

_LEAST = {32: -174.0, 64: -1415.0}
"""The power of two of exp is a product of two normal numbers from here on."""
_LITTLE = {32: -20.0, 64: -40.0}
"""Below, log1p(exp(x)) is exp(x), and 1 + exp(x) is 1, after rounding."""
_INFINITE = {32: 89.5, 64: 711.0}
"""exp is infinite above."""
_FAR = {32: (-87.0, 176.5, 126), 64: (-709.0, 1420.0, 1022)}
"""Below, exp(-t) may be infinite: so many powers of two are taken from it; and from which -t on it is infinite even so."""


def sigmoid(x: Any) -> Any:
    """1 / (1 + exp(-x))."""
    one, bits = T.like(x, 1), T.bits_of(x)
    return one / (one + exp_between(T.negative(x), _LITTLE[bits], _INFINITE[bits]))


def swish(x: Any, t: Any) -> Any:
    """The product of x and the sigmoid of t, which may be less than the smallest float where the result is not."""
    x, t, one = fixed(x), fixed(t), T.like(t, 1)
    low, (far, high, less) = _LITTLE[T.bits_of(t)], _FAR[T.bits_of(t)]
    is_far = t < T.like(t, far)

    def of_any() -> Any:
        factor = choice(is_far, T.like(t, 2.0**-less), one)
        return T.rounded(x * factor) / (factor + exp_between(T.negative(t), low, high, is_far, less))

    if T.lanes(t) == 1 or not T.fuses():
        return of_any()
    found = T.Cell(x / (one + exp_above(T.negative(t), low)))
    with seldom(T.any_lane(is_far)):
        found.set(of_any())
    return found.value


def softplus(t: Any, times: Any) -> Any:
    """``times(log(1 + exp(t)))``, where ``times`` is a product with a constant, or a quotient by one."""
    zero = T.like(t, 0)
    t = fixed(t)
    some = fixed(T.negative(T.absolute(t)))
    # There exp(some) is 0. A number takes its place with which nothing is below the normal ones, where processors may be slow.
    vanishes = some < T.like(t, _LEAST[T.bits_of(t)])
    fraction, raised = reduced(choice(vanishes, T.like(t, _FAR[T.bits_of(t)][0]), some))
    first, second = power_of_two(raised)
    second = choice(vanishes, zero, second)
    whole = fixed(T.rounded((fraction + T.like(t, 1)) * first))
    found = choice(t > zero, t, zero) + _log1p_up_to_1(fixed(T.rounded(whole * second)))
    # Where the logarithm is less than the smallest float, its multiple need not be: the second power of two is applied to that.
    is_little = t < T.like(t, _LITTLE[T.bits_of(t)])
    multiple = fixed(times(choice(is_little, whole, found)))
    return choice(is_little, T.rounded(multiple * second), multiple)


def _log1p_up_to_1(x: Any) -> Any:
    """log(1 + x) for x from 0 to 1."""
    dtype = T.scalar_type(x)
    if dtype not in LOG1P:
        return log1p_of_positive(x)
    return T.rounded(x * polynomial(fixed(x - T.like(x, 0.5)), LOG1P[dtype]))
