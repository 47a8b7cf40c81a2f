"""ROI_ALIGN on the CPU: averages of samples, of images whose rows are contiguous.

An average of samples is a sum of elements with weights, and a weight is the product of one along y and one along x. So a region has
two small tables, which are computed once for all channels: for each of its parts, the elements along a side that count, and their
weights. A row of the result is a sum of rows of the image, in vectors, and then a few elements of that for each part.

Elements without weight are left out, infinite or not. The largest of samples and other layouts have the default schedule, and
gradients one of their own.
"""

from __future__ import annotations

from typing import Any

from tvmdml.kernels import tensorir_values as T
from tvmdml.kernels.kernel import Kernel
from tvmdml.kernels.launched import with_fields
from tvmdml.kernels.open_shapes import TensorOfLaunch
from tvmdml.operators._contract import Shared
from tvmdml.operators._roi_align import Region, RoiOperator, region
from tvmdml.operators._roi_align_forward import Aligned
from tvmdml.operators.roi_align import RoiAlignGrad
from tvmdml.schedules.cpu import _default, _roi_align_gradient, per_task, share, split
from tvmdml.schedules.cpu._roi_align_side import Side
from tvmdml.targets import Target

LEAST = 1 << 12
"""The least elements of the result for each task."""
_TENSORS = ("input_tensor", "roi_tensor", "batch_indices_tensor", "output_tensor")
_SAMPLED = 4
"""Work for each element of the result, in elements that are read."""


def kernel(desc: RoiOperator, target: Target, shared: Shared) -> Kernel:
    """Regions and channels are divided among tasks."""
    if isinstance(desc, RoiAlignGrad):
        return _roi_align_gradient.kernel(desc, target)
    if not isinstance(desc, Aligned) or desc.is_max or desc.input_tensor.layout[-1] != 1:
        return _default.kernel(desc, target, shared)
    source, result = desc.ends()
    channels, regions = source.sizes[1], desc.regions
    work = result.element_count * _SAMPLED
    tasks = split(work, target, LEAST, 2)
    pieces = 1 if regions >= 2 * tasks else min(channels, tasks)
    tasks = min(tasks, regions * pieces)
    *_, height, width = source.sizes
    rows, columns = result.sizes[2:]
    writer = _Writer(desc, sides=((rows, height), (columns, width)))
    layouts = [getattr(desc, name).layout for name in _TENSORS]
    scalars = (tasks, regions, pieces, channels, source.sizes[0], *(step for one in layouts for step in one))
    scratch = (("int32", tasks * writer.integers), (desc.computed, tasks * writer.cells))
    module, *also = desc.modules()
    return Kernel(module, "averages", writer.parameters, writer.function, scalars, scratch, tuple(also))


