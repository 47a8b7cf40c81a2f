"""``Held``: the innermost part of products on devices whose subgroups hold and multiply matrices, each in its own way."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import nullcontext
from typing import Any

from tvmdml.kernels import tensorir_values as T
from tvmdml.kernels.contraction import Contraction
from tvmdml.kernels.movement import both
from tvmdml.schedules.gpu._matrix_forms import FactorTile, MatrixTile, SumPlace, TileWriter
from tvmdml.targets._device import DeviceTarget

_PAD = 16
"""Bytes after each row in shared memory: rows begin in other banks, and stay aligned."""
_FLIP = 0x80808080
"""The signs of the bytes of a word."""


class Held:
    """Each subgroup has rows and columns of a tile: matrices whose elements no thread knows, and that only memory shows.

    In shared memory, the products of a row or column are neighbours, or all rows of a product. Where elements are moved in words,
    it consists of words.

    All bytes have signs there: those of uint8 are less by 128, and so are their zero points. Sums are those of the elements as they
    are there, and ``Cores`` says what zero points make of them: what is added up of one factor, its product with a matrix of ones,
    goes to the slab as well, behind the columns or below the rows of the sums.
    """

    keeps_type = has_words = True
    crosses = False
    sums = 0

    def __init__(
        self,
        tile: MatrixTile,
        step: int,
        stages: int,
        types: Sequence[str],
        shape: tuple[int, int, int],
        subgroup: int,
        inner_first: Sequence[bool],
        has_zeros: Sequence[bool],
        is_scaled: bool = False,
    ) -> None:
        self.tile, self.stages, self.shape, self._is_scaled = tile, stages, shape, is_scaled
        self.name = f"held {'x'.join(map(str, shape))} by {subgroup}"
        rows, columns, depth = shape
        self.is_bytes = types[0] != "float16"
        self.stored = ("int8", "int8") if self.is_bytes else ("float16", "float16")
        self._size, self._computed = (1, "int32") if self.is_bytes else (2, "float32")
        self.flips = tuple(_FLIP if one == "uint8" else 0 for one in types)
        self.shifted = tuple(has_zero or flip != 0 for has_zero, flip in zip(has_zeros, self.flips, strict=True))
        """Whether a factor's elements differ from what is multiplied, so that the other factor's are added up."""
        self.step = self.loops = max(depth, 2 * step if self.is_bytes else step)
        self.turned = tuple(not first for first in inner_first)
        """Whether a product's elements of all rows are neighbours in shared memory."""
        self.down, self.across = tile.warp_rows // rows, tile.warp_columns // columns
        self.threads = tile.rows // tile.warp_rows * (tile.columns // tile.warp_columns) * subgroup
        matrices = self.down * self.across + self.down * self.shifted[1] + self.across * self.shifted[0]
        self.sum_registers = -(-matrices * rows * columns // subgroup)
        self.rounds = self.down
        self.slab_rows = tile.rows // tile.warp_rows * rows
        self.slab_pitch = tile.columns + columns * self.shifted[1] + _PAD // 4
        self._slab = (self.slab_rows + rows * self.shifted[0]) * self.slab_pitch
        self.bytes = sum(self.size(which) for which in (0, 1)) * stages * self._size + self._slab * 4 + 2 * _PAD

    def is_run_along(self, which: int, inner_first: bool) -> bool:
        """Whether elements that are neighbours in a tensor may be neighbours in shared memory."""
        return True

    def size(self, which: int) -> int:
        """The elements of a factor's part."""
        return self._pitch(which) * (self.step if self.turned[which] else (self.tile.rows, self.tile.columns)[which])

    def _pitch(self, which: int) -> int:
        return ((self.tile.rows, self.tile.columns)[which] if self.turned[which] else self.step) + _PAD // self._size

    def place(self, which: int, own: Any, inner: Any) -> Any:
        """Where the element of a row or column and a product is."""
        return inner * self._pitch(which) + own if self.turned[which] else own * self._pitch(which) + inner

    def factor(self, x: Any, zero: Any, product: Any, inside: Any) -> Any:
        """An element as it is in shared memory: what is in padding has its zero point, so that it contributes nothing."""
        if not self.is_bytes:
            return T.Select(both(product, inside), x, T.const(0, T.type_of(x)))
        if inside is not None:
            x = T.Select(inside, x, T.const(0, T.type_of(x)) if zero is None else zero)
        return T.Select(product, T.cast(_signed(x), "int8"), T.const(0, "int8"))

    def declare(self, parts: Sequence[FactorTile]) -> Any:
        """Shared memory for both factors, and the slab."""
        self._in_word = []
        for which, part in enumerate(parts):
            in_word = 4 // self._size if max(part.moved.run, part.moved.packed) > 1 else 1
            self._in_word.append(in_word)
            part.declare(T.shared("uint32" if in_word > 1 else self.stored[which], self.stages * self.size(which) // in_word))
        self._slab_of = T.shared(self._computed, self._slab)
        return self._slab_of

    def begin(self, writer: TileWriter) -> None:
        """Compute where the subgroup's part is; its sums."""
        warp, across = T.let(T.subgroup("index", "int32")), self.tile.columns // self.tile.warp_columns
        self._down = T.let(T.truncdiv(warp, T.const(across, "int32")))
        self._across = T.let(warp - self._down * across)
        self._begins = (T.let(self._down * self.tile.warp_rows), T.let(self._across * self.tile.warp_columns))
        rows, columns, depth = self.shape
        factor, total = self.stored[0], self._computed

        def of(use: str, count: int, name: str, dtype: str, shape: tuple[int, int]) -> list[Any]:
            return [T.SubgroupMatrix(f"{name}{i}", use, dtype, shape) for i in range(count)]

        self._a = of("a", self.down, "a", factor, (rows, depth))
        self._b = of("b", self.across, "b", factor, (depth, columns))
        self._own = of("sum", self.down * self.across, "own", total, (rows, columns))
        self._total = of("sum", len(self._own), "total", total, (rows, columns)) if writer.deep else []
        self._row_sums = of("sum", self.down * self.shifted[1], "row_sums", total, (rows, columns))
        self._column_sums = of("sum", self.across * self.shifted[0], "column_sums", total, (rows, columns))
        self._scale = of("sum", 1, "scale", total, (rows, columns))[0]
        self._ones = of("a", 1, "ones_a", factor, (rows, depth)) + of("b", 1, "ones_b", factor, (depth, columns))
        for ones, other_is_shifted in zip(self._ones, self.shifted, strict=True):
            if other_is_shifted:
                ones.fill(1)

    def clear(self) -> None:
        """A new tile begins."""
        for one in (*self._own, *self._total, *self._row_sums, *self._column_sums):
            one.fill()

    def fold(self, writer: TileWriter, step: Any) -> None:
        """Add the sums of a block of products, which has one scale for a column if it has any, to the others', and clear them."""
        if self._is_scaled:
            self._multiply_by_scales(writer, step)
        for i, total in enumerate(self._total):
            total.add(self._own[i])
            self._own[i].fill()

    def _multiply_by_scales(self, writer: TileWriter, step: Any) -> None:
        """All rows of a matrix of scales are the same. It comes from the slab, which nothing needs before sums are finished."""
        rows, columns, _ = self.shape
        T.barrier()
        for first in range(0, self.tile.columns, self.threads):
            column = T.let(writer.thread + first)
            is_there = first + self.threads <= self.tile.columns
            with nullcontext() if is_there else T.when(column < T.const(self.tile.columns, "int32")):
                scale = writer.scale(column, step)
                for row in range(rows):
                    T.store(self._slab_of, T.let(column + row * self.slab_pitch), scale)
        T.barrier()
        for j in range(self.across):
            self._scale.load(self._slab_of, T.let(self._begins[1] + j * columns), self.slab_pitch)
            for i in range(self.down):
                self._own[i * self.across + j].multiply(self._scale)

    def multiply(self, writer: TileWriter, stage: Any) -> None:
        """The products that are in shared memory, added to the sums in order."""
        rows, columns, depth = self.shape
        for first in range(0, self.step, depth):
            for which, matrices, side in ((0, self._a, rows), (1, self._b, columns)):
                memory, base = writer.parts[which].memory, None if stage is None else stage * self.size(which)
                in_word = self._in_word[which]
                for i, matrix in enumerate(matrices):
                    place = self.place(which, self._begins[which] + i * side, first)
                    place = T.let(place if base is None else place + base)
                    place = T.let(place >> T.const(in_word.bit_length() - 1, "int32")) if in_word > 1 else place
                    # A row of the second factor's shared memory is a column of it, unless it is turned.
                    matrix.load(memory, place, self._pitch(which) // in_word, turned=self.turned[which] != bool(which))
            for i, a in enumerate(self._a):
                for j, b in enumerate(self._b):
                    self._own[i * self.across + j].add_product(a, b)
            for total, a in zip(self._row_sums, self._a, strict=False):
                total.add_product(a, self._ones[1])
            for total, b in zip(self._column_sums, self._b, strict=False):
                total.add_product(self._ones[0], b)

    def settle(self, writer: TileWriter, above: Any, left: Any, block: Any) -> None:
        """The sums are what they are to be, but for those of the last block, and for zero points."""
        self.fold(writer, None)

    def keep(self, writer: TileWriter, slab: Any, i: Any) -> None:
        """The sums of a round, to the slab: some rows of each subgroup."""
        rows, columns, _ = self.shape
        line = T.let(self._down * (rows * self.slab_pitch))
        for row in range(self.down):
            with T.when(T.expression(i == T.const(row, "int32"))):
                for j in range(self.across):
                    one = (self._total or self._own)[row * self.across + j]
                    one.store(slab, T.let(line + self._begins[1] + j * columns), self.slab_pitch)
                if self._row_sums:
                    with T.when(T.expression(self._across == T.const(0, "int32"))):
                        self._row_sums[row].store(slab, T.let(line + self.tile.columns), self.slab_pitch)
                if self._column_sums and row == 0:
                    with T.when(T.expression(self._down == T.const(0, "int32"))):
                        for j, one in enumerate(self._column_sums):
                            below = self.slab_rows * self.slab_pitch + j * columns
                            one.store(slab, T.let(self._begins[1] + below), self.slab_pitch)

    def settled(self, writer: TileWriter, slab: Any, place: SumPlace) -> Any:
        """A sum of what was multiplied becomes that of differences from zero points."""
        line = T.let(place.line * self.slab_pitch)
        total = slab[line + place.across]
        a, b = (
            self._zero(writer, which, at) if self.shifted[which] else None for which, at in enumerate((place.row, place.column))
        )
        if a is not None:
            total = total - a * slab[place.across + self.slab_rows * self.slab_pitch]
        if b is not None:
            total = total - b * slab[line + self.tile.columns]
        if a is not None and b is not None:
            total = total + a * b * T.cast(writer.count(place.block), "int32")
        return T.let(total)

    def _zero(self, writer: TileWriter, which: int, at: Any) -> Any:
        """What was multiplied in place of a 0 of the row or column."""
        zero, group, nothing = (writer.c.a_zero, writer.c.b_zero)[which], which + 1, -128 if self.flips[which] else 0
        if zero is None:
            return T.const(nothing, "int32")
        found = writer.zero_at(zero, group, writer.unraveled(at, writer.c.groups[group]))
        return T.let(T.cast(found, "int32") + nothing)

    def row(self, line: Any, i: Any) -> Any:
        """The row of the tile that is in a line of the slab."""
        rows = self.shape[0]
        warp = T.let(T.truncdiv(line, T.const(rows, "int32")))
        return warp * (self.tile.warp_rows - rows) + line + i * rows


def _signed(x: Any) -> Any:
    """A byte with a sign: one without is less by 128."""
    return x ^ T.const(128, "uint8") if T.type_of(x) == "uint8" else x


def held_shape(contraction: Contraction, types: Sequence[str], target: DeviceTarget) -> tuple[int, int, int] | None:
    """The matrices that a subgroup of the device multiplies, for a product of factors of these types; ``None`` if it cannot."""
    if not target.has("subgroup_basic"):
        return None
    if contraction.computed == "int32":
        return target.matrices("int8") if all(one in ("int8", "uint8") for one in types) else None
    plain = contraction.a_zero is None and contraction.b_zero is None and contraction.computed == "float32"
    return target.matrices("float16") if plain and all(one == "float16" for one in types) else None
