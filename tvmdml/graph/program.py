"""``Program``: what a graph computes for some outputs, as the passes rewrite it."""

from __future__ import annotations

import heapq
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from typing import Any, NamedTuple, Protocol

import numpy as np

from tvmdml.graph.nodes import Call, Constant, Edge, Input, Node
from tvmdml.operators._contract import Operator
from tvmdml.tensors import PRECISIONS, TensorDesc

NodeOutput = tuple[Node, int]
"""The memory of a node's output."""


OutputForm = tuple["np.dtype[Any]", tuple[int, ...]]
"""The type and shape of an output for callers."""


class Use(NamedTuple):
    """A place where a value is read."""

    call: Call
    """The reader."""
    name: str
    """The input tensor's name."""


class ProgramOutput(NamedTuple):
    """One output of the program: row-major without gaps, at the start of the memory of an edge."""

    edge: Edge
    desc: TensorDesc


class Fusion(NamedTuple):
    """One call in the place of several."""

    calls: list[Call]
    """Those that it does the work of, in order."""
    desc: Operator
    edges: Mapping[str, Edge]
    """What it reads."""
    values: Mapping[NodeOutput, int]
    """Which of its outputs each value of the calls is that is still read."""


class Program:
    """Calls in an order that respects their edges, and the edges that are the outputs.

    A pass changes ``calls`` and ``results``, with ``replace``, ``forget`` and ``fuse``; ``note`` says what became of a call.
    """

    def __init__(self, calls: Iterable[Call], results: Iterable[ProgramOutput], precision: str = PRECISIONS[0]) -> None:
        self.results, self.precision = list(results), precision
        copies: dict[int, Call] = {}
        self.calls: list[Call] = []
        for call in calls:
            edges = {name: _mapped(edge, copies) for name, edge in call.edges.items()}
            copies[id(call)] = Call(call.desc, edges, call.name, call.where, origins=call.origins)
            self.calls.append(copies[id(call)])
        self.results = [one._replace(edge=_mapped(one.edge, copies)) for one in self.results]
        self.notes: dict[Call, str] = {}
        """What became of each call of the graph, for those that have no kernel of their own."""

    def nodes(self) -> Iterator[Node]:
        """The inputs and constants that are read, each once."""
        seen: set[int] = set()
        edges = [edge for call in self.calls for edge in call.edges.values()] + [one.edge for one in self.results]
        for edge in edges:
            if not isinstance(edge.source, Call) and id(edge.source) not in seen:
                seen.add(id(edge.source))
                yield edge.source

    def inputs(self) -> list[Input]:
        """The inputs that are read."""
        return [node for node in self.nodes() if isinstance(node, Input)]

    def constants(self) -> list[Constant]:
        """The constants that are read."""
        return [node for node in self.nodes() if isinstance(node, Constant)]

    def uses(self) -> dict[NodeOutput, list[Use]]:
        """Who reads each value that is read at all; results are not among the readers."""
        found: dict[NodeOutput, list[Use]] = {}
        for call in self.calls:
            for name, edge in call.edges.items():
                found.setdefault(edge.value, []).append(Use(call, name))
        return found

    def kept(self) -> set[NodeOutput]:
        """The values that are results."""
        return {one.edge.value for one in self.results}

    def replace(self, values: Mapping[NodeOutput, Edge]) -> None:
        """Let all readers read other memory: offsets are added. Chains of replacements are followed."""
        if not values:
            return

        def found(edge: Edge) -> Edge:
            while (other := values.get(edge.value)) is not None:
                edge = other._replace(offset=other.offset + edge.offset)
            return edge

        nodes = {id(node) for node, _ in values}  # quicker to ask for than a value
        for call in self.calls:
            for name, edge in call.edges.items():
                if id(edge.source) in nodes:
                    call.edges[name] = found(edge)
        self.results = [one._replace(edge=found(one.edge)) for one in self.results]

    def forget(self, calls: Iterable[Call], note: str) -> None:
        """Drop calls whose results nobody reads any more."""
        gone = set(map(id, calls))
        for call in self.calls:
            if id(call) in gone:
                self.note(call, note)
        self.calls = [call for call in self.calls if id(call) not in gone]

    def note(self, call: Call, text: str) -> None:
        """Say what became of the calls of the graph that a call does the work of."""
        for origin in call.origins:
            self.notes[origin] = text

    def fuse(self, calls: list[Call], desc: Operator, edges: Mapping[str, Edge], values: Mapping[NodeOutput, int]) -> Call:
        """Put one call in the place of several, as ``fuse_all`` does."""
        (found,) = self.fuse_all([Fusion(calls, desc, edges, values)])
        return found

    def fuse_all(self, fusions: Iterable[Fusion]) -> list[Call]:
        """Put one call in the place of several, at the place of the last one, any number of times. None may take part in two."""
        found: list[Call] = []
        instead: dict[Call, Call | None] = {}
        values: dict[NodeOutput, Edge] = {}
        for calls, desc, edges, own in fusions:
            last = calls[-1]
            origins = tuple(origin for call in calls for origin in call.origins)
            fused = Call(desc, edges, last.name, last.where, origins=origins)
            instead |= dict.fromkeys(calls)
            instead[last] = fused
            values |= {value: Edge(fused, output) for value, output in own.items()}
            found.append(fused)
        calls_now = (instead.get(call, call) for call in self.calls)
        self.calls = [call for call in calls_now if call is not None]
        self.replace(values)
        return found


class Finished(NamedTuple):
    """A graph after all passes: what is compiled, and saved."""

    name: str
    inputs: list[Input]
    """All inputs, in the order in which callers give them."""
    program: Program
    forms: list[OutputForm]
    """Of the outputs."""


def _mapped(edge: Edge, copies: Mapping[int, Call]) -> Edge:
    return edge._replace(source=copies[id(edge.source)]) if isinstance(edge.source, Call) else edge


class HasEdge(Protocol):
    """A ``ProgramOutput``, or an expression."""

    @property
    def edge(self) -> Edge:
        """The memory."""
        ...


def needed(calls: Iterable[Call], results: Iterable[HasEdge]) -> list[Call]:
    """The calls that some results depend on, in order."""
    wanted = {id(one.edge.source) for one in results}
    found = []
    for call in reversed(list(calls)):
        if id(call) in wanted:
            wanted.update(id(edge.source) for edge in call.edges.values())
            found.append(call)
    return found[::-1]


def ordered(before: Sequence[Collection[int]], ranks: Sequence[int]) -> Iterator[int]:
    """Numbers in an order in which each comes after all those that must be before it; otherwise the lowest rank is first."""
    after: list[list[int]] = [[] for _ in before]
    for i, some in enumerate(before):
        for one in some:
            after[one].append(i)
    left = [len(some) for some in before]
    ready = [(ranks[i], i) for i, count in enumerate(left) if not count]
    heapq.heapify(ready)
    while ready:
        _, i = heapq.heappop(ready)
        yield i
        for one in after[i]:
            left[one] -= 1
            if not left[one]:
                heapq.heappush(ready, (ranks[one], one))
