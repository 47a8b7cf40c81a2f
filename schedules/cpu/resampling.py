"""Resampling on the CPU: rows of images, whose elements are contiguous.

Where the places along a row are is computed once, into tables. Linear, a row of the result is between two rows of the input:

- ``wide``: an image that becomes higher. Rows of the input are resampled once each, and rows of the result mix two of these.
- ``flat``: any other. Two rows of the input are mixed, and then resampled.

Rows are resampled from scratch memory, where an element is loaded together with the one after it. What has no weight counts as -0,
whatever it is: an element that is alone plus that is the element. A few channels may be contiguous instead: each place of a row
has a vector of these, whose rest belongs to the next place, and is written again there. More of them have
``_resampling_pixels.py``; other layouts, and antialiasing, have the default schedule.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from functools import partial
from typing import Any

import numpy as np

from tvmdml.kernels import tensorir_values as T
from tvmdml.kernels.kernel import Kernel
from tvmdml.operators._contract import Shared
from tvmdml.operators._resampling import Grid, Resampled, ResampledGradient, Resampling, weights
from tvmdml.schedules.cpu import _default, _resampling_gradient, _resampling_pixels, per_task, split
from tvmdml.schedules.cpu._ahead import read_ahead
from tvmdml.schedules.cpu._resampling_pixels import Pixels
from tvmdml.schedules.cpu._resampling_rows import LANES, Here, InputRows, ResampledImages, RowWriter, overlapping, pairs, run, splat
from tvmdml.schedules.cpu._runs import LINE
from tvmdml.targets import Target

LEAST = 1 << 14
"""The least elements of a task."""
LONGEST = (1 << 31) - 1
"""Elements of a row. Tables say in 32 bits where they are, and where a row ends."""


def kernel(desc: Resampling, target: Target, shared: Shared) -> Kernel:
    """Rows of the result are divided among tasks."""
    images, found = ResampledImages.of(desc), None
    short = images is not None and _are_short(images, 1)
    if images is not None and isinstance(desc, ResampledGradient):
        found = _resampling_gradient.kernel(desc, images, target) if short else None
    elif images is not None and isinstance(desc, Resampled):
        found = _resampled(desc, images, target) if short else None
    elif isinstance(desc, Resampled):
        found = _of_pixels(desc, target)
    return found or _default.kernel(desc, target, shared)


def _are_short(images: ResampledImages | Pixels, channels: int) -> bool:
    """Whether tables can say where the elements of rows are."""
    x = images.grids[1]
    return bool(max(x.inputs, x.outputs) * channels < LONGEST)


def _of_pixels(desc: Resampled, target: Target) -> Kernel | None:
    pixels = Pixels.of(desc)
    if pixels is None:
        return None
    if pixels.channels >= LANES:
        return _resampling_pixels.kernel(desc, pixels, target)
    dense = pixels.steps == (pixels.channels, pixels.channels) and _are_short(pixels, pixels.channels)
    return _resampled(desc, pixels, target, pixels.channels) if dense else None


def _resampled(desc: Resampled, images: ResampledImages | Pixels, target: Target, channels: int = 1) -> Kernel:
    y, x = images.grids
    count = math.prod(images.outer) * y.outputs
    tasks = min(count, split(desc.ends()[1].element_count, target, LEAST, 2))
    how = {"of_pixel": _of_pixel(channels), "times": 0 if desc.is_linear or channels > 1 else _times(x)}
    writer = _Writer(desc, rank=len(images.outer), wide=y.inputs < y.outputs, **how)
    module, *also = desc.modules()
    line = (x.inputs + 2 * x.outputs + 1) * channels + writer.of_pixel
    scratch = (("int32", x.outputs + 1), (desc.computed, 2 * x.outputs), (desc.computed, tasks * line))
    scalars = (tasks, *((channels,) if channels > 1 else ()), *images.scalars)
    return Kernel(module, "rows", writer.parameters, writer.function, scalars, scratch, tuple(also))


def _times(x: Grid) -> int:
    """How many places the nearest element of each has, if it is the same small number for all; else 0."""
    times = x.outputs // x.inputs
    even = times * x.inputs == x.outputs and times * x.step == x.parts
    return times if even and 2 <= times <= 4 and 0 <= x.start - x.first * x.step < x.step else 0


def _of_pixel(channels: int) -> int:
    """The lanes of a vector of channels; 0 for one channel."""
    return next(lanes for lanes in (0, 4, 8, LANES) if channels <= max(lanes, 1))


class _Writer(RowWriter):  # type: ignore[misc] # mypy knows these modules by another name
    """Writes the kernel."""

    wide: bool
    of_pixel: int
    times: int
    channels: Any = 1

    def __init__(self, desc: Resampled, **choices: Any) -> None:
        self.__dict__.update(choices)
        self.linear, self.dtype = desc.is_linear, desc.computed
        self.stored = desc.ends()[0].data_type.tvm if self.linear else desc.moved
        self.narrow = np.dtype(self.stored).itemsize < 4
        """Whether the nearest elements are stored in vectors: one by one they take longer than to look up."""
        self.parameters = (("type", self.stored), ("linear", self.linear), *choices.items())

    def function(self) -> T.PrimFunc:
        with T.function() as f:
            self.source, self.result = f.buffer("input", self.stored), f.buffer("output", self.stored)
            self.places, self.weights = f.buffer("places", "int32"), f.buffer("weights", self.dtype)
            self.lines = f.buffer("lines", self.dtype)
            if self.of_pixel:
                (self.channels,) = self.declare(f, "channels")
            else:
                self.declare(f)
            self.wanted, self.given = (T.let(n * self.channels) for n in (self.x.outputs, self.x.inputs))
            self._tables()
            per_task(self.tasks, self._task)
        return f.result()

    def _tables(self) -> None:
        """The element before each place of a row, and the weights of that and the next.

        Of pixels also how many of the places are before the last element, where the rest of a vector would lie behind the row.
        """
        T.store(self.places, self.x.outputs, T.const(0, "int32"))
        with T.loop(self.x.outputs) as o:
            before, past = self.x.at(o)
            T.store(self.places, o, T.cast(before * self.channels, "int32"))
            if self.of_pixel:
                with T.when(T.expression((before < self.x.inputs - 1) & (o < self.x.outputs - 1))):
                    T.store(self.places, self.x.outputs, T.cast(o + 1, "int32"))
            if self.linear:
                for i, weight in enumerate(weights(self.x, past, self.dtype)):
                    T.store(self.weights, self.x.outputs * i + o, weight)

    def _task(self, task: Any) -> None:
        self.line = T.let(task * (self.given + 2 * self.wanted + self.channels + self.of_pixel))
        kept = T.local("int64", 2)  # the rows of the input that are resampled
        for i in range(2):
            T.store(kept, T.i64(i), T.i64(-1))

        def rows(image: Any, top: Any, count: Any, start: Any, to: Any) -> None:
            here = Here(self.y, top, self.dtype if self.linear else "")
            with T.loop(count) as k:
                o = T.let(top + k)
                own, later = here.taken(o)
                row = T.let(to + o * self.row_steps[1])
                if not self.linear:
                    number = T.let(image * self.y.inputs + own.first)
                    self._copied(T.let(start + own.first * self.row_steps[0]), row, number, kept)
                elif self.wide:
                    self._mixed_late(image, start, own, row, kept)
                else:
                    self._mixed_first(start, own, row, later)

        self.images(task, self.y.outputs, rows)

    def _copied(self, start: Any, to: Any, number: Any, kept: Any) -> None:
        """The nearest elements; of the same row again they are copied from the row before."""
        of_line = LINE // np.dtype(self.stored).itemsize
        before = T.let(to - self.row_steps[1])

        def copy(i: Any, lanes: int) -> None:
            T.store(self.result, run(to + i, lanes), self.result[run(before + i, lanes)])

        def repeated(i: Any, lanes: int) -> None:
            x = T.hold(self.source[run(start + i, lanes)])
            many = T.Shuffle([x] * self.times, [k // self.times for k in range(lanes * self.times)])
            T.store(self.result, T.run(to + i * self.times, lanes * self.times), many)

        def nearest(i: Any) -> Any:
            return self.source[T.let(start + T.cast(self.places[i], "int64"))]

        def some(i: Any, lanes: int) -> None:
            found = [T.hold(nearest(T.let(i + k))) for k in range(lanes)]
            T.store(self.result, run(to + i, lanes), T.Shuffle(found, list(range(lanes))) if lanes > 1 else found[0])

        def pixel(i: Any, channel: Any, lanes: int) -> None:
            place = T.let(start + T.cast(self.places[i], "int64") + channel)
            T.store(self.result, run(to + i * self.channels + channel, lanes), self.source[run(place, lanes)])

        def new() -> None:
            if self.of_pixel:
                self._pixels(pixel)
            elif self.times:
                overlapping(self.given, repeated)
            elif self.narrow:
                overlapping(self.x.outputs, some)
            else:
                with T.loop(self.x.outputs) as i:
                    T.store(self.result, to + i, nearest(i))
            T.store(kept, T.i64(0), number)

        T.either(T.expression(kept[T.i64(0)] == number), lambda: overlapping(self.wanted, copy, of_line), new)

    def _mixed_first(self, start: Any, own: InputRows, to: Any, later: Any) -> None:
        """The row ``later`` and the one after it are asked for meanwhile, if they are new: one with each of the two steps."""
        first, second, *ahead = (T.let(start + y * self.row_steps[0]) for y in (own.first, own.second, later, later + T.i64(1)))

        def mix(i: Any, lanes: int) -> None:
            for row in (ahead if self.of_pixel else ahead[1:]) if lanes > 1 else ():
                read_ahead(self.source, T.let(row + i))
            rows = [self._load(self.source, one + i, lanes) for one in (first, second)]
            T.store(self.lines, run(self.line + i, lanes), _mix(*rows, *(splat(one, lanes) for one in own.weights)))

        T.either(own.two, lambda: overlapping(self.given, mix), lambda: self._widen(first))
        if self.of_pixel:
            self._spread_pixels(to)
            return
        lines = T.let(T.truncdiv(self.x.inputs * LANES, self.x.outputs * (LINE // np.dtype(self.stored).itemsize)) + 1)
        self._spread(self.result, to, ahead[0], T.let(T.Select(T.expression(later > own.second), lines, T.i64(0))))

    def _spread_pixels(self, to: Any) -> None:
        """Other types than the one that is computed are made in whole vectors, from scratch memory."""
        if self.stored == self.dtype:
            self._spread(self.result, to)
            return
        end = self._end(0)
        self._spread(self.lines, end)
        overlapping(self.wanted, partial(self._kept, end, to))

    def _end(self, side: Any) -> Any:
        """Where a row that was resampled is in scratch memory."""
        return T.let(self.line + self.given + self.channels + self.of_pixel + side * self.wanted)

    def _kept(self, start: Any, to: Any, i: Any, lanes: int) -> None:
        T.store(self.result, run(to + i, lanes), T.to(self._load(self.lines, start + i, lanes), self.stored))

    def _mixed_late(self, image: Any, start: Any, own: InputRows, to: Any, kept: Any) -> None:
        ends = []
        for y in (own.first, own.second):
            number = T.let(image * self.y.inputs + y)
            side = T.let(y & T.i64(1))
            end = self._end(side)
            with T.when(T.expression(kept[side] != number)):
                self._widen(T.let(start + y * self.row_steps[0]))
                self._spread(self.lines, end)
                T.store(kept, side, number)
            ends.append(end)

        def mix(i: Any, lanes: int) -> None:
            rows = [self._load(self.lines, one + i, lanes) for one in ends]
            found = _mix(*rows, *(splat(one, lanes) for one in own.weights))
            T.store(self.result, run(to + i, lanes), T.to(found, self.stored))

        copy = partial(self._kept, ends[0], to)
        T.either(own.two, lambda: overlapping(self.wanted, mix), lambda: overlapping(self.wanted, copy))

    def _load(self, buffer: Any, at: Any, lanes: int) -> Any:
        return T.to(T.wide(buffer[run(at, lanes)]), self.dtype)

    def _widen(self, row: Any) -> None:
        """A row in the type in which it is computed."""
        overlapping(
            self.given,
            lambda i, lanes: T.store(self.lines, run(self.line + i, lanes), self._load(self.source, row + i, lanes)),
        )

    def _spread(self, result: Any, to: Any, ahead: Any = None, lines: Any = None) -> None:
        """The places of the row in scratch memory. So many lines of the row ``ahead`` are asked for with each vector."""
        dtype = self.stored if result is self.result else self.dtype

        def mix(i: Any, lanes: int) -> None:
            none = splat(T.const(-0.0, self.dtype), lanes)
            parts = []
            for side, x in enumerate(pairs(self.lines, self.line, self.places, i, lanes)):
                weight = T.hold(self.weights[run(self.x.outputs * side + i, lanes)])
                parts.append(T.hold(T.Select(T.expression(weight == T.like(weight, 0)), none, T.rounded(x * weight))))
            T.store(result, run(to + i, lanes), T.to(parts[0] + parts[1], dtype))

        def pixel(i: Any, channel: Any, lanes: int) -> None:
            place = T.let(self.line + T.cast(self.places[i], "int64") + channel)
            first, second = (T.hold(self.lines[run(one, lanes)]) for one in (place, place + self.channels))
            weight, other = (T.hold(self.weights[self.x.outputs * side + i]) for side in range(2))
            alone = splat(T.expression(other == T.const(0, self.dtype)), lanes)
            part = T.rounded(second * splat(other, lanes))
            found = T.rounded(first * splat(weight, lanes)) + T.Select(alone, splat(T.const(-0.0, self.dtype), lanes), part)
            T.store(result, run(to + i * self.channels + channel, lanes), T.to(found, dtype))

        if self.of_pixel:
            self._pixels(pixel)
            return

        def mix_and_ask(i: Any, lanes: int) -> None:
            if lanes > 1:
                line = LINE // np.dtype(self.stored).itemsize
                with T.loop(lines) as k:
                    read_ahead(self.source, ahead + (T.truncdiv(i, T.i64(LANES)) * lines + k) * line)
            mix(i, lanes)

        plain = partial(overlapping, self.x.outputs, mix)
        if lines is None:
            plain()
        else:
            T.either(lines > T.i64(0), partial(overlapping, self.x.outputs, mix_and_ask), plain)

    def _pixels(self, body: Callable[[Any, Any, int], None]) -> None:
        """``body(place, channel, lanes)`` for the channels of each place of a row; one by one where a vector would reach out."""
        whole = T.let(T.cast(self.places[self.x.outputs], "int64"))
        with T.loop(whole) as i:
            body(i, T.i64(0), self.of_pixel)
        with T.loop(T.let(self.x.outputs - whole)) as k, T.loop(self.channels) as channel:
            body(T.let(whole + k), channel, 1)


def _mix(first: Any, second: Any, weight: Any, other: Any) -> Any:
    return T.rounded(first * weight) + T.rounded(second * other)
