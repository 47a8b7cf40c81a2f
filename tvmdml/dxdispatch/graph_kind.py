"""Dispatchables that are serialized graphs."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from tvmdml.compiler import compile as compile_operator
from tvmdml.dxdispatch import bindings, flat, serialized
from tvmdml.dxdispatch.bindings import Bindings, RunBuffers
from tvmdml.dxdispatch.dispatchable import Dispatchable, Runner, said
from tvmdml.dxdispatch.resources import Resource, opened
from tvmdml.enums import FeatureLevel
from tvmdml.errors import InvalidArgument, Unsupported, safe_repr
from tvmdml.graph import CompiledGraph, Expression, Graph
from tvmdml.operators import Operator
from tvmdml.operators._contract import Role
from tvmdml.operators._json import descriptors, nodes
from tvmdml.operators._json.nodes import JsonNode
from tvmdml.operators.element_wise_unary import ElementWiseIdentity
from tvmdml.system import inside
from tvmdml.targets import Target
from tvmdml.tensors import TensorDesc

_FIELDS = ("type", "sourcePath")


class _Step(NamedTuple):
    """An operator of the graph, and the edges of its tensors: by the tensors' names, and in DirectML's order."""

    desc: Operator
    inputs: dict[str, str]
    outputs: list[str]


class SerializedGraph(Dispatchable):
    """A graph that was read and checked."""

    def __init__(
        self, node: JsonNode, steps: list[_Step], constants: dict[str, bytes], inputs: list[str], outputs: list[str]
    ) -> None:
        super().__init__(node)
        self._steps, self._constants = steps, constants
        self._read: dict[str, TensorDesc] = {}
        written: dict[str, TensorDesc] = {}
        for step in steps:
            tensors = {name: tensor for name, tensor in step.desc.tensors() if tensor is not None}
            for name, edge in step.inputs.items():
                if edge not in written and edge not in constants and edge not in inputs:
                    raise node.error(
                        f"{step.desc.NAME} reading {safe_repr(edge)}", "inputs, constants, and results of nodes before"
                    )
                known = self._read.get(edge)
                if known is None or known.span_in_bytes < tensors[name].span_in_bytes:
                    self._read[edge] = tensors[name]
            written.update(zip(step.outputs, [t for n, t in step.desc.tensors(Role.OUTPUT) if t is not None], strict=False))
        for edge in outputs:
            if edge not in written:
                raise node.error(f"an output {safe_repr(edge)} that no node writes", "outputs that are written")
        self._tensors = {
            **{edge: _memory(self._read[edge]) for edge in inputs if edge in self._read},
            **{edge: written[edge] for edge in outputs},
        }
        self._inputs, self._outputs = [edge for edge in inputs if edge in self._read], outputs

    def bindings(self, node: JsonNode, resources: Mapping[str, Resource]) -> Bindings:
        """By the names of the graph's inputs and outputs."""
        members = node.members()
        for name, binding in members.items():
            if name not in self._tensors:
                raise binding.error("a binding", f"bindings for {', '.join(self._tensors)}")
        return {
            name: [bindings.not_deferred(bindings.one(node.need(name, f"a resource for {tensor}"), resources), resources)]
            for name, tensor in self._tensors.items()
        }

    def compiled(self, target: Target, level: str | FeatureLevel | None) -> Runner:
        """As one graph."""
        graph = Graph()
        edges: dict[str, Expression | None] = {
            edge: graph.input(self._tensors[edge].sizes, self._tensors[edge].data_type, name=edge) for edge in self._inputs
        }
        try:
            for edge, content in self._constants.items():
                if edge in self._read:
                    edges[edge] = graph.constant(_array(content, self._read[edge]))
            for step in self._steps:
                results = graph.add(step.desc, {name: edges[edge] for name, edge in step.inputs.items()})
                edges.update(zip(step.outputs, [one for one in results if one is not None], strict=False))
            found = graph.compile([edges[edge] for edge in self._outputs], target, feature_level=level)  # type: ignore[misc]
        except (InvalidArgument, Unsupported) as error:
            raise said(self.node, error) from None
        return _Runner(target, found, self._tensors, self._inputs)


