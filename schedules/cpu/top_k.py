"""TOP_K1 on the CPU: each row (sequence along the axis) on its own, by one of four algorithms that depends on its length and K.
Rows of one element are copied.

columns adjacent rows whose elements are adjacent in memory, and small K: one row in each lane, each with a sorted list
rank    a short row: an element's place is the number of elements that come before it
select  the K best are collected in little more than one pass over the row, then sorted, by rank if they are few
sort    radix sort of the whole row, if K is a large part of it

Rows whose elements are not contiguous are copied first, as many at a time as share cache lines. A row is split among tasks if there
are fewer rows than threads: each task selects from its part, and the K best are selected from the results of the parts.
All algorithms are stable: of equal elements the earlier comes first, in both directions.
"""

from __future__ import annotations

import math
from typing import Any

from tvmdml.kernels import tensorir as T
from tvmdml.kernels.kernel import Kernel
from tvmdml.kernels.knobs import Knob, Knobs
from tvmdml.kernels.layout import collapse
from tvmdml.operators._contract import Shared
from tvmdml.operators.top_k import TopK1
from tvmdml.schedules.cpu import _default, per_task, share, split
from tvmdml.schedules.cpu._columns import ColumnLists
from tvmdml.schedules.cpu._leaves import Leaves
from tvmdml.schedules.cpu._order import Order
from tvmdml.schedules.cpu._radix import RadixSort
from tvmdml.schedules.cpu._select import BLOCK, Selection, blocks
from tvmdml.schedules.cpu._tiles import SIDE, corner, tiles, transposed
from tvmdml.targets import Target

_POWERS = tuple(1 << n for n in range(25))
KNOBS = Knobs(
    "top_k",
    algorithm=Knob("auto", ("auto", "columns", "rank", "select", "sort"), "the algorithm; auto chooses by length and K"),
    columns_k=Knob(16, _POWERS[:7], "the largest K for sorted lists in lanes"),
    column_lines=Knob(16, (1, 2, 4, 8, 16, 32), "most cache lines of adjacent rows whose lists are filled together"),
    rank_length=Knob(64, _POWERS[3:10], "the longest row that is ranked as a whole"),
    rank_k=Knob(256, _POWERS[:12], "the most elements that are sorted by rank; more are sorted by radix sort"),
    sort_share=Knob(6, (1, 2, 4, 6, 8, 12, 16), "a whole row is sorted if it has at most this many times K elements"),
    chunk_vectors=Knob(16, (1, 2, 4, 8, 16), "most cache lines of a row that are one chunk, compared with the bound together"),
    bests_per_k=Knob(4, (1, 2, 4, 8, 16), "lane maxima from which the bound is chosen, for each of the K"),
    room_per_k=Knob(4, (2, 3, 4, 6, 8), "elements collected before the collection is reduced, for each of the K"),
    digit_bits=Knob(11, (6, 8, 11), "bits of a key in one pass of the radix sort"),
    task_elements=Knob(1 << 13, (1, *_POWERS[8:]), "least elements for each task"),
    tasks_per_thread=Knob(2, (1, 2, 4, 8), "most tasks per thread"),
    part_elements=Knob(1 << 13, (1, *_POWERS[8:]), "least elements of a row for each of the tasks that share the row"),
)
_LEAST_ROOM = 256
_LONG = 1024
_LEAST_FOLD = 256  # of a long row: fewer would need more rounds than they save
RANK_MORE = 64
"""Ranking this many more than K takes no longer than reducing them to K first."""


def choose(length: int, k: int, neighbours: int, knobs: Any) -> str:
    """The algorithm for a row of this length; ``neighbours`` is the number of adjacent rows in memory, in vectors."""
    forced = str(knobs.algorithm)
    if forced != "auto" and (forced != "columns" or neighbours):
        return forced
    table = (
        ("columns", neighbours > 0 and k <= knobs.columns_k),
        ("rank", length <= knobs.rank_length),
        ("sort", length <= knobs.sort_share * k),
        ("select", True),
    )
    return next(way for way, suits in table if suits)


