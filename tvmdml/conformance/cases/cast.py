"""The operators of ``operators/cast.py``."""

from __future__ import annotations

from tvmdml.conformance.cases import _pointwise

DESCRIBED, BROKEN, reference = _pointwise.of("cast")
