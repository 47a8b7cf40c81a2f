"""AffineGrid; GridSample, DeformConv and RoiAlign: the elements around each point are gathered, and weighed."""

from __future__ import annotations

import functools
import itertools
import math
from collections.abc import Callable
from typing import Any

import numpy as np

import tvmdml
from tvmdml.graph import Expression
from tvmdml.onnx import described
from tvmdml.onnx.descriptors import NotConvertible
from tvmdml.onnx.node import Node, Results, reshaped, rule
from tvmdml.onnx.values import Value
from tvmdml.tensors.arrays import NumpyArray

_MODES = {"linear": 2, "bilinear": 2, "nearest": 1, "cubic": 4, "bicubic": 4}
"""How many elements are weighed along each dimension."""
_MOST_POINTS = 1 << 24
_FAR = 2.0**22
"""A float32 counts halves up to here."""
_MOST_SAMPLES = 1 << 20
"""Of the parts of all regions, in each direction."""


@rule("AffineGrid")
def _affine(node: Node) -> Results:
    """The places of an image's elements, from -1 to 1, moved by a matrix for each image."""
    theta, sizes, corners = node.x(), node.integers(1), node.integer("align_corners", 0)
    space = sizes[2:]
    wanted = (*sizes[:1], len(space), len(space) + 1)
    if theta.shape != wanted or min(sizes) < 1 or math.prod(space) > _MOST_POINTS:
        raise NotConvertible(f"its matrices are {list(theta.shape)}, for images of {sizes}; allowed: {list(wanted)}")
    # One element whose corners are aligned is in the middle, as in PyTorch.
    rows = [(np.arange(n) * 2 + 1 - n) / max(n - 1 if corners else n, 1) for n in space]
    points = np.stack([*np.meshgrid(*rows, indexing="ij")[::-1], np.ones(space)], axis=-1)
    points = points.reshape(1, -1, len(space) + 1).astype(_of_places(theta))
    base = node.constant(points).broadcast((sizes[0], *points.shape[1:]))
    found = tvmdml.gemm(base, theta.astype(points.dtype), trans_b="transpose")
    return reshaped(found, (sizes[0], *space, len(space))).astype(theta.dtype)


@rule("GridSample")
def _sample(node: Node) -> Results:
    x, grid = node.x(), node.x(1)
    space = x.shape[2:]
    taps = _MODES.get(node.text("mode", "linear"))
    if taps != 1 and x.dtype.kind != "f":
        if node.dtype().kind == "b":
            raise NotConvertible("it weighs elements, which are bool")
        x = x.astype(np.float64)  # the result is cut
    padding, corners = node.text("padding_mode", "zeros"), bool(node.integer("align_corners", 0))
    if taps is None or padding not in ("zeros", "border", "reflection") or grid.ndim != x.ndim or grid.shape[-1] != len(space):
        raise NotConvertible(f"it samples {list(x.shape)} at {list(grid.shape)}, with its mode and padding")
    batch, channels = x.shape[:2]
    count = math.prod(grid.shape[1:-1])
    points = reshaped(grid, (batch, count, len(space))).astype(_of_places(grid))
    points = tvmdml.where(tvmdml.is_nan(points), node.like(-1, points), points)  # as in PyTorch
    each = []
    for axis, n in enumerate(space):
        # So far away is as good as farther: there are only zeros, or the edge. No infinite place has weights.
        low, high = (-_FAR, _FAR) if padding == "reflection" else (-8.0, n + 8.0)
        at = tvmdml.clip(_place(points[..., len(space) - 1 - axis], n, corners), min=low, max=high)
        if taps < 4:  # cubic weights are those of the place itself
            at = _inside(at, n, padding, corners)
        each.append(_taps(at, taps))
    inside = (lambda at, n: _inside(at, n, padding, corners)) if taps == 4 else None
    total = _weighed(node, x, each, padding == "zeros", inside).astype(node.x().dtype)
    return reshaped(total.transpose(0, 2, 1), (batch, channels, *grid.shape[1:-1]))


