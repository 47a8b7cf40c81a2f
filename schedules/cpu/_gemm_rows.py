"""Products of a few rows with a matrix: the matrix is read once, where it is, and nothing is packed.

Sums have the order of ``_gemm.py``.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from tvmdml.kernels import tensorir_values as T
from tvmdml.kernels.contraction import KC
from tvmdml.schedules.cpu import per_task, share
from tvmdml.schedules.cpu._ahead import read_ahead
from tvmdml.schedules.cpu._gemm import blocks
from tvmdml.schedules.cpu._gemm_arithmetic import FloatProducts
from tvmdml.schedules.cpu._gemm_panels import ACROSS, ALONG, times
from tvmdml.schedules.cpu._sums import Sums
from tvmdml.schedules.cpu._tiles import SIDE, transposed

_TOGETHER = {True: 16, False: 32}
"""Columns whose places are contiguous and whose sums are computed in turn, as each sum waits for the one before; for columns that
share few sets of the first cache, and others."""
_SETS = 2048
"""Columns that are a multiple of so many bytes apart share few sets of the first cache, so those of one vector fill them."""
_AHEAD_ALONG = {16: 256, 32: 16}
"""How many elements of a line are loaded before they are needed, by the columns that are computed in turn. Columns of few sets lie
in memory's pages of their own, so processors ask for little by themselves."""
BLOCKS = "blocks"
"""How one row reads such columns if each lane has a block of ``KC`` places: so a column is read from one end to the other."""
_AHEAD = 128
"""How many elements of a row are loaded before they are needed. The next rows' would have the same place in the first cache where
rows are a power of two apart."""


def _in_turn(place: Any, before: Any) -> Any:
    """A place that LLVM knows once sums are computed: it would mix the squares of several vectors, and have too few registers."""
    first = T.let(T.Shuffle([before], [0]))
    kind = {"float32": "int32", "float64": "int64"}[T.type_of(first)]
    word = kind.replace("int", "i")
    source = f"""
define i64 @tvmdml_in_turn(i64 %place, {word} %before) alwaysinline {{
  %same = call i64 asm "", "=r,0,r"(i64 %place, {word} %before)
  ret i64 %same
}}
"""
    return T.let(T.call_imported("int64", "tvmdml_in_turn", source, place, T.reinterpret(first, kind)))


def side_of(lanes: int) -> int:
    """The rows and columns of squares that are transposed in registers, by the elements of a register."""
    return min(max(lanes, 4), SIDE)


def form_of(rows: int, step: int, itemsize: int, depth: int, lanes: int) -> str:
    """How the matrix is read, by the step from one column to the next and the places of a sum."""
    whole = depth % (side_of(lanes) * KC) == 0
    return ACROSS if step == 1 else BLOCKS if rows == 1 and whole and step * itemsize % _SETS == 0 else ALONG


def together(step: int) -> int:
    """How many such columns are computed in turn, by the bytes from one to the next."""
    return _TOGETHER[step % _SETS == 0]


