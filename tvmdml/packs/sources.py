"""Specs from what people have: specs themselves, DxDispatch's models, ONNX models."""

from __future__ import annotations

import difflib
import functools
import itertools
import math
import os
import stat
from collections import ChainMap, Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from types import MappingProxyType
from typing import Any, NamedTuple

from tvmdml import dxdispatch, onnx_nodes
from tvmdml.errors import InvalidArgument, TvmdmlError, Unsupported, message, reason, safe_repr
from tvmdml.operators import Operator
from tvmdml.packs import spec
from tvmdml.packs.spec import KnobValues, Spec, Wanted
from tvmdml.tensors import MAX_ELEMENTS

MAX_MODEL_BYTES = 1 << 31
"""What a message of Protocol Buffers may have; larger models keep their weights in files of their own."""
Sizes = Mapping[str, int]
_NO_SIZES: Sizes = MappingProxyType({})


_OPEN = "Open sizes are given by name (--size NAME=N)."


class Found(NamedTuple):
    """A spec, and what there is to say about how it came to be."""

    spec: Spec
    notes: tuple[str, ...] = ()
    """What was taken of a model, and what was not, and why."""


def read(paths: Sequence[str | os.PathLike[str]], targets: Sequence[str] = (), sizes: Sizes = _NO_SIZES) -> Found:
    """One spec of several files: ``.toml`` (specs), ``.json`` (DxDispatch's models), ``.onnx`` (ONNX models).

    Args:
        paths: the files.
        targets: what to compile for, in place of what the files say, which is taken together.
        sizes: what the sizes that ONNX models leave open are, by name.

    Raises:
        InvalidArgument, ModelError: a file cannot be read, is wrong, or has nothing of tvmdml's operators.
        Unsupported: ONNX is not installed.
    """
    for name, size in sizes.items():
        if type(size) is not int or not 1 <= size <= MAX_ELEMENTS:
            raise InvalidArgument(message(f"size {name}", safe_repr(size), f"an integer from 1 to {MAX_ELEMENTS}"))
    known: set[str] = set()
    found = []
    for path in map(Path, paths):
        reader = _READERS.get(path.suffix.lower())
        if reader is None:
            raise InvalidArgument(message(str(path), f"a file of type {path.suffix or 'none'!r}", ", ".join(_READERS)))
        found.append(reader(path, sizes, known))
    for name in sizes:
        if name not in known:
            likely = difflib.get_close_matches(name, known, n=1)
            advice = f"Did you mean {likely[0]}?" if likely else ""
            raise InvalidArgument(message("size", repr(name), ", ".join(sorted(known)) or "none: no model leaves one open", advice))
    joined = Spec(
        targets=tuple(targets) or tuple(dict.fromkeys(itertools.chain.from_iterable(one.spec.targets for one in found))),
        wanted=spec.once(itertools.chain.from_iterable(one.spec.wanted for one in found)),
        knobs=_joined([one.spec.knobs for one in found]),
        logs=tuple(dict.fromkeys(itertools.chain.from_iterable(one.spec.logs for one in found))),
    )
    return Found(joined, tuple(itertools.chain.from_iterable(one.notes for one in found)))


def _joined(several: Iterable[KnobValues]) -> KnobValues:
    joined: dict[str, dict[str, int | str]] = {}
    for operator, values in itertools.chain.from_iterable(knobs.items() for knobs in several):
        own = joined.setdefault(operator, {})
        for name, value in values.items():
            if own.setdefault(name, value) != value:
                raise InvalidArgument(message(f"knobs.{operator}.{name}", f"{own[name]!r} and {value!r}", "one value in all files"))
    return joined


def _read_spec(path: Path, sizes: Sizes, known: set[str]) -> Found:
    return Found(spec.read(path))


def _read_dxdispatch(path: Path, sizes: Sizes, known: set[str]) -> Found:
    wanted = []
    for dispatchable in dxdispatch.read(path).dispatchables.values():
        desc = spec.plain(dispatchable.desc)
        wanted.append(Wanted(desc))
        if spec.can_be_in_place(desc):  # a command may bind both to one resource
            wanted.append(Wanted(desc, True))
    return Found(Spec(wanted=spec.once(wanted)))


def _read_onnx(path: Path, sizes: Sizes, known: set[str]) -> Found:
    model = _Model(path, sizes)
    known |= model.open_sizes
    taken = model.nodes()
    mine = [node for node in taken if node.ours]
    others = Counter(node.kind for node in taken if not node.ours)
    listed = ", ".join(f"{kind} {count}" for kind, count in sorted(others.items(), key=lambda item: (-item[1], item[0])))
    if not mine:
        raise InvalidArgument(
            message(str(path), f"a model of {listed or 'no nodes'}", f"one with {', '.join(onnx_nodes.OPERATORS)}")
        )
    wanted = spec.once(Wanted(node.desc) for node in mine if node.desc is not None)
    notes = [f"{node.name}: {node.reason}" for node in mine if node.desc is None]
    if not wanted:
        given = f"nothing that can be compiled ahead of time ({'; '.join(note.rstrip('.') for note in notes[:8])})"
        raise InvalidArgument(message(str(path), given, "sizes that are known, types of DirectML's, constant k", _OPEN))
    notes = [f"{path}: {note}" for note in notes]
    count = sum(node.desc is not None for node in mine)
    notes.insert(0, f"{path}: {count} of {len(taken)} nodes were taken" + (f"; others are {listed}" if listed else ""))
    return Found(Spec(wanted=wanted), tuple(notes))


