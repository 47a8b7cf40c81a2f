"""Gradients of ROI_ALIGN on the CPU: each region gives to the elements of its box.

A task has some rows of the images' gradients, and goes through all regions, in their order: what an element is given, and in which
order, is what the computation gathers, so the sums have the same bits, whatever the tasks. What a part gives to an element is a
product of weights along y and x, which are in two small tables for each region. Gradients of regions are divided among tasks, too:
those of averages are computed in vectors (``_roi_align_slopes.py``).
"""

from __future__ import annotations

import math
from collections.abc import Callable
from functools import partial
from typing import Any

from tvmdml.kernels import tensorir_values as T
from tvmdml.kernels.kernel import Kernel
from tvmdml.kernels.launched import with_fields
from tvmdml.kernels.loops import nested
from tvmdml.kernels.open_shapes import TensorOfLaunch
from tvmdml.operators._roi_align import Region, finite, image_of, region
from tvmdml.operators._roi_align_gradient import largest, reader, slopes, store
from tvmdml.operators.roi_align import RoiAlignGrad
from tvmdml.schedules.cpu import per_task, share, split
from tvmdml.schedules.cpu._resampling_rows import run, splat
from tvmdml.schedules.cpu._roi_align_side import Side, fresh
from tvmdml.schedules.cpu._roi_align_slopes import Slopes, lanes_of
from tvmdml.targets import Target

_LEAST = 1 << 15
"""The least work of a task, in elements that are set to 0."""
_GIVEN = 16
"""Work for each part of a region, in such elements."""


def kernel(desc: RoiAlignGrad, target: Target) -> Kernel:
    """One kernel for all sizes."""
    image, parts = desc.output_gradient_tensor, desc.input_gradient_tensor
    given, _ = desc.ends()
    assert given is not None
    rows = math.prod(image.sizes[:3]) if image is not None else 0
    work = _GIVEN * parts.element_count + (image.element_count if image is not None else 0)
    tasks = max(1, min(split(work, target, _LEAST, 2), max(rows, desc.regions)))
    writer = _Writer(desc)
    sides = zip(parts.sizes[2:], given.sizes[2:], strict=True)
    integers, cells = 3 * sum(parts.sizes[2:]), sum(count * size for count, size in sides) * (3 if writer.region_lanes else 1)
    sums = image.element_count if image is not None and writer.wide else 0
    scratch = (("int32", tasks * integers), (desc.computed, tasks * cells), (desc.computed, sums))
    numbers = (number for _, one in writer.present for number in (*one.sizes, *one.layout))
    module, *also = desc.modules()
    scalars = (tasks, integers, cells, *numbers)
    return Kernel(module, "spread", writer.parameters, writer.function, scalars, scratch, tuple(also))


