"""Resampling on the CPU: images whose channels are contiguous, and many. A vector has channels of one place.

The elements around a place are read where they lie, and weighed at once: first along the row, then between rows. What has no
weight counts as -0, whatever it is: an element that is alone plus that is the element.
"""

from __future__ import annotations

import math
from functools import partial
from typing import Any, NamedTuple

from tvmdml.kernels import tensorir_values as T
from tvmdml.kernels.kernel import Kernel
from tvmdml.kernels.layout import collapse
from tvmdml.operators._resampling import Grid, Resampled, grid_of, weights
from tvmdml.schedules.cpu import per_task, split
from tvmdml.schedules.cpu._resampling_rows import ONE, Here, InputRows, RowWriter, overlapping, run, splat
from tvmdml.targets import Target

_LEAST = 1 << 14
"""The least elements of a task."""


class Pixels(NamedTuple):
    """Images beside each other: two dimensions are resampled, all others copied."""

    grids: tuple[Grid, Grid]
    """The places of the rows, and those along a row."""
    channels: int
    steps: tuple[int, int]
    """From one place of a row to the next, in both tensors."""
    outer: tuple[int, ...]
    """The sizes of the other dimensions."""
    scalars: tuple[int, ...]
    """The integers of the launch, as of ``Images``."""

    @classmethod
    def of(cls, desc: Resampled) -> Pixels | None:
        """``None`` if more dimensions are resampled, if there are no contiguous channels, or if the result is antialiased."""
        elements, places = desc.ends()
        steps = elements.layout, places.layout
        grids = desc.grids()
        moving = sorted((i for i, grid in enumerate(grids) if grid is not None), key=lambda i: steps[0][i])
        if not 1 <= len(moving) <= 2:
            return None
        columns = moving[0]
        kept = [i for i, grid in enumerate(grids) if grid is None]
        inner = [i for i in kept if steps[1][i] < steps[1][columns]]
        sizes, channels = _collapsed(places.sizes, steps, inner)
        if len(sizes) != 1 or any(own[0] != 1 for own in channels):
            return None
        outer, outer_steps = _collapsed(places.sizes, steps, [i for i in kept if i not in inner])
        outer, outer_steps = outer or (1,), tuple(own or (0,) for own in outer_steps)
        x, y = grids[columns], grids[moving[1]] if len(moving) > 1 else grid_of(ONE, 1, 1)
        assert x is not None
        assert y is not None
        if x.fall or y.fall:
            return None
        rows = [own[moving[1]] if len(moving) > 1 else 0 for own in steps]
        numbers = (*y[:9], *x[:9], *outer, *(step for own in outer_steps for step in own), *rows)
        return cls((y, x), sizes[0], (steps[0][columns], steps[1][columns]), outer, numbers)


def _collapsed(sizes: tuple[int, ...], steps: tuple[tuple[int, ...], ...], which: list[int]) -> Any:
    """Some of the dimensions, as few as possible."""
    return collapse(tuple(sizes[i] for i in which), *(tuple(own[i] for i in which) for own in steps), reorder=True)


def kernel(desc: Resampled, images: Pixels, target: Target) -> Kernel:
    """Rows of the result are divided among tasks."""
    y, x = images.grids
    tasks = min(math.prod(images.outer) * y.outputs, split(desc.ends()[1].element_count, target, _LEAST, 2))
    writer = _Writer(desc, rank=len(images.outer))
    scratch = (("int64", x.outputs), (desc.computed, 2 * x.outputs))
    scalars = (tasks, images.channels, *images.steps, *images.scalars)
    module, *also = desc.modules()
    return Kernel(module, "pixels", writer.parameters, writer.function, scalars, scratch, tuple(also))


class _Writer(RowWriter):  # type: ignore[misc] # mypy knows these modules by another name
    """Writes the kernel."""

    def __init__(self, desc: Resampled, **choices: Any) -> None:
        self.__dict__.update(choices)
        self.linear, self.dtype = desc.is_linear, desc.computed
        self.stored = desc.ends()[0].data_type.tvm if self.linear else desc.moved
        self.parameters = (("type", self.stored), ("linear", self.linear), *choices.items())

    def function(self) -> T.PrimFunc:
        with T.function() as f:
            self.source, self.result = f.buffer("input", self.stored), f.buffer("output", self.stored)
            self.places, self.weights = f.buffer("places", "int64"), f.buffer("weights", self.dtype)
            self.channels, *self.pixels = self.declare(f, "channels", "pixel", "other_pixel")
            self._tables()
            per_task(self.tasks, self._task)
        return f.result()

    def _tables(self) -> None:
        """Where the element before each place of a row is, and the weights of that and the next."""
        with T.loop(self.x.outputs) as o:
            before, past = self.x.at(o)
            T.store(self.places, o, T.cast(before, "int64") * self.pixels[0])
            if self.linear:
                for i, weight in enumerate(weights(self.x, past, self.dtype)):
                    T.store(self.weights, self.x.outputs * i + o, weight)

    def _task(self, task: Any) -> None:
        def rows(_: Any, top: Any, count: Any, start: Any, to: Any) -> None:
            here = Here(self.y, top, self.dtype if self.linear else "")
            with T.loop(count) as k:
                own, _ = here.taken(T.let(top + k))
                row = T.let(to + (top + k) * self.row_steps[1])
                two = partial(self._row, start, own, row, True)
                one = partial(self._row, start, own, row, False)
                if self.linear:
                    T.either(own.two, two, one)
                else:
                    one()

        self.images(task, self.y.outputs, rows)

    def _row(self, start: Any, own: InputRows, to: Any, two: bool) -> None:
        """A row of the result, between two rows of the input or at one."""
        rows = [T.let(start + y * self.row_steps[0]) for y in (own.first, own.second)[: 1 + two]]
        with T.loop(self.x.outputs) as i:
            places = [T.hold(row + self.places[i]) for row in rows]
            pair = [T.hold(self.weights[self.x.outputs * side + i]) for side in range(2)] if self.linear else []
            alone = T.expression(pair[1] == T.const(0, self.dtype)) if self.linear else None
            step = T.hold(T.Select(alone, T.i64(0), self.pixels[0])) if self.linear else None
            pixel = T.let(to + i * self.pixels[1])

            def some(j: Any, lanes: int) -> None:
                if not self.linear:
                    T.store(self.result, run(pixel + j, lanes), self.source[run(places[0] + j, lanes)])
                    return
                none = splat(T.const(-0.0, self.dtype), lanes)
                found = []
                for place in places:
                    parts = [
                        T.rounded(T.to(T.wide(self.source[run(at + j, lanes)]), self.dtype) * splat(weight, lanes))
                        for at, weight in zip((place, place + step), pair, strict=True)
                    ]
                    found.append(T.hold(parts[0] + T.Select(splat(alone, lanes), none, parts[1])))
                value = found[0]
                if two:
                    first, second = (T.rounded(x * splat(weight, lanes)) for x, weight in zip(found, own.weights, strict=True))
                    value = T.hold(first + second)
                T.store(self.result, run(pixel + j, lanes), T.to(value, self.stored))

            overlapping(self.channels, some)
