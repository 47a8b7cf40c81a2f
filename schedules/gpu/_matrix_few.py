"""Products of a few rows with a matrix of few bits: the matrix is read once, as it is stored, by threads that share columns.

Some threads have columns in common: each reads runs of the columns' words, one after the other's, and has all rows' sums of its
products. What these come to is added up in shared memory, and a thread finishes each sum.
"""

from __future__ import annotations

import math
from types import SimpleNamespace
from typing import Any

from tvmdml.kernels import tensorir_values as T
from tvmdml.kernels.contraction import Contraction, multiply_add
from tvmdml.kernels.kernel import Kernel
from tvmdml.operators._matrix import Matrix
from tvmdml.operators._matrix_blocks_fused import BlockwiseGemm
from tvmdml.schedules.gpu import Numbers, checked, require, require_few_rounds, strided
from tvmdml.schedules.gpu._bits import BitMatrix
from tvmdml.schedules.gpu._matrix_loads import aligned
from tvmdml.schedules.gpu._matrix_writer import Writer, passed
from tvmdml.schedules.gpu._words import load
from tvmdml.targets._device import DeviceTarget

MOST_ROWS = 8
_THREADS = 128
_LANES = 32
"""The threads that share columns, unless there are few columns."""
_TOGETHER = {1: 4, 2: 4, 4: 4, 8: 2}
"""Columns of a thread at once, by rows: elements of the rows are read once for all of them."""
_RUNS = {1: 32, 2: 16, 4: 8, 8: 8}
"""Elements of a column that a thread reads at once, by rows, in 1 to 4 words: what is computed of them has room in registers."""
_CHUNK = 8
"""Elements of a row that a thread has at once."""
_BYTES = 16  # the most that a thread loads at once


