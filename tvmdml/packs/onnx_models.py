"""Nodes of ONNX models that correspond to DirectML's operators, with their descriptors.

A model may come from an untrusted source. It is read in a separate process, with limits: see ``onnx_apart``.
"""

from __future__ import annotations

import functools
import itertools
import math
import stat
from collections import ChainMap
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from tvmdml import onnx_bounds, onnx_nodes
from tvmdml.errors import InvalidArgument, TvmdmlError, message, reason
from tvmdml.operators import Operator
from tvmdml.packs import spec

MAX_MODEL_BYTES = 1 << 31
"""The limit of a Protocol Buffers message; larger models keep their weights in separate files."""
Progress = Callable[[str], None]
"""Called with the name of the next step."""

# How operators compute small integers between a shape or a constant and a ``k``: lists in, a list out. A list is a vector or a
# scalar.
_FOLDED: Mapping[str, Callable[..., list[int]]] = {
    "Identity": lambda x: x,
    "Cast": lambda x: x,
    "Squeeze": lambda x, axes=None: x,
    "Unsqueeze": lambda x, axes=None: x[: len(x) == 1],
    "Reshape": lambda x, shape: x[: len(x) == 1],
    "Gather": lambda x, at: [x[i] for i in at],
    "Slice": lambda x, start, end, axes=None: x[start[0] : end[0]],
    "Concat": lambda *several: [*itertools.chain(*several)],
    "Add": lambda x, y: [a + b for a, b in _paired(x, y)],
    "Sub": lambda x, y: [a - b for a, b in _paired(x, y)],
    "Mul": lambda x, y: [a * b for a, b in _paired(x, y)],
    "Min": lambda *several: [*functools.reduce(lambda x, y: [min(pair) for pair in _paired(x, y)], several)],
    "Max": lambda *several: [*functools.reduce(lambda x, y: [max(pair) for pair in _paired(x, y)], several)],
    "ReduceMin": lambda x, axes=None: [min(x)],
    "ReduceMax": lambda x, axes=None: [max(x)],
}
_MOST_FOLDED = onnx_bounds.SMALL
_WIDEST = 2**63
_MOST_ROUNDS = 16


def _paired(x: list[int], y: list[int]) -> Iterator[tuple[int, int]]:
    if 1 in (len(x), len(y)):
        x, y = x * max(len(y), 1), y * max(len(x), 1)
    return zip(x, y, strict=True)


class Node(NamedTuple):
    """A node of a model, and how it was translated."""

    kind: str
    name: str
    ours: bool
    desc: Operator | None = None
    reason: str = ""


class Nodes(NamedTuple):
    """The nodes of a model."""

    nodes: tuple[Node, ...]
    open_sizes: frozenset[str]
    """Names of the sizes that the model leaves open."""


def read(path: Path, sizes: Mapping[str, int], progress: Progress = lambda step: None) -> Nodes:
    """The nodes of a model, with its functions inlined.

    Args:
        path: the file.
        sizes: the values of sizes that the model leaves open, by name.
        progress: called before each step.

    Raises:
        InvalidArgument: the model cannot be read, or is too large.
    """
    progress("parsing")
    model = _Model(path)
    progress("inlining its functions")
    model.inline()
    open_sizes = model.bind(sizes)
    progress("shape inference")
    return Nodes(tuple(model.nodes()), frozenset(open_sizes))


