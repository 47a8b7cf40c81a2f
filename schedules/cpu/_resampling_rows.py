"""Images whose rows are contiguous, and vectors of their rows: what kernels of resampling and of its gradients share."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

from tvmdml.kernels import tensorir_values as T
from tvmdml.kernels.layout import collapse
from tvmdml.operators._resampling import Grid, Resampling, after, grid_of, weights
from tvmdml.operators._resampling_reference import AxisMapping
from tvmdml.schedules.cpu import share

LANES = 16
ONE = AxisMapping(True, "", 1.0, 0.0, 0.0, False)


class ResampledImages(NamedTuple):
    """Images beside each other: the last two dimensions are resampled, and the others copied."""

    grids: tuple[Grid, Grid]
    """The places of the rows, and those along a row."""
    outer: tuple[int, ...]
    """The sizes of the other dimensions."""
    scalars: tuple[int, ...]
    """The integers of the launch: both grids, the other dimensions, and their steps and a row's in both tensors."""

    @classmethod
    def of(cls, desc: Resampling) -> ResampledImages | None:
        """``None`` if others are resampled, too, if rows are not contiguous, or if the result is antialiased."""
        elements, places = desc.ends()
        rules, sizes, steps = desc.rules(), (elements.sizes, places.sizes), [elements.layout, places.layout]
        if elements.rank == 1:
            rules, sizes, steps = (ONE, *rules), ((1, *sizes[0]), (1, *sizes[1])), [(0, *own) for own in steps]
        y, x = (grid_of(*one) for one in zip(rules[-2:], sizes[0][-2:], sizes[1][-2:], strict=True))
        copied = all(grid is None for grid in desc.grids()[:-2])
        if not copied or y.fall or x.fall or not all(own[-1] == 1 for own in steps):
            return None
        outer, outer_steps = collapse(sizes[1][:-2], *(own[:-2] for own in steps))
        outer, outer_steps = outer or (1,), tuple(own or (0,) for own in outer_steps)
        numbers = (*y[:9], *x[:9], *outer, *(step for own in outer_steps for step in own), *(own[-2] for own in steps))
        return cls((y, x), outer, numbers)


class InputRows(NamedTuple):
    """The rows of the input around a row of the result, and their weights; twice the same one, if that is alone."""

    first: Any
    second: Any
    two: Any
    weights: Sequence[Any]


class Here:
    """Rows of the input along the rows of the result. The next one's are computed ahead: a division takes long."""

    def __init__(self, grid: Grid, top: Any, dtype: str) -> None:
        self._grid, self._dtype = grid, dtype
        found = self._at(top)
        self._kept = [T.Variable(T.type_of(one), one) for one in found]

    def _at(self, o: Any) -> list[Any]:
        before, past = self._grid.at(o)
        if not self._dtype:
            return [before]
        return [before, after(self._grid, before, past), T.cast(past, "int64"), *weights(self._grid, past, self._dtype)]

    def taken(self, o: Any) -> tuple[InputRows, Any]:
        """Those of a row, and the first of the next row's."""
        first, *more = [T.hold(one.value) for one in self._kept]
        second, past, *pair = more or (first, T.i64(0))
        found = self._at(o + 1)
        for one, value in zip(self._kept, found, strict=True):
            one.set(value)
        return InputRows(first, second, T.expression(past > T.i64(0)), pair), found[0]


class RowWriter:
    """Writes a kernel that goes over the rows of images; its first integer is the number of tasks."""

    rank: int

    def declare(self, f: T.Function, *more: str) -> list[Any]:
        """Declare the integers of the launch: the tasks, more of these names, and those of the images; returns the former."""
        self.tasks, *found = (f.scalar(name) for name in ("tasks", *more))
        self.y, self.x = (Grid(*f.scalars(name, 9)) for name in ("y", "x"))
        self.outer = f.scalars("outer", self.rank)
        self.steps = [f.scalars(name, self.rank) for name in ("step", "other_step")]
        self.row_steps = [f.scalar(name) for name in ("row", "other_row")]
        return found

    def images(self, task: Any, height: Any, body: Callable[..., None]) -> None:
        """``body(image, top, count, first, other)`` for the rows of each image that a task has, and where both tensors have it."""
        begin, end = share(task, self.tasks, math.prod(self.outer[1:], start=self.outer[0]) * height)
        number = T.hold(T.truncdiv(begin, height))
        with T.loop(T.let(T.truncdiv(end + (height - 1), height) - number)) as k:
            image = T.let(number + k)
            row = T.let(image * height)
            top = T.let(T.max(begin - row, T.i64(0)))
            count = T.let(T.min(end - row, height) - top)
            at = T.unravel(image, self.outer)
            body(image, top, count, *(T.let(T.dot(at, own)) for own in self.steps))


def gathered(buffer: Any, row: Any, places: Any, lanes: int) -> Any:
    """Elements of a row."""
    return buffer[splat(row, lanes) + T.cast(places, "int64")]


def pairs(buffer: Any, row: Any, places: Any, at: Any, lanes: int) -> list[Any]:
    """Elements of a row, and those after them, at the places that a table has from ``at`` on.

    Both are loaded at once: instructions that gather lanes take two and a half times as long on the processors that were tried.
    """
    found = []
    for i in range(lanes):
        place = T.let(row + T.cast(places[T.let(at + i)], "int64"))
        found.append(T.hold(buffer[T.run(place, 2)]))
    if lanes == 1:
        return [T.hold(T.Shuffle(found, [side])) for side in range(2)]
    while len(found) > 1:
        found = [T.hold(T.Shuffle([a, b], list(range(2 * T.lanes(a))))) for a, b in zip(found[::2], found[1::2], strict=True)]
    return [T.hold(T.Shuffle(found, list(range(side, 2 * lanes, 2)))) for side in range(2)]


def splat(value: Any, lanes: int) -> Any:
    """A value, or a vector of it."""
    return T.splat(value, lanes) if lanes > 1 else value


def run(start: Any, lanes: int) -> Any:
    """A place, or so many from there on."""
    return T.run(start, lanes) if lanes > 1 else start


def vectors(count: Any, body: Callable[[Any, int], None]) -> None:
    """Vectors of a row, and what is left of it."""
    whole = T.let(T.truncdiv(count, T.i64(LANES)))
    with T.loop(whole) as i:
        body(T.let(i * LANES), LANES)
    done = T.let(whole * LANES)
    with T.loop(T.let(count - done)) as i:
        body(T.let(done + i), 1)


def overlapping(count: Any, body: Callable[[Any, int], None], lanes: int = LANES) -> None:
    """Vectors of a row, the last of which may have elements of the one before again; elements of a row that is shorter than one."""

    def long() -> None:
        with T.loop(T.let(T.truncdiv(count + (lanes - 1), T.i64(lanes)))) as i:
            body(T.let(T.min(i * lanes, count - lanes)), lanes)

    def short() -> None:
        with T.loop(count) as i:
            body(i, 1)

    T.either(T.expression(count >= T.i64(lanes)), long, short)
