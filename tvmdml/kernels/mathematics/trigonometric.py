"""sin, cos and tan: ``x = n * pi / 2 + r`` with ``abs(r) <= pi / 4``, and polynomials of ``r``.

pi / 2 is subtracted in four parts, whose products with ``n`` are exact but for the last. That is right up to a limit; where any
lane is beyond it, the bits of 2 / pi that matter are multiplied as integers (``_large.py``). For float16, which is computed in
float32, two parts and shorter polynomials are enough.
"""

from __future__ import annotations

import math
from typing import Any

from tvmdml.kernels import tensorir_values as T
from tvmdml.kernels.mathematics._large import reduced_large
from tvmdml.kernels.mathematics._steps import FloatFormat, choice, fixed, fused, infinity, nan, polynomial, rounded_product
from tvmdml.kernels.mathematics.coefficients import COS, HALF_PI, QUADRANT, SIN, TAN

_FAR = {32: 4096.0, 64: 2.0**22}


def sin(x: Any) -> Any:
    """The sine."""
    r, quadrant = _reduced(x)
    found = _by_quadrant(r, quadrant, T.scalar_type(x))
    x = T.wide(x)
    return choice(T.expression(x == T.like(x, 0)), x, found)


def cos(x: Any) -> Any:
    """The cosine."""
    r, quadrant = _reduced(x)
    return _by_quadrant(r, fixed(quadrant + T.like(quadrant, 1)), T.scalar_type(x))


def tan(x: Any) -> Any:
    """The tangent."""
    r, quadrant = _reduced(x)
    dtype, x = T.scalar_type(x), T.wide(x)
    one = T.like(x, 1)
    is_odd = T.expression((quadrant & T.like(quadrant, 1)) != T.like(quadrant, 0))
    if dtype in TAN:
        z = fixed(T.rounded(r * r))
        above = fused(fixed(r * z), polynomial(z, TAN[dtype]), r)
        found = choice(is_odd, T.negative(one), above) / choice(is_odd, above, one)
    else:
        s, c = (fixed(some) for some in _both(r, dtype))
        found = choice(is_odd, T.negative(c), s) / choice(is_odd, s, c)
    return choice(T.expression(x == T.like(x, 0)), x, found)


def _by_quadrant(r: Any, quadrant: Any, dtype: str) -> Any:
    """The sine of the angle r in a quadrant."""
    form = FloatFormat(r)
    s, c = _both(r, dtype)
    is_odd = T.expression((quadrant & T.like(quadrant, 1)) != T.like(quadrant, 0))
    found = T.reinterpret(choice(is_odd, c, s), form.word)
    return T.reinterpret(found ^ ((quadrant >> T.like(quadrant, 1)) << T.like(quadrant, form.width - 1)), form.dtype)


def _both(r: Any, dtype: str) -> tuple[Any, Any]:
    """The sine and the cosine of r, as precise as a type needs them."""
    z = fixed(T.rounded(r * r))
    s = fused(fixed(r * z), polynomial(z, SIN[dtype]), r)
    c = fused(fixed(z * z), polynomial(z, COS[dtype]), fused(z, T.like(r, -0.5), T.like(r, 1)))
    return s, c


def _reduced(x: Any) -> tuple[Any, Any]:
    """The rest r, and the number of the quadrant, of which the two lowest bits count."""
    is_short, x = T.scalar_type(x) == "float16", T.wide(x)
    form = FloatFormat(x)
    number, raised = rounded_product(x, 2 / math.pi)
    r = x
    # A float16 has at most 2**16 quadrants, and what is left is a multiple of 2**-23: the first fused sum is exact.
    for part in HALF_PI[form.dtype] if is_short else QUADRANT[form.dtype]:
        r = fused(number, T.like(x, -part), r)
    quadrant = T.reinterpret(raised, form.word) & T.like(T.reinterpret(raised, form.word), 3)
    size = fixed(T.absolute(x))
    if is_short:
        return choice(size < infinity(x), r, nan(x)), quadrant
    far = size >= T.like(x, _FAR[form.width])
    rest, turns = T.Cell(r), T.Cell(quadrant)
    with T.when(T.any_lane(far)):
        large, counted = reduced_large(x)
        is_far = T.expression(size >= T.like(x, _FAR[form.width]))
        rest.set(T.Select(is_far, large, rest.value))
        turns.set(T.Select(is_far, counted, turns.value))
    return choice(size < infinity(x), rest.value, nan(x)), turns.value
