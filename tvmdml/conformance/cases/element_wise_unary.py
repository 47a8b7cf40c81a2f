"""The operators of ``operators/element_wise_unary.py``."""

from __future__ import annotations

from tvmdml.conformance.cases import _pointwise
from tvmdml.operators import element_wise_unary as own

DESCRIBED, BROKEN, reference = _pointwise.of(
    "element_wise_unary",
    {
        own.ElementWiseClip: ({"min": -1.5, "max": 2}, {"min": 3, "max": -1}),
        own.ElementWiseClip1: ({"min": 2, "max": 100}, {"min": 3, "max": 1}),
        own.ElementWiseThreshold: ({"min": 1.5},),
    },
)
