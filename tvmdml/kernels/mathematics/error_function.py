"""erf: for float32 x times a polynomial, one for each of eight pieces; for float64 x times a polynomial of x**2 up to 1, and above
1 less e to the power of one. From a limit on, erf is 1.
"""

from __future__ import annotations

from typing import Any

from tvmdml.kernels import tensorir_values as T
from tvmdml.kernels.mathematics._steps import choice, fixed, fused, not_above, polynomial, rounded_product
from tvmdml.kernels.mathematics.coefficients import ERF_CENTRE, ERF_FAR_LOG, ERF_LIMIT, ERF_NEAR, ERF_PIECES, ERF_STEP
from tvmdml.kernels.mathematics.exponential import exp


def erf(x: Any) -> Any:
    """The error function."""
    some = not_above(T.absolute(x), ERF_LIMIT[T.scalar_type(x)])
    return T.with_sign_of(_by_pieces(some) if T.scalar_type(x) in ERF_PIECES else _by_logarithm(some), x)


def _by_pieces(x: Any) -> Any:
    dtype = T.scalar_type(x)
    number, raised = rounded_product(x, 1 / ERF_STEP[dtype])
    rest = fused(number, T.like(x, -ERF_STEP[dtype]), x)
    piece = fixed(T.reinterpret(raised, "uint32"))
    *others, total = map(fixed, T.looked_up(piece, ERF_PIECES[dtype]))
    for c in reversed(others):
        total = fused(total, rest, c)
    return fixed(T.rounded(x * total))


def _by_logarithm(x: Any) -> Any:
    dtype, one = T.scalar_type(x), T.like(x, 1)
    square = fixed(T.rounded(x * x))
    near = fixed(x * fixed(polynomial(square, ERF_NEAR[dtype]) + one))
    rest = exp(polynomial(fixed(x - T.like(x, ERF_CENTRE[dtype])), ERF_FAR_LOG[dtype]))
    far = choice(x >= T.like(x, ERF_LIMIT[dtype]), one, not_above(one - rest, 1.0))
    return choice(x < one, near, far)
