"""Gradients of regions of ROI_ALIGN's averages on the CPU, in vectors along the rows of images.

A sample grows by the difference of two neighbours; its part of that goes to both ends of the region, by how far on its way it is.
What a column gives to its ends is summed up in tables, once for all channels, and so is what a row gives. Then a part's rows of
differences are added up, weighed, and multiplied by what the parts' gradients and the tables give to each column.

Elements that no sample is beside are multiplied by 0. Where a sum is infinite or NaN, it is computed again, sample by sample.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from tvmdml.kernels import tensorir_values as T
from tvmdml.operators._roi_align import Region, SampleLine
from tvmdml.operators.roi_align import RoiAlignGrad
from tvmdml.schedules.cpu._lanes import folded
from tvmdml.schedules.cpu._resampling_rows import run, splat
from tvmdml.schedules.cpu._roi_align_side import Side, fresh


def lanes_of(desc: RoiAlignGrad) -> int:
    """The lanes of a vector of neighbours that have one after them; 0 if regions are gone through sample by sample."""
    image, wanted = desc.input_tensor, desc.output_roi_gradient_tensor is not None
    if not wanted or image is None or desc.is_max or not desc.is_linear or image.layout[-1] != 1 or image.sizes[-1] < 2:
        return 0
    lanes = 16 if desc.computed == "float32" else 8
    while lanes >= image.sizes[-1]:
        lanes //= 2
    return lanes


class Slopes:
    """Sums over the samples of regions, for tensors of a launch."""

    def __init__(self, own: Any, tensors: dict[str, Any], sides: tuple[Side, Side], cell: Any, lanes: int) -> None:
        """``cell`` is where two more tables for each side begin."""
        self.own, self.tensors, self.lanes, self.dtype = own, tensors, lanes, own.computed
        self.y, self.x = sides
        self.weights = self.y.weights
        past_y = T.let(cell + 2 * (self.y.parts * self.y.size))
        self.ends = [
            [T.let(start + end * (side.parts * side.size)) for end in range(2)]
            for side, start in ((self.y, cell), (self.x, past_y))
        ]
        """Where the tables begin: for both sides, those for both ends."""

    def add(self, r: Any, found: Region, totals: list[T.Variable]) -> None:
        """Set the sums of a region that is valid: for x1, y1, x2 and y2."""
        y, x = self.y, self.x
        for side, line, scale, cells in (
            (y, found.y, self.own.spatial_scale_y, self.ends[0]),
            (x, found.x, self.own.spatial_scale_x, self.ends[1]),
        ):
            side.clear(*cells)
            side.fill(line, True)
            self._fill(side, line, scale, cells)
        ends = x.box()
        share = T.hold(T.like(found.y.count, 1) / T.rounded(found.y.count * found.x.count))
        none = splat(T.const(0, self.dtype), self.lanes)
        sums = [T.Variable(T.type_of(none), none) for _ in range(4)]
        step_n, step_c, step_y, _ = self.own.input_tensor.layout
        with T.loop(self.own.input_tensor.sizes[1]) as c:
            base = T.let(found.image * step_n + c * step_c)
            with T.loop(y.parts) as oy:
                part = T.let(T.dot([r, c, oy, T.i64(0)], self.own.input_gradient_tensor.layout))
                self._along_x(oy, base, step_y, part, ends, sums)
                self._along_y(oy, base, step_y, part, ends, sums)
        for total, one in zip(totals, sums, strict=True):
            total.set(T.rounded(folded(one.value, lambda a, b: a + b) * share))

    def _fill(self, side: Side, line: SampleLine, scale: float, cells: list[Any]) -> None:
        """What the samples between an element and the next give to the ends of the region."""
        with T.loop(side.parts) as part:
            begin, end = line.inside(part)
            with T.loop(T.let(T.cast(end - begin, "int64"))) as i:
                number = T.let(begin + T.cast(i, "int32"))
                before, _, past = line.taps(line.at(part, number), True)
                way = line.way(part, number)
                with T.when(past > T.like(past, 0)):
                    for cell, own_way in zip(cells, (T.like(way, 1) - way, way), strict=True):
                        at = T.let(cell + part * side.size + T.cast(before, "int64"))
                        T.store(self.weights, at, self.weights[at] + T.rounded(own_way * T.like(way, scale)))

    def _along_x(self, oy: Any, base: Any, step: Any, part: Any, ends: tuple[Any, Any], sums: list[T.Variable]) -> None:
        """Differences between columns."""
        y, x = self.y, self.x
        first, count = T.let(y.first(oy)), T.let(y.count(oy))

        def vector(place: Any, new: Callable[[Any], Any]) -> None:
            mixed = self._zero()
            with T.loop(count) as k:
                weight = T.let(y.weight(oy, first + k))
                with T.when(weight > T.like(weight, 0)):
                    at = T.let(base + (first + k) * step + place)
                    mixed.set(mixed.value + (self._load(at + 1) - self._load(at)) * splat(weight, self.lanes))
            given = self._given(part, place, self.ends[1])
            value = new(mixed.value)
            for total, one in zip(sums[::2], given, strict=True):
                total.set(total.value + value * one.value)

        self._vectors(ends[0], T.let(T.min(ends[1], x.size - 1)), T.let(x.size - 1), vector)

    def _along_y(self, oy: Any, base: Any, step: Any, part: Any, ends: tuple[Any, Any], sums: list[T.Variable]) -> None:
        """Differences between rows."""
        y, x = self.y, self.x
        first, count = T.let(y.first(oy)), T.let(y.count(oy) - 1)

        def vector(place: Any, new: Callable[[Any], Any]) -> None:
            mixed = [self._zero(), self._zero()]
            with T.loop(T.let(T.max(count, T.i64(0)))) as k:
                row = T.let(first + k)
                weights = [T.let(self.weights[cell + oy * y.size + row]) for cell in self.ends[0]]
                zero = T.like(weights[0], 0)
                with T.when((T.abs(weights[0]) > zero) | (T.abs(weights[1]) > zero)):
                    at = T.let(base + row * step + place)
                    grown = T.hold(self._load(at + step) - self._load(at))
                    for one, weight in zip(mixed, weights, strict=True):
                        one.set(one.value + grown * splat(weight, self.lanes))
            (given,) = self._given(part, place, [x.cells])
            for total, one in zip(sums[1::2], mixed, strict=True):
                total.set(total.value + new(one.value) * given.value)

        self._vectors(*ends, x.size, vector)

    def _given(self, part: Any, place: Any, cells: list[Any]) -> list[T.Variable]:
        """What a row of parts gives to columns, by some tables."""
        found = [self._zero() for _ in cells]
        gradient, step = self.tensors["input_gradient_tensor"], self.own.input_gradient_tensor.layout[3]
        with T.loop(self.x.parts) as ox:
            g = T.let(T.to(T.wide(gradient[part + ox * step]), self.dtype))
            for one, cell in zip(found, cells, strict=True):
                at = T.let(cell + ox * self.x.size + place)
                one.set(one.value + self.weights[run(at, self.lanes)] * splat(g, self.lanes))
        return found

    def _vectors(self, low: Any, stop: Any, size: Any, body: Callable[[Any, Callable[[Any], Any]], None]) -> None:
        """Vectors of a row; ``body`` is given a place, and what leaves the lanes of a vector that are not in the one before."""
        none = splat(T.const(0, self.dtype), self.lanes)
        fresh(low, stop, size, self.lanes, lambda place, new: body(place, lambda value: T.hold(T.Select(new(), value, none))))

    def _zero(self) -> T.Variable:
        none = splat(T.const(0, self.dtype), self.lanes)
        return T.Variable(T.type_of(none), none)

    def _load(self, at: Any) -> Any:
        """Neighbours in an image."""
        return T.hold(T.to(T.wide(self.tensors["input_tensor"][run(T.let(at), self.lanes)]), self.dtype))
