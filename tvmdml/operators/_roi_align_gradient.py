"""The kernels of ROI_ALIGN's gradients: each element gathers what has a part in it, in the order of regions and samples."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager
from typing import Any

from tvmdml.kernels import tensorir_values as T
from tvmdml.kernels.channels import Channels
from tvmdml.kernels.loops import nested
from tvmdml.operators._roi_align import Corners, Region, RoiOperator, SampleLine, as_float, image_of, region

Some = Callable[[Sequence[Any]], AbstractContextManager[list[Any]]]
"""How a region's parts are gone through: ``with some(sizes) as at:`` gives coordinates, all of them or a share."""


def of_images(desc: RoiOperator, tensors: dict[str, Any], each: T.Each) -> None:
    """The gradient of each element of each image."""
    image, parts = desc.ends()
    result = desc.output_gradient_tensor  # type: ignore[attr-defined]
    *_, height, width = image.sizes  # type: ignore[union-attr]
    dtype, zero = desc.computed, T.const(0, "int32")
    blocks = Channels.blocks(result.sizes[1], desc.channels)
    with T.elements(each, (result.sizes[0], blocks, *result.sizes[2:]), result.layout) as (n, block, y, x):
        channels = Channels(block, result.sizes[1], desc.channels)
        places = channels.places
        totals = T.Variable.several(dtype, [T.const(0, dtype)] * desc.channels)

        def add(own: Region, r: Any, oy: Any, ox: Any, weight: Any) -> None:
            """What the elements are given by a part of a region."""
            for c, total in zip(places, totals, strict=True):
                g = T.hold(T.wide(tensors["input_gradient_tensor"][T.dot([r, c, oy, ox], parts.layout)]))
                if desc.is_max:
                    _add_largest(desc, tensors, own, (c, y, x, oy, ox), g, total)
                else:
                    total.set(total.value + T.rounded(g * weight))

        with T.loop(T.index(desc.regions)) as r:
            number, exists = image_of(desc, tensors, r)
            with T.when((exists > zero) & T.expression(number == n)):
                own = region(desc, tensors, r, height, width)
                with T.when(own.valid > zero):
                    up, left = _ends(own.y, y), _ends(own.x, x)
                    conditions = (*own.y.meets(parts.sizes[2], *up), *own.x.meets(parts.sizes[3], *left))
                    with nested([T.when(one) for one in conditions]):
                        share = T.hold(T.like(own.y.step, 1) / T.rounded(own.y.count * own.x.count))
                        rows, columns = own.y.parts_between(parts.sizes[2], *up), own.x.parts_between(parts.sizes[3], *left)
                        with T.loop(T.let(rows[1] - rows[0]), most=_known(parts.sizes[2])) as i:
                            oy = T.let(rows[0] + i)
                            down = _part(own.y, oy, y, own.y.between(oy, *up), desc)
                            with (
                                T.when(down > T.like(down, 0)),
                                T.loop(T.let(columns[1] - columns[0]), most=_known(parts.sizes[3])) as k,
                            ):
                                ox = T.let(columns[0] + k)
                                across = _part(own.x, ox, x, own.x.between(ox, *left), desc)
                                with T.when(across > T.like(across, 0)):
                                    add(own, r, oy, ox, T.hold(T.hold(down * across) * share))
        for i, total in enumerate(totals):
            with channels.existing(i) as channel:
                place = T.dot([n, channel, y, x], result.layout)
                T.store(tensors["output_gradient_tensor"], place, T.to(total.value, result.data_type.tvm))


def _known(size: Any) -> int:
    return size if isinstance(size, int) else 1


def _ends(line: SampleLine, place: Any) -> tuple[Any, Any]:
    """The coordinates between which samples have an element beside them."""
    here = T.hold(T.cast(place, T.type_of(line.step)))
    like = here
    low = T.hold(T.Select(here < T.like(like, 0.5), T.like(like, -1), here - T.like(like, 1)))
    last = as_float(like, line.size - 1)
    return low, T.hold(T.Select(here > last - T.like(like, 0.5), as_float(like, line.size), here + T.like(like, 1)))


def _weight(line: SampleLine, x: Any, place: Any, linear: bool) -> Any:
    """The weight of an element in a sample."""
    low, high, past = line.taps(x, linear)
    here = T.cast(place, "int32")
    zero, one = T.like(past, 0), T.like(past, 1)
    other = T.Select(T.expression(high == here), past, zero)
    return T.hold(T.Select(T.expression(low == here), one - past, other))


def _part(line: SampleLine, part: Any, place: Any, some: tuple[Any, Any], desc: RoiOperator) -> Any:
    """The sum of an element's weights in samples of a part, along one side."""
    total = T.Variable(T.type_of(line.step), T.like(line.step, 0))
    with T.loop(T.let(some[1] - some[0]), most=line.most) as i:
        total.set(total.value + _weight(line, line.at(part, some[0] + i), place, desc.is_linear))
    return T.hold(total.value)


def reader(desc: Any, tensors: dict[str, Any], image: Any, channel: Any) -> Callable[[Any], Any]:
    """What reads an element of a channel of an image, by its place there."""
    first, second = desc.input_tensor.layout[:2]
    base = T.let(image * first + channel * second)
    return lambda place: T.hold(T.wide(tensors["input_tensor"][base + place]))


