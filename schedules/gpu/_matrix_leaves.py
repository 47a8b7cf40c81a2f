"""The innermost part of products on a GPU: how factors lie in shared memory, and how a group multiplies what is there.

There are two here: ``Plain``, in which each thread has a block of sums, and ``Cores``, in which each subgroup has one, for tensor
cores. A third is ``Held`` (``_matrix_held.py``). Which one serves a product follows from its types and the target alone, as sums of
tensor cores have other bits.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from tvmdml.kernels import tensorir_values as T
from tvmdml.kernels.contraction import Contraction, factor, multiply_add
from tvmdml.kernels.movement import both
from tvmdml.schedules.gpu._matrix_forms import FactorTile, MatrixTile, SumPlace, TileWriter
from tvmdml.schedules.gpu._matrix_tiles import PAD
from tvmdml.schedules.gpu._words import load
from tvmdml.targets._device import DeviceTarget

_ROW = 16
"""Bytes of a row or column of the small matrices that tensor cores multiply; padding of as many lets rows begin in other banks."""

_TOGETHER = 512
"""The multiplications of a loop's round, for compilers that unroll nothing of this length."""


class _Own:
    """A thread's sums are its own."""

    flips = (0, 0)
    slab_pitch: int

    def fold(self, writer: TileWriter, step: Any) -> None:
        """The writer does it."""

    def settled(self, writer: TileWriter, slab: Any, place: SumPlace) -> Any:
        """They were settled before."""
        return T.let(slab[place.line * self.slab_pitch + place.across])


