"""Resize and Upsample of ONNX: sizes, and the pixel offsets that say the same as their modes."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

import numpy as np

from tvmdml.enums import AxisDirection, InterpolationMode
from tvmdml.operators._onnx import OnnxNode, Refused
from tvmdml.tensors import ArrayTensorDesc

_FARTHEST = float(np.finfo(np.float32).max)
"""A scale that sends every place to the first element."""


class Axis(NamedTuple):
    """What is known about a dimension."""

    inputs: int
    outputs: int
    scale: float
    start: float
    end: float

    @property
    def corners(self) -> float:
        """The scale that sends the last element to the last place."""
        return (self.outputs - 1) / (self.inputs - 1) if min(self.inputs, self.outputs) > 1 else _FARTHEST

    @property
    def shift(self) -> float:
        """By how much the middle of the result is not that of the input."""
        return self.inputs / 2 * (1 - self.outputs / (self.scale * self.inputs))

    def cropped(self) -> tuple[float, float, float]:
        """The places of a part of the input."""
        part = (self.end - self.start) * (self.inputs - 1)
        if self.outputs > 1 and not part > 0:
            raise Refused("a part of the input that it takes is empty, or turned")
        return -self.start * (self.inputs - 1), 0.0, (self.outputs - 1) / part if self.outputs > 1 else _FARTHEST


_MODES: Mapping[str, Callable[[Axis], tuple[float, float, float]]] = {
    "half_pixel": lambda axis: (0.5, -0.5, axis.scale),
    "half_pixel_symmetric": lambda axis: (0.5 - axis.shift, -0.5, axis.scale),
    "pytorch_half_pixel": lambda axis: (0.5, -0.5, axis.scale) if axis.outputs > 1 else (0.0, 0.0, _FARTHEST),
    "align_corners": lambda axis: (0.0, 0.0, axis.corners),
    "asymmetric": lambda axis: (0.0, 0.0, axis.scale),
    "tf_half_pixel_for_nn": lambda axis: (0.0, -0.5, axis.scale),
    "tf_crop_and_resize": Axis.cropped,
}
"""For each mode of coordinates the offset before scaling, the offset after it, and the scale."""
_NEAREST: Mapping[str, tuple[AxisDirection, float]] = {
    "round_prefer_floor": (AxisDirection.INCREASING, 0.5),
    "round_prefer_ceil": (AxisDirection.DECREASING, -0.5),
    "floor": (AxisDirection.DECREASING, 0.0),
    "ceil": (AxisDirection.INCREASING, 0.0),
}
"""For each mode of rounding the direction, and what is added to the offset before scaling."""
_INTERPOLATIONS = {"nearest": InterpolationMode.NEAREST_NEIGHBOR, "linear": InterpolationMode.LINEAR}


class Resized(NamedTuple):
    """What a node is in DirectML's words."""

    tensor: ArrayTensorDesc
    sizes: tuple[int, ...]
    attributes: dict[str, Any]


def resize(node: OnnxNode) -> Resized:
    """The input, the sizes of the result, and attributes.

    Raises:
        Refused: the node cannot be converted.
    """
    x = node.tensor()
    old = node.kind == "Upsample" or (node.has(1) and not node.has(2) and not node.has(3))  # of version 10 and before
    mode = _text(node, "mode", "nearest")
    if mode not in ("nearest", "linear", "bilinear"):
        raise Refused(f"its mode is {mode}")
    way = "asymmetric" if old else _text(node, "coordinate_transformation_mode", "half_pixel")
    rounding = "floor" if old else _text(node, "nearest_mode", "round_prefer_floor")
    if way not in _MODES or rounding not in _NEAREST:
        raise Refused(f"its modes are {way} and {rounding}")
    if node.integer("exclude_outside", 0):
        raise Refused("it leaves out elements beyond the edge")
    axes = [axis % x.rank for axis in node.attributes.get("axes") or range(x.rank)]
    scales, sizes = _scaled(node, x, axes, old)
    starts, ends = _region(node, axes, x) if way == "tf_crop_and_resize" else ([0.0] * x.rank, [1.0] * x.rank)
    rows = [Axis(*one) for one in zip(x.sizes, sizes, scales, starts, ends, strict=True)]
    nearest = mode == "nearest"
    rounding = rounding if nearest else ""
    direction, more = _NEAREST.get(rounding, (AxisDirection.INCREASING, 0.0))
    before, after, factors = zip(*(_MODES[way](row) for row in rows), strict=True)
    if way == "align_corners" and nearest is False and any(s * n != int(s * n) for s, n in zip(scales, x.sizes, strict=True)):
        raise Refused("it aligns corners of a result whose exact length is not a whole number")
    attributes = {
        "interpolation_mode": _INTERPOLATIONS["nearest" if nearest else "linear"],
        "rounding_direction": direction,
        "scales": factors,
        "input_pixel_offsets": tuple(one + _more(rounding, more, factor) for one, factor in zip(before, factors, strict=True)),
        "output_pixel_offsets": after,
        "antialiased": bool(node.integer("antialias", 0)) and not nearest,
    }
    return Resized(x, tuple(sizes), attributes)


def _more(rounding: str, more: float, factor: float) -> float:
    """What is added to an offset: places that such a large scale sends a little behind an element are not those of the next one."""
    return 2.0**-10 if rounding == "ceil" and factor == _FARTHEST else more


def _text(node: OnnxNode, name: str, usual: str) -> str:
    value = node.attributes.get(name, usual)
    return value.decode() if isinstance(value, bytes) else str(value)


def _scaled(node: OnnxNode, x: ArrayTensorDesc, axes: list[int], old: bool) -> tuple[list[float], list[int]]:
    """A scale and a size for each dimension."""
    scales, sizes = [1.0] * x.rank, list(x.sizes)
    if not old and node.has(3):
        wanted = [int(n) for n in node.constants("sizes", 3)]
        policy = _text(node, "keep_aspect_ratio_policy", "stretch")
        ratios = [n / x.sizes[axis] for axis, n in zip(axes, wanted, strict=True)]
        if policy != "stretch":
            kept = min(ratios) if policy == "not_larger" else max(ratios)
            ratios = [kept] * len(axes)
            wanted = [math.floor(kept * x.sizes[axis] + 0.5) for axis in axes]
        for axis, n, ratio in zip(axes, wanted, ratios, strict=True):
            sizes[axis], scales[axis] = n, ratio
    else:
        given = node.attributes.get("scales") or node.constants("scales", 1 if old else 2)
        for axis, scale in zip(axes, given, strict=True):
            scales[axis], sizes[axis] = float(np.float32(scale)), math.floor(float(np.float32(scale)) * x.sizes[axis])
    if min(sizes) < 1:
        raise Refused("its result has no elements")
    return scales, sizes


def _region(node: OnnxNode, axes: list[int], x: ArrayTensorDesc) -> tuple[list[float], list[float]]:
    given = [float(one) for one in node.constants("roi", 1)]
    starts, ends = [0.0] * x.rank, [1.0] * x.rank
    for i, axis in enumerate(axes):
        starts[axis], ends[axis] = given[i], given[i + len(axes)]
    for n, start, end in zip(x.sizes, starts, ends, strict=True):
        if start < 0 or end > 1 or n == 0:
            raise Refused("it extrapolates beyond the input")
    return starts, ends
