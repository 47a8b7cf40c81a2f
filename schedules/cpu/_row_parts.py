"""A row of a move: its elements that come from the source one after the other, one by one, or from nowhere."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

from tvmdml.kernels import movement
from tvmdml.kernels import tensorir as T
from tvmdml.kernels.formula import Formula, Sink, Source
from tvmdml.kernels.movement import CoordinateRule, Move
from tvmdml.schedules.cpu._across import Across, ConstantSource
from tvmdml.schedules.cpu._ahead import ROWS, ask, read_ahead, write_ahead
from tvmdml.schedules.cpu._arranged import has_along, pieced_by
from tvmdml.schedules.cpu._picked import AT_ONCE, KEPT, alike, picked


class MovedRow(NamedTuple):
    """A row of a move: what is the same for all its elements."""

    move: Move
    outer: Sequence[Any]
    buffers: Sequence[Any]
    source: Any
    """The offset of the source's element without the rules along the row."""
    result: Source
    comes: Any
    """Whether its elements come from the source, as far as that is the same for all; ``None``: they do."""
    beside: tuple[Source, ...] = ()
    """What follows takes these, too."""

    def sink(self, formula: Formula, *sources: Any) -> Sink:
        """Where its elements go: those of a source, if one is given, or else those that are put."""
        return Sink(formula, (*sources, *self.beside), (self.result,))