def kernel(desc: Matrix, own: BlockwiseGemm, contraction: Contraction, target: DeviceTarget, knobs: Any) -> Kernel:
    """One launch, for up to ``MOST_ROWS`` rows."""
    batch, rows, columns, depth = (math.prod(sizes) for sizes in contraction.groups)
    many = 1 << (rows - 1).bit_length()
    matrix, some = BitMatrix(own, min(max(_RUNS[many] * own.bits // 32, 1), 4)), _TOGETHER[many]
    whole = matrix.whole(depth)
    threads = min(_THREADS, target.max_threads)
    lanes = min(_LANES, threads, 1 << (whole.bit_length() - 1)) if whole else min(_LANES, threads)

    def parts() -> int:
        return int(-(-columns // (threads // lanes * some)))

    while batch * parts() < knobs.busy and (some > 1 or (lanes < threads and whole >= 2 * lanes)):
        some, lanes = (some // 2, lanes) if some > 1 else (some, lanes * 2)
    total, results = batch * parts(), threads // lanes * some * many
    groups = max(1, min(total, target.max_groups, knobs.most_groups))
    steps = -(-whole // lanes) + -(-(depth - whole * matrix.places) // lanes) + -(-results // threads) * (lanes + 1)
    require_few_rounds(desc, target, -(-total // groups) * (steps + 3))
    known, integers = passed(contraction)
    numbers = Numbers(
        max(contraction.span, columns + threads * some, total + groups, depth + 4 * threads, *matrix.spans),
        groups=(groups,),
        total=total,
        parts=parts(),
        whole=whole,
        steps=matrix.numbers,
        words=matrix.raising,
        plain=("steps",),
        **integers,
    )
    require(desc, target, *sorted(matrix.types(desc)))
    itemsize = own.a_tensor.data_type.itemsize
    run = aligned(contraction.a, contraction.sizes, len(contraction.sizes) - 1, _BYTES // itemsize)
    choices = {"threads": threads, "lanes": lanes, "some": some, "many": many, "run": run, "matrix": matrix}
    writer = FewRows(desc, contraction, numbers, None, known=known, adds=0, **choices)
    module, *also = desc.modules()
    built = Kernel(module, "bits", writer.parameters, writer.function, numbers.scalars, (), also=tuple(also))
    return checked(desc, target, built)


class FewRows(Writer):  # type: ignore[misc] # mypy knows these modules by another name
    """Writes the kernel."""

    threads: int
    lanes: int
    some: int
    """The columns that a thread has at once."""
    many: int
    """Rows, a power of two: those behind the last one are computed, and not stored."""
    run: int
    """Elements of the first factor that are read together."""
    matrix: BitMatrix

    def choose(self) -> dict[str, Any]:
        """How the matrix is stored."""
        return {"matrix": str(self.matrix)}

    def launches(self, n: SimpleNamespace) -> None:
        """One launch, whose groups stride over parts of the columns."""
        teams = self.threads // self.lanes
        with T.launch(n.groups[0], self.threads) as (group, thread):
            self.matrix.begin(self.buffers, n.steps, self.sizes[3], n.words)
            self.shared = T.shared("float32", self.threads * self.some * self.many)
            self.team = T.let(T.truncdiv(thread, T.const(self.lanes, "int32")))
            self.lane, self.thread = T.let(thread - self.team * self.lanes), thread
            with strided(T.let(T.cast(group, self.dtype)), n.total, n.groups[0]) as number:
                batch = T.let(T.truncdiv(number, n.parts))
                first = T.let((number - batch * n.parts) * (teams * self.some))
                self.batch = self.unraveled(batch, self.c.batch)
                self._sums(n, T.let(first + T.cast(self.team * self.some, self.dtype)))
                T.barrier()
                self._results(first, teams)
                T.barrier()

    def _sums(self, n: SimpleNamespace, first: Any) -> None:
        """The thread's sums, to shared memory."""
        bases, columns = [], []
        for i in range(self.some):
            column = T.let(T.min(first + i, self.sizes[2] - 1))
            place, at = self.c.b.place, self.unraveled(column, self.c.columns)
            bases.append(T.let(self.sum(place.base, self.part(place, 0, self.batch), self.part(place, 2, at))))
            columns.append(self.matrix.column(column))
        rows = []
        for i in range(self.many):
            row = T.let(T.min(self.number(i), self.sizes[1] - 1))
            place, at = self.c.a.place, self.unraveled(row, self.c.rows)
            rows.append(T.let(self.sum(place.base, self.part(place, 0, self.batch), self.part(place, 1, at))))
        count = self.some * self.many
        totals = T.Variable.several("float32", [T.const(0, "float32")] * count)
        lane = T.let(T.cast(self.lane, self.dtype))
        if self.matrix.run:
            with strided(lane, n.whole, self.number(self.lanes)) as unit:
                self._run(unit, bases, columns, rows, totals)
        rest = T.let(n.whole * self.matrix.places + lane) if self.matrix.run else lane
        with strided(rest, self.sizes[3], self.number(self.lanes)) as place:
            self._place(place, bases, columns, rows, totals)
        for i, total in enumerate(totals):
            T.store(self.shared, self.thread + i * self.threads, total.value)

    def _run(self, unit: Any, bases: list[Any], columns: list[Any], rows: list[Any], totals: list[Any]) -> None:
        """The products of a run of each column."""
        matrix = self.matrix
        runs = [matrix.run_of(base, unit) for base in bases]
        first = T.let(unit * matrix.places)
        words = min(matrix.run, matrix.block // matrix.per_word)
        for begin in range(0, matrix.run, words):
            block = matrix.block_of(first + begin * matrix.per_word)
            scales = [matrix.scale(column, block) for column in columns]
            zeros = [matrix.zero_point(column, block) for column in columns]
            less = [matrix.less(zero) for zero in zeros]
            sums: list[Any] = [T.const(0, "float32")] * len(totals)
            for number in range(begin, begin + words):
                elements = [matrix.floats(one[number], own, zero) for one, own, zero in zip(runs, less, zeros, strict=True)]
                for chunk in range(0, matrix.per_word, _CHUNK):
                    size = min(_CHUNK, matrix.per_word)
                    for m, row in enumerate(rows):
                        factors = self._factors(row, T.let(first + (number * matrix.per_word + chunk)), size, min(self.run, size))
                        for i in range(self.some):
                            for j, x in enumerate(factors):
                                place = i * self.many + m
                                sums[place] = T.let(multiply_add(x, elements[i][chunk + j], sums[place]))
            for place, total in enumerate(totals):
                total.set(multiply_add(sums[place], scales[place // self.many], total.value))

    def _factors(self, row: Any, first: Any, count: int, run: int) -> list[Any]:
        """Neighbours of a row of the first factor."""
        buffer, step = self.buffers[self.c.a.name], self.c.a.place.steps[-1]
        found: list[Any] = []
        for begin in range(0, count, run):
            place = first + begin
            at = row + (place if isinstance(step, int) and step == 1 else place * step)
            found += load(buffer, T.let(T.multiple(at, run)), run) if run > 1 else [buffer[T.let(at)]]
        return [T.let(T.cast(T.wide(x), "float32")) for x in found]

    def _place(self, place: Any, bases: list[Any], columns: list[Any], rows: list[Any], totals: list[Any]) -> None:
        """The products of a place behind the last whole run."""
        matrix = self.matrix
        block = matrix.block_of(place)
        factors = [self._factors(row, place, 1, 1)[0] for row in rows]
        for i, (base, column) in enumerate(zip(bases, columns, strict=True)):
            element = matrix.difference(base, place, matrix.zero_point(column, block))
            scale = matrix.scale(column, block)
            for m, x in enumerate(factors):
                total = totals[i * self.many + m]
                total.set(multiply_add(T.let(x * element), scale, total.value))

    def _results(self, first: Any, teams: int) -> None:
        """What the threads that share a column have, added up: neighbouring threads finish neighbouring columns."""
        across, lanes = teams * self.some, self.lanes
        results = across * self.many
        with T.loop(T.const(-(-results // self.threads), "int32")) as turn:
            number = T.let(self.thread + turn * self.threads)
            row = T.let(T.truncdiv(number, T.const(across, "int32")))
            along = T.let(number - row * across)
            team = T.let(T.truncdiv(along, T.const(self.some, "int32")))
            place = T.let(((along - team * self.some) * self.many + row) * self.threads + team * lanes)
            column, line = T.let(first + T.cast(along, self.dtype)), T.let(T.cast(row, self.dtype))
            inside = (number < T.const(results, "int32")) & (column < self.sizes[2]) & (line < self.sizes[1])
            with T.when(inside):
                total = T.Variable("float32", T.const(0, "float32"))
                with T.loop(T.const(lanes, "int32")) as i:
                    # Neighbouring threads begin elsewhere, in other banks.
                    own = T.let((i + number) & T.const(lanes - 1, "int32"))
                    total.set(total.value + self.shared[place + own])
                self._store(line, column, T.let(total.value))
