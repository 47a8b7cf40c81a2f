"""erf: a polynomial of x**2 up to 1; above, 1 - erf is one, or e to the power of one. From a limit on, erf is 1."""

from __future__ import annotations

from typing import Any

from tvmdml.kernels import tensorir_values as T
from tvmdml.mathematics._steps import choice, fixed, not_above, polynomial
from tvmdml.mathematics.coefficients import ERF_CENTRE, ERF_FAR, ERF_FAR_LOG, ERF_NEAR
from tvmdml.mathematics.exponential import exp

_LIMIT = {"float32": 3.92, "float64": 5.93}
"""erf is 1 from here on."""


def erf(x: Any) -> Any:
    """The error function."""
    dtype, one = T.scalar_type(x), T.like(x, 1)
    some = not_above(T.absolute(x), _LIMIT[dtype])
    square = fixed(T.rounded(some * some))
    near = fixed(some * fixed(polynomial(square, ERF_NEAR[dtype]) + one))
    beyond = fixed(some - T.like(x, ERF_CENTRE[dtype]))
    rest = polynomial(beyond, ERF_FAR[dtype]) if dtype == "float32" else exp(polynomial(beyond, ERF_FAR_LOG[dtype]))
    far = choice(some >= T.like(x, _LIMIT[dtype]), one, not_above(one - rest, 1.0))
    return T.with_sign_of(choice(some < one, near, far), x)