_READERS: Mapping[str, Callable[[Path, Sizes, set[str]], Found]] = {
    ".toml": _read_spec,
    ".json": _read_dxdispatch,
    ".onnx": _read_onnx,
}

# What becomes of small integers on their way from a shape or a constant to a ``k``: lists in, a list out. A list is a vector or a
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
_MOST_FOLDED = 64
_WIDEST = 2**63
_MOST_ROUNDS = 16


def _paired(x: list[int], y: list[int]) -> Iterator[tuple[int, int]]:
    if 1 in (len(x), len(y)):
        x, y = x * max(len(y), 1), y * max(len(x), 1)
    return zip(x, y, strict=True)


# -- ONNX's models --------------------------------------------------------------------------------------------------


class _Node(NamedTuple):
    """A node of a model, and what became of it."""

    kind: str
    name: str
    ours: bool
    desc: Operator | None = None
    reason: str = ""


class _Model:
    """An ONNX model, its functions inlined."""

    def __init__(self, path: Path, sizes: Sizes) -> None:
        try:
            import onnx
            import onnx.inliner
        except ImportError:
            raise Unsupported(
                message(str(path), "an ONNX model", "other files, as ONNX is missing", "`pip install onnx`.")
            ) from None
        self._onnx, self._path = onnx, path
        self._model = onnx.ModelProto()
        self.open_sizes: set[str] = set()
        self._parse(_content(path))
        for graph in self._graphs():
            _drop_weights(graph)
        self._model = self._through(onnx.inliner.inline_local_functions)
        for graph in self._graphs():
            self._bind(graph, sizes)

    def nodes(self) -> list[_Node]:
        """Every node. A ``k`` that comes out constant tells more shapes, which may tell another ``k``."""
        for turn in range(_MOST_ROUNDS):
            self._model = self._through(functools.partial(self._onnx.shape_inference.infer_shapes, data_prop=True))
            settled: list[tuple[Any, int]] = []
            found: list[_Node] = self._through(functools.partial(self._walk, settled))
            if not settled:
                break
            for number, (node, value) in enumerate(settled):
                node.input[1] = f"{node.input[1]} settled {turn} {number}"
                kind = self._onnx.TensorProto.INT64
                self._model.graph.initializer.append(self._onnx.helper.make_tensor(node.input[1], kind, [1], [value]))
        return found

    def _walk(self, settled: list[tuple[Any, int]], model: Any) -> list[_Node]:
        return list(_Graph(self._onnx, model.graph, settled).nodes())

    def _parse(self, content: bytes) -> None:
        try:
            self._model.ParseFromString(content)
        except Exception as error:  # of Protocol Buffers, whose errors are not ours to import
            raise self._broken(error) from None

    def _through(self, step: Callable[[Any], Any]) -> Any:
        """The model that one of ONNX's own steps makes of this one."""
        try:
            return step(self._model)
        except TvmdmlError:
            raise
        except Exception as error:  # ONNX does not say what it raises
            raise self._broken(error) from None

    def _broken(self, error: Exception) -> InvalidArgument:
        said = " ".join(str(error).split())
        return InvalidArgument(message(str(self._path), f"a file that is no ONNX model ({said[:300]})", "an ONNX model"))

    def _graphs(self) -> Iterator[Any]:
        waiting = [self._model.graph, *_subgraphs(node for function in self._model.functions for node in function.node)]
        while waiting:
            graph = waiting.pop()
            waiting += _subgraphs(graph.node)
            yield graph

    def _bind(self, graph: Any, sizes: Sizes) -> None:
        for value in (*graph.input, *graph.output, *graph.value_info):
            for dimension in value.type.tensor_type.shape.dim:
                if dimension.HasField("dim_param"):
                    name = str(dimension.dim_param)
                    self.open_sizes.add(name)
                    if name in sizes:
                        dimension.dim_value = sizes[name]


def _content(path: Path) -> bytes:
    wanted = f"a file of at most {MAX_MODEL_BYTES >> 20} MiB"
    try:
        about = path.stat()
        if not stat.S_ISREG(about.st_mode) or about.st_size > MAX_MODEL_BYTES:
            raise InvalidArgument(message(str(path), "a folder, a device or a larger file", wanted))
        return path.read_bytes()
    except OSError as error:
        raise InvalidArgument(message(str(path), f"a file that cannot be read ({reason(error)})", wanted)) from None


