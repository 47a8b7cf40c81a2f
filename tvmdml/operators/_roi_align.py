"""The family of ROI_ALIGN: samples of an image at equal distances in a region, and the gradients of that.

A sample's coordinates are computed in the type of the region, operation by operation, so that every target takes the same elements.
They grow or fall with the sample's number: those inside of the image follow from two searches, and the others are only counted.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any, ClassVar, NamedTuple

import numpy as np

from tvmdml.enums import InterpolationMode, ReduceFunction
from tvmdml.kernels import tensorir_values as T
from tvmdml.operators._contract import Bool, Float, Operator, Uint
from tvmdml.tensors import TensorDesc

if TYPE_CHECKING:
    from tvmdml.operators._contract import Input

MOST_FORCED = 1 << 16
"""The most samples that a caller may ask for in each direction, whatever the region's size."""
MOST_SAMPLES = 2147483520
"""The most samples in each direction: the largest float32 below 2^31."""


class RoiOperator(Operator):
    """Base class of the family."""

    SUMS = True
    FAMILY: ClassVar[str] = "roi_align"
    CONSTANT_SHAPES = "the number of samples follows from the sizes"
    LAUNCHED_SHAPES = True
    channels = 1
    """Channels of an item of the computation."""

    if TYPE_CHECKING:  # the fields stand in DirectML's order, in each class
        roi_tensor: Input
        batch_indices_tensor: Input
        reduction_function: ReduceFunction
        interpolation_mode: InterpolationMode
        spatial_scale_x: Float
        spatial_scale_y: Float
        minimum_samples_per_output: Uint
        maximum_samples_per_output: Uint
        align_regions_to_corners: Bool

    # -- The contract

    def ends(self) -> tuple[TensorDesc | None, TensorDesc]:
        """The image, and the tensor with an element for each part of a region."""
        raise NotImplementedError(self.NAME)

    @property
    def regions(self) -> int:
        """The number of regions."""
        return self.roi_tensor.sizes[-2] if self.roi_tensor.rank > 1 else 1

    @property
    def is_max(self) -> bool:
        """Whether the largest sample counts, and not the average."""
        return self.reduction_function is ReduceFunction.MAX

    @property
    def is_linear(self) -> bool:
        """Whether a sample weighs the elements around it."""
        return self.interpolation_mode is InterpolationMode.LINEAR

    @property
    def offsets(self) -> tuple[float, float]:
        """The input's and the output's pixel offset."""
        return getattr(self, "input_pixel_offset", 0.5), getattr(self, "output_pixel_offset", -0.5)

    @property
    def corners(self) -> bool:
        """Whether the first and the last sample are at the corners of a region."""
        return getattr(self, "align_regions_to_corners", False)

    @property
    def limits(self) -> tuple[int, int]:
        """The least and the most samples in each direction."""
        return self.minimum_samples_per_output, min(self.maximum_samples_per_output, MOST_SAMPLES)

    @property
    def computed(self) -> str:
        """The type in which regions are divided and samples are computed."""
        return "float64" if self.roi_tensor.data_type.tvm == "float64" else "float32"

    def check_regions(self, first: str) -> None:
        """Regions of four numbers, with an index for each; and the numbers of samples."""
        self.require_same("data_type", "roi_tensor", first)
        for name, last in (("roi_tensor", 2), ("batch_indices_tensor", 1)):
            sizes = getattr(self, name).sizes
            outer = sizes[: max(len(sizes) - last, 0)]
            self.require(all(n == 1 for n in outer), f"{name}.sizes", sizes, f"1 before the last{f' {last}' * (last > 1)}")
        sizes = self.roi_tensor.sizes
        self.require(len(sizes) > 1 and sizes[-1] == 4, "roi_tensor.sizes", sizes, "4 numbers for each region: x1, y1, x2, y2")
        count = self.batch_indices_tensor.sizes[-1]
        self.require(
            count == self.regions, "batch_indices_tensor.sizes", f"{count} indices", f"{self.regions}, one for each region"
        )
        allowed = (ReduceFunction.AVERAGE, ReduceFunction.MAX)
        given = self.reduction_function
        self.require(given in allowed, "reduction_function", repr(given.name.lower()), "'average', 'max'")
        least, most = self.minimum_samples_per_output, self.maximum_samples_per_output
        self.require(1 <= least <= MOST_FORCED, "minimum_samples_per_output", least, f"1 to {MOST_FORCED}")
        self.require(least <= most, "maximum_samples_per_output", most, f"{least} or more, the least number of samples")

    def bounds(self, name: str) -> tuple[int, int] | None:
        """Of indices: those of images. Of regions: coordinates in an image, and somewhat beyond it."""
        if name == "batch_indices_tensor":
            return 0, (self.images() - 1)
        return (-2, 2 + self.extent()) if name == "roi_tensor" else None

    def images(self) -> int:
        """The number of images."""
        raise NotImplementedError(self.NAME)

    def extent(self) -> int:
        """The larger side of an image."""
        raise NotImplementedError(self.NAME)

    # -- Steps of kernels

    def line(self, ends: tuple[Any, Any], scale: float, parts: Any, size: Any) -> SampleLine:
        """The samples along one side of a region, which is divided into parts, in an image of a size."""
        least, most = self.limits
        begin, end = (T.hold(T.rounded(one * T.like(one, scale))) for one in ends)
        length = T.hold(end - begin)
        like = functools.partial(T.like, length)
        valid = T.hold(T.cast(finite(begin) & finite(end) & finite(length), "int32"))
        wanted = T.ceil(T.abs(length) / as_float(length, parts))
        wanted = T.hold(T.Select(valid > T.const(0, "int32"), wanted, like(float(least))))
        count = T.hold(T.minimum(T.maximum(wanted, like(float(least))), like(_below(most, self.computed))))
        total = T.hold(T.rounded(count * as_float(length, parts)))
        alone = None
        if self.corners:
            alone = T.hold(T.cast(total < like(1.5), "int32"))  # a single sample stands in the middle
            total = T.hold(T.Select(alone > T.const(0, "int32"), like(1.0), total - like(1.0)))
            begin = T.hold(T.Select(alone > T.const(0, "int32"), (begin + end) / like(2.0), begin))
        step = T.hold(length / total)
        before, after = self.offsets
        return SampleLine(begin, step, count, T.hold(T.cast(count, "int32")), total, alone, valid, size, before, after, least)


