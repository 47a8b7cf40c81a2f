"""Panels of the first factor as matrix tiles have it: a tile has some rows, each with the bytes of ``PLACES`` places.

A panel's lines are those of one or more tiles. It has all of their tiles at the first places, then those at the next ones …; behind
the last place there are zeros.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from tvmdml.kernels import tensorir
from tvmdml.kernels import tensorir_values as T
from tvmdml.schedules.cpu._gemm_arithmetic import Arithmetic, TileBytes
from tvmdml.schedules.cpu._gemm_panels import ALONG, Factor, Packer
from tvmdml.schedules.cpu._part import load_part
from tvmdml.schedules.cpu._tiles import SIDE, transposed

PLACES = 64
"""The bytes of a tile's row."""


def packer_of(factor: Factor, arithmetic: Arithmetic) -> Packer:
    """What writes panels of a factor."""
    rows = isinstance(arithmetic, TileBytes) and factor.side == 0
    return TileRows(factor, arithmetic) if rows else Packer(factor, arithmetic)


class TileRows(Packer):  # type: ignore[misc] # mypy knows these modules by another name
    """Writes such panels."""

    def _to(self, k: Any, i: Any) -> Any:
        unit = self.arithmetic.unit
        return self.at + T.truncdiv(k, T.i64(unit)) * (unit * self.width) + i * unit + T.truncmod(k, T.i64(unit))

    def _fill(self) -> None:
        if self.factor.form != ALONG:  # there it is done with the last places
            super()._fill()

    def _along(self) -> None:
        """Rows of tiles are copied."""
        buffer, step = self.factor.buffer, self.arithmetic.unit * self.width
        kind = str(buffer.dtype)
        whole = T.hold(T.truncdiv(self.count, T.i64(PLACES)))
        left = T.hold(T.cast(self.count - whole * PLACES, "int32"))
        nothing = self._nothing(T.splat(T.const(0, kind), PLACES))
        with T.loop(T.i64(self.width)) as i:
            line, to = T.hold(self._offset(self._own(i), self.place)), T.hold(self._to(T.i64(0), i))
            with T.loop(whole) as k:
                self._row(T.hold(to + k * step), buffer[T.run(line + k * PLACES, PLACES)])
            with T.when(left > T.const(0, "int32")):
                last = load_part(buffer, line + whole * PLACES, T.const(0, "int32"), left, nothing)
                self._row(T.hold(to + whole * step), last)

    def _row(self, at: Any, raw: Any) -> None:
        T.store(self.to, T.run(at, SIDE), self.arithmetic.many(self.factor.side, T.hold(raw)))

    def _across(self) -> None:
        """The words of neighbouring lines are transposed in registers."""
        whole = T.hold(T.truncdiv(self.count, T.i64(PLACES)))
        with T.loop(whole) as block:
            for start in range(0, self.width, SIDE):
                columns = []
                for k in range(self.arithmetic.unit):
                    places = [self.place + block * PLACES + k * self.group + r for r in range(self.group)]
                    offsets = [self._offset(self.line + start, place) for place in places]
                    raws = [self.factor.buffer[T.run(T.hold(offset), SIDE)] for offset in offsets]
                    columns.append(T.hold(self.arithmetic.woven(self.factor.side, raws)))
                first = T.hold(self._to(block * self.arithmetic.unit, start))
                for i, row in enumerate(transposed(columns)):
                    T.store(self.to, T.run(first + i * SIDE, SIDE), row)
        self._rest(T.hold(whole * self.arithmetic.unit))

    def _sums_of(self, starts: Sequence[int], lanes: int) -> list[Any]:
        return [self._sum_of(start, lanes) for start in starts]

    def _sum_of(self, start: int, lanes: int) -> Any:
        unit = self.arithmetic.unit
        sums = [T.Variable(f"int32x{lanes}", T.splat(T.const(0, "int32"), lanes)) for _ in range(lanes)]
        with T.loop(T.hold(T.truncdiv(self.groups + (unit - 1), T.i64(unit)))) as block:
            for i, own in enumerate(sums):
                row = self.to[T.run(self._to(block * unit, start + i), unit)]
                own.set(self.arithmetic.sum_step(self.factor.side, row, own.value))
        columns = transposed([tensorir.hold(one.value) for one in sums])
        while len(columns) > 1:
            columns = [T.hold(one + other) for one, other in zip(columns[::2], columns[1::2], strict=True)]
        return columns[0]
