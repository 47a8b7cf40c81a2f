"""Scans on the CPU: groups of elements are combined in a register, or groups of rows in one register each.

Both combine in the family's order (``operators/_scan.py``), so results do not depend on the way or on the number of tasks:

- ``columns``: neighbouring rows are contiguous. A vector has an element of each of several rows. In small or narrow panels, groups
  are combined in registers; others are read in their order in memory, and what the next elements need is kept in scratch memory.
- ``short``: rows of 2, 4, 8 or 16 elements, one after the other. A vector has several of them.
- ``rows``: any other strides. A vector has a group of one row. Where there are fewer rows than threads, tasks divide rows by tiles:
  first one task scans the first part, while the others find what their tiles come to; then all scan the other parts.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Callable
from contextlib import nullcontext
from typing import Any

import numpy as np

from tvmdml.kernels import tensorir_values as T
from tvmdml.kernels.kernel import Kernel
from tvmdml.kernels.knobs import Knob, Knobs
from tvmdml.kernels.layout import collapse, without
from tvmdml.operators._contract import Shared
from tvmdml.operators._scan import BLOCK, GROUP, TILE, Scan
from tvmdml.schedules.cpu import STREAMED, per_task, share, split, stream_bytes, unit_step
from tvmdml.schedules.cpu._ahead import AHEAD, read_ahead
from tvmdml.schedules.cpu._leaves import Leaves
from tvmdml.schedules.cpu._runs import LINE
from tvmdml.targets import Target

_POWERS = tuple(1 << n for n in range(24))

KNOBS = Knobs(
    "scan",
    STREAMED,
    algorithm=Knob("auto", ("auto", "columns", "rows"), "the way; auto takes columns where neighbouring rows are contiguous"),
    panel_bytes=Knob(1 << 12, _POWERS[6:18], "bytes of the neighbouring rows that one task scans together, at most"),
    task_elements=Knob(1 << 14, (1, *_POWERS[10:]), "least elements for each task"),
    tasks_per_thread=Knob(2, (1, 2, 4, 8), "most tasks per thread"),
    stream_bytes=stream_bytes("least bytes of results to write with non-temporal stores"),
    together=Knob(16, (1, 4, 16), "rows of a panel that are combined in registers; they are not read in their order in memory"),
    together_panel_bytes=Knob(1 << 9, (1, *_POWERS[6:18]), "most bytes of a panel's row, if an input of any size is combined so"),
    together_bytes=Knob(
        1 << 17, (1, *_POWERS[10:]), "most bytes of an input with longer rows that is", derived=lambda caches: caches.l2 // 8
    ),
    part_tiles=Knob(4, _POWERS[:12], "least tiles of a row for each of the tasks that share the row"),
)

_SHORT = (2, 4, 8, GROUP)
"""Lengths of rows of which a vector has one or several."""
_LEVELS = 4
"""The binary logarithm of a group's elements."""
_HALVES, _BASE, _BEFORE, _STATES = 4, 8, 9, 10
"""What is kept of each column: bases of the tile, the block and the group's block, and what that block comes to so far; the last of
each half of a group; the group's base; and the element before."""
_FAR = AHEAD * GROUP // LINE
"""Elements between a group that is read and one that is asked for, where groups are lines."""
_APART = 64
"""Elements between them: the caches exclude what is a multiple of 4 KiB apart."""


