"""Moves whose source is not contiguous along rows of the result: squares are transposed in registers, and blocks permuted there."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

from tvmdml.kernels import movement
from tvmdml.kernels import tensorir as T
from tvmdml.kernels.formula import Sink, Source
from tvmdml.kernels.movement import Linear, Move, Transfer
from tvmdml.schedules.cpu._blocks import Block
from tvmdml.schedules.cpu._runs import Runs
from tvmdml.schedules.cpu._shuffled import Lane
from tvmdml.schedules.cpu._tiles import SIDE, corner, tiles


class ConstantSource(NamedTuple):
    """A source whose elements are all alike."""

    value: Any
    buffer: Any = None

    def within(self, outer: Sequence[Any]) -> ConstantSource:
        """The same everywhere."""
        return self

    def get(self, at: Sequence[Any], lanes: int = 1) -> Any:
        """The element, or a vector of it."""
        return self.value if lanes == 1 else T.splat(self.value, lanes)


class Across(Runs):  # type: ignore[misc] # mypy knows these modules by another name
    """Base class of what writes kernels of moves."""

    transfer: Transfer
    block: Block | None
    """What is moved at a time, if the way is ``permuted``."""
    fill: Any
    """What elements are that come from nowhere."""

    def each_row(self, begin: Any, end: Any, outer: Sequence[Any], body: Callable[[list[Any]], None]) -> None:
        """Coordinates are divided out once, and then counted up."""
        with T.when(begin < end):
            row = [T.Variable("int64", at) for at in T.unravel(begin, outer)]
            with T.loop(end - begin):
                body([T.let(one.value) for one in row])
                T.count_up(row, outer)

    def beside_of(self, move: Move, outer: Sequence[Any], buffers: Sequence[Any], along: int = 1) -> tuple[Source, ...]:
        """What follows takes beside elements, by the last coordinates."""
        found = []
        for one, last in zip(move.beside, self.last[1:], strict=False):
            steps = one.place.steps[-along:]
            base = T.let(movement.value(one.place, outer) if outer else one.place.base * T.i64(1))
            found.append(Source(buffers[one.tensor], steps if last < 0 else (*steps[:-1], last), base))
        return tuple(found)

    def blocks_of(self, move: Move) -> Any:
        """How many blocks a move has."""
        return T.let(math.prod(self._counts(move), start=T.i64(1)))

    def _counts(self, move: Move) -> list[Any]:
        """How many blocks it has along the dimensions that are looped over."""
        assert self.block is not None
        every = ((move.sizes[i], self.block.extents[i]) for i in self.block.looped)
        return [T.let(T.truncdiv(size + (extent - 1), T.i64(extent))) for size, extent in every]

    def permuted(self, begin: Any, end: Any, move: Move, buffers: Sequence[Any]) -> None:
        """Blocks whose elements are permuted in registers."""
        assert self.block is not None
        block, counts = self.block, self._counts(move)
        looped, extents = block.looped, block.extents
        # Offsets of vectors are multiples of lines where results are streamed.
        lines = self.leaves.misalignment(buffers[move.result], T.i64(0)) == T.i64(0) if self.stream else None

        def one(coordinates: Sequence[Any]) -> None:
            at = {i: T.hold(T.min(x * extents[i], move.sizes[i] - extents[i])) for i, x in zip(looped, coordinates, strict=True)}
            self._block(block, at, move, buffers, lines)

        if not counts:
            with T.loop(end - begin):
                one(())
            return
        *outer, last = counts
        first, behind = T.hold(T.truncdiv(begin, last)), T.hold(T.truncdiv(end + last - 1, last))
        row = T.Variable("int64", first)

        def part(at: list[Any]) -> None:
            now = T.let(row.value * last)
            start, stop = T.hold(T.max(begin - now, T.i64(0))), T.hold(T.min(end - now, last))
            with T.loop(stop - start) as i:
                one((*at, T.let(start + i)))
            row.set(row.value + 1)

        self.each_row(first, behind, outer, part)

    def _block(self, block: Block, origin: Mapping[int, Any], move: Move, buffers: Sequence[Any], lines: Any) -> None:
        found = block.shuffles()

        def placed(linear: Linear, inner: Sequence[int], factor: int = 1) -> Callable[[Sequence[int], int], Any]:
            """Where vectors begin, by the coordinates in the block of the run that they are in, and an offset there."""
            base = linear.base
            for i, x in origin.items():
                base = base + x * linear.steps[i]
            base = T.let(base)

            def place(at: Sequence[int], offset: int) -> Any:
                total = base
                for i, x in enumerate(at):
                    if x and i not in inner:
                        total = total + linear.steps[i] * T.i64(x)
                return T.let(total + T.i64(offset * factor))

            return place

        lanes, runs, source = block.lanes, block.apart(block.read), placed(move.read, block.read)
        vectors = [T.hold(buffers[move.source][T.run(source(runs[run], offset), lanes)]) for run, offset in found.loads]
        for made in found.made:
            vectors.append(_made(vectors, made))
        result = placed(move.written, block.written)
        beside = [
            (buffers[one.tensor], int(along), placed(one.place, block.written, int(along)))
            for one, along in zip(move.beside, block.beside, strict=True)
        ]
        results = []
        for (at, offset), number in zip(block.vectors(), found.wanted, strict=True):
            after = (Source(tensor, (along,), place(at, offset)).get([T.i64(0)], lanes) for tensor, along, place in beside)
            sink = Sink(self.formula, (), (Source(buffers[move.result], (1,), result(at, offset)),))
            results.append((sink, tuple(map(T.hold, self.formula.value(vectors[number], *after)))))

        def stored(how: Callable[[Sink, Any, Any], None]) -> None:
            for sink, values in results:
                how(sink, T.i64(0), values)

        def plainly() -> None:
            stored(lambda sink, at, values: sink.store([at], values))

        plainly() if lines is None else T.either(lines, lambda: stored(self._streamed), plainly)

    def transposed(self, begin: Any, end: Any, move: Move, buffers: Sequence[Any]) -> None:
        """Rows of tiles."""
        *outer, height, width = move.sizes
        groups = [*outer, tiles(height)]
        with T.loop(end - begin) as i:
            *at, tile = T.unravel(begin + i, groups)
            source, comes = movement.value(move.read, at) if at else move.read.base, None
            for rule in move.rules:
                found, inside = movement.resolved(rule, buffers, at or [T.i64(0)])
                source, comes = source + found * rule.step, movement.both(comes, inside)
            place = T.let(movement.value(move.written, at) if at else move.written.base)
            result = Source(buffers[move.result], (move.written.steps[-2], 1), place)
            sources = (Source(buffers[move.source], (1, move.read.steps[-1]), T.let(source)),)
            top, beside = corner(tile, height), self.beside_of(move, at, buffers, 2)

            def copied() -> None:
                self.row_of_tiles(Sink(self.formula, (*sources, *beside), (result,)), top, width)

            def filled() -> None:
                with T.loop(T.i64(SIDE)) as r:
                    alike: Any = ConstantSource(self.fill)
                    row = Sink(self.formula, (alike, *beside), (result,)).within([T.let(top + r)])
                    self.lines(row, T.i64(0), width)

            copied() if comes is None else T.either(comes, copied, filled)


def _made(vectors: Sequence[Any], lanes: Sequence[Lane]) -> Any:
    """A vector of lanes of others, two by two."""
    sources = list(dict.fromkeys(lane[0] for lane in lanes if lane is not None))
    made, several = vectors[sources[0]], len(lanes)
    chosen = [lane[1] if lane is not None and lane[0] == sources[0] else None for lane in lanes]
    if len(sources) == 1:
        return T.hold(T.Shuffle([made], [i if own is None else own for i, own in enumerate(chosen)]))
    for source in sources[1:]:
        picked = []
        for i, (own, lane) in enumerate(zip(chosen, lanes, strict=True)):
            picked.append(several + lane[1] if lane is not None and lane[0] == source else i if own is None else own)
        made = T.hold(T.Shuffle([made, vectors[source]], picked))
        chosen = [None if lane is None else i for i, lane in enumerate(lanes)]
    return made