def _below(number: int, dtype: str) -> float:
    """The largest float that is not above an integer."""
    kind = np.dtype(dtype).type
    found = kind(number)
    return float(found if int(found) <= number else np.nextafter(found, kind(0)))


def as_float(like: Any, number: Any) -> Any:
    """A number of elements, which may be an integer of the launch, as a float of the type of a value."""
    return T.like(like, float(number)) if isinstance(number, int) else T.cast(number, T.type_of(like))


def finite(value: Any) -> Any:
    """Whether a float is neither infinite nor NaN."""
    return T.expression(T.abs(value) <= T.like(value, 3.4028234663852886e38 if T.bits_of(value) == 32 else 1.7976931348623157e308))


class SampleLine(NamedTuple):
    """The samples along one side of a region."""

    begin: Any
    step: Any
    count: Any
    """The number of samples of a part, as a float."""
    number: Any
    """The same as an integer."""
    total: Any
    """The number of steps."""
    alone: Any
    """With corners: whether there is a single sample, 1 or 0. ``None`` without corners."""
    valid: Any
    """Whether all this is finite: 1 or 0."""
    size: Any
    """The elements of the image; it may be an integer of the launch."""
    before: float
    after: float
    least: int

    @property
    def most(self) -> int:
        """The most samples of a part that are inside of the image, if its size is known."""
        return max(self.least, 2 * self.size + 8) if isinstance(self.size, int) else 1

    def sample(self, part: Any, i: Any) -> Any:
        """The number of a sample among those of all parts, as a float, after the offset."""
        dtype = T.type_of(self.count)
        s = T.hold(T.rounded(T.cast(part, dtype) * self.count) + T.cast(i, dtype))
        return s if self.alone is not None else T.hold(s - T.like(s, self.after))

    def at(self, part: Any, i: Any) -> Any:
        """The coordinate of a sample."""
        s = self.sample(part, i)
        return T.hold(T.hold(T.rounded(s * self.step) + self.begin) - T.like(s, self.before))

    def way(self, part: Any, i: Any) -> Any:
        """How far a sample is on the way from the region's first end to its last."""
        s = self.sample(part, i)
        found = T.hold(s / self.total)
        return found if self.alone is None else T.hold(T.Select(self.alone > T.const(0, "int32"), T.like(s, 0.5), found))

    def between(self, part: Any, low: Any, high: Any) -> tuple[Any, Any]:
        """The first sample of a part that is not below or above two coordinates, and the first after those."""
        up, zero = self._rising(), T.const(0, "int32")
        begin = _first(self.number, lambda i: _reaches(self.at(part, i), low, high, up), zero)
        end = _first(self.number, lambda i: _passes(self.at(part, i), low, high, up), zero)
        return begin, T.hold(T.max(begin, end))

    def parts_between(self, parts: Any, low: Any, high: Any) -> tuple[Any, Any]:
        """The first part that may have samples between two coordinates, and the first after those that may."""
        up, zero = self._rising(), T.cast(T.index(0), T.type_of(T.index(0)))
        last = self.number - T.const(1, "int32")
        begin = _first(T.index(parts), lambda part: _reaches(self.at(part, last), low, high, up), zero)
        end = _first(T.index(parts), lambda part: _passes(self.at(part, T.const(0, "int32")), low, high, up), zero)
        return begin, T.hold(T.max(begin, end))

    def meets(self, parts: Any, low: Any, high: Any) -> tuple[Any, Any]:
        """Whether any part may have samples between two coordinates: two conditions, which most elements of a large image fail."""
        up, last = self._rising(), self.number - T.const(1, "int32")
        final = self.at(T.index(parts) - T.index(1), last)
        begins = self.at(T.cast(T.index(0), T.type_of(T.index(0))), T.const(0, "int32"))
        return T.expression(_reaches(final, low, high, up)), T.expression(_past(begins, low, high, up) == T.const(0, "int32"))

    def _rising(self) -> Any:
        return T.hold(T.cast(T.expression(self.step >= T.like(self.step, 0)), "int32")) > T.const(0, "int32")

    def inside(self, part: Any) -> tuple[Any, Any]:
        """The samples of a part inside of the image: the first, and the first after those."""
        like = self.step
        return self.between(part, T.like(like, -1), as_float(like, self.size))

    def taps(self, x: Any, linear: bool) -> tuple[Any, Any, Any]:
        """The elements before and after a coordinate inside of the image, and how far it is between them."""
        last = T.hold(as_float(x, self.size - 1))
        if not linear:
            near = T.floor(x + T.like(x, 0.5))
            place = T.hold(T.cast(T.min(T.max(near, T.like(x, 0)), last), "int32"))
            return place, place, T.like(x, 0)
        clipped = T.hold(T.Select(x > T.like(x, 0), T.Select(x < last, x, last), T.like(x, 0)))
        whole = T.hold(T.floor(clipped))
        place = T.hold(T.cast(whole, "int32"))
        past = T.hold(clipped - whole)
        return place, T.hold(place + T.cast(past > T.like(x, 0), "int32")), past


