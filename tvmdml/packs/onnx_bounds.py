"""How large an ONNX model may be, and what of its data is read.

A small file can mean a large model: functions that call others twice each double what is inlined. So nodes are counted before any
step of ONNX's makes copies of them, and what a tensor says of its size is held against the file's.
"""

from __future__ import annotations

import itertools
import math
from collections import Counter
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any, NamedTuple

from tvmdml import _inside
from tvmdml.errors import InvalidArgument, message

MAX_NODES = 1 << 18
"""Nodes of a model, its functions inlined."""
MAX_NODE_BYTES = 1 << 28
"""Bytes of those nodes, without weights."""
MAX_DEPTH = 100
"""Functions that call each other in a row."""
SMALL = 64
"""Elements of a tensor that may say a size, or a ``k``."""
_LARGE = 1024
"""Elements of tensors whose data nobody looks at."""
_PER_BYTE = 4
"""Elements that a byte has, of the smallest type."""

_Key = tuple[str, str, str]
"""A function's domain, name and overload."""


# -- Walking through a model ----------------------------------------------------------------------------------------


def subgraphs(nodes: Iterable[Any]) -> Iterator[Any]:
    """The graphs that nodes have as attributes."""
    for node in nodes:
        for attribute in node.attribute:
            if attribute.HasField("g"):
                yield attribute.g
            yield from attribute.graphs


def graphs(model: Any) -> Iterator[Any]:
    """Every graph of a model."""
    waiting = [model.graph, *subgraphs(node for function in model.functions for node in function.node)]
    while waiting:
        graph = waiting.pop()
        waiting += subgraphs(graph.node)
        yield graph


def _all_nodes(nodes: Iterable[Any]) -> Iterator[Any]:
    """Nodes, and those of the graphs in them."""
    waiting = [iter(nodes)]
    while waiting:
        for node in waiting.pop():
            yield node
            waiting += (graph.node for graph in subgraphs([node]))


def _tensors(model: Any) -> Iterator[Any]:
    """Every tensor that has data."""
    for graph in graphs(model):
        yield from graph.initializer
    functions = (function.node for function in model.functions)
    for node in _all_nodes(itertools.chain(model.graph.node, *functions)):
        for attribute in node.attribute:
            if attribute.HasField("t"):
                yield attribute.t
            yield from attribute.tensors


# -- Tensors --------------------------------------------------------------------------------------------------------


def check_tensors(onnx: Any, path: Path, model: Any, size: int) -> None:
    """Forget the data of large tensors, which every step would copy, and read those of small ones that lie in other files.

    Args:
        onnx: the package.
        path: the model's file.
        model: the model, which is changed.
        size: bytes of the file.

    Raises:
        InvalidArgument: a tensor has more elements than the file can hold, or its data are outside the model's folder.
    """
    for tensor in _tensors(model):
        count = math.prod(tensor.dims)
        outside = tensor.data_location == onnx.TensorProto.EXTERNAL
        if min(tensor.dims, default=1) < 0 or (not outside and count > _PER_BYTE * size):
            given = f"a tensor {tensor.name!r} of sizes {list(tensor.dims[:8])}"
            raise InvalidArgument(
                message(str(path), given, f"at most {_PER_BYTE * size} elements, as the file has {size} bytes", _NOT_TRUSTED)
            )
        if outside:
            _read_outside(onnx, path, tensor, count)
        elif count > _LARGE:
            for field in _DATA:
                tensor.ClearField(field)


_DATA = ("raw_data", "float_data", "int32_data", "int64_data", "double_data", "uint64_data", "string_data")
_NOT_TRUSTED = "The file is damaged, or somebody made it to exhaust the memory of who reads it."