class _Runner(Runner):
    """The graph writes packed results; one with strides is copied to its places, so that what is between them stays as it was."""

    def __init__(self, target: Target, graph: CompiledGraph, tensors: Mapping[str, TensorDesc], inputs: list[str]) -> None:
        super().__init__(target)
        self._graph, self._tensors, self._inputs = graph, tensors, inputs
        strided = {name: tensor.stored for name, tensor in tensors.items() if not tensor.is_packed}
        self._copies = {
            name: compile_operator(ElementWiseIdentity(input_tensor=_packed(one), output_tensor=one), target)
            for name, one in strided.items()
        }

    def explained(self) -> list[str]:
        """What became of each call."""
        return str(self._graph.explain()).splitlines()

    def bind(self, node: JsonNode, found: Bindings, memory: RunBuffers) -> Callable[[], None]:
        views: dict[str, Any] = {}
        copies: list[Callable[[], None]] = []
        for name, (binding,) in found.items():
            view = memory.there(binding.view(memory, self._tensors[name]))
            views[name] = self.target.place(view) if isinstance(view, np.ndarray) else view  # while the model is checked
        try:
            for name, copy in self._copies.items():
                result = self.target.empty(views[name].shape, views[name].dtype)
                copies.append(copy.bind(result, views[name]))
                views[name] = result
            outputs = [view for name, view in views.items() if name not in self._inputs]
            run = self._graph.bind({name: views[name] for name in self._inputs}, outputs)
        except InvalidArgument as error:
            raise said(node, error) from None

        def call() -> None:
            run()
            for copy in copies:
                copy()

        return call if copies else run


def _packed(tensor: TensorDesc) -> TensorDesc:
    return TensorDesc(tensor.data_type, tensor.sizes)


def _memory(tensor: TensorDesc) -> TensorDesc:
    """The memory of an input as a vector: nodes may read it with different sizes and strides."""
    stored = tensor.stored
    return TensorDesc(stored.data_type, [-(-stored.span_in_bytes // stored.data_type.itemsize)])


def _array(content: bytes, tensor: TensorDesc) -> Any:
    """A constant's memory, of the type of what reads it."""
    itemsize = tensor.stored.data_type.itemsize
    size = -(-max(len(content), 1) // itemsize) * itemsize
    return np.frombuffer(content.ljust(size, b"\0"), tensor.stored.data_type.numpy).copy()


def read(node: JsonNode, folder: Path) -> SerializedGraph:
    """A serialized graph; its file must be inside the folder, and the files of its constants beside it.

    Raises:
        ModelError: there is no such file, or it is damaged.
        Unsupported: the package ``flatbuffers`` is not installed.
    """
    node.only(_FIELDS)
    source = node.need("sourcePath", "the path of a file")
    where = JsonNode(node.value, node.file, f"{node.path}: {source.text()}")
    try:
        file = serialized.read(_content(source, folder))
        if len(set(file.outputs)) != len(file.outputs) or len({*file.inputs, *file.outputs}) != len(file.inputs) + len(
            file.outputs
        ):
            raise where.error("inputs or outputs of the same name", "different names")
        constants, steps = {}, []
        beside = folder.joinpath(*inside.steps(source.text())[:-1])
        for one in file.nodes:
            if isinstance(one.what, serialized.SerializedConstant):
                for edge in filter(None, one.outputs):
                    constants[edge] = _constant(one.what, source, beside)
            else:
                steps.append(_step(one, one.what, where))
    except flat.Damaged as error:
        raise where.error(f"a file with {error}", "a graph that ONNX Runtime serialized") from None
    except Unsupported as error:
        raise said(where, error) from None
    return SerializedGraph(where, steps, constants, file.inputs, file.outputs)


def _content(source: JsonNode, folder: Path) -> bytes:
    with opened(source, folder) as file:
        content = file.read(nodes.MAX_MODEL_BYTES + 1)
    if len(content) > nodes.MAX_MODEL_BYTES:
        raise source.error("a larger file", f"a file of at most {nodes.MAX_MODEL_BYTES >> 20} MiB")
    return content


def _constant(one: serialized.SerializedConstant, source: JsonNode, folder: Path) -> bytes:
    if one.content is not None:
        return one.content
    return _content(JsonNode(f"{one.file}.bin", source.file, f"{source.path}: constant {safe_repr(one.name)}"), folder)


def _step(one: serialized.SerializedNode, call: serialized.SerializedCall, where: JsonNode) -> _Step:
    node = JsonNode(call.fields, where.file, f"{where.path}: node {safe_repr(call.name)}")
    cls = descriptors.find(JsonNode(call.kind, node.file, node.path))
    desc = descriptors.read(cls, node)
    wanted = [name for name, tensor in desc.tensors(Role.INPUT) if tensor is not None]
    results = [name for name, tensor in desc.tensors(Role.OUTPUT) if tensor is not None]
    inputs, outputs = [edge for edge in one.inputs if edge], [edge for edge in one.outputs if edge]
    if len(inputs) != len(wanted) or len(outputs) != len(results):
        given = f"{len(inputs)} inputs and {len(outputs)} outputs with names"
        raise node.error(given, f"{len(wanted)} and {len(results)}, the tensors of {cls.NAME}")
    return _Step(desc, dict(zip(wanted, inputs, strict=True)), outputs)
