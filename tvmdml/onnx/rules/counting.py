"""Operators whose results have as many elements as their inputs decide: known inputs, and what is the same for all sizes."""

from __future__ import annotations

import math
from typing import Any

import tvmdml
from tvmdml.graph.nodes import Call
from tvmdml.onnx.counting import COUNTING
from tvmdml.onnx.node import Node, Results, rule


@rule(*COUNTING)
def _counted(node: Node) -> Results:
    if node.kind == "NonZero" and (places := _all_places(node)) is not None:
        return places
    inputs = [node.counted(place) if node.has(place) else None for place in range(len(node.inputs))]
    return COUNTING[node.kind](inputs, node.attributes)


def _all_places(node: Node) -> Any:
    """The places of all elements, where all are the same number of open sizes: older exporters write a range so."""
    value = node.value(0)
    source = None if value.array is not None or value.sizes is not None else value.expression(node.graph).edge.source
    fill = source.desc if isinstance(source, Call) else None
    if not isinstance(fill, tvmdml.FillValueConstant) or not fill.element(fill.value) or not value.is_open:
        return None
    graph: Any = node.graph
    shape = node.shape() or (1,)
    rows = []
    for axis, n in enumerate(shape):
        row = tvmdml.fill_value_sequence([n], 0, 1, dtype="int64", device=graph)
        own = [n if i == axis else 1 for i in range(len(shape))]
        rows.append(row.reshape(own).broadcast(shape).reshape(1, math.prod(shape)))
    return rows[0] if len(rows) == 1 else tvmdml.join(rows, axis=0)