class RowsWriter(Across):  # type: ignore[misc] # mypy knows these modules by another name
    """Base class of what writes kernels of moves: rows."""

    way: str
    tuples: str
    """The type in which many indices of a row are compared at once; empty if they are not contiguous."""
    offsets: str
    """The type that the offsets of what they mean fit into."""
    columns: int
    """How many columns of the source at a time are copied to scratch memory, where their elements are looked up; 0 for none."""
    along: int
    """The source's step along a row, beside what is looked up, where the code depends on it, else -1."""
    far: int
    """How many elements before one its index is asked for; 0 if a second-level cache has the indices."""
    unit: bool
    """Whether what is looked up are offsets: the source's steps there are 1."""

    def row(self, move: Move, outer: Sequence[Any], buffers: Sequence[Any]) -> MovedRow:
        source, comes = movement.value(move.read, outer) if outer else move.read.base, None
        for rule, known in zip(move.rules, self.transfer.moves[0].rules, strict=True):
            if not known.follows(-1):
                found, inside = movement.resolved(rule, buffers, outer or [T.i64(0)])
                source, comes = source + found * rule.step, movement.both(comes, inside)
        place = T.let(movement.value(move.written, outer) if outer else move.written.base)
        step = move.written.steps[-1] if self.last[-1] < 0 else self.last[-1]
        result = Source(buffers[move.result], (step,), place)
        return MovedRow(move, outer, buffers, T.let(source), result, comes, self.beside_of(move, outer, buffers))

    def run(self, row: MovedRow, start: Any, stop: Any) -> None:
        """Elements of a row."""
        if row.comes is None:
            self._inside(row, start, stop)
        else:
            T.either(row.comes, lambda: self._inside(row, start, stop), lambda: self._filled(row, start, stop))

    def _inside(self, row: MovedRow, start: Any, stop: Any) -> None:
        known = self.transfer.moves[0]
        pieced = pieced_by(known)
        if pieced is not None:
            self._pieces(row, row.move.rules[known.rules.index(pieced)], start, stop)
        elif has_along(known):
            self.each(row, start, stop)
        else:
            self._copied(row, row.source, row.move.read.steps[-1], start, stop)

    def _copied(self, row: MovedRow, base: Any, step: Any, start: Any, stop: Any) -> None:
        """Elements that are a step apart."""
        step = step if self.last[0] < 0 else self.last[0]
        sink = row.sink(self.formula, Source(row.buffers[row.move.source], (step,), T.let(base)))
        apart = self.last[0] if self.last[-1] == 1 and self.last[0] > 1 else 0
        (self.lines if self.way == "lines" else self._apart if apart else self.elements)(sink, start, stop)

    def _apart(self, sink: Sink, start: Any, stop: Any) -> None:
        """Elements that are a few steps apart: all of them are read, and some taken."""
        (source, *beside), apart, lanes = sink.sources, self.last[0], self.lanes
        finished = sink._replace(sources=tuple(beside))
        # Behind the last element there may be none.
        whole = T.let(T.max(T.truncdiv(stop - start - 1, T.i64(lanes)), T.i64(0)))
        with T.loop(whole) as i:
            x = T.let(start + i * lanes)
            several = T.hold(source.buffer[T.run(T.let(source.place([x])), apart * lanes)])
            finished.put([x], T.Shuffle([several], [apart * lane for lane in range(lanes)]))
        self.elements(sink, T.let(start + whole * lanes), stop)

    def _filled(self, row: MovedRow, start: Any, stop: Any) -> None:
        contiguous = self.last[-1] == 1 and all(one in (0, 1) for one in self.last[1:])
        (self.lines if contiguous else self.elements)(row.sink(self.formula, ConstantSource(self.fill)), start, stop)

    def each(self, row: MovedRow, start: Any, stop: Any) -> None:
        """Each element by itself, as all rules say; many indices at once if they are contiguous."""
        sink = row.sink(self.formula)
        if self.tuples:
            if self.stream:
                past, _ = self._past(sink, start, T.let(stop - start))
                head = T.let(T.min(T.truncmod(self.lanes - past, T.i64(self.lanes)), stop - start))
                self._one_by_one(row, sink, start, T.let(start + head))
                start = T.let(start + head)
            rules = [rule for rule, known in zip(row.move.rules, self.transfer.moves[0].rules, strict=True) if known.follows(-1)]
            along = [(rule, row.buffers) for rule in rules]
            rounds = T.let(T.truncdiv(T.max(stop - start, T.i64(0)), T.i64(AT_ONCE)))
            at_once = KEPT // AT_ONCE
            with T.loop(T.truncdiv(rounds + (at_once - 1), T.i64(at_once))) as i:
                first = T.let(start + i * KEPT)
                self._some_vectors(row, sink, along, first, T.let(T.min(rounds - i * at_once, T.i64(at_once))))
            start = T.let(start + rounds * AT_ONCE)
        self._one_by_one(row, sink, start, stop)

    def _one_by_one(self, row: MovedRow, sink: Sink, start: Any, stop: Any) -> None:
        with T.loop(stop - start) as i:
            x = T.let(start + i)
            offset, comes = row.source + x * row.move.read.steps[-1], None
            for rule, known in zip(row.move.rules, self.transfer.moves[0].rules, strict=True):
                if known.follows(-1):
                    found, inside = movement.resolved(rule, row.buffers, [*row.outer, x])
                    offset, comes = offset + found * rule.step, movement.both(comes, inside)
            found = row.buffers[row.move.source][T.let(offset)]
            sink.put([x], found if comes is None else T.Select(comes, T.let(found), self.fill))

    def _some_vectors(self, row: MovedRow, sink: Sink, along: Sequence[tuple[CoordinateRule, Any]], first: Any, count: Any) -> None:
        """Elements that some vectors of indices mean. A single index for each is mostly in range, and taken as it is."""

        def each(offset: Callable[[Any], Any]) -> None:
            with T.loop(count) as j:
                own = T.let(j * AT_ONCE)
                if self.far:
                    self._asked(row, along, T.let(first + own))
                self._looked_up(row, sink, T.let(first + own), own, offset)

        def computed() -> None:
            kept = T.local(self.offsets, KEPT)
            with T.loop(count) as j:
                own = T.let(j * AT_ONCE)
                x = [*row.outer, T.let(first + own)]
                T.store(kept, T.run(own, AT_ONCE), picked(along, x, self.tuples, self.offsets, self.unit))
            each(lambda place: T.cast(kept[place], "int64"))

        look = along[0][0].look
        assert look is not None
        if len(along) > 1 or not self.leaves.has("bits"):
            computed()
            return
        indices = row.buffers[look.tensor]
        place = T.let(movement.value(look.place, [*row.outer, first]))
        fits, again, more = alike(self.leaves, indices, place, count, along[0][0].size, self.tuples)
        step = T.i64(1) if self.unit else along[0][0].step
        T.either(fits, lambda: each(lambda place: (T.cast(indices[again + place], "int64") + more) * step), computed)

    def _asked(self, row: MovedRow, along: Sequence[tuple[CoordinateRule, Any]], x: Any) -> None:
        """Ask for indices further on, and for the next row of the source, if each row has one."""
        first, buffers = along[0]
        assert first.look is not None
        outer, far = list(row.outer), T.let(x + self.far)
        if self.columns:  # some elements of this row, and then of the next ones
            outer, far = [*row.outer[:-1], T.let(row.outer[-1] + ROWS)], x
        place = T.let(movement.value(first.look.place, [*outer, far]))
        ask(read_ahead, buffers[first.look.tensor], place, AT_ONCE * len(along))
        if self.columns:
            ask(write_ahead, row.result.buffer, T.let(row.result.place([x]) + ROWS * row.move.written.steps[-2]), AT_ONCE)
        if self.unit and self.along == 0 and len(along) == 1:
            ask(read_ahead, row.buffers[row.move.source], T.let(row.source + first.size + x), AT_ONCE)

    def _looked_up(self, row: MovedRow, sink: Sink, x: Any, first: Any, offset: Callable[[Any], Any]) -> None:
        """Elements with these offsets, from the first one on."""
        source, step = row.buffers[row.move.source], row.move.read.steps[-1] if self.along < 0 else T.i64(self.along)
        places = [T.let(self.leaves.apart(T.let(offset(first + lane)))) for lane in range(AT_ONCE)]
        found = [source[T.let(row.source + (x + lane) * step + place)] for lane, place in enumerate(places)]
        if self.formula.key or self.last[-1] == 1:
            # A vector is stored in one go, and has what follows.
            several = self.leaves.together([T.let(one) for one in found])
            if self.stream:
                self._streamed(sink, x, sink.values([x], several))
            else:
                sink.put([x], several)
            return
        for lane, one in enumerate(found):
            T.store(row.result.buffer, row.result.place([T.let(x + lane)]), one)

    def _pieces(self, row: MovedRow, rule: CoordinateRule, start: Any, stop: Any) -> None:
        """The part of a row that is inside of the source, and what is around it."""
        kind, n, zero = rule.kind, rule.size, T.i64(0)
        first = T.let(
            movement.value(rule.at, row.outer) if row.outer else rule.at.base
        )  # the coordinate of the row's first element
        looked = None
        if rule.look is not None:
            place = movement.value(rule.look.place, row.outer) if row.outer else rule.look.place.base
            looked = T.let(row.buffers[rule.look.tensor][place])
        step, along = row.move.read.steps[-1], rule.at.steps[-1]
        sink, source = row.sink(self.formula), row.buffers[row.move.source]

        def clipped(bound: Any) -> Any:
            return T.hold(T.max(start, T.min(stop, bound)))

        if kind == movement.TURNED:
            length = T.let(movement.length(looked, n))
            behind = clipped(length - first)
            # From the last element of the sequence back to its first one; behind it, forwards.
            back = T.let(row.source + (length - 1 - first) * rule.step)
            with T.loop(behind - start) as i:
                x = T.let(start + i)
                sink.put([x], source[back + x * (step - rule.step)])
            self._copied(row, row.source + first * rule.step, step + rule.step, behind, stop)
            return
        if kind == movement.WHOLE:
            self._filled(row, start, stop)
            divisor = rule.divisor
            low = T.hold(T.truncdiv(T.max(first + start, zero) + divisor - 1, divisor))
            high = T.hold(T.min(n, T.truncdiv(T.max(first + stop, zero) + divisor - 1, divisor)))
            with T.loop(T.let(T.max(high - low, zero))) as i:
                quotient = T.let(low + i)
                x = T.let(quotient * divisor - first)
                sink.put([x], source[row.source + x * step + quotient * rule.step])
            return
        if kind == movement.EQUAL:
            self._filled(row, start, stop)
            place = T.let(movement.normalized(looked, n) - first)
            # The index itself is in range; a row has all of these places, or a task some of them.
            with T.when((place >= start) & (place < stop)):
                sink.put([place], source[row.source + place * step])
            return
        low = clipped(T.truncdiv(T.max(zero - first, zero) + along - 1, along))
        high = T.hold(T.max(low, clipped(T.truncdiv(T.max(n - first, zero) + along - 1, along))))
        around = self._filled if kind in movement.FILLS else self.each
        with T.when(start < low):
            around(row, start, low)
        with T.when(low < high):
            self._copied(row, row.source + first * rule.step, step + rule.step * along, low, high)
        with T.when(high < stop):
            around(row, high, stop)
