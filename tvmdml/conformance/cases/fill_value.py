"""The operators of ``operators/fill_value.py``."""

from __future__ import annotations

from tvmdml.conformance.cases import _pointwise
from tvmdml.operators import fill_value as own

DESCRIBED, BROKEN, reference = _pointwise.of(
    "fill_value",
    {
        own.FillValueConstant: ({"value": 0}, {"value": 77}),
        own.FillValueSequence: ({"value_start": 3, "value_delta": 0}, {"value_start": 10, "value_delta": 7}),
    },
)