def _read_outside(onnx: Any, path: Path, tensor: Any, count: int) -> None:
    """Put the data of a small tensor of integers into it; those of others are left where they are."""
    where = {entry.key: entry.value for entry in tensor.external_data}
    location = where.get("location", "")
    itemsize = {onnx.TensorProto.INT32: 4, onnx.TensorProto.INT64: 8}.get(tensor.data_type)
    try:
        _inside.steps(location)
        if itemsize is None or count > SMALL:
            return
        offset = int(where.get("offset") or 0)
        with _inside.open_to_read(path.parent, location) as file:
            file.seek(offset)
            content = file.read(count * itemsize)
    except _inside.Missing:
        return  # a model is often built for without its weights
    except _inside.Refused as error:
        problem = str(error)
    except (ValueError, OverflowError, OSError):
        problem = f"from offset {where.get('offset', '')!r}, which is none"
    else:
        if len(content) == count * itemsize:
            tensor.raw_data = content
            tensor.data_location = onnx.TensorProto.DEFAULT
            tensor.ClearField("external_data")
            return
        problem = f"which has {len(content)} bytes from offset {offset}, and not {count * itemsize}"
    given = f"a tensor {tensor.name!r} with data in {location!r}, {problem}"
    raise InvalidArgument(message(str(path), given, f"files in {str(path.parent.absolute())!r}", "Put them beside the model."))


# -- Nodes ----------------------------------------------------------------------------------------------------------


class _Sum(NamedTuple):
    """What a function, or the graph, comes to when all is inlined."""

    nodes: int
    size: int


def check_nodes(path: Path, model: Any) -> None:
    """Count what a model comes to when its functions are inlined, without doing it.

    Raises:
        InvalidArgument: it has too many nodes, or a function that calls itself.
    """
    bodies = {(_domain(f.domain), str(f.name), str(getattr(f, "overload", ""))): f.node for f in model.functions}
    sums: dict[_Key, _Sum] = {}
    active: list[tuple[_Key, Iterator[_Key]]] = []
    parts = {key: _own(nodes, bodies) for key, nodes in bodies.items()}
    main = _own(model.graph.node, bodies)
    for first in main[1]:
        active.append((first, iter(parts[first][1])))
        while active:
            key, calls = active[-1]
            inner = next((call for call in calls if call not in sums), None)
            if inner is None:
                sums[key] = _together(*parts[key], sums)
                active.pop()
            elif any(inner == above for above, _ in active) or len(active) >= MAX_DEPTH:
                names = " -> ".join(f"{name!r}" for (_, name, _), _ in active[:3])
                given = f"functions that call each other without end, or more than {MAX_DEPTH} in a row ({names} -> …)"
                raise InvalidArgument(message(str(path), given, f"at most {MAX_DEPTH}, none of which calls itself", _NOT_TRUSTED))
            else:
                active.append((inner, iter(parts[inner][1])))
    total = _together(*main, sums)
    if total.nodes > MAX_NODES:
        raise InvalidArgument(
            message(
                str(path),
                f"a model of more than {MAX_NODES} nodes when its functions are inlined",
                f"at most {MAX_NODES}",
                _NOT_TRUSTED,
            )
        )
    if total.size > MAX_NODE_BYTES:
        given = f"a model with more than {MAX_NODE_BYTES >> 20} MiB of nodes when its functions are inlined"
        raise InvalidArgument(message(str(path), given, f"at most {MAX_NODE_BYTES >> 20} MiB, beside its weights", _NOT_TRUSTED))


def _domain(name: str) -> str:
    return "" if name == "ai.onnx" else str(name)


def _own(nodes: Any, bodies: dict[_Key, Any]) -> tuple[_Sum, Counter[_Key]]:
    """Nodes and their bytes, and how often they call each function."""
    calls: Counter[_Key] = Counter()
    count = 0
    for node in _all_nodes(nodes):
        key = (_domain(node.domain), str(node.op_type), str(getattr(node, "overload", "")))
        count += 1
        if key in bodies:
            calls[key] += 1
    return _Sum(count, sum(node.ByteSize() for node in nodes)), calls


def _together(own: _Sum, calls: Counter[_Key], sums: dict[_Key, _Sum]) -> _Sum:
    """What it comes to; past the bounds, just that: the numbers would have as many digits as there are functions."""
    nodes = own.nodes + sum(sums[key].nodes * times for key, times in calls.items())
    size = own.size + sum(sums[key].size * times for key, times in calls.items())
    return _Sum(min(nodes, MAX_NODES + 1), min(size, MAX_NODE_BYTES + 1))
