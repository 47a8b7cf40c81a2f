"""Reductions of slices whose elements are contiguous on the CPU, or of any others: a vector has elements of one slice."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from typing import Any

from tvmdml.kernels import tensorir_values as T
from tvmdml.kernels.formula import Source
from tvmdml.kernels.reduction import CHAIN, FOLDS, LEVELS, Totals, Values, Walk
from tvmdml.schedules.cpu import per_task, share
from tvmdml.schedules.cpu._ahead import AHEAD, read_ahead
from tvmdml.schedules.cpu._reduction import ReductionWriter, across, from_cell, held, lane_numbers, splat, to_cell, tree, widened
from tvmdml.schedules.cpu._runs import LINE


class SliceVectors(ReductionWriter):  # type: ignore[misc] # mypy knows these modules by another name
    """A slice in vectors."""

    stream: bool
    short: bool
    """Whether a slice is one run, whose elements need only one level of totals."""
    ahead: int
    """The bytes of an element of the input, if that is asked for before it is read: of an input that is read once, what is a few
    lines further; otherwise the slice that is next, in the second walk over one that is in the cache by then."""

    def body(self) -> None:
        if not self.divided:
            per_task(self.tasks, self._in_turns if self.turns else self._slices)
            return
        units = T.let(self.slice_count * self.count)
        for number in range(len(self.walks) + 1):
            per_task(units, lambda unit, number=number: self._phase(unit, number))

    def _slices(self, task: Any) -> None:
        """A task's share of the slices, each from its first walk to its results."""
        begin, end = share(task, self.tasks, self.slice_count)
        self.row = T.let(task * self.length)
        with T.loop(T.let(end - begin)) as i:
            self._at(T.let(begin + i), T.let(begin + i + 1))
            found: list[Any] = []
            for walk in self.walks:
                if self.parts:
                    whole = Totals(walk, self._like(walk, found, 1), 1)
                    with T.loop(self.count) as part:
                        whole.add(self._part(walk, found, part))
                    totals = whole.values
                else:
                    totals = self._part(walk, found, T.i64(0))
                found += map(T.hold, walk.totals(totals, found, self.as_count(1)))
            self._slice_results(found)
            self._each_part(lambda part: self._elements(found, part))

    def _in_turns(self, task: Any) -> None:
        """The same, some slices at a time, which take turns walk by walk: what one waits for, another does meanwhile."""
        begin, end = share(task, self.tasks, self.slice_count)
        finds = sum(walk.found for walk in self.walks)
        slot = T.let(task * self.together)
        cells = T.let(slot * finds + (self.tasks * self.together * self.length if self.keeps == "scratch" else T.i64(0)))
        with T.loop(T.let(T.truncdiv(end - begin + (self.together - 1), self.together))) as number:
            first = T.let(begin + number * self.together)
            count = T.let(T.min(self.together, end - first))
            kinds: list[str] = []
            for walk in (*self.walks, None):
                with T.loop(count) as i:
                    self._at(T.let(first + i), T.let(first + i + self.together))
                    self.row = T.let((slot + i) * self.length)
                    cell = T.let(cells + i * finds)
                    found = [T.hold(from_cell(self.scratch[cell + j], kind)) for j, kind in enumerate(kinds)]
                    if walk is None:
                        self._slice_results(found)
                        self._elements(found, T.i64(0))
                        continue
                    values = [T.hold(one) for one in walk.totals(self._part(walk, found, T.i64(0)), found, self.as_count(1))]
                    for j, value in enumerate(values, len(kinds)):
                        T.store(self.scratch, cell + j, to_cell(value))
                kinds += map(T.scalar_type, values)

    def _each_part(self, body: Callable[[Any], None]) -> None:
        if self.parts:
            with T.loop(self.count) as part:
                body(part)
        else:
            body(T.i64(0))

    def _phase(self, unit: Any, number: int) -> None:
        """A part of a slice in one walk; after the last one, its results. Each task computes anew what earlier walks have found."""
        index = T.hold(T.truncdiv(unit, self.count))
        part = T.let(unit - index * self.count)
        self._at(index)
        found: list[Any] = []
        start = T.i64(0)
        for walk in self.walks[:number]:
            whole = Totals(walk, self._like(walk, found, 1), 1)
            with T.loop(self.count) as one:
                at = T.let(start + (index * self.count + one) * walk.states)
                kinds = map(T.scalar_type, whole.identity)
                whole.add(tuple(T.hold(from_cell(self.scratch[at + i], kind)) for i, kind in enumerate(kinds)))
            found += map(T.hold, walk.totals(whole.values, found, self.as_count(1)))
            start = T.let(start + self.slice_count * self.count * walk.states)
        if number < len(self.walks):
            walk = self.walks[number]
            for i, value in enumerate(self._part(walk, found, part)):
                T.store(self.scratch, start + unit * walk.states + i, to_cell(value))
            return
        with T.when(part == T.i64(0)):
            self._slice_results(found)
        self._elements(found, part)

    def _at(self, index: Any, later: Any = None) -> None:
        """Where the elements of a slice are, and those of the first input in a later one."""
        at = T.unravel(index, self.outer)
        self.clear()
        for i, (name, (outer, inner)) in enumerate(self.steps.items()):
            base = T.let(T.dot(at, outer))
            if name not in self.operand_names:
                self.ends.append(Source(self.buffers[name], (), base))
                continue
            last = self.last[i]
            steps = (*inner[:-1], inner[-1] if last < 0 else last)
            (self.sinks if name in self.desc.EACH else self.sources).append(Source(self.buffers[name], steps, base))
        if self.ahead and later is not None and len(self.walks) > 1:
            first, outer = self.sources[0], next(iter(self.steps.values()))[0]
            self.later = first._replace(base=T.let(T.dot(T.unravel(later, self.outer), outer)))

    def _slice_results(self, found: list[Any]) -> None:
        if self.slices:
            self.results(self.ends, [], self.desc.slice_results(*found, self.as_count(1)), self.slices)

    def _like(self, walk: Walk, found: list[Any], lanes: int) -> Values:
        """Values of a walk at the first elements, for their types."""
        at = [T.i64(0)] * self.ranks[1]
        position = self._position(T.i64(0), lanes)
        return tuple(map(T.hold, walk.values(widened(found, lanes), position, self.read(self.sources, at, lanes))))

    def _kept(self, at: list[Any], position: Any, lanes: int) -> tuple[Any, Any]:
        """Where a vector that a walk keeps is: at its result's place, or in a task's row, at the beginning of its cells."""
        if self.keeps == "output":
            return self.sinks[0].buffer, self.sinks[0].place(at, lanes)
        return T.view(self.scratch.data, self.desc.computed), T.run(self.row + position + at[-1], lanes)

    def _position(self, place: Any, lanes: int) -> Any:
        first = T.cast(place, self.position)
        return T.ramp(first, T.const(1, self.position), lanes) if lanes > 1 else first

    def _runs(self, part: Any) -> Iterator[tuple[list[Any], Any, Any, Any]]:
        """The runs of a part: outer coordinates, first and last place in the last dimension, position of the row."""
        *outer, last = self.inner
        if self.short:
            yield [], T.i64(0), last, T.i64(0)
            return
        per_row = T.let(T.truncdiv(last + (self.chunk - 1), self.chunk))
        units = T.let(math.prod(outer, start=per_row))
        begin, end = share(part, self.count, units) if self.parts else (T.i64(0), units)
        with T.loop(T.let(end - begin)) as i:
            row = T.hold(T.truncdiv(begin + i, per_row))
            start = T.let((begin + i - row * per_row) * self.chunk)
            yield T.unravel(row, outer), start, T.let(T.min(start + self.chunk, last)), T.let(row * last)

    def _part(self, walk: Walk, found: list[Any], part: Any) -> Values:
        """What the elements of a part come to."""
        lanes, last = self.lanes, self.inner[-1]
        group, wide = lanes * self.vectors, widened(found, lanes)
        like = self._like(walk, found, lanes)
        totals = [Totals(walk, like, 1) for _ in range(self.vectors)]
        upper = Totals(walk, like, LEVELS - 1)
        rounds, folds = T.Variable("int64", T.i64(0)), T.Variable("int64", T.i64(0))

        def fold() -> None:
            upper.add(tree(walk, [one.values for one in totals]))
            for one in totals:
                one.reset()
            folds.set(folds.value + 1)
            upper.fold_after(folds.value, FOLDS)
            rounds.set(T.i64(0))

        for at, start, stop, position in self._runs(part):

            def values(place: Any, at: Any = at, position: Any = position) -> Values:
                elements = self.read(self.sources, [*at, place], lanes)
                found = walk.values(wide, self._position(position + place, lanes), elements)
                if self.keeps and walk.kept:
                    held = T.hold(found[0])
                    T.store(*self._kept([*at, place], position, lanes), held)
                    return (held, *found[1:])
                return found

            whole = T.let(T.truncdiv(stop - start, T.i64(group)))
            with T.loop(whole) as i:
                for v, total in enumerate(totals):
                    place = T.let(start + i * group + v * lanes)
                    self._ask_ahead(at, place, v, walk)
                    total.add(values(place))
            done = T.let(start + whole * group)
            with T.loop(T.let(T.truncdiv(stop - done + (lanes - 1), T.i64(lanes)))) as j:
                first = T.let(done + j * lanes)
                place = T.let(T.min(first, last - lanes))
                new = lane_numbers(lanes) >= splat(T.cast(first - place, "int32"), lanes)
                some = zip(values(place), totals[0].identity, strict=True)
                totals[0].add(tuple(T.select(new, value, none) for value, none in some), in_order=False)
            if not walk.exact and not self.short:
                rounds.set(rounds.value + whole + 1)
                with T.when(rounds.value >= CHAIN):
                    fold()
        found_values = tree(walk, [one.values for one in totals])
        if not walk.exact and not self.short:
            found_values = held(walk.combine(upper.values, found_values))
        return across(walk, found_values, lanes)

    def _ask_ahead(self, at: Sequence[Any], place: Any, v: int, walk: Walk) -> None:
        """Ask for a line of the input when a vector of a group is read."""
        if not self.ahead or v * self.lanes * self.ahead % LINE:
            return
        if len(self.walks) == 1:
            read_ahead(self.sources[0].buffer, self.sources[0].place([*at, place]) + AHEAD // self.ahead)
        elif walk is self.walks[1]:
            read_ahead(self.later.buffer, self.later.place([*at, place]))
            if not self.keeps and not self.stream:
                for sink in self.sinks:
                    read_ahead(sink.buffer, sink.place([*at, place]))

    def _elements(self, found: list[Any], part: Any) -> None:
        """The results of the elements of a part. The last vector of a row begins earlier: with elements that are done already."""
        if not self.outputs:
            return
        for at, start, stop, position in self._runs(part):
            if self.stream:
                self._streamed_run(found, at, start, stop, position)
                continue
            if self.keeps != "output":
                with T.loop(T.let(T.truncdiv(stop - start + (self.lanes - 1), T.i64(self.lanes)))) as i:
                    place = T.let(T.min(start + i * self.lanes, self.inner[-1] - self.lanes))
                    self._put(found, at, place, position)
                continue
            whole = T.let(T.truncdiv(stop - start, T.i64(self.lanes)))
            with T.loop(whole) as i:
                self._put(found, at, T.let(start + i * self.lanes), position)
            done = T.let(start + whole * self.lanes)
            with T.when(done < stop):
                place = T.let(stop - self.lanes)
                new = lane_numbers(self.lanes) >= splat(T.cast(done - place, "int32"), self.lanes)
                self._put(found, at, place, position, new=new)
        if self.stream:
            self.leaves.fence()

    def _streamed_run(self, found: list[Any], at: list[Any], start: Any, stop: Any, position: Any) -> None:
        """Whole lines past the caches. Vectors before the first and behind the last one have elements of these, too."""
        ((_, tensor),) = self.outputs
        lines, (sink,) = LINE // tensor.data_type.itemsize, self.sinks
        before = T.truncdiv(self.leaves.misalignment(sink.buffer, sink.place([*at, start])), T.i64(tensor.data_type.itemsize))
        head = T.let(T.min(T.Select(before > T.i64(0), T.i64(lines) - before, T.i64(0)), stop - start))
        whole = T.let(T.truncdiv(stop - start - head, T.i64(lines)))
        done = T.let(start + head + whole * lines)
        for first, end in ((start, T.let(start + head)), (done, stop)):
            with T.loop(T.let(T.truncdiv(end - first + (self.lanes - 1), T.i64(self.lanes)))) as i:
                self._put(found, at, T.let(T.max(T.min(first + i * self.lanes, end - self.lanes), T.i64(0))), position)
        with T.loop(whole) as i:
            self._put(found, at, T.let(start + head + i * lines), position, lines)

    def _put(self, found: list[Any], at: list[Any], place: Any, position: Any, line: int = 0, new: Any = None) -> None:
        """A vector of results; a whole line past the caches, if there is one. Without ``new`` a lane is as it was."""
        lanes = line or self.lanes
        kept = None
        if self.keeps:
            buffer, run = self._kept([*at, place], position, lanes)
            kept = T.hold(buffer[run])
        elements = self.read(self.sources, [*at, place], lanes)
        values = self.desc.element_of(self._position(position + place, lanes), elements, widened(found, lanes), kept)
        if new is not None:
            (value,) = values if isinstance(values, tuple) else (values,)
            values = T.select(new, value, kept)
        if line:
            ((sink,), (value,)) = self.sinks, self.desc.results_of(values, self.outputs)
            self.leaves.stream(sink.buffer, sink.place([*at, place]), T.hold(value))
        else:
            self.results(self.sinks, [*at, place], values, self.outputs)
