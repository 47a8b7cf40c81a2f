"""Which shuffles of two vectors make the wanted vectors of those that are loaded: elements that vectors share move together.

Elements have a place: the number of a contiguous run, and an offset in it. A wanted vector is a tuple of places. Loads that serve
the same wanted vectors are joined two by two; what is joined holds elements of several wanted vectors side by side, until each has
all of its own. So ``n`` vectors of which each needs elements of ``m`` others take about ``n log2 m`` shuffles, not ``n (m - 1)``.
"""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from typing import NamedTuple

RunOffset = tuple[int, int]
"""A run, and an offset in it."""
VectorLane = tuple[int, int]
"""A wanted vector, and a lane of it."""
Lane = tuple[int, int] | None
"""A vector, and a lane of it; ``None`` for a lane that does not matter."""


class Shuffles(NamedTuple):
    """Vectors are numbered: first those that are loaded, then those that are made."""

    loads: tuple[RunOffset, ...]
    """Where the vectors begin that are loaded."""
    made: tuple[tuple[Lane, ...], ...]
    wanted: tuple[int, ...]
    """The numbers of the wanted vectors."""


def shuffles(wanted: Sequence[Sequence[RunOffset]], length: int) -> Shuffles:
    """How to make vectors of what is in runs of a length."""
    ways = []
    for aligned in (True, False):
        loads, given = _loads(wanted, length, aligned)
        ways += [(loads, _Making(wanted, given, len(loads), join)) for join in (True, False)]
    loads, best = min(ways, key=lambda way: (way[1].count, len(way[0])))
    return Shuffles(loads, tuple(best.made), best.result)


def _loads(
    wanted: Sequence[Sequence[RunOffset]], length: int, aligned: bool
) -> tuple[tuple[RunOffset, ...], list[dict[VectorLane, int]]]:
    """As few loads as a greedy choice finds, one behind the other or anywhere; for each, the lanes in which wanted elements are."""
    lanes = len(wanted[0])
    given: dict[RunOffset, dict[VectorLane, int]] = {}
    for number, places in enumerate(wanted):
        rest = dict(enumerate(places))
        while rest:
            run, offset = min(rest.values())
            own = (run, min(offset - offset % lanes if aligned else offset, length - lanes))

            def serves(load: RunOffset, rest: dict[int, RunOffset] = rest) -> list[int]:
                return [lane for lane, (run, offset) in rest.items() if run == load[0] and 0 <= offset - load[1] < lanes]

            # One that is there already, if it has as many of the elements.
            best = max([*given, own], key=lambda load: len(serves(load)))
            entries = given.setdefault(best, {})
            for lane in serves(best):
                entries[number, lane] = rest.pop(lane)[1] - best[1]
    return tuple(given), list(given.values())


class _Node(NamedTuple):
    """Vectors that hold all the entries of some loads."""

    loads: int
    entries: dict[VectorLane, tuple[int, int]]
    """Where they are: the vector and the lane."""

    def serves(self) -> set[int]:
        """The wanted vectors that it has entries of."""
        return {number for number, _ in self.entries}


class _Making:
    """Makes the vectors, joining those that are loaded or not."""

    def __init__(
        self, wanted: Sequence[Sequence[RunOffset]], given: Sequence[dict[VectorLane, int]], loads: int, join: bool
    ) -> None:
        self.lanes, self.loads = len(wanted[0]), loads
        self.made: list[tuple[Lane, ...]] = []
        self.count = 0
        """The shuffles of two vectors."""
        nodes = [_Node(1, {entry: (i, lane) for entry, lane in own.items()}) for i, own in enumerate(given)]
        while join and (pair := _closest(nodes)) is not None:
            a, b = pair
            nodes = [node for node in nodes if node is not a and node is not b] + [self._joined(a, b)]
        found: dict[VectorLane, tuple[int, int]] = {}
        for node in nodes:
            found |= node.entries
        self.result = tuple(self._vector([found[number, lane] for lane in range(self.lanes)]) for number in range(len(wanted)))

    def _joined(self, a: _Node, b: _Node) -> _Node:
        entries = {**a.entries, **b.entries}
        found: dict[VectorLane, tuple[int, int]] = {}
        group: list[VectorLane] = []
        every = [list(own) for _, own in itertools.groupby(sorted(entries), key=lambda entry: entry[0])]
        for own in [*every, [(-1, 0)] * self.lanes]:
            if len(group) + len(own) > self.lanes:
                vector = self._vector([entries[entry] for entry in group])
                same = {entries[entry][0] for entry in group} == {vector}
                found |= {entry: entries[entry] if same else (vector, lane) for lane, entry in enumerate(group)}
                group = []
            group += own
        return _Node(a.loads + b.loads, found)

    def _vector(self, lanes: list[tuple[int, int]]) -> int:
        """The number of a vector with these lanes; fewer than all may be anywhere in it."""
        sources = list(dict.fromkeys(vector for vector, _ in lanes))
        if len(sources) == 1 and (len(lanes) < self.lanes or [lane for _, lane in lanes] == list(range(self.lanes))):
            return sources[0]
        self.made.append((*lanes, *[None] * (self.lanes - len(lanes))))
        self.count += max(1, len(sources) - 1)
        return self.loads + len(self.made) - 1


def _closest(nodes: Sequence[_Node]) -> tuple[_Node, _Node] | None:
    """The two that serve the most alike vectors; of those the smallest."""
    serves = [node.serves() for node in nodes]
    pairs = [(i, j) for i, j in itertools.combinations(range(len(nodes)), 2) if serves[i] & serves[j]]
    if not pairs:
        return None
    alike = {(i, j): len(serves[i] & serves[j]) / len(serves[i] | serves[j]) for i, j in pairs}
    i, j = max(pairs, key=lambda pair: (alike[pair], -nodes[pair[0]].loads - nodes[pair[1]].loads))
    return nodes[i], nodes[j]
