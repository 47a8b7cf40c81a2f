"""If, Loop and Scan: a known condition chooses a branch, and loops with a known number of rounds are unrolled."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

import tvmdml
from tvmdml.onnx.descriptors import NotConvertible
from tvmdml.onnx.node import Node, Results, along, axis_of, rule
from tvmdml.onnx.types import Undecided, dtype_of
from tvmdml.onnx.values import TooLate, Value, dependencies

_MOST_ROUNDS = 1 << 14


def _branch(node: Node, name: str) -> Any:
    found = node.attributes.get(name)
    if found is None or isinstance(found, (int, float, bytes, list)):
        raise NotConvertible(f"its {name} is missing")
    return found


@rule("If")
def _if(node: Node) -> Results:
    """A condition that the model's inputs decide computes both branches and selects, if their results have the same shapes."""
    condition = node.value(0)
    open_condition = condition.array is None and dependencies(condition.expression(node.graph))
    if not open_condition or not _same(node):
        chosen = "then_branch" if bool(node.number(0)) else "else_branch"
        return node.around.inner(_branch(node, chosen), [])
    both = [node.around.inner(_branch(node, name), []) for name in ("then_branch", "else_branch")]
    if any(not a.is_tensor or not b.is_tensor or a.shape != b.shape or a.dtype != b.dtype for a, b in zip(*both, strict=True)):
        chosen = "then_branch" if bool(node.number(0)) else "else_branch"
        return both[chosen == "else_branch"]
    x = node.x().reshape(())
    found = []
    for a, b in zip(*both, strict=True):
        yes, no = a.expression(node.graph), b.expression(node.graph)
        kind = np.dtype(np.uint8) if yes.dtype == np.bool_ else yes.dtype
        found.append(tvmdml.where(x.broadcast(yes.shape), yes.view(kind), no.view(kind)).view(yes.dtype))
    return found


def _same(node: Node) -> bool:
    """Whether both branches have as many outputs."""
    counts = {len(_branch(node, name).output) for name in ("then_branch", "else_branch")}
    return counts == {len(node.outputs)}


def _none(node: Node, body: Any, given: Sequence[Value], place: int, axis: int = 0) -> Any:
    """The results of no rounds: sizes that the loop's graph does not say follow from a round that is not run."""
    info = body.output[place].type.tensor_type
    dtype = dtype_of(info.elem_type)
    sizes = [one.dim_value if one.HasField("dim_value") else None for one in info.shape.dim] if info.HasField("shape") else None
    if dtype is None or sizes is None or None in sizes:
        found = node.around.inner(body, given)[place]
        if found.is_lost or found.shape is None:
            raise NotConvertible("it has no rounds, and the sizes of its results are not known")
        dtype, sizes = found.dtype, list(found.shape)
    sizes = [n or 0 for n in sizes]
    sizes.insert(axis_of(axis, len(sizes) + 1), 0)
    return np.empty(sizes, dtype)


def _stacked(node: Node, parts: Sequence[Value], axis: int = 0) -> Any:
    """Results of the rounds as one tensor."""
    if all(one.array is not None for one in parts):
        return np.stack([np.asarray(one.array) for one in parts], axis)
    several = [one.expression(node.graph) for one in parts]
    axis = axis_of(axis, several[0].ndim + 1)
    kind = np.dtype(np.uint8) if several[0].dtype == np.bool_ else several[0].dtype
    wide = [one.view(kind)[along(axis, None)] for one in several]
    return (wide[0] if len(wide) == 1 else tvmdml.join(wide, axis=axis)).view(several[0].dtype)