def _weighed(
    node: Node, x: Expression, each: list[list[tuple[Any, Any]]], zeros: bool, inside: Callable[[Any, int], Any] | None = None
) -> Any:
    """The channels at points, as [batch, points, channels]: the sum of some elements along each dimension.

    Args:
        node: the node.
        x: the images, of [batch, channels, sizes …].
        each: for each dimension the places, of [batch, points], and the weights there.
        zeros: whether elements outside are 0; otherwise they are the nearest ones.
        inside: makes places inside of others.
    """
    batch, channels, *space = x.shape
    rows = x.transpose(0, *range(2, x.ndim), 1)
    parts = []
    for some in itertools.product(*each):
        weight = functools.reduce(lambda a, b: a * b, [weight for _, weight in some])
        places = []
        for (at, _), n in zip(some, space, strict=True):
            if zeros:
                within = tvmdml.logical_and(
                    tvmdml.greater_than_or_equal(at, node.like(0, at)), tvmdml.less_than_or_equal(at, node.like(n - 1, at))
                )
                weight = weight * within.astype(weight.dtype)
            at = at if inside is None else inside(at, n)
            places.append(tvmdml.clip(at, min=0.0, max=float(n - 1)).astype(np.int32)[..., None])
        found = tvmdml.gather_nd(rows, tvmdml.join(places, axis=2), batch_dimension_count=1)
        parts.append(reshaped(found, (batch, weight.shape[1], channels)) * weight[..., None].astype(x.dtype))
    return functools.reduce(lambda a, b: a + b, parts)