class _Model:
    """An ONNX model."""

    def __init__(self, path: Path) -> None:
        import onnx
        import onnx.inliner

        self._onnx, self._path = onnx, path
        self._model = onnx.ModelProto()
        content = _content(path)
        try:
            self._model.ParseFromString(content)
        except MemoryError:
            raise
        except Exception as error:  # from Protocol Buffers, whose exceptions are not imported here
            raise self._broken(error) from None
        onnx_bounds.check_tensors(onnx, path, self._model, len(content))
        onnx_bounds.check_nodes(path, self._model)

    def inline(self) -> None:
        """Inline functions where they are called."""
        self._model = self._through(self._onnx.inliner.inline_local_functions)

    def bind(self, sizes: Mapping[str, int]) -> set[str]:
        """Set the open sizes; returns the names of all of them."""
        found = set()
        for graph in onnx_bounds.graphs(self._model):
            for value in (*graph.input, *graph.output, *graph.value_info):
                for dimension in value.type.tensor_type.shape.dim:
                    if dimension.HasField("dim_param"):
                        name = str(dimension.dim_param)
                        found.add(name)
                        if name in sizes:
                            dimension.dim_value = sizes[name]
        return found

    def nodes(self) -> list[Node]:
        """Every node. When a ``k`` turns out to be constant, more shapes become known, which may determine another ``k``."""
        for turn in range(_MOST_ROUNDS):
            self._model = self._through(functools.partial(self._onnx.shape_inference.infer_shapes, data_prop=True))
            settled: list[tuple[Any, int]] = []
            found: list[Node] = self._through(functools.partial(self._walk, settled))
            if not settled:
                break
            for number, (node, value) in enumerate(settled):
                node.input[1] = f"{node.input[1]} settled {turn} {number}"
                kind = self._onnx.TensorProto.INT64
                self._model.graph.initializer.append(self._onnx.helper.make_tensor(node.input[1], kind, [1], [value]))
        return found

    def _walk(self, settled: list[tuple[Any, int]], model: Any) -> list[Node]:
        return list(_Graph(self._onnx, model.graph, settled).nodes())

    def _through(self, step: Callable[[Any], Any]) -> Any:
        """The result of one of ONNX's own transformations of this model."""
        try:
            return step(self._model)
        except (MemoryError, TvmdmlError):
            raise
        except Exception as error:  # ONNX does not document its exceptions
            raise self._broken(error) from None

    def _broken(self, error: Exception) -> InvalidArgument:
        said = " ".join(str(error).split())
        return InvalidArgument(message(str(self._path), f"a file that is not an ONNX model ({said[:300]})", "an ONNX model"))


def _content(path: Path) -> bytes:
    wanted = f"a file of at most {MAX_MODEL_BYTES >> 20} MiB"
    try:
        about = path.stat()
        if not stat.S_ISREG(about.st_mode) or about.st_size > MAX_MODEL_BYTES:
            raise InvalidArgument(message(str(path), "a folder, a device or a larger file", wanted))
        return path.read_bytes()
    except OSError as error:
        raise InvalidArgument(message(str(path), f"a file that cannot be read ({reason(error)})", wanted)) from None


