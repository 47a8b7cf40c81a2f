"""Conversion of ONNX nodes to DirectML descriptors, as the operators' files describe it."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import TypeVar

from tvmdml.enums import NEWEST_FEATURE_LEVEL
from tvmdml.operators import Operator, all_operators
from tvmdml.operators._contract import Role
from tvmdml.operators._onnx import OnnxNode, Refused, Tensor, element_of, numpy_type

__all__ = ["OPERATORS", "OnnxNode", "Refused", "Tensor", "bound", "element_of", "numpy_type"]

T = TypeVar("T")


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

_INPUTS: Mapping[str, tuple[int, ...]] = {"OneHot": (0, 2)}
"""The inputs that are tensors of the descriptor, where these are not the first ones and not in its ``onnx_inputs``."""


def bound(desc: Operator, kind: str, inputs: Sequence[T | None]) -> dict[str, T]:
    """The inputs of a node by the names of the descriptor's tensors that read them.

    Args:
        desc: the node's descriptor.
        kind: ONNX's name of the operator.
        inputs: something for each input of the node; ``None`` for an absent one.
    """
    order = _INPUTS.get(kind) or desc.onnx_inputs() or range(len(inputs))
    given = (one for i in order if i < len(inputs) and (one := inputs[i]) is not None)
    present = (name for name, tensor in desc.tensors(Role.INPUT) if tensor is not None)
    return dict(zip(present, given, strict=False))
