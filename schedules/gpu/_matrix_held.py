"""``Held``: the innermost part of products on devices whose subgroups hold and multiply matrices, each in its own way."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from tvmdml.kernels import tensorir_values as T
from tvmdml.kernels.contraction import Contraction
from tvmdml.kernels.movement import both
from tvmdml.schedules.gpu._matrix_forms import Part, Tile, Writer
from tvmdml.targets._device import DeviceTarget

_PAD = 16
"""Bytes after each row in shared memory: rows begin in other banks, and stay aligned."""


class Held:
    """Each subgroup has rows and columns of a tile: matrices whose elements no thread knows, and that only memory shows.

    In shared memory, the products of a row or column are neighbours, or all rows of a product.
    """

    stored = ("float16", "float16")
    keeps_type = True
    has_words = crosses = False
    sums = 0

    def __init__(
        self, tile: Tile, step: int, stages: int, shape: tuple[int, int, int], subgroup: int, inner_first: Sequence[bool]
    ) -> None:
        self.tile, self.stages, self.shape = tile, stages, shape
        self.name = f"held {'x'.join(map(str, shape))} by {subgroup}"
        rows, columns, depth = shape
        self.step = max(depth, step)
        self.turned = tuple(not first for first in inner_first)
        """Whether a product's elements of all rows are neighbours in shared memory."""
        self.down, self.across = tile.warp_rows // rows, tile.warp_columns // columns
        self.threads = tile.rows // tile.warp_rows * (tile.columns // tile.warp_columns) * subgroup
        self.sum_registers = -(-tile.warp_rows * tile.warp_columns // subgroup)
        self.rounds = self.down
        self.slab_rows = tile.rows // tile.warp_rows * rows
        self.slab_pitch = tile.columns + _PAD // 4
        self.bytes = sum(self.size(which) for which in (0, 1)) * stages * 2 + self.slab_rows * self.slab_pitch * 4 + 2 * _PAD

    def is_run_along(self, which: int, inner_first: bool) -> bool:
        """Whether elements that are neighbours in a tensor may be neighbours in shared memory."""
        return True

    def size(self, which: int) -> int:
        """The elements of a factor's part."""
        return self._pitch(which) * (self.step if self.turned[which] else (self.tile.rows, self.tile.columns)[which])

    def _pitch(self, which: int) -> int:
        return ((self.tile.rows, self.tile.columns)[which] if self.turned[which] else self.step) + _PAD // 2

    def place(self, which: int, own: Any, inner: Any) -> Any:
        """Where the element of a row or column and a product is."""
        return inner * self._pitch(which) + own if self.turned[which] else own * self._pitch(which) + inner

    def factor(self, x: Any, zero: Any, product: Any, inside: Any) -> Any:
        """An element as it is in shared memory."""
        return T.Select(both(product, inside), x, T.const(0, T.type_of(x)))

    def declare(self, parts: Sequence[Part]) -> Any:
        """Shared memory for both factors, and the slab."""
        for which, part in enumerate(parts):
            part.declare(T.shared(self.stored[which], self.stages * self.size(which)))
        return T.shared("float32", self.slab_rows * self.slab_pitch)

    def begin(self, writer: Writer) -> None:
        """Compute where the subgroup's part is; its sums."""
        warp, across = T.let(T.subgroup("index", "int32")), self.tile.columns // self.tile.warp_columns
        self._down = T.let(T.truncdiv(warp, T.const(across, "int32")))
        self._across = T.let(warp - self._down * across)
        self._begins = (T.let(self._down * self.tile.warp_rows), T.let(self._across * self.tile.warp_columns))
        rows, columns, depth = self.shape

        def of(use: str, count: int, name: str, dtype: str, shape: tuple[int, int]) -> list[Any]:
            return [T.SubgroupMatrix(f"{name}{i}", use, dtype, shape) for i in range(count)]

        self._a = of("a", self.down, "a", self.stored[0], (rows, depth))
        self._b = of("b", self.across, "b", self.stored[1], (depth, columns))
        self._own = of("sum", self.down * self.across, "own", "float32", (rows, columns))
        self._total = of("sum", len(self._own), "total", "float32", (rows, columns)) if writer.deep else []

    def clear(self) -> None:
        """A new tile begins."""
        for one in (*self._own, *self._total):
            one.clear()

    def fold(self) -> None:
        """Add the sums of a block of products to the others', and clear them."""
        for i, total in enumerate(self._total):
            total.add(self._own[i])
            self._own[i].clear()

    def multiply(self, writer: Writer, stage: Any) -> None:
        """The products that are in shared memory, added to the sums in order."""
        rows, columns, depth = self.shape
        for first in range(0, self.step, depth):
            for which, matrices, side in ((0, self._a, rows), (1, self._b, columns)):
                memory, base = writer.parts[which].memory, None if stage is None else stage * self.size(which)
                for i, matrix in enumerate(matrices):
                    place = self.place(which, self._begins[which] + i * side, first)
                    place = T.let(place if base is None else place + base)
                    # A row of the second factor's shared memory is a column of it, unless it is turned.
                    matrix.load(memory, place, self._pitch(which), turned=self.turned[which] != bool(which))
            for i, a in enumerate(self._a):
                for j, b in enumerate(self._b):
                    self._own[i * self.across + j].add_product(a, b)

    def settle(self, writer: Writer, above: Any, left: Any, block: Any) -> None:
        """The sums are what they are to be, but for those of the last block."""
        self.fold()

    def keep(self, writer: Writer, slab: Any, i: Any) -> None:
        """The sums of a round, to the slab: some rows of each subgroup."""
        rows, columns, _ = self.shape
        place = T.let(self._down * (rows * self.slab_pitch) + self._begins[1])
        for row in range(self.down):
            with T.when(T.expression(i == T.const(row, "int32"))):
                for j in range(self.across):
                    one = (self._total or self._own)[row * self.across + j]
                    one.store(slab, T.let(place + j * columns), self.slab_pitch)

    def row(self, line: Any, i: Any) -> Any:
        """The row of the tile that is in a line of the slab."""
        rows = self.shape[0]
        warp = T.let(T.truncdiv(line, T.const(rows, "int32")))
        return warp * (self.tile.warp_rows - rows) + line + i * rows


def held_shape(contraction: Contraction, types: Sequence[str], target: DeviceTarget) -> tuple[int, int, int] | None:
    """The matrices that a subgroup of the device multiplies, for a product of factors of these types; ``None`` if it cannot."""
    plain = contraction.a_zero is None and contraction.b_zero is None and contraction.computed == "float32"
    if not plain or any(one != "float16" for one in types) or not target.has("subgroup_basic"):
        return None
    return target.matrices("float16")