class Region(NamedTuple):
    """A region of an image."""

    image: Any
    """The image's number; 0 if it has none that exists."""
    valid: Any
    """Whether there is such an image, and the region is finite: 1 or 0."""
    x: SampleLine
    y: SampleLine


def _first(count: Any, holds: Callable[[Any], Any], zero: Any) -> Any:
    """The first number below a count for which a condition holds, or the count; it holds for all after it."""
    left, right = (T.Variable(T.type_of(zero), one) for one in (zero, count))
    with T.loop_while(left.value < right.value):
        middle = T.let(left.value + T.truncdiv(right.value - left.value, T.like(zero, 2)))
        T.either(holds(middle), lambda: right.set(middle), lambda: left.set(middle + T.like(zero, 1)))
    return T.hold(left.value)


def _reaches(x: Any, low: Any, high: Any, up: Any) -> Any:
    """Whether a coordinate is at the first of two limits or past it, where coordinates grow, or fall."""
    return T.Select(up, T.cast(x >= low, "int32"), T.cast(x <= high, "int32")) > T.const(0, "int32")


def _passes(x: Any, low: Any, high: Any, up: Any) -> Any:
    """Whether it is past the last one."""
    return _past(x, low, high, up) > T.const(0, "int32")


def _past(x: Any, low: Any, high: Any, up: Any) -> Any:
    """The same as a number: 1 or 0."""
    return T.Select(up, T.cast(x > high, "int32"), T.cast(x < low, "int32"))


