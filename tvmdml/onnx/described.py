"""Nodes by their descriptor classes: ``from_onnx`` makes the descriptor, and the graph gets a call of it."""

from __future__ import annotations

import functools
from collections.abc import Iterator, Mapping
from types import SimpleNamespace
from typing import Any

import numpy as np

from tvmdml import doors
from tvmdml.graph import Expression
from tvmdml.graph.templates import Template
from tvmdml.onnx import descriptors
from tvmdml.onnx.node import Node, Results
from tvmdml.onnx.values import Value
from tvmdml.operators import Operator, of_onnx
from tvmdml.operators._contract import Role
from tvmdml.operators._pointwise import Pointwise


@functools.cache
def _function(kind: str) -> Any:
    """The function of an ONNX operator whose inputs and attributes are the function's: views and repetition cost nothing there."""
    cls = of_onnx(kind)
    if cls is None or not (issubclass(cls, Pointwise) and cls.FUNCTION):
        return None
    own = getattr(cls.from_onnx, "__func__", None) is getattr(Operator.from_onnx, "__func__", None)
    return doors.public_name(cls.FUNCTION) if own else None


def is_mapped(kind: str) -> bool:
    """Whether an operator has a descriptor class."""
    return kind in descriptors.OPERATORS


def convert(node: Node) -> Results:
    """Add a node's call.

    Raises:
        Refused, TvmdmlError: the node has no descriptor.
    """
    if (function := _function(node.kind)) is not None:
        return function(*(node.maybe(i) for i in range(len(node.inputs))), **node.attributes)
    return add(node, descriptor(node))


def read(node: Node, known: _Known | None = None) -> descriptors.OnnxNode:
    """A node as descriptor classes read it; ``known`` are the elements of its inputs."""
    names = [str(i) if value is not None else "" for i, value in enumerate(node.inputs)]
    tensors = {
        name: descriptors.OnnxTensor(value.dtype, value.shape)
        for name, value in zip(names, node.inputs, strict=True)
        if value is not None
    }
    proto = SimpleNamespace(
        op_type=node.kind.rpartition(".")[2], input=names, output=["y" if used else "" for used in node.outputs], attribute=()
    )
    found = descriptors.OnnxNode(proto, tensors, _Known(node) if known is None else known)
    found.attributes = node.attributes
    return found


def descriptor(node: Node) -> Operator:
    """A node's descriptor.

    Raises:
        Refused, TvmdmlError: the node has none.
    """
    known = _Known(node)
    try:
        attributes = tuple(map(_hashable, node.attributes.items()))
        key = Template((node.kind, node.outputs, attributes, tuple(map(_form, node.inputs)))).key
        found = node.graph.described.get(key)
    except Exception:  # an attribute that cannot be hashed
        return descriptors.OPERATORS[node.kind](read(node, known))
    if found is None:
        found = descriptors.OPERATORS[node.kind](read(node, known))
        if not known.is_read:
            node.graph.described[key] = found
    return found


def _hashable(value: Any) -> Any:
    return tuple(map(_hashable, value)) if isinstance(value, (list, tuple)) else value


def _form(value: Value | None) -> Any:
    return None if value is None else (value.dtype, value.shape)


def add(node: Node, desc: Operator) -> list[Expression | None]:
    """Add a call whose inputs are the node's, as ONNX orders them."""
    bound = descriptors.bound(desc, node.kind, node.inputs)
    edges = {}
    for name, tensor in desc.tensors(Role.INPUT):
        if tensor is not None and (value := bound.get(name)) is not None:
            edges[name] = value.bytes_as(node.graph, tensor.data_type)
    return list(node.graph.add(desc, edges))


class _Known(Mapping[str, list[Any]]):
    """The elements of inputs that a descriptor needs."""

    def __init__(self, node: Node) -> None:
        self._node = node
        self.is_read = False

    def __getitem__(self, name: str) -> list[Any]:
        if not name:
            raise KeyError(name)
        self.is_read = True
        return self._node.elements(int(name)).reshape(-1).tolist()

    def __iter__(self) -> Iterator[str]:
        return iter(())

    def __len__(self) -> int:
        return 0


_CHECKED = ("Conv", "Pad", "Range", "Reshape", "Resize", "Upsample")
"""Operators that make nothing of something if an input is wrong, such as a delta or a scale of 0: their rules say so."""


def without_elements(node: Node) -> list[Value] | None:
    """The outputs, if none has elements: there is nothing to compute."""
    used = [result for result, wanted in zip(node.results, node.outputs, strict=False) if wanted]
    if not used or any(one.dtype is None or one.shape is None or 0 not in one.shape for one in used):
        return None
    if node.kind in _CHECKED and node.value(0).size:
        return None
    return [Value.known(np.empty(one.shape or (), one.dtype or np.float32)) for one in node.results]
