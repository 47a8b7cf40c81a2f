"""Gradients of resampling on the CPU: an element sums the places that it has a part in, first along columns, then along its row.

Of each row, the rows of the gradient that it has a part in are added up, weighed; then each element gathers its places of that sum.
Where these are along a row, and their weights, is computed once, into tables; an element with fewer places than others has a
place behind the row for the rest, which is 0. The sums have double precision: that of one dimension must not overflow.
"""

from __future__ import annotations

import math
from functools import partial
from typing import Any

from tvmdml.kernels import tensorir_values as T
from tvmdml.kernels.kernel import Kernel
from tvmdml.operators._resampling import Grid, ResampledGradient
from tvmdml.schedules.cpu import per_task, split
from tvmdml.schedules.cpu._resampling_rows import ResampledImages, RowWriter, gathered, run, splat, vectors
from tvmdml.targets import Target

_LEAST = 1 << 13
"""The least elements of a task."""
_MOST = 8
"""The tables may have so many places for each place of the gradient: a few elements at an edge may have very many."""
_WIDE = "float64"


def kernel(desc: ResampledGradient, images: ResampledImages, target: Target) -> Kernel | None:
    """Rows of the elements' gradients are divided among tasks. ``None`` for what is computed in double precision, too."""
    y, x = images.grids
    uses = x.most_uses(desc.is_linear)
    if desc.computed == _WIDE or uses * x.inputs > _MOST * (x.inputs + x.outputs):
        return None
    count = math.prod(images.outer) * y.inputs
    tasks = min(count, split(count * max(x.inputs, x.outputs), target, _LEAST, 2))
    writer = _Writer(desc, rank=len(images.outer))
    table = uses * x.inputs
    scratch = (("int32", table), (_WIDE, table), (_WIDE, tasks * (x.outputs + 1)))
    module, *_ = desc.modules()
    return Kernel(module, "sums", writer.parameters, writer.function, (tasks, uses, *images.scalars), scratch)


class _Writer(RowWriter):  # type: ignore[misc] # mypy knows these modules by another name
    """Writes the kernel."""

    def __init__(self, desc: ResampledGradient, **choices: Any) -> None:
        self.__dict__.update(choices)
        self.linear, self.stored = desc.is_linear, desc.ends()[0].data_type.tvm
        self.parameters = (("type", self.stored), ("linear", self.linear), *choices.items())

    def function(self) -> T.PrimFunc:
        with T.function() as f:
            self.gradient, self.result = f.buffer("gradient", self.stored), f.buffer("elements", self.stored)
            self.places, self.weights = f.buffer("places", "int32"), f.buffer("weights", _WIDE)
            self.lines = f.buffer("lines", _WIDE)
            (self.uses,) = self.declare(f, "uses")
            self._tables()
            per_task(self.tasks, self._task)
        return f.result()

    def _part(self, grid: Grid, i: Any, o: Any) -> Any:
        """The weight of an element in one of its places; 0 if it has none there after all."""
        if not self.linear:
            return T.const(1, _WIDE)
        before, past = grid.at(o)
        own = T.let(T.Select(T.expression(before == i), grid.parts - past, past))
        return T.hold(T.cast(own, _WIDE) / T.cast(grid.parts, _WIDE))

    def _tables(self) -> None:
        """The places of each element of a row, and its weights there."""
        zero = T.const(0, _WIDE)
        with T.loop(self.x.inputs) as i:
            begin, end = self.x.uses(i, self.linear)
            with T.loop(self.uses) as k:
                o = T.let(T.min(begin + k, self.x.outputs - 1))
                weight = T.hold(T.Select(begin + k < end, self._part(self.x, i, o), zero))
                at = T.let(k * self.x.inputs + i)
                T.store(self.weights, at, weight)
                T.store(self.places, at, T.cast(T.Select(weight > zero, o, self.x.outputs), "int32"))

    def _task(self, task: Any) -> None:
        line = T.let(task * (self.x.outputs + 1))
        T.store(self.lines, line + self.x.outputs, T.const(0, _WIDE))

        def rows(_: Any, top: Any, count: Any, to: Any, start: Any) -> None:
            with T.loop(count) as k:
                i, row = T.let(top + k), T.let(to + (top + k) * self.row_steps[0])
                some = self._columns(line, start, i)
                T.either(some, partial(self._row, line, row), partial(self._nothing, row))

        self.images(task, self.y.inputs, rows)

    def _columns(self, line: Any, start: Any, i: Any) -> Any:
        """The sum of the gradient's rows that a row has a part in; returns whether there are any.

        The first one is stored: it may have -0, which the sums of elements, beginning with +0, do not show.
        """
        some = T.Variable("int32", T.const(0, "int32"))
        first, last = self.y.uses(i, self.linear)
        with T.loop(T.let(last - first)) as k:
            o = T.let(first + k)
            weight = T.hold(self._part(self.y, i, o))
            row = T.let(start + o * self.row_steps[1])

            def product(j: Any, lanes: int, row: Any = row, weight: Any = weight) -> Any:
                own = T.cast(T.wide(self.gradient[run(row + j, lanes)]), _WIDE)
                return T.rounded(own * splat(weight, lanes)) if self.linear else own

            def store(j: Any, lanes: int, product: Any = product) -> None:
                T.store(self.lines, run(line + j, lanes), product(j, lanes))

            def add(j: Any, lanes: int, product: Any = product) -> None:
                T.store(self.lines, run(line + j, lanes), self.lines[run(line + j, lanes)] + product(j, lanes))

            with T.when(weight > T.const(0, _WIDE)):
                is_first = some.value == T.const(0, "int32")
                T.either(is_first, partial(vectors, self.x.outputs, store), partial(vectors, self.x.outputs, add))
                some.set(T.const(1, "int32"))
        return some.value != T.const(0, "int32")

    def _nothing(self, to: Any) -> None:
        """A row that has no part in any place."""

        def clear(j: Any, lanes: int) -> None:
            T.store(self.result, run(to + j, lanes), splat(T.const(0, self.stored), lanes))

        vectors(self.x.inputs, clear)

    def _row(self, line: Any, to: Any) -> None:
        """The elements of a row."""

        def gather(j: Any, lanes: int) -> None:
            zero = splat(T.const(0, _WIDE), lanes)
            total = T.Variable(T.type_of(zero), zero)
            with T.loop(self.uses) as k:
                at = T.let(k * self.x.inputs + j)
                found = gathered(self.lines, line, self.places[run(at, lanes)], lanes)
                total.set(total.value + T.rounded(found * self.weights[run(at, lanes)]))
            T.store(self.result, run(to + j, lanes), T.to(T.cast(total.value, "float32"), self.stored))

        vectors(self.x.inputs, gather)
