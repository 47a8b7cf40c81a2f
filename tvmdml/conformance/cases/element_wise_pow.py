"""The operators of ``operators/element_wise_pow.py``."""

from __future__ import annotations

from tvmdml.conformance.cases import _pointwise
from tvmdml.operators import element_wise_pow as own

DESCRIBED, BROKEN, reference = _pointwise.of(
    "element_wise_pow",
    {own.ElementWiseConstantPow: ({"exponent": 3}, {"exponent": -3}, {"exponent": 0}, {"exponent": 2.0**31 + 256})},
)