class _Writer:
    """Writes the kernel."""

    def __init__(self, desc: RoiAlignGrad) -> None:
        self.desc, self.dtype = desc, desc.computed
        self.present = [(name, one) for name, one in desc.tensors() if one is not None]
        self.wide = desc.input_gradient_tensor.data_type.tvm != self.dtype
        """Whether sums have another type than the result."""
        self.region_lanes, self.row_lanes = lanes_of(desc), self._lanes_of_rows(desc)
        forms = [(name, one.data_type.tvm, one.rank, one.layout[-1] == 1) for name, one in self.present]
        self.parameters: tuple[tuple[str, Any], ...] = (
            *desc.attributes_exactly(),
            ("forms", str(forms)),
            ("lanes", (self.region_lanes, self.row_lanes)),
        )

    def _lanes_of_rows(self, desc: RoiAlignGrad) -> int:
        """The lanes of a vector of neighbours in an image's gradient."""
        image = desc.output_gradient_tensor
        if image is None or desc.is_max or not (self.wide or image.layout[-1] == 1):
            return 1
        lanes = 16 if self.dtype == "float32" else 8
        while lanes > image.sizes[-1]:
            lanes //= 2
        return lanes

    def function(self) -> T.PrimFunc:
        with T.function() as f:
            self.tensors = {name: f.buffer(name, one.data_type.tvm) for name, one in self.present}
            numbers, weights = f.buffer("numbers", "int32"), f.buffer("weights", self.dtype)
            self.sums = f.buffer("sums", self.dtype)
            if self.desc.output_gradient_tensor is not None:
                self.totals = self.sums if self.wide else self.tensors["output_gradient_tensor"]
            tasks, integers, cells = (f.scalar(name) for name in ("tasks", "integers", "cells"))
            launched = {}
            for name, one in self.present:
                sizes, steps = (f.scalars(f"{name}_{what}", one.rank) for what in ("size", "step"))
                launched[name] = TensorOfLaunch(one, sizes, [*steps[:-1], 1 if one.layout[-1] == 1 else steps[-1]])
            own: Any = with_fields(self.desc, **launched)
            self.own, self.result = own, own.output_gradient_tensor
            (*_, rows, columns), (*_, height, width) = (one.sizes for one in reversed(own.ends()))

            def task(number: Any) -> None:
                first, cell = T.let(number * integers), T.let(number * cells)
                y = Side(rows, height, first, cell, numbers, weights)
                x = Side(columns, width, T.let(first + 3 * rows), T.let(cell + rows * height), numbers, weights)
                if self.result is not None:
                    begin, end = share(number, tasks, T.let(math.prod(self.result.sizes[:3], start=T.i64(1))))
                    self._images(begin, end, y, x)
                if own.output_roi_gradient_tensor is not None:
                    begin, end = share(number, tasks, own.regions)
                    with T.loop(T.let(end - begin)) as i:
                        self._slopes(T.let(begin + i), y, x)

            per_task(tasks, task)
        return f.result()

    def _slopes(self, r: Any, y: Side, x: Side) -> None:
        """The gradient of a region."""
        own, zero = self.own, T.const(0, "int32")

        def one_by_one() -> list[Any]:
            return slopes(own, self.tensors, r, lambda sizes: nested([T.loop(T.index(size)) for size in sizes]))

        if not self.region_lanes:
            store(own, self.tensors, r, one_by_one())
            return
        totals = [T.Variable(self.dtype, T.const(0, self.dtype)) for _ in range(4)]
        found = region(own, self.tensors, r, y.size, x.size)
        with T.when(found.valid > zero):
            more = T.let(x.cells + x.parts * x.size)
            Slopes(own, self.tensors, (y, x), more, self.region_lanes).add(r, found, totals)
        known = T.hold(sum(T.cast(finite(one.value), "int32") for one in totals))
        with T.when(known < T.const(4, "int32")):
            for one, value in zip(totals, one_by_one(), strict=True):
                one.set(value)
        store(own, self.tensors, r, [one.value for one in totals])

    def _images(self, begin: Any, end: Any, y: Side, x: Side) -> None:
        """Rows of the images' gradients."""
        own = self.own
        self._each(begin, end, lambda at: self._put(at, T.const(0, self.dtype)))
        plane = T.let(self.result.sizes[1] * self.result.sizes[2])
        with T.loop(own.regions) as r:
            number, exists = image_of(own, self.tensors, r)
            first, stop = T.hold(T.max(begin, number * plane)), T.hold(T.min(end, (number + 1) * plane))
            with T.when((exists > T.const(0, "int32")) & (first < stop)):
                found = region(own, self.tensors, r, y.size, x.size)
                with T.when(found.valid > T.const(0, "int32")):
                    rows = T.let(first - number * plane), T.let(stop - number * plane)
                    self._region(r, found, rows, y, x)
        if self.wide:
            buffer, kind = self.tensors["output_gradient_tensor"], self.result.data_type.tvm
            self._each(
                begin, end, lambda at: T.store(buffer, T.dot(at, self.result.layout), T.to(self.sums[self._place(at)], kind))
            )

    def _each(self, begin: Any, end: Any, body: Any) -> None:
        """Elements of some rows."""
        *outer, width = self.result.sizes
        row = [T.Variable("int64", one) for one in T.unravel(begin, outer)]
        with T.loop(T.let(end - begin)):
            at = [T.let(one.value) for one in row]
            with T.loop(width) as i:
                body([*at, i])
            T.count_up(row, outer)

    def _place(self, at: list[Any]) -> Any:
        """Where an element's sum is."""
        if not self.wide:
            return T.dot(at, self.result.layout)
        place = at[0]
        for one, size in zip(at[1:], self.result.sizes[1:], strict=True):
            place = place * size + one
        return place

    def _put(self, at: list[Any], value: Any) -> None:
        T.store(self.totals, self._place(at), value)

    def _add(self, row: Any, place: Any, value: Any) -> None:
        """Add to an element of a row, by where that begins."""
        at = T.let(row + place * (1 if self.wide else self.result.layout[-1]))
        T.store(self.totals, at, self.totals[at] + value)

    def _region(self, r: Any, found: Region, rows: tuple[Any, Any], y: Side, x: Side) -> None:
        """What a region gives to some rows of all channels of its image."""
        part, height, zero = T.like(found.y.step, 1), y.size, T.i64(0)
        if not self.desc.is_max:
            for side, line in ((y, found.y), (x, found.x)):
                side.clear()
                side.fill(line, self.desc.is_linear)
            self.box = x.box()
            part = T.hold(part / T.rounded(found.y.count * found.x.count))
        first = T.hold(T.truncdiv(rows[0], height))
        with T.loop(T.let(T.truncdiv(rows[1] + height - 1, height) - first)) as i:
            c = T.let(first + i)
            low, high = T.hold(T.max(rows[0] - c * height, zero)), T.hold(T.min(rows[1] - c * height, height))
            with T.loop(y.parts) as oy:
                if self.desc.is_max:
                    with T.loop(x.parts) as ox:
                        self._largest(r, c, oy, ox, found, low, high)
                else:
                    self._average(r, c, oy, found.image, part, (low, high), y, x)

    def _given(self, *at: Any) -> Any:
        """The gradient of a part of a region."""
        place = T.let(T.dot([*at], self.own.input_gradient_tensor.layout))
        return T.hold(T.wide(self.tensors["input_gradient_tensor"][place]))

    def _average(self, r: Any, c: Any, oy: Any, image: Any, part: Any, some: tuple[Any, Any], y: Side, x: Side) -> None:
        """A row of parts."""
        begin = T.hold(T.max(y.first(oy), some[0]))
        end = T.hold(T.min(y.first(oy) + y.count(oy), some[1]))
        lanes = self.row_lanes

        def vector(row: Any, down: Any, place: Any, new: Callable[[], Any]) -> None:
            at = run(T.let(row + place * (1 if self.wide else self.result.layout[-1])), lanes)
            before = T.hold(self.totals[at])
            total = T.Variable(T.type_of(before), before)
            with T.loop(x.parts) as ox:
                begin = T.let(x.first(ox))
                with T.when((begin < place + lanes) & (begin + x.count(ox) > place)):
                    across = T.hold(x.weights[run(T.let(x.cells + ox * x.size + place), lanes)])
                    weight = T.hold(T.hold(splat(down, lanes) * across) * splat(part, lanes))
                    given = T.rounded(splat(self._given(r, c, oy, ox), lanes) * weight)
                    none = T.like(across, 0)
                    total.set(total.value + T.Select((across > none) & new(), given, none))
            T.store(self.totals, at, total.value)

        with T.loop(T.let(T.max(end - begin, T.i64(0)))) as i:
            down = T.hold(y.weight(oy, begin + i))
            row = T.let(self._place([image, c, T.let(begin + i), T.i64(0)]))
            with T.when(down > T.like(down, 0)):
                fresh(*self.box, x.size, lanes, partial(vector, row, down))

    def _largest(self, r: Any, c: Any, oy: Any, ox: Any, found: Region, low: Any, high: Any) -> None:
        """A part whose largest sample counts."""
        own, linear = self.own, self.desc.is_linear
        down, across, exists = largest(own, found, oy, ox, reader(own, self.tensors, found.image, c))
        with T.when(exists > T.const(0, "int32")):
            g = self._given(r, c, oy, ox)
            ends = []
            for line, part, number in ((found.y, oy, down), (found.x, ox, across)):
                before, after, past = line.taps(line.at(part, number), linear)
                places = ((before, T.hold(T.like(past, 1) - past)), (after, past))
                ends.append([(T.let(T.cast(place, "int64")), weight) for place, weight in places[: 1 + linear]])
            for y, wy in ends[0]:
                row = T.let(self._place([found.image, c, y, T.i64(0)]))
                for x, wx in ends[1]:
                    weight = T.hold(wy * wx)
                    with T.when((weight > T.like(weight, 0)) & (y >= low) & (y < high)):
                        self._add(row, x, T.rounded(g * weight))
