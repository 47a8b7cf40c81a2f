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
from collections.abc import Callable, Iterator
from typing import Any

from tvmdml.kernels import tensorir_values as T
from tvmdml.kernels.formula import Source
from tvmdml.kernels.kernel import Kernel
from tvmdml.kernels.knobs import Knob, Knobs
from tvmdml.kernels.reduction import CHAIN, FOLDS, LEVELS, Totals, Values, Walk
from tvmdml.operators._contract import Shared
from tvmdml.operators._reduction import Reduction
from tvmdml.schedules.cpu import per_task, share, split
from tvmdml.schedules.cpu._leaves import Leaves
from tvmdml.schedules.cpu._reduction import Writer, across, from_cell, held, lane_numbers, splat, to_cell, tree, widened
from tvmdml.schedules.cpu._reduction_columns import Columns
from tvmdml.targets import Target

_POWERS = tuple(1 << n for n in range(26))

KNOBS = Knobs(
    "reduction",
    algorithm=Knob("auto", ("auto", "rows", "columns"), "the way; auto takes columns where neighbouring slices are contiguous"),
    task_elements=Knob(1 << 16, (1, *_POWERS[10:24]), "least elements for each task", derived=lambda caches: caches.l2 // 2 // 8
    ),
    tasks_per_thread=Knob(2, (1, 2, 4, 8), "most tasks per thread"),
    part_elements=Knob(1 << 15, _POWERS[10:25], "least elements of each part of a long slice; sums depend on it"),
    panel_elements=Knob(1 << 10, _POWERS[4:16], "most neighbouring slices that a task goes over together"),
    kept_elements=Knob(
        1 << 16, _POWERS[10:24], "longest row whose values are kept between walks", derived=lambda caches: caches.l2 // 2 // 8
    ),
    vectors=Knob(4, (1, 2, 4, 8), "vectors with totals of their own; sums depend on it"),
)  # fmt: skip

_PARTS = 64
"""Most parts of a slice."""


