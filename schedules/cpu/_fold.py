"""FOLD on the CPU: sums of columns' rows, which are contiguous along a row of the image.

A vector has places of a row that are neighbours in the columns: those with the same remainder by the stride. For each remainder the
window's elements are known that are added there, and where their rows begin; with several, the sums are woven when they are
stored. Other dimensions are loops over the windows that have the row. The first and the last vector of a row may lack some windows,
and which these are is a part of the code; where rows are too short for that, FOLD has the default schedule.
"""

from __future__ import annotations

import functools
import operator
from typing import Any, NamedTuple

from tvmdml.kernels import tensorir_values as T
from tvmdml.kernels.kernel import Kernel
from tvmdml.kernels.loops import nested
from tvmdml.operators.fold import Fold, Walk
from tvmdml.schedules.cpu import share, split
from tvmdml.schedules.cpu._window import WindowWay
from tvmdml.schedules.cpu._woven import MOST, woven
from tvmdml.targets import Target

_MOST_TAPS = 16
"""The most elements of a window along a row: they are written one after the other in the code."""
_FEW = 8
"""With fewer vectors in a row, two of which are at its edges and take shuffles for each element of a window, the default schedule
is as fast or faster, if windows have a step of 1.
"""
_FEWEST = 4
"""The fewest places of a vector."""


def kernel(desc: Fold, target: Target, knobs: Any) -> Kernel | None:
    """Rows of the image are divided among tasks; ``None`` for what this does not serve."""
    image, columns = desc.image(), desc.columns()
    if image.layout[-1] != 1 or columns.layout[-1] != 1 or desc.window_sizes[-1] > _MOST_TAPS or desc.strides[-1] > MOST:
        return None
    if desc.strides[-1] == 1 and max(desc.window_sizes[:-1], default=1) > 1:
        return None  # the default schedule takes 0.57 to 0.91 of the time
    processor = getattr(target, "processor", None)
    register = 64 if processor is not None and processor.has("avx512f") else 32
    most = register // max(image.data_type.itemsize, 4 if desc.computed == "float32" else 1)
    taps, count, places = _taps(desc), desc.counts()[-1], image.sizes[-1] // desc.strides[-1]
    low, high = max(0, *(one.back for one in taps)), min(places, count + min(one.back for one in taps))
    lanes = most
    while lanes > high - low or lanes < max(low, places - high):
        lanes //= 2
        if lanes < _FEWEST:
            return None
    edges = (low, high) != (0, places)
    if edges and desc.strides[-1] == 1 and places < _FEW * lanes:
        return None
    read, written = (tensor.element_count * tensor.data_type.itemsize for tensor in (columns, image))
    tasks = split(read + written, target, knobs.task_bytes, knobs.tasks_per_thread)
    writer = _Rows(desc, tasks, lanes=lanes, edges=edges, rest=count - places if edges else 0)
    return writer.kernel()


class _Tap(NamedTuple):
    """An element of a window along a row."""

    number: int
    remainder: int
    """Which of the places in a step of the windows it is."""
    back: int
    """How many steps behind the window's own."""


def _taps(desc: Fold) -> list[_Tap]:
    stride, dilation, start = desc.strides[-1], desc.dilations[-1], desc.start_padding[-1]
    far = [number * dilation - start for number in range(desc.window_sizes[-1])]
    return [_Tap(number, one % stride, one // stride) for number, one in enumerate(far)]


class _Rows(WindowWay):  # type: ignore[misc] # mypy knows these modules by another name
    """Writes the kernel."""

    NAME = "rows"

    def __init__(self, desc: Fold, tasks: int, lanes: int, edges: bool, rest: int) -> None:
        super().__init__(desc, tasks, lanes=lanes, edges=edges, rest=rest)
        self.lanes, self.edges, self.rest, self.taps = lanes, edges, rest, _taps(desc)
        self.stride = desc.strides[-1]

    def task(self, task: Any, tasks: Any) -> None:
        *outer, width = (T.index(n) for n in self.desc.image().sizes)
        begin, end = share(task, tasks, T.let(functools.reduce(operator.mul, outer)))
        row = [T.Variable("int64", one) for one in T.unravel(begin, outer)]
        with T.loop(T.let(end - begin)):
            self._row([T.let(one.value) for one in row], width)
            T.count_up(row, outer)

    def _row(self, at: list[Any], width: Any) -> None:
        start, walks = self.desc.walks(at, len(at) - 2)
        to = T.let(T.dot([*at, T.i64(0)], self.desc.image().layout))
        lanes, places = self.lanes, T.let(T.truncdiv(width, T.i64(self.stride)))

        def block(q: Any, edge: str = "") -> None:
            self._block(T.let(q), start, walks, to, edge)

        def between(first: Any, stop: Any, count: Any) -> None:
            with T.loop(T.let(T.truncdiv(T.max(count, T.i64(0)) + (lanes - 1), T.i64(lanes)))) as i:
                block(T.max(T.i64(self._low()), T.min(first + i * lanes, stop - lanes)))

        if self.edges:
            block(T.i64(0), "low")
            between(T.i64(lanes), T.let(places - lanes), T.let(places - 2 * lanes))
            block(places - lanes, "high")
        else:
            between(T.i64(0), places, places)
        if self.stride > 1:
            done = T.let(places * self.stride)
            with T.loop(T.let(width - done)) as i:
                self.desc.element(self.tensors, [*at, T.let(done + i)])

    def _low(self) -> int:
        return max(0, *(tap.back for tap in self.taps))

    def _block(self, q: Any, start: Any, walks: list[Walk], to: Any, edge: str) -> None:
        """A vector of places for each remainder, from a step on; with ``edge`` the first (low) or the last (high) one of a row."""
        desc, lanes = self.desc, self.lanes
        none = T.splat(T.const(0, desc.computed), lanes)
        sums = [T.Variable(T.type_of(none), none) for _ in range(self.stride)]
        step = desc.columns().layout[-2]
        with nested([walk() for walk in walks]) as parts:
            offset = T.let(functools.reduce(operator.add, parts, start + q))
            for remainder, own in enumerate(sums):
                total = own.value
                for tap in self.taps:
                    if tap.remainder == remainder and (found := self._terms(tap, offset + tap.number * step, edge)) is not None:
                        total = total + found
                own.set(total)
        vectors = woven([T.hold(own.value) for own in sums])
        for i, vector in enumerate(vectors):
            place = T.let(to + q * self.stride + i * lanes)
            T.store(self.tensors["output_tensor"], T.run(place, lanes), desc.result(vector))

    def _terms(self, tap: _Tap, offset: Any, edge: str) -> Any:
        """A window's elements, as a vector; 0 for windows that are not there, and ``None`` if none is."""
        lanes, shifted = self.lanes, {"": 0, "low": max(tap.back, 0), "high": min(self.rest + tap.back, 0)}[edge]
        if abs(shifted) >= lanes:
            return None
        place = T.let(offset - tap.back + shifted)
        found = T.hold(self.desc.loaded(self.tensors["input_tensor"][T.run(place, lanes)]))
        if not shifted:
            return found
        own = [i - shifted if 0 <= i - shifted < lanes else lanes for i in range(lanes)]
        return T.hold(T.Shuffle([found, T.splat(T.const(0, self.desc.computed), lanes)], own))
