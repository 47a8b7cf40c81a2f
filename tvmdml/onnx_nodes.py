"""Conversion of ONNX nodes to DirectML descriptors, as the operators' files describe it."""

from __future__ import annotations

from collections.abc import Callable, Mapping

from tvmdml.enums import NEWEST_FEATURE_LEVEL
from tvmdml.operators import Operator, all_operators
from tvmdml.operators._onnx import OnnxNode, Refused, Tensor, numpy_type

__all__ = ["OPERATORS", "OnnxNode", "Refused", "Tensor", "numpy_type"]


def _converter(cls: type[Operator]) -> Callable[[OnnxNode], Operator]:
    def convert(node: OnnxNode) -> Operator:
        desc = cls.from_onnx(node)
        desc.validate(NEWEST_FEATURE_LEVEL, extensions=True)
        return desc

    return convert


OPERATORS: Mapping[str, Callable[[OnnxNode], Operator]] = {
    kind: _converter(cls) for cls in all_operators().values() for kind in cls.ONNX
}
"""The function that converts a node and checks the descriptor, for each ONNX operator."""
