"""Resampling on the CPU: rows of images, whose elements are contiguous.

Where the places along a row are is computed once, into tables. Linear, a row of the result is between two rows of the input:

- ``wide``: an image that becomes higher. Rows of the input are resampled once each, and rows of the result mix two of these.
- ``flat``: any other. Two rows of the input are mixed, and then resampled.

Rows are resampled from scratch memory, where an element is loaded together with the one after it. What has no weight counts as -0,
whatever it is: an element that is alone plus that is the element. Channels that are last have ``_resampling_pixels.py``; other
layouts, and antialiasing, have the default schedule.
"""

from __future__ import annotations

import math
from functools import partial
from typing import TYPE_CHECKING, Any

import numpy as np

from tvmdml.kernels import tensorir_values as T
from tvmdml.kernels.kernel import Kernel
from tvmdml.operators._contract import Shared
from tvmdml.operators._resampling import Resampled, ResampledGradient, Resampling, weights
from tvmdml.schedules.cpu import _default, _resampling_gradient, _resampling_pixels, per_task, split
from tvmdml.schedules.cpu._ahead import read_ahead
from tvmdml.schedules.cpu._resampling_rows import LANES, Here, Images, Rows, RowWriter, overlapping, pairs, run, splat
from tvmdml.schedules.cpu._runs import LINE
from tvmdml.targets import Target

if TYPE_CHECKING:
    from tvm.tirx import PrimFunc

LEAST = 1 << 14
"""The least elements of a task."""


def kernel(desc: Resampling, target: Target, shared: Shared) -> Kernel:
    """Rows of the result are divided among tasks."""
    images, found = Images.of(desc), None
    if images is not None and isinstance(desc, ResampledGradient):
        found = _resampling_gradient.kernel(desc, images, target)
    elif images is not None and isinstance(desc, Resampled):
        found = _resampled(desc, images, target)
    elif isinstance(desc, Resampled):
        found = _resampling_pixels.kernel(desc, target)
    plain: Kernel = found or _default.kernel(desc, target, shared)
    return plain


def _resampled(desc: Resampled, images: Images, target: Target) -> Kernel:
    y, x = images.grids
    count = math.prod(images.outer) * y.outputs
    tasks = min(count, split(desc.ends()[1].element_count, target, LEAST, 2))
    writer = _Writer(desc, rank=len(images.outer), wide=y.inputs < y.outputs, parallel=tasks > 1)
    module, *also = desc.modules()
    scratch = (("int32", x.outputs), (desc.computed, 2 * x.outputs), (desc.computed, tasks * (x.inputs + 2 * x.outputs + 1)))
    return Kernel(module, "rows", writer.parameters, writer.function, (tasks, *images.scalars), scratch, tuple(also))


