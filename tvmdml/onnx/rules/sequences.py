"""Sequences and optional tensors: lengths, places and what is there are known, so sequences are only lists of tensors."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import numpy as np

import tvmdml
from tvmdml.errors import reason
from tvmdml.onnx.descriptors import NotConvertible
from tvmdml.onnx.node import Node, Results, along, axis_of, reshaped, rule
from tvmdml.onnx.rules.views import parted
from tvmdml.onnx.values import Value


def _parts(node: Node) -> list[Value]:
    found = node.value(0).parts
    if found is None:
        raise NotConvertible("its input is not a sequence")
    return list(found)


def _place(node: Node, position: int, count: int, usual: int, *, end: bool = False) -> int:
    """A place in a sequence, counted from the front; ``end`` allows the place after the last one."""
    place = int(node.number(position)) if node.has(position) else usual
    if not -count <= place < count + end:
        raise NotConvertible(f"its position is {place}, for {count} tensors")
    return place + count if place < 0 else place


def _insert(node: Node, parts: list[Value]) -> Value:
    parts.insert(_place(node, 2, len(parts), len(parts), end=True), node.value(1))
    return Value.sequence(parts)


def _erase(node: Node, parts: list[Value]) -> Value:
    del parts[_place(node, 1, len(parts), len(parts) - 1)]
    return Value.sequence(parts)


_ACTIONS: Mapping[str, Callable[[Node, list[Value]], Any]] = {
    "SequenceInsert": _insert,
    "SequenceErase": _erase,
    "SequenceAt": lambda node, parts: parts[_place(node, 1, len(parts), 0)],
    "SequenceLength": lambda node, parts: np.asarray(len(parts), np.int64),
}


@rule(*_ACTIONS)
def _act(node: Node) -> Results:
    return _ACTIONS[node.kind](node, _parts(node))


@rule("SequenceEmpty")
def _empty(node: Node) -> Results:
    return Value.sequence([])


@rule("SequenceMap")
def _map(node: Node) -> Results:
    """A graph of the tensors of sequences, one of each. Inputs that are tensors are the same in each round."""
    body, first = node.attributes.get("body"), _parts(node)
    several = [node.value(i) for i in range(len(node.inputs))]
    if body is None or not hasattr(body, "node") or any(one.parts is not None and len(one.parts) != len(first) for one in several):
        raise NotConvertible("its sequences have different lengths, or its body is missing")
    if len(body.output) != len(node.outputs):
        raise NotConvertible(f"its body has {len(body.output)} outputs, and the node {len(node.outputs)}")
    rounds = [node.around.inner(body, [one if one.parts is None else one.parts[i] for one in several]) for i in range(len(first))]
    return [Value.sequence(found[place] for found in rounds) for place in range(len(node.outputs))]


@rule("Optional")
def _optional(node: Node) -> Results:
    return node.value(0) if node.has(0) else Value.nothing()


@rule("OptionalHasElement")
def _has_element(node: Node) -> Results:
    return np.asarray(node.has(0) and not node.value(0).is_nothing)


@rule("OptionalGetElement")
def _element(node: Node) -> Results:
    if (found := node.value(0)).is_nothing:
        raise NotConvertible("its input is an optional tensor that is not there")
    return found


@rule("SequenceConstruct")
def _construct(node: Node) -> Results:
    return Value.sequence([node.value(i) for i in range(len(node.inputs))])


@rule("SplitToSequence")
def _split(node: Node) -> Results:
    """Parts of given sizes; without them parts of one row, which may lose the dimension."""
    x = node.x()
    axis = node.axis(x.ndim)
    kept = True
    if not node.has(1):
        kept, sizes = bool(node.integer("keepdims", 1)), [1] * x.shape[axis]
    elif node.shape(1):
        sizes = node.integers(1)
    else:
        size = int(node.number(1))
        if size < 1:
            raise NotConvertible(f"its parts have {size} elements")
        sizes = [min(size, x.shape[axis] - i) for i in range(0, x.shape[axis], size)]
    node.around.count(len(sizes))
    dtype = node.dtype()
    found = [one if kept else reshaped(one, (*one.shape[:axis], *one.shape[axis + 1 :])) for one in parted(x, axis, sizes)]
    return Value.sequence([Value.computed(one.view(dtype)) for one in found])


@rule("ConcatFromSequence")
def _join(node: Node) -> Results:
    parts = _parts(node)
    if not parts:
        raise NotConvertible("its sequence is empty")
    kind, new = np.dtype(parts[0].dtype), bool(node.integer("new_axis", 0))
    if not all(one.size for one in parts):
        empty = [np.broadcast_to(kind.type(), one.shape or ()) for one in parts]
        try:
            none = (np.stack if new else np.concatenate)(empty, node.integer("axis", 0))
        except ValueError as error:
            raise NotConvertible(f"its tensors do not fit each other: {reason(error)}") from None
        if not none.size:
            return none
    several = [one.expression(node.graph) for one in parts if one.size]
    several = [one.view(np.uint8) if one.dtype == np.bool_ else one for one in several]
    if new:
        axis = axis_of(node.integer("axis", 0), several[0].ndim + 1)
        several = [one[along(axis, None)] for one in several]
    else:
        axis = node.axis(several[0].ndim)
    found = several[0] if len(several) == 1 else tvmdml.join(several, axis=axis)
    return found.view(kind)