def kernel(desc: Scan, target: Target, shared: Shared, knobs: Any) -> Kernel:
    """Rows are divided among tasks, or each row among several tasks."""
    axis, source, result = desc.axis, desc.input_tensor, desc.output_tensor
    length, itemsize = source.sizes[axis], source.data_type.itemsize
    sizes, steps = collapse(*(without(axis, t) for t in (source.sizes, source.layout, result.layout)))
    sizes, steps = sizes or (1,), tuple(s or (0,) for s in steps)
    along = (source.layout[axis], result.layout[axis])
    rows = source.element_count // length
    tasks = split(source.element_count, target, knobs.task_elements, knobs.tasks_per_thread)
    lanes = _lanes(desc, target, sizes[-1])
    neighbours = all(own[-1] == 1 for own in steps) and lanes > 1 and length > 1
    suits = neighbours and (along != (1, 1) or sizes[-1] == 1)
    way = "columns" if neighbours and (suits if knobs.algorithm == "auto" else knobs.algorithm == "columns") else "rows"
    panel, parts = 1, 1
    packed = along == (1, 1) and steps == ((length,), (length,)) and rows > 1
    if way == "rows" and packed and length in _SHORT:
        way, units = "short", -(-rows * length // GROUP)
    elif way == "columns":
        most = max(lanes, knobs.panel_bytes // np.dtype(desc.computed).itemsize // lanes * lanes)
        wanted = -(-sizes[-1] * (rows // sizes[-1]) // tasks)  # a panel for every task, if rows are few
        panel = max(lanes, min(most, -(-wanted // lanes) * lanes))
        units = rows // sizes[-1] * -(-sizes[-1] // panel)
    else:
        units = rows
        tiles = -(-length // TILE)
        if target.tasks() > 1 and rows < target.tasks():
            parts = max(1, min(target.tasks() // rows + 1, tiles // knobs.part_tiles, tasks + 1))
    tasks = min(tasks, units) if parts <= 2 else 1
    parts = parts if parts > 2 else 1
    lines = (lanes if way == "columns" else GROUP) * itemsize == LINE and (way != "rows" or along[1] == 1)
    narrow = min(panel, sizes[-1]) * itemsize <= knobs.together_panel_bytes
    small = source.element_count * itemsize <= knobs.together_bytes
    writer = _Writer(
        desc,
        Leaves(target),
        way=way,
        lanes=lanes if way == "columns" else GROUP,
        rank=len(sizes),
        steps=tuple(0 if way == "columns" else unit_step(step) == 1 for step in along),
        segment=length if way == "short" else GROUP,
        tail=(length * rows if way == "short" else length) % GROUP != 0,
        ragged=way == "columns" and sizes[-1] % lanes != 0,
        together=knobs.together if way == "columns" and (narrow or small) else 1,
        tiles=length > TILE,
        parts=parts > 1,
        shared=bool(shared),
        stream=lines and not shared and source.element_count * itemsize >= knobs.stream_bytes,
    )
    scalars = (tasks, parts, length, panel, *along, *sizes, *(step for own in steps for step in own))
    scratch = tasks * _STATES * (panel + _APART) if way == "columns" else rows * -(-length // TILE) if parts > 1 else 1
    module, *_ = desc.modules()
    return Kernel(module, way, writer.parameters, writer.function, scalars, ((desc.computed, scratch),))


def _lanes(desc: Scan, target: Target, neighbours: int) -> int:
    """Elements of a vector: a register's, or fewer if there are not so many neighbouring rows."""
    processor = getattr(target, "processor", None)
    width = 64 if processor is not None and processor.has("avx512f") else 32
    lanes: int = width // (4 if desc.computed == "float32" else desc.input_tensor.data_type.itemsize)
    while lanes > neighbours:
        lanes //= 2
    return lanes


class _Writer:
    """Writes the kernel."""

    way: str
    lanes: int
    rank: int
    steps: tuple[bool, ...]
    segment: int
    """The elements of a vector that are of one row."""
    tail: bool
    ragged: bool
    together: int
    """Neighbours' rows that are combined before their results go to memory."""
    tiles: bool
    parts: bool
    shared: bool
    stream: bool
    """Whether vectors of results are written past the caches, where they are lines."""

    def __init__(self, desc: Scan, leaves: Leaves, **choices: Any) -> None:
        self.desc, self.leaves = desc, leaves
        self.held: dict[int, Any] = {}
        self.changed: set[int] = set()
        self.__dict__.update(choices)
        self.dtype, self.stored = desc.computed, desc.input_tensor.data_type.tvm
        self.parameters = (
            ("operator", desc.NAME),
            ("type", self.stored),
            ("decreasing", desc.decreasing),
            ("exclusive", desc.exclusive),
            *choices.items(),
        )

    def function(self) -> T.PrimFunc:
        with T.function() as f:
            source = None if self.shared else f.buffer("input", self.stored)
            self.result = f.buffer("output", self.stored)
            self.source = self.result if source is None else source
            self.scratch = f.buffer("scratch", self.dtype)
            self.tasks, self.count, self.length, self.panel = (f.scalar(n) for n in ("tasks", "parts", "length", "panel"))
            self.along = (f.scalar("step"), f.scalar("result_step"))
            self.sizes = f.scalars("size", self.rank)
            self.row_steps = [f.scalars(n, self.rank) for n in ("row", "result_row")]
            with self.leaves.available() if self.stream else nullcontext():
                if self.parts:
                    rows = T.let(math.prod(self.sizes[1:], start=self.sizes[0]))
                    fewer = T.let(self.count - 1)
                    for first in (True, False):
                        per_task(rows * fewer, lambda task, first=first: self._fenced(self._part, task, fewer, first))
                else:
                    way = {"columns": self._columns, "short": self._several_rows, "rows": self._rows}[self.way]
                    per_task(self.tasks, functools.partial(self._fenced, way))
        return f.result()

    def _fenced(self, body: Callable[..., None], *values: Any) -> None:
        """A task, whose results all threads see after it."""
        body(*values)
        if self.stream:
            self.leaves.fence()

    def _is_line(self, place: Any) -> Any:
        """Whether a vector of results from a place on is a line of the caches."""
        return T.expression(self.leaves.misalignment(self.result, place) == T.i64(0))

    def _put(self, place: Any, values: Any) -> None:
        """Store a vector of results, past the caches if it is a line."""

        def plain() -> None:
            T.store(self.result, T.run(place, T.lanes(values)), values)

        if self.stream:
            values = T.hold(values)
            T.either(self.aligned, lambda: self.leaves.stream(self.result, place, values), plain)
        else:
            plain()

    def _one(self, lanes: int) -> Any:
        """Any value of the type in which elements are combined."""
        return T.splat(T.const(0, self.dtype), lanes) if lanes > 1 else T.const(0, self.dtype)

    def _variable(self, initial: Any) -> T.Variable:
        return T.Variable(T.type_of(initial), initial)

    # -- Rows ----------------------------------------------------------------------------------------------------------

    def _rows(self, task: Any) -> None:
        begin, end = share(task, self.tasks, math.prod(self.sizes[1:], start=self.sizes[0]))
        with T.loop(T.let(end - begin)) as i:
            start = self._variable(self.desc.first(self._one(GROUP)))
            self._range(self._starts(begin + i), T.i64(0), self.length, start)

    def _several_rows(self, task: Any) -> None:
        """Vectors of the order of memory, whatever the direction."""
        count = T.let(self.sizes[0] * self.length)
        begin, end = share(task, self.tasks, T.let(T.truncdiv(count + (GROUP - 1), T.i64(GROUP))))
        base, none = (T.hold(of(self._one(GROUP))) for of in (self.desc.first, self.desc.identity))
        base = T.hold(self.desc.combine(base, none))
        if self.stream:
            self.aligned = T.hold(self._is_line(T.i64(0)))
        with T.loop(T.let(end - begin)) as i:
            first = T.let((begin + i) * GROUP)
            whole = T.run(first, GROUP)

            def all_(first: Any = first, whole: Any = whole) -> None:
                x = self._scanned(T.hold(T.to(T.wide(self.source[whole]), self.dtype)))
                self._put(first, self._results(base, none, x))

            def rest(first: Any = first) -> None:
                kept, lanes = T.local(self.stored, GROUP), T.run(T.i64(0), GROUP)
                T.store(kept, lanes, T.splat(T.const(0, self.stored), GROUP))
                with T.loop(T.let(count - first)) as k:
                    T.store(kept, k, self.source[first + k])
                x = self._scanned(T.hold(T.to(T.wide(kept[lanes]), self.dtype)))
                T.store(kept, lanes, self._results(base, none, x))
                with T.loop(T.let(count - first)) as k:
                    T.store(self.result, first + k, kept[k])

            T.either(count - first >= GROUP, all_, rest) if self.tail else all_()

    def _part(self, task: Any, parts: Any, first: bool) -> None:
        """A part of a row. At first that is scanned if it is the row's first, and otherwise only summed up by tiles."""
        tiles = T.let(T.truncdiv(self.length + (TILE - 1), T.i64(TILE)))
        row = T.hold(T.truncdiv(task, parts))
        number = T.hold(task - row * parts + (0 if first else 1))
        begin, end = share(number, self.count, tiles)
        starts, to = self._starts(row), T.let(row * tiles)
        start = self._variable(self.desc.first(self._one(GROUP)))
        stop = T.let(T.min(end * TILE, self.length))
        if first:
            scanned = number == T.i64(0)
            T.either(
                scanned,
                lambda: self._range(starts, T.i64(0), stop, start, to),
                lambda: self._range(starts, T.let(begin * TILE), stop, start, to, store=False),
            )
            return
        with T.loop(begin) as tile:
            start.set(self.desc.combine(start.value, T.splat(self.scratch[to + tile], GROUP)))
        self._range(starts, T.let(begin * TILE), stop, start)

    def _starts(self, row: Any) -> list[Any]:
        """Where a row begins in the input and in the output: with its last element, if that comes first."""
        at = T.unravel(row, self.sizes)
        back = T.let(self.length - 1) if self.desc.decreasing else T.i64(0)
        return [T.let(T.dot(at, own) + back * step) for own, step in zip(self.row_steps, self._along(), strict=True)]

    def _along(self) -> list[Any]:
        return [T.i64(1) if unit else step for unit, step in zip(self.steps, self.along, strict=True)]

    def _range(self, starts: list[Any], begin: Any, end: Any, base: T.Variable, totals: Any = None, store: bool = True) -> None:
        """The elements of a row from a tile's first on. ``totals`` is where each tile's elements combined are kept."""
        combine = self.desc.combine
        none = self.desc.identity(self._one(GROUP))
        if self.stream and store:
            self.aligned = T.hold(self._is_line(self._lowest(starts[1], begin)))
        with T.loop(T.let(T.truncdiv(end - begin + (TILE - 1), T.i64(TILE)))) as tile:
            first = T.let(begin + tile * TILE)
            of_blocks = self._variable(none)
            with T.loop(T.let(T.min(T.truncdiv(end - first + (BLOCK - 1), T.i64(BLOCK)), T.i64(GROUP)))) as block:
                at = T.let(first + block * BLOCK)
                of_groups = self._variable(none)
                base_of_block = T.hold(combine(base.value, of_blocks.value))
                with T.loop(T.let(T.min(T.truncdiv(end - at + (GROUP - 1), T.i64(GROUP)), T.i64(GROUP)))) as group:
                    place = T.let(at + group * GROUP)
                    x = self._scanned(self._load(starts[0], place, T.let(end - place)))
                    if store:
                        self._store(starts[1], place, T.let(end - place), self._results(base_of_block, of_groups.value, x))
                    of_groups.set(combine(of_groups.value, T.Shuffle([x], [self._lane(GROUP - 1)] * GROUP)))
                of_blocks.set(combine(of_blocks.value, of_groups.value))
            base.set(combine(base.value, of_blocks.value))
            if totals is not None:
                T.store(self.scratch, totals + T.truncdiv(first, T.i64(TILE)), T.Shuffle([of_blocks.value], [0]))

    def _lane(self, i: int) -> int:
        """The lane of a group's element: in memory, the last comes first if the direction is decreasing."""
        return GROUP - 1 - i if self.desc.decreasing else i

    def _scanned(self, x: Any) -> Any:
        """A vector's lanes combined."""
        width = 1
        while width < self.segment:
            before, mixed = [0] * GROUP, [0] * GROUP
            for i in range(GROUP):
                before[self._lane(i)] = self._lane(max(i - i % width - 1, 0))
                mixed[self._lane(i)] = self._lane(i) + (GROUP if i & width else 0)
            both = T.hold(self.desc.combine(T.Shuffle([x], before), x))
            x = T.hold(T.Shuffle([x, both], mixed))
            width *= 2
        return x

    def _results(self, base: Any, of_groups: Any, x: Any) -> Any:
        if self.desc.exclusive:
            order = [0] * GROUP
            for i in range(GROUP):
                order[self._lane(i)] = self._lane(i - 1) if i % self.segment else GROUP
            x = T.hold(T.Shuffle([x, self.desc.identity(x)], order))
        return T.to(self.desc.combine(T.hold(self.desc.combine(base, of_groups)), x), self.stored)

    def _load(self, start: Any, place: Any, left: Any) -> Any:
        """A group, as a vector in the type in which it is combined; what is past the row's end does not matter."""
        kept, whole = T.local(self.stored, GROUP), T.run(T.i64(0), GROUP)

        def some(count: Any) -> None:
            with T.loop(count) as i:
                T.store(kept, self._place_in(i), self.source[self._place(start, place + i, 0)])

        def all_() -> None:
            lowest = self._lowest(start, place)
            if self.stream:
                read_ahead(self.source, lowest - _FAR if self.desc.decreasing else lowest + _FAR)
            T.store(kept, whole, self.source[T.run(lowest, GROUP)])

        def rest() -> None:
            T.store(kept, whole, T.splat(T.const(0, self.stored), GROUP))
            some(left)

        self._either(left, 0, all_, rest, some)
        return T.hold(T.to(T.wide(kept[whole]), self.dtype))

    def _store(self, start: Any, place: Any, left: Any, values: Any) -> None:
        kept, whole = T.local(self.stored, GROUP), T.run(T.i64(0), GROUP)

        def some(count: Any) -> None:
            T.store(kept, whole, values)
            with T.loop(count) as i:
                T.store(self.result, self._place(start, place + i, 1), kept[self._place_in(i)])

        self._either(left, 1, lambda: self._put(self._lowest(start, place), values), lambda: some(left), some)

    def _either(self, left: Any, tensor: int, vector: Callable[[], None], rest: Callable[[], None], some: Any) -> None:
        """A whole group, as a vector if its elements are contiguous, or what is left of the row."""
        whole = vector if self.steps[tensor] else lambda: some(T.i64(GROUP))
        if self.tail:
            T.either(left >= GROUP, whole, rest)
        else:
            whole()

    def _place(self, start: Any, i: Any, tensor: int) -> Any:
        step = self._along()[tensor]
        return start - i * step if self.desc.decreasing else start + i * step

    def _place_in(self, i: Any) -> Any:
        return GROUP - 1 - i if self.desc.decreasing else i

    def _lowest(self, start: Any, place: Any) -> Any:
        """The offset of a contiguous group's first element in memory."""
        return T.let(start - place - (GROUP - 1)) if self.desc.decreasing else T.let(start + place)

    # -- Neighbouring rows ---------------------------------------------------------------------------------------------

    def _columns(self, task: Any) -> None:
        """A task's share of the panels."""
        *outer, last = self.sizes
        panels = T.let(T.truncdiv(last + self.panel - 1, self.panel))
        groups = [*outer, panels]
        begin, end = share(task, self.tasks, math.prod(groups[1:], start=groups[0]))
        self.state = T.let(task * (self.panel + _APART) * _STATES)
        with T.loop(T.let(end - begin)) as i:
            *at, panel = T.unravel(begin + i, groups)
            left = T.let(panel * self.panel)
            width = T.let(T.min(self.panel, last - left))
            back = T.let(self.length - 1) if self.desc.decreasing else T.i64(0)
            starts = [
                T.let(T.dot([*at, left], [*own[:-1], T.i64(1)]) + back * step)
                for own, step in zip(self.row_steps, self.along, strict=True)
            ]
            self._panel(starts, width)

    def _each(self, width: Any, body: Callable[[Any, int], None]) -> None:
        """``body(offset, lanes)`` for vectors of a panel, and for the columns after the last whole one."""
        whole = T.let(T.truncdiv(width, T.i64(self.lanes)))
        with T.loop(whole) as i:
            body(T.let(i * self.lanes), self.lanes)
        if self.ragged:
            with T.loop(T.let(width - whole * self.lanes)) as i:
                body(T.let(whole * self.lanes + i), 1)

    def _panel(self, starts: list[Any], width: Any) -> None:
        """Rows are combined a group at a time; what is kept of each is in scratch."""
        combine = self.desc.combine

        def begin(at: Any, lanes: int) -> None:
            first, none = self.desc.first(self._one(lanes)), self.desc.identity(self._one(lanes))
            for state, value in enumerate((first, none, first, none)):
                self._keep(state, at, value, lanes)

        def end_block(at: Any, lanes: int) -> None:
            base, of_blocks, _, of_groups = (self._kept(state, at, lanes) for state in range(_HALVES))
            of_blocks = T.hold(combine(of_blocks, of_groups))
            none = self.desc.identity(self._one(lanes))
            for state, value in ((1, of_blocks), (2, combine(base, of_blocks)), (3, none)):
                self._keep(state, at, value, lanes)

        def end_tile(at: Any, lanes: int) -> None:
            base = T.hold(combine(self._kept(0, at, lanes), self._kept(1, at, lanes)))
            none = self.desc.identity(self._one(lanes))
            for state, value in ((0, base), (1, none), (2, combine(base, none))):
                self._keep(state, at, value, lanes)

        if self.stream:
            whole = T.expression(T.truncmod(self.along[1], T.i64(self.lanes)) == T.i64(0))
            self.aligned = T.hold(self._is_line(starts[1]) & whole)
        self._each(width, begin)
        groups = T.let(T.truncdiv(self.length + (GROUP - 1 if self.tail else 0), T.i64(GROUP)))
        with T.loop(groups) as group:
            top = T.let(group * GROUP)
            for i in range(0, GROUP, self.together):
                rows = functools.partial(self._several, starts, width, top, i)
                end = T.let(top + (i + self.together))
                if self.tail and self.together > 1:
                    T.either(T.expression(end <= self.length), rows, functools.partial(self._last, starts, width, top, i))
                else:
                    with T.when(end <= self.length) if self.tail and i else nullcontext():
                        rows()
            after = T.let(group + 1)
            with T.when((after & T.i64(GROUP - 1)) == T.i64(0)):
                self._each(width, end_block)
                if self.tiles:
                    with T.when((after & T.i64(TILE // GROUP - 1)) == T.i64(0)):
                        self._each(width, end_tile)

    def _several(self, starts: list[Any], width: Any, top: Any, i: int, together: int = 0) -> None:
        """Rows of a group that are combined in registers; what the rest of the group needs of them is kept."""
        count = together or self.together

        def rows(at: Any, lanes: int) -> None:
            self.held, self.changed = {}, set()
            for k in range(i, i + count):
                self._row(starts, T.let(top + k), k, at, lanes, count)
            for state in sorted(self.changed):
                inside = _HALVES <= state < _BASE and 2 << (state - _HALVES) <= count
                if not inside and (count < GROUP or state < _HALVES):
                    self._keep(state, at, self.held[state], lanes)

        self._each(width, rows)

    def _last(self, starts: list[Any], width: Any, top: Any, i: int) -> None:
        """Rows of a group that has fewer."""
        for k in range(i, i + self.together):
            with T.when(T.expression(top + k < self.length)):
                self._several(starts, width, top, k, 1)

    def _row(self, starts: list[Any], row: Any, i: int, at: Any, lanes: int, together: int) -> None:
        """A group's row, in the columns of a vector: it is combined with the last row of each half before its own."""
        combine = self.desc.combine
        source, result = (
            T.let(start + at + (-(row * step) if self.desc.decreasing else row * step))
            for start, step in zip(starts, self.along, strict=True)
        )
        if lanes > 1 and together == 1:
            read_ahead(self.source, T.let(source + self.along[0]))
            if not self.stream:
                read_ahead(self.result, T.let(result + self.along[1]))
        x = self.source[T.run(source, lanes) if lanes > 1 else source]
        value = T.hold(T.to(T.wide(x), self.dtype))
        for level in range(_LEVELS):
            if i >> level & 1:
                value = T.hold(combine(self._last_kept(_HALVES + level, at, lanes), value))
            elif (i + 1) % (2 << level) == 1 << level:
                self._hold(_HALVES + level, value)
        if i == 0:
            self._hold(_BASE, T.hold(combine(self._kept(2, at, lanes), self._kept(3, at, lanes))))
        base = self._last_kept(_BASE, at, lanes)
        found = value
        if self.desc.exclusive:
            found = self._last_kept(_BEFORE, at, lanes) if i else self.desc.identity(base)
            self._hold(_BEFORE, value)
        found = T.to(combine(base, found), self.stored)
        if lanes > 1:
            self._put(result, found)
        else:
            T.store(self.result, result, found)
        if i == GROUP - 1:
            self._hold(3, T.hold(combine(self._kept(3, at, lanes), value)))

    def _last_kept(self, state: int, at: Any, lanes: int) -> Any:
        """What was kept last, in a register or in scratch memory."""
        if state not in self.held:
            self.held[state] = self._kept(state, at, lanes)
        return self.held[state]

    def _hold(self, state: int, value: Any) -> None:
        self.held[state] = value
        self.changed.add(state)

    def _kept(self, state: int, at: Any, lanes: int) -> Any:
        place = T.let(self.state + state * (self.panel + _APART) + at)
        return T.hold(self.scratch[T.run(place, lanes) if lanes > 1 else place])

    def _keep(self, state: int, at: Any, value: Any, lanes: int) -> None:
        place = T.let(self.state + state * (self.panel + _APART) + at)
        T.store(self.scratch, T.run(place, lanes) if lanes > 1 else place, value)