class _Writer:
    """Writes the kernel."""

    sides: tuple[tuple[int, int], tuple[int, int]]

    def __init__(self, desc: Aligned, **choices: Any) -> None:
        self.__dict__.update(choices)
        self.desc, self.dtype = desc, desc.computed
        (rows, height), (columns, width) = self.sides
        self.integers = 3 * (rows + columns)
        self.cells = rows * height + (columns + 1) * width
        self.lanes = 16 if self.dtype == "float32" else 8
        while self.lanes > width:
            self.lanes //= 2
        types = [(getattr(desc, name).data_type.tvm, getattr(desc, name).rank) for name in _TENSORS]
        self.parameters = (*desc.attributes_exactly(), ("types", str(types)), *choices.items())

    def function(self) -> T.PrimFunc:
        desc = self.desc
        with T.function() as f:
            tensors = {name: f.buffer(name, getattr(desc, name).data_type.tvm) for name in _TENSORS}
            numbers, weights = f.buffer("numbers", "int32"), f.buffer("weights", self.dtype)
            tasks, regions, pieces, channels, images = (
                f.scalar(name) for name in ("tasks", "regions", "pieces", "channels", "images")
            )
            steps = {name: f.scalars(f"{name}_step", getattr(desc, name).rank) for name in _TENSORS}
            (rows, height), (columns, width) = self.sides
            sizes = {
                "input_tensor": (images, channels, height, width),
                "output_tensor": (regions, channels, rows, columns),
            }
            launched = {name: TensorOfLaunch(getattr(desc, name), sizes.get(name, ()), steps[name]) for name in _TENSORS}
            own: Any = with_fields(desc, **launched)
            self.tensors, self.steps = tensors, steps

            def task(number: Any) -> None:
                integers, cells = T.let(number * self.integers), T.let(number * self.cells)
                y = Side(rows, height, integers, cells, numbers, weights)
                x = Side(columns, width, T.let(integers + 3 * rows), T.let(cells + rows * height), numbers, weights)
                line = T.let(cells + rows * height + columns * width)
                begin, end = share(number, tasks, T.let(regions * pieces))
                with T.loop(T.let(end - begin)) as i:
                    r = T.hold(T.truncdiv(begin + i, pieces))
                    first, stop = share(T.let(begin + i - r * pieces), pieces, channels)
                    found = region(own, tensors, r, height, width)
                    T.either(
                        found.valid > T.const(0, "int32"),
                        lambda r=r, first=first, stop=stop, found=found: self._region(r, first, stop, found, (y, x), line),
                        lambda r=r, first=first, stop=stop: self._outside(r, first, stop),
                    )

            per_task(tasks, task)
        return f.result()

    def _outside(self, r: Any, first: Any, stop: Any) -> None:
        """A region without an image."""
        (rows, _), (columns, _) = self.sides
        with T.loop(T.let(stop - first)) as i, T.loop(T.i64(rows)) as oy, T.loop(T.i64(columns)) as ox:
            self._put([r, first + i, oy, ox], self._outside_value())

    def _outside_value(self) -> Any:
        return T.like(T.const(0, self.dtype), self.desc.out_of_bounds_input_value)

    def _put(self, at: list[Any], value: Any) -> None:
        kind = self.desc.output_tensor.data_type.tvm
        T.store(self.tensors["output_tensor"], T.let(T.dot(at, self.steps["output_tensor"])), T.to(value, kind))

    def _region(self, r: Any, first: Any, stop: Any, found: Region, sides: tuple[Side, Side], line: Any) -> None:
        y, x = sides
        for side, own in ((y, found.y), (x, found.x)):
            side.fill(own, self.desc.is_linear, T.hold(T.like(own.count, 1) / own.count))
        low_x, high_x = x.box()
        samples = T.hold(T.rounded(found.y.count * found.x.count))
        part = T.hold(T.like(samples, 1) / samples)
        _, step_c, step_y, _ = self.steps["input_tensor"]
        image = T.let(found.image * self.steps["input_tensor"][0])
        with T.loop(T.let(stop - first)) as i:
            c = T.let(first + i)
            base = T.let(image + c * step_c)
            with T.loop(T.i64(y.parts)) as oy:
                self._mixed(y, oy, base, step_y, low_x, high_x, line)
                with T.loop(T.i64(x.parts)) as ox:
                    total = T.Variable(self.dtype, T.const(0, self.dtype))
                    begin = T.let(x.first(ox))
                    with T.loop(T.let(x.count(ox))) as k:
                        place = T.let(begin + k)
                        weight = T.let(x.weight(ox, place))
                        term = T.rounded(weight * x.weights[line + place])
                        total.set(total.value + T.Select(weight > T.like(weight, 0), term, T.like(weight, 0)))
                    seen = T.let(T.rounded(T.cast(y.seen(oy), self.dtype) * T.cast(x.seen(ox), self.dtype)))
                    with T.when(seen < samples):
                        outside = T.rounded(T.hold(T.rounded((samples - seen) * part)) * self._outside_value())
                        total.set(total.value + outside)
                    self._put([r, c, oy, ox], total.value)

    def _mixed(self, y: Side, oy: Any, base: Any, step: Any, low: Any, high: Any, line: Any) -> None:
        """The rows of a part, with their weights, added up: the columns that the region has."""
        lanes, source = self.lanes, self.tensors["input_tensor"]
        first, count = T.let(y.first(oy)), T.let(y.count(oy))
        with T.loop(T.let(T.truncdiv(T.max(high - low, T.i64(0)) + (lanes - 1), T.i64(lanes)))) as v:
            place = T.let(T.min(low + v * lanes, T.i64(self.sides[1][1] - lanes)))
            none = T.splat(T.const(0, self.dtype), lanes) if lanes > 1 else T.const(0, self.dtype)
            total = T.Variable(T.type_of(none), none)
            with T.loop(count) as k:
                row = T.let(first + k)
                weight = T.let(y.weight(oy, row))
                with T.when(weight > T.like(weight, 0)):
                    at = T.let(base + row * step + place)
                    elements = T.to(T.wide(source[T.run(at, lanes) if lanes > 1 else at]), self.dtype)
                    total.set(total.value + T.rounded(elements * (T.splat(weight, lanes) if lanes > 1 else weight)))
            T.store(y.weights, T.run(T.let(line + place), lanes) if lanes > 1 else T.let(line + place), total.value)
