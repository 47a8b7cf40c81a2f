"""NONZERO_COORDINATES on the CPU: elements are converted to bits, 64 in a word, and words to rows of coordinates.

The input is read once. With several tasks there are two passes: each task keeps its words and counts their bits. When all counts
are known, each task writes its rows to their final place. A single task writes the rows of a word immediately.

Rows are written in groups of whole registers; the next group overwrites the surplus of the one before. A task never writes past its
own rows: near their end, they are written one by one. Rows behind the count are set to 0, a part of them by each task.
(Non-temporal stores were tried for the rows, and are slower.)
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from tvmdml.kernels import tensorir as T
from tvmdml.kernels.kernel import Kernel
from tvmdml.kernels.knobs import Knob, Knobs
from tvmdml.kernels.layout import collapse
from tvmdml.operators._contract import Shared
from tvmdml.operators.nonzero_coordinates import NonzeroCoordinates
from tvmdml.schedules.cpu import per_task, share, unit_step
from tvmdml.schedules.cpu._leaves import Leaves
from tvmdml.targets import Target

KNOBS = Knobs(
    "nonzero_coordinates",
    task_elements=Knob(1 << 16, (1, *(1 << n for n in range(12, 24))), "least elements for each task"),
    tasks_per_thread=Knob(
        4, (1, 2, 4, 8, 16), "tasks per thread, if there is enough work: the nonzeros may be in one part of the input"
    ),
    few_bits=Knob(4, tuple(range(1, 13)), "bits up to which a word counts as sparse: that many rows are always written for it"),
)

WORD = 64
"""Elements in a word."""
GROUP = 8
"""Elements whose rows are made together: a table has an entry for every pattern of this many bits."""
REGISTER = 16
"""The most lanes of a vector: one AVX-512 register of 32-bit coordinates."""
SHIFT = 16
"""Exact division of numbers below 128 by n below 64: multiply by 2**16 / n, rounded up, and shift right by this."""


def kernel(desc: NonzeroCoordinates, target: Target, shared: Shared, knobs: Any) -> Kernel:
    """Words follow the contiguous elements, whatever the dimensions; the coordinates are advanced from word to word."""
    source, result = desc.input_tensor, desc.output_coordinates_tensor
    columns = result.sizes[-1]
    row_step, column_step = result.layout[-2:]
    rank = max(source.effective_rank, 1)
    sizes = source.sizes[-rank:]
    walk_sizes, (walk_steps,) = collapse(source.sizes, source.layout)
    walk_sizes, walk_steps = walk_sizes or (1,), walk_steps or (1,)
    words_a_row = -(-walk_sizes[-1] // WORD)
    words = source.element_count // walk_sizes[-1] * words_a_row
    tasks = _tasks(source.element_count, target, knobs)
    # Whether a word may contain elements of several innermost rows.
    crossing = rank > 1 and sizes[-1] % WORD != 0 and walk_sizes[-1] != sizes[-1]
    packed = (row_step == columns or result.sizes[-2] == 1) and (column_step == 1 or columns == 1)
    writer = _Writer(
        desc,
        Leaves(target),
        rank=rank,
        columns=columns,
        walk_rank=len(walk_sizes),
        known_step=unit_step(walk_steps[-1]),
        tail="short" if walk_sizes[-1] < WORD else "late" if walk_sizes[-1] % WORD else "none",
        crossing=crossing,
        narrow=_narrow(sizes) if crossing else 0,
        packed=packed,
        parallel=tasks > 1,
        few_bits=knobs.few_bits,
    )
    return Kernel(
        "nonzero_coordinates",
        "words",
        writer.parameters,
        writer.function,
        scalars=(
            *(tasks, words, words_a_row, source.element_count, row_step, column_step),
            *(*sizes, *(-(-(1 << SHIFT) // size) for size in sizes), *walk_sizes, *walk_steps),
        ),
        temporaries=(("uint64", words), ("int64", tasks + 1)) if tasks > 1 else (),
    )


def _tasks(elements: int, target: Target, knobs: Any) -> int:
    """A fixed number for each thread, or fewer if the work is too small."""
    threads, pay = target.tasks(), elements // (knobs.task_elements * target.handover())
    each: int = max(1, min(knobs.tasks_per_thread, pay // threads))
    return 1 if threads == 1 else max(1, min(pay, threads * each))


def _narrow(sizes: tuple[int, ...]) -> int:
    """How many of the last dimensions together have fewer elements than a word.

    Only the coordinates of these and of the dimension before them can change more than once within a word; that one does not wrap.
    """
    together, count = 1, 0
    for size in reversed(sizes):
        together *= size
        if together >= WORD:
            break
        count += 1
    return min(count, len(sizes) - 1)


def _let(value: Any) -> Any:
    """``T.let`` for a number or a vector: TVM's range analysis fails on vectors that are bound by let."""
    if T.lanes(value) == 1:
        return T.let(value)
    kept, whole = T.local("uint32", GROUP), T.run(T.i64(0), GROUP)
    T.store(kept, whole, value)
    return kept[whole]


