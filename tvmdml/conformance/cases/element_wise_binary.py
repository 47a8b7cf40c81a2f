"""The operators of ``operators/element_wise_binary.py``."""

from __future__ import annotations

from tvmdml.conformance.cases import _pointwise
from tvmdml.operators.activation import ActivationLinear, ActivationRelu
from tvmdml.operators.element_wise_binary import ElementWiseAdd1

FUSED = ActivationRelu.fused(), ActivationLinear.fused(alpha=0.3, beta=-1.7)

DESCRIBED, BROKEN, reference = _pointwise.of(
    "element_wise_binary", {ElementWiseAdd1: ({}, *({"fused_activation": one} for one in FUSED))}
)
