"""Moves whose source is not contiguous along rows of the result: squares are transposed in registers, and runs take turns there."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

from tvmdml.kernels import movement
from tvmdml.kernels import tensorir as T
from tvmdml.kernels.formula import Sink, Source
from tvmdml.kernels.movement import Move, Transfer
from tvmdml.schedules.cpu._runs import Runs
from tvmdml.schedules.cpu._tiles import SIDE, corner, tiles
from tvmdml.schedules.cpu._woven import unwoven, woven


class Constant(NamedTuple):
    """A source whose elements are all alike."""

    value: Any
    buffer: Any = None

    def within(self, outer: Sequence[Any]) -> Constant:
        """The same everywhere."""
        return self

    def get(self, at: Sequence[Any], lanes: int = 1) -> Any:
        """The element, or a vector of it."""
        return self.value if lanes == 1 else T.splat(self.value, lanes)


class Across(Runs):  # type: ignore[misc] # mypy knows these modules by another name
    """Base class of what writes kernels of moves."""

    transfer: Transfer
    runs: int
    """How many runs take turns, if the way is ``woven``."""
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

    def in_turns(self, begin: Any, end: Any, move: Move, buffers: Sequence[Any]) -> None:
        """Runs that take turns."""
        *outer, _, length = move.sizes
        into = self.last[0] == 1
        # Of what follows, whether each run has elements of its own, or one element.
        along = [int(one.place.steps[-1] != 0) for one in self.transfer.moves[0].beside]

        def row(at: list[Any]) -> None:
            source, place = (T.let(movement.value(one, at) if at else one.base) for one in (move.read, move.written))
            with T.loop(T.let(T.truncdiv(length + (self.lanes - 1), T.i64(self.lanes)))) as i:
                x = T.hold(T.min(i * self.lanes, length - self.lanes))
                one, many = (source, place) if into else (place, source)
                step = (move.read if into else move.written).steps[-2]
                apart = [T.run(T.let(one + step * r + x), self.lanes) for r in range(self.runs)]
                joined = [T.run(T.let(many + x * self.runs + r * self.lanes), self.lanes) for r in range(self.runs)]
                given, taken, weave = (apart, joined, woven) if into else (joined, apart, unwoven)
                values = weave([T.let(buffers[move.source][own]) for own in given])
                for r, (own, value) in enumerate(zip(taken, values, strict=True)):
                    beside = []
                    for one, is_along in zip(move.beside, along, strict=True):
                        base = T.let(movement.value(one.place, at) if at else one.place.base * T.i64(1))
                        first = x * self.runs + r * self.lanes if into else x
                        if not into:
                            base = T.let(base + one.place.steps[-2] * r)
                        beside.append(Source(buffers[one.tensor], (is_along,), base).get([T.let(first)], self.lanes))
                    T.store(buffers[move.result], own, *self.formula.value(value, *beside))

        self.each_row(begin, end, outer, row)

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
                    alike: Any = Constant(self.fill)
                    row = Sink(self.formula, (alike, *beside), (result,)).within([T.let(top + r)])
                    self.lines(row, T.i64(0), width)

            copied() if comes is None else T.either(comes, copied, filled)
