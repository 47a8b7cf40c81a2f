"""Limits on the size of an ONNX model, and ways through it.

A small file can represent a huge model: if each function calls another twice, the inlined size doubles with each function. So
nodes are counted before any step of ONNX copies them.
"""

from __future__ import annotations

import itertools
from collections import Counter
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any, NamedTuple

from tvmdml.errors import InvalidArgument, message, safe_repr

MAX_NODES = 1 << 18
"""The limit of nodes in a model, with its functions inlined."""
MAX_NODE_BYTES = 1 << 28
"""The limit of the bytes of those nodes, without weights."""
MAX_DEPTH = 100
"""The limit of nested function calls, and of graphs in nodes."""
_NOT_TRUSTED = "The file is damaged, or was made to exhaust the memory of its readers."

Key = tuple[str, str, str]
"""A function's domain, name and overload."""


# -- Traversing a model ---------------------------------------------------------------------------------------------


def domain_of(proto: Any) -> str:
    """The domain of a node, function or operator set: ONNX's own one has two names."""
    return "" if proto.domain == "ai.onnx" else str(proto.domain)


def key_of(node: Any) -> Key:
    """Which function a node calls, if the model has it."""
    return domain_of(node), str(node.op_type), str(node.overload)


def functions(model: Any) -> dict[Key, Any]:
    """The model's own functions."""
    return {(domain_of(one), str(one.name), str(one.overload)): one for one in model.functions}


def subgraphs(nodes: Iterable[Any]) -> Iterator[Any]:
    """The graphs in the attributes of nodes."""
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


def all_nodes(nodes: Iterable[Any]) -> Iterator[Any]:
    """The nodes, and those of the graphs in their attributes."""
    waiting = [iter(nodes)]
    while waiting:
        for node in waiting.pop():
            yield node
            waiting += (graph.node for graph in subgraphs([node]))


def tensors(model: Any) -> Iterator[Any]:
    """Every tensor with data."""
    for graph in graphs(model):
        yield from graph.initializer
    functions = (function.node for function in model.functions)
    for node in all_nodes(itertools.chain(model.graph.node, *functions)):
        for attribute in node.attribute:
            if attribute.HasField("t"):
                yield attribute.t
            yield from attribute.tensors


# -- Nodes ----------------------------------------------------------------------------------------------------------


class _Sum(NamedTuple):
    """The size of a function, or of the graph, after inlining."""

    nodes: int
    size: int


def check_nodes(path: Path, model: Any) -> None:
    """Count the nodes of a model after inlining, without inlining it.

    Raises:
        InvalidArgument: it has too many nodes, or a function that calls itself.
    """
    bodies = {key: one.node for key, one in functions(model).items()}
    sums: dict[Key, _Sum] = {}
    active: list[tuple[Key, Iterator[Key]]] = []
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
                names = " -> ".join(safe_repr(name) for (_, name, _), _ in active[:3])
                given = f"functions with endless recursion, or more than {MAX_DEPTH} nested calls ({names} -> …)"
                raise InvalidArgument(
                    message(str(path), given, f"at most {MAX_DEPTH} nested calls, without recursion", _NOT_TRUSTED)
                )
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


def _own(nodes: Any, bodies: dict[Key, Any]) -> tuple[_Sum, Counter[Key]]:
    """The size of some nodes, and how often they call each function."""
    calls: Counter[Key] = Counter()
    count = 0
    for node in all_nodes(nodes):
        key = key_of(node)
        count += 1
        if key in bodies:
            calls[key] += 1
    return _Sum(count, sum(node.ByteSize() for node in nodes)), calls


def _together(own: _Sum, calls: Counter[Key], sums: dict[Key, _Sum]) -> _Sum:
    """The size after inlining, limited to just above the limits: otherwise the numbers could have a digit for each function."""
    nodes = own.nodes + sum(sums[key].nodes * times for key, times in calls.items())
    size = own.size + sum(sums[key].size * times for key, times in calls.items())
    return _Sum(min(nodes, MAX_NODES + 1), min(size, MAX_NODE_BYTES + 1))
