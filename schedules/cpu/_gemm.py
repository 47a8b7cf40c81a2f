"""Products of matrices on the CPU: a tile of sums in registers, over panels of both factors that stay in caches.

The loops are those of Goto and van de Geijn: columns, depth, rows, and tiles in them. What is particular to an operator is given:
how panels are packed (``_gemm_panels.py``), what a step computes (``_gemm_arithmetic.py``), and what becomes of a finished sum.

A sum's terms are added in their order, ``KC`` at a time, and then the sums of the blocks in their order. So a sum has the same
bits for every tile, block size and number of tasks.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import numpy as np

from tvmdml.kernels import tensorir_values as T
from tvmdml.kernels.contraction import KC
from tvmdml.kernels.seldom import forget_registers
from tvmdml.kernels.tiles import part_of_rows
from tvmdml.schedules.cpu import per_task, share
from tvmdml.schedules.cpu._ahead import read_ahead, read_far_ahead
from tvmdml.schedules.cpu._gemm_arithmetic import ProductArithmetic
from tvmdml.schedules.cpu._gemm_owned import Panels
from tvmdml.schedules.cpu._gemm_panels import Factor, up
from tvmdml.schedules.cpu._gemm_tile_rows import packer_of
from tvmdml.schedules.cpu._sums import Sums, zeros

_AHEAD = 4
"""Steps of a tile between what it reads of a panel of columns and what it asks for: the second cache's latency, also where threads
share a core. A step of vectors of 64 bytes takes so long that asking takes no time."""
EVERY = (8, 4, 2, 1)
"""What ``LaunchIntegers.every`` may be."""
SLACK = 64
"""Elements behind a buffer of panels, into which a vector may run over."""


class TileShape(NamedTuple):
    """The tile: rows, and vectors of columns."""

    rows: int
    vectors: int
    lanes: int

    @property
    def columns(self) -> int:
        """How many columns a tile has."""
        return self.vectors * self.lanes


class LaunchIntegers(NamedTuple):
    """Integers of the launch."""

    tasks: Any
    batch: Any
    row_parts: Any
    column_parts: Any
    rows: Any
    columns: Any
    depth: Any
    """Places of the contraction."""
    row_block: Any
    """Rows of a packed block, a multiple of the tile's."""
    column_block: Any
    depth_block: Any
    """Places of packed panels, a multiple of ``KC``."""
    every: Any
    """Places of a tile for each cache line of the next rows that it asks for: as many as let all tiles of a row ask for all of it.

    Or for each place of the next columns: as many as let all tiles over a panel ask for all of it."""
    asked: Any
    """The lines of a factor that have the cache lines for which a tile asks."""


