"""The kernels of ROI_ALIGN's gradients: each element gathers what has a part in it, in the order of regions and samples."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from tvmdml.kernels import tensorir_values as T
from tvmdml.operators._roi_align import Line, Region, RoiOperator, as_float, between, region, sampled


def of_images(desc: RoiOperator, tensors: dict[str, Any], each: T.Each) -> None:
    """The gradient of each element of each image."""
    image, parts = desc.ends()
    result = desc.output_gradient_tensor  # type: ignore[attr-defined]
    *_, height, width = image.sizes  # type: ignore[union-attr]
    dtype, zero = desc.computed, T.const(0, "int32")
    with T.elements(each, result.sizes) as at:
        n, c, y, x = at
        total = T.Variable(dtype, T.const(0, dtype))
        with T.loop(T.index(desc.regions)) as r:
            own = region(desc, tensors, r, height, width)
            with T.when((own.valid > zero) & T.expression(own.image == n)):
                share = T.hold(T.like(total.value, 1) / T.rounded(own.y.count * own.x.count))
                with T.loop(T.index(parts.sizes[2])) as oy:
                    rows = _around(own.y, oy, y)
                    down = _part(own.y, oy, y, rows, desc)
                    with T.when(down > T.like(down, 0)), T.loop(T.index(parts.sizes[3])) as ox:
                        columns = _around(own.x, ox, x)
                        across = _part(own.x, ox, x, columns, desc)
                        with T.when(across > T.like(across, 0)):
                            place = T.dot([r, c, oy, ox], parts.layout)
                            g = T.hold(T.wide(tensors["input_gradient_tensor"][place]))
                            if desc.is_max:
                                _add_largest(desc, tensors, own, (c, y, x, oy, ox), g, total)
                            else:
                                weight = T.hold(T.hold(down * across) * share)
                                total.set(total.value + T.rounded(g * weight))
        T.store(tensors["output_gradient_tensor"], T.dot(at, result.layout), T.to(total.value, result.data_type.tvm))


def _around(line: Line, part: Any, place: Any) -> tuple[Any, Any]:
    """The samples of a part that may have an element beside them."""
    here = T.hold(T.cast(place, T.type_of(line.step)))
    like = here
    low = T.hold(T.Select(here < T.like(like, 0.5), T.like(like, -1), here - T.like(like, 1)))
    last = as_float(like, line.size - 1)
    high = T.hold(T.Select(here > last - T.like(like, 0.5), as_float(like, line.size), here + T.like(like, 1)))
    return line.between(part, low, high)


def _weight(line: Line, x: Any, place: Any, linear: bool) -> Any:
    """The weight of an element in a sample."""
    low, high, past = line.taps(x, linear)
    here = T.cast(place, "int32")
    zero, one = T.like(past, 0), T.like(past, 1)
    other = T.Select(T.expression(high == here), past, zero)
    return T.hold(T.Select(T.expression(low == here), one - past, other))


def _part(line: Line, part: Any, place: Any, some: tuple[Any, Any], desc: RoiOperator) -> Any:
    """The sum of an element's weights in samples of a part, along one side."""
    total = T.Variable(T.type_of(line.step), T.like(line.step, 0))
    with T.loop(T.let(some[1] - some[0]), most=line.most) as i:
        total.set(total.value + _weight(line, line.at(part, some[0] + i), place, desc.is_linear))
    return T.hold(total.value)


def _reader(tensors: dict[str, Any], image: Any, number: Any, channel: Any) -> Callable[[Any, Any], Any]:
    def element(y: Any, x: Any) -> Any:
        kind = T.type_of(channel)
        place = T.dot([number, channel, T.cast(y, kind), T.cast(x, kind)], image.layout)
        return T.hold(T.wide(tensors["input_tensor"][place]))

    return element


