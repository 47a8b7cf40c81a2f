"""GridSample: the elements around each point are gathered, and weighed."""

from __future__ import annotations

import functools
import itertools
import math
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
    rows = x.transpose(0, *range(2, x.ndim), 1)
    each = []
    for axis, n in enumerate(space):
        at = _place(points[..., len(space) - 1 - axis], n, corners)
        if taps < 4:  # cubic weights are those of the place itself
            at = _inside(at, n, padding, corners)
        each.append(_taps(at, taps))
    parts = []
    for some in itertools.product(*each):
        weight = functools.reduce(lambda a, b: a * b, [weight for _, weight in some])
        places = []
        for (at, _), n in zip(some, space, strict=True):
            if padding == "zeros":
                within = tvmdml.logical_and(
                    tvmdml.greater_than_or_equal(at, node.like(0, at)), tvmdml.less_than_or_equal(at, node.like(n - 1, at))
                )
                weight = weight * within.astype(np.float32)
            at = _inside(at, n, padding, corners) if taps == 4 else at
            places.append(tvmdml.clip(at, min=0.0, max=float(n - 1)).astype(np.int32)[..., None])
        found = tvmdml.gather_nd(rows, tvmdml.join(places, axis=2), batch_dimension_count=1)
        parts.append(reshaped(found, (batch, count, channels)) * weight[..., None].astype(x.dtype))
    total: Any = functools.reduce(lambda a, b: a + b, parts)
    return reshaped(total.transpose(0, 2, 1), (batch, channels, *grid.shape[1:-1]))


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