class ProductLoops:
    """Writes the loops of a product into a kernel."""

    PARTS = True
    """Whether what is left of the rows is computed by smaller tiles."""

    def __init__(
        self,
        shape: TileShape,
        arithmetic: ProductArithmetic,
        factors: tuple[Factor, Factor],
        sums: tuple[bool, bool] = (False, False),
        brief: bool = True,
        late: bool = False,
        as_it_lies: bool = False,
        packed: tuple[bool, bool] = (False, False),
        asks_for_columns: bool = False,
    ) -> None:
        self.packed, self.asks_for_columns = packed, asks_for_columns
        self.brief, self.packs_late, self.as_it_lies = brief, late, as_it_lies
        self.shape, self.arithmetic, self.with_sums = shape, arithmetic, sums
        self.factors = factors
        self.a, self.b = (packer_of(one, arithmetic) for one in factors)

    @staticmethod
    def scratch(
        shape: TileShape,
        arithmetic: ProductArithmetic,
        blocks: tuple[int, int, int],
        lines: tuple[int, int],
        depth: int,
        packed: tuple[bool, bool] = (False, False),
    ) -> tuple[int, int, int, int]:
        """Elements of a task's scratch memory: of panels of both factors, of unfinished sums, and of sums of lines.

        Args:
            shape: the tile.
            arithmetic: what packed elements are.
            blocks: rows, columns and places of packed blocks.
            lines: the most rows and columns of a task's part.
            depth: all places.
            packed: the factors that are packed already.
        """
        mr, nr = shape.rows, shape.columns
        rows, columns = (-(-min(size, block) // width) for size, block, width in zip(lines, blocks, (mr, nr), strict=False))
        places = up(min(depth, blocks[2]), arithmetic.group * arithmetic.unit) * arithmetic.unit
        tiles = (-(-lines[0] // mr) + 1) * columns if depth > blocks[2] else 1
        return (
            1 if packed[0] else rows * mr * places + SLACK,
            1 if packed[1] else columns * nr * places + SLACK,
            tiles * mr * nr + SLACK,
            (-(-lines[0] // mr) + 1) * mr + columns * nr + 2 * SLACK,
        )

    def write(
        self,
        plan: LaunchIntegers,
        room: Sequence[Any],
        buffers: Sequence[Any],
        start: Callable[[Any], tuple[Any, Any, Any, Any]],
        finish: Callable[[Any, Any, Any, tuple[Any, Any]], None],
        ask: Callable[[Any, Any, int], None] | None = None,
    ) -> None:
        """Write the kernel's statements.

        Args:
            plan: sizes.
            room: elements of each scratch buffer that a task has.
            buffers: the scratch buffers.
            start: for a batch's number, the offsets of both factors and their zero points; it may note what ``finish`` needs.
            finish: ``finish(row, column, total, sums)``: what becomes of a row's sums from a column on. ``sums`` are the places of
                the sums of the row, and of the columns.
            ask: ``ask(row, column, count)``: ask for the memory that ``finish`` reads and writes, of so many columns.
        """
        self.plan, self.finish, self.ask = plan, finish, ask
        self.next_rows: tuple[Any, Any] | None = None
        self.next_columns: Any = None
        self.next_late: tuple[Any, Any, Any] | None = None
        self.panels_a, self.panels_b, self.partial, self.lines = buffers
        if self.packed[0]:
            self.panels_a = self.factors[0].buffer
        if self.packed[1]:
            self.panels_b = self.factors[1].buffer
        own = (
            Panels(width, self.arithmetic.group, lines, plan.depth, self.arithmetic.unit)
            for width, lines in zip((self.shape.rows, self.shape.columns), (plan.rows, plan.columns), strict=True)
        )
        self.of_owned = tuple(
            (T.hold(one.panel), T.hold(one.sums)) if packed else None for one, packed in zip(own, self.packed, strict=True)
        )
        units = T.hold(plan.batch * plan.row_parts * plan.column_parts)
        shape = self.shape

        def task(number: Any) -> None:
            self._enter()
            self.at_a, self.at_b, self.at_partial, self.at_lines = (T.hold(number * one) for one in room)
            begin, end = share(number, plan.tasks, units)
            with T.loop(T.hold(end - begin)) as i:
                unit = T.hold(begin + i)
                batch, row_part, column_part = T.unravel(unit, [None, plan.row_parts, plan.column_parts])
                self.base_a, self.base_b, self.zero_a, self.zero_b = start(batch)
                rows = self._part(row_part, plan.row_parts, plan.rows, self.row_width(shape.rows, self.packed[0]))
                columns = self._part(column_part, plan.column_parts, plan.columns, shape.columns)
                self._part_product(*rows, *columns)
            self._leave()

        per_task(plan.tasks, task)

    def _enter(self) -> None:
        """What a task begins with, in its thread."""

    def _leave(self) -> None:
        """What a task ends with."""

    @classmethod
    def row_width(cls, rows: int, packed: bool) -> int:
        """A multiple of so many rows begins each part: packed panels are not divided."""
        return (0 if packed or not cls.PARTS else part_of_rows(rows)) or rows

    @staticmethod
    def _part(part: Any, parts: Any, size: Any, width: int) -> tuple[Any, Any]:
        """A part's lines: whole panels, of which no part has two more than others, and in the last part what is left."""
        panels = T.hold(T.max(up(size, width), T.i64(1)))
        begin = T.hold(T.truncdiv(panels * part, parts) * width)
        end = T.hold(T.Select(part + 1 == parts, size, T.truncdiv(panels * (part + 1), parts) * width))
        return begin, end

    def _part_product(self, r0: Any, r1: Any, c0: Any, c1: Any) -> None:
        plan, shape = self.plan, self.shape
        mr, nr = shape.rows, shape.columns
        with blocks(c1 - c0, plan.column_block) as (c, columns):
            column = T.hold(c0 + c)
            column_panels, all_row_panels = T.hold(up(columns, nr)), T.hold(up(r1 - r0, mr))
            with blocks(plan.depth, plan.depth_block) as (place, places):
                groups = T.hold(up(places, self.arithmetic.group * self.arithmetic.unit) * self.arithmetic.unit)
                first = T.hold(T.expression(place == T.i64(0)))
                last = T.hold(T.expression(place + places >= plan.depth))
                if not self.packs_late and not self.packed[1]:
                    self._pack_columns(column, columns, (c0, c1), groups, place, places, first)
                of_rows = T.hold(self.at_lines + column_panels * nr + SLACK)
                beyond = next_block = None
                if self.asks_for_columns:
                    here = column, column_panels, c1, place, places, last
                    beyond, next_block = (self._next_late(*here), None) if self.packs_late else (None, self._next_block(*here))
                with blocks(r1 - r0, plan.row_block) as (r, rows):
                    row = T.hold(r0 + r)
                    row_panels = T.hold(up(rows, mr))
                    number = T.hold(T.truncdiv(r, T.i64(mr)))
                    if not self.as_it_lies and not self.packed[0]:
                        with T.loop(row_panels) as p:
                            line = T.hold(_start(row + p * mr, r0, r1, mr))
                            at = T.hold(self.at_a + p * (groups * mr))
                            self.a.pack(self.base_a, self.zero_a, self.panels_a, at, line, r1 - 1, place, places)
                            if self.with_sums[0]:
                                self.a.sums(self.lines, of_rows + (number + p) * mr, first, shape.lanes)
                    of_row, of_column = self._steps_of_tiles(all_row_panels, column_panels)

                    def panel(side: int, i: Any) -> tuple[Any, Any, Any]:
                        """Its first line, where it is, and where the sums of its lines are."""
                        if side:
                            own = self.at_b + i * (groups * nr), self.at_lines + i * nr
                            line = T.hold(_start(column + i * nr, c0, c1, nr))
                            return line, *self._panel(1, column, i, place, *own)
                        line = T.hold(_start(row + i * mr, r0, r1, mr))
                        return line, *self._panel(0, row, i, place, self.at_a + i * (groups * mr), of_rows + (number + i) * mr)

                    def tile(ir: Any, jr: Any, of_a: tuple[Any, Any, Any], of_b: tuple[Any, Any, Any], late: bool = False) -> None:
                        line, a, sums_a = of_a
                        start, b, sums_b = of_b
                        own = T.Select(plan.depth > plan.depth_block, (number + ir) * of_row + jr * of_column, T.i64(0))
                        at = T.hold(self.at_partial + own * (mr * nr))
                        where = _Where(line, start, T.hold(T.min(T.i64(mr), r1 - line)), (sums_a, sums_b))
                        if self.as_it_lies:
                            self.a.begin(self.base_a, self.zero_a, self.panels_a, self.at_a, line, place, r1 - 1)
                        if self.as_it_lies and self.ask is not None:
                            ahead = T.hold(T.min(line + mr + jr * plan.asked, r1 - 1))
                            self.next_rows = ahead, place
                        if next_block is not None:
                            self.next_columns = self._next_columns(next_block, number + ir, jr, groups)
                        if beyond is not None:
                            along, deep, there = beyond
                            share = T.min(number + ir, plan.every - 1) * T.truncdiv(groups, plan.every)
                            self.next_late = T.hold(along + jr * nr), T.hold(deep + share), there
                        if late:
                            self.b.begin(self.base_b, self.zero_b, self.panels_b, b, start, place)
                        own_rows = None if late else T.hold(r1 - (row + ir * mr))
                        compute = functools.partial(self._tile, a, b, groups, at, first, last, where, late)
                        self._tile_or_parts(compute, where, own_rows)

                    self._tiles(row_panels, column_panels, T.expression(r == T.i64(0)), panel, tile)

    def _next_block(self, column: Any, column_panels: Any, end: Any, place: Any, places: Any, last: Any) -> Any:
        """Where the first panel of the next block of columns begins; of the last one, this block itself."""
        nr, panel = self.shape.columns, self._size_of_panel()
        begin = T.hold(self.base_b + T.truncdiv(column, T.i64(nr)) * panel)
        here = T.hold(begin + place * nr)
        beside = T.Select(column + column_panels * nr < end, begin + column_panels * panel, here)
        return T.hold(T.Select(last, beside, here + places * nr))

    def _next_late(self, column: Any, column_panels: Any, end: Any, place: Any, places: Any, last: Any) -> tuple[Any, Any, Any]:
        """The first line and place of the next block of columns that are not packed yet, and whether there is one."""
        after = T.hold(column + column_panels * self.shape.columns)
        there = T.hold(T.Or(T.Not(last), after < end))
        return T.hold(T.Select(last, after, column)), T.hold(T.Select(last, T.i64(0), place + places)), there

    def _size_of_panel(self) -> Any:
        """The elements of a panel of columns that are packed once."""
        assert self.of_owned[1] is not None
        return self.of_owned[1][0]

    def _next_columns(self, block: Any, row: Any, jr: Any, places: Any) -> Any:
        """Where the part of the next block begins for which a tile asks: all tiles over a panel ask for the next one."""
        of_line = 64 // np.dtype(self.arithmetic.packed).itemsize
        parts = T.hold(T.max(T.truncdiv(self.shape.columns * self.plan.every, T.i64(of_line)), T.i64(1)))
        return T.hold(block + jr * self._size_of_panel() + T.min(row, parts - 1) * T.truncdiv(places * self.shape.columns, parts))

    def _steps_of_tiles(self, row_panels: Any, column_panels: Any) -> tuple[Any, Any]:
        """From the unfinished sums of a tile to those of the next one in the same column, and in the same row."""
        return column_panels, T.i64(1)

    def _tiles(
        self,
        row_panels: Any,
        column_panels: Any,
        first: Any,
        panel: Callable[[int, Any], tuple[Any, Any, Any]],
        tile: Callable[..., None],
    ) -> None:
        """Compute the tiles of a block, row by row: a panel of rows, the smaller one, stays in the first cache.

        Panels of columns follow each other in memory, so processors load them ahead, and a row's results are neighbours.
        """

        def along(ir: Any, late: bool) -> None:
            of_a = panel(0, ir)
            with T.loop(column_panels) as jr:
                tile(ir, jr, of_a, panel(1, jr), late)

        done = T.i64(0)
        if self.packs_late:
            with T.when(first):
                along(T.i64(0), True)
            done = T.hold(T.Select(first, T.i64(1), T.i64(0)))
        with T.loop(T.hold(row_panels - done)) as i:
            along(T.hold(done + i), False)

    def _pack_columns(
        self, column: Any, columns: Any, part: tuple[Any, Any], groups: Any, place: Any, places: Any, first: Any
    ) -> None:
        """Pack a block of columns, several panels at once as far as that is possible, and their sums."""
        nr, together = self.shape.columns, self.b.together
        many = T.hold(T.truncdiv(columns, T.i64(nr * together)) * together) if together > 1 else T.i64(0)
        if together > 1:
            whole = T.hold(T.truncdiv(places, T.i64(self.arithmetic.group)))
            with T.loop(T.hold(T.truncdiv(many, T.i64(together)))) as i:
                p = T.hold(i * together)
                at, line = T.hold(self.at_b + p * (groups * nr)), T.hold(column + p * nr)
                sums = (self.lines, T.hold(self.at_lines + p * nr), first) if self.with_sums[1] else None
                self.b.pack_together(self.base_b, self.panels_b, at, groups * nr, line, place, places, sums)
        with T.loop(T.hold(up(columns, nr))) as p:
            line = T.hold(_start(column + p * nr, *part, nr))
            at = T.hold(self.at_b + p * (groups * nr))
            done = T.hold(T.Select(p < many, whole, T.i64(0))) if together > 1 else 0
            self.b.pack(self.base_b, self.zero_b, self.panels_b, at, line, part[1] - 1, place, places, done)
            if self.with_sums[1]:
                alone = T.hold(T.And(first, p >= many)) if together > 1 else first
                self.b.sums(self.lines, self.at_lines + p * nr, alone, self.shape.lanes)

    def _panel(self, side: int, line: Any, number: Any, place: Any, otherwise: Any, lines: Any) -> tuple[Any, Any]:
        """Where a panel from a place on is, and the sums of its lines, if the factor is owned; in scratch memory otherwise."""
        owned = self.of_owned[side]
        if owned is None:
            return T.hold(otherwise), lines
        panel, sums = owned
        width, base = (self.shape.rows, self.shape.columns)[side], (self.base_a, self.base_b)[side]
        which = T.hold(T.truncdiv(line, T.i64(width)) + number)
        begin = base + which * panel + T.truncdiv(place, T.i64(self.arithmetic.group)) * width
        return T.hold(begin), T.hold(base + sums + which * width)

    def _tile_or_parts(self, tile: Callable[..., None], where: _Where, rows: Any) -> None:
        """A tile; or, if few rows are left, as many smaller ones as these need, which end with the last row.

        Args:
            tile: ``_tile`` with all but its part.
            where: where the tile's sums go.
            rows: how many rows no tile before has; ``None``: all are computed.
        """
        shape = self.shape
        few = part_of_rows(shape.rows) if self.PARTS and rows is not None else 0
        if not few:
            tile()
            return

        def parts() -> None:
            count = T.hold(up(rows, few))
            start = T.hold(T.max(where.rows - count * few, T.i64(0)))
            with T.loop(count) as i:
                tile((T.hold(start + i * few), few))

        T.either(rows <= T.i64(shape.rows - few), parts, tile)

    def _tile(
        self,
        a: Any,
        b: Any,
        groups: Any,
        at: Any,
        first: Any,
        last: Any,
        where: _Where,
        late: bool,
        part: tuple[Any, int] | None = None,
    ) -> None:
        """The sums of a tile, which become those in memory or are added to them; after the last block they are finished.

        ``part``: only of so many rows, from one on.
        """
        shape, kind = self.shape, self.arithmetic.total
        mr, nr, lanes = shape.rows, shape.columns, shape.lanes
        start, count_of_rows = (0, mr) if part is None else part
        rows = self.a.lines(start, count_of_rows) if self.as_it_lies else []
        with blocks(groups, T.i64(KC // self.arithmetic.group)) as (k0, count):
            is_first = T.hold(T.And(first, T.expression(k0 == T.i64(0))))
            is_last = T.hold(T.And(last, T.expression(k0 + count >= groups)))
            if self.ask is not None and part is None:
                with T.when(is_last):
                    for i in range(mr):
                        self.ask(T.hold(where.row + T.min(T.i64(i), where.rows - 1)), where.column, nr)
            sums = Sums(count_of_rows, shape.vectors, lambda i, j: zeros(lanes, kind), self.arithmetic.step)

            reads_ahead = self.ask is not None and kind != "int32" and lanes * np.dtype(self.arithmetic.packed).itemsize == 64

            def step(place: Any) -> None:
                if late:
                    along = [T.hold(one) for one in self.b.vectors(place, lanes)]
                    for j, one in enumerate(along):
                        T.store(self.panels_b, T.run(b + place * nr + j * lanes, lanes), one)
                else:
                    if reads_ahead:
                        for j in range(shape.vectors):
                            read_ahead(self.panels_b, b + place * nr + (_AHEAD * nr + j * lanes))
                    along = [T.hold(self.panels_b[T.run(b + place * nr + j * lanes, lanes)]) for j in range(shape.vectors)]

                def scalar(i: int) -> Any:
                    return self.a.value(rows[i], place) if self.as_it_lies else self.panels_a[a + place * mr + (start + i)]

                sums.add(scalar, along)

            self._each_place(k0, count, step, part is None)

            def total(i: int, j: int) -> Any:
                own = sums.get(i, j)
                before = self.partial[T.run(at + (start + i) * nr + j * lanes, lanes)]
                return T.Select(T.splat(is_first, lanes), own, before + own)

            def keep() -> None:
                for i in range(count_of_rows):
                    for j in range(shape.vectors):
                        T.store(self.partial, T.run(at + (start + i) * nr + j * lanes, lanes), total(i, j))

            def finish_now() -> None:
                for i in range(mr):
                    with T.when(T.i64(i) < where.rows):
                        for j in range(shape.vectors):
                            self._end(where, i, j, total(i, j))

            if self.brief and part is None:
                T.either(is_last, finish_now, keep)
                return
            keep()
            self._finish_kept(at, is_last, where, start, None if part is None else count_of_rows)

    def _each_place(self, first: Any, count: Any, step: Callable[[Any], None], asks: bool) -> None:
        """Run a step for so many places; if it ``asks``, ask meanwhile for packed columns, and for next rows that are not packed.

        Each tile asks for some of its lines. Else the next row's first tile would wait for memory.
        """
        done, columns = T.i64(0), self.next_columns
        if asks and (self.next_rows is not None or columns is not None or self.next_late is not None):
            of_line = 64 // np.dtype(self.arithmetic.packed).itemsize
            every = self.plan.every
            some = T.hold(T.truncdiv(count, every))
            if self.next_late is not None:
                some = T.hold(T.Select(self.next_late[2], some, T.i64(0)))
            at = None if columns is None else T.hold(columns + T.truncdiv(first, every) * of_line)
            with T.loop(some) as i:
                if self.next_rows is not None:
                    line, place = self.next_rows
                    self.a.ask(line, place + first, i)
                if at is not None:
                    read_far_ahead(self.panels_b, T.hold(at + i * of_line))
                if self.next_late is not None:
                    line, place, _ = self.next_late
                    self.b.ask_across(self.base_b, line, T.hold(place + T.truncdiv(first, every) + i))
                begin = T.hold(first + i * every)
                with T.loop(every) as k:
                    step(T.hold(begin + k))
            done = T.hold(some * every)
        with T.loop(T.hold(count - done)) as k:
            step(T.hold(first + done + k))

    def _finish_kept(self, at: Any, last: Any, where: _Where, start: Any = 0, most: int | None = None) -> None:
        """Finish the sums of a tile that are in memory, if they are the last ones: of ``most`` rows, from ``start`` on."""
        nr, lanes = self.shape.columns, self.shape.lanes
        rows = where.rows if most is None else T.hold(T.min(where.rows - start, T.i64(most)))
        with T.when(last):
            forget_registers()
            with T.loop(rows) as number:
                i = T.hold(start + number)
                for j in range(self.shape.vectors):
                    self._end(where, i, j, self.partial[T.run(at + i * nr + j * lanes, lanes)])

    def _end(self, where: _Where, i: Any, j: int, value: Any) -> None:
        lanes = self.shape.lanes
        places = (where.sums[0] + i, where.sums[1] + j * lanes)
        self.finish(T.hold(where.row + i), T.hold(where.column + self.factors[1].line(j * lanes)), T.hold(value), places)


def asks_every(shape: TileShape, columns: int, per_line: int) -> int:
    """How many places of a tile there are for each cache line of the next rows that it asks for.

    Args:
        shape: the tile.
        columns: over which the tiles of a row go; 0 if none asks.
        per_line: the elements of a cache line.
    """
    tiles = -(-columns // shape.columns)  # of a place
    return next((every for every in EVERY if every * shape.rows <= tiles * per_line), EVERY[-1]) if columns else EVERY[0]


class _Where(NamedTuple):
    """Where a tile's sums go."""

    row: Any
    column: Any
    rows: Any
    """How many rows it has."""
    sums: tuple[Any, Any]
    """The places of the sums of its rows and columns."""


def _start(line: Any, low: Any, high: Any, width: int) -> Any:
    """Where a panel begins: not so late that it would run over the end, if that can be avoided."""
    return T.max(T.min(line, high - width), low)


class blocks:  # noqa: N801 - read as a function
    """A context manager: ``with blocks(size, block) as (start, count)``: run the statements for each block."""

    def __init__(self, size: Any, block: Any) -> None:
        self.size, self.block = T.hold(size), block

    def __enter__(self) -> tuple[Any, Any]:
        self._loop = T.loop(T.hold(T.truncdiv(self.size + (self.block - 1), self.block)))
        start = T.hold(self._loop.__enter__() * self.block)
        return start, T.hold(T.min(self.block, self.size - start))

    def __exit__(self, *error: Any) -> None:
        self._loop.__exit__(*error)