class _Writer(RowWriter):  # type: ignore[misc] # mypy knows these modules by another name
    """Writes the kernel."""

    wide: bool

    def __init__(self, desc: Resampled, **choices: Any) -> None:
        self.__dict__.update(choices)
        self.linear, self.dtype = desc.is_linear, desc.computed
        self.stored = desc.ends()[0].data_type.tvm if self.linear else desc.moved
        self.narrow = np.dtype(self.stored).itemsize < 4
        """Whether the nearest elements are stored in vectors: one by one they take longer than to look up."""
        self.parameters = (("type", self.stored), ("linear", self.linear), *choices.items())

    def function(self) -> PrimFunc:
        with T.function() as f:
            self.source, self.result = f.buffer("input", self.stored), f.buffer("output", self.stored)
            self.places, self.weights = f.buffer("places", "int32"), f.buffer("weights", self.dtype)
            self.lines = f.buffer("lines", self.dtype)
            self.declare(f)
            self._tables()
            per_task(self.tasks, self.parallel, self._task)
        return f.result()

    def _tables(self) -> None:
        """The element before each place of a row, and the weights of that and the next."""
        with T.loop(self.x.outputs) as o:
            before, past = self.x.at(o)
            T.store(self.places, o, T.cast(before, "int32"))
            if self.linear:
                for i, weight in enumerate(weights(self.x, past, self.dtype)):
                    T.store(self.weights, self.x.outputs * i + o, weight)

    def _task(self, task: Any) -> None:
        self.line = T.let(task * (self.x.inputs + 2 * self.x.outputs + 1))
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

        def again() -> None:
            with T.loop(self.x.outputs) as i:
                T.store(self.result, to + i, self.result[to - self.row_steps[1] + i])

        def nearest(i: Any) -> Any:
            return self.source[T.let(start + T.cast(self.places[i], "int64"))]

        def some(i: Any, lanes: int) -> None:
            found = [T.hold(nearest(T.let(i + k))) for k in range(lanes)]
            T.store(self.result, run(to + i, lanes), T.Shuffle(found, list(range(lanes))) if lanes > 1 else found[0])

        def new() -> None:
            if self.narrow:
                overlapping(self.x.outputs, some)
            else:
                with T.loop(self.x.outputs) as i:
                    T.store(self.result, to + i, nearest(i))
            T.store(kept, T.i64(0), number)

        T.either(T.expression(kept[T.i64(0)] == number), again, new)

    def _mixed_first(self, start: Any, own: Rows, to: Any, later: Any) -> None:
        """The row ``later`` and the one after it are asked for meanwhile, if they are new: one with each of the two steps."""
        first, second, *ahead = (T.let(start + y * self.row_steps[0]) for y in (own.first, own.second, later, later + T.i64(1)))

        def mix(i: Any, lanes: int) -> None:
            if lanes > 1:
                read_ahead(self.source, T.let(ahead[1] + i))
            rows = [self._load(self.source, one + i, lanes) for one in (first, second)]
            T.store(self.lines, run(self.line + i, lanes), _mix(*rows, *(splat(one, lanes) for one in own.weights)))

        T.either(own.two, lambda: overlapping(self.x.inputs, mix), lambda: self._widen(first))
        lines = T.let(T.truncdiv(self.x.inputs * LANES, self.x.outputs * (LINE // np.dtype(self.stored).itemsize)) + 1)
        self._spread(self.result, to, ahead[0], T.let(T.Select(T.expression(later > own.second), lines, T.i64(0))))

    def _mixed_late(self, image: Any, start: Any, own: Rows, to: Any, kept: Any) -> None:
        ends = []
        for y in (own.first, own.second):
            number = T.let(image * self.y.inputs + y)
            side = T.let(y & T.i64(1))
            end = T.let(self.line + self.x.inputs + 1 + side * self.x.outputs)
            with T.when(T.expression(kept[side] != number)):
                self._widen(T.let(start + y * self.row_steps[0]))
                self._spread(self.lines, end)
                T.store(kept, side, number)
            ends.append(end)

        def mix(i: Any, lanes: int) -> None:
            rows = [self._load(self.lines, one + i, lanes) for one in ends]
            found = _mix(*rows, *(splat(one, lanes) for one in own.weights))
            T.store(self.result, run(to + i, lanes), T.to(found, self.stored))

        def copy(i: Any, lanes: int) -> None:
            T.store(self.result, run(to + i, lanes), T.to(self._load(self.lines, ends[0] + i, lanes), self.stored))

        T.either(own.two, lambda: overlapping(self.x.outputs, mix), lambda: overlapping(self.x.outputs, copy))

    def _load(self, buffer: Any, at: Any, lanes: int) -> Any:
        return T.to(T.wide(buffer[run(at, lanes)]), self.dtype)

    def _widen(self, row: Any) -> None:
        """A row in the type in which it is computed."""
        overlapping(
            self.x.inputs,
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


def _mix(first: Any, second: Any, weight: Any, other: Any) -> Any:
    return T.rounded(first * weight) + T.rounded(second * other)
