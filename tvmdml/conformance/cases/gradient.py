"""The operators of ``operators/gradient.py``."""

from __future__ import annotations

from tvmdml.conformance.cases import _pointwise
from tvmdml.operators import gradient as own

DESCRIBED, BROKEN, reference = _pointwise.of(
    "gradient",
    {
        own.ElementWiseClipGrad: ({"min": -1.5, "max": 2}, {"min": 3, "max": -1}),
        own.ElementWiseClipGrad1: ({"min": 2, "max": 100},),
    },
)
