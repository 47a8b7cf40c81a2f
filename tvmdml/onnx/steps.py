"""Nodes that are converted as several of ONNX's own, so that only the one that counts runs between stages."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import numpy as np


def _compress(onnx: Any, node: Any) -> list[Any]:
    """The places where the condition holds, and the elements or slices there."""
    data, condition, result = node.input[0], node.input[1], node.output[0]
    every, flat, nonzero, places, line = (f"{result}/{name}" for name in ("every", "condition", "nonzero", "places", "line"))
    axis = next((attribute.i for attribute in node.attribute if attribute.name == "axis"), None)
    make = onnx.helper.make_node
    return [
        make("Constant", [], [every], value=onnx.numpy_helper.from_array(np.array([-1]))),
        make("Reshape", [condition, every], [flat]),
        make("NonZero", [flat], [nonzero], name=node.name),
        make("Reshape", [nonzero, every], [places]),
        *([make("Reshape", [data, every], [line])] if axis is None else []),
        make("Gather", [line if axis is None else data, places], [result], name=node.name, axis=axis or 0),
    ]


STEPS: Mapping[str, Callable[[Any, Any], list[Any]]] = {"Compress": _compress}
"""The nodes for a node of each kind, from the package onnx and the node."""
