"""Products with a matrix of few bits in blocks: bits become floats in registers, and the matrix is read once, as it lies.

A row of the matrix is read in words of 32 bits, a vector of them at a time (a chunk). Element ``j`` of word ``i`` has place
``count * i + j``, where ``count`` elements are in a word. So the first factor is written once in the order of these: for each chunk
and each ``j`` the elements of all words. No element of the matrix is moved.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Sequence
from typing import Any

from tvmdml.kernels import tensorir
from tvmdml.kernels import tensorir_values as T
from tvmdml.kernels.contraction import multiply_add
from tvmdml.kernels.few_bits import FewBits
from tvmdml.schedules.cpu import per_task, share
from tvmdml.schedules.cpu._ahead import read_ahead
from tvmdml.schedules.cpu._gemm_panels import times
from tvmdml.schedules.cpu._sums import zeros

COLUMNS = 256
"""Columns whose sums are finished together. Those that are computed at once are apart: each part is read in its order."""
AHEAD = 4096
"""Bytes at least between what is asked for and what is read: those of the same chunks of columns that are computed later."""
_TABLE = 16
"""The elements of a table in a register of AVX-512."""
ROWS = 1 << 16
"""A quarter of the elements of rows that are multiplied by all columns in turn: a second cache has them."""


@dataclasses.dataclass(frozen=True)
class Bits(FewBits):
    """How the elements of the matrix are stored."""

    KEEP = staticmethod(T.hold)

    bits: int
    is_signed: bool
    block: int
    """The words of a block of a row."""
    zero: str
    lanes: int
    """The words of a vector."""

    def __str__(self) -> str:
        """What the code depends on."""
        return " ".join(map(str, dataclasses.astuple(self)))

    @property
    def places(self) -> int:
        """The elements of a chunk."""
        return int(self.per_word) * self.lanes

    @property
    def scales(self) -> int:
        """The blocks of a chunk; 1 if a block has several chunks."""
        return max(self.lanes // self.block, 1)

    def words(self, raw: Any) -> Any:
        """Bytes as words of elements without signs."""
        return self.signless(tensorir.reinterpret(f"uint32x{self.lanes}" if self.lanes > 1 else "uint32", raw))

    def element(self, word: Any, step: int, less: Any, start: Any = None) -> Any:
        """As of ``FewBits``. If a register has all of them, less their zero point, an instruction takes them by lanes' low bits."""
        if self.bits > 4 or self.zero == "bits" or self.lanes < _TABLE or not T.has_instructions("avx512f"):
            return super().element(word, step, less, start)
        table = tuple(float(i % (1 << self.bits) - self.offset) for i in range(_TABLE))
        return T.looked_up(word >> self.vector(step * self.bits, "uint32") if step else word, [table])[0]

    def vector(self, value: float, dtype: str = "float32") -> Any:
        """A vector of a constant."""
        return T.splat(T.const(value, dtype), self.lanes)


