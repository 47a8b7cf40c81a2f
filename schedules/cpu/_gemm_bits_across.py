"""Products with a matrix of few bits whose bytes hold neighbouring columns: each place's row is read as it lies.

A lane has a byte, and so elements of neighbouring columns, which become floats in registers: element ``j`` of lane ``i`` is of
column ``count * i + j``, where ``count`` elements are in a byte. Some hundred columns have sums in registers for the places of a
block, and then in memory, so that a block's rows are each read from one end to the other, and the matrix once. Scales and finished
sums are put in the order of the other's lanes; no element of the matrix is moved.
"""

from __future__ import annotations

from typing import Any

from tvmdml.kernels import tensorir_values as T
from tvmdml.kernels.contraction import multiply_add
from tvmdml.schedules.cpu import per_task, share
from tvmdml.schedules.cpu._ahead import read_ahead
from tvmdml.schedules.cpu._gemm_bits import Bits
from tvmdml.schedules.cpu._gemm_panels import times
from tvmdml.schedules.cpu._sums import zeros

COLUMNS = 64
"""Columns of a task are a multiple of so many: these are whole vectors of bytes."""
AHEAD = 512
"""Bytes of a row between what is asked for and what is read."""


class BitColumns:
    """Elements of columns, and what belongs to their blocks; ``bits.block`` has the places of one."""

    bits: Bits
    b: Any
    scale: Any
    zero: Any
    scale_row: Any
    zero_row: Any

    @property
    def per_byte(self) -> int:
        """The elements of a byte."""
        return int(8 // self.bits.bits)

    def _byte(self, column: Any) -> Any:
        return T.truncdiv(column, T.i64(self.per_byte))

    def _one(self, buffer: Any, base: Any, column: Any) -> Any:
        """An element of a column, counted from the lower end of the range."""
        byte = T.hold(T.cast(buffer[base + self._byte(column)], "uint32"))
        shift = T.cast(T.truncmod(column, T.i64(self.per_byte)) * self.bits.bits, "uint32")
        return self.bits.plain(T.hold((byte >> shift) & T.const((1 << self.bits.bits) - 1, "uint32")))

    def _value(self, base: Any, block: Any, column: Any) -> tuple[Any, Any]:
        """An element of a row less its zero point, and its scale."""
        bits = self.bits
        element = T.cast(self._one(self.b, base, column), "float32")
        if bits.zero == "bits":
            less = T.cast(self._one(self.zero, times(block, self.zero_row), column), "float32")
        else:
            less = T.const(float(bits.offset), "float32")
        value = T.hold(element - T.hold(less))
        if bits.zero == "floats":
            value = T.hold(value - T.cast(self.zero[times(block, self.zero_row) + column], "float32"))
        return value, T.hold(T.cast(self.scale[times(block, self.scale_row) + column], "float32"))


class AcrossRows(BitColumns):
    """Writes the loops of a product of some rows.

    Args:
        bits: the matrix; ``block`` has the places of a block.
        rows: rows of the first factor that are computed together; there are at least as many.
        sums: vectors of sums that have room in registers.
    """

    def __init__(self, bits: Bits, rows: int, sums: int) -> None:
        self.bits, self.rows = bits, rows
        self.width = bits.lanes * self.per_byte
        """The columns of a vector of bytes."""
        beside = 2 if bits.zero else 1  # zero points have room there, too
        self.together = max(1, sums // (self.per_byte * rows * beside))
        """Vectors of bytes of a place."""

    def rooms(self, rows: int, columns: int, depth: int) -> tuple[tuple[str, int], ...]:
        """A task's scratch memory, types and elements: the first factor, and sums."""
        return (("float32", rows * (depth + -(-columns // COLUMNS) * COLUMNS)),)

    def write(self, owner: Any, sizes: Any, buffers: Any, steps: Any, scratch: Any) -> None:
        """Write the kernel's statements.

        Args:
            owner: has ``begin(number)``, ``bases`` and ``put``.
            sizes: tasks, batches, parts of the columns, rows, columns, places, and bytes of a row, which do not matter here.
            buffers: both factors, the scales, and zero points or ``None``.
            steps: of the first factor for rows and places; from a row to the next one of the others.
            scratch: the buffer, and elements of it for a task.
        """
        tasks, batch, parts, self.m, columns, self.depth, _ = sizes
        self.a, self.b, self.scale, self.zero = buffers
        self.a_row, self.a_place, self.b_row, self.scale_row, self.zero_row = steps
        (self.scratch,), (room,) = scratch
        size = T.i64(self.bits.block)
        blocks, units = T.hold(T.truncdiv(self.depth + (size - 1), size)), T.hold(batch * parts)

        def task(number: Any) -> None:
            begin, end = share(number, tasks, units)
            with T.loop(T.hold(end - begin)) as i:
                matrix, part = T.unravel(T.hold(begin + i), [None, parts])
                owner.begin(matrix)
                self.base_a, self.base_b = owner.bases[0], owner.bases[1]
                self.low, high = (
                    T.hold(T.Select(p == parts, columns, T.truncdiv(T.truncdiv(columns, T.i64(COLUMNS)) * p, parts) * COLUMNS))
                    for p in (part, part + 1)
                )
                self.count = T.hold(high - self.low)
                self.at = T.hold(number * room)
                self.sums = T.hold(self.at + self.m * self.depth)
                self._begin()
                with T.loop(blocks) as block:
                    first = T.hold(block * size)
                    self._block(block, first, T.hold(T.min(size, self.depth - first)))
                self._finish(owner)

        per_task(tasks, task)

    def _begin(self) -> None:
        """The first factor as floats, and sums of 0."""
        with T.loop(self.m) as row:
            with T.loop(self.depth) as k:
                value = T.cast(self.a[self.base_a + times(row, self.a_row) + times(k, self.a_place)], "float32")
                T.store(self.scratch, T.hold(self.at + row * self.depth + k), T.hold(value))
            with T.loop(self.count) as n:
                T.store(self.scratch, T.hold(self.sums + row * self.count + n), T.const(0, "float32"))

    def _block(self, block: Any, first: Any, places: Any) -> None:
        """Add a block's products to the sums of all columns."""
        wide = T.hold(T.truncdiv(self.count, T.i64(self.together * self.width)))
        done = T.hold(wide * (self.together * self.width))
        narrow = T.hold(T.truncdiv(self.count - done, T.i64(self.width)))
        left = T.hold(done + narrow * self.width)
        with T.loop(wide) as i:
            self._vectors(block, first, places, T.hold(i * (self.together * self.width)), self.together)
        if self.together > 1:
            with T.loop(narrow) as i:
                self._vectors(block, first, places, T.hold(done + i * self.width), 1)
        with T.loop(T.hold(self.count - left)) as i:
            self._column(block, first, places, T.hold(left + i))

    def _vectors(self, block: Any, first: Any, places: Any, column: Any, count: int) -> None:
        """The same of the columns of some vectors of bytes."""
        bits, lanes = self.bits, self.bits.lanes
        own = [T.hold(self.low + column + v * self.width) for v in range(count)]
        scales = [self._floats(self.scale, self.scale_row, block, n) for n in own]
        less = [self._less(block, n) for n in own]
        start = T.hold(self.base_b + times(first, self.b_row) + self._byte(own[0]))
        # Behind the end of a row are the columns of the next block.
        far = T.hold(self._byte(column) + AHEAD)
        ahead = T.hold(
            T.Select(far < self._byte(self.count), T.i64(AHEAD), AHEAD - self._byte(self.count) + times(places, self.b_row))
        )
        with T.loop(T.hold(T.truncdiv(self.m + (self.rows - 1), T.i64(self.rows)))) as tile:
            row = T.hold(T.min(tile * self.rows, self.m - self.rows))
            skipped = T.hold(tile * self.rows - row)  # they are computed already
            totals = [
                [[T.Variable(f"float32x{lanes}", zeros(lanes)) for _ in range(self.per_byte)] for _ in own]
                for _ in range(self.rows)
            ]
            with T.loop(places) as k:
                at = T.hold(start + times(k, self.b_row))
                xs = [T.hold(self.scratch[self.at + (row + m) * self.depth + first + k]) for m in range(self.rows)]
                for v in range(count):
                    if v * lanes % 64 == 0:
                        read_ahead(self.b, at + v * lanes + ahead)
                    word = bits.signless(T.hold(T.cast(self.b[T.run(at + v * lanes, lanes)], "uint32")))
                    for j, (value, zero) in enumerate(zip(*less[v], strict=True)):
                        element = T.hold(bits.element(word, j, value))
                        element = element if zero is None else T.hold(element - zero)
                        for m in range(self.rows):
                            total = totals[m][v][j]
                            total.set(multiply_add(element, T.splat(xs[m], lanes), total.value))
            for m in range(self.rows):
                with T.when(skipped <= m):
                    for v in range(count):
                        for j, scale in enumerate(scales[v]):
                            place = T.run(self.sums + (row + m) * self.count + column + (v * self.width + j * lanes), lanes)
                            T.store(self.scratch, place, T.hold(multiply_add(totals[m][v][j].value, scale, self.scratch[place])))

    def _column(self, block: Any, first: Any, places: Any, column: Any) -> None:
        """The same of one column, which is behind the last vector."""
        own = T.hold(self.low + column)
        with T.loop(self.m) as row:
            at = T.hold(self.sums + row * self.count + column)
            with T.loop(places) as k:
                value, scale = self._value(self.base_b + times(first + k, self.b_row), block, own)
                x = T.hold(self.scratch[self.at + row * self.depth + first + k])
                T.store(self.scratch, at, T.hold(multiply_add(T.hold(value * scale), x, self.scratch[at])))

    def _finish(self, owner: Any) -> None:
        """Put the sums in order, and store them."""
        lanes, count = self.bits.lanes, self.per_byte
        with T.loop(self.m) as row:
            at = T.hold(self.sums + row * self.count)
            vectors = T.hold(T.truncdiv(self.count, T.i64(self.width)))
            with T.loop(vectors) as v:
                parts = [T.hold(self.scratch[T.run(at + v * self.width + j * lanes, lanes)]) for j in range(count)]
                for i in range(count):
                    order = [(n % count) * lanes + n // count for n in range(i * lanes, (i + 1) * lanes)]
                    own = T.hold(T.Shuffle(parts, order)) if count > 1 else parts[0]
                    owner.put(row, T.hold(self.low + v * self.width + i * lanes), own)
            with T.loop(T.hold(self.count - vectors * self.width)) as i:
                n = T.hold(vectors * self.width + i)
                owner.put(row, T.hold(self.low + n), T.hold(self.scratch[at + n]))

    # -- What belongs to columns

    def _floats(self, buffer: Any, step: Any, block: Any, column: Any) -> list[Any]:
        """A block's floats of the columns of a vector of bytes, for each element of a byte."""
        count, lanes = self.per_byte, self.bits.lanes
        at = T.hold(times(block, step) + column)
        some = [T.hold(T.cast(buffer[T.run(at + i * lanes, lanes)], "float32")) for i in range(count)]
        return [T.hold(T.Shuffle(some, [count * i + j for i in range(lanes)])) for j in range(count)] if count > 1 else some

    def _less(self, block: Any, column: Any) -> tuple[list[Any], list[Any]]:
        """For each element of a byte what is subtracted as it becomes a float, and zero points that are floats."""
        bits, lanes, count = self.bits, self.bits.lanes, self.per_byte
        if bits.zero != "bits":
            own = self._floats(self.zero, self.zero_row, block, column) if bits.zero else [None] * count
            return bits.less(None, lanes)[:count], own
        at = T.hold(times(block, self.zero_row) + self._byte(column))
        word = T.hold(T.cast(self.zero[T.run(at, lanes)], "uint32"))
        mask = bits.vector((1 << bits.bits) - 1, "uint32")
        parts = [T.hold((word >> bits.vector(j * bits.bits, "uint32") if j else word) & mask) for j in range(count)]
        return [bits.less(part, lanes)[j] for j, part in enumerate(parts)], [None] * count


class AcrossPacker(BitColumns):
    """Writes panels of floats, as ``Packer`` does of others.

    Args:
        bits: the matrix; its lanes are those of the tile.
        width: columns of a panel.
        buffers: the matrix, its scales, and zero points or ``None``.
        steps: from one row to the next one, of each.
    """

    together = 1

    def __init__(self, bits: Bits, width: int, buffers: Any, steps: Any) -> None:
        self.bits, self.width = bits, width
        (self.b, self.scale, self.zero), (self.b_row, self.scale_row, self.zero_row) = buffers, steps

    def pack(self, base: Any, zeros: Any, to: Any, at: Any, line: Any, last: Any, place: Any, count: Any, done: Any = 0) -> None:
        """Write a panel, as ``Packer.pack``."""
        lanes = self.bits.lanes

        def whole() -> None:
            for start in range(0, self.width, lanes):
                T.store(to, T.run(self.to + start, lanes), self._some(T.hold(line + start)))

        def part() -> None:
            with T.loop(T.i64(self.width)) as i:
                value, scale = self._value(self.row, self.block, T.hold(T.min(line + i, last)))
                T.store(to, T.hold(self.to + i), T.hold(value * scale))

        with T.loop(count) as k:
            own = T.hold(place + k)
            self.block, self.row = T.hold(T.truncdiv(own, T.i64(self.bits.block))), T.hold(base + times(own, self.b_row))
            self.to = T.hold(at + k * self.width)
            read_ahead(self.b, self.row + self.b_row * 8 + self._byte(line))
            begins = T.truncmod(line, T.i64(self.per_byte)) == T.i64(0)  # the last panel of all may not begin with a byte
            T.either(T.And(begins, line + (self.width - 1) <= last), whole, part)

    def _some(self, column: Any) -> Any:
        """A vector of neighbouring columns as floats."""
        bits, lanes = self.bits, self.bits.lanes
        value = T.hold(self._elements(self.b, self.row, column) - bits.vector(0.0 if bits.zero == "bits" else float(bits.offset)))
        if bits.zero == "bits":
            value = T.hold(value - self._elements(self.zero, times(self.block, self.zero_row), column))
        elif bits.zero:
            value = T.hold(value - T.cast(self.zero[T.run(times(self.block, self.zero_row) + column, lanes)], "float32"))
        return T.hold(value * T.cast(self.scale[T.run(times(self.block, self.scale_row) + column, lanes)], "float32"))

    def _elements(self, buffer: Any, base: Any, column: Any) -> Any:
        """Elements of neighbouring columns, counted from the lower end of the range."""
        bits, lanes, count = self.bits, self.bits.lanes, self.per_byte
        vector = T.hold(T.cast(buffer[T.run(T.hold(base + self._byte(column)), lanes // count)], "uint32"))
        if count > 1:
            vector = T.Shuffle([vector] * count, [i // count for i in range(lanes)])  # as many lanes are given as taken
            shifts = [T.const(i % count * bits.bits, "uint32") for i in range(lanes)]
            vector = (vector >> T.Shuffle(shifts, list(range(lanes)))) & bits.vector((1 << bits.bits) - 1, "uint32")
        return T.cast(T.reinterpret(T.hold(bits.plain(vector)), "int32"), "float32")
