"""Conversion of ONNX nodes to DirectML descriptors, as the operators' files describe it."""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import TypeVar

from tvmdml.enums import NEWEST_FEATURE_LEVEL
from tvmdml.operators import Operator, all_operators, of_onnx
from tvmdml.operators._contract import Role
from tvmdml.operators._onnx import NotConvertible, OnnxNode, OnnxTensor

__all__ = ["OPERATORS", "NotConvertible", "OnnxNode", "OnnxTensor", "bound"]

T = TypeVar("T")


class _Operators(Mapping[str, Callable[[OnnxNode], Operator]]):
    """Imports the file of an operator when it is asked for."""

    def __getitem__(self, kind: str) -> Callable[[OnnxNode], Operator]:
        if (cls := of_onnx(kind)) is None:
            raise KeyError(kind)
        return functools.partial(_converted, cls)

    def __iter__(self) -> Iterator[str]:
        return (kind for cls in all_operators().values() for kind in cls.ONNX)

    def __len__(self) -> int:
        return sum(1 for _ in self)


def _converted(cls: type[Operator], node: OnnxNode) -> Operator:
    desc = cls.from_onnx(node)
    desc.validate(NEWEST_FEATURE_LEVEL, extensions=True)
    return desc


OPERATORS: Mapping[str, Callable[[OnnxNode], Operator]] = _Operators()
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