def _subgraphs(nodes: Iterable[Any]) -> Iterator[Any]:
    for node in nodes:
        for attribute in node.attribute:
            if attribute.HasField("g"):
                yield attribute.g
            yield from attribute.graphs


def _drop_weights(graph: Any) -> None:
    """Forget the data of large tensors: nothing here looks at them, and every step would copy them."""
    constants = (a.t for node in graph.node if node.op_type == "Constant" for a in node.attribute if a.HasField("t"))
    for tensor in itertools.chain(graph.initializer, constants):
        if math.prod(tensor.dims) > 1024:
            for field in ("raw_data", "float_data", "int32_data", "int64_data", "double_data", "uint64_data", "string_data"):
                tensor.ClearField(field)


class _Graph:
    """A graph with what is known in it: its own tensors, and those of the graph around it."""

    def __init__(self, onnx: Any, graph: Any, settled: list[tuple[Any, int]], around: _Graph | None = None) -> None:
        self._onnx, self._graph = onnx, graph
        self._tensors: ChainMap[str, onnx_nodes.Tensor] = around._tensors.new_child() if around else ChainMap()
        self._constants: ChainMap[str, list[int]] = around._constants.new_child() if around else ChainMap()
        self._plain: set[str] = set(around._plain) if around else set()
        """Constants that shape inference knows, too."""
        self._settled = settled
        """Nodes whose ``k`` is a constant that shape inference does not know, and that constant."""
        for value in (*graph.input, *graph.value_info, *graph.output):
            self._tensors[value.name] = self._tensor(value.type.tensor_type)
        for tensor in graph.initializer:
            self._tensors[tensor.name] = onnx_nodes.Tensor(onnx_nodes.numpy_type(onnx, tensor.data_type), tuple(tensor.dims))
            self._plain.add(tensor.name)
            self._learn(tensor.name, self._integers(tensor))

    def nodes(self) -> Iterator[_Node]:
        """Its nodes, and those of the graphs in it."""
        for node in self._graph.node:
            kind = f"{node.domain}.{node.op_type}" if node.domain not in ("", "ai.onnx") else str(node.op_type)
            name = f"{kind} {node.name!r}" if node.name else f"{kind} of {', '.join(node.output)}"
            ours = kind in onnx_nodes.OPERATORS
            if not ours:
                yield _Node(kind, name, ours)
            else:
                yield self._ours(node, kind, name)
            self._fold(node, kind)
            for graph in _subgraphs([node]):
                yield from _Graph(self._onnx, graph, self._settled, self).nodes()

    def _ours(self, node: Any, kind: str, name: str) -> _Node:
        k = self._constants.get(node.input[1], []) if len(node.input) > 1 else []
        if kind == "TopK" and len(k) == 1 and node.input[1] not in self._plain:
            self._settled.append((node, k[0]))
        try:
            desc = onnx_nodes.OPERATORS[kind](onnx_nodes.Arguments(node, self._tensors, self._constants))
        except (onnx_nodes.Refused, TvmdmlError, ValueError) as error:  # ONNX's own for an attribute of no type
            return _Node(kind, name, True, reason=str(error))
        if any(tensor.element_count == 0 for _, tensor in desc.tensors() if tensor is not None):
            return _Node(kind, name, True, reason="it has no elements, and so needs no kernel")
        return _Node(kind, name, True, spec.plain(desc))

    def _tensor(self, kind: Any) -> onnx_nodes.Tensor:
        known = kind.HasField("shape")
        shape = tuple(d.dim_value if d.HasField("dim_value") else d.dim_param or "?" for d in kind.shape.dim) if known else None
        return onnx_nodes.Tensor(onnx_nodes.numpy_type(self._onnx, kind.elem_type), shape)

    def _integers(self, tensor: Any) -> list[int] | None:
        """The elements of a small tensor of integers."""
        small = len(tensor.dims) <= 1 and math.prod(tensor.dims) <= _MOST_FOLDED
        if not small or tensor.data_type not in (self._onnx.TensorProto.INT64, self._onnx.TensorProto.INT32):
            return None
        try:
            found: list[int] = self._onnx.numpy_helper.to_array(tensor).reshape(-1).tolist()
        except Exception:  # the data lie elsewhere, or are not of these sizes
            return None
        return found

    def _constant(self, attribute: Any) -> list[int] | None:
        if attribute.name == "value":
            return self._integers(attribute.t)
        return {"value_int": [attribute.i], "value_ints": list(attribute.ints)}.get(attribute.name)

    def _learn(self, name: str, values: list[int] | None) -> None:
        if values and len(values) <= _MOST_FOLDED and all(-_WIDEST <= value < _WIDEST for value in values):
            self._constants[name] = values

    def _fold(self, node: Any, kind: str) -> None:
        """Learn what a node makes of constants and shapes."""
        if len(node.output) != 1:
            return
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
                self._learn(node.output[0], _FOLDED[kind](*(self._constants[name] for name in node.input)))
            except (TypeError, ValueError, IndexError):  # such inputs are not for this
                return
