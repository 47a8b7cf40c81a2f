"""Nodes that are converted as several: so a stage ends where they have counted, and the next one begins with as many elements."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import numpy as np

from tvmdml.operators._onnx_messages import node_of, tensor_of


def _compress(node: Any) -> list[Any]:
    """The places where the condition holds, and the elements or slices there."""
    data, condition, result = node.input[0], node.input[1], node.output[0]
    every, flat, nonzero, places, line = (f"{result}/{name}" for name in ("every", "condition", "nonzero", "places", "line"))
    axis = next((attribute.i for attribute in node.attribute if attribute.name == "axis"), None)
    return [
        node_of("Constant", [], [every], value=tensor_of(np.array([-1]))),
        node_of("Reshape", [condition, every], [flat]),
        node_of("NonZero", [flat], [nonzero], name=node.name),
        node_of("Reshape", [nonzero, every], [places]),
        *([node_of("Reshape", [data, every], [line])] if axis is None else []),
        node_of("Gather", [line if axis is None else data, places], [result], name=node.name, axis=axis or 0),
    ]


def _nonzero(node: Any) -> list[Any]:
    """The coordinates with room for those of all elements, of which as many are taken as there are."""
    rows, count = f"{node.output[0]}/rows", f"{node.output[0]}/count"
    return [
        node_of("NonZeroRows", [node.input[0]], [rows, count], name=node.name, domain="tvmdml"),
        node_of("FirstColumns", [rows, count], [node.output[0]], name=node.name, domain="tvmdml"),
    ]


STEPS: Mapping[str, Callable[[Any], list[Any]]] = {"Compress": _compress, "NonZero": _nonzero}
"""The nodes for a node of each kind."""