class _Graph:
    """A graph and the values known in it, its own and those of the graph around it."""

    def __init__(self, onnx: Any, graph: Any, settled: list[tuple[Any, int]], around: _Graph | None = None) -> None:
        self._onnx, self._graph = onnx, graph
        self._tensors: ChainMap[str, onnx_nodes.Tensor] = around._tensors.new_child() if around else ChainMap()
        self._constants: ChainMap[str, list[int]] = around._constants.new_child() if around else ChainMap()
        self._plain: set[str] = set(around._plain) if around else set()
        """Constants that shape inference also knows."""
        self._settled = settled
        """Nodes whose ``k`` is a constant that shape inference does not know, with that constant."""
        for value in (*graph.input, *graph.value_info, *graph.output):
            self._tensors[value.name] = self._tensor(value.type.tensor_type)
        for tensor in graph.initializer:
            self._tensors[tensor.name] = onnx_nodes.Tensor(onnx_nodes.numpy_type(onnx, tensor.data_type), tuple(tensor.dims))
            self._plain.add(tensor.name)
            self._learn(tensor.name, self._integers(tensor))

    def nodes(self) -> Iterator[Node]:
        """Its nodes, and those of the graphs in their attributes."""
        for node in self._graph.node:
            kind = f"{node.domain}.{node.op_type}" if node.domain not in ("", "ai.onnx") else str(node.op_type)
            name = f"{kind} {node.name!r}" if node.name else f"{kind} of {', '.join(node.output)}"
            if self._fold(node, kind):  # known before the model runs, so no kernel computes it
                yield Node(f"constant {kind}" if kind in onnx_nodes.OPERATORS else kind, name, False)
            elif kind in onnx_nodes.OPERATORS:
                yield self._ours(node, kind, name)
            else:
                yield Node(kind, name, False)
            for graph in onnx_bounds.subgraphs([node]):
                yield from _Graph(self._onnx, graph, self._settled, self).nodes()

    def _ours(self, node: Any, kind: str, name: str) -> Node:
        k = self._constants.get(node.input[1], []) if len(node.input) > 1 else []
        if kind == "TopK" and len(k) == 1 and node.input[1] not in self._plain:
            self._settled.append((node, k[0]))
        try:
            desc = onnx_nodes.OPERATORS[kind](onnx_nodes.OnnxNode(node, self._tensors, self._constants))
        except (onnx_nodes.Refused, TvmdmlError, ValueError) as error:  # ONNX raises ValueError for an attribute without a type
            return Node(kind, name, True, reason=str(error))
        if any(tensor.element_count == 0 for _, tensor in desc.tensors() if tensor is not None):
            return Node(kind, name, True, reason="it has no elements, and so needs no kernel")
        return Node(kind, name, True, spec.plain(desc))

    def _tensor(self, kind: Any) -> onnx_nodes.Tensor:
        known = kind.HasField("shape")
        shape = tuple(d.dim_value if d.HasField("dim_value") else d.dim_param or "?" for d in kind.shape.dim) if known else None
        return onnx_nodes.Tensor(onnx_nodes.numpy_type(self._onnx, kind.elem_type), shape)

    def _integers(self, tensor: Any) -> list[int] | None:
        """The elements of a small tensor of integers."""
        small = len(tensor.dims) <= 1 and math.prod(tensor.dims) <= _MOST_FOLDED
        if not small or tensor.data_type not in (self._onnx.TensorProto.INT64, self._onnx.TensorProto.INT32):
            return None
        if tensor.data_location == self._onnx.TensorProto.EXTERNAL:  # in a file that does not exist
            return None
        try:
            found: list[int] = self._onnx.numpy_helper.to_array(tensor).reshape(-1).tolist()
        except Exception:  # the data does not have the declared size
            return None
        return found

    def _constant(self, attribute: Any) -> list[int] | None:
        if attribute.name == "value":
            return self._integers(attribute.t)
        return {"value_int": [attribute.i], "value_ints": list(attribute.ints)}.get(attribute.name)

    def _learn(self, name: str, values: list[int] | None) -> None:
        if values and len(values) <= _MOST_FOLDED and all(-_WIDEST <= value < _WIDEST for value in values):
            self._constants[name] = values

    def _fold(self, node: Any, kind: str) -> bool:
        """Compute a node's result from known constants and shapes; whether it is known now."""
        if len(node.output) != 1:
            return False
        if kind == "Constant":
            self._plain.add(node.output[0])
            for attribute in node.attribute:
                self._learn(node.output[0], self._constant(attribute))
        elif kind == "Shape" and node.input:
            bounds = {attribute.name: attribute.i for attribute in node.attribute}
            shape = self._tensors.get(node.input[0], onnx_nodes.Tensor(None, None)).shape or ()
            part = shape[bounds.get("start", 0) : bounds.get("end", len(shape))]
            numbers = [size for size in part if isinstance(size, int)]
            self._learn(node.output[0], numbers if len(numbers) == len(part) else None)
        elif kind in _FOLDED and all(name in self._constants for name in node.input):
            try:
                if kind == "Cast" and not self._is_exact(node):
                    return False
                self._learn(node.output[0], _FOLDED[kind](*(self._constants[name] for name in node.input)))
            except (TypeError, ValueError, IndexError):  # this computation does not apply to such inputs
                return False
        return node.output[0] in self._constants

    def _is_exact(self, cast: Any) -> bool:
        """Whether a conversion of known integers leaves their values as they are."""
        to = next((attribute.i for attribute in cast.attribute if attribute.name == "to"), 0)
        dtype, values = onnx_nodes.numpy_type(self._onnx, to), np.array(self._constants[cast.input[0]])
        if dtype is None or np.dtype(dtype).kind not in "iufb":
            return False
        with np.errstate(all="ignore"):
            exact: bool = values.astype(dtype).tolist() == values.tolist()
        return exact
