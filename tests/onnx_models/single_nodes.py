"""Models of one node, run with arrays."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import onnx

import tvmdml.onnx


def single(
    kind: str, inputs: Sequence[Any], opset: int = 21, outputs: int = 1, known: Sequence[int] = (), **attributes: Any
) -> Any:
    """A model of a node, and what it is called with.

    Args:
        kind: ONNX's name of the operator.
        inputs: an array for each input; ``None`` for an absent one.
        opset: the version of ONNX's operators.
        outputs: how many outputs are used.
        known: which inputs are constants of the model.
        attributes: those of the node.
    """
    names = ["" if one is None else f"x{i}" for i, one in enumerate(inputs)]
    arrays = {name: np.asarray(one) for name, one in zip(names, inputs, strict=True) if name}
    constants = {names[i] for i in known}
    node = onnx.helper.make_node(kind, names, [f"y{i}" for i in range(outputs)], **attributes)
    value = onnx.helper.make_tensor_value_info
    given = [
        value(name, onnx.helper.np_dtype_to_tensor_dtype(one.dtype), one.shape)
        for name, one in arrays.items()
        if name not in constants
    ]
    results = [onnx.ValueInfoProto(name=name) for name in node.output]
    kept = [onnx.numpy_helper.from_array(arrays[name], name) for name in sorted(constants)]
    graph = onnx.helper.make_graph([node], "single", given, results, kept)
    made = onnx.helper.make_model(graph, opset_imports=[onnx.helper.make_opsetid("", opset)], ir_version=8)
    return made, {name: one for name, one in arrays.items() if name not in constants}


def results(kind: str, inputs: Sequence[Any], **about: Any) -> list[Any]:
    """What the node gives."""
    made, feeds = single(kind, inputs, **about)
    return list(tvmdml.onnx.load(made)(feeds))


def result(kind: str, inputs: Sequence[Any], **about: Any) -> Any:
    """Its only result."""
    (found,) = results(kind, inputs, **about)
    return found


def differences(cases: Mapping[str, tuple[Any, Any]]) -> dict[str, Any]:
    """The cases whose first array is not the second one: by type, shape or elements."""
    return {
        name: (found, right)
        for name, (found, right) in cases.items()
        if (found.dtype, found.shape) != (np.asarray(right).dtype, np.asarray(right).shape)
        or not np.allclose(found.astype(np.float64), np.asarray(right, np.float64), 1e-5, 1e-5, equal_nan=True)
    }
