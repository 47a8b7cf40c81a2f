"""Products of bytes, of bfloat16 and of float16 in matrix tiles (AMX): the loops of ``_gemm.py`` around a block of tiles.

Sums of a block are finished from memory, where they stay in the first cache.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from tvmdml.kernels import tensorir_values as T
from tvmdml.kernels.contraction import multiply_add
from tvmdml.schedules.cpu._ahead import read_far_ahead
from tvmdml.schedules.cpu._amx import SIDE, AmxBlock
from tvmdml.schedules.cpu._gemm import KC, ProductLoops, TileShape, _Where, blocks
from tvmdml.schedules.cpu._gemm_arithmetic import ProductArithmetic, TileBytes, TileHalves, TilePairs
from tvmdml.schedules.cpu._gemm_panels import up
from tvmdml.schedules.cpu._sums import zeros

_LEAST_COLUMNS = SIDE
_AHEAD = 1 << 13
"""Bytes between what few rows ask for and what they read. They wait for memory, whose pages processors read ahead one by one."""


def shape(rows: int, columns: int) -> TileShape | None:
    """The block for a product, in its rows and vectors; ``None`` if vectors of columns are not filled."""
    if columns < _LEAST_COLUMNS:
        return None
    high, wide = (1, 4) if rows <= SIDE else (2, 2)
    return TileShape(high * SIDE, min(wide, columns // SIDE), SIDE)


class TileProduct(ProductLoops):  # type: ignore[misc] # mypy knows these modules by another name
    """Writes the loops."""

    PARTS = False
    arithmetic: TileBytes | TilePairs
    next_lines: tuple[Any, Any] | None = None
    """Of the next panel of columns the first line for which a tile asks, and how many of each step."""

    @property
    def _block(self) -> AmxBlock:
        """With several rows of tiles, a panel of columns stays in the first cache; otherwise the only panel of rows."""
        high = self.shape.rows // SIDE
        signed, parts = (self.arithmetic.signed, 1) if isinstance(self.arithmetic, TileBytes) else (None, self.arithmetic.parts)
        return AmxBlock(high, self.shape.vectors, signed, 0 if high > 1 else 1, parts)

    def _enter(self) -> None:
        self._block.configure(T.hold(T.min(self.plan.rows, T.i64(SIDE))))

    def _leave(self) -> None:
        self._block.release()

    def _steps_of_tiles(self, row_panels: Any, column_panels: Any) -> tuple[Any, Any]:
        return T.i64(1), row_panels

    def _tiles(
        self,
        row_panels: Any,
        column_panels: Any,
        first: Any,
        panel: Callable[[int, Any], tuple[Any, Any, Any]],
        tile: Callable[..., None],
    ) -> None:
        """Column by column: a panel of columns is as small as one of rows.

        All tiles over one ask for the next one, each for a part of its lines, if it comes from memory.
        """
        asks = self.packed[1] and self.shape.rows > SIDE
        lines = T.hold(up(self.shape.columns, row_panels)) if asks else None
        with T.loop(column_panels) as jr:
            of_b = panel(1, jr)
            after = panel(1, T.hold(T.min(jr + 1, column_panels - 1)))[1] if asks else None
            with T.loop(row_panels) as ir:
                self.next_lines = (T.hold(after + ir * lines * SIDE), lines) if asks else None
                tile(ir, jr, panel(0, ir), of_b)

    def _tile(self, a: Any, b: Any, groups: Any, at: Any, first: Any, last: Any, where: _Where, late: bool) -> None:
        block = self._block
        T.either(first, block.clear, lambda: block.load(self.partial, at))
        self._steps(a, b, groups)
        block.store(self.partial, at)
        self._finish_kept(at, last, where)

    def _steps(self, a: Any, b: Any, groups: Any) -> None:
        """Add the products of so many groups of places to the block's sums."""
        block, unit = self._block, self.arithmetic.unit
        with T.loop(T.hold(T.truncdiv(groups, T.i64(unit)))) as k:
            places = (T.hold(a + k * (unit * self.shape.rows)), T.hold(b + k * (unit * self.shape.columns)))
            if self.packed[1] and block.rows == 1:  # each panel of the second factor is read once
                block.ask(T.address_of(self.panels_b[T.hold(places[1] + _AHEAD // 4)]))
            if self.next_lines is not None:
                first, lines = self.next_lines
                with T.loop(lines) as i:
                    read_far_ahead(self.panels_b, T.hold(first + k * (unit * self.shape.columns) + i * SIDE))
            block.step(T.address_of(self.panels_a[places[0]]), T.address_of(self.panels_b[places[1]]))


_ANY = """
define i32 @tvmdml_any_not_a_number(<16 x float> %x) alwaysinline {
  %lanes = fcmp uno <16 x float> %x, zeroinitializer
  %bits = bitcast <16 x i1> %lanes to i16
  %found = zext i16 %bits to i32
  ret i32 %found
}
"""


class HalfProduct(TileProduct):
    """Of float16: sums of ``KC`` places come from tiles, and are added to those before in vectors.

    An infinity times a second part of 0 would not be a number. If sums are none, the block is computed again without tiles.
    """

    arithmetic: TileHalves

    @staticmethod
    def scratch(
        shape: TileShape,
        arithmetic: ProductArithmetic,
        blocks: tuple[int, int, int],
        lines: tuple[int, int],
        depth: int,
        packed: tuple[bool, bool] = (False, False),
    ) -> tuple[int, int, int, int]:
        """With room for a block's own sums, which come first."""
        a, b, partial, sums = ProductLoops.scratch(shape, arithmetic, blocks, lines, depth, packed)
        return a, b, partial + shape.rows * shape.columns, sums

    def _tile(self, a: Any, b: Any, groups: Any, at: Any, first: Any, last: Any, where: _Where, late: bool) -> None:
        shape, block = self.shape, self._block
        mr, nr = shape.rows, shape.columns
        at = T.hold(at + mr * nr)
        with blocks(groups, T.i64(KC)) as (k0, count):
            own_a, own_b = T.hold(a + k0 * mr), T.hold(b + k0 * nr)
            block.clear()
            self._steps(own_a, own_b, count)
            block.store(self.partial, self.at_partial)
            self._mend(own_a, own_b, count, where.rows)
            is_first = T.hold(T.And(first, T.expression(k0 == T.i64(0))))
            is_last = T.hold(T.And(last, T.expression(k0 + count >= groups)))

            def total(i: Any, j: int) -> Any:
                own, before = (self.partial[T.run(start + i * nr + j * SIDE, SIDE)] for start in (self.at_partial, at))
                return T.hold(T.Select(T.splat(is_first, SIDE), own, before + own))

            def end() -> None:
                with T.loop(where.rows) as i:
                    for j in range(shape.vectors):
                        self._end(where, i, j, total(i, j))

            def keep() -> None:
                with T.loop(T.i64(mr)) as i:
                    for j in range(shape.vectors):
                        T.store(self.partial, T.run(at + i * nr + j * SIDE, SIDE), total(i, j))

            T.either(is_last, end, keep)

    def _mend(self, a: Any, b: Any, groups: Any, rows: Any) -> None:
        """Compute the block's own sums again if any of so many rows is not a number: tiles store no more than there are."""
        mr, nr, unit = self.shape.rows, self.shape.columns, self.arithmetic.unit
        seen = [T.Variable(f"float32x{SIDE}", zeros(SIDE)) for _ in range(self.shape.vectors)]
        with T.loop(rows) as i:
            for j, one in enumerate(seen):
                one.set(one.value + self.partial[T.run(self.at_partial + i * nr + j * SIDE, SIDE)])
        whole = seen[0].value
        for one in seen[1:]:
            whole = whole + one.value
        some = T.hold(T.call_imported("int32", "tvmdml_any_not_a_number", _ANY, T.hold(whole)))
        with T.when(some != T.const(0, "int32")), T.loop(rows) as i:
            high = T.hold(a + T.truncdiv(i, T.i64(SIDE)) * (SIDE * SIDE) + T.truncmod(i, T.i64(SIDE)) * SIDE)
            for j in range(self.shape.vectors):
                found = T.Variable(f"float32x{SIDE}", zeros(SIDE))
                with T.loop(T.hold(T.truncdiv(groups, T.i64(unit)))) as k, T.loop(T.i64(SIDE)) as pair:
                    from_a = T.hold(high + k * (unit * mr) + pair)
                    from_b = T.hold(b + k * (unit * nr) + pair * nr + j * SIDE)
                    of_a = [T.hold(self.panels_a[from_a + part * (SIDE * mr)]) for part in (0, 1)]
                    of_b = [T.hold(self.panels_b[T.run(from_b + part * (SIDE * nr), SIDE)]) for part in (0, 1)]
                    for place in (0, 1):
                        one = T.splat(self.arithmetic.value(*of_a, place), SIDE)
                        found.set(multiply_add(one, self.arithmetic.value(*of_b, place), found.value))
                T.store(self.partial, T.run(self.at_partial + i * nr + j * SIDE, SIDE), found.value)
