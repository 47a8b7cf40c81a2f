"""Attributes to try of pointwise operators that must have some, or do something else with some: a row for each.

A module whose operators are all pointwise, and have no other cases, needs no file of its own here.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from tvmdml.enums import IsInfinityMode
from tvmdml.operators.activation import ActivationLinear, ActivationRelu

FUSED = ActivationRelu.fused(), ActivationLinear.fused(alpha=0.3, beta=-1.7)

ATTRIBUTES: Mapping[str, Sequence[Mapping[str, Any]]] = {
    "ACTIVATION_CELU": ({"alpha": 1}, {"alpha": -0.3}),
    "ACTIVATION_ELU": ({"alpha": 1}, {"alpha": -2.3}),
    "ACTIVATION_HARD_SIGMOID": ({"alpha": 0.2, "beta": 0.5}, {"alpha": -3, "beta": 0.1}),
    "ACTIVATION_HARD_SWISH": ({"alpha": 0.166667, "beta": 0.5},),
    "ACTIVATION_LEAKY_RELU": ({"alpha": 0.1}, {"alpha": 0.0}),
    "ACTIVATION_LINEAR": ({"alpha": 0.3, "beta": -1.7}, {"alpha": 1, "beta": 0}),
    "ACTIVATION_PARAMETRIC_SOFTPLUS": ({"alpha": 1.5, "beta": 0.7}, {"alpha": -300, "beta": -1.3}),
    "ACTIVATION_SCALED_ELU": ({"alpha": 1.673263192, "gamma": 1.050701022}, {"alpha": -0.7, "gamma": 3}),
    "ACTIVATION_SCALED_TANH": ({"alpha": 1, "beta": 0.5}, {"alpha": -3.3, "beta": 1.7}),
    "ACTIVATION_SHRINK": (
        {"bias": 0.3, "threshold": 0.5},
        {"bias": -7.9, "threshold": -2.6},
        {"bias": 1e10, "threshold": 200},
    ),
    "ACTIVATION_SOFTPLUS": ({"steepness": 1}, {"steepness": 2.5}),
    "ACTIVATION_SWISH": ({"sigmoid_input_scale": 1}, {"sigmoid_input_scale": -1.7}),
    "ACTIVATION_THRESHOLDED_RELU": ({"alpha": 1}, {"alpha": -0.1}),
    "ADAM_OPTIMIZER": (
        {"learning_rate": 0.01, "beta1": 0.9, "beta2": 0.999, "epsilon": 1e-8},
        {"learning_rate": 0.5, "beta1": 0.0, "beta2": -0.5, "epsilon": 0.25},
    ),
    "ELEMENT_WISE_ADD1": ({}, *({"fused_activation": activation} for activation in FUSED)),
    "ELEMENT_WISE_CLIP": ({"min": -1.5, "max": 2}, {"min": 3, "max": -1}),
    "ELEMENT_WISE_CLIP1": ({"min": 2, "max": 100}, {"min": 3, "max": 1}),
    "ELEMENT_WISE_CLIP_GRAD": ({"min": -1.5, "max": 2}, {"min": 3, "max": -1}),
    "ELEMENT_WISE_CLIP_GRAD1": ({"min": 2, "max": 100},),
    "ELEMENT_WISE_CONSTANT_POW": ({"exponent": 3}, {"exponent": -3}, {"exponent": 0}, {"exponent": 2.0**31 + 256}),
    "ELEMENT_WISE_DEQUANTIZE_LINEAR": ({}, {"zero_point_tensor": None}),
    "ELEMENT_WISE_IS_INFINITY": tuple({"infinity_mode": mode} for mode in IsInfinityMode),
    "ELEMENT_WISE_QUANTIZED_LINEAR_ADD": ({}, {"a_zero_point_tensor": None, "output_zero_point_tensor": None}),
    "ELEMENT_WISE_QUANTIZE_LINEAR": ({}, {"zero_point_tensor": None}),
    "ELEMENT_WISE_THRESHOLD": ({"min": 1.5},),
    "FILL_VALUE_CONSTANT": ({"value": 0}, {"value": 77}),
    "FILL_VALUE_SEQUENCE": ({"value_start": 3, "value_delta": 0}, {"value_start": 10, "value_delta": 7}),
}
