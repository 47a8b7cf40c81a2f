"""The operators of ``operators/activation_smooth.py``."""

from __future__ import annotations

from tvmdml.conformance.cases import _pointwise
from tvmdml.operators import activation_smooth as own

DESCRIBED, BROKEN, reference = _pointwise.of(
    "activation_smooth",
    {
        own.ActivationCelu: ({"alpha": 1}, {"alpha": -0.3}),
        own.ActivationElu: ({"alpha": 1}, {"alpha": -2.3}),
        own.ActivationParametricSoftplus: ({"alpha": 1.5, "beta": 0.7}, {"alpha": -300, "beta": -1.3}),
        own.ActivationScaledElu: ({"alpha": 1.673263192, "gamma": 1.050701022}, {"alpha": -0.7, "gamma": 3}),
        own.ActivationScaledTanh: ({"alpha": 1, "beta": 0.5}, {"alpha": -3.3, "beta": 1.7}),
        own.ActivationSoftplus: ({"steepness": 1}, {"steepness": 2.5}),
        own.ActivationSwish: ({"sigmoid_input_scale": 1}, {"sigmoid_input_scale": -1.7}),
    },
)