class BitRows:
    """Writes the loops of a product of some rows.

    Args:
        bits: the matrix.
        rows: rows of the first factor that are computed together; there are at least as many.
        together: columns that are, too.
    """

    def __init__(self, bits: Bits, rows: int, together: int) -> None:
        self.bits, self.rows, self.together = bits, rows, together

    def rooms(self, rows: int, columns: int, depth: int) -> tuple[tuple[str, int], ...]:
        """A task's scratch memory, types and elements: the first factor, and sums of some columns."""
        return (("float32", rows * (-(-depth // self.bits.places) * self.bits.places + COLUMNS)),)

    def write(self, owner: Any, sizes: Any, buffers: Any, steps: Any, scratch: Any) -> None:
        """Write the kernel's statements.

        Args:
            owner: has ``begin(number)``, ``bases`` and ``put``.
            sizes: tasks, batches, parts of the columns, rows, columns, places, and bytes of a row that may be read.
            buffers: both factors, the scales, and zero points or ``None``.
            steps: of the first factor for rows and places; of the others for columns.
            scratch: the buffers, and elements of each for a task.
        """
        tasks, batch, parts, self.m, columns, self.depth, self.row_bytes = sizes
        (self.a, self.b, self.scale, self.zero), (self.a_row, self.a_place, self.b_row, self.scale_row, self.zero_row) = (
            buffers,
            steps,
        )
        self.scratch, self.scratch_rooms = scratch
        chunk = T.i64(self.bits.places)
        self.chunks = T.hold(T.truncdiv(self.depth + (self.bits.places - 1), chunk))
        self.turns = T.hold(T.truncdiv(self.b_row + (AHEAD - 1), T.max(self.b_row, T.i64(1))))
        self.whole = T.hold(T.min(T.truncdiv(self.depth, chunk), T.truncdiv(self.row_bytes, T.i64(4 * self.bits.lanes))))
        self.blocks = T.hold(
            T.truncdiv(self.depth + (self.bits.block * self.bits.per_word - 1), T.i64(self.bits.block * self.bits.per_word))
        )
        units = T.hold(batch * parts)

        def task(number: Any) -> None:
            self._begin(number)
            begin, end = share(number, tasks, units)
            with T.loop(T.hold(end - begin)) as i:
                matrix, part = T.unravel(T.hold(begin + i), [None, parts])
                owner.begin(matrix)
                self.base_a, self.base_b = owner.bases[0], owner.bases[1]
                self._spread()
                low, high = (
                    T.hold(T.Select(p == parts, columns, T.truncdiv(T.truncdiv(columns, T.i64(16)) * p, parts) * 16))
                    for p in (part, part + 1)
                )
                some = T.hold(T.max(T.truncdiv(T.i64(ROWS), self.chunks * self.bits.places), T.i64(1)) * 4)
                with T.loop(T.hold(T.truncdiv(self.m + (some - 1), some))) as block:
                    row = T.hold(block * some)
                    self.block = row, T.hold(T.min(some, self.m - row))
                    with T.loop(T.hold(T.truncdiv(high - low + (COLUMNS - 1), T.i64(COLUMNS)))) as n:
                        first = T.hold(low + n * COLUMNS)
                        self._columns(first, T.hold(T.min(high - first, T.i64(COLUMNS))), owner)

        per_task(tasks, task)

    def _begin(self, number: Any) -> None:
        """Where a task's scratch memory is."""
        (self.results,), (room,) = self.scratch, self.scratch_rooms
        self.at = T.hold(number * room)
        self.sums = T.hold(self.at + self.m * self.chunks * self.bits.places)

    def _spread(self) -> None:
        """Write the first factor in the order of the words' elements; behind its last place are zeros."""
        bits = self.bits
        with T.loop(self.m) as row:
            source = T.hold(self.base_a + times(row, self.a_row))
            to = T.hold(self.at + row * self.chunks * bits.places)
            whole = T.hold(T.truncdiv(self.depth, T.i64(bits.places)))
            with T.loop(whole) as c:
                for j in range(bits.per_word):
                    at = source + times(c * bits.places + j, self.a_place)
                    step = bits.per_word if isinstance(self.a_place, int) else self.a_place * bits.per_word
                    lanes = [T.cast(self.a[at + i * step], "float32") for i in range(bits.lanes)]
                    for i, value in enumerate(lanes):
                        T.store(self.results, T.hold(to + c * bits.places + (j * bits.lanes + i)), value)
            with T.loop(T.hold((self.chunks - whole) * bits.places)) as k:
                place = T.hold(whole * bits.places + k)
                i, j = T.truncdiv(k, T.i64(bits.per_word)), T.truncmod(k, T.i64(bits.per_word))
                inside = T.hold(T.min(place, self.depth - 1))
                value = T.cast(self.a[source + times(inside, self.a_place)], "float32")
                value = T.Select(place < self.depth, value, T.const(0, "float32"))
                T.store(self.results, T.hold(to + whole * bits.places + j * bits.lanes + i), T.hold(value))

    def _columns(self, first: Any, count: Any, owner: Any) -> None:
        """All sums of up to ``COLUMNS`` columns."""
        some, (begin, rows) = self.together, self.block
        groups = T.hold(T.truncdiv(count + (some - 1), T.i64(some)))
        with T.loop(groups) as group:
            own = [T.hold(first + T.min(group + n * groups, count - 1)) for n in range(some)]
            later = T.hold(self.turns + T.Select(group + self.turns < groups, T.i64(0), count - groups))
            self.ahead = [T.hold(later * row_step) for row_step in (self.b_row, self.scale_row)]
            with T.loop(T.hold(T.truncdiv(rows + (self.rows - 1), T.i64(self.rows)))) as tile:
                self._tile(first, own, T.hold(T.min(begin + tile * self.rows, self.m - self.rows)))
        lanes = self.bits.lanes
        with T.loop(rows) as i:
            row = T.hold(begin + i)
            at = T.hold(self.sums + row * COLUMNS)
            vectors = T.hold(T.truncdiv(count, T.i64(lanes)))
            with T.loop(vectors) as v:
                owner.put(row, T.hold(first + v * lanes), T.hold(self.results[T.run(at + v * lanes, lanes)]))
            with T.loop(T.hold(count - vectors * lanes)) as i:
                n = T.hold(vectors * lanes + i)
                owner.put(row, T.hold(first + n), T.hold(self.results[at + n]))

    def _tile(self, first: Any, own: list[Any], row: Any) -> None:
        """The sums of some rows and columns, which may be twice there."""
        bits, lanes = self.bits, self.bits.lanes
        bases = [T.hold(self.base_b + times(n, self.b_row)) for n in own]
        scales = [T.hold(times(n, self.scale_row)) for n in own]
        zero_rows = [T.hold(times(n, self.zero_row)) for n in own]
        xs = [T.hold(self.at + (row + m) * self.chunks * bits.places) for m in range(self.rows)]
        totals = [[T.Variable(f"float32x{lanes}", zeros(lanes)) for _ in range(self.rows)] for _ in own]

        def chunk(c: Any, is_last: bool) -> None:
            sums: list[list[Any]] = [[None] * self.rows for _ in own]
            words, factors, less = [], [], []
            for n in range(self.together):
                at = T.hold(bases[n] + c * (4 * lanes))
                if not is_last:
                    read_ahead(self.b, at + self.ahead[0])
                    read_ahead(self.scale, scales[n] + c * bits.scales + self.ahead[1])
                words.append(T.hold(bits.words(self._last_words(bases[n], c) if is_last else self.b[T.run(at, 4 * lanes)])))
                factors.append(self._scales(scales[n], c, is_last))
                less.append(self._less(zero_rows[n], c, is_last))
            elements = [bits.floats(word, *own_less) for word, own_less in zip(words, less, strict=True)]
            for j in range(bits.per_word):
                for m in range(self.rows):
                    x = T.hold(self.results[T.run(xs[m] + c * bits.places + j * lanes, lanes)])
                    for n in range(self.together):
                        before = sums[n][m]
                        product = x * elements[n][j]
                        sums[n][m] = T.hold(product if before is None else multiply_add(elements[n][j], x, before))
            for n in range(self.together):
                for m in range(self.rows):
                    total = totals[n][m]
                    total.set(multiply_add(sums[n][m], factors[n], total.value))

        self.over_chunks(chunk, own, first, row, totals)

    def over_chunks(
        self, chunk: Callable[[Any, bool], None], own: Sequence[Any], first: Any, row: Any, totals: Sequence[Any]
    ) -> None:
        """Add up the products of all chunks, the last of which a row may not fill, and store the columns' sums."""
        with T.loop(self.whole) as c:
            chunk(c, False)
        with T.loop(T.hold(self.chunks - self.whole)) as i:
            chunk(T.hold(self.whole + i), True)
        for n, column_of in enumerate(own):
            for m in range(self.rows):
                T.store(self.results, T.hold(self.sums + (row + m) * COLUMNS + (column_of - first)), added(totals[n][m].value))

    def _last_words(self, base: Any, c: Any) -> Any:
        """The bytes of a chunk that a row does not fill: behind its end is its last word again."""
        lanes = self.bits.lanes
        last = T.hold(T.truncdiv(self.row_bytes, T.i64(4)) - 1)
        words = []
        for i in range(lanes):
            at = T.hold(base + T.min(c * lanes + i, last) * 4)
            words.append(T.hold(tensorir.reinterpret("int32", self.b[T.run(at, 4)])))
        return tensorir.reinterpret(f"uint8x{4 * lanes}", T.hold(T.Shuffle(words, list(range(lanes)))))

    def _scales(self, base: Any, c: Any, is_last: bool) -> Any:
        """The scale of each lane of a chunk; 0 behind the last block."""
        return T.hold(self._of_blocks(self.scale, base, c, is_last))

    def _of_blocks(self, buffer: Any, base: Any, c: Any, is_last: bool) -> Any:
        """A float of its block for each lane; 0 behind the last one."""
        bits, count = self.bits, self.bits.scales
        if bits.block >= bits.lanes:
            block = T.truncdiv(c, T.i64(bits.block // bits.lanes))
            return T.splat(T.hold(T.cast(buffer[base + block], "float32")), bits.lanes)
        order = [i // bits.block for i in range(bits.lanes)]
        if not is_last:
            some = T.hold(T.cast(buffer[T.run(T.hold(base + c * count), count)], "float32"))
            return T.Shuffle([some] * (bits.lanes // count), order)  # as many lanes are given as taken
        numbers = []
        for i in range(count):
            block = T.hold(c * count + i)
            value = T.cast(buffer[base + T.min(block, self.blocks - 1)], "float32")
            numbers.append(T.hold(T.Select(block < self.blocks, value, T.const(0, "float32"))))
        return T.Shuffle(numbers * (bits.lanes // count), order)

    def _less(self, base: Any, c: Any, is_last: bool) -> tuple[list[Any], Any]:
        """What is subtracted in each step, and zero points that are floats."""
        bits = self.bits
        if bits.zero == "bits":
            return bits.less(self._zero_points(base, c, is_last), bits.lanes), None
        return bits.less(None, bits.lanes), T.hold(self._of_blocks(self.zero, base, c, is_last)) if bits.zero else None

    def _zero_points(self, base: Any, c: Any, is_last: bool) -> Any:
        """The zero points of a chunk's lanes that are stored as elements are."""
        bits = self.bits
        spread = bits.block // bits.lanes
        number = T.truncdiv(c, T.i64(spread)) if spread > 1 else c * bits.scales
        at = T.hold(number * bits.bits)
        byte, shift = T.hold(at >> T.i64(3)), T.cast(at & T.i64(7), "uint32")
        size = -(-bits.scales * bits.bits // 8)
        last = T.hold((self.blocks * bits.bits - 1) >> T.i64(3))
        places = [lane // bits.block * bits.bits for lane in range(bits.lanes)]
        if size > 4:  # more than a word
            some = [T.hold(T.cast(self.zero[base + T.min(byte + i, last)], "uint32")) for i in range(size)] if is_last else []
            some = some or [T.hold(T.cast(self.zero[T.run(T.hold(base + byte), size)], "uint32"))]
            vector = T.Shuffle(some * (bits.lanes // size), [place // 8 for place in places])
            shifts = T.Shuffle([T.const(place % 8, "uint32") for place in places], list(range(bits.lanes)))
            return (vector >> shifts) & bits.vector((1 << bits.bits) - 1, "uint32")
        word = None
        for i in range(size):
            own = T.hold(T.min(byte + i, last)) if is_last else byte + i
            value = T.cast(self.zero[base + own], "uint32") << T.const(8 * i, "uint32")
            word = value if word is None else word | value
        shifts = T.Shuffle([T.const(place, "uint32") for place in places], list(range(bits.lanes)))
        own = T.splat(T.hold(word >> shift) if size == 1 else T.hold(word), bits.lanes)
        return (own >> shifts) & bits.vector((1 << bits.bits) - 1, "uint32")


def added(vector: Any) -> Any:
    """The sum of a vector's lanes, by halves."""
    lanes = T.lanes(vector)
    while lanes > 1:
        vector, lanes = T.hold(vector), lanes // 2
        halves = [T.Shuffle([vector], list(range(first, first + lanes))) for first in (0, lanes)]
        vector = halves[0] + halves[1]
    return T.hold(vector)