def _corners(desc: Any, own: Region, y: Any, x: Any, linear: bool) -> Corners:
    return Corners(own.y.taps(y, linear), own.x.taps(x, linear), desc.input_tensor.layout[2:], linear)


def largest(desc: RoiOperator, own: Region, oy: Any, ox: Any, element: Callable[[Any], Any]) -> tuple[Any, Any, Any]:
    """The numbers of the first of a part's largest samples, and whether there is one: 1 or 0."""
    dtype, zero, one = desc.computed, T.const(0, "int32"), T.const(1, "int32")
    best = T.Variable(dtype, T.const(0, dtype))
    best_y, best_x, exists = (T.Variable("int32", zero) for _ in range(3))
    (y0, y1), (x0, x1) = own.y.inside(oy), own.x.inside(ox)
    with T.loop(T.let(y1 - y0), most=own.y.most) as i:
        y = own.y.at(oy, y0 + i)
        with T.loop(T.let(x1 - x0), most=own.x.most) as k:
            value = _corners(desc, own, y, own.x.at(ox, x0 + k), desc.is_linear).mixed(element)
            last = best.value
            number = T.hold(T.cast(T.is_nan(last), "int32"))
            better = (exists.value < one) | (value > last) | (T.is_nan(value) & (number < one))
            with T.when(better):
                best.set(value)
                best_y.set(y0 + i)
                best_x.set(x0 + k)
                exists.set(one)
    return T.hold(best_y.value), T.hold(best_x.value), T.hold(exists.value)


def _add_largest(desc: Any, tensors: dict[str, Any], own: Region, at: tuple[Any, ...], g: Any, total: T.Variable) -> None:
    """Add a part's gradient, if an element is beside its largest sample."""
    c, y, x, oy, ox = at
    down, across, exists = largest(desc, own, oy, ox, reader(desc, tensors, own.image, c))
    with T.when(exists > T.const(0, "int32")):
        weights = ((own.y, own.y.at(oy, down), y), (own.x, own.x.at(ox, across), x))
        first, second = (_weight(*one, desc.is_linear) for one in weights)
        weight = T.hold(first * second)
        with T.when(weight > T.like(weight, 0)):
            total.set(total.value + T.rounded(g * weight))


def of_regions(desc: Any, tensors: dict[str, Any], each: T.Each, some: Some) -> None:
    """The gradient of each number of each region: one item for each region."""
    with T.elements(each, (desc.regions,)) as (r,):
        store(desc, tensors, r, slopes(desc, tensors, r, some))


def store(desc: Any, tensors: dict[str, Any], r: Any, found: Sequence[Any]) -> None:
    """Store the gradient of a region's x1, y1, x2 and y2."""
    result = desc.output_roi_gradient_tensor
    for i, value in enumerate(found):
        place = [T.index(0)] * (result.rank - 2) + [r, T.index(i)]
        T.store(tensors["output_roi_gradient_tensor"], T.dot(place, result.layout), T.to(value, result.data_type.tvm))


def slopes(desc: Any, tensors: dict[str, Any], r: Any, some: Some) -> list[Any]:
    """The sums over samples of a region, for x1, y1, x2 and y2."""
    totals = [T.Variable(desc.computed, T.const(0, desc.computed)) for _ in range(4)]
    if desc.is_linear:  # the nearest element does not change
        *_, height, width = desc.input_tensor.sizes
        own = region(desc, tensors, r, height, width)
        with T.when(own.valid > T.const(0, "int32")):
            _add_slopes(desc, tensors, own, r, some, totals)
    return [one.value for one in totals]


def _add_slopes(desc: Any, tensors: dict[str, Any], own: Region, r: Any, some: Some, totals: Sequence[T.Variable]) -> None:
    """Add the samples of some of a region's parts."""
    parts = desc.input_gradient_tensor
    share = T.hold(T.like(own.y.step, 1) / T.rounded(own.y.count * own.x.count))
    with some((desc.input_tensor.sizes[1], *parts.sizes[2:])) as (c, oy, ox):
        g = T.hold(T.wide(tensors["input_gradient_tensor"][T.dot([r, c, oy, ox], parts.layout)]))
        element = reader(desc, tensors, own.image, c)

        def add(down: Any, across: Any, g: Any) -> None:
            corners = _corners(desc, own, own.y.at(oy, down), own.x.at(ox, across), True)
            sides = (
                (corners.across, own.x.way(ox, across), desc.spatial_scale_x),
                (corners.down, own.y.way(oy, down), desc.spatial_scale_y),
            )
            for axis, (slope, (past, way, scale)) in enumerate(zip(corners.slopes(element), sides, strict=True)):
                term = T.hold(g * slope)
                with T.when(past > T.like(past, 0)):
                    for end, own_way in enumerate((T.like(way, 1) - way, way)):
                        total = totals[axis + 2 * end]
                        total.set(total.value + T.rounded(term * T.hold(own_way * T.like(way, scale))))

        if desc.is_max:
            down, across, exists = largest(desc, own, oy, ox, element)
            with T.when(exists > T.const(0, "int32")):
                add(down, across, g)
        else:
            each_one = T.hold(g * share)
            (y0, y1), (x0, x1) = own.y.inside(oy), own.x.inside(ox)
            with T.loop(T.let(y1 - y0), most=own.y.most) as i, T.loop(T.let(x1 - x0), most=own.x.most) as k:
                add(y0 + i, x0 + k, each_one)