class Plain(_Own):
    """Each thread has rows and columns of a tile. In shared memory, a product's elements of all rows are neighbours."""

    crosses = False

    def __init__(
        self, tile: MatrixTile, step: int, stages: int, computed: str, types: Sequence[str], packed: bool, unrolls: bool
    ) -> None:
        width = 8 if computed == "float64" else 4
        self.packed = packed and computed == "float32"
        """Whether two neighbouring sums are added to at once."""
        self.name = "plain packed" if self.packed else "plain"
        self.tile, self.stages, self.computed = tile, stages, computed
        # With fewer products the compiler is told of fewer registers than a large tile needs.
        self.step = max(16 if tile.sums > 32 else 8, step if width == 4 else min(step, 8))
        # Pairs are not unrolled by compilers that unroll. A driver for the CPU moves all sums at the end of a round.
        self._together = self.step if self.packed else 1 if unrolls else min(self.step, max(1, _TOGETHER // tile.sums))
        self.loops = self.step // self._together
        self.stored = (computed, computed)
        self.keeps_type = all(one == computed for one in types) and computed != "int32"
        self.has_words = self.keeps_type and width == 4
        self.threads = tile.threads
        self.sums = tile.sums
        self.rounds = tile.own_rows
        self.slab_rows = tile.rows // tile.own_rows
        self.slab_pitch = tile.columns
        # An element of 64 bits has two registers: 8 x 8 of them would not fit.
        self.sum_registers = self.sums * width // 4
        self.bytes = (self.size(0) * stages + max(self.size(1) * stages, self.slab_rows * self.slab_pitch)) * width + 2 * _ROW

    def is_run_along(self, which: int, inner_first: bool) -> bool:
        """Whether elements that are neighbours in a tensor may be neighbours in shared memory."""
        return not inner_first

    def size(self, which: int) -> int:
        """The elements of a factor's part."""
        return self.step * self._pitch(which)

    def _pitch(self, which: int) -> int:
        return int((self.tile.rows, self.tile.columns)[which] + PAD)

    def place(self, which: int, own: Any, inner: Any) -> Any:
        """Where the element of a row or column and a product is."""
        return inner * self._pitch(which) + own

    def factor(self, x: Any, zero: Any, product: Any, inside: Any) -> Any:
        """An element as it is in shared memory, if there is such a ``product``, and it is ``inside`` of all dimensions."""
        return T.Select(both(product, inside), factor(x, zero, self.computed), T.const(0, self.computed))

    def begin(self, writer: TileWriter) -> None:
        """Compute where the thread's part is."""
        across = self.tile.columns // self.tile.own_columns
        down = T.let(T.truncdiv(writer.thread, T.const(across, "int32")))
        self._places = down, T.let(writer.thread - down * across)

    def _lanes(self, own: int) -> int:
        """How many neighbours a thread reads at once: 16 bytes."""
        return min(own, 2 if self.computed == "float64" else 4)

    def multiply(self, writer: TileWriter, stage: Any) -> None:
        """The products that are in shared memory, added to the thread's sums in order."""
        begins = [None if stage is None else T.let(stage * self.size(which)) for which in (0, 1)]
        together = T.const(self._together, "int32")
        rounds = T.const(self.loops, "int32")
        with T.loop(rounds) as some, T.unroll(T.const(0, "int32"), together) as k:
            self._product(writer, begins, T.let(some * together + k))

    def _product(self, writer: TileWriter, begins: Sequence[Any], k: Any) -> None:
        """The products of one inner coordinate, added to the thread's sums."""
        tile = self.tile
        owns, sides = (tile.own_rows, tile.own_columns), (tile.rows, tile.columns)
        factors: list[list[Any]] = []
        for which in (0, 1):
            lanes = self._lanes(owns[which])
            spread = sides[which] // owns[which] * lanes
            row = k * self._pitch(which) + self._places[which] * lanes
            row = T.let(row if begins[which] is None else row + begins[which])
            memory = writer.parts[which].memory
            factors.append([one for part in range(owns[which] // lanes) for one in load(memory, row + part * spread, lanes)])
        for i, a in enumerate(factors[0]):
            for j, b in enumerate(factors[1]):
                place = i * tile.own_columns + j
                if not self.packed:
                    T.store(writer.own, place, multiply_add(a, b, writer.own[place]))
                elif j % 2 == 0:
                    T.multiply_add_pair(writer.own, place, a, (b, factors[1][j + 1]))

    def declare(self, parts: Sequence[FactorTile]) -> Any:
        """Shared memory for both factors; returns the slab, which is there when they are no longer needed."""
        count = max(self.stages * self.size(1), self.slab_rows * self.slab_pitch)
        memories = [T.shared(self.computed, size) for size in (self.stages * self.size(0), count)]
        for part, memory in zip(parts, memories, strict=True):
            part.declare(memory)
        return memories[1]

    def clear(self) -> None:
        """A new tile begins."""

    def settle(self, writer: TileWriter, above: Any, left: Any, block: Any) -> None:
        """Make the sums what they are to be."""

    def keep(self, writer: TileWriter, slab: Any, i: Any) -> None:
        """The sums of a round, to the slab. They are chosen, because registers have no index."""
        tile, (down, across) = self.tile, self._places
        lanes = self._lanes(tile.own_columns)
        row, spread = T.let(down * tile.columns + across * lanes), tile.columns // tile.own_columns
        for j in range(tile.own_columns):
            total = writer.own[j]
            for other in range(1, tile.own_rows):
                total = T.Select(T.expression(i == T.const(other, "int32")), writer.own[other * tile.own_columns + j], total)
            T.store(slab, row + (j // lanes * lanes * spread + j % lanes), total)

    def row(self, line: Any, i: Any) -> Any:
        """The row of the tile that is in a line of the slab."""
        lanes, spread = self._lanes(self.tile.own_rows), self.tile.rows // self.tile.own_rows
        block = T.let(T.truncdiv(i, T.const(lanes, "int32")))
        return line * lanes + T.let(block * (lanes * spread) + (i - block * lanes))


class Cores(_Own):
    """Each subgroup has rows and columns of a tile: matrices of 16 rows and 8 columns, whose sums its threads hold together.

    In shared memory, the products of a row or column are neighbours, or, of float16, all rows of a product.
    Products of bytes are those of the elements as they are. With ``A`` and ``B`` their zero points, the sum of
    ``(a - A) * (b - B)`` over ``n`` products is that of ``a * b``, less ``B`` times that of ``a``, less ``A`` times that of ``b``,
    plus ``n * A * B``. What is added up of one factor is its product with a matrix of ones.
    """

    name = "cores"
    keeps_type = has_words = True

    def __init__(
        self, tile: MatrixTile, step: int, stages: int, computed: str, types: Sequence[str], inner_first: Sequence[bool]
    ) -> None:
        self.tile, self.stages, self.computed, self.stored = tile, stages, computed, tuple(types)
        self.half = _ROW if computed == "int32" else _ROW // 2
        """Products of a row of a small matrix; an instruction multiplies twice as many."""
        self.step = self.loops = max(2 * self.half, step * self.half // 4)
        self.crosses = computed == "int32"
        self.turned = tuple(computed != "int32" and not first for first in inner_first)
        """Whether a product's elements of all rows are neighbours in shared memory."""
        self.down, self.across = tile.warp_rows // 16, tile.warp_columns // 8
        self.threads = tile.rows // tile.warp_rows * (tile.columns // tile.warp_columns) * 32
        self.sums = self.down * self.across * 4
        self.rounds = self.down * 2
        self.slab_rows = tile.rows // tile.warp_rows * 8
        self.slab_pitch = tile.columns + 8
        self.sum_registers = self.sums
        each = [self.size(which) * stages * _ROW // self.half for which in (0, 1)]
        self.bytes = max(each[0], self.slab_rows * self.slab_pitch * 4) + each[1] + 2 * _ROW

    def is_run_along(self, which: int, inner_first: bool) -> bool:
        """Whether elements that are neighbours in a tensor may be neighbours in shared memory."""
        return inner_first or self.turned[which]

    def size(self, which: int) -> int:
        """The elements of a factor's part."""
        return self._pitch(which) * (self.step if self.turned[which] else (self.tile.rows, self.tile.columns)[which])

    def _pitch(self, which: int) -> int:
        return ((self.tile.rows, self.tile.columns)[which] if self.turned[which] else self.step) + self.half

    def place(self, which: int, own: Any, inner: Any) -> Any:
        """Where the element of a row or column and a product is."""
        return inner * self._pitch(which) + own if self.turned[which] else own * self._pitch(which) + inner

    def factor(self, x: Any, zero: Any, product: Any, inside: Any) -> Any:
        """An element as it is in shared memory: what is in padding has its zero point, so that it contributes nothing."""
        nothing = T.const(0, T.type_of(x))
        if inside is not None:
            x = T.Select(inside, x, nothing if zero is None else zero)
        return T.Select(product, x, nothing)

    def begin(self, writer: TileWriter) -> None:
        """Compute where the subgroup's part is, and what the thread reads of it."""
        tile, thread = self.tile, writer.thread
        self._lane = T.let(thread & T.const(31, "int32"))
        warp, across = T.let(thread >> T.const(5, "int32")), tile.columns // tile.warp_columns
        self._down = T.let(T.truncdiv(warp, T.const(across, "int32")))
        self._across = T.let(warp - self._down * across)
        eighth, row = T.let(self._lane >> T.const(3, "int32")), T.let(self._lane & T.const(7, "int32"))
        low, high = T.let(eighth & T.const(1, "int32")), T.let(eighth >> T.const(1, "int32"))
        # Rows of the first factor: the matrices are 0 to 7 and 8 to 15 of the first products, then of the others. Of the second
        # factor, the first columns have both halves of the products, then the others.
        self._reads = []
        for which, (begin, others, later) in enumerate(
            ((self._down * tile.warp_rows, low, high), (self._across * tile.warp_columns, high, low))
        ):
            own, inner = others * 8, later * self.half
            own, inner = (own, inner + row) if self.turned[which] else (own + row, inner)
            self._reads.append(T.let(self.place(which, begin + own, inner)))
        self._sums: list[Any] = [
            None if zero is None else T.local("int32", 4 * count)
            for zero, count in ((writer.c.b_zero, self.down), (writer.c.a_zero, self.across))
        ]

    def declare(self, parts: Sequence[FactorTile]) -> Any:
        """Shared memory for both factors; returns the slab, which is there when they are no longer needed."""
        slab = self.slab_rows * self.slab_pitch * 4 * self.half // _ROW
        sizes = max(self.stages * self.size(0), slab), self.stages * self.size(1)
        memories = [T.shared(dtype, size) for dtype, size in zip(self.stored, sizes, strict=True)]
        for part, memory in zip(parts, memories, strict=True):
            part.declare(memory)
        return T.decl_buffer((slab,), self.computed, data=memories[0].data)

    def clear(self) -> None:
        """A new tile begins."""
        for sums, count in zip(self._sums, (self.down, self.across), strict=True):
            for i in range(4 * count if sums is not None else 0):
                T.store(sums, i, T.const(0, "int32"))

    def multiply(self, writer: TileWriter, stage: Any) -> None:
        """The products that are in shared memory, added to the sums in order."""
        begins = self._reads if stage is None else [T.let(self._reads[i] + stage * self.size(i)) for i in (0, 1)]
        types, ones = (self.stored[0], self.stored[1]), T.const(0x01010101, "uint32")
        for first in range(0, self.step, 2 * self.half):
            factors = []
            for which, count in ((0, self.down), (1, self.across // 2)):
                words, memory = T.local("uint32", 4 * count), writer.parts[which].memory
                for i in range(count):
                    place = begins[which] + self.place(which, 16 * i, first)
                    T.load_tiles(words, 4 * i, memory, T.let(place), self.turned[which])
                factors.append(words)
            a, b = factors
            for i in range(self.down):
                rows = [a[4 * i + word] for word in range(4)]
                for j in range(self.across):
                    T.multiply_tiles(types, writer.own, 4 * (i * self.across + j), rows, [b[2 * j], b[2 * j + 1]])
                if self._sums[0] is not None:
                    T.multiply_tiles((types[0], "int8"), self._sums[0], 4 * i, rows, [ones] * 2)
            for j in range(self.across if self._sums[1] is not None else 0):
                T.multiply_tiles(("int8", types[1]), self._sums[1], 4 * j, [ones] * 4, [b[2 * j], b[2 * j + 1]])

    def settle(self, writer: TileWriter, above: Any, left: Any, block: Any) -> None:
        """Make the sums those of differences from zero points."""
        zeros: list[list[Any]] = []
        places = (
            [self._row(i, half) for i in range(self.down) for half in (0, 1)],
            [self._column(j, one) for j in range(self.across) for one in (0, 1)],
        )
        for which, (zero, first) in enumerate(((writer.c.a_zero, above), (writer.c.b_zero, left))):
            found = []
            for place in places[which] if zero is not None else ():
                group = which + 1
                position = T.let(T.min(first + T.cast(place, writer.dtype), writer.sizes[group] - 1))
                at = writer.unraveled(position, writer.c.groups[group])
                found.append(T.let(T.cast(writer.zero_at(zero, group, at), "int32")))
            zeros.append(found)
        if not any(zeros):
            return
        count = T.let(T.cast(writer.count(block), "int32"))
        for i in range(self.down):
            for half in (0, 1):
                for j in range(self.across):
                    for one in (0, 1):
                        place = 4 * (i * self.across + j) + 2 * half + one
                        total = writer.own[place]
                        a, b = (some[2 * n + m] if some else None for some, n, m in ((zeros[0], i, half), (zeros[1], j, one)))
                        if a is not None:
                            total = total - a * self._sums[1][4 * j + one]
                        if b is not None:
                            total = total - b * self._sums[0][4 * i + 2 * half]
                        if a is not None and b is not None:
                            total = total + a * b * count
                        T.store(writer.own, place, total)

    def _row(self, i: int, half: int) -> Any:
        """The row of the tile that a thread has a sum of."""
        return self._down * self.tile.warp_rows + (self._lane >> T.const(2, "int32")) + (16 * i + 8 * half)

    def _column(self, j: int, one: int) -> Any:
        return self._across * self.tile.warp_columns + (self._lane & T.const(3, "int32")) * 2 + (8 * j + one)

    def column(self, i: int) -> tuple[int, Any]:
        """Of a thread's sum, which of the thread's columns it is in, and that column of the tile."""
        j, one = i // 4 % self.across, i % 2
        return 2 * j + one, self._column(j, one)

    def keep(self, writer: TileWriter, slab: Any, i: Any) -> None:
        """The sums of a round, to the slab: 8 rows of each subgroup."""
        line = self._down * 8 + (self._lane >> T.const(2, "int32"))
        place = T.let(line * self.slab_pitch + self._column(0, 0))
        for j in range(self.across):
            for one in (0, 1):
                total = writer.own[4 * j + one]
                for other in range(1, self.rounds):
                    own = writer.own[4 * (other // 2 * self.across + j) + other % 2 * 2 + one]
                    total = T.Select(T.expression(i == T.const(other, "int32")), own, total)
                T.store(slab, place + (8 * j + one), total)

    def row(self, line: Any, i: Any) -> Any:
        """The row of the tile that is in a line of the slab."""
        warp = T.let(line >> T.const(3, "int32"))
        return warp * (self.tile.warp_rows - 8) + line + i * 8


def has_cores(contraction: Contraction, types: Sequence[str], target: DeviceTarget) -> bool:
    """Whether tensor cores compute a product of factors of these types."""
    if not target.has("tensor_cores"):
        return False
    if contraction.computed == "int32":
        return all(one in ("int8", "uint8") for one in types)
    plain = contraction.a_zero is None and contraction.b_zero is None
    return plain and contraction.computed == "float32" and all(one == "float16" for one in types)
