"""``Line``: shapes in which sizes grow together: points with a common direction, each so many steps from the next one.

A model that halves a size, as a convolution with strides does, has a function of the size for the even ones, and another one for
the odd ones: two lines, with every second point each.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Mapping, Sequence
from typing import Any

Shapes = Mapping[str, tuple[int, ...]]


class Line:
    """Points on a line. A place on it is the first size that grows."""

    def __init__(self, shapes: Shapes, direction: tuple[int, ...], period: int = 1) -> None:
        """
        Args:
            shapes: a point.
            direction: how far apart points are at least, in each size.
            period: so many times as far apart as that are those of this line.
        """
        self._first, self._names = shapes, list(shapes)
        self._ranks = [len(shapes[name]) for name in self._names]
        self._from = [n for one in shapes.values() for n in one]
        self.direction, self.period = direction, period
        self._along = next(i for i, step in enumerate(direction) if step)
        self._begin, self._whole = self._from[self._along], direction[self._along]
        self.step = self._whole * period
        """The difference of two places that are next to each other."""
        alike: dict[tuple[tuple[int, ...], tuple[int, ...]], list[str]] = {}
        steps = iter(direction)
        for name, rank in zip(self._names, self._ranks, strict=True):
            alike.setdefault((shapes[name], tuple(itertools.islice(steps, rank))), []).append(name)
        self._alike = [(start, step, names) for (start, step), names in alike.items()]
        """The inputs whose shapes are always the same: one of them, how it grows, and their names."""

    @classmethod
    def through(cls, shapes: Shapes, other: Shapes) -> Line | None:
        """The line through both, if they are different, and differ in sizes only."""
        if shapes == other or {name: len(one) for name, one in shapes.items()} != {name: len(one) for name, one in other.items()}:
            return None
        steps = [b - a for name, one in shapes.items() for a, b in zip(one, other[name], strict=True)]
        common = math.gcd(*steps) * (1 if next(filter(None, steps)) > 0 else -1)
        return cls(shapes, tuple(step // common for step in steps))

    @classmethod
    def read(cls, written: Sequence[Any]) -> Line:
        """The line that ``written`` wrote.

        Raises:
            Exception: it is damaged.
        """
        shapes, direction, period = written
        found = {name: tuple(shape) for name, shape in shapes}
        flat = [*direction, period, *(n for shape in found.values() for n in shape)]
        if any(type(n) is not int for n in flat) or period < 1 or len(direction) != sum(map(len, found.values())):
            raise ValueError("no line")
        return cls(found, tuple(direction), period)

    def written(self) -> list[Any]:
        """As JSON."""
        return [[[name, list(shape)] for name, shape in self._first.items()], list(self.direction), self.period]

    def every(self, period: int, shapes: Shapes) -> Line:
        """The points of this line that are a multiple of ``period`` from one of them."""
        return Line(shapes, self.direction, period)

    def place(self, shapes: Shapes) -> int | None:
        """Where shapes are; ``None`` if they are not on the line, or a size that grows is 0 or 1, which may be special."""
        if list(shapes) != self._names:
            return None
        found = None
        for start, steps, (first, *others) in self._alike:
            shape = shapes[first]
            if len(shape) != len(steps) or any(shapes[name] != shape for name in others):
                return None
            for n, begin, step in zip(shape, start, steps, strict=True):
                if not step:
                    if n != begin:
                        return None
                    continue
                if found is None:  # the first size that grows
                    found = n
                if n < 2 or (n - begin) * self._whole != step * (found - self._begin):
                    return None
        return None if found is None or (found - self._begin) % self.step else found

    def at(self, place: int) -> Shapes | None:
        """The shapes at a place; ``None`` if there are none."""
        own, rest = divmod(place - self._begin, self._whole)
        if rest or own % self.period:
            return None
        flat = iter(start + step * own for start, step in zip(self._from, self.direction, strict=True))
        return {name: tuple(itertools.islice(flat, rank)) for name, rank in zip(self._names, self._ranks, strict=True)}

    def beside(self, shapes: Shapes) -> Line | None:
        """The points of the whole line that are as far from each other as these, with one of them; ``None`` if it is not there."""
        return None if Line(self._first, self.direction).place(shapes) is None else self.every(self.period, shapes)

    def is_beside(self, other: Line) -> bool:
        """Whether it is a line that ``beside`` of another one gives."""
        alike = (self.direction, self.period) == (other.direction, other.period)
        return alike and Line(self._first, self.direction).place(other._first) is not None

    def is_one(self, other: Line) -> bool:
        """Whether it has the same points."""
        alike = (self.direction, self.period) == (other.direction, other.period)
        return alike and self.place(other._first) is not None

    def between(self, first: int, last: int) -> int:
        """A place between two, an odd number of steps before the last one."""
        found = self.before(first + (last - first) * 5 // 8)
        return found if (last - found) // self.step % 2 else found + self.step

    def before(self, place: int) -> int:
        """The last place that is not behind a number."""
        return place - (place - self._begin) % self.step
