"""Models of nodes, and models of a single one that are run with arrays."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import onnx

import tvmdml.onnx

FLOAT, INT64, BOOL = (getattr(onnx.TensorProto, name) for name in ("FLOAT", "INT64", "BOOL"))
N = onnx.helper.make_node


def info(name: str, shape: Any, kind: int = FLOAT) -> Any:
    """A tensor that a model is given, or gives."""
    return onnx.helper.make_tensor_value_info(name, kind, shape)


def model(
    nodes: list[Any], inputs: list[Any], outputs: list[Any], weights: dict[str, Any] | None = None, opset: int = 21, **more: Any
) -> Any:
    """A model of some nodes; ``more`` are fields of the message."""
    named = [onnx.numpy_helper.from_array(np.asarray(array), name) for name, array in (weights or {}).items()]
    graph = onnx.helper.make_graph(nodes, "g", inputs, outputs, named)
    imports = [onnx.helper.make_opsetid("", opset), *(onnx.helper.make_opsetid(name, 1) for name in ("com.microsoft", "own"))]
    return onnx.helper.make_model(graph, opset_imports=imports, **more)


def ramp(*shape: int) -> Any:
    """Numbers from -2 to 3."""
    return np.linspace(-2, 3, int(np.prod(shape)), dtype=np.float32).reshape(shape)


def single(
    kind: str,
    inputs: Sequence[Any],
    known: Sequence[int] = (),
    opset: int = 21,
    outputs: int = 1,
    domain: str = "",
    absent: Sequence[int] = (),
    **attributes: Any,
) -> Any:
    """A model of a node, and what it is called with.

    Args:
        kind: ONNX's name of the operator.
        inputs: an array for each input; ``None`` for an absent one.
        known: which inputs are constants of the model.
        opset: the version of ONNX's operators.
        outputs: how many outputs there are.
        domain: whose operator it is; ONNX's own are in none.
        absent: which of the outputs are left out.
        attributes: those of the node.
    """
    names = ["" if one is None else f"x{i}" for i, one in enumerate(inputs)]
    arrays = {name: np.asarray(one) for name, one in zip(names, inputs, strict=True) if name}
    constants = {names[i] for i in known}
    results = ["" if i in absent else f"y{i}" for i in range(outputs)]
    node = onnx.helper.make_node(kind, names, results, domain=domain, **attributes)
    to_type = onnx.helper.np_dtype_to_tensor_dtype
    given = [info(name, one.shape, to_type(one.dtype)) for name, one in arrays.items() if name not in constants]
    found = [onnx.ValueInfoProto(name=name) for name in results if name]
    made = model([node], given, found, {name: arrays[name] for name in sorted(constants)}, opset, ir_version=10)
    return made, {name: one for name, one in arrays.items() if name not in constants}


def results(kind: str, inputs: Sequence[Any], known: Sequence[int] = (), **about: Any) -> list[Any]:
    """What the node gives."""
    made, feeds = single(kind, inputs, known, **about)
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
