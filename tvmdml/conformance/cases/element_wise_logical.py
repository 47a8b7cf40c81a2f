"""The operators of ``operators/element_wise_logical.py``."""

from __future__ import annotations

from tvmdml.conformance.cases import _pointwise
from tvmdml.enums import IsInfinityMode
from tvmdml.operators.element_wise_logical import ElementWiseIsInfinity

DESCRIBED, BROKEN, reference = _pointwise.of(
    "element_wise_logical", {ElementWiseIsInfinity: tuple({"infinity_mode": mode} for mode in IsInfinityMode)}
)