class _Writer:
    """Writes the kernel; each method writes one piece."""

    rank: int
    columns: int
    walk_rank: int
    known_step: int
    tail: str
    crossing: bool
    narrow: int
    packed: bool
    parallel: bool
    few_bits: int

    def __init__(self, desc: NonzeroCoordinates, leaves: Leaves, **choices: Any) -> None:
        self.leaves = leaves
        self.bits = 8 * desc.input_tensor.data_type.itemsize
        self.is_float = desc.input_tensor.data_type.is_float
        self.index_type = desc.output_coordinates_tensor.data_type.tvm
        self.__dict__.update(choices)
        self.parameters = (("bits", self.bits), ("float", self.is_float), ("index", self.index_type), *choices.items())
        self.unit = self.columns if self.packed else 1  # how much `at` grows with each row

    def function(self) -> T.PrimFunc:
        with T.function() as f:
            self.source = f.buffer("input", f"uint{self.bits}")
            self.count = f.buffer("count", "uint32")
            self.rows = f.buffer("coordinates", self.index_type)
            if self.parallel:
                self.words = f.buffer("words", "uint64")
                self.starts = f.buffer("starts", "int64")  # for each task, the number of rows before its own; then the total
            scalars = ("tasks", "words", "words_a_row", "elements", "row", "column")
            self.tasks, total, self.words_a_row, self.elements, self.row_step, self.column_step = map(f.scalar, scalars)
            self.sizes = [T.let(T.cast(size, "uint32")) for size in f.scalars("size", self.rank)]
            self.inverses = [T.let(T.cast(inverse, "uint32")) for inverse in f.scalars("inverse", self.rank)]
            self.walk_sizes, self.walk_steps = f.scalars("walk_size", self.walk_rank), f.scalars("step", self.walk_rank)
            if self.known_step:
                self.walk_steps[-1] = T.i64(self.known_step)
            with self.leaves.available():
                if self.parallel:
                    per_task(self.tasks, lambda task: self._count_task(task, *share(task, self.tasks, total)))
                    self._sum_counts()
                    per_task(self.tasks, lambda task: self._write_task(task, *share(task, self.tasks, total)))
                    T.store(self.count, 0, T.cast(self.starts[self.tasks], "uint32"))
                else:
                    self._begin(T.i64(0), T.i64(0), self.elements)
                    self._over_words(T.i64(0), total, lambda _, at, left: self._write(self._read(at, left), left))
                    found = T.let(T.truncdiv(self.at.value, T.i64(self.unit)))
                    T.store(self.count, 0, T.cast(found, "uint32"))
                    self._clear(found, self.elements)
        return f.result()

    # -- Elements to words --

    def _over_words(self, begin: Any, end: Any, body: Callable[[Any, Any, Any], None]) -> None:
        """``body(number, offset, left)``: where a word's first element is, and how many elements of its row are left from there."""
        width, step = self.walk_sizes[-1], self.walk_steps[-1]
        if self.walk_rank == 1:
            with T.loop(T.let(end - begin)) as i:
                number = T.let(begin + i)
                body(number, T.let(number * (WORD * step)), T.let(width - number * WORD))
            return
        number = T.Variable("int64", begin)
        with T.loop_while(number.value < end):
            row = T.let(T.truncdiv(number.value, self.words_a_row))
            first = T.let(number.value - row * self.words_a_row)
            offset = T.let(T.dot(T.unravel(row, self.walk_sizes[:-1]), self.walk_steps[:-1]))
            count = T.let(T.min(self.words_a_row - first, end - number.value))
            with T.loop(count) as i:
                at = T.let((first + i) * WORD)
                body(number.value + i, T.let(offset + at * step), T.let(width - at))
            number.set(number.value + count)

    def _read(self, offset: Any, left: Any) -> Any:
        """The word of the elements at an offset; bits past the row's end are zero."""

        def whole(at: Any) -> Any:
            if self.known_step == 1:
                return self.leaves.bits(self._nonzero(at, WORD))
            truths = T.local("uint8", WORD)
            with T.loop(T.i64(WORD)) as i:
                T.store(truths, i, T.cast(self._nonzero(at + i * self.walk_steps[-1], 1), "uint8"))
            return self.leaves.bits(T.NE(truths[T.run(T.i64(0), WORD)], T.splat(T.const(0, "uint8"), WORD)))

        def late() -> Any:
            # The last 64 elements of the row, shifted to drop those that were read before.
            return whole(offset + (left - WORD) * self.walk_steps[-1]) >> T.cast(WORD - left, "uint64")

        if self.tail == "none":
            return whole(offset)
        word = T.Variable("uint64")
        if self.tail == "late":
            T.either(left >= WORD, lambda: word.set(whole(offset)), lambda: word.set(late()))
        else:
            # Backwards: LLVM does not vectorise this loop, which would take it longer than everything else.
            word.set(T.const(0, "uint64"))
            with T.loop(left) as i:
                bit = T.cast(self._nonzero(offset + (left - 1 - i) * self.walk_steps[-1], 1), "uint64")
                word.set((word.value << T.const(1, "uint64")) | bit)
        return T.let(word.value)

    def _nonzero(self, offset: Any, lanes: int) -> Any:
        """Whether elements are nonzero, by their bits: a float's sign bit is ignored, and NaN has other bits set."""
        dtype = f"uint{self.bits}"
        mask, zero = T.word((1 << (self.bits - 1)) - 1, self.bits), T.const(0, dtype)
        value = self.source[offset if lanes == 1 else T.run(offset, lanes)]
        if lanes > 1:
            mask, zero = T.splat(mask, lanes), T.splat(zero, lanes)
        return T.NE(value & mask if self.is_float else value, zero)

    # -- The tasks --

    def _count_task(self, task: Any, begin: Any, end: Any) -> None:
        found = T.Variable("int64", T.i64(0))

        def keep(number: Any, offset: Any, left: Any) -> None:
            word = self._read(offset, left)
            T.store(self.words, number, word)
            found.set(found.value + T.cast(T.popcount(word), "int64"))

        self._over_words(begin, end, keep)
        T.store(self.starts, task + 1, found.value)

    def _sum_counts(self) -> None:
        T.store(self.starts, 0, T.i64(0))
        with T.loop(self.tasks) as task:
            T.store(self.starts, task + 1, self.starts[task] + self.starts[task + 1])

    def _write_task(self, task: Any, begin: Any, end: Any) -> None:
        row = T.let(T.truncdiv(begin, self.words_a_row))
        element = T.let(row * self.walk_sizes[-1] + (begin - row * self.words_a_row) * WORD)
        self._begin(element, self.starts[task], self.starts[task + 1])
        self._over_words(begin, end, lambda number, _, left: self._write(T.let(self.words[number]), left))
        count = T.let(self.starts[self.tasks])
        first, last = share(task, self.tasks, T.let(self.elements - count))
        self._clear(T.let(count + first), T.let(count + last))

    def _clear(self, begin: Any, end: Any) -> None:
        """Set rows behind the count to 0."""
        if self.packed:
            with T.loop(T.let((end - begin) * self.columns)) as i:
                T.store(self.rows, begin * self.columns + i, T.const(0, self.index_type))
            return
        with T.loop(T.let(end - begin)) as i, T.loop(T.i64(self.columns)) as column:
            T.store(self.rows, (begin + i) * self.row_step + column * self.column_step, T.const(0, self.index_type))

    def _begin(self, element: Any, row: Any, stop: Any) -> None:
        """The variables that change from word to word: the coordinates of its first element, and where the next row is written."""
        if self.rank == 1 or not self.parallel:
            at = [T.cast(element, "uint32")] * self.rank
        else:
            at = [T.cast(c, "uint32") for c in T.unravel(element, [T.cast(size, "int64") for size in self.sizes])]
        self.coordinates = [T.Variable("uint32", c) for c in at]
        self.at, self.stop = T.Variable("int64", T.let(row * self.unit)), T.let(stop * self.unit)

    # -- Words to rows --

    def _write(self, word: Any, left: Any) -> None:
        """Write the rows of a word, and advance to the next word."""
        with T.when(word != T.const(0, "uint64")):
            if not self.packed:
                self._one_by_one(word)
            else:
                # Rows are written in groups, and the last group may be larger than the number of rows left.
                room = self.at.value + WORD * self.columns <= self.stop
                T.either(room, lambda: self._in_groups(word), lambda: self._one_by_one(word))
        self._advance(T.const(WORD, "uint32") if self.walk_rank == 1 else T.cast(T.min(left, T.i64(WORD)), "uint32"))

    def _advance(self, elements: Any) -> None:
        if self.narrow:
            for variable, coordinate in zip(self.coordinates, self._coordinates(elements, True), strict=True):
                variable.set(coordinate)
            return

        def carry(dimension: int, by: Any) -> None:
            here = self.coordinates[dimension]
            here.set(here.value + by)
            if dimension:
                with T.when(here.value >= self.sizes[dimension]):
                    here.set(here.value - self.sizes[dimension])
                    carry(dimension - 1, T.const(1, "uint32"))

        carry(self.rank - 1, elements)

    def _coordinates(self, elements: Any, crossing: bool) -> list[Any]:
        """The coordinates of the elements at these distances (a number, or a vector of numbers) from the word's first element.

        If not ``crossing``, only the last coordinate differs from those of the word.
        """
        lanes = T.lanes(elements)
        whole: Callable[[Any], Any] = (lambda x: T.splat(x, lanes)) if lanes > 1 else (lambda x: x)
        found = [variable.value for variable in self.coordinates]
        by = elements  # how much a dimension's coordinate grows
        for dimension in reversed(range(self.rank)):
            found[dimension] = _let(whole(found[dimension]) + by)
            if dimension == 0 or not crossing:
                break
            size = whole(self.sizes[dimension])
            if self.rank - dimension <= self.narrow:
                by = _let((found[dimension] * whole(self.inverses[dimension])) >> whole(T.const(SHIFT, "uint32")))
                found[dimension] = _let(found[dimension] - by * size)
            else:
                past = T.GE(found[dimension], size)
                by = _let(T.cast(past, "uint32" if lanes == 1 else f"uint32x{lanes}"))
                found[dimension] = _let(found[dimension] - T.Select(past, size, whole(T.const(0, "uint32"))))
        return found

    def _one_by_one(self, word: Any) -> None:
        row_step, column_step = (1, T.i64(1)) if self.packed else (self.row_step, self.column_step)
        bits = T.Variable("uint64", word)
        with T.loop_while(bits.value != T.const(0, "uint64")):
            self._store_row(bits, self.at.value * row_step, column_step)
            self.at.set(self.at.value + self.unit)

    def _store_row(self, bits: T.Variable, at: Any, column_step: Any) -> None:
        """Write the row of a word's lowest set bit, and clear the bit."""
        below = T.let(bits.value - T.const(1, "uint64"))
        lowest = T.let(T.cast(T.popcount(~bits.value & below), "uint32"))
        at = T.let(at)
        leading = [T.const(0, "uint32")] * (self.columns - self.rank)
        for column, coordinate in enumerate([*leading, *self._coordinates(lowest, self.crossing)]):
            T.store(self.rows, at + column * column_step, T.cast(coordinate, self.index_type))
        bits.set(bits.value & below)

    def _in_groups(self, word: Any) -> None:
        """Only one branch depends on the number of bits: a misprediction costs as much as the rows of half a word."""
        count = T.let(T.cast(T.popcount(word), "int64"))

        def few() -> None:
            bits = T.Variable("uint64", word)
            for i in range(self.few_bits):
                self._store_row(bits, self.at.value + i * self.columns, T.i64(1))
            self.at.set(self.at.value + count * self.columns)

        def many(crossing: bool) -> None:
            with T.loop(T.i64(WORD // GROUP)) as number:
                first = T.let(number * GROUP)
                byte = T.let((word >> T.cast(first, "uint64")) & T.const((1 << GROUP) - 1, "uint64"))
                elements = _let(T.cast(self.leaves.positions(byte), f"uint32x{GROUP}") + T.splat(T.cast(first, "uint32"), GROUP))
                self._store_rows(self._coordinates(elements, crossing))
                self.at.set(self.at.value + T.cast(T.popcount(byte), "int64") * self.columns)

        def either_way() -> None:
            if self.narrow or not self.crossing:
                many(self.crossing)
            else:
                inside = self.coordinates[-1].value + T.const(WORD, "uint32") <= self.sizes[-1]
                T.either(inside, lambda: many(False), lambda: many(True))

        T.either(count <= self.few_bits, few, either_way)

    def _store_rows(self, coordinates: list[Any]) -> None:
        """Interleave columns into rows; columns that are the same in every row come from one vector."""
        zeros = [T.const(0, "uint32")] * GROUP
        same = [*zeros[: self.columns - self.rank], *(c for c in coordinates if T.lanes(c) == 1)]
        vectors = [c for c in coordinates if T.lanes(c) > 1]
        if same:
            vectors.insert(0, _let(T.Shuffle([*same, *zeros][:GROUP], list(range(GROUP)))))
        places = range(GROUP * self.columns)
        for part in (places[i : i + REGISTER] for i in places[::REGISTER]):
            picks = []
            for row, column in (divmod(place, self.columns) for place in part):
                picks.append(column if column < len(same) else (column - len(same) + bool(same)) * GROUP + row)
            value = T.Shuffle(vectors, picks) if self.columns > 1 else vectors[0]
            T.store(self.rows, T.run(self.at.value + part[0], len(part)), T.cast(value, f"{self.index_type}x{len(part)}"))
