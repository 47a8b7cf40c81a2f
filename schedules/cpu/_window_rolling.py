"""Maxima of windows that overlap from row to row: what each row gives is computed once, and a window has the largest of that.

Vectors of a line stay in place, and rows pass by. What the last rows gave is in registers. Rows follow each other in the first
dimension of windows, so that elements are taken in row-major order: a row of windows with more dimensions has all that is behind.
"""

from __future__ import annotations

from typing import Any

from tvmdml.kernels import tensorir_values as T
from tvmdml.operators._window import Reach, WindowAxis
from tvmdml.operators._window_largest import Largest, least
from tvmdml.schedules.cpu._window import largest
from tvmdml.schedules.cpu._window_lines import Lines

_MOST_ROWS = 8
"""The most rows of a window: what each gives is in a register."""
_PASSING = 32
"""Rows that pass before the vectors move on: their lines stay in the first-level cache."""


class Rolling(Lines):  # type: ignore[misc] # mypy knows these modules by another name
    """Vectors of windows that go down together."""

    NAME = "rolling"

    @staticmethod
    def serves(desc: Any, dimension: int) -> bool:
        """Whether windows have several rows and move by one."""
        if not isinstance(desc, Largest) or desc.indices() is not None:
            return False
        down = _down(desc)
        return down.dimension != dimension and down.stride == down.dilation == 1 and 2 <= down.size <= _MOST_ROWS

    @staticmethod
    def row_of(desc: Any, dimension: int) -> int:
        """The first dimension of windows."""
        return int(_down(desc).dimension)

    def rows(self, at: list[Any], first: Any, count: Any, reaches: dict[int, Reach]) -> None:
        down = _down(self.desc)
        with T.loop(T.let(T.truncdiv(count + (_PASSING - 1), T.i64(_PASSING)))) as i:
            start = T.let(first + i * _PASSING)
            some = T.hold(T.min(first + count - start, T.i64(_PASSING)))

            def one(o: Any, start: Any = start, some: Any = some) -> None:
                with T.loop(some) as r:
                    self.desc.element(self.tensors, self._place(at, o, T.let(start + r)))

            def block(o: Any, edge: str, start: Any = start, some: Any = some) -> None:
                self._pass(at, o, edge, reaches, down, start, some)

            self.each(block, one)

    def _place(self, at: list[Any], o: Any, row: Any) -> list[Any]:
        here = list(at)
        here[self.dimension], here[self.row] = o, row
        return here

    def _pass(self, at: list[Any], o: Any, edge: str, reaches: dict[int, Reach], down: WindowAxis, start: Any, count: Any) -> None:
        """The windows of a vector in some rows that follow each other."""
        x, y, begin = self.desc.whole(), self.desc.pooled(), T.let(start - down.start)
        first = o if self.along is None else T.hold(o * self.along.stride - self.along.start)

        def row(place: Any) -> Any:
            """What a row gives; it may be outside."""
            none = T.like(T.const(0, self.desc.computed), least(self.desc.computed))
            found = T.Variable(f"{self.desc.computed}x{self.lanes}", T.splat(none, self.lanes))

            def add(_: Any, taps: dict[int, Any]) -> None:
                found.set(largest([found.value, *taps.values()] if reaches else [*taps.values()]))

            with T.when((place >= T.i64(0)) & (place < T.index(x.sizes[self.row]))):
                self.each_row(self._place(at, first, place), reaches, edge, add)
            return T.hold(found.value)

        held = [T.Variable(f"{self.desc.computed}x{self.lanes}", row(T.let(begin + i))) for i in range(down.size - 1)]
        with T.loop(count) as r:
            new = row(T.let(begin + r + (down.size - 1)))
            values = [*(one.value for one in held), new]
            result = T.hold(largest(values))
            for one, value in zip(held, map(T.hold, values[1:]), strict=True):
                one.set(value)
            to = T.dot(self._place(at, o, T.let(start + r)), y.layout)
            T.store(self.tensors[self.desc.POOLED], T.run(T.let(to), self.lanes), T.to(result, y.data_type.tvm))


def _down(desc: Any) -> WindowAxis:
    """The windows along the first dimension in which they have several elements."""
    windows: list[WindowAxis] = desc.windows()
    return next((one for one in windows if one.size > 1), windows[0])
