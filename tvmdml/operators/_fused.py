"""The operators that DirectML fuses into others, by feature level: an operator's ``FUSES``."""

from __future__ import annotations

ACTIVATIONS = {
    **dict.fromkeys(
        [
            f"ACTIVATION_{name}"
            for name in (
                "ELU", "HARD_SIGMOID", "IDENTITY", "LEAKY_RELU", "LINEAR", "PARAMETRIC_SOFTPLUS", "RELU", "SCALED_ELU",
                "SCALED_TANH", "SIGMOID", "SOFTPLUS", "SOFTSIGN", "TANH", "THRESHOLDED_RELU",
            )
        ],
        "1.0",
    ),
    "ACTIVATION_SHRINK": "2.0",
    "ACTIVATION_CELU": "3.0",
    "ACTIVATION_GELU": "5.1",
}  # fmt: skip
"""Fused into normalizations, into ELEMENT_WISE_ADD1, and in the lists of recurrent operators."""
OF_CONVOLUTION = {**ACTIVATIONS, "ELEMENT_WISE_CLIP": "6.0"}
OF_GEMM = {**OF_CONVOLUTION, "ACTIVATION_SOFTMAX": "6.1", "ACTIVATION_SOFTMAX1": "6.1"}
