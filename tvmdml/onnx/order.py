"""The order of nodes: each after those whose results it reads, as ONNX asks for. Some programs write files in another order.

ONNX Runtime's converter to float16, for example, writes the Cast of an input behind the nodes that read it.
"""

from __future__ import annotations

import heapq
from collections.abc import Callable, Iterable, Sequence
from typing import Any

from tvmdml.errors import safe_repr
from tvmdml.onnx import bounds

Refuse = Callable[[str, str], Exception]
"""Makes an error of what was given, and what is allowed."""


def arrange(model: Any, refuse: Refuse) -> None:
    """Sort the nodes of every graph and function of a model. What is in a circle stays behind all others.

    Raises:
        ModelError: two tensors of a graph, or two functions, have one name.
    """
    if len(bounds.functions(model)) != len(model.functions):
        raise refuse("functions of the same domain, name and overload", "functions that differ in one of them")
    _require_different((one.name for one in model.graph.output), "outputs", refuse)
    read_outside: dict[int, frozenset[str]] = {}
    graphs = list(bounds.graphs(model))
    for graph in reversed(graphs):  # inner ones first
        given = [one.name for one in graph.input]
        weights = {one.name for one in graph.initializer}
        made = _sorted(graph.node, {*given, *weights}, read_outside, refuse)
        read = _read(graph.node, read_outside).union(one.name for one in graph.output)
        read_outside[id(graph)] = frozenset(read.difference(made, given, weights))
    for function in model.functions:
        _require_different(function.input, "inputs of a function", refuse)
        _sorted(function.node, set(function.input), read_outside, refuse)


def _sorted(nodes: Any, given: set[str], read_outside: dict[int, frozenset[str]], refuse: Refuse) -> dict[str, int]:
    """Sort nodes; returns the names of what they make."""
    makers: dict[str, int] = {}
    for i, node in enumerate(nodes):
        for name in node.output:
            if name in makers or name in given:
                raise refuse(f"two tensors named {safe_repr(name)} in one graph", "tensors with different names")
            if name:
                makers[name] = i
    before = [{makers[name] for name in _read([node], read_outside) if name in makers} for node in nodes]
    if any(place >= i for i, places in enumerate(before) for place in places):
        ranks = iter(_ranks(before))
        nodes.sort(key=lambda _: next(ranks))  # which moves the messages, and copies none
    return makers


def _ranks(before: Sequence[set[int]]) -> list[int]:
    """The new place of each node, given which ones come before it: as near to the old one as that allows."""
    readers: list[list[int]] = [[] for _ in before]
    for i, places in enumerate(before):
        for place in places:
            readers[place].append(i)
    missing = [len(places) for places in before]
    ready = [i for i, count in enumerate(missing) if not count]
    found = [0] * len(before)
    rank = 0
    done: set[int] = set()
    while ready:
        i = heapq.heappop(ready)
        done.add(i)
        found[i], rank = rank, rank + 1
        for reader in readers[i]:
            missing[reader] -= 1
            if not missing[reader]:
                heapq.heappush(ready, reader)
    for i in range(len(before)):
        if i not in done:
            found[i], rank = rank, rank + 1
    return found


def _read(nodes: Iterable[Any], read_outside: dict[int, frozenset[str]]) -> set[str]:
    """The names that nodes read, those of the graphs in them included."""
    found: set[str] = set()
    for node in nodes:
        found.update(node.input)
        for graph in bounds.subgraphs([node]):
            found |= read_outside[id(graph)]
    return found


def _require_different(names: Iterable[str], what: str, refuse: Refuse) -> None:
    seen: set[str] = set()
    for name in names:
        if name in seen:
            raise refuse(f"{what} of the same name, {safe_repr(name)}", f"{what} with different names")
        seen.add(name)
