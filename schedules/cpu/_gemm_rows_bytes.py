"""Products of a few rows of bytes with a matrix of bytes: the matrix is read once, where it is, and nothing of it is packed.

An instruction multiplies four bytes of a row by four of a column, and adds the products to a sum. Where columns' places are
neighbours, words are there as they are needed. Where columns are, the bytes of four places are woven in registers.

Sums of the columns, which zero points need, are sums with one more row, of ones.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from typing import Any

from tvmdml.kernels import tensorir_values as T
from tvmdml.schedules.cpu import per_task, share
from tvmdml.schedules.cpu._ahead import read_ahead
from tvmdml.schedules.cpu._gemm_arithmetic import ONES, RowBytes, in_order, interleaved
from tvmdml.schedules.cpu._gemm_panels import ACROSS, ALONG, SINGLE, Factor, times, up
from tvmdml.schedules.cpu._gemm_tile_rows import PLACES, TileRows
from tvmdml.schedules.cpu._part import load_part
from tvmdml.schedules.cpu._sums import Sums
from tvmdml.schedules.cpu._tiles import SIDE

_STEP = 16
"""Places of the matrix whose rows are read at once: each sum in memory is read and written once for them."""
_AHEAD_ACROSS = 512
"""How many bytes of such a row are loaded before they are needed."""
_AHEAD_ALONG = 512
"""The same of a column."""
_NEAR = 1 << 13
"""Columns that take at most so many bytes together are asked for while those before are read."""
_MOST = 24
"""The most sums in registers."""


def room(rows: int, columns: int, depth: int, of_columns: bool) -> int:
    """The words that a task needs for its columns."""
    every = rows + of_columns
    return SIDE + every * (up(depth, PLACES) * SIDE + up(columns, PLACES) * PLACES)


class ByteRows:
    """Writes the loops.

    Args:
        rows: how many there are.
        arithmetic: what multiplies them.
        sums: whether sums of rows and of columns are needed.
        alike: whether the places of a row are neighbours.
    """

    def __init__(self, rows: int, arithmetic: RowBytes, sums: tuple[bool, bool], alike: bool) -> None:
        self.rows, self.arithmetic, self.sums, self.alike = rows, arithmetic, sums, alike
        self.every = rows + sums[1]

    def write(
        self,
        form: str,
        sizes: Sequence[Any],
        buffers: Sequence[Any],
        steps: Sequence[Any],
        scratch: Any,
        room: Any,
        start: Callable[[Any], tuple[Any, Any]],
        put: Callable[[Any, Any, Any, tuple[Any, Any]], None],
    ) -> None:
        """Write the kernel's statements.

        Args:
            form: how the matrix lies.
            sizes: tasks, batches, parts of the columns, columns, places.
            buffers: both factors.
            steps: their steps: of rows, columns, places.
            scratch: memory for rows and sums.
            room: elements of it that a task has.
            start: for a batch's number, the offsets of both factors.
            put: what becomes of finished sums of a row, from a column on, with the sum of the row's bytes and of the columns', if
                they are needed.
        """
        tasks, batch, parts, columns, self.depth = sizes
        (self.a, self.b), self.steps, self.scratch, self.put = buffers, steps, scratch, put
        self.room_of_row = T.hold(up(self.depth, PLACES) * SIDE)
        units = T.hold(batch * parts)

        def task(number: Any) -> None:
            self.at = T.hold(number * room)
            begin, end = share(number, tasks, units)
            with T.loop(T.hold(end - begin)) as i:
                one, part = T.unravel(T.hold(begin + i), [None, parts])
                self.base_a, self.base_b = start(one)
                self._pack()
                whole = T.hold(T.truncdiv(columns, T.i64(SIDE)))
                self.low = T.hold(T.truncdiv(whole * part, parts) * SIDE)
                high = T.hold(T.Select(part + 1 == parts, columns, T.truncdiv(whole * (part + 1), parts) * SIDE))
                self.width = T.hold(high - self.low)
                self.room_of_sums = T.hold(up(self.width, PLACES) * PLACES)
                {ACROSS: self._across, ALONG: self._along}[form]()
                self._finish()

        per_task(tasks, task)

    # -- Rows as words, with zeros behind their places

    def _row(self, row: int) -> Any:
        """Where a row's words begin; the last row is that of ones."""
        return self.at + SIDE + self.room_of_row * row

    def _pack(self) -> None:
        steps = self.steps[0]
        factor = Factor(0, self.a, ALONG if self.alike else SINGLE, 1, steps[0], steps[2])
        words = T.hold(up(self.depth, PLACES))
        for row in range(self.rows):
            TileRows(factor, self.arithmetic).pack(
                self.base_a, None, self.scratch, T.hold(self._row(row)), T.i64(row), T.i64(row), T.i64(0), self.depth
            )
            if self.sums[0]:
                self._sum(row, words)
        if self.sums[1]:
            at, whole = T.hold(self._row(self.rows)), T.hold(T.truncdiv(self.depth, T.i64(4)))
            with T.loop(self.room_of_row) as k:
                left = T.hold(T.cast(T.min(T.max(self.depth - k * 4, T.i64(0)), T.i64(4)), "int32"))
                ones = T.const(ONES, "int32")
                some = (T.const(1, "int32") << (left * 8)) - 1
                T.store(self.scratch, at + k, T.Select(k < whole, ones, ones & some))

    def _sum(self, row: int, words: Any) -> None:
        """The sum of a row's bytes, as they are packed."""
        total = T.Variable(f"int32x{SIDE}", T.splat(T.const(0, "int32"), SIDE))
        at = T.hold(self._row(row))
        with T.loop(words) as k:
            one = self.scratch[T.run(at + k * SIDE, SIDE)]
            total.set(self.arithmetic.sum_step(0, one, total.value))
        lanes = [T.Shuffle([total.value], [lane]) for lane in range(SIDE)]
        while len(lanes) > 1:
            lanes = [T.hold(one + other) for one, other in zip(lanes[::2], lanes[1::2], strict=True)]
        T.store(self.scratch, self.at + row, lanes[0])

    # -- Sums

    def _place(self, row: int, column: Any) -> Any:
        """Where the sum of a row and a column of the part is."""
        return self.at + SIDE + self.room_of_row * self.every + self.room_of_sums * row + column

    def _cell(self, at: Any, lanes: int) -> Any:
        return self.scratch[T.run(at, lanes)]

    def _finish(self) -> None:
        vectors = T.hold(T.truncdiv(self.width, T.i64(SIDE)))

        def finish(column: Any, lanes: int) -> None:
            of_columns = T.hold(self._cell(self._place(self.rows, column), lanes)) if self.sums[1] else None
            for row in range(self.rows):
                of_row = T.splat(self.scratch[self.at + row], lanes) if self.sums[0] else None
                total = T.hold(self._cell(self._place(row, column), lanes))
                self.put(T.i64(row), T.hold(self.low + column), total, (of_row, of_columns))

        with T.loop(vectors) as v:
            finish(T.hold(v * SIDE), SIDE)
        with T.loop(T.hold(self.width - vectors * SIDE)) as v:
            finish(T.hold(vectors * SIDE + v), 1)

    # -- Columns are neighbours: some rows of the matrix at a time, over all columns, whose sums are in a cache

    def _across(self) -> None:
        whole = T.hold(T.truncdiv(self.width, T.i64(PLACES)))
        left = T.hold(T.cast(self.width - whole * PLACES, "int32"))
        row_step, last = self.steps[1][2], T.hold(self.depth - 1)
        nothing = T.splat(T.const(0, str(self.b.dtype)), PLACES)
        # Behind the end of these rows lies what another task reads: the beginning of the next ones is asked for instead.
        near = T.hold(T.min(T.i64(_AHEAD_ACROSS), self.width))
        to_next, turn = T.hold(times(T.i64(_STEP), row_step) - self.width), T.hold(self.width - near)
        with T.loop(T.hold(up(self.depth, _STEP))) as k:
            # Words of rows are zeros behind the last place, so any row of the matrix will do there.
            numbers = [T.hold(T.min(k * _STEP + r, last)) for r in range(_STEP)]
            lines = [T.hold(self.base_b + self.low + times(number, row_step)) for number in numbers]
            first = T.hold(T.expression(k == T.i64(0)))
            values = [
                [T.hold(self.scratch[self._row(row) + k * (_STEP // 4) + group]) for group in range(_STEP // 4)]
                for row in range(self.every)
            ]

            def step(
                column: Any, load: Callable[[Any, Any], Any], lines: list[Any] = lines, first: Any = first, values: Any = values
            ) -> None:
                cells = [[T.hold(self._place(row, column + i * SIDE)) for i in range(4)] for row in range(self.every)]
                zero = T.splat(T.const(0, "int32"), SIDE)
                totals = [[T.hold(T.Select(T.splat(first, SIDE), zero, self._cell(at, SIDE))) for at in row] for row in cells]
                for group in range(_STEP // 4):
                    words = interleaved([T.hold(load(line, column)) for line in lines[4 * group : 4 * group + 4]])
                    for row in range(self.every):
                        value = T.splat(values[row][group], SIDE)
                        totals[row] = [
                            T.hold(self.arithmetic.step(value, word, total)) for word, total in zip(words, totals[row], strict=True)
                        ]
                for places, own in zip(cells, totals, strict=True):
                    for at, total in zip(places, own, strict=True):
                        T.store(self.scratch, T.run(at, SIDE), total)

            def load(line: Any, column: Any, later: Any) -> Any:
                read_ahead(self.b, line + later)
                return self.b[T.run(T.hold(line + column), PLACES)]

            with T.loop(whole) as v:
                column = T.hold(v * PLACES)
                later = T.hold(column + near + T.Select(column < turn, T.i64(0), to_next))
                step(column, functools.partial(load, later=later))
            with T.when(left > T.const(0, "int32")):
                step(
                    T.hold(whole * PLACES),
                    lambda line, column: load_part(self.b, T.hold(line + column), T.const(0, "int32"), left, nothing),
                )
        with T.loop(T.hold(up(self.width, PLACES))) as v:
            for row in range(self.every):
                cells = [T.hold(self._place(row, v * PLACES + i * SIDE)) for i in range(4)]
                for at, total in zip(cells, in_order([T.hold(self._cell(at, SIDE)) for at in cells]), strict=True):
                    T.store(self.scratch, T.run(at, SIDE), total)

    # -- Places are neighbours: some columns at a time, whose sums are in registers

    def _along(self) -> None:
        some = next(one for one in (8, 4) if one * self.every <= _MOST or one == 4)
        step = self.steps[1][1]
        whole = T.hold(T.truncdiv(self.depth, T.i64(PLACES)))
        left = T.hold(T.cast(self.depth - whole * PLACES, "int32"))
        nothing = T.splat(T.const(0, str(self.b.dtype)), PLACES)
        together = T.hold(times(T.i64(some), step))
        ahead = T.hold(T.Select(T.And(together >= T.i64(0), together <= T.i64(_NEAR)), together, T.i64(_AHEAD_ALONG)))
        with T.loop(T.hold(up(self.width, some))) as i:
            column = T.hold(T.min(i * some, self.width - some))
            lines = [T.hold(self.base_b + times(T.hold(self.low + column + n), step)) for n in range(some)]
            sums = Sums(self.every, some, lambda row, which: T.splat(T.const(0, "int32"), SIDE), self.arithmetic.step)

            def add(k: Any, load: Callable[[Any], Any], lines: list[Any] = lines, sums: Sums = sums) -> None:
                words = [T.hold(self._cell(self._row(row) + k * SIDE, SIDE)) for row in range(self.every)]
                for which, line in enumerate(lines):
                    one = T.hold(self.arithmetic.many(1, T.hold(load(T.hold(line + k * PLACES)))))
                    for row, word in enumerate(words):
                        sums.set(row, which, self.arithmetic.step(word, one, sums.get(row, which)))

            def load(at: Any) -> Any:
                read_ahead(self.b, at + ahead)
                return self.b[T.run(at, PLACES)]

            with T.loop(whole) as k:
                add(k, load)
            with T.when(left > T.const(0, "int32")):
                add(whole, lambda at: load_part(self.b, at, T.const(0, "int32"), left, nothing))
            for row in range(self.every):
                total = _sums_of_lanes([T.hold(sums.get(row, which)) for which in range(some)])
                T.store(self.scratch, T.run(T.hold(self._place(row, column)), some), total)


def _sums_of_lanes(vectors: list[Any]) -> Any:
    """A vector with the sum of the lanes of each of 4 or 8 vectors."""
    for size in (1, 2):
        orders = [[quarter + lane for quarter in range(0, SIDE, 4) for lane in lanes] for lanes in _halves(size)]
        vectors = [_both(one, other, orders) for one, other in zip(vectors[::2], vectors[1::2], strict=True)]
    if len(vectors) == 2:
        vectors = [_both(vectors[0], vectors[1], [[*range(8), *range(16, 24)], [*range(8, 16), *range(24, 32)]])]
        orders = [[*range(4), *range(8, 12)], [*range(4, 8), *range(12, 16)]]
    else:
        vectors = [T.hold(T.Shuffle(vectors, list(range(8))) + T.Shuffle(vectors, list(range(8, 16))))]
        orders = [list(range(4)), list(range(4, 8))]
    return T.hold(T.Shuffle(vectors, orders[0]) + T.Shuffle(vectors, orders[1]))


def _halves(size: int) -> tuple[list[int], list[int]]:
    """The lower and the upper halves of four lanes of two vectors, by turns in steps of some lanes."""
    low = [lane + i for first in range(0, 2, size) for lane in (first, SIDE + first) for i in range(size)]
    return low, [lane + 2 for lane in low]


def _both(one: Any, other: Any, orders: list[list[int]]) -> Any:
    return T.hold(T.Shuffle([one, other], orders[0]) + T.Shuffle([one, other], orders[1]))
