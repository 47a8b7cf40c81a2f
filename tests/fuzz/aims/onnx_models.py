"""ONNX models: bytes of a small one changed, and its nodes; the spec that comes of it, or a refusal."""

from __future__ import annotations

import functools
from pathlib import Path
from typing import Any

import numpy as np
import onnx

from fuzz import trees
from fuzz.choices import Choices
from fuzz.oracle import refusals
from tvmdml.packs import sources

EXAMPLES = 40
WORDS = (
    "TopK", "Round", "NonZero", "EyeLike", "Trilu", "axis", "k", "batch", "Shape", "Constant", "If", "Min", "Cast", "ai.onnx",
    "", "largest",
)  # fmt: skip
_ATTRIBUTES = ("axis", "k", "largest", "sorted", "upper", "dtype", "to", "start", "end", "value_int", "value_ints", "axes")
_KINDS = ("FLOAT", "FLOAT16", "INT64", "INT32", "BOOL", "STRING", "BFLOAT16", "DOUBLE", "UNDEFINED")
_OPERATORS = (
    "Round", "TopK", "NonZero", "EyeLike", "Trilu", "Identity", "Cast", "Squeeze", "Unsqueeze", "Reshape", "Gather", "Slice",
    "Concat", "Add", "Sub", "Mul", "Min", "Max", "ReduceMin", "ReduceMax", "If", "Shape", "Range", "ConstantOfShape", "Constant",
    "Size", "Where",
)  # fmt: skip


def seeds() -> list[bytes]:
    """A model, as it is."""
    return [b"\0\0" + _good()]


def one(choices: Choices) -> None:
    """Bytes as they come, the model's with changes, or another model."""
    kind, batch = choices.integer(0, 2), choices.pick(({"batch": 3}, {}))
    _read(choices.rest() if kind == 0 else trees.damaged(choices, _good(), WORDS) if kind == 1 else _graph(choices), batch)


def check(content: bytes) -> None:
    """Make a spec of it."""
    _read(content, {"batch": 3})
    _read(content, {})


def _read(content: bytes, sizes: dict[str, int]) -> None:
    path = Path("model.onnx")
    path.write_bytes(content)
    with refusals():
        sources.read([path], sizes=sizes)


def _graph(choices: Choices) -> bytes:
    graph = _Graph(choices.integer(1, 23))
    sizes = [choices.pick(("batch", 5, 0, -1, None, 2**40)) for _ in range(choices.integer(0, 3))]
    names = [graph.input("x", sizes, choices.pick(_KINDS))]
    for _ in range(choices.integer(1, 6)):
        if choices.flag(3):
            names.append(graph.constant(*(max(min(choices.number(), 2**63 - 1), -(2**63)) for _ in range(choices.integer(1, 3)))))
            continue
        attributes = {
            choices.pick(_ATTRIBUTES): choices.pick((choices.integer(-3, 3), 2**62, -(2**63), 0.5, "x", [1, 2], [2**62]))
            for _ in range(choices.integer(0, 2))
        }
        inputs = [choices.pick((*names, "", "nowhere")) for _ in range(choices.integer(0, 3))]
        names.append(graph.node(choices.pick(_OPERATORS), *inputs, outputs=choices.integer(1, 2), **attributes))
    return graph.content()


class _Graph:
    """A model in the making."""

    def __init__(self, opset: int = 22) -> None:
        self._opset = opset
        self._nodes: list[Any] = []
        self._inputs: list[Any] = []
        self._constants: list[Any] = []

    def input(self, name: str, shape: Any, kind: str = "FLOAT") -> str:
        self._inputs.append(onnx.helper.make_tensor_value_info(name, getattr(onnx.TensorProto, kind), shape))
        return name

    def constant(self, *values: int, scalar: bool = False) -> str:
        name = f"constant {len(self._constants)}"
        self._constants.append(onnx.numpy_helper.from_array(np.array(values[0] if scalar else values, np.int64), name))
        return name

    def node(self, kind: str, *inputs: str, outputs: int = 1, **attributes: Any) -> str:
        results = [f"{kind} {len(self._nodes)} {i}" for i in range(outputs)]
        self._nodes.append(onnx.helper.make_node(kind, inputs, results, **attributes))
        return results[0]

    def content(self) -> bytes:
        graph = onnx.helper.make_graph(self._nodes, "graph", self._inputs, [], self._constants)
        model = onnx.helper.make_model(graph, opset_imports=[onnx.helper.make_opsetid("", self._opset)])
        return bytes(model.SerializeToString())


@functools.cache
def _good() -> bytes:
    graph = _Graph()
    x = graph.input("x", ["batch", 5])
    k = graph.node("Min", graph.node("Gather", graph.node("Shape", x), graph.constant(1, scalar=True)), graph.constant(3))
    graph.node("TopK", graph.node("Round", x), k, outputs=2)
    graph.node("Trilu", x, upper=0)
    graph.node("If", graph.input("c", [], "BOOL"), then_branch=onnx.helper.make_graph([], "b", [], []))
    return graph.content()
