"""Reductions on the CPU: a slice in vectors, or neighbouring slices in one vector each.

- ``rows``: elements of a slice are contiguous, or nothing is. A vector has elements of one slice. A long slice has parts, and its
  sums are those of the parts, in order; tasks may share a slice, and then go over all slices once for each walk.
- ``columns``: neighbouring slices are contiguous. A vector has an element of each of several slices; a task goes over a panel of
  them, row by row.

Sums have levels (``kernels/reduction.py``), so that no element takes part in many additions. The order follows from sizes, strides
and the processor's vectors, never from the number of tasks.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from types import SimpleNamespace
from typing import Any

from tvmdml.kernels import tensorir_values as T
from tvmdml.kernels.formula import Source
from tvmdml.kernels.kernel import Kernel
from tvmdml.kernels.knobs import Knob, Knobs
from tvmdml.kernels.reduction import CHAIN, FOLDS, LAST, LEVELS, Totals, Values, Walk
from tvmdml.operators._contract import Shared
from tvmdml.operators._reduction import Reduction
from tvmdml.schedules.cpu import STREAMED, per_task, share, split, stream_bytes
from tvmdml.schedules.cpu._ahead import read_ahead
from tvmdml.schedules.cpu._leaves import Leaves
from tvmdml.schedules.cpu._reduction import Writer, across, from_cell, held, lane_numbers, splat, to_cell, tree, widened
from tvmdml.schedules.cpu._reduction_columns import Columns
from tvmdml.schedules.cpu._runs import LINE
from tvmdml.targets import Target

_POWERS = tuple(1 << n for n in range(26))

KNOBS = Knobs(
    "reduction",
    STREAMED,
    algorithm=Knob("auto", ("auto", "rows", "columns"), "the way; auto takes columns where neighbouring slices are contiguous"),
    task_elements=Knob(1 << 16, (1, *_POWERS[10:24]), "least elements for each task", derived=lambda caches: caches.l2 // 2 // 8
    ),
    tasks_per_thread=Knob(2, (1, 2, 4, 8), "most tasks per thread"),
    part_elements=Knob(1 << 15, _POWERS[10:25], "least elements of each part of a long slice; sums depend on it"),
    panel_elements=Knob(1 << 10, _POWERS[4:16], "most neighbouring slices that a task goes over together"),
    kept_elements=Knob(
        1 << 16, _POWERS[10:24], "longest row whose values are kept between walks", derived=lambda caches: caches.l2 // 2 // 8
    ),
    turn_elements=Knob(1 << 12, (1, *_POWERS[10:17]), "most elements of slices that take turns walk by walk"),
    vectors=Knob(4, (1, 2, 4, 8), "vectors with totals of their own; sums depend on it"),
    ahead_bytes=stream_bytes("least bytes of an input that is asked for before it is read, if it is read once", 1),
    stream_bytes=stream_bytes("least bytes of a result with all elements to write with non-temporal stores"),
)  # fmt: skip

_PARTS = 64
"""Most parts of a slice."""
_TOGETHER = 8
"""Most slices that take turns."""
_AHEAD = 1 << 13
"""Bytes between what is asked for and what is read."""
_LINES = 16
"""The least lines of a row that is written past the caches."""


def kernel(desc: Reduction, target: Target, shared: Shared, knobs: Any) -> Kernel:
    """Slices are divided among tasks, or each slice among several tasks."""
    operands, spaces = desc.operands(), desc.spaces()
    outer, inner, outer_steps, inner_steps = spaces
    length, count = math.prod(inner), math.prod(outer)
    neighbours, contiguous = spaces.neighbours, spaces.contiguous
    way = knobs.algorithm if neighbours and knobs.algorithm != "auto" else "columns" if neighbours and not contiguous else "rows"
    itemsize = operands[0][1].data_type.itemsize
    widest = max(_computed_bytes(tensor) for _, tensor in operands)
    register = 64 if getattr(target, "processor", None) is not None and target.processor.has("avx512f") else 32  # type: ignore[attr-defined]
    run = inner[-1] if way == "rows" else outer[-1]
    lanes = _fitting(register // widest, run if way == "columns" or contiguous else 1)
    sought = way == "rows" and any(walk.extreme for walk in desc.walks())
    states = max((1 if sought else walk.states for walk in desc.walks()), default=1)
    vectors = _fitting(max(1, knobs.vectors // states), run // lanes)
    group = lanes * vectors

    tasks = split(length * count * len(operands), target, knobs.task_elements, knobs.tasks_per_thread)
    parts, chunk, panel, divided = 1, CHAIN * group, 1, False
    if way == "rows":
        chunks = length // inner[-1] * -(-inner[-1] // chunk)
        parts = max(1, min(_PARTS, chunks, length // knobs.part_elements))
        divided = parts > 1 and count < target.tasks() and tasks > 1
        tasks = min(tasks, count * parts if divided else count)
    else:
        wanted = -(-outer[-1] // -(-tasks * outer[-1] // count))  # a panel for every task, if slices are few
        panel = max(group, min(knobs.panel_elements, -(-wanted // group) * group))
        tasks = min(tasks, count // outer[-1] * -(-outer[-1] // panel))
    together, single = 1, len(desc.walks()) + bool(desc.EACH) == 1
    if way == "rows" and parts == 1 and not single:
        together = max(1, min(_TOGETHER, knobs.turn_elements // length, count // tasks))
    once = way == "rows" and contiguous and single
    again = way == "rows" and contiguous and not divided and len(desc.walks()) > 1 and length <= knobs.kept_elements
    stream = _streamed(desc, way, lanes, inner[-1], knobs.stream_bytes)
    keeps = ""
    if way == "rows" and not divided and lanes > 1 and any(walk.kept for walk in desc.walks()):
        in_output = not stream and not shared and _has_room(desc)
        # What is kept of a row elsewhere has to stay in the cache.
        keeps = "output" if in_output else "scratch" if length <= knobs.kept_elements else ""
    writer = _WAYS[way](
        desc,
        Leaves(target),
        lanes=lanes,
        vectors=vectors,
        ranks=(len(outer), len(inner)),
        last=tuple(_known(steps[-1]) for steps in (inner_steps if way == "rows" else outer_steps)),
        tail=run % group != 0,
        stream=stream,
        parts=parts > 1,
        short=way == "rows" and parts == 1 and len(inner) == 1 and length <= chunk,
        divided=divided,
        keeps=keeps,
        turns=together > 1,
        ahead=itemsize if (length * count * itemsize >= knobs.ahead_bytes if once else again) else 0,
        parallel=tasks > 1,
        position=desc.position_type,
    )
    scalars = (
        tasks,
        parts,
        chunk if way == "rows" else panel,
        together,
        *outer,
        *inner,
        *sum(outer_steps, ()),
        *sum(inner_steps, ()),
    )
    states = sum(walk.states for walk in desc.walks())
    finds = sum(walk.finds or walk.states for walk in desc.walks())
    cells = count * parts * states if divided else tasks * together * ((length if keeps == "scratch" else 0) + finds)
    if way == "columns":
        cells = tasks * (panel + group) * (LEVELS * max((walk.states for walk in desc.walks()), default=0) + finds)
    module, *also = desc.modules()
    return Kernel(module, way, writer.parameters, writer.function, scalars, (("int64", max(1, cells)),), also=tuple(also))


def _computed_bytes(tensor: Any) -> int:
    return max(4, int(tensor.data_type.itemsize)) if tensor.data_type.is_float else int(tensor.data_type.itemsize)


def _fitting(most: int, length: int) -> int:
    """The largest power of two up to both."""
    found = 1
    while found * 2 <= min(most, length):
        found *= 2
    return found


def _streamed(desc: Reduction, way: str, lanes: int, run: int, least: int) -> bool:
    """Whether the result with all elements is written past the caches: it is large, and its rows have many lines."""
    results = [tensor for name, tensor in desc.operands() if name in desc.EACH]
    if way != "rows" or len(results) != 1 or lanes == 1:
        return False
    (result,) = results
    itemsize = result.data_type.itemsize
    contiguous = desc.spaces().inner_steps[-1][-1] == 1
    return bool(contiguous and result.element_count * itemsize >= least and run * itemsize >= _LINES * LINE)


def _has_room(desc: Reduction) -> bool:
    """Whether values of rows can be kept where their results will be: in one contiguous output of the type that is computed in."""
    (_, result), *more = [(name, tensor) for name, tensor in desc.operands() if name in desc.EACH]
    return not more and result.data_type.tvm == desc.computed and desc.spaces().inner_steps[-1][-1] == 1


def _known(step: int) -> int:
    """A stride that the code depends on; -1 for any other."""
    return step if step in (0, 1) else -1


class _Rows(Writer):  # type: ignore[misc] # mypy knows these modules by another name
    """A slice in vectors."""

    stream: bool
    short: bool
    """Whether a slice is one run, whose elements need only one level of totals."""
    ahead: int
    """The bytes of an element of the input, if that is asked for before it is read: of an input that is read once, what is a few
    lines further; otherwise the slice that is next, in the second walk over one that is in the cache by then."""

    def body(self) -> None:
        if not self.divided:
            per_task(self.tasks, self.parallel, self._in_turns if self.turns else self._slices)
            return
        units = T.let(self.slice_count * self.count)
        for number in range(len(self.walks) + 1):
            per_task(units, True, lambda unit, number=number: self._phase(unit, number))

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
        if walk.extreme is not None:
            return self._place(walk, walk.extreme, found, part)
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
            if self.tail:
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
        together: Values = across(walk, found_values, lanes)
        return together

    def _ask_ahead(self, at: Sequence[Any], place: Any, v: int, walk: Walk) -> None:
        """Ask for a line of the input when a vector of a group is read."""
        if not self.ahead or v * self.lanes * self.ahead % LINE:
            return
        if len(self.walks) == 1:
            read_ahead(self.sources[0].buffer, self.sources[0].place([*at, place]) + _AHEAD // self.ahead)
        elif walk is self.walks[1]:
            read_ahead(self.later.buffer, self.later.place([*at, place]))
            if not self.keeps and not self.stream:
                for sink in self.sinks:
                    read_ahead(sink.buffer, sink.place([*at, place]))

    def _place(self, walk: Walk, extreme: Any, found: list[Any], part: Any) -> Values:
        """The place of the largest element of a part: each lane has its largest one, and where the vector began that had it."""
        lanes, last, group = self.lanes, self.inner[-1], self.lanes * self.vectors
        is_last = walk.combinations == (LAST,)
        identity, zero = self._identity(extreme), self._position(T.i64(0), lanes)
        # Of lanes without an element the places are before all elements; so are those of the first elements, if all are the least.
        kind, nowhere = T.type_of(zero), T.hold(T.like(zero, -group if is_last else 0))
        best = [T.Variable(T.type_of(identity), identity) for _ in range(self.vectors)]
        begins = [T.Variable(kind, nowhere) for _ in range(self.vectors)]
        some_nan = T.Variable(kind, T.like(zero, 0))

        def take(v: int, x: Any, begin: Any) -> None:
            larger = extreme.exceeds(x, best[v].value, is_last)
            begins[v].set(T.Select(larger, begin, begins[v].value))
            best[v].set(T.Select(larger, x, best[v].value))

        def note(values: list[Any]) -> None:
            """Whether there is a NaN."""
            for pair in zip(values[::2], values[1::2] or values, strict=True):
                nan = T.is_nan(pair[0]) | T.is_nan(pair[1])
                some_nan.set(T.Select(nan, T.like(zero, 1), some_nan.value))

        def each(do: Callable[[list[Any], Any], None]) -> None:
            """Give all vectors of the part to a function; the last one of a row may begin earlier."""
            for at, start, stop, position in self._runs(part):
                whole = T.let(T.truncdiv(stop - start, T.i64(group)))
                begin = T.Variable(kind, self._splat(position + start))
                with T.loop(whole) as i:
                    first = T.let(start + i * group)
                    for v in range(self.vectors):
                        self._ask_ahead(at, T.let(first + v * lanes), v, walk)
                    do([self._elements_at(at, T.let(first + v * lanes)) for v in range(self.vectors)], begin.value)
                    begin.set(begin.value + T.like(zero, group))
                if self.tail:
                    done = T.let(start + whole * group)
                    with T.loop(T.let(T.truncdiv(stop - done + (lanes - 1), T.i64(lanes)))) as j:
                        place = T.let(T.min(done + j * lanes, last - lanes))
                        do([self._elements_at(at, place)], self._splat(position + place))

        def seek(values: list[Any], begin: Any) -> None:
            for v, x in enumerate(values):
                take(v, x, begin)
            if T.is_float(identity):
                note(values)

        each(seek)
        nearest = T.max if is_last else T.min

        def further(a: Values, b: Values) -> Values:
            return (T.Select(extreme.exceeds(b[0], a[0]), b[0], a[0]),)

        found_values = tree(SimpleNamespace(combine=further), [(T.hold(one.value),) for one in best])
        value = T.Variable(T.scalar_type(identity), self._folded(further, found_values)[0])
        none = T.like(zero, -1 if is_last else 2**31 - 1)
        everywhere = splat(T.hold(value.value), lanes)

        def place_of(v: int) -> Any:
            there = T.hold(begins[v].value + (zero + T.like(zero, v * lanes)))
            return T.Select(T.expression(best[v].value == everywhere), there, none)

        places = T.Variable(kind, place_of(0))
        for v in range(1, self.vectors):
            places.set(nearest(places.value, place_of(v)))

        def seek_nan(values: list[Any], begin: Any) -> None:
            for v, x in enumerate(values):
                here = T.hold(begin + (zero + T.like(zero, v * lanes)))
                places.set(T.Select(T.is_nan(x), nearest(places.value, here), places.value))

        if T.is_float(identity):
            (any_nan,) = self._folded(lambda a, b: (T.max(a[0], b[0]),), (some_nan.value,))
            with T.when(any_nan > T.like(any_nan, 0)):
                value.set(T.like(value.value, float("nan")))
                places.set(none)
                each(seek_nan)
        (position,) = self._folded(lambda a, b: (nearest(a[0], b[0]),), (places.value,))
        return (T.hold(walk.values(found, position, [T.hold(value.value)])[0]), position)

    def _splat(self, place: Any) -> Any:
        return T.let(splat(T.cast(place, self.position), self.lanes))

    def _identity(self, extreme: Any) -> Any:
        """What is not larger than any element."""
        (identity,) = extreme.identity((self._elements_at([T.i64(0)] * (self.ranks[1] - 1), T.i64(0)),))
        return T.hold(identity)

    def _folded(self, combine: Callable[[Values, Values], Values], values: Values) -> Values:
        """The lanes combined, each half with the other."""
        found: Values = across(SimpleNamespace(combine=combine), values, self.lanes)
        return found

    def _elements_at(self, at: Sequence[Any], place: Any) -> Any:
        """A vector of the only input."""
        return self.read(self.sources, [*at, place], self.lanes)[0]

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
            if self.tail:
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


_WAYS: dict[str, type[Writer]] = {"rows": _Rows, "columns": Columns}
