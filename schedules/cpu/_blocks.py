"""Blocks of a move whose source and result have other inner dimensions: vectors are read and written, and permuted in registers.

A block has all elements of some dimensions, a part of others, and one of the rest. It is chosen so that along the dimensions in
which the source is contiguous it has at least a vector, and along the result's, too. Then any permutation is one of a few
registers: blocks of images that become channels, runs that take turns, small matrices that are transposed.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterator, Sequence
from typing import NamedTuple

from tvmdml.kernels.movement import Move
from tvmdml.schedules.cpu._shuffled import RunOffset, Shuffles, shuffles

MOST = 16
"""The most vectors of a block, on either side: each needs a register."""
_LEAST = 4
"""The least elements of a vector."""
_TRIED = 12
"""About so many lengths of a part are tried."""
_FEW = 8
"""So many parts of the result are written in turns: prefetching would read the gaps, too, if the source were read in parts."""
_OWN = 0.25
"""A block's own work, beside that of a vector."""
_ALIKE = 0.1
"""Blocks are taken for equally good if their work differs by less."""

Sizes = tuple[int, ...]


class Block(NamedTuple):
    """A block: it is a part of a kernel's parameters."""

    lanes: int
    extents: Sizes
    """Its elements along each dimension."""
    whole: tuple[bool, ...]
    """Whether these are all."""
    read: Sizes
    """The dimensions along which the source is contiguous in the block, innermost first."""
    written: Sizes
    """The same of the result."""
    inside: Sizes = ()
    """Dimensions of few elements that follow in the source: they are looped over before it leaves the cache."""
    beside: tuple[bool, ...] = ()
    """Of what follows: whether it is where the result's element is, or the same for a whole vector."""

    @property
    def looped(self) -> Sizes:
        """The dimensions that have several blocks, outermost first: the last one is one of which blocks have a part."""
        found = [i for i, whole in enumerate(self.whole) if not whole]
        parts = [i for i in found if self.extents[i] > 1][-1:]
        behind = (*self.inside, *parts)
        return (*(i for i in found if i not in behind), *behind)

    def apart(self, inner: Sizes) -> list[Sizes]:
        """The coordinates of the contiguous runs of a block."""
        return list(itertools.product(*(range(1 if i in inner else n) for i, n in enumerate(self.extents))))

    def vectors(self) -> list[tuple[Sizes, int]]:
        """Where the result's vectors begin: a run's coordinates, and an offset in it."""
        length = self._length(self.written)
        begins = dict.fromkeys(min(i, length - self.lanes) for i in range(0, length, self.lanes))
        return [(at, begin) for at in self.apart(self.written) for begin in begins]

    def coordinates(self, at: Sizes, offset: int) -> Sizes:
        """The coordinates of an element of the result's run."""
        found = list(at)
        for i in self.written:
            offset, found[i] = divmod(offset, self.extents[i])
        return tuple(found)

    def are_lines(self, move: Move) -> bool:
        """Whether each vector of the result is a multiple of vectors behind the beginning, and none overlaps another."""
        own = [n * move.written.steps[i] for i, n in enumerate(self.extents) if i in self.looped]
        rest = (size % n for size, n in zip(move.sizes, self.extents, strict=True))
        return not any(rest) and all(one % self.lanes == 0 for one in (move.written.base, self._length(self.written), *own))

    def shuffles(self) -> Shuffles:
        """How the result's vectors are made of the source's; runs have the numbers of ``apart(read)``."""
        runs = {at: i for i, at in enumerate(self.apart(self.read))}

        def place(at: Sizes) -> RunOffset:
            offset = 0
            for i in reversed(self.read):
                offset = offset * self.extents[i] + at[i]
            return runs[tuple(0 if i in self.read else x for i, x in enumerate(at))], offset

        wanted = [[place(self.coordinates(at, begin + lane)) for lane in range(self.lanes)] for at, begin in self.vectors()]
        return shuffles(wanted, self._length(self.read))

    def _length(self, inner: Sizes) -> int:
        return math.prod(self.extents[i] for i in inner)


