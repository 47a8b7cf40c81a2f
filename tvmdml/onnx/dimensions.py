"""Tensors of more than eight dimensions, which DirectML has not. Inside of a model their elements stand in one dimension.

Nodes see them with neighbouring dimensions joined that they treat alike, as far as that leaves eight.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np

from tvmdml.onnx import folding
from tvmdml.onnx.descriptors import NotConvertible
from tvmdml.onnx.node import Node, Result, axis_of, broadcast_sizes
from tvmdml.onnx.values import Value
from tvmdml.tensors import MAX_RANK

Shape = tuple[int, ...]
Results = list[Value | None]
ByRule = Callable[[Node], Results]
"""Converts a node by its rule."""

_BY_ELEMENT = frozenset(
    {
        *("Abs", "Acos", "Acosh", "Add", "And", "Asin", "Asinh", "Atan", "Atanh", "BitwiseAnd", "BitwiseNot", "BitwiseOr"),
        *("BitwiseXor", "Cast", "CastLike", "Ceil", "Celu", "Clip", "Cos", "Cosh", "Div", "Elu", "Equal", "Erf", "Exp"),
        *("Floor", "Gelu", "Greater", "GreaterOrEqual", "HardSigmoid", "HardSwish", "IsInf", "IsNaN", "LeakyRelu", "Less"),
        *("LessOrEqual", "Log", "Max", "Mean", "Min", "Mish", "Mod", "Mul", "Neg", "Not", "Or", "PRelu", "Pow", "Reciprocal"),
        *("Relu", "Round", "Selu", "Shrink", "Sigmoid", "Sign", "Sin", "Sinh", "Softplus", "Softsign", "Sqrt", "Sub", "Sum"),
        *("Swish", "Tan", "Tanh", "ThresholdedRelu", "Where", "Xor"),
    }
)


def convert(node: Node, by_rule: ByRule) -> Results | None:
    """A node's results, if some tensor of it has more than eight dimensions; ``None`` if none has.

    Raises:
        NotConvertible: more than eight are left.
    """
    shapes = [one.shape for one in node.inputs if one is not None] + [one.shape for one in node.results]
    if all(shape is None or len(shape) <= MAX_RANK for shape in shapes):
        return None
    way = _by_element if node.kind in _BY_ELEMENT else _WAYS.get(node.kind)
    if way is None or any(one is not None and one.shape is None for one in node.inputs):
        raise NotConvertible(f"a tensor of it has more than {MAX_RANK} dimensions")
    return way(node, by_rule)


# -- Joining ----------------------------------------------------------------------------------------------------------


def _groups(sizes: Sequence[int], labels: Sequence[Any]) -> list[list[int]]:
    """Dimensions that are next to each other and have the same label; those of size 1 belong to any."""
    found: list[list[int]] = []
    last: Any = None
    for axis, (n, label) in enumerate(zip(sizes, labels, strict=True)):
        if found and (n == 1 or last is None or label == last):
            found[-1].append(axis)
        else:
            found.append([axis])
        last = last if n == 1 else label
    if len(found) > MAX_RANK:
        raise NotConvertible(
            f"a tensor of it has more than {MAX_RANK} dimensions, of which {len(found)} are left when they are joined"
        )
    return found


def _joined(sizes: Sequence[int], groups: Sequence[Sequence[int]]) -> Shape:
    return tuple(math.prod(sizes[axis] for axis in group) for group in groups)


def _seen(node: Node, value: Value, sizes: Shape) -> Value:
    """An input with other sizes."""
    return value.reshaped(node.graph, sizes)


def _with(node: Node, inputs: Sequence[Value | None], shapes: Sequence[Shape], by_rule: ByRule, **attributes: Any) -> Results:
    """What the node makes of inputs with joined dimensions, with its own sizes."""
    seen = node.replaced(inputs=inputs, **attributes)
    seen.results = [Result(one.dtype, shape) for one, shape in zip(node.results, shapes, strict=True)]
    return [None if one is None else _spread(node, one, i) for i, one in enumerate(by_rule(seen))]


def _spread(node: Node, value: Value, output: int) -> Value:
    shape = node.results[output].shape
    if shape is None:
        raise NotConvertible("the sizes of its result are not known")
    if value.elements is None and len(shape) > MAX_RANK:
        return Value.of_many(shape, value.flat(node.graph))
    return value.reshaped(node.graph, shape)


# -- Nodes ------------------------------------------------------------------------------------------------------------


def _by_element(node: Node, by_rule: ByRule) -> Results:
    given = [() if one is None else one.shape or () for one in node.inputs]
    sizes = broadcast_sizes(*given)
    aligned = [(1,) * (len(sizes) - len(shape)) + shape for shape in given]
    groups = _groups(sizes, [tuple(shape[axis] == 1 for shape in aligned) for axis in range(len(sizes))])
    inputs = [
        None if one is None else _seen(node, one, _joined(shape, groups)) for one, shape in zip(node.inputs, aligned, strict=True)
    ]
    return _with(node, inputs, [_joined(sizes, groups)] * len(node.results), by_rule)


def _in_order(node: Node, by_rule: ByRule) -> Results:
    """The same elements in the same order."""
    return [_spread(node, node.value(0), 0)]


def _transposed(node: Node, by_rule: ByRule) -> Results:
    sizes = node.shape()
    order = [axis for axis in node.attributes.get("perm", range(len(sizes))[::-1]) if sizes[axis] != 1]
    places = {axis: place for place, axis in enumerate(axis for axis, n in enumerate(sizes) if n != 1)}
    runs: list[list[int]] = []
    for axis in order:
        if runs and places[axis] == places[runs[-1][-1]] + 1:
            runs[-1].append(axis)
        else:
            runs.append([axis])
    if len(runs) > MAX_RANK:
        raise NotConvertible(
            f"a tensor of it has more than {MAX_RANK} dimensions, of which {len(runs)} are left when they are joined"
        )
    before = sorted(runs)
    x = _seen(node, node.value(0), _joined(sizes, before))
    return _with(node, [x], [_joined(sizes, runs)], by_rule, perm=[before.index(run) for run in runs])


def _expanded(node: Node, by_rule: ByRule) -> Results:
    sizes = broadcast_sizes(node.shape(), node.integers(1))
    shape = (1,) * (len(sizes) - len(node.shape())) + node.shape()
    groups = _groups(sizes, [n == 1 for n in shape])
    wanted = _joined(sizes, groups)
    x = _seen(node, node.value(0), _joined(shape, groups))
    return _with(node, [x, Value.of_sizes(folding.objects(wanted), np.int64)], [wanted], by_rule)


def _reduced(node: Node, by_rule: ByRule) -> Results:
    sizes = node.shape()
    axes = {axis_of(axis, len(sizes)) for axis in node.integers(1)} if node.has(1) else set()
    if not axes:
        if node.integer("noop_with_empty_axes", 0):
            raise NotConvertible(f"a tensor of it has more than {MAX_RANK} dimensions")
        axes = set(range(len(sizes)))
    groups = _groups(sizes, [axis in axes for axis in range(len(sizes))])
    own = [i for i, group in enumerate(groups) if any(axis in axes and sizes[axis] != 1 for axis in group)]
    x = _seen(node, node.value(0), _joined(sizes, groups))
    left = tuple(n for i, n in enumerate(_joined(sizes, groups)) if i not in own)
    if not own:
        groups, own, left = [*groups, []], [len(groups)], _joined(sizes, groups)
        x = _seen(node, node.value(0), _joined(sizes, groups))
    return _with(node, [x, Value.known(np.array(own, np.int64))], [left], by_rule, keepdims=0)


def _along_axis(node: Node, by_rule: ByRule) -> Results:
    """Of one dimension, in each input and output."""
    rank = len(node.shape())
    axis = node.axis(rank, {"Softmax": -1, "LogSoftmax": -1, "Hardmax": -1}.get(node.kind, 0) if node.opset >= 13 else 1)
    whole = node.kind in ("Softmax", "LogSoftmax", "Hardmax") and node.opset < 13  # of all dimensions from the axis on
    groups = [list(range(axis)), list(range(axis, rank if whole else axis + 1)), list(range(rank if whole else axis + 1, rank))]
    several = len(node.inputs) if node.kind == "Concat" else 1
    inputs: list[Value | None] = [_seen(node, node.value(i), _joined(node.shape(i), groups)) for i in range(several)]
    shapes = [_joined(one.shape or (), groups) for one in node.results]
    return _with(node, [*inputs, *node.inputs[several:]], shapes, by_rule, axis=1)


_REDUCED = ("L1", "L2", "LogSum", "LogSumExp", "Max", "Mean", "Min", "Prod", "Sum", "SumSquare")
_WAYS: Mapping[str, Callable[[Node, ByRule], Results]] = {
    **dict.fromkeys(("Flatten", "Identity", "Reshape", "Squeeze", "Unsqueeze"), _in_order),
    **{f"Reduce{kind}": _reduced for kind in _REDUCED},
    **dict.fromkeys(("Concat", "Hardmax", "LogSoftmax", "Softmax", "Split"), _along_axis),
    "Expand": _expanded,
    "Transpose": _transposed,
}
