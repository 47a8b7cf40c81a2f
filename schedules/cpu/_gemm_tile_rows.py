"""Panels of factors as matrix tiles have them. Of bytes only the first factor's are particular: a tile has some rows, each with
``PLACES`` places.

A panel's lines are those of one or more tiles. It has all of their tiles at the first places, then those at the next ones …; behind
the last place there are zeros.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from tvmdml.kernels import tensorir
from tvmdml.kernels import tensorir_values as T
from tvmdml.schedules.cpu._ahead import read_ahead
from tvmdml.schedules.cpu._gemm_arithmetic import ProductArithmetic, TileBytes, TilePairs
from tvmdml.schedules.cpu._gemm_panels import ACROSS, AHEAD, ALONG, Factor, Packer, up
from tvmdml.schedules.cpu._part import load_part
from tvmdml.schedules.cpu._tiles import SIDE, transposed

PLACES = 64
"""The bytes of a tile's row."""


def packer_of(factor: Factor, arithmetic: ProductArithmetic) -> Packer:
    """What writes panels of a factor."""
    if isinstance(arithmetic, TilePairs):
        return PairColumns(factor, arithmetic) if factor.side else PairRows(factor, arithmetic)
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


class _Pairs(Packer):  # type: ignore[misc] # as above
    """Panels of pairs: for each unit of places the tiles of first parts, and then those of second ones, if there are any."""

    arithmetic: TilePairs

    def _fill(self) -> None:
        """The forms write whole units."""

    def _parts(self, at: Any, parts: tuple[Any, ...]) -> None:
        for i, one in enumerate(parts):
            T.store(self.to, T.run(T.hold(at + i * (SIDE * self.width)), SIDE), one)

    def _units(self, row: Callable[[Any, Any, Callable[[Any], Any]], None]) -> None:
        """Call ``row(unit, start, read)`` for each unit; ``read(line)`` has the values of a line that begins there."""
        unit, buffer = self.arithmetic.PLACES, self.factor.buffer
        whole = T.hold(T.truncdiv(self.count, T.i64(unit)))
        left = T.hold(T.cast(self.count - whole * unit, "int32"))
        nothing = T.splat(T.const(0, str(buffer.dtype)), unit)
        with T.loop(whole) as k:
            row(k, T.hold(k * unit), lambda at: T.hold(buffer[T.run(at, unit)]))
        with T.when(left > T.const(0, "int32")):
            row(whole, T.hold(whole * unit), lambda at: T.hold(load_part(buffer, at, T.const(0, "int32"), left, nothing)))


class PairRows(_Pairs):
    """Of the first factor, whose places are contiguous."""

    def _along(self) -> None:
        size = self.arithmetic.unit * self.width
        with T.loop(T.i64(self.width)) as i:
            line, to = T.hold(self._offset(self._own(i), self.place)), T.hold(self.at + i * SIDE)

            def row(k: Any, start: Any, read: Callable[[Any], Any], line: Any = line, to: Any = to) -> None:
                self._parts(T.hold(to + k * size), self.arithmetic.pairs(read(T.hold(line + start))))

            self._units(row)


class PairColumns(_Pairs):
    """Of the second one, whose columns or places are contiguous."""

    def _along(self) -> None:
        size = self.arithmetic.unit * self.width
        lines = [T.hold(self._offset(self._own(i), self.place)) for i in range(self.width)]

        def row(k: Any, start: Any, read: Callable[[Any], Any]) -> None:
            for first in range(0, self.width, SIDE):
                pairs = [self.arithmetic.pairs(read(T.hold(line + start))) for line in lines[first : first + SIDE]]
                columns = zip(*(transposed([one[i] for one in pairs]) for i in range(self.arithmetic.parts)), strict=True)
                for i, parts in enumerate(columns):
                    self._parts(T.hold(self.at + k * size + (i * self.width + first)), parts)

        self._units(row)

    def _across(self) -> None:
        own, kind = self.arithmetic, str(self.factor.buffer.dtype)
        pairs, apart = own.PLACES // 2, own.apart

        def pair(k: Any, is_whole: bool) -> None:
            """Both places; of the last unit those that there are."""
            unit = T.hold(T.truncdiv(k, T.i64(pairs)))
            number = T.hold(k - unit * pairs)
            low = T.hold(unit * own.PLACES + number * (2 if apart == 1 else 1))
            to = T.hold(self.at + unit * (own.unit * self.width) + number * self.width)
            for start in range(0, self.width, SIDE):
                raws = []
                for place in (low, T.hold(low + apart)):
                    read_ahead(self.factor.buffer, self._offset(self.line + start, self.place + place + 2 * AHEAD))
                    inside = place if is_whole else T.min(place, self.count - 1)
                    raw = T.hold(self.factor.buffer[T.run(T.hold(self._offset(self.line + start, self.place + inside)), SIDE)])
                    there = None if is_whole else T.splat(T.hold(place < self.count), SIDE)
                    raws.append(raw if there is None else T.hold(T.Select(there, raw, T.splat(T.const(0, kind), SIDE))))
                self._parts(T.hold(to + start), own.woven_pairs(raws))

        whole = T.hold(T.truncdiv(self.count, T.i64(own.PLACES)) * pairs)
        with T.loop(whole) as k:
            pair(k, True)
        with T.loop(T.hold(up(self.count, own.PLACES) * pairs - whole)) as k:
            pair(T.hold(whole + k), False)


def suit(forms: tuple[str, str]) -> bool:
    """Whether factors lie as the packers of pairs read them."""
    return forms[0] == ALONG and forms[1] in (ACROSS, ALONG)
