"""Compute now what depends on constants only."""

from __future__ import annotations

import math

import numpy as np

from tvmdml.arrays import NumpyArray
from tvmdml.compiler import CompiledOperator
from tvmdml.graph.nodes import Call, Constant, Edge
from tvmdml.graph.program import Program, Value
from tvmdml.operators._contract import Role
from tvmdml.targets import Target, resolve
from tvmdml.tensors import TensorDesc

MOST_BYTES = 1 << 20
"""Results up to this size are kept as constants, and larger ones if they are not larger than what they are computed from."""


def run(program: Program, target: Target) -> None:
    """Put constants in the places of such calls. Kernels of the processor compute them."""
    instead: dict[Value, Edge] = {}
    gone = []
    for call in program.calls:
        edges = {name: instead.get(edge.value, edge)._replace(offset=edge.offset) for name, edge in call.edges.items()}
        sources = [edge.source for edge in edges.values()]
        outputs = [tensor for tensor in call.outputs() if tensor is not None]
        inputs = [tensor for _, tensor in call.desc.tensors(Role.INPUT) if tensor is not None]
        if not all(isinstance(source, Constant) for source in sources) or any(not one.element_count for one in (*inputs, *outputs)):
            continue
        read = sum(source.array.nbytes for source in sources if isinstance(source, Constant))
        if sum(one.span_in_bytes for one in outputs) > max(read, MOST_BYTES):
            continue
        for i, array in _results(call, edges).items():
            constant = Constant(array, call.output_names()[i] if not call.name else call.name, call.where)
            instead[call, i] = Edge(constant)
        gone.append(call)
    program.replace(instead)
    program.forget(gone, "computed when the graph was compiled")


def _results(call: Call, edges: dict[str, Edge]) -> dict[int, NumpyArray]:
    """The arrays of the outputs, by their places."""
    arrays = {}
    for name, tensor in call.desc.tensors(Role.INPUT):
        if tensor is not None:
            edge = edges[name]
            assert isinstance(edge.source, Constant)
            arrays[name] = reading(edge.source.array, edge.offset, tensor)
    found = {}
    for i, (name, tensor) in enumerate(call.desc.tensors(Role.OUTPUT)):
        if tensor is not None:
            whole = np.empty(tensor.stored.span_in_bytes, np.uint8)
            found[i] = whole
            arrays[name] = reading(whole, 0, tensor)
    CompiledOperator(call.desc.unowned(), resolve("cpu"))(**arrays)
    return found


def reading(array: NumpyArray, offset: int, tensor: TensorDesc) -> NumpyArray:
    """A view of memory as a tensor, from a byte on."""
    stored = tensor.stored
    dtype = stored.data_type.numpy
    flat = array.reshape(-1).view(np.uint8) if array.nbytes else np.empty(0, np.uint8)
    if not math.prod(stored.sizes):
        return np.empty(stored.sizes, dtype)
    part = flat[offset : offset + stored.span_in_bytes]
    strides = tuple(step * dtype.itemsize for step in stored.layout)
    if (part.ctypes.data % dtype.itemsize) != 0:
        part = part.copy()
    found: NumpyArray = np.ndarray(stored.sizes, dtype, part, 0, strides)
    return found
