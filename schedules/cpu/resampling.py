"""Resampling on the CPU: rows of images, whose elements are contiguous.

Where the places along a row are is computed once, into tables. Linear, a row of the result is between two rows of the input:

- ``wide``: an image that becomes higher. Rows of the input are resampled once each, and rows of the result mix two of these.
- ``flat``: any other. Two rows of the input are mixed, and then resampled.

An element that is alone at its place stands there twice, with half the weight each: that gives the element, infinite or not. Other
layouts, antialiasing and gradients have the default schedule.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from tvmdml.kernels import tensorir_values as T
from tvmdml.kernels.kernel import Kernel
from tvmdml.kernels.layout import collapse
from tvmdml.operators._contract import Shared
from tvmdml.operators._resampling import Grid, Resampled, Resampling, after, grid_of, weights
from tvmdml.operators._resampling_reference import Rule
from tvmdml.schedules.cpu import _default, per_task, share, split
from tvmdml.targets import Target

if TYPE_CHECKING:
    from tvm.tirx import PrimFunc

LEAST = 1 << 14
"""The least elements of a task."""
LANES = 16
_ONE = Rule(True, "", 1.0, 0.0, 0.0, False)


def kernel(desc: Resampling, target: Target, shared: Shared) -> Kernel:
    """Rows of the result are divided among tasks."""
    source, result = desc.ends()
    rules, sizes = desc.rules(), source.sizes
    steps = [source.layout, result.layout]
    outputs = result.sizes
    if source.rank == 1:
        rules, sizes, outputs, steps = (_ONE, *rules), (1, *sizes), (1, *outputs), [(0, *own) for own in steps]
    grids = [grid_of(*one) for one in zip(rules[-2:], sizes[-2:], outputs[-2:], strict=True)]
    copied = all(grid is None for grid in desc.grids()[:-2])
    rows = all(own[-1] == 1 for own in steps)
    if not isinstance(desc, Resampled) or not copied or not rows or any(grid.fall for grid in grids):
        plain: Kernel = _default.kernel(desc, target, shared)
        return plain
    outer, outer_steps = collapse(outputs[:-2], *(own[:-2] for own in steps))
    outer, outer_steps = outer or (1,), tuple(own or (0,) for own in outer_steps)
    count = math.prod(outer) * outputs[-2]
    tasks = min(count, split(result.element_count, target, LEAST, 2))
    high = grids[0].inputs < grids[0].outputs
    writer = _Writer(desc, rank=len(outer), wide=high, parallel=tasks > 1)
    numbers = [number for grid in grids for number in grid[:9]]
    scalars = (tasks, *numbers, *outer, *(step for own in outer_steps for step in own), *(own[-2] for own in steps))
    width = outputs[-1]
    lines = tasks * (sizes[-1] + 2 * width)
    module, *_ = desc.modules()
    scratch = (("int32", 2 * width), (desc.computed, 2 * width), (desc.computed, lines))
    return Kernel(module, "rows", writer.parameters, writer.function, scalars, scratch)


class _Writer:
    """Writes the kernel."""

    rank: int
    wide: bool
    parallel: bool

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
            self.tasks = f.scalar("tasks")
            self.y, self.x = (Grid(*f.scalars(name, 9)) for name in ("y", "x"))
            self.outer = f.scalars("outer", self.rank)
            self.steps = [f.scalars(name, self.rank) for name in ("step", "result_step")]
            self.row_steps = [f.scalar(name) for name in ("row", "result_row")]
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
        begin, end = share(task, self.tasks, math.prod(self.outer[1:], start=self.outer[0]) * self.y.outputs)
        self.line = T.let(task * (self.x.inputs + 2 * self.x.outputs))
        kept = T.local("int64", 2)  # the rows of the input that are resampled
        for i in range(2):
            T.store(kept, T.i64(i), T.i64(-1))
        with T.loop(T.let(end - begin)) as k:
            image = T.hold(T.truncdiv(begin + k, self.y.outputs))
            o = T.let(begin + k - image * self.y.outputs)
            at = T.unravel(image, self.outer)
            start, to = (T.let(T.dot(at, own)) for own in self.steps)
            to = T.let(to + o * self.row_steps[1])
            before, past = self.y.at(o)
            if not self.linear:
                self._copied(T.let(start + before * self.row_steps[0]), to, T.let(image * self.y.inputs + before), kept)
            elif self.wide:
                self._mixed_late(image, start, before, past, to, kept)
            else:
                self._mixed_first(start, before, past, to)

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

    def _mixed_first(self, start: Any, before: Any, past: Any, to: Any) -> None:
        first = T.let(start + before * self.row_steps[0])
        second = T.let(start + after(self.y, before, past) * self.row_steps[0])
        pair = [T.let(one) for one in weights(self.y, past, self.dtype)]

        def mix(i: Any, lanes: int) -> None:
            rows = [self._load(self.source, one + i, lanes) for one in (first, second)]
            T.store(self.lines, _run(self.line + i, lanes), _mix(*rows, *(_splat(one, lanes) for one in pair)))

        T.either(past > T.i64(0), lambda: _vectors(self.x.inputs, mix), lambda: self._widen(first))
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
            found = _mix(*rows, *(_splat(one, lanes) for one in pair))
            T.store(self.result, _run(to + i, lanes), T.to(found, self.stored))

        def copy(i: Any, lanes: int) -> None:
            T.store(self.result, _run(to + i, lanes), T.to(self._load(self.lines, ends[0] + i, lanes), self.stored))

        T.either(past > T.i64(0), lambda: _vectors(self.x.outputs, mix), lambda: _vectors(self.x.outputs, copy))

    def _load(self, buffer: Any, at: Any, lanes: int) -> Any:
        return T.to(T.wide(buffer[_run(at, lanes)]), self.dtype)

    def _widen(self, row: Any) -> None:
        """A row in the type in which it is computed."""
        _vectors(
            self.x.inputs,
            lambda i, lanes: T.store(self.lines, _run(self.line + i, lanes), self._load(self.source, row + i, lanes)),
        )

    def _spread(self, source: Any, row: Any, result: Any, to: Any) -> None:
        """The places of a row."""
        dtype = self.stored if result is self.result else self.dtype
        n = self.x.outputs

        def mix(i: Any, lanes: int) -> None:
            found = [_gathered(source, row, self.places[_run(n * side + i, lanes)], lanes) for side in range(2)]
            pair = [self.weights[_run(n * side + i, lanes)] for side in range(2)]
            T.store(result, _run(to + i, lanes), T.to(_mix(*found, *pair), dtype))

        _vectors(n, mix)


def _mix(first: Any, second: Any, weight: Any, other: Any) -> Any:
    return T.rounded(first * weight) + T.rounded(second * other)


_GATHER = """
declare <16 x float> @llvm.x86.avx512.mask.gather.dps.512(<16 x float>, ptr, <16 x i32>, <16 x i1>, i32)
define <16 x float> @tvmdml_gather(ptr %row, <16 x i32> %places) alwaysinline {
  %found = call <16 x float> @llvm.x86.avx512.mask.gather.dps.512(
    <16 x float> zeroinitializer, ptr %row, <16 x i32> %places, <16 x i1> splat (i1 true), i32 4)
  ret <16 x float> %found
}
"""


def _gathered(buffer: Any, row: Any, places: Any, lanes: int) -> Any:
    """Elements of a row; by one instruction where there is one."""
    if lanes > 1 and str(buffer.dtype) == "float32" and T.has_instructions("avx512f"):
        return T.call_imported(f"float32x{lanes}", "tvmdml_gather", _GATHER, T.address_of(buffer[row]), places)
    return buffer[_splat(row, lanes) + T.cast(places, "int64")]


def _splat(value: Any, lanes: int) -> Any:
    return T.splat(value, lanes) if lanes > 1 else value


def _run(start: Any, lanes: int) -> Any:
    return T.run(start, lanes) if lanes > 1 else start


def _vectors(count: Any, body: Callable[[Any, int], None]) -> None:
    """Vectors of a row, and what is left of it."""
    whole = T.let(T.truncdiv(count, T.i64(LANES)))
    with T.loop(whole) as i:
        body(T.let(i * LANES), LANES)
    done = T.let(whole * LANES)
    with T.loop(T.let(count - done)) as i:
        body(T.let(done + i), 1)
