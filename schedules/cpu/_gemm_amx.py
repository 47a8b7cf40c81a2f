"""Products of bytes in matrix tiles (AMX): the loops of ``_gemm.py`` around a block of tiles.

Sums of a block are finished from memory, where they stay in the first cache.
"""

from __future__ import annotations

from typing import Any

from tvmdml.kernels import tensorir_values as T
from tvmdml.schedules.cpu._amx import SIDE, Block
from tvmdml.schedules.cpu._gemm import Product, Shape, _Where
from tvmdml.schedules.cpu._gemm_arithmetic import TileBytes

_LEAST_COLUMNS = SIDE
_AHEAD = 1 << 13
"""Bytes between what few rows ask for and what they read. They wait for memory, whose pages processors read ahead one by one."""


def shape(rows: int, columns: int) -> Shape | None:
    """The block for a product, in its rows and vectors; ``None`` if vectors of columns are not filled."""
    if columns < _LEAST_COLUMNS:
        return None
    high, wide = (1, 4) if rows <= SIDE else (2, 2)
    return Shape(high * SIDE, min(wide, columns // SIDE), SIDE)


class TileProduct(Product):  # type: ignore[misc] # mypy knows these modules by another name
    """Writes the loops."""

    arithmetic: TileBytes

    @property
    def _block(self) -> Block:
        return Block(self.shape.rows // SIDE, self.shape.vectors, self.arithmetic.signed)

    def _enter(self) -> None:
        self._block.configure(T.hold(T.min(self.plan.rows, T.i64(SIDE))))

    def _leave(self) -> None:
        self._block.release()

    def _tile(self, a: Any, b: Any, groups: Any, at: Any, first: Any, last: Any, where: _Where, late: bool) -> None:
        block, unit = self._block, self.arithmetic.unit
        T.either(first, block.clear, lambda: block.load(self.partial, at))
        with T.loop(T.hold(T.truncdiv(groups, T.i64(unit)))) as k:
            places = (T.hold(a + k * (unit * self.shape.rows)), T.hold(b + k * (unit * self.shape.columns)))
            if self.packed[1] and block.rows == 1:  # each panel of the second factor is read once
                block.ask(T.address_of(self.panels_b[T.hold(places[1] + _AHEAD // self.arithmetic.group)]))
            block.step(T.address_of(self.panels_a[places[0]]), T.address_of(self.panels_b[places[1]]))
        block.store(self.partial, at)
        self._finish_kept(at, last, where)
