"""Places of the largest or smallest elements of slices on the CPU: each lane has its best one, and where the vector with it began.

Lanes are combined at the end of a slice, or of a group of as many slices as there are lanes: those of all are combined together,
which takes a few instructions for each slice. NaN are only noted meanwhile; if there are any, slices are gone over once more.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from types import SimpleNamespace
from typing import Any, NamedTuple

from tvmdml.kernels import tensorir_values as T
from tvmdml.kernels.reduction import LAST, Values, Walk
from tvmdml.schedules.cpu import per_task, share
from tvmdml.schedules.cpu._lanes import folded, joined
from tvmdml.schedules.cpu._reduction import CELL, bits, splat, tree
from tvmdml.schedules.cpu._reduction_rows import SliceVectors


class _Best(NamedTuple):
    """Of each lane."""

    value: Any
    place: Any


class ExtremePlaces(SliceVectors):  # type: ignore[misc] # mypy knows these modules by another name
    """Slices whose extremes' places are sought."""

    grouped: bool
    """Whether slices come in groups."""

    def body(self) -> None:
        if self.grouped:
            per_task(self.tasks, self._groups)
        else:
            super().body()

    def _part(self, walk: Walk, found: list[Any], part: Any) -> Values:
        if walk.extreme is None:
            return super()._part(walk, found, part)
        self._begin(walk)
        nan = self._no_nan()
        best = self._sought(part, nan)
        value = T.Variable(T.scalar_type(self.identity), folded(best.value, self._further))
        everywhere = splat(T.hold(value.value), self.lanes)
        none = T.like(self.zero, self.nowhere)
        places = T.Variable(T.type_of(self.zero), T.Select(T.expression(best.value == everywhere), best.place, none))

        def seek_nan(values: list[Any], begin: Any) -> None:
            for v, x in enumerate(values):
                here = self._here(begin, v)
                places.set(T.Select(T.is_nan(x), self.nearest(places.value, here), places.value))

        if nan is not None:
            any_nan = folded(nan.value, T.max)
            with T.when(any_nan > T.like(any_nan, 0)):
                value.set(T.like(value.value, float("nan")))
                places.set(none)
                self._each_vectors(part, seek_nan)
        position = folded(places.value, self.nearest)
        return (T.hold(walk.values(found, position, [T.hold(value.value)])[0]), position)

    def _begin(self, walk: Walk) -> None:
        """What is sought, and what there is without an element."""
        assert walk.extreme is not None
        self.extreme, self.is_last = walk.extreme, walk.combinations == (LAST,)
        first = self._elements_at([T.i64(0)] * (self.ranks[1] - 1), T.i64(0))
        (identity,) = self.extreme.identity((first,))
        self.identity, self.zero = T.hold(identity), self._position(T.i64(0), self.lanes)
        self.nearest = T.max if self.is_last else T.min
        self.nowhere = -1 if self.is_last else 2**31 - 1

    def _no_nan(self) -> T.Variable | None:
        """Where NaN are noted; ``None`` if there cannot be any."""
        return T.Variable(T.type_of(self.zero), T.like(self.zero, 0)) if T.is_float(self.identity) else None

    def _further(self, a: Any, b: Any) -> Any:
        return T.Select(self.extreme.exceeds(b, a), b, a)

    def _here(self, begin: Any, v: int) -> Any:
        """The positions of a vector of a group."""
        return T.hold(begin + (self.zero + T.like(self.zero, v * self.lanes)))

    def _sought(self, part: Any, nan: T.Variable | None) -> _Best:
        """The best element of each lane, and its place."""
        kind, zero, identity = T.type_of(self.zero), self.zero, self.identity
        # Of lanes without an element the places are before all elements; so are those of the first elements, if all are the least.
        nowhere = T.hold(T.like(zero, -self.lanes * self.vectors if self.is_last else 0))
        best = [T.Variable(T.type_of(identity), identity) for _ in range(self.vectors)]
        begins = [T.Variable(kind, nowhere) for _ in range(self.vectors)]

        def seek(values: list[Any], begin: Any) -> None:
            for v, x in enumerate(values):
                larger = self.extreme.exceeds(x, best[v].value, self.is_last)
                begins[v].set(T.Select(larger, begin, begins[v].value))
                best[v].set(T.Select(larger, x, best[v].value))
            if nan is None:
                return
            for pair in zip(values[::2], values[1::2] or values, strict=True):
                some = T.is_nan(pair[0]) | T.is_nan(pair[1])
                nan.set(T.Select(some, T.like(zero, 1), nan.value))

        self._each_vectors(part, seek)
        further = SimpleNamespace(combine=lambda a, b: (self._further(a[0], b[0]),))
        (value,) = tree(further, [(T.hold(one.value),) for one in best])
        place = None
        for v, (own, begin) in enumerate(zip(best, begins, strict=True)):
            here = T.Select(T.expression(own.value == value), self._here(begin.value, v), T.like(zero, self.nowhere))
            place = here if place is None else T.hold(self.nearest(place, here))
        return _Best(T.hold(value), T.hold(place))

    def _each_vectors(self, part: Any, do: Callable[[list[Any], Any], None]) -> None:
        """Give all vectors of a part to a function; the last one of a row may begin earlier."""
        (walk,), lanes, last = self.walks, self.lanes, self.inner[-1]
        group, kind = lanes * self.vectors, T.type_of(self.zero)
        for at, start, stop, position in self._runs(part):
            whole = T.let(T.truncdiv(stop - start, T.i64(group)))
            begin = T.Variable(kind, self._splat(position + start))
            with T.loop(whole) as i:
                first = T.let(start + i * group)
                for v in range(self.vectors):
                    self._ask_ahead(at, T.let(first + v * lanes), v, walk)
                do([self._elements_at(at, T.let(first + v * lanes)) for v in range(self.vectors)], begin.value)
                begin.set(begin.value + T.like(self.zero, group))
            done = T.let(start + whole * group)
            with T.loop(T.let(T.truncdiv(stop - done + (lanes - 1), T.i64(lanes)))) as j:
                place = T.let(T.min(done + j * lanes, last - lanes))
                do([self._elements_at(at, place)], self._splat(position + place))

    def _splat(self, place: Any) -> Any:
        return T.let(splat(T.cast(place, self.position), self.lanes))

    def _elements_at(self, at: Sequence[Any], place: Any) -> Any:
        """A vector of the only input."""
        return self.read(self.sources, [*at, place], self.lanes)[0]

    # -- Groups

    def _groups(self, task: Any) -> None:
        """A task's share of groups."""
        (walk,), lanes, whole = self.walks, self.lanes, T.i64(0)
        begin, end = share(task, self.tasks, T.let(T.truncdiv(self.slice_count + (lanes - 1), T.i64(lanes))))
        self._at(T.i64(0))
        self._begin(walk)
        square = lanes * lanes
        kept = [
            (T.view(self.scratch.data, kind), T.let((task * 2 + i) * (square * CELL * 8 // bits(kind))))
            for i, kind in enumerate((T.scalar_type(self.identity), self.position))
        ]
        results = [T.local(tensor.data_type.tvm, lanes) for _, tensor in self.slices]
        with T.loop(T.let(end - begin)) as i:
            first = T.let((begin + i) * lanes)
            count = T.let(T.min(self.slice_count - first, lanes))
            nan = self._no_nan()
            with T.loop(count) as r:
                self._at(T.let(first + r))
                for (buffer, base), value in zip(kept, self._sought(whole, nan), strict=True):
                    T.store(buffer, T.run(T.let(base + r * lanes), lanes), value)

            def each(do: Callable[[Any], list[Any]], first: Any = first, count: Any = count) -> None:
                """Store the results of each slice."""
                with T.loop(count) as r:
                    self._at(T.let(first + r))
                    for sink, value in zip(self.ends, do(r), strict=True):
                        T.store(sink.buffer, sink.place([], 1), value)

            def together(each: Callable[..., None] = each) -> None:
                for buffer, value in zip(results, self._joined(walk, kept), strict=True):
                    T.store(buffer, T.run(T.i64(0), lanes), value)
                each(lambda r: [buffer[r] for buffer in results])

            if nan is None:
                together()
            else:
                any_nan = folded(nan.value, T.max)
                one_by_one = partial(each, lambda _: self._results(walk, self._part(walk, [], whole), 1))
                T.either(any_nan > T.like(any_nan, 0), one_by_one, together)

    def _joined(self, walk: Walk, kept: list[tuple[Any, Any]]) -> list[Any]:
        """The results of a group's slices, a lane for each: of where the values and places of their lanes are."""
        lanes = self.lanes
        values, places = ([T.hold(buffer[T.run(T.let(base + r * lanes), lanes)]) for r in range(lanes)] for buffer, base in kept)
        value = joined(values, self._further)
        everywhere = [T.hold(T.Shuffle([value], [r] * lanes)) for r in range(lanes)]
        there = zip(values, everywhere, places, strict=True)
        none = T.like(self.zero, self.nowhere)
        place = joined([T.hold(T.Select(T.expression(own == all_), one, none)) for own, all_, one in there], self.nearest)
        key = T.hold(walk.values([], place, [value])[0])
        return self._results(walk, (key, place), lanes)

    def _results(self, walk: Walk, totals: Values, lanes: int) -> list[Any]:
        """The results of slices."""
        found = [T.hold(one) for one in walk.totals(totals, [], self.as_count(lanes))]
        return self.desc.results_of(self.desc.slice_results(*found, self.as_count(lanes)), self.slices)