@rule("DeformConv")
def _deformed(node: Node) -> Results:
    """A convolution of samples: each tap of the window has its own place, which an input moves, and perhaps its own weight."""
    x, w, offset, mask = node.x(), node.x(1), node.x(2), node.maybe(4)
    if x.ndim != 4 or w.ndim != 4:
        raise NotConvertible(f"it has images of {x.ndim - 2} dimensions; allowed: 2")
    (batch, channels, *_), (filters, _, *window) = x.shape, w.shape
    strides, steps = (list(node.attributes.get(name, [1, 1])) for name in ("strides", "dilations"))
    pads, groups, blocks = list(node.attributes.get("pads", [0] * 4)), node.integer("group", 1), node.integer("offset_group", 1)
    out, taps = list(offset.shape[2:]), math.prod(window)
    wanted = [batch, blocks * taps * 2, *out]
    if list(offset.shape) != wanted or channels % blocks or channels % groups or filters % groups or len(pads) != 4:
        raise NotConvertible(f"its offsets are {list(offset.shape)}; allowed: {wanted}")
    moved = reshaped(offset, (batch, blocks, *window, 2, *out)).astype(_of_places(offset))
    weights = None if mask is None else reshaped(mask, (batch, blocks, taps * math.prod(out)))
    parts = []
    for block in range(blocks):
        each = []
        for axis in range(2):
            tap = np.arange(window[axis], dtype=moved.dtype) * steps[axis]
            begin = np.arange(out[axis], dtype=moved.dtype) * strides[axis] - pads[axis]
            shapes = [1, 1, 1, 1, 1], [1, 1, 1, 1, 1]
            shapes[0][1 + axis], shapes[1][3 + axis] = -1, -1
            place = tap.reshape(shapes[0]) + begin.reshape(shapes[1])
            sizes = (batch, *window, *out)
            at = moved[:, block, :, :, axis] + node.constant(np.broadcast_to(place, (1, *sizes[1:]))).broadcast(sizes)
            each.append(_taps(reshaped(at, (batch, taps * math.prod(out))), 2))
        own = channels // blocks
        found = _weighed(node, x[:, block * own : (block + 1) * own], each, zeros=True)
        found = found if weights is None else found * weights[:, block, :, None]
        parts.append(reshaped(found.transpose(0, 2, 1), (batch, own * taps, math.prod(out))))
    columns = parts[0] if len(parts) == 1 else tvmdml.join(parts, axis=1)
    columns = reshaped(columns, (batch, groups, channels // groups * taps, math.prod(out)))
    matrix = reshaped(w, (1, groups, filters // groups, channels // groups * taps))
    total = reshaped(matrix.broadcast((batch, *matrix.shape[1:])) @ columns, (batch, filters, *out))
    if (bias := node.maybe(3)) is None:
        return total
    return total + bias[None, :, None, None].broadcast(total.shape)


def _of_places(x: Expression) -> np.dtype[Any]:
    """The type in which places are computed: halves have too few digits for those of an image."""
    return np.promote_types(x.dtype, np.float32)


def _place(x: Expression, size: int, corners: bool) -> Any:
    """From -1 to 1 to places of elements."""
    return (x + 1.0) * ((size - 1) / 2) if corners else (x + 1.0) * (size / 2) - 0.5


def _inside(at: Any, size: int, padding: str, corners: bool) -> Any:
    """A place outside as one inside; zeros are added later."""
    if padding == "border":
        return tvmdml.clip(at, min=0.0, max=float(size - 1))
    if padding == "zeros":
        return at
    low, high = (0.0, float(size - 1)) if corners else (-0.5, size - 0.5)
    span = high - low
    if not span:
        return at * 0.0
    away = tvmdml.abs(at - low)
    turns = tvmdml.floor(away * (1 / span))
    rest = away - turns * span
    odd = turns - tvmdml.floor(turns * 0.5) * 2.0
    found = rest + odd * (rest * -2.0 + span) + low
    return tvmdml.clip(found, min=0.0, max=float(size - 1))


def _taps(at: Any, taps: int) -> list[tuple[Any, Any]]:
    """The elements that are weighed along a dimension, and their weights."""
    if taps == 1:
        first = tvmdml.round(at)
        return [(first, first * 0.0 + 1.0)]
    first = tvmdml.floor(at)
    part = at - first
    if taps == 2:
        return [(first, part * -1.0 + 1.0), (first + 1.0, part)]
    a = -0.75

    def near(x: Any) -> Any:
        return ((x * (a + 2)) - (a + 3)) * x * x + 1.0

    def far(x: Any) -> Any:
        return ((x * a - 5 * a) * x + 8 * a) * x - 4 * a

    other = part * -1.0 + 1.0
    weights = [far(part + 1.0), near(part), near(other), far(other + 1.0)]
    return [(first + (i - 1.0), weight) for i, weight in enumerate(weights)]


@rule("RoiAlign")
def _aligned(node: Node) -> Results:
    """Regions that are not moved by half a pixel are at least 1 x 1. An empty one without a number of samples is 0."""
    x, scale, adaptive = node.x(), node.real("spatial_scale", 1.0), not node.integer("sampling_ratio", 0)
    half = node.text("coordinate_transformation_mode", "half_pixel") == "half_pixel"
    ends = [node.x(1).astype(_of_places(node.x(1)))[:, i : i + 1] * scale for i in range(4)]
    largest = node.text("mode", "avg") == "max"
    if not half:
        ends = ends if largest else [end.astype(x.dtype) for end in ends]
        ends[2:] = [_at_least_1(start, end) for start, end in zip(ends[:2], ends[2:], strict=True)]
    if largest:
        return _largest(node, x, ends, 0.5 if half else 0.0)
    if not half:
        regions = tvmdml.join(ends, axis=1)
        return described.convert(node.replaced(inputs=[node.value(0), Value.computed(regions), node.value(2)], spatial_scale=1.0))
    (found,) = described.convert(node)
    if not adaptive:
        return found
    wide, high = (tvmdml.greater_than(end, start) for start, end in zip(ends[:2], ends[2:], strict=True))
    return tvmdml.where(tvmdml.logical_and(wide, high)[..., None, None].broadcast(found.shape), found, node.like(0, found))


def _at_least_1(start: Any, end: Any) -> Any:
    """The end of a side that is 1 long, unless it is longer; by a digit less where 1 would be a little more, and so two samples."""
    least = start + 1.0
    return tvmdml.max(end, tvmdml.where(least - start > 1.0, least - tvmdml.abs(least) * float(np.finfo(least.dtype).eps), least))


def _largest(node: Node, x: Expression, ends: list[Any], shift: float) -> Any:
    """The largest of the weighed elements around all samples, as ONNX Runtime has it; DirectML has the largest sample."""
    parts = [node.integer(f"output_{name}", 1) for name in ("height", "width")]
    ratio, regions = node.integer("sampling_ratio", 0), node.shape(1)[0]
    sides = []
    for axis, part in enumerate(parts):  # y, x
        start, end = ends[1 - axis], ends[3 - axis]
        length = end - start
        if ratio:
            counts: NumpyArray = np.full((regions, 1), ratio)
        else:
            known = np.ceil(Value.computed(length).decided(node.graph) / length.dtype.type(part))
            counts = np.where(np.isfinite(known), np.clip(known, 0, _MOST_SAMPLES), 0).astype(np.int64)
        if (most := max(int(counts.max(initial=1)), 1)) * part * regions > _MOST_SAMPLES:
            raise NotConvertible(f"a part of a region has {most} samples in a row, of which {part * regions} rows have too many")
        # Regions with fewer samples have the last one several times.
        each = np.minimum(np.arange(most), np.maximum(counts - 1, 0)) + 0.5
        numbers = np.arange(part)[None, :, None] + each[:, None, :] / np.maximum(counts, 1)[..., None]
        flat = node.constant(numbers.reshape(regions, -1).astype(length.dtype))
        at = length.broadcast(flat.shape) * (1 / part) * flat + (start - shift).broadcast(flat.shape)
        n = x.shape[2 + axis]
        within = tvmdml.logical_and(
            tvmdml.greater_than_or_equal(at, node.like(-1, at)), tvmdml.less_than_or_equal(at, node.like(n, at))
        ).astype(at.dtype) * node.constant((counts > 0).astype(at.dtype)).broadcast(flat.shape)
        sides.append((numbers.shape, n, within, tvmdml.clip(at, min=0.0, max=float(n - 1))))
    (rows, _, down_within, down), (columns, _, across_within, across) = sides
    sizes = (regions, rows[1] * rows[2], columns[1] * columns[2])
    image = node.x(2).astype(np.int64)[:, None, None].broadcast(sizes)[..., None]
    elements = x.transpose(0, 2, 3, 1)
    inside = down_within[:, :, None].broadcast(sizes) * across_within[:, None, :].broadcast(sizes)
    found: Any = None
    for (y, below), (z, beside) in itertools.product(_taps(down, 2), _taps(across, 2)):
        places = [tvmdml.clip(one, min=0.0, max=float(n - 1)).astype(np.int64) for one, n in ((y, x.shape[2]), (z, x.shape[3]))]
        index = [image, places[0][:, :, None, None].broadcast((*sizes, 1)), places[1][:, None, :, None].broadcast((*sizes, 1))]
        taken = tvmdml.gather_nd(elements, tvmdml.join(index, axis=3))
        weight = below[:, :, None].broadcast(sizes) * beside[:, None, :].broadcast(sizes) * inside
        weighed = reshaped(taken, (*sizes, x.shape[1])) * weight[..., None].astype(x.dtype)
        found = weighed if found is None else tvmdml.max(found, weighed)
    split = reshaped(found, (regions, rows[1], rows[2], columns[1], columns[2], x.shape[1]))
    return reshaped(tvmdml.reduce(split, function="max", axes=[2, 4]).transpose(0, 5, 1, 3, 2, 4), (regions, x.shape[1], *parts))