def kernel(desc: TopK1, target: Target, shared: Shared, knobs: Any) -> Kernel:
    """Rows are divided among tasks, or each row among several tasks; each task has its own scratch."""
    tensors = (desc.input_tensor, desc.output_value_tensor, desc.output_index_tensor)
    axis, source = desc.axis, desc.input_tensor
    length, k = source.sizes[axis], desc.k
    order = Order(source.data_type, desc.axis_direction)
    sizes, steps = collapse(*(_without(axis, t) for t in (source.sizes, *(t.layout for t in tensors))))
    sizes, steps = sizes or (1,), tuple(s or (0,) for s in steps)
    if length == 1:
        return _copied(order.word, desc.output_index_tensor.data_type.tvm, sizes, steps, target)
    along = [t.layout[axis] for t in tensors]
    rows = source.element_count // length
    dense = along[0] == 1 or length == 1
    neighbours = sizes[-1] if not dense and steps[0][-1] == 1 else 1
    way = choose(length, k, neighbours // order.lanes, knobs)
    # As many adjacent rows at a time as there are, but some for every thread: long contiguous pieces are read faster.
    lines = max(1, min(knobs.column_lines, neighbours // order.lanes, rows // (order.lanes * 2 * target.tasks())))
    lists = ColumnLists(order, Leaves(target), 1 << (lines.bit_length() - 1))
    # Rows that are processed, or copied, together.
    together = lists.columns if way == "columns" else SIDE if neighbours >= SIDE and length >= SIDE else 1
    groups = (rows // sizes[-1]) * -(-sizes[-1] // together)
    parts = 1
    if way == "select" and dense and rows < target.tasks():
        parts = min(split(length, target, max(knobs.part_elements, k)), target.tasks() // rows)
    tasks = min(groups, split(source.element_count, target, knobs.task_elements, knobs.tasks_per_thread))

    # Chunks should be long, but there must be enough of them for the bound.
    piece = length // parts
    chunk_vectors = max(1, min(knobs.chunk_vectors, 1 << max(0, (piece // (knobs.bests_per_k * k)).bit_length() - 1)))
    while chunk_vectors > 1 and (
        piece // (chunk_vectors * order.lanes) * order.lanes < k  # too few lanes to bound K elements
        or piece % (chunk_vectors * order.lanes) > piece >> 4  # the rest after the last chunk does not contribute to the bound
    ):
        chunk_vectors //= 2
    if k > _LONG:  # chunks that reach the bound are a large part of a sorted row: make them shorter
        chunk_vectors = max(1, chunk_vectors // 2)
    fold = blocks(max(knobs.bests_per_k * k, min(_LEAST_FOLD, piece // chunk_vectors // 8)))
    lane_bests = piece // (chunk_vectors * order.lanes) * order.lanes
    selection = Selection(order, Leaves(target), chunk_vectors, few=fold <= BLOCK and 3 * k <= min(fold, lane_bests))
    bests = blocks(length // selection.vectors) + fold + BLOCK
    if way == "select" and lane_bests < k:
        way, parts = "sort", 1  # too few lanes to bound K elements
    room = blocks(max(length if way == "rank" else knobs.room_per_k * k, _LEAST_ROOM, k + 2 * selection.look, parts * k))
    ranked = way == "rank" or (way == "select" and k <= knobs.rank_k)
    radix = RadixSort(order, knobs.digit_bits)
    radix_room = 0 if ranked else length if way == "sort" else k
    workers = tasks if parts == 1 else rows * parts

    writer = _Writer(
        order, selection, radix, lists,
        way=way, ranked=ranked, index_type=tensors[2].data_type.tvm, batch_rank=len(sizes), dense=dense, together=together > 1,
        split=parts > 1,
    )  # fmt: skip
    found = rows * parts * k if parts > 1 else 0
    pitch = 0 if dense else blocks(length) + order.lanes  # not a power of two: otherwise rows would share cache sets
    scratch = (
        *selection.temporaries(workers, room, bests if way == "select" else 0),
        *radix.temporaries(workers, radix_room),
        (order.word, tasks * together * pitch if way != "columns" else 0),
        (order.word, tasks * lists.columns * k if way == "columns" else 0),
        ("int32", tasks * lists.columns * k if way == "columns" else 0),
        (order.word, found),
        ("uint32", found),
    )
    return Kernel(
        "top_k",
        way,
        writer.parameters,
        writer.function,
        scalars=(
            tasks, parts, length, k, groups, room, bests, fold, radix_room, pitch,
            *along, *sizes, *(s for tensor in steps for s in tensor),
        ),
        temporaries=tuple((dtype, max(count, 1)) for dtype, count in scratch),
    )  # fmt: skip


def _copied(word: str, index: str, sizes: tuple[int, ...], steps: tuple[tuple[int, ...], ...], target: Target) -> Kernel:
    """Rows of one element, which is the first: values are copied, and all positions are 0."""
    is_run = all(one[-1] == 1 for one in steps)
    parallel = math.prod(sizes) >= _default.LEAST_PARALLEL_ITEMS
    rank = len(sizes)

    def each(items: Any) -> Any:
        many = not isinstance(items, int) or items >= _default.LEAST_PARALLEL_ITEMS
        return T.loop(T.i64(items) if isinstance(items, int) else items, parallel=parallel and many)

    def build() -> T.PrimFunc:
        with T.function() as f:
            source, values, indices = (f.buffer(*one) for one in (("input", word), ("values", word), ("indices", index)))
            own = f.scalars("size", rank)
            places = [f.scalars(name, rank - is_run) + [1] * is_run for name in ("row", "value_row", "index_row")]
            with T.elements(each, own) as at:
                T.store(values, T.dot(at, places[1]), source[T.dot(at, places[0])])
                T.store(indices, T.dot(at, places[2]), T.const(0, index))
        return f.result()

    parameters = (("word", word), ("index", index), ("rank", rank), ("run", is_run), ("parallel", parallel))
    scalars = (*sizes, *(step for one in steps for step in one[: rank - is_run]))
    return Kernel("top_k", "copied", parameters, build, scalars=scalars)


def _without(axis: int, values: tuple[int, ...]) -> tuple[int, ...]:
    return values[:axis] + values[axis + 1 :]


class _Writer:
    """Writes the kernel; each method writes one piece."""

    way: str
    ranked: bool
    index_type: str
    batch_rank: int
    dense: bool
    together: bool
    split: bool

    def __init__(self, order: Order, selection: Selection, radix: RadixSort, lists: ColumnLists, **choices: Any) -> None:
        self.order, self.selection, self.radix, self.lists = order, selection, radix, lists
        self.__dict__.update(choices)
        self.parameters = (
            *order.parameters,
            *(
                ("chunk", selection.vectors),
                ("few", selection.few),
                ("digit", radix.digit_bits),
                ("lists", lists.vectors),
                *choices.items(),
            ),
        )

    def function(self) -> T.PrimFunc:
        with T.function() as f:
            self.source, self.values = f.buffer("input", self.order.word), f.buffer("values", self.order.word)
            self.indices = f.buffer("indices", self.index_type)
            self.selection.declare(f)
            self.radix.declare(f)
            self.lines = f.buffer("lines", self.order.word)
            self.lists.declare(f)
            self.found_keys, self.found_positions = f.buffer("found_keys", self.order.word), f.buffer("found_positions", "uint32")
            self.tasks, self.parts, self.length, self.k, self.groups = (
                f.scalar(n) for n in ("tasks", "parts", "length", "k", "groups")
            )
            self.room, self.bests, self.fold, self.radix_room, self.pitch = (
                f.scalar(n) for n in ("room", "bests", "fold", "radix_room", "pitch")
            )
            self.step, self.value_step, self.index_step = (f.scalar(n) for n in ("step", "value_step", "index_step"))
            self.sizes = f.scalars("size", self.batch_rank)
            self.row_steps = [f.scalars(n, self.batch_rank) for n in ("row", "value_row", "index_row")]
            with self.selection.leaves.available():
                if self.split:
                    per_task(self.groups * self.parts, self._part)
                    per_task(self.groups, self._join)
                else:
                    per_task(self.tasks, self._task)
        return f.result()

    # -- Which rows ------------------------------------------------------------------------------------------------

    def _begin(self, task: Any) -> None:
        """Select a task's part of the scratch for the statements that follow."""
        self.selection.begin(task, self.room, self.bests, self.fold, self.k)
        self.radix.begin(task, self.radix_room)

    def _task(self, task: Any) -> None:
        self._begin(task)
        begin, end = share(task, self.tasks, self.groups)
        with T.loop(end - begin) as g:
            if self.way == "columns":
                self._columns(task, begin + g)
            elif not self.together:
                at = T.unravel(begin + g, self.sizes)
                if self.dense:
                    self._row(self.source, T.let(T.dot(at, self.row_steps[0])), at)
                else:
                    line = T.let(task * self.pitch)
                    start = T.let(T.dot(at, self.row_steps[0]))
                    with T.loop(self.length) as i:
                        T.store(self.lines, line + i, self.source[start + i * self.step])
                    self._row(self.lines, line, at)
            else:
                self._rows_together(task, begin + g)

    def _rows_together(self, task: Any, group: Any) -> None:
        """Rows that are adjacent in memory at each of their elements."""
        last = self.sizes[-1]
        *at, g = T.unravel(group, [*self.sizes[:-1], T.let(tiles(last))])
        first = corner(g, last)
        start, lines = T.let(T.dot([*at, first], self.row_steps[0])), T.let(task * SIDE * self.pitch)
        with T.loop(T.let(tiles(self.length))) as tile:
            i = corner(tile, self.length)
            rows = [T.hold(self.source[T.run(start + (i + r) * self.step, SIDE)]) for r in range(SIDE)]
            for c, column in enumerate(transposed(rows)):
                T.store(self.lines, T.run(lines + c * self.pitch + i, SIDE), column)
        with T.loop(T.i64(SIDE)) as c:
            self._row(self.lines, T.let(lines + c * self.pitch), [*at, T.let(first + c)])

    def _columns(self, task: Any, group: Any) -> None:
        last, columns = self.sizes[-1], self.lists.columns
        *at, g = T.unravel(group, [*self.sizes[:-1], T.let(T.truncdiv(last + (columns - 1), T.i64(columns)))])
        # If the dimension is not a multiple of the lanes, the last columns overlap earlier ones, which are computed twice.
        first = T.hold(T.min(g * columns, last - columns))
        start, value_start, index_start = (T.let(T.dot([*at, first], steps)) for steps in self.row_steps)
        self.lists.fill(self.source, start, self.step, self.length, self.k, task)
        with T.loop(self.k) as place, T.loop(T.i64(columns)) as c:
            position = T.let(self.lists.entry(place, c))
            value = self.source[start + position * self.step + c]
            T.store(self.values, value_start + place * self.value_step + c * self.row_steps[1][-1], value)
            to = index_start + place * self.index_step + c * self.row_steps[2][-1]
            T.store(self.indices, to, T.cast(position, self.index_type))

    def _part(self, task: Any) -> None:
        """The first phase of a split row: the K best of one part."""
        self._begin(task)
        row = T.hold(T.truncdiv(task, self.parts))
        begin, end = share(T.hold(task - row * self.parts), self.parts, self.length)
        start = T.let(T.dot(T.unravel(row, self.sizes), self.row_steps[0]))
        self.selection.collect(self.source, T.let(start + begin), T.let(end - begin), begin)
        self._cut_to_k()
        with T.loop(self.k) as i:
            T.store(self.found_keys, task * self.k + i, self.selection.keys[self.selection.base + i])
            T.store(self.found_positions, task * self.k + i, self.selection.positions[self.selection.base + i])

    def _join(self, row: Any) -> None:
        """The second phase: the K best of the parts' results, which are already in order of position."""
        self._begin(row * self.parts)
        at = T.unravel(row, self.sizes)
        self.selection.count.set(T.i64(0))
        with T.loop(self.parts * self.k) as i:
            found = T.let(row * self.parts * self.k + i)
            self.selection.take(self.found_keys[found], self.found_positions[found])
        self._cut_to_k()
        self._order_collected(self.source, T.let(T.dot(at, self.row_steps[0])), at)

    # -- One row ---------------------------------------------------------------------------------------------------

    def _row(self, source: Any, start: Any, at: list[Any]) -> None:
        if self.way == "sort":
            key = lambda i: self.order.key(source[start + i])  # noqa: E731
            self._emit_sorted(self.radix.sort(self.length, key, lambda i: T.cast(i, "uint32")), source, start, at)
            return
        if self.way == "rank":
            self.selection.collect_all(source, start, self.length, T.i64(0))
        else:
            self.selection.collect(source, start, self.length, T.i64(0))
            self._cut_to_k(RANK_MORE if self.ranked else 0)
        self._order_collected(source, start, at)

    def _cut_to_k(self, more: int = 0) -> None:
        with T.when(self.selection.count.value > self.k + more):
            self.selection.cut(exactly=True)

    def _order_collected(self, source: Any, start: Any, at: list[Any]) -> None:
        chosen = self.selection
        if not self.ranked:
            entry = self.radix.sort(self.k, lambda i: chosen.keys[chosen.base + i], lambda i: chosen.positions[chosen.base + i])
            self._emit_sorted(entry, source, start, at)
            return
        value_start, index_start = (T.let(T.dot(at, s)) for s in self.row_steps[1:])
        chosen.put_in_order()
        with T.loop(self.k) as j:
            self._emit(chosen.ordered[chosen.base + j], j, source, start, value_start, index_start)

    def _emit_sorted(self, entry: Any, source: Any, start: Any, at: list[Any]) -> None:
        value_start, index_start = (T.let(T.dot(at, s)) for s in self.row_steps[1:])
        with T.loop(self.k) as j:
            self._emit(self.radix.position(entry + j), j, source, start, value_start, index_start)

    def _emit(self, position: Any, place: Any, source: Any, start: Any, value_start: Any, index_start: Any) -> None:
        position = T.let(position)
        T.store(self.values, value_start + place * self.value_step, source[start + T.cast(position, "int64")])
        T.store(self.indices, index_start + place * self.index_step, T.cast(position, self.index_type))
