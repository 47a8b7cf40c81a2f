"""The operator of ``operators/adam_optimizer.py``."""

from __future__ import annotations

from tvmdml.conformance.cases import _pointwise
from tvmdml.operators import adam_optimizer as own

DESCRIBED, BROKEN, reference = _pointwise.of(
    "adam_optimizer",
    {
        own.AdamOptimizer: (
            {"learning_rate": 0.01, "beta1": 0.9, "beta2": 0.999, "epsilon": 1e-8},
            {"learning_rate": 0.5, "beta1": 0.0, "beta2": -0.5, "epsilon": 0.25},
        )
    },
)
