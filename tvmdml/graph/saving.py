"""A compiled graph as a file: what it computes after all passes, and its constants. Its kernels are in a pack, or in the cache.

A file is, with all numbers little-endian::

    header      32 bytes: magic, format version, 0, bytes of the description, bytes of the constants
    description JSON: inputs, constants (type, shape, place), calls (descriptors, and what they read), outputs
    constants   their bytes, each from a multiple of 64 bytes on

Constants are mapped into memory, not copied. A reader trusts nothing: descriptors are checked against their contracts, and every
place against the size of what it is in.
"""

from __future__ import annotations

import contextlib
import json
import math
import os
import struct
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np

from tvmdml.arrays import NumpyArray
from tvmdml.disk import mapping
from tvmdml.errors import InvalidArgument, ModelError, TvmdmlError, Unsupported, message, reason, safe_repr
from tvmdml.graph.compiled import CompiledGraph
from tvmdml.graph.nodes import Absent, Call, Constant, Edge, Input, Node, require_room
from tvmdml.graph.program import Finished, Form, Program, Result
from tvmdml.operators._contract import Role
from tvmdml.packs import files, lines
from tvmdml.tensors import ArrayTensorDesc, TensorDataType, TensorDesc

MAGIC = b"TVMDMLG\n"
FORMAT = 1
"""Raised when an older reader would misunderstand a newer file."""
MOST_JSON = 256 << 20
_HEADER = struct.Struct("<8sIIQQ")
_ALIGNMENT = 64
_TYPES = {one.tvm: one.numpy for one in TensorDataType if not one.is_nibble} | {"bool": np.dtype(np.bool_)}


class Saved(NamedTuple):
    """A graph as it is written."""

    described: dict[str, Any]
    """JSON; a constant's array is found by its number."""
    constants: list[NumpyArray]


def save_graph(compiled: CompiledGraph, path: str | os.PathLike[str]) -> None:
    """Write a compiled graph to a file, atomically.

    Raises:
        InvalidArgument: it is not a compiled graph, or the place cannot be written to.
        OSError: the file cannot be written.
    """
    if not isinstance(compiled, CompiledGraph):
        raise InvalidArgument(message("save_graph compiled", safe_repr(compiled), "a CompiledGraph, which Graph.compile returns"))
    described, constants = describe(compiled.parts(), compiled.target.kind)
    places = list(_places([array.nbytes for array in constants]))
    for one, at in zip(described["constants"], places, strict=False):
        one["place"] = at
    text = json.dumps(described, separators=(",", ":")).encode()
    text += b" " * (-(_HEADER.size + len(text)) % _ALIGNMENT)
    with files.replacing(path) as stream:
        stream.write(_HEADER.pack(MAGIC, FORMAT, 0, len(text), places[-1]))
        stream.write(text)
        start = stream.tell()
        for array, at in zip(constants, places, strict=False):
            stream.write(b"\0" * (start + at - stream.tell()))
            stream.write(bytes_of(array))
        stream.write(b"\0" * (start + places[-1] - stream.tell()))


def read(path: str | os.PathLike[str]) -> tuple[Finished, str]:
    """A graph that ``save_graph`` wrote, and the kind of target that it is for. Its constants stay in the file.

    Raises:
        ModelError: the file cannot be read, or is not such a file.
    """
    with reading(path):
        described, memory = _read(path)
        return parsed(described, lambda one, dtype, shape: _placed(one["place"], dtype, shape, memory)), kind_of(described)


@contextlib.contextmanager
def reading(path: str | os.PathLike[str]) -> Iterator[None]:
    """Whatever a damaged or hostile description leads to is a ``ModelError``."""
    try:
        yield
    except OSError as error:
        raise ModelError(f"{path}: {reason(error)}") from error
    except (KeyError, TypeError, ValueError, IndexError, AttributeError, RecursionError) as error:
        if isinstance(error, TvmdmlError) and not isinstance(error, InvalidArgument):
            raise
        raise ModelError(f"{path} is not a graph: {type(error).__name__}: {error}") from error


# -- Writing