def _largest(desc: RoiOperator, own: Region, oy: Any, ox: Any, element: Callable[[Any, Any], Any]) -> tuple[Any, Any, Any]:
    """The numbers of the first of a part's largest samples, and whether there is one: 1 or 0."""
    dtype, zero, one = desc.computed, T.const(0, "int32"), T.const(1, "int32")
    best = T.Variable(dtype, T.const(0, dtype))
    best_y, best_x, exists = (T.Variable("int32", zero) for _ in range(3))
    (y0, y1), (x0, x1) = own.y.inside(oy), own.x.inside(ox)
    with T.loop(T.let(y1 - y0), most=own.y.most) as i:
        y = own.y.at(oy, y0 + i)
        with T.loop(T.let(x1 - x0), most=own.x.most) as k:
            x = own.x.at(ox, x0 + k)
            value = sampled((own.y, own.x), y, x, desc.is_linear, element)
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
    element = _reader(tensors, desc.input_tensor, own.image, c)
    down, across, exists = _largest(desc, own, oy, ox, element)
    with T.when(exists > T.const(0, "int32")):
        weights = ((own.y, own.y.at(oy, down), y), (own.x, own.x.at(ox, across), x))
        first, second = (_weight(*one, desc.is_linear) for one in weights)
        weight = T.hold(first * second)
        with T.when(weight > T.like(weight, 0)):
            total.set(total.value + T.rounded(g * weight))


def of_regions(desc: Any, tensors: dict[str, Any], each: T.Each) -> None:
    """The gradient of each number of each region: x1 and x2, then y1 and y2."""
    result = desc.output_roi_gradient_tensor
    *_, height, width = desc.input_tensor.sizes
    dtype, zero = desc.computed, T.const(0, "int32")
    for axis in (0, 1):
        with T.elements(each, (desc.regions, 2)) as (r, end):
            total = T.Variable(dtype, T.const(0, dtype))
            if desc.is_linear:  # the nearest element does not change
                own = region(desc, tensors, r, height, width)
                with T.when(own.valid > zero):
                    _slopes(desc, tensors, own, r, end, axis, total)
            place = [T.index(0)] * (result.rank - 2) + [r, end * T.index(2) + T.index(axis)]
            found = T.to(total.value, result.data_type.tvm)
            T.store(tensors["output_roi_gradient_tensor"], T.dot(place, result.layout), found)


def _slopes(desc: Any, tensors: dict[str, Any], own: Region, r: Any, end: Any, axis: int, total: T.Variable) -> None:
    """The sum over all samples of a region, along one of its sides."""
    parts, image = desc.input_gradient_tensor, desc.input_tensor
    share = T.hold(T.like(total.value, 1) / T.rounded(own.y.count * own.x.count))
    scale = T.like(total.value, desc.spatial_scale_y if axis else desc.spatial_scale_x)
    with (
        T.loop(T.index(image.sizes[1])) as c,
        T.loop(T.index(parts.sizes[2])) as oy,
        T.loop(T.index(parts.sizes[3])) as ox,
    ):
        g = T.hold(T.wide(tensors["input_gradient_tensor"][T.dot([r, c, oy, ox], parts.layout)]))
        element = _reader(tensors, image, own.image, c)

        def add(down: Any, across: Any, g: Any = g, oy: Any = oy, ox: Any = ox, element: Any = element) -> None:
            y, x = own.y.at(oy, down), own.x.at(ox, across)
            past, slope = _slope((own.y, own.x), (y, x), axis, element)
            way = (own.y if axis else own.x).way(*((oy, down) if axis else (ox, across)))
            factor = T.hold(T.Select(T.expression(end == T.like(end, 0)), T.like(way, 1) - way, way) * scale)
            with T.when(past > T.like(past, 0)):
                total.set(total.value + T.rounded(T.hold(g * slope) * factor))

        if desc.is_max:
            down, across, exists = _largest(desc, own, oy, ox, element)
            with T.when(exists > T.const(0, "int32")):
                add(down, across)
        else:
            each_one = T.hold(g * share)
            (y0, y1), (x0, x1) = own.y.inside(oy), own.x.inside(ox)
            with T.loop(T.let(y1 - y0), most=own.y.most) as i, T.loop(T.let(x1 - x0), most=own.x.most) as k:
                add(y0 + i, x0 + k, each_one)


def _slope(lines: tuple[Line, Line], at: tuple[Any, Any], axis: int, element: Callable[[Any, Any], Any]) -> tuple[Any, Any]:
    """By how much a sample grows along a side, and how far it is between two elements there."""
    (below, above, down), (left, right, across) = (line.taps(x, True) for line, x in zip(lines, at, strict=True))
    if axis:

        def differ(x: Any) -> Any:
            return T.hold(element(above, x) - element(below, x))

        return down, between(differ(left), lambda: differ(right), across)

    def differs(y: Any) -> Any:
        return T.hold(element(y, right) - element(y, left))

    return across, between(differs(below), lambda: differs(above), down)
