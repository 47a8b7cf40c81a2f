"""GridSample and DeformConv: the elements around each point are gathered, and weighed."""

from __future__ import annotations

import functools
import itertools
import math
from collections.abc import Callable
from typing import Any

import numpy as np

import tvmdml
from tvmdml.graph import Expression
from tvmdml.onnx.node import Node, Results, reshaped, rule
from tvmdml.onnx_nodes import Refused

_MODES = {"linear": 2, "bilinear": 2, "nearest": 1, "cubic": 4, "bicubic": 4}
"""How many elements are weighed along each dimension."""


@rule("GridSample")
def _sample(node: Node) -> Results:
    x, grid = node.x(), node.x(1)
    space = x.shape[2:]
    taps = _MODES.get(node.text("mode", "linear"))
    padding, corners = node.text("padding_mode", "zeros"), bool(node.integer("align_corners", 0))
    if taps is None or padding not in ("zeros", "border", "reflection") or grid.ndim != x.ndim or grid.shape[-1] != len(space):
        raise Refused(f"it samples {list(x.shape)} at {list(grid.shape)}, with its mode and padding")
    batch, channels = x.shape[:2]
    count = math.prod(grid.shape[1:-1])
    points = reshaped(grid, (batch, count, len(space))).astype(np.float32)
    each = []
    for axis, n in enumerate(space):
        at = _place(points[..., len(space) - 1 - axis], n, corners)
        if taps < 4:  # cubic weights are those of the place itself
            at = _inside(at, n, padding, corners)
        each.append(_taps(at, taps))
    inside = (lambda at, n: _inside(at, n, padding, corners)) if taps == 4 else None
    total = _weighed(node, x, each, padding == "zeros", inside)
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
                weight = weight * within.astype(np.float32)
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
        raise Refused(f"it has images of {x.ndim - 2} dimensions; allowed: 2")
    (batch, channels, *_), (filters, _, *window) = x.shape, w.shape
    strides, steps = (list(node.attributes.get(name, [1, 1])) for name in ("strides", "dilations"))
    pads, groups, blocks = list(node.attributes.get("pads", [0] * 4)), node.integer("group", 1), node.integer("offset_group", 1)
    out, taps = list(offset.shape[2:]), math.prod(window)
    wanted = [batch, blocks * taps * 2, *out]
    if list(offset.shape) != wanted or channels % blocks or channels % groups or filters % groups or len(pads) != 4:
        raise Refused(f"its offsets are {list(offset.shape)}; allowed: {wanted}")
    moved = reshaped(offset, (batch, blocks, *window, 2, *out)).astype(np.float32)
    weights = None if mask is None else reshaped(mask, (batch, blocks, taps * math.prod(out)))
    parts = []
    for block in range(blocks):
        each = []
        for axis in range(2):
            tap = np.arange(window[axis], dtype=np.float32) * steps[axis]
            begin = np.arange(out[axis], dtype=np.float32) * strides[axis] - pads[axis]
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
