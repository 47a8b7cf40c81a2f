"""The rules of ONNX operators that need more than their descriptor classes: views, choices by type, and compositions."""

from __future__ import annotations

from tvmdml.onnx.node import RULES
from tvmdml.onnx.rules import (
    control,
    counting,
    drawing,
    elements,
    fused,
    indices,
    normalizing,
    products,
    quantized,
    reductions,
    resizing,
    sampling,
    scattering,
    sequences,
    spectra,
    transformers,
    views,
)

__all__ = [
    "RULES",
    "control",
    "counting",
    "drawing",
    "elements",
    "fused",
    "indices",
    "normalizing",
    "products",
    "quantized",
    "reductions",
    "resizing",
    "sampling",
    "scattering",
    "sequences",
    "spectra",
    "transformers",
    "views",
]
