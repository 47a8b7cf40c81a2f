"""The operators of ``operators/element_wise_function.py``."""

from __future__ import annotations

from tvmdml.conformance.cases import _pointwise

DESCRIBED, BROKEN, reference = _pointwise.of("element_wise_function")