def region(desc: RoiOperator, tensors: dict[str, Any], r: Any, height: Any, width: Any) -> Region:
    """A region of a kernel, by its number."""
    roi = desc.roi_tensor
    _, parts = desc.ends()
    image, exists = image_of(desc, tensors, r)
    numbers = []
    for i in range(4):
        place = r * T.index(roi.layout[-2]) + T.index(i * roi.layout[-1])
        numbers.append(T.hold(T.wide(tensors["roi_tensor"][place])))
    x = desc.line((numbers[0], numbers[2]), desc.spatial_scale_x, parts.sizes[3], width)
    y = desc.line((numbers[1], numbers[3]), desc.spatial_scale_y, parts.sizes[2], height)
    return Region(image, T.hold(exists * x.valid * y.valid), x, y)


def image_of(desc: RoiOperator, tensors: dict[str, Any], r: Any) -> tuple[Any, Any]:
    """The number of a region's image, 0 if there is none, and whether there is one: 1 or 0."""
    batch = desc.batch_indices_tensor
    index = T.let(tensors["batch_indices_tensor"][r * T.index(batch.layout[-1])])
    exists = _is_below(index, desc.images()) & (T.greater(index, -1) if batch.data_type.is_signed else T.const(True, "bool"))
    exists = T.hold(T.cast(exists, "int32"))
    here = T.Select(exists > T.const(0, "int32"), index, T.like(index, 0))
    return T.hold(T.cast(here, T.type_of(T.index(0)))), exists


def _is_below(index: Any, count: Any) -> Any:
    """Whether an index is less than a number, which may be an integer of the launch."""
    if isinstance(count, int):
        return T.less(index, count)
    wide = T.type_of(index) if T.bits_of(index) == 64 else "int64"
    return T.cast(index, wide) < T.cast(count, wide)


def between(first: Any, second: Callable[[], Any], past: Any) -> Any:
    """What is between two elements; at the first, that alone."""
    mixed = T.rounded(first * (T.like(past, 1) - past)) + T.rounded(second() * past)
    return T.hold(T.Select(past > T.like(past, 0), mixed, first))


class Corners:
    """The elements around a sample inside of the image: where they are, and how they are mixed. The same for all channels."""

    def __init__(self, rows: tuple[Any, Any, Any], columns: tuple[Any, Any, Any], steps: Sequence[Any], linear: bool) -> None:
        (below, above, self.down), (left, right, self.across) = rows, columns
        self._linear = linear
        kind = T.type_of(T.index(0))
        tops, sides = ((below, above), (left, right)) if linear else ((below,), (left,))
        vertical = [T.let(T.cast(one, kind) * steps[0]) for one in tops]
        horizontal = [T.let(T.cast(one, kind) * steps[1]) for one in sides]
        self._places = [[T.let(one + other) for other in horizontal] for one in vertical]

    def mixed(self, element: Callable[[Any], Any]) -> Any:
        """The sample; ``element`` reads one, by its place in the image."""
        if not self._linear:
            return element(self._places[0][0])

        def row(places: list[Any]) -> Any:
            return between(element(places[0]), lambda: element(places[1]), self.across)

        below, above = self._places
        return between(row(below), lambda: row(above), self.down)

    def slopes(self, element: Callable[[Any], Any]) -> tuple[Any, Any]:
        """By how much the sample grows along x and along y."""
        (a, b), (c, d) = ([element(place) for place in row] for row in self._places)
        along_x = between(T.hold(b - a), lambda: T.hold(d - c), self.down)
        along_y = between(T.hold(c - a), lambda: T.hold(d - b), self.across)
        return along_x, along_y
