"""Resampling on the CPU: rows of images, whose elements are contiguous.

Where the places along a row are is computed once, into tables. Linear, a row of the result is between two rows of the input:

- ``wide``: an image that becomes higher. Rows of the input are resampled once each, and rows of the result mix two of these.
- ``flat``: any other. Two rows of the input are mixed, and then resampled.

An element that is alone at its place stands there twice, with half the weight each: that gives the element, infinite or not. Other
layouts, and antialiasing, have the default schedule.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any

from tvmdml.kernels import tensorir_values as T
from tvmdml.kernels.kernel import Kernel
from tvmdml.operators._contract import Shared
from tvmdml.operators._resampling import Resampled, ResampledGradient, Resampling, after, weights
from tvmdml.schedules.cpu import _default, _resampling_gradient, per_task, split
from tvmdml.schedules.cpu._ahead import read_ahead
from tvmdml.schedules.cpu._resampling_rows import Images, RowWriter, gathered, run, splat, vectors
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
    plain: Kernel = found or _default.kernel(desc, target, shared)
    return plain


def _resampled(desc: Resampled, images: Images, target: Target) -> Kernel:
    y, x = images.grids
    count = math.prod(images.outer) * y.outputs
    tasks = min(count, split(desc.ends()[1].element_count, target, LEAST, 2))
    writer = _Writer(desc, rank=len(images.outer), wide=y.inputs < y.outputs, parallel=tasks > 1)
    module, *also = desc.modules()
    scratch = (("int32", 2 * x.outputs), (desc.computed, 2 * x.outputs), (desc.computed, tasks * (x.inputs + 2 * x.outputs)))
    return Kernel(module, "rows", writer.parameters, writer.function, (tasks, *images.scalars), scratch, tuple(also))


class _Writer(RowWriter):  # type: ignore[misc] # mypy knows these modules by another name
    """Writes the kernel."""

    wide: bool

    def __init__(self, desc: Resampled, **choices: Any) -> None:
        self.__dict__.update(choices)
        self.linear, self.dtype = desc.is_linear, desc.computed
        self.stored = desc.ends()[0].data_type.tvm if self.linear else desc.moved
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
        """The elements around each place of a row, and their weights."""
        with T.loop(self.x.outputs) as o:
            before, past = self.x.at(o)
            T.store(self.places, o, T.cast(before, "int32"))
            if self.linear:
                T.store(self.places, self.x.outputs + o, T.cast(after(self.x, before, past), "int32"))
                alone = past < T.i64(1)
                half = T.const(0.5, self.dtype)
                for i, weight in enumerate(weights(self.x, past, self.dtype)):
                    T.store(self.weights, self.x.outputs * i + o, T.Select(alone, half, weight))

    def _task(self, task: Any) -> None:
        self.line = T.let(task * (self.x.inputs + 2 * self.x.outputs))
        kept = T.local("int64", 2)  # the rows of the input that are resampled
        for i in range(2):
            T.store(kept, T.i64(i), T.i64(-1))

        def row(image: Any, o: Any, start: Any, to: Any) -> None:
            to = T.let(to + o * self.row_steps[1])
            before, past = self.y.at(o)
            if not self.linear:
                self._copied(T.let(start + before * self.row_steps[0]), to, T.let(image * self.y.inputs + before), kept)
            elif self.wide:
                self._mixed_late(image, start, before, past, to, kept)
            else:
                self._mixed_first(start, before, past, to, T.let(start + self.y.at(o + 1)[0] * self.row_steps[0]))

        self.rows(task, self.y.outputs, row)

    def _copied(self, start: Any, to: Any, number: Any, kept: Any) -> None:
        """The nearest elements; of the same row again they are copied from the row before."""

        def again() -> None:
            with T.loop(self.x.outputs) as i:
                T.store(self.result, to + i, self.result[to - self.row_steps[1] + i])

        def new() -> None:
            with T.loop(self.x.outputs) as i:
                T.store(self.result, to + i, self.source[start + T.cast(self.places[i], "int64")])
            T.store(kept, T.i64(0), number)

        T.either(T.expression(kept[T.i64(0)] == number), again, new)

    def _mixed_first(self, start: Any, before: Any, past: Any, to: Any, later: Any) -> None:
        """The two rows of ``later`` are asked for meanwhile."""
        first = T.let(start + before * self.row_steps[0])
        second = T.let(start + after(self.y, before, past) * self.row_steps[0])
        pair = [T.let(one) for one in weights(self.y, past, self.dtype)]

        def mix(i: Any, lanes: int) -> None:
            if lanes > 1:
                for row in (later, T.let(later + self.row_steps[0])):
                    read_ahead(self.source, row + i)
            rows = [self._load(self.source, one + i, lanes) for one in (first, second)]
            T.store(self.lines, run(self.line + i, lanes), _mix(*rows, *(splat(one, lanes) for one in pair)))

        T.either(past > T.i64(0), lambda: vectors(self.x.inputs, mix), lambda: self._widen(first))
        self._spread(self.lines, self.line, self.result, to)

    def _mixed_late(self, image: Any, start: Any, before: Any, past: Any, to: Any, kept: Any) -> None:
        pair = [T.let(one) for one in weights(self.y, past, self.dtype)]
        ends = []
        for y in (before, after(self.y, before, past)):
            number = T.let(image * self.y.inputs + y)
            side = T.let(y & T.i64(1))
            end = T.let(self.line + self.x.inputs + side * self.x.outputs)
            with T.when(T.expression(kept[side] != number)):
                row = T.let(start + y * self.row_steps[0])
                if self.stored == self.dtype:
                    self._spread(self.source, row, self.lines, end)
                else:
                    self._widen(row)
                    self._spread(self.lines, self.line, self.lines, end)
                T.store(kept, side, number)
            ends.append(end)

        def mix(i: Any, lanes: int) -> None:
            rows = [self._load(self.lines, one + i, lanes) for one in ends]
            found = _mix(*rows, *(splat(one, lanes) for one in pair))
            T.store(self.result, run(to + i, lanes), T.to(found, self.stored))

        def copy(i: Any, lanes: int) -> None:
            T.store(self.result, run(to + i, lanes), T.to(self._load(self.lines, ends[0] + i, lanes), self.stored))

        T.either(past > T.i64(0), lambda: vectors(self.x.outputs, mix), lambda: vectors(self.x.outputs, copy))

    def _load(self, buffer: Any, at: Any, lanes: int) -> Any:
        return T.to(T.wide(buffer[run(at, lanes)]), self.dtype)

    def _widen(self, row: Any) -> None:
        """A row in the type in which it is computed."""
        vectors(
            self.x.inputs,
            lambda i, lanes: T.store(self.lines, run(self.line + i, lanes), self._load(self.source, row + i, lanes)),
        )

    def _spread(self, source: Any, row: Any, result: Any, to: Any) -> None:
        """The places of a row."""
        dtype = self.stored if result is self.result else self.dtype
        n = self.x.outputs

        def mix(i: Any, lanes: int) -> None:
            found = [gathered(source, row, self.places[run(n * side + i, lanes)], lanes) for side in range(2)]
            pair = [self.weights[run(n * side + i, lanes)] for side in range(2)]
            T.store(result, run(to + i, lanes), T.to(_mix(*found, *pair), dtype))

        vectors(n, mix)


def _mix(first: Any, second: Any, weight: Any, other: Any) -> Any:
    return T.rounded(first * weight) + T.rounded(second * other)
