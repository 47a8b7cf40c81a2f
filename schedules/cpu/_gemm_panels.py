"""Packing: a factor of a product is copied into panels, in the order in which the inner loop reads it.

A panel has some rows of the first factor, or columns of the second one (its lines). For each place of the contraction it has their
values, one after the other. The last panel of a factor begins earlier instead of being narrower. A factor with fewer lines than a
panel repeats its last one.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np

from tvmdml.kernels import tensorir_values as T
from tvmdml.kernels.contraction import KC
from tvmdml.schedules.cpu._ahead import read_ahead, read_far_ahead
from tvmdml.schedules.cpu._gemm_arithmetic import ProductArithmetic
from tvmdml.schedules.cpu._tiles import SIDE, transposed

AHEAD = 8
"""How many rows, or cache lines of a row, are loaded before they are needed."""
AHEAD_OF_FEW = 4
"""The same of rows of single elements, and of the squares that are transposed: all of their lines have room in the few sets of the
first cache that they may share, and processors run ahead by themselves."""
TOGETHER = 3
"""Vectors of bytes of a row that are packed at once."""
ACROSS, ALONG, SINGLE = "across", "along", "single"
"""How values of a panel are read: vectors of neighbouring lines, vectors of neighbouring places, or one by one."""


class Factor(NamedTuple):
    """One factor of a product, in a kernel."""

    side: int
    buffer: Any
    form: str
    width: int
    """Lines of a panel."""
    line_step: Any
    place_step: Any
    zero: Any = None
    """The zero points: a buffer, or ``None``."""
    zero_step: Any = 0
    """From one line's to the next one's; 0 if there is only one."""
    last_at: Any = None
    """Of the only panel, if it has too many lines: the line with which its last vector begins, to end with the last."""

    def line(self, i: Any) -> Any:
        """A line by its place in a panel, which is an integer or an expression."""
        if self.last_at is None:
            return i
        last = self.width - SIDE
        if isinstance(i, int):
            return i if i < last else self.last_at + (i - last)
        return T.Select(i < T.i64(last), i, self.last_at + (i - last))


class Packer:
    """Writes panels of a factor."""

    def __init__(self, factor: Factor, arithmetic: ProductArithmetic) -> None:
        self.factor, self.arithmetic = factor, arithmetic
        self.per_line = 64 // np.dtype(str(factor.buffer.dtype)).itemsize
        self.group, self.width = arithmetic.group, factor.width

    def pack(self, base: Any, zeros: Any, to: Any, at: Any, line: Any, last: Any, place: Any, count: Any, done: Any = 0) -> None:
        """Write a panel.

        Args:
            base: the offset of the factor's first element.
            zeros: that of its first zero point.
            to: the buffer of panels.
            at: where in it the panel begins. There must be room for a vector behind its end.
            line: the panel's first line.
            last: the last line that there is.
            place: the first place of the contraction.
            count: the number of places.
            done: the groups that are written already, by ``pack_together``.
        """
        self.base, self.zeros, self.to, self.at, self.done = base, zeros, to, at, done
        self.line, self.last, self.place, self.count = line, last, place, count
        self.groups = T.hold(up(count, self.group))
        {ACROSS: self._across, ALONG: self._along, SINGLE: self._single}[self.factor.form]()
        if self.arithmetic.unit > 1:
            self._fill()

    @property
    def together(self) -> int:
        """How many panels beside each other ``pack_together`` writes; 1 if it cannot."""
        woven = self.factor.form == ACROSS and self.arithmetic.weaves_lines and self.arithmetic.unit == 1
        return TOGETHER * self.per_line // self.width if woven and self.width in (3 * SIDE, self.per_line) else 1

    def pack_together(self, base: Any, to: Any, at: Any, panel: Any, line: Any, place: Any, count: Any, sums: Any) -> None:
        """Write the whole groups of ``together`` panels: each row of the factor is read in whole vectors, none of it twice.

        ``pack`` and ``sums`` then do what is left.

        Args:
            base: the offset of the factor's first element.
            to: the buffer of panels.
            at: where in it the first panel begins.
            panel: the elements of a panel.
            line: the first panel's first line. All panels are whole.
            place: the first place of the contraction.
            count: the number of places.
            sums: ``None``, or a buffer, where in it the sums of the panels' lines begin, and whether these values are the first.
        """
        self.base, self.to, self.place, self.count = base, to, place, count
        lines, side = self.together * self.width, self.factor.side
        starts = [T.hold(at + i * panel) for i in range(self.together)]
        totals = [T.Variable(f"int32x{SIDE}", T.splat(T.const(0, "int32"), SIDE)) for _ in range(0, lines if sums else 0, SIDE)]
        whole = T.hold(T.truncdiv(count, T.i64(self.group)))
        with T.loop(whole) as k:
            for first in range(0, lines, self.per_line):
                raws = []
                for r in range(self.group):
                    read_ahead(self.factor.buffer, self._offset(line + first, place + (k + AHEAD) * self.group + r))
                    offset = T.hold(self._offset(line + first, place + k * self.group + r))
                    raws.append(T.hold(self.factor.buffer[T.run(offset, self.per_line)]))
                for i, words in enumerate(self.arithmetic.woven_lines(side, raws)):
                    which, own = divmod(first + i * SIDE, self.width)
                    T.store(to, T.run(starts[which] + k * self.width + own, SIDE), words)
                    if sums:
                        total = totals[(first + i * SIDE) // SIDE]
                        total.set(self.arithmetic.sum_step(side, words, total.value))
        for i, total in enumerate(totals):
            buffer, at_sums, is_first = sums
            spot = T.run(at_sums + i * SIDE, SIDE)
            T.store(buffer, spot, T.hold(T.Select(T.splat(is_first, SIDE), total.value, buffer[spot] + total.value)))

    def sums(self, sums: Any, at: Any, first: Any, lanes: int) -> None:
        """Add the panel's values of each line to its sum, or write it if these are the first; ``None``: they are all."""
        starts = range(0, self.width, lanes)
        for start, total in zip(starts, self._sums_of(starts, lanes), strict=True):
            for lane in range(min(lanes, self.width - start)):
                place = at + (start + lane)
                own = T.Shuffle([total], [lane])
                T.store(sums, place, T.hold(own if first is None else T.if_then_else(first, own, sums[place] + own)))

    def _sums_of(self, starts: Sequence[int], lanes: int) -> list[Any]:
        """The sums of some lines from each of these on. They do not wait for each other."""
        totals = [T.Variable(f"int32x{lanes}", T.splat(T.const(0, "int32"), lanes)) for _ in starts]
        with T.loop(T.hold(self.groups - self.done)) as i:
            k = T.hold(self.done + i)
            for start, total in zip(starts, totals, strict=True):
                found = self.to[T.run(self.at + k * self.width + start, lanes)]
                total.set(self.arithmetic.sum_step(self.factor.side, found, total.value))
        return [one.value for one in totals]

    def begin(self, base: Any, zeros: Any, to: Any, at: Any, line: Any, place: Any, last: Any = None) -> None:
        """Begin with a panel whose ``vectors``, or ``lines`` and values, are then asked for."""
        self.base, self.zeros, self.to, self.at = base, zeros, to, at
        self.line, self.place, self.last = line, place, last

    def lines(self, first: Any, count: int) -> list[Any]:
        """Where some lines of the panel begin."""
        return [T.hold(self._offset(self._own(first + i), self.place)) for i in range(count)]

    def ask(self, line: Any, place: Any, number: Any) -> None:
        """Ask for one of the cache lines that have ``KC`` places of a line, and of those behind it, by its number."""
        count = KC // self.per_line
        own = T.hold(T.truncdiv(number, T.i64(count)))
        at = self._offset(line + own, place + (number - own * count) * self.per_line)
        read_far_ahead(self.factor.buffer, T.hold(at))

    def ask_across(self, base: Any, line: Any, place: Any) -> None:
        """Ask for the lines of a panel, which are contiguous, at a place."""
        at = T.hold(base + times(line, self.factor.line_step) + times(place, self.factor.place_step))
        for i in range(0, self.width, self.per_line):
            read_far_ahead(self.factor.buffer, T.hold(at + i))

    def value(self, line: Any, k: Any) -> Any:
        """The value of such a line at a place, of a factor that needs no arranging."""
        return self.arithmetic.one(self.factor.side, [self.factor.buffer[line + times(k, self.factor.place_step)]])

    def vectors(self, k: Any, lanes: int) -> list[Any]:
        """The panel's values at a place, of contiguous lines that need no arranging."""
        for i in range(0, self.width, self.per_line):
            read_ahead(self.factor.buffer, self._offset(self.line + i, self.place + k + AHEAD))
        offset = T.hold(self._offset(self.line, self.place + k))
        return [
            self.arithmetic.woven(self.factor.side, [self.factor.buffer[T.run(offset + self.factor.line(i), lanes)]])
            for i in range(0, self.width, lanes)
        ]

    # -- The forms

    def _own(self, i: Any) -> Any:
        """A line's number; those behind the last one repeat it."""
        return T.min(self.line + self.factor.line(i), self.last)

    def _offset(self, line: Any, place: Any) -> Any:
        own, along = self.factor.line_step, self.factor.place_step
        return self.base + times(line, own) + times(place, along)

    def _zero(self, line: Any, lanes: int = 1) -> Any:
        factor = self.factor
        if factor.zero is None or not self.arithmetic.subtracts:
            return None
        if isinstance(factor.zero_step, int) and factor.zero_step == 0:
            found = factor.zero[self.zeros]
            return found if lanes == 1 else T.splat(found, lanes)
        place = self.zeros + times(line, factor.zero_step)
        return factor.zero[place if lanes == 1 else T.ramp(place, factor.zero_step, lanes)]

    def _put(self, k: Any, i: Any, value: Any) -> None:
        T.store(self.to, T.run(self._to(k, i), T.lanes(value)), value)

    def _to(self, k: Any, i: Any) -> Any:
        """Where a packed element goes: of a group of places, and of a line of the panel."""
        return self.at + k * self.width + i

    def _across(self) -> None:
        """The lines are contiguous: there are at least as many as a panel has, or the last vector has others again."""
        lanes = self.width
        while lanes > SIDE or self.width % lanes:
            lanes -= 1
        starts = range(0, self.width, lanes)
        zeros = [self._zero(self.line + self.factor.line(i), lanes) for i in starts]
        zeros = [None if one is None else T.hold(one) for one in zeros]

        rows_ahead = AHEAD_OF_FEW if self.group == 1 else AHEAD

        def ask(k: Any, places: int) -> None:
            for r in range(places):
                for i in range(0, self.width, self.per_line):
                    ahead = self._offset(self.line + i, self.place + (k + rows_ahead) * self.group + r)
                    read_ahead(self.factor.buffer, ahead)

        def group(k: Any, places: int) -> None:
            ask(k, places)
            for i, zero in zip(starts, zeros, strict=True):
                line = self.line + self.factor.line(i)
                offsets = [self._offset(line, self.place + k * self.group + r) for r in range(places)]
                raws = [self.factor.buffer[T.run(one, lanes)] for one in offsets]
                if places < self.group:  # no product comes of zeros
                    raws = [T.hold(one) for one in raws]
                    empty = zero if zero is not None else self._nothing(raws[0])
                    raws += [empty] * (self.group - places)
                self._put(k, i, self.arithmetic.woven(self.factor.side, raws, zero))

        whole = T.hold(T.truncdiv(self.count, T.i64(self.group)))
        left = T.hold(whole - self.done)

        def narrow() -> None:
            with T.loop(left) as i:
                group(T.hold(self.done + i), self.group)

        def wide() -> None:
            with T.loop(left) as one:
                k = T.hold(self.done + one)
                ask(k, self.group)
                offsets = [T.hold(self._offset(self.line, self.place + k * self.group + r)) for r in range(self.group)]
                raws = [T.hold(self.factor.buffer[T.run(one, self.per_line)]) for one in offsets]
                for i, words in zip(starts, self.arithmetic.woven_lines(self.factor.side, raws), strict=False):
                    self._put(k, i, words)

        if self.arithmetic.weaves_lines and self.width in (3 * SIDE, self.per_line):
            T.either(self.line + (self.per_line - 1) <= self.last, wide, narrow)
        else:
            narrow()
        for places in range(1, self.group):
            with T.when(self.count - whole * self.group == places):
                group(whole, places)

    def _nothing(self, like: Any) -> Any:
        """The value from which a packed zero comes."""
        zero = T.like(like, 0)
        if not self.arithmetic.subtracts and self.arithmetic.flips[self.factor.side]:
            zero = T.reinterpret(T.splat(T.const(-128, "int8"), T.lanes(like)), T.scalar_type(like))
        return zero

    def _along(self) -> None:
        """The places are contiguous: squares are transposed in registers."""
        step = SIDE * self.group
        blocks = T.hold(T.truncdiv(self.count, T.i64(step)))
        lines = [T.hold(self._offset(self._own(i), self.place)) for i in range(self.width)]
        zeros = [self._zero(self._own(i)) for i in range(self.width)]
        zeros = [None if one is None else T.hold(one) for one in zeros]
        nothing = T.splat(T.const(0, self.arithmetic.packed), SIDE)

        def square(block: Any, start: int) -> None:
            some = range(start, min(start + SIDE, self.width))
            for i in some:
                read_ahead(self.factor.buffer, lines[i] + block * step + AHEAD_OF_FEW * self.per_line)
            rows = [self.factor.buffer[T.run(lines[i] + block * step, step)] for i in some]
            packed = [T.hold(self.arithmetic.many(self.factor.side, row, zeros[i])) for i, row in zip(some, rows, strict=True)]
            for k, column in enumerate(transposed(packed + [nothing] * (SIDE - len(packed)))):
                self._put(block * SIDE + k, start, column)  # it may run over into what comes later

        # All places of some lines at a time: the lines of all would share few sets of the first cache.
        for start in reversed(range(0, self.width, SIDE)):
            with T.loop(blocks) as block:
                square(block, start)
        self._rest(T.hold(blocks * SIDE))

    def _fill(self) -> None:
        """Zeros behind the last group, up to a whole unit."""
        unit, nothing = self.arithmetic.unit, T.const(0, self.arithmetic.packed)
        left = T.hold(up(self.groups, unit) * unit - self.groups)
        with T.loop(left) as k, T.loop(T.i64(self.width)) as i:
            self._put(T.hold(self.groups + k), i, nothing)

    def _single(self) -> None:
        self._rest(T.i64(0))

    def _rest(self, first: Any) -> None:
        """Groups from one on, value by value."""
        with T.loop(T.hold(self.groups - first)) as rest:
            k = T.hold(first + rest)
            with T.loop(T.i64(self.width)) as i:
                line = T.hold(self._own(i))
                zero = self._zero(line)
                zero = None if zero is None else T.hold(zero)
                raws = []
                for r in range(self.group):
                    place = k * self.group + r
                    offset = self._offset(line, self.place + place)
                    if r == 0:
                        raws.append(T.hold(self.factor.buffer[offset]))
                        continue
                    empty = zero if zero is not None else self._nothing(raws[0])
                    raws.append(T.hold(T.if_then_else(place < self.count, self.factor.buffer[offset], empty)))
                self._put(k, i, self.arithmetic.one(self.factor.side, raws, zero))


def up(size: Any, width: int) -> Any:
    """How many of a width cover a size."""
    return -(-size // width) if isinstance(size, int) else T.truncdiv(size + (width - 1), T.i64(width))


def times(number: Any, step: Any) -> Any:
    """A product with a step, which may be a Python integer."""
    if isinstance(step, int):
        return number if step == 1 else number * T.i64(step) if step else T.i64(0)
    return number * step