class RowLoops:
    """Writes the loops."""

    def __init__(self, rows: int, lanes: int, arithmetic: FloatProducts, together: int) -> None:
        self.rows, self.lanes, self.arithmetic = rows, lanes, arithmetic
        self.kind = arithmetic.total
        self.side = side_of(lanes)
        self.together, self.ahead = together // self.side, _AHEAD_ALONG[together]

    def write(
        self,
        form: str,
        sizes: Sequence[Any],
        buffers: Sequence[Any],
        steps: Sequence[Any],
        scratch: Any,
        room: Any,
        start: Callable[[Any], tuple[Any, Any]],
        put: Callable[[Any, Any, Any], None],
    ) -> None:
        """Write the kernel's statements.

        Args:
            form: how the matrix lies.
            sizes: tasks, batches, parts of the columns, columns, places.
            buffers: both factors.
            steps: their steps: of rows, columns, places.
            scratch: memory for sums.
            room: elements of it that a task has.
            start: for a batch's number, the offsets of both factors.
            put: what becomes of finished sums of a row, from a column on.
        """
        tasks, batch, parts, columns, self.depth = sizes
        (self.a, self.b), self.steps, self.scratch, self.put = buffers, steps, scratch, put
        units = T.let(batch * parts)

        def task(number: Any) -> None:
            self.at = T.let(number * room)
            begin, end = share(number, tasks, units)
            with T.loop(T.let(end - begin)) as i:
                one, part = T.unravel(T.let(begin + i), [None, parts])
                self.base_a, self.base_b = start(one)
                low = T.hold(T.truncdiv(T.truncdiv(columns, T.i64(SIDE)) * part, parts) * SIDE)
                high = T.hold(
                    T.Select(part + 1 == parts, columns, T.truncdiv(T.truncdiv(columns, T.i64(SIDE)) * (part + 1), parts) * SIDE)
                )
                {ACROSS: self._across, ALONG: self._along, BLOCKS: self._by_blocks}[form](low, high)

        per_task(tasks, task)

    def _value(self, row: int, place: Any) -> Any:
        """The first factor's element."""
        steps = self.steps[0]
        return T.cast(self.a[self.base_a + times(T.i64(row), steps[0]) + times(place, steps[2])], self.kind)

    def _vector(self, offset: Any, lanes: int) -> Any:
        return T.cast(self.b[T.run(offset, lanes)], self.kind)

    def _zero(self, lanes: int) -> Any:
        return T.splat(T.const(0, self.kind), lanes)

    # -- Columns are contiguous: some rows of the matrix at a time, over all columns, whose sums are in a cache

    def _across(self, low: Any, high: Any) -> None:
        places = 8 if self.rows <= 2 and self.lanes == 16 else 4
        width = T.let(high - low)
        with blocks(self.depth, T.i64(KC)) as (first, count):
            whole = T.let(T.truncdiv(count, T.i64(places)))
            with T.loop(whole) as k:
                self._some(low, width, T.let(first + k * places), places, T.expression(k == T.i64(0)))
            done = T.let(whole * places)
            with T.loop(T.let(count - done)) as k:
                self._some(low, width, T.let(first + done + k), 1, T.expression(done + k == T.i64(0)))

            def finished(column: Any, lanes: int) -> None:
                for row in range(self.rows):
                    at = [T.let(self.at + (row * 2 + i) * width + column) for i in range(2)]
                    own, before = (self._cell(one, lanes) for one in at)
                    total = T.hold(T.Select(T.splat(T.expression(first == T.i64(0)), lanes), own, before + own))
                    T.either(
                        first + count >= self.depth,
                        lambda total=total, row=row: self.put(T.i64(row), T.let(low + column), total),
                        lambda total=total, at=at, lanes=lanes: T.store(self.scratch, T.run(at[1], lanes), total),
                    )

            self._each_column(width, finished)

    def _cell(self, at: Any, lanes: int) -> Any:
        return self.scratch[T.run(at, lanes)]

    def _each_column(self, width: Any, body: Callable[[Any, int], None]) -> None:
        vectors = T.let(T.truncdiv(width, T.i64(self.lanes)))
        with T.loop(vectors) as v:
            body(T.let(v * self.lanes), self.lanes)
        with T.loop(T.let(width - vectors * self.lanes)) as v:
            body(T.let(vectors * self.lanes + v), 1)

    def _some(self, low: Any, width: Any, place: Any, count: int, first: Any) -> None:
        """Some places of the contraction."""
        row_step = self.steps[1][2]
        values = [[T.let(self._value(row, place + r)) for r in range(count)] for row in range(self.rows)]
        wide = [[T.let(T.splat(one, self.lanes)) for one in row] for row in values]
        lines = [T.let(self.base_b + low + times(T.let(place + r), row_step)) for r in range(count)]

        # Behind the end of these rows lies what another task reads: the beginning of the next ones is asked for instead.
        near = T.let(T.min(T.i64(_AHEAD), width))
        to_next = T.let(times(T.i64(count), row_step) - width)
        turn = T.let(width - near)

        def step(column: Any, lanes: int) -> None:
            if lanes > 1:
                later = T.let(column + near + T.Select(column < turn, T.i64(0), to_next))
                for line in lines:
                    read_ahead(self.b, line + later)
            along = [T.let(self._vector(line + column, lanes)) for line in lines]
            for row in range(self.rows):
                at = T.let(self.at + row * 2 * width + column)
                total = T.let(T.Select(T.splat(first, lanes), self._zero(lanes), self._cell(at, lanes)))
                for value, one in zip((wide if lanes > 1 else values)[row], along, strict=True):
                    total = self.arithmetic.step(value, one, total)
                T.store(self.scratch, T.run(at, lanes), total)

        self._each_column(width, step)

    # -- Places are contiguous: squares are transposed in registers

    def _along(self, low: Any, high: Any) -> None:
        vectors, some = T.let(T.truncdiv(high - low + (self.side - 1), T.i64(self.side))), self.together
        groups = T.let(T.truncdiv(vectors, T.i64(some)))

        def columns(first: Any, count: int) -> list[Any]:
            # The last vector begins earlier, and computes some sums again.
            return [T.hold(T.max(T.min(low + (first + i) * self.side, high - self.side), T.i64(0))) for i in range(count)]

        with T.loop(groups) as group:
            self._vectors(columns(T.let(group * some), some))
        if some > 1:
            with T.loop(T.let(vectors - groups * some)) as one:
                self._vectors(columns(T.let(groups * some + one), 1))

    def _vectors(self, columns: list[Any]) -> None:
        """All sums of some vectors of columns."""
        lines = [[T.hold(self.base_b + times(T.let(one + i), self.steps[1][1])) for i in range(self.side)] for one in columns]
        with blocks(self.depth, T.i64(KC)) as (first, count):
            whole = T.let(T.truncdiv(count, T.i64(self.side)))
            sums = Sums(self.rows, len(columns), lambda row, which: self._zero(self.side), self.arithmetic.step)

            def add(which: int, place: Any, vectors: list[Any]) -> None:
                for row in range(self.rows):
                    total = sums.get(row, which)
                    for k, one in enumerate(vectors):
                        value = T.splat(T.let(self._value(row, place + k)), self.side)
                        total = T.let(self.arithmetic.step(value, one, total))
                    sums.set(row, which, total)

            with T.loop(whole) as block:
                place = T.let(first + block * self.side)
                for which, own in enumerate(lines):
                    if which:
                        place = _in_turn(place, sums.get(0, which - 1))
                    for line in own:
                        read_ahead(self.b, line + place + self.ahead)
                    add(which, place, transposed([T.hold(self._vector(line + place, self.side)) for line in own]))
            with T.loop(T.let(count - whole * self.side)) as k:
                place = T.let(first + whole * self.side + k)
                for which, own in enumerate(lines):
                    gathered = self._zero(self.side)
                    for i, line in enumerate(own):
                        lane = T.splat(self._vector(line + place, 1), self.side)
                        gathered = T.hold(T.Shuffle([gathered, lane], [self.side if j == i else j for j in range(self.side)]))
                    add(which, place, [gathered])
            for which, column in enumerate(columns):
                for row in range(self.rows):
                    at = T.let(self.at + (row * len(columns) + which) * self.side)
                    own_sum, before = sums.get(row, which), self._cell(at, self.side)
                    total = T.hold(T.Select(T.splat(T.expression(first == T.i64(0)), self.side), own_sum, before + own_sum))
                    T.either(
                        first + count >= self.depth,
                        lambda row=row, total=total, column=column: self.put(T.i64(row), column, total),
                        lambda at=at, total=total: T.store(self.scratch, T.run(at, self.side), total),
                    )

    # -- The same for one row, with blocks of a column as lanes: so a column is read from one end to the other

    def _by_blocks(self, low: Any, high: Any) -> None:
        part, some = self.side * KC, SIDE // self.side
        parts, count = T.let(T.truncdiv(self.depth, T.i64(part))), T.let(T.truncdiv(self.depth, T.i64(KC)))
        self._spread(count)
        sums = [T.let(self.at + self.depth + which * count) for which in range(some)]
        with T.loop(T.let(T.truncdiv(high - low + (some - 1), T.i64(some)))) as i, T.loop(parts) as number:
            columns = [T.hold(T.min(low + i * some + which, high - 1)) for which in range(some)]
            begins = [T.hold(self.base_b + times(one, self.steps[1][1]) + number * part) for one in columns]
            to_next = T.hold(T.Select(number + 1 < parts, T.i64(part), times(T.i64(some), self.steps[1][1]) - number * part))
            totals = Sums(1, some, lambda row, which: self._zero(self.side), self.arithmetic.step)
            with T.loop(T.i64(KC // self.side)) as square:
                place = T.let(square * self.side)
                values = T.let(self.at + number * part + place * self.side)
                for which, begin in enumerate(begins):
                    at = T.let(begin + place)
                    at = _in_turn(at, totals.get(0, which - 1)) if which else at
                    lines = [T.let(at + lane * KC) for lane in range(self.side)]
                    for line in lines:
                        read_ahead(self.b, line + to_next)
                    total = totals.get(0, which)
                    for k, one in enumerate(transposed([T.hold(self._vector(line, self.side)) for line in lines])):
                        total = T.let(self.arithmetic.step(self._cell(T.let(values + k * self.side), self.side), one, total))
                    totals.set(0, which, total)
            for which, (column, own) in enumerate(zip(columns, sums, strict=True)):
                T.store(self.scratch, T.run(own + number * self.side, self.side), totals.get(0, which))
                with T.when(number + 1 == parts):
                    whole = T.Variable(self.kind, self.scratch[own])
                    with T.loop(T.let(count - 1)) as block:
                        whole.set(whole.value + self.scratch[own + 1 + block])
                    self.put(T.i64(0), column, whole.value)

    def _spread(self, count: Any) -> None:
        """Write the first factor so that elements of the same place of ``side`` blocks are neighbours."""
        with T.loop(count) as block, T.loop(T.i64(KC)) as k:
            part = T.let(T.truncdiv(block, T.i64(self.side)))
            at = self.at + part * (self.side * KC) + k * self.side + (block - part * self.side)
            T.store(self.scratch, T.let(at), self._value(0, T.let(block * KC + k)))