@rule("Loop")
def _loop(node: Node) -> Results:
    body = _branch(node, "body")
    if node.around.is_top and not all(node.is_known(i) for i in range(2) if node.has(i)):
        raise TooLate("a run counts its rounds")
    most = int(node.number(0)) if node.has(0) else _MOST_ROUNDS + 1
    going = bool(node.number(1)) if node.has(1) else True
    state = [node.value(i) for i in range(2, len(node.inputs))]
    scans: list[list[Value]] = [[] for _ in range(len(node.outputs) - len(state))]
    rounds = 0
    while going and rounds < most:
        if rounds >= _MOST_ROUNDS:
            raise NotConvertible(f"it has more than {_MOST_ROUNDS} rounds")
        results = node.around.inner(body, [_known(np.int64, rounds), _known(np.bool_, True), *state])
        if any(one.is_lost for one in results):
            return [Value.lost()] * len(node.outputs)
        going = _goes_on(node, results[0])
        state = results[1 : 1 + len(state)]
        for one, parts in zip(results[1 + len(state) :], scans, strict=True):
            parts.append(one)
        rounds += 1
    if rounds:
        return [*state, *(_stacked(node, parts) for parts in scans)]
    given = [_known(np.int64, 0), _known(np.bool_, True), *state]
    return [*state, *(_none(node, body, given, 1 + len(state) + i) for i in range(len(scans)))]


def _goes_on(node: Node, condition: Value) -> bool:
    try:
        elements = condition.decided(node.graph)
    except Undecided:
        if not node.around.is_top:
            raise
        raise TooLate("a run decides whether it goes on") from None
    if elements.size != 1:
        raise NotConvertible(f"its condition has {elements.size} elements, and not one")
    return bool(elements.reshape(-1)[0])


def _known(dtype: Any, number: int) -> Value:
    return Value.known(np.asarray(number, dtype))


@rule("Scan")
def _scan(node: Node) -> Results:
    body = _branch(node, "body")
    if node.is_before(9):
        raise NotConvertible("it is of version 8, with batches")
    count = node.integer("num_scan_inputs", 0)
    kept = len(node.inputs) - count
    results = len(node.outputs) - kept
    if not 0 < count <= len(node.inputs) or results < 0:
        raise NotConvertible(f"its num_scan_inputs is {count}")

    def attribute(name: str, length: int) -> list[int]:
        found = node.attributes.get(name, [0] * length)
        if len(found) != length:
            raise NotConvertible(f"its {name} are {found}")
        return list(found)

    directions, axes = attribute("scan_input_directions", count), attribute("scan_input_axes", count)
    state = [node.value(i) for i in range(kept)]
    inputs = [node.value(kept + i).expression(node.graph) for i in range(count)]
    axes = [axis_of(axis, one.ndim) for axis, one in zip(axes, inputs, strict=True)]
    rounds = inputs[0].shape[axes[0]]
    if rounds > _MOST_ROUNDS or any(one.shape[axis] != rounds for one, axis in zip(inputs, axes, strict=True)):
        raise NotConvertible(f"it has {rounds} rounds, or inputs of different lengths")
    scans: list[list[Value]] = [[] for _ in range(results)]
    for n in range(rounds):
        parts = [
            Value.computed(one[along(axis, rounds - 1 - n if back else n)])
            for one, axis, back in zip(inputs, axes, directions, strict=True)
        ]
        found = node.around.inner(body, [*state, *parts])
        if any(one.is_lost for one in found):
            return [Value.lost()] * len(node.outputs)
        state = found[:kept]
        for one, some in zip(found[kept:], scans, strict=True):
            some.append(one)
    backward, places = attribute("scan_output_directions", results), attribute("scan_output_axes", results)
    if rounds:
        stacked = [
            _stacked(node, some[::-1] if back else some, axis) for some, back, axis in zip(scans, backward, places, strict=True)
        ]
        return [*state, *stacked]
    shapes = [[*one.shape[:axis], *one.shape[axis + 1 :]] for one, axis in zip(inputs, axes, strict=True)]
    given = [*state, *(Value.known(np.zeros(shape, one.dtype)) for shape, one in zip(shapes, inputs, strict=True))]
    return [*state, *(_none(node, body, given, kept + i, axis) for i, axis in enumerate(places))]