def block_of(moves: Sequence[Move], lanes: int) -> Block | None:
    """The best block of a single move without rules, if its source and result do not have whole vectors in common."""
    if len(moves) != 1 or moves[0].rules:
        return None
    (move,) = moves
    read, written = _contiguous(move.sizes, move.read.steps), _contiguous(move.sizes, move.written.steps)
    alike = itertools.takewhile(lambda pair: pair[0] == pair[1], zip(read, written, strict=False))
    alike_length = math.prod(move.sizes[i] for i, _ in alike)
    while lanes >= _LEAST and lanes > alike_length:
        block = _best(move.sizes, read, written, lanes)
        if block is not None:
            return _beside(move, block._replace(inside=_inside(move.sizes, block, read)))
        lanes //= 2
    return None


def _beside(move: Move, block: Block) -> Block | None:
    """The block, if what follows takes elements that are neighbours wherever the result's are, or the same for all of these."""
    found = []
    for one in move.beside:
        own, result = ([steps[i] for i in block.written] for steps in (one.place.steps, move.written.steps))
        if own != result and any(own):
            return None
        found.append(any(own))
    return block._replace(beside=tuple(found))


def _inside(sizes: Sizes, block: Block, read: Sizes) -> Sizes:
    """The next dimensions of the source that blocks have one element of, while they are short."""
    rest = (i for i in read if block.extents[i] == 1)
    return tuple(reversed(list(itertools.takewhile(lambda i: sizes[i] <= _FEW, rest))))


def _contiguous(sizes: Sizes, steps: Sizes) -> Sizes:
    """The dimensions along which elements are neighbours, innermost first."""
    found: list[int] = []
    while True:
        reach = math.prod(sizes[i] for i in found)
        own = next((i for i, step in enumerate(steps) if step == reach and i not in found and sizes[i] > 1), None)
        if own is None:
            return tuple(found)
        found.append(own)


def _best(sizes: Sizes, read: Sizes, written: Sizes, lanes: int) -> Block | None:
    """A small block that takes few loads and stores for all elements."""
    sides = [_needed(sizes, order, lanes) for order in (read, written)]
    if None in sides:
        return None
    whole = {i for side in sides if side is not None for i in side[0]}
    least: dict[int, int] = {}
    for side in sides:
        if side is not None and side[1] not in whole:
            least[side[1]] = max(side[2], least.get(side[1], 1))
    found: list[tuple[float, int, Block]] = []
    for parts in itertools.product(*(_tried(sizes[i], at_least, lanes) for i, at_least in least.items())):
        extents = [n if i in whole else 1 for i, n in enumerate(sizes)]
        for i, n in zip(least, parts, strict=True):
            extents[i] = n
        inner = [_reached(sizes, extents, order) for order in (read, written)]
        total = math.prod(extents)
        vectors = 0
        for own in inner:
            length = math.prod(extents[i] for i in own)
            vectors = max(vectors, total // length * -(-length // lanes))
        blocks = math.prod(-(-n // extent) for n, extent in zip(sizes, extents, strict=True))
        if vectors <= MOST:
            whole_now = tuple(n == extent for n, extent in zip(sizes, extents, strict=True))
            found.append((blocks * (vectors + _OWN), vectors, Block(lanes, tuple(extents), whole_now, inner[0], inner[1])))
    if not found:
        return None
    # Small blocks are compiled sooner.
    limit = (1 + _ALIKE) * min(cost for cost, *_ in found)
    return min((one for one in found if one[0] <= limit), key=lambda one: (one[1], one[0]))[2]


def _needed(sizes: Sizes, order: Sizes, lanes: int) -> tuple[Sizes, int, int] | None:
    """The dimensions that a vector takes as a whole, the one of which it takes a part, and how much of that."""
    length = 1
    for n, i in enumerate(order):
        if length * sizes[i] >= lanes:
            return order[:n], i, -(-lanes // length)
        length *= sizes[i]
    return None


def _tried(size: int, least: int, lanes: int) -> Iterator[int]:
    """Lengths of a part."""
    most = min(size, max(2 * least, lanes))
    tried = {*range(least, most + 1, -(-(most - least + 1) // _TRIED)), most}
    return iter(sorted(tried | ({size} if size <= 2 * lanes else set())))


def _reached(sizes: Sizes, extents: Sequence[int], order: Sizes) -> Sizes:
    """The dimensions along which a block is contiguous: the last one is the first of which it has only a part."""
    found = []
    for i in order:
        if extents[i] > 1:
            found.append(i)
        if extents[i] < sizes[i]:
            break
    return tuple(found)