def describe(finished: Finished, kind: str) -> Saved:
    """What is written of a graph for a kind of target."""
    name, inputs, program, forms = finished
    numbers: dict[int, tuple[str, int]] = {id(node): ("input", i) for i, node in enumerate(inputs)}
    constants = program.constants()
    numbers |= {id(node): ("constant", i) for i, node in enumerate(constants)}
    calls = [call for call in program.calls if any(one.element_count for one in call.outputs() if one is not None)]
    numbers |= {id(call): ("call", i) for i, call in enumerate(calls)}
    described = {
        "name": name,
        "kind": kind,
        "inputs": [_input(node) for node in inputs],
        "constants": [
            {"dtype": node.array.dtype.name, "shape": list(node.array.shape), "place": i, "name": node.name}
            for i, node in enumerate(constants)
        ],
        "calls": [_call(call, numbers) for call in calls],
        "outputs": [
            {"reads": _edge(one.edge, numbers), "sizes": list(one.desc.sizes), "dtype": dtype.name, "shape": list(shape)}
            for one, (dtype, shape) in zip(program.results, forms, strict=True)
        ],
    }
    return Saved(described, [node.array for node in constants])


def bytes_of(array: NumpyArray) -> memoryview:
    """The elements of a constant as they lie in memory."""
    return array.reshape(-1).view(np.uint8).data if array.nbytes else memoryview(b"")


