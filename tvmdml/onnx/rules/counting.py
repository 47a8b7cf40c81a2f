"""Operators whose results have as many elements as their inputs decide: known inputs, and what is the same for all sizes."""

from __future__ import annotations

import math
from typing import Any

import numpy as np

import tvmdml
from tvmdml.graph.nodes import Call
from tvmdml.onnx.counting import COUNTING
from tvmdml.onnx.folding import objects
from tvmdml.onnx.node import Node, Results, rule
from tvmdml.onnx.values import TooLate, Value
from tvmdml.tensors.sizes import is_open


@rule(*COUNTING)
def _counted(node: Node) -> Results:
    inputs = [node.counted(place) if node.has(place) else None for place in range(len(node.inputs))]
    return COUNTING[node.kind](inputs, node.attributes)


@rule("tvmdml.NonZeroRows")
def _rows(node: Node) -> Results:
    """The coordinates of elements that are not 0, a row for each, with room for all; and how many they are."""
    x = node.value(0)
    if x.array is not None:
        places = np.stack(np.nonzero(np.atleast_1d(x.array)), 1)
        return places, np.array([len(places)])
    shape = x.shape or (1,)
    if _is_full(node):
        return _all_places(node, shape), Value.of_sizes(objects([math.prod(shape)]), np.int64)
    whole: Any = tvmdml.nonzero_coordinates(node.x().reshape(shape), trim=False)
    return whole.coordinates, whole.count.reshape(1).astype(np.int64)


@rule("tvmdml.FirstColumns")
def _first(node: Node) -> Results:
    """So many rows, as columns."""
    counted = node.value(1)
    if counted.array is None and counted.sizes is None and isinstance(counted.expression(node.graph).edge.source, Call):
        raise TooLate("a run counts the elements")  # whatever they are: few ones, too, differ from run to run
    rows, count = node.x(), node.count(1)
    if not is_open(count) and not count:
        return np.empty((rows.shape[-1], 0), np.int64)
    return rows[:count].transpose(1, 0).astype(np.int64)


def _is_full(node: Node) -> bool:
    """Whether all elements are one number, of open sizes: older exporters write a range so."""
    value = node.value(0)
    source = None if value.sizes is not None else value.expression(node.graph).edge.source
    fill = source.desc if isinstance(source, Call) else None
    return isinstance(fill, tvmdml.FillValueConstant) and bool(fill.element(fill.value)) and value.is_open


def _all_places(node: Node, shape: tuple[int, ...]) -> Any:
    """The coordinates of all elements."""
    columns = []
    for axis, n in enumerate(shape):
        own = [n if i == axis else 1 for i in range(len(shape))]
        columns.append(node.upto(n).reshape(own).broadcast(shape).reshape(math.prod(shape), 1))
    return columns[0] if len(columns) == 1 else tvmdml.join(columns, axis=1)
