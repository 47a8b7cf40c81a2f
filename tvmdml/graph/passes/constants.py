"""Compute now what depends on constants only. An input without elements is one, whatever it is; a join does without it."""

from __future__ import annotations

import dataclasses

import numpy as np

from tvmdml.compiler import CompiledOperator
from tvmdml.graph.nodes import Call, Constant, Edge
from tvmdml.graph.packers import reading
from tvmdml.graph.program import NodeOutput, Program
from tvmdml.graph.templates import Template
from tvmdml.operators._accuracy import as_array
from tvmdml.operators._contract import Role
from tvmdml.operators.join import Join
from tvmdml.targets import Target, resolve
from tvmdml.tensors import TensorDesc
from tvmdml.tensors.arrays import NumpyArray

_SMALL = 1 << 20
"""Results up to this many bytes become constants."""
_GROWTH = 8
"""So do larger ones that have at most so many times the bytes of what they are computed from: weights of 4 bits become float32.

Those of what is computed here follow from what it is computed from, so that calls that follow each other multiply nothing."""

_NOTHING = np.empty(0, np.uint8)


def run(program: Program, target: Target) -> None:
    """Put constants in the places of such calls. Kernels of the processor compute them."""
    instead: dict[NodeOutput, Edge] = {}
    gone = []
    given: dict[Constant, int] = {}  # the bytes that a constant is computed from
    for call in program.calls:
        _let_go(call)
        edges = {name: instead.get(edge.value, edge)._replace(offset=edge.offset) for name, edge in call.edges.items()}
        sources = [edges[name].source for name, tensor, _ in call.inputs() if tensor.element_count]
        outputs = [tensor for tensor in call.outputs() if tensor is not None]
        if not all(isinstance(source, Constant) for source in sources) or not any(one.element_count for one in outputs):
            continue
        constants = dict.fromkeys(source for source in sources if isinstance(source, Constant))
        read = sum(given.get(source, source.array.nbytes) for source in constants)
        no_kernel = len(sources) < len(edges) or not all(one.element_count for one in outputs)
        if not no_kernel and (_is_open(call, edges) or sum(one.span_in_bytes for one in outputs) > max(_GROWTH * read, _SMALL)):
            continue
        for i, array in _results(call, edges, no_kernel).items():
            constant = Constant(array, call.output_names()[i] if not call.name else call.name, call.where)
            given[constant] = min(read, array.nbytes)
            instead[call, i] = Edge(constant)
        gone.append(call)
    program.replace(instead)
    program.forget(gone, "computed when the graph was compiled")
    program.results = [one if one.desc.element_count else one._replace(edge=_nothing(one.desc)) for one in program.results]


def _is_open(call: Call, edges: dict[str, Edge]) -> bool:
    """Whether a result depends on open sizes: one array would not serve all of them."""
    return Template((call.desc, *(edge.offset for edge in edges.values()))).is_open


def _let_go(call: Call) -> None:
    """Let a join do without inputs that have no elements."""
    if not isinstance(call.desc, Join):
        return
    left = [(tensor, edge) for _, tensor, edge in call.inputs() if tensor.element_count]
    if 0 < len(left) < len(call.edges):
        call.desc = dataclasses.replace(call.desc, input_tensors=tuple(tensor for tensor, _ in left))
        call.edges = dict(zip((name for name, _ in call.desc.tensors(Role.INPUT)), (edge for _, edge in left), strict=True))


def _nothing(desc: TensorDesc) -> Edge:
    """A constant without elements."""
    return Edge(Constant(np.empty(desc.stored.sizes, desc.stored.data_type.numpy), "", ""))


def _results(call: Call, edges: dict[str, Edge], no_kernel: bool) -> dict[int, NumpyArray]:
    """The arrays of the outputs, by their places: by the reference where a tensor has no elements, as no kernel takes it."""
    arrays = {}
    for name, tensor, _ in call.inputs():
        source = edges[name].source
        arrays[name] = reading(source.array if isinstance(source, Constant) else _NOTHING, edges[name].offset, tensor)
    found, results = {}, {}
    for i, (name, output) in enumerate(call.desc.tensors(Role.OUTPUT)):
        if output is not None:
            found[i] = np.empty(output.stored.span_in_bytes, np.uint8)
            results[name] = reading(found[i], 0, output)
    if no_kernel:
        with np.errstate(all="ignore"):
            answers = call.desc.reference(*(arrays.get(name) for name, _ in call.desc.tensors(Role.INPUT)))
        for result, answer in zip(results.values(), map(as_array, answers), strict=True):
            result[...] = answer.reshape(result.shape)
    else:
        CompiledOperator(call.desc.unowned(), resolve("cpu"))(**arrays, **results)
    return found
