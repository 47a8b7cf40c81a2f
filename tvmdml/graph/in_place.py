"""Which results take the memory of an input that nobody reads any more: where a run needs the most memory, and only there.

A kernel that works in place is another kernel, so this is done only where it saves memory.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from types import MappingProxyType

import numpy as np

from tvmdml.graph.conditional import CallGuards
from tvmdml.graph.memory import Lifetime, bytes_alive
from tvmdml.graph.nodes import Call, Edge
from tvmdml.graph.program import NodeOutput
from tvmdml.operators._contract import Role, Shared
from tvmdml.tensors.sizes import are_equal

_ROUNDS = 16
"""How often the most memory is reduced. Long chains of equal sizes need two rounds."""


class Pieces:
    """The memory of intermediate results, in pieces: a result in place is in the piece of its input."""

    def __init__(
        self,
        calls: Sequence[Call],
        apart: Collection[NodeOutput],
        inside: Mapping[NodeOutput, Edge] = MappingProxyType({}),
        guards: CallGuards = MappingProxyType({}),
    ) -> None:
        """
        Args:
            calls: in the order of their launches.
            apart: the values that have memory of their own.
            inside: the values that are in the memory of others. They are no pieces; what they are in lives as long as they do.
            guards: what is read before calls, to know whether they run.
        """
        self.guards = guards
        self.shared: dict[Call, Shared] = {}
        """The pairs of each call that works in place."""
        self._calls, self._inside = calls, inside
        self._first: dict[NodeOutput, int] = {}
        self._last: dict[NodeOutput, int] = {}
        for step, call in enumerate(calls):
            conditions = (Edge(*one.condition) for one in guards.get(call, ()))
            for edge in (*call.edges.values(), *conditions):
                if (value := self.outermost(edge).value) in self._first:
                    self._last[value] = step
            for i, tensor in enumerate(call.outputs()):
                if tensor is not None and (value := self.outermost(Edge(call, i)).value) not in apart:
                    self._first.setdefault(value, step)
                    self._last[value] = step
        self._piece = {value: value for value in self._first}

    def outermost(self, edge: Edge) -> Edge:
        """The same memory, of a value that is inside of no other."""
        while (other := self._inside.get(edge.value)) is not None:
            edge = other._replace(offset=other.offset + edge.offset)
        return edge

    def deciding(self) -> set[int]:
        """What conditions are read from, by identity: it is needed although no kernel may read it."""
        return {id(one.condition[0]) for own in self.guards.values() for one in own}

    def reduce(self) -> None:
        """Let calls work in place as long as that reduces the most memory."""
        for _ in range(_ROUNDS):
            alive = bytes_alive(list(self.lifetimes().values()))
            if not len(alive):
                return
            most = np.flatnonzero(alive == alive.max())
            found = {int(step): self._pair(int(step)) for step in most}
            if not all(found.values()):
                return
            for step, pair in found.items():
                assert pair is not None
                self._share(self._calls[step], *pair)

    def lifetimes(self) -> dict[NodeOutput, Lifetime]:
        """Each piece, by the value that it begins as."""
        found: dict[NodeOutput, Lifetime] = {}
        for value, piece in self._piece.items():
            size, first, last = value[0].bytes_of(value[1]), self._first[value], self._last[value]
            known = found.get(piece)
            if known is not None:
                size, first, last = max(size, known.size), min(first, known.first), max(last, known.last)
            found[piece] = Lifetime(size, first, last)
        return found

    def places(self, offsets: Mapping[NodeOutput, int]) -> dict[NodeOutput, int]:
        """Where each value is, from the places of the pieces."""
        return {value: offsets[piece] for value, piece in self._piece.items()}

    def _pair(self, step: int) -> tuple[str, str] | None:
        """An input and an output of a call that can be in the same memory: the input is needed no more."""
        call = self._calls[step]
        if call in self.shared:
            return None
        results = {name: i for i, (name, _) in enumerate(call.desc.tensors(Role.OUTPUT))}
        for source, result in call.desc.shareable():
            edge, made = call.edges[source], (call, results[result])
            mine = edge.value in self._first and made in self._piece and not edge.offset
            if not mine or self._last[edge.value] != step:
                continue
            read = sum(self.outermost(other).value == edge.value for other in call.edges.values())
            if read == 1 and are_equal(edge.source.bytes_of(edge.output), call.bytes_of(results[result])):
                return source, result
        return None

    def _share(self, call: Call, source: str, result: str) -> None:
        results = [name for name, _ in call.desc.tensors(Role.OUTPUT)]
        self.shared[call] = ((source, result),)
        mine, other = (call, results.index(result)), self._piece[call.edges[source].value]
        for value, piece in self._piece.items():
            if piece == mine:
                self._piece[value] = other