def kernel(desc: Reduction, target: Target, shared: Shared, knobs: Any) -> Kernel:
    """Slices are divided among tasks, or each slice among several tasks."""
    operands, spaces = desc.operands(), desc.spaces()
    outer, inner, outer_steps, inner_steps = spaces
    length, count = math.prod(inner), math.prod(outer)
    neighbours, contiguous = spaces.neighbours, spaces.contiguous
    way = knobs.algorithm if neighbours and knobs.algorithm != "auto" else "columns" if neighbours and not contiguous else "rows"
    widest = max(_computed_bytes(tensor) for _, tensor in operands)
    register = 64 if getattr(target, "processor", None) is not None and target.processor.has("avx512f") else 32  # type: ignore[attr-defined]
    run = inner[-1] if way == "rows" else outer[-1]
    lanes = _fitting(register // widest, run if way == "columns" or contiguous else 1)
    vectors = _fitting(max(1, knobs.vectors // max((walk.states for walk in desc.walks()), default=1)), run // lanes)
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
    # What is kept of a row has to stay in the cache.
    keeps = way == "rows" and not divided and lanes > 1 and length <= knobs.kept_elements and any(w.kept for w in desc.walks())
    writer = _WAYS[way](
        desc,
        Leaves(target),
        lanes=lanes,
        vectors=vectors,
        ranks=(len(outer), len(inner)),
        last=tuple(_known(steps[-1]) for steps in (inner_steps if way == "rows" else outer_steps)),
        tail=run % group != 0,
        parts=parts > 1,
        divided=divided,
        keeps=keeps,
        parallel=tasks > 1,
        position=desc.position_type,
    )
    scalars = (tasks, parts, chunk if way == "rows" else panel, *outer, *inner, *sum(outer_steps, ()), *sum(inner_steps, ()))
    states = sum(walk.states for walk in desc.walks())
    finds = sum(walk.finds or walk.states for walk in desc.walks())
    cells = count * parts * states if divided else tasks * length if keeps else 1
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


def _known(step: int) -> int:
    """A stride that the code depends on; -1 for any other."""
    return step if step in (0, 1) else -1


class _Rows(Writer):  # type: ignore[misc] # mypy knows these modules by another name
    """A slice in vectors."""

    def body(self) -> None:
        if not self.divided:
            per_task(self.tasks, self.parallel, self._slices)
            return
        units = T.let(self.slice_count * self.count)
        for number in range(len(self.walks) + 1):
            per_task(units, True, lambda unit, number=number: self._phase(unit, number))

    def _slices(self, task: Any) -> None:
        """A task's share of the slices, each from its first walk to its results."""
        begin, end = share(task, self.tasks, self.slice_count)
        self.row = T.let(task * self.length)
        with T.loop(T.let(end - begin)) as i:
            self._at(T.let(begin + i))
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
                whole.add(tuple(T.hold(from_cell(self.scratch[at + i], like)) for i, like in enumerate(whole.identity)))
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

    def _at(self, index: Any) -> None:
        """Where the elements of a slice are."""
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

    def _slice_results(self, found: list[Any]) -> None:
        if self.slices:
            self.results(self.ends, [], self.desc.slice_results(*found, self.as_count(1)), self.slices)

    def _like(self, walk: Walk, found: list[Any], lanes: int) -> Values:
        """Values of a walk at the first elements, for their types."""
        at = [T.i64(0)] * self.ranks[1]
        position = self._position(T.i64(0), lanes)
        return tuple(map(T.hold, walk.values(widened(found, lanes), position, self.read(self.sources, at, lanes))))

    def _kept(self, kind: str) -> Any:
        """The values of a task's row that a walk keeps: a cell has room for the widest, and they are at its beginning."""
        self.kinds = [kind]
        return T.view(self.scratch.data, kind)

    def _position(self, place: Any, lanes: int) -> Any:
        first = T.cast(place, self.position)
        return T.ramp(first, T.const(1, self.position), lanes) if lanes > 1 else first

    def _runs(self, part: Any) -> Iterator[tuple[list[Any], Any, Any, Any]]:
        """The runs of a part: outer coordinates, first and last place in the last dimension, position of the row."""
        *outer, last = self.inner
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
                    T.store(self._kept(T.scalar_type(held)), T.run(self.row + position + place, lanes), held)
                    return (held, *found[1:])
                return found

            whole = T.let(T.truncdiv(stop - start, T.i64(group)))
            with T.loop(whole) as i:
                for v, total in enumerate(totals):
                    total.add(values(T.let(start + i * group + v * lanes)))
            if self.tail:
                done = T.let(start + whole * group)
                with T.loop(T.let(T.truncdiv(stop - done + (lanes - 1), T.i64(lanes)))) as j:
                    first = T.let(done + j * lanes)
                    place = T.let(T.min(first, last - lanes))
                    new = lane_numbers(lanes) >= splat(T.cast(first - place, "int32"), lanes)
                    some = zip(values(place), totals[0].identity, strict=True)
                    totals[0].add(tuple(T.select(new, value, none) for value, none in some), in_order=False)
            if not walk.exact:
                rounds.set(rounds.value + whole + 1)
                with T.when(rounds.value >= CHAIN):
                    fold()
        found_values = tree(walk, [one.values for one in totals])
        if not walk.exact:
            found_values = held(walk.combine(upper.values, found_values))
        together: Values = across(walk, found_values, lanes)
        return together

    def _elements(self, found: list[Any], part: Any) -> None:
        """The results of the elements of a part. The last vector of a row begins earlier, and computes some of them again."""
        if not self.outputs:
            return
        lanes, wide = self.lanes, widened(found, self.lanes)
        for at, start, stop, position in self._runs(part):
            with T.loop(T.let(T.truncdiv(stop - start + (lanes - 1), T.i64(lanes)))) as i:
                place = T.let(T.min(start + i * lanes, self.inner[-1] - lanes))
                kept = T.hold(self._kept(self.kinds[0])[T.run(self.row + position + place, lanes)]) if self.keeps else None
                elements = self.read(self.sources, [*at, place], lanes)
                values = self.desc.element_of(self._position(position + place, lanes), elements, wide, kept)
                self.results(self.sinks, [*at, place], values, self.outputs)


_WAYS: dict[str, type[Writer]] = {"rows": _Rows, "columns": Columns}