def _places(sizes: Sequence[int]) -> Iterator[int]:
    at = 0
    for size in sizes:
        yield at
        at += -(-size // _ALIGNMENT) * _ALIGNMENT
    yield at


def _input(node: Input) -> dict[str, Any]:
    desc = node.desc
    sizes = [] if getattr(desc, "zero_dimensional", False) else list(desc.sizes)
    strides = None if desc.strides is None else list(desc.strides)
    return {"name": node.name, "dtype": node.dtype.name, "sizes": sizes, "strides": strides, "owned": node.owned}


def _call(call: Call, numbers: Mapping[int, tuple[str, int]]) -> dict[str, Any]:
    reads = {name: _edge(edge, numbers) for name, edge in call.edges.items()}
    return {"line": lines.of(call.desc), "reads": reads, "name": call.name, "where": call.where}


def _edge(edge: Edge, numbers: Mapping[int, tuple[str, int]]) -> list[Any]:
    return [*numbers[id(edge.source)], edge.output, edge.offset]


# -- Reading


def _read(path: str | os.PathLike[str]) -> tuple[dict[str, Any], NumpyArray]:
    with open(path, "rb") as stream:
        size = os.fstat(stream.fileno()).st_size
        header = stream.read(_HEADER.size)
        if len(header) < _HEADER.size or not header.startswith(MAGIC):
            raise ModelError(f"{path} is not a graph that tvmdml saved.")
        _, version, _, text, rest = _HEADER.unpack(header)
        if version != FORMAT:
            raise ModelError(f"{path} has format {version}; this version of tvmdml reads format {FORMAT}. Save the graph again.")
        if text > MOST_JSON or _HEADER.size + text + rest != size:
            raise ModelError(
                f"{path} has {size} bytes, and says that it has {_HEADER.size + text + rest}: it is damaged or cut off."
            )
        described = json.loads(stream.read(text))
        return described, mapping.mapped(stream.fileno(), size)[_HEADER.size + text :]


ReadConstant = Callable[[Mapping[str, Any], "np.dtype[Any]", tuple[int, ...]], "NumpyArray | None"]
"""The array of a constant, of the given type and shape; ``None`` if only packed forms of it were saved."""


def kind_of(described: Mapping[str, Any]) -> str:
    """The kind of target that a graph is for."""
    return _text(described["kind"])


def parsed(described: Mapping[str, Any], read_constant: ReadConstant) -> Finished:
    """What ``describe`` described. Nothing of it is trusted.

    Raises:
        Exception: in ``reading``, a ``ModelError``.
    """
    inputs = [_read_input(one) for one in described["inputs"]]
    names = [one.name for one in inputs if one.name]
    if len(set(names)) != len(names):
        raise ValueError("two inputs with the same name")
    nodes: dict[str, list[Any]] = {"input": inputs, "constant": [], "call": []}
    nodes["constant"] += [_constant(one, read_constant) for one in described["constants"]]
    for one in described["calls"]:
        nodes["call"].append(_read_call(one, nodes))
    results, forms = [], []
    for one in described["outputs"]:
        dtype, shape = reading_form(one["dtype"], one["shape"])
        kind = TensorDataType.from_numpy(dtype)
        desc: TensorDesc = ArrayTensorDesc(kind, _sizes(one["sizes"]))
        edge = _read_edge(one["reads"], nodes)
        require_room(edge, desc, "an output")
        if math.prod(shape) != desc.element_count or (isinstance(edge.source, Input) or edge.offset):
            raise ValueError("an output that is no whole result")
        if isinstance(edge.source, Absent):
            raise ValueError("an output that was not saved")
        if isinstance(edge.source, Call) and edge.source.bytes_of(edge.output) != desc.span_in_bytes:
            raise ValueError("an output of another size than what writes it")  # its kernel would write beyond its end
        results.append(Result(edge, desc))
        forms.append((dtype, shape))
    return Finished(_text(described["name"]), inputs, Program(nodes["call"], results), forms)


def reading_form(dtype: Any, shape: Any) -> Form:
    """A type and a shape."""
    return _TYPES[dtype], _sizes(shape)


def _read_input(one: Mapping[str, Any]) -> Input:
    dtype = _TYPES[one["dtype"]]
    sizes = _sizes(one["sizes"])
    strides = None if one["strides"] is None else _sizes(one["strides"])
    kind = TensorDataType.from_numpy(dtype)
    desc = ArrayTensorDesc(kind, sizes or (1,), strides if sizes else None, zero_dimensional=not sizes)
    return Input(desc, dtype, bool(one["owned"]), _text(one["name"]), "")


def _constant(one: Mapping[str, Any], read_constant: ReadConstant) -> Constant:
    dtype, shape, name = _TYPES[one["dtype"]], _sizes(one["shape"]), _text(one["name"])
    array = read_constant(one, dtype, shape)
    if array is None:
        return Absent(np.broadcast_to(np.empty((), dtype), shape), name, "")
    return Constant(array, name, "")


def _placed(at: Any, dtype: np.dtype[Any], shape: tuple[int, ...], memory: NumpyArray) -> NumpyArray:
    size = math.prod(shape) * dtype.itemsize
    if type(at) is not int or at < 0 or at % _ALIGNMENT or at + size > memory.nbytes:
        raise ValueError(f"a constant of {size} bytes at {safe_repr(at)} of {memory.nbytes}")
    return memory[at : at + size].view(dtype).reshape(shape) if size else np.empty(shape, dtype)


def _read_call(one: Mapping[str, Any], nodes: Mapping[str, list[Any]]) -> Call:
    try:
        desc = lines.read(one["line"], "a call")
    except Unsupported as error:  # of a file; what a target does not support is found later
        raise ValueError(str(error)) from error
    edges = {name: _read_edge(edge, nodes) for name, edge in one["reads"].items()}
    wanted = {name: tensor for name, tensor in desc.tensors(Role.INPUT) if tensor is not None}
    if set(edges) != set(wanted):
        raise ValueError(f"{desc.NAME} reads {sorted(edges)}; allowed: {sorted(wanted)}")
    for name, tensor in wanted.items():
        require_room(edges[name], tensor, f"{desc.NAME} {name}")
    return Call(desc, edges, _text(one["name"]), _text(one["where"]))


def _read_edge(given: Sequence[Any], nodes: Mapping[str, list[Any]]) -> Edge:
    kind, number, output, offset = given
    if any(type(n) is not int or n < 0 for n in (number, output, offset)):
        raise ValueError(f"an edge {given}")
    node: Node = nodes[kind][number]
    count = len(node.outputs()) if isinstance(node, Call) else 1
    if output >= count:
        raise ValueError(f"output {output} of {node}, which has {count}")
    return Edge(node, output, offset)


def _sizes(given: Any) -> tuple[int, ...]:
    if not isinstance(given, list) or len(given) > 8 or any(type(n) is not int or not 0 <= n < 1 << 32 for n in given):
        raise ValueError(f"sizes {safe_repr(given)}")
    return tuple(given)


def _text(given: Any) -> str:
    if not isinstance(given, str) or len(given) > 1000:
        raise ValueError(f"a name {safe_repr(given)}")
    return given
