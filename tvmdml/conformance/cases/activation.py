"""The operators of ``operators/activation.py``."""

from __future__ import annotations

from tvmdml.conformance.cases import _pointwise
from tvmdml.operators import activation as own

DESCRIBED, BROKEN, reference = _pointwise.of(
    "activation",
    {
        own.ActivationHardSigmoid: ({"alpha": 0.2, "beta": 0.5}, {"alpha": -3, "beta": 0.1}),
        own.ActivationHardSwish: ({"alpha": 0.166667, "beta": 0.5},),
        own.ActivationLeakyRelu: ({"alpha": 0.1}, {"alpha": 0.0}),
        own.ActivationLinear: ({"alpha": 0.3, "beta": -1.7}, {"alpha": 1, "beta": 0}),
        own.ActivationShrink: (
            {"bias": 0.3, "threshold": 0.5},
            {"bias": -7.9, "threshold": -2.6},
            {"bias": 1e10, "threshold": 200},
        ),
        own.ActivationThresholdedRelu: ({"alpha": 1}, {"alpha": -0.1}),
    },
)
