"""Resize and Upsample of ONNX: sizes, and the pixel offsets that say the same as their modes."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from fractions import Fraction
from typing import Any, NamedTuple

import numpy as np

from tvmdml.enums import AxisDirection, InterpolationMode
from tvmdml.operators._onnx import NotConvertible, OnnxNode
from tvmdml.tensors import ArrayTensorDesc
from tvmdml.tensors.sizes import is_open

_FARTHEST = float(np.finfo(np.float32).max)
"""A scale that sends every place to the first element."""


class OnnxAxis(NamedTuple):
    """What is known about a dimension."""

    inputs: int
    outputs: int
    scale: float
    start: float
    end: float

    @property
    def is_ratio(self) -> bool:
        """Whether the scale is that of the sizes, as exactly as a float says it: the exact ratio is meant."""
        return float(np.float32(self.outputs / self.inputs)) == self.scale

    @property
    def exact(self) -> float:
        """The scale."""
        return self.outputs / self.inputs if self.is_ratio else self.scale

    @property
    def corners(self) -> float:
        """The scale that sends the last element to the last place."""
        return (self.outputs - 1) / (self.inputs - 1) if min(self.inputs, self.outputs) > 1 else _FARTHEST

    @property
    def shift(self) -> float:
        """By how much the middle of the result is not that of the input."""
        return self.inputs / 2 * (1 - self.outputs / (self.exact * self.inputs))

    def cropped(self) -> tuple[float, float, float]:
        """The places of a part of the input."""
        if self.outputs == 1:
            return -(self.start + self.end) / 2 * (self.inputs - 1), 0.0, _FARTHEST
        part = (self.end - self.start) * (self.inputs - 1)
        if not part > 0:
            raise NotConvertible("a part of the input that it takes is empty, or turned")
        return -self.start * (self.inputs - 1), 0.0, (self.outputs - 1) / part


_MODES: Mapping[str, Callable[[OnnxAxis], tuple[float, float, float]]] = {
    "half_pixel": lambda axis: (0.5, -0.5, axis.scale),
    "half_pixel_symmetric": lambda axis: (0.5 - axis.shift, -0.5, axis.scale),
    "pytorch_half_pixel": lambda axis: (0.5, -0.5, axis.scale) if axis.outputs > 1 else (0.0, 0.0, _FARTHEST),
    "align_corners": lambda axis: (0.0, 0.0, axis.corners),
    "asymmetric": lambda axis: (0.0, 0.0, axis.scale),
    "tf_half_pixel_for_nn": lambda axis: (0.0, -0.5, axis.scale),
    "tf_crop_and_resize": OnnxAxis.cropped,
}
"""For each mode of coordinates the offset before scaling, the offset after it, and the scale."""
_NEAREST: Mapping[str, tuple[AxisDirection, float]] = {
    "round_prefer_floor": (AxisDirection.INCREASING, 0.5),
    "round_prefer_ceil": (AxisDirection.DECREASING, -0.5),
    "floor": (AxisDirection.DECREASING, 0.0),
    "ceil": (AxisDirection.INCREASING, 0.0),
}
"""For each mode of rounding the direction, and what is added to the offset before scaling."""
SIMPLE = "simple"
"""Rounding before version 11: dimensions that are enlarged take the element before a place, and others the one after it."""
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
    x, rows = node.tensor(), axes_of(node)
    if 0 in (axis.outputs for axis in rows):
        raise NotConvertible("its result has no elements")
    mode = text(node, "mode", "nearest")
    if mode not in ("nearest", "linear", "bilinear"):
        raise NotConvertible(f"its mode is {mode}")
    old = node.kind == "Upsample"
    way = text(node, "coordinate_transformation_mode", "asymmetric" if old else "half_pixel")
    rounding = text(node, "nearest_mode", SIMPLE if old else "round_prefer_floor")
    if rounding == SIMPLE:
        moved = {"ceil" if row.scale < 1 else "floor" for row in rows if row.scale != 1} or {"floor"}
        rounding = moved.pop() if len(moved) == 1 else rounding
    if way not in _MODES or rounding not in _NEAREST:
        raise NotConvertible(f"its modes are {way} and {rounding}")
    if node.integer("exclude_outside", 0):
        raise NotConvertible("it leaves out elements beyond the edge")
    if any(row.start < 0 or row.end > 1 for row in rows):
        raise NotConvertible("it extrapolates beyond the input")
    nearest = mode == "nearest"
    if way == "align_corners" and not nearest and not all(row.is_ratio for row in rows):
        raise NotConvertible(
            "it aligns corners of a result whose exact length is not a whole number, which ONNX's own tests do otherwise"
        )
    rounding = rounding if nearest else ""
    direction, more = _NEAREST.get(rounding, (AxisDirection.INCREASING, 0.0))
    before, after, factors = zip(*(_MODES[way](row) for row in rows), strict=True)
    antialiased = bool(node.integer("antialias", 0)) and not nearest
    if antialiased and any(row.inputs > 1 and row.scale != factor for row, factor in zip(rows, factors, strict=True)):
        raise NotConvertible("its antialiasing has the scale of the sizes, and its places have another one")
    attributes = {
        "interpolation_mode": _INTERPOLATIONS["nearest" if nearest else "linear"],
        "rounding_direction": direction,
        "scales": factors,
        "input_pixel_offsets": tuple(one + _more(rounding, more, factor) for one, factor in zip(before, factors, strict=True)),
        "output_pixel_offsets": after,
        "antialiased": antialiased,
    }
    return Resized(x, tuple(row.outputs for row in rows), attributes)


def _more(rounding: str, more: float, factor: float) -> float:
    """What is added to an offset: places that such a large scale sends a little behind an element are not those of the next one."""
    return 2.0**-10 if rounding == "ceil" and factor == _FARTHEST else more


def _scaled(size: int, scale: Any, more: float) -> int:
    """A size that follows from a scale, as a product of float32 has it."""
    number, divisor = float(scale).as_integer_ratio()
    if is_open(size) and not more and number * size < 1 << 24:  # the product is exact
        return number * size // divisor
    ratio = Fraction(float(scale)).limit_denominator(1 << 12)
    if is_open(size) and not more and np.float32(ratio.numerator / ratio.denominator) == scale and ratio:
        rest, off = size % ratio.denominator, Fraction(float(scale)) / ratio - 1
        # A quotient without a rest: the product is rounded to it, or lies above it by less than 1.
        scaled = ratio.numerator * (size // ratio.denominator)
        if not is_open(rest) and rest == 0 and off > -(2.0**-25) and max(size, scaled) < 1 << 23:
            return scaled
    return math.floor(float(np.float32(size) * scale) + more)


def text(node: Any, name: str, usual: str) -> str:
    """A string attribute."""
    value = node.attributes.get(name, usual)
    return value.decode() if isinstance(value, bytes) else str(value)


def axes_of(node: OnnxNode) -> list[OnnxAxis]:
    """What is known about each dimension.

    Sizes that follow from scales are those of ONNX Runtime and PyTorch, whose products are float32.

    Raises:
        Refused: a size is not positive, or an input has not a number for each dimension.
    """
    x = node.tensor(boolean=True)
    axes = [int(axis) % x.rank for axis in node.attributes.get("axes") or range(x.rank)]
    found = [OnnxAxis(n, n, 1.0, 0.0, 1.0) for n in x.sizes]
    place = 1 if node.kind == "Upsample" and not node.has(2) else 2
    scales: Any = np.asarray(node.constants("scales", place) if node.has(place) else [], np.float32)
    sizes = node.constants("sizes", 3) if node.has(3) and not scales.size else []
    if any(map(is_open, sizes)):
        ratios = [size / x.sizes[axis] for size, axis in zip(sizes, axes, strict=False)]
        scales = np.asarray(ratios, np.float32)  # one is a number if it is the same in all cases
    if max(len(scales), len(sizes)) != len(axes):
        raise NotConvertible(f"it has {len(scales)} scales and {len(sizes)} sizes, for {len(axes)} dimensions")
    policy = text(node, "keep_aspect_ratio_policy", "stretch")
    if sizes:
        if not any(map(is_open, sizes)):
            scales = np.asarray(sizes, np.float32) / np.asarray([x.sizes[axis] for axis in axes], np.float32)
        if policy != "stretch":
            scales = np.broadcast_to(scales.min() if policy == "not_larger" else scales.max(), scales.shape)
    if not np.isfinite(scales).all() or not (scales > 0).all():
        raise NotConvertible(f"its scales are {scales.tolist()}")
    for i, axis in enumerate(axes):
        if sizes and policy == "stretch":
            wanted = sizes[i] if is_open(sizes[i]) else int(sizes[i])
        else:
            wanted = _scaled(x.sizes[axis], scales[i], 0.5 if sizes else 0.0)
        found[axis] = found[axis]._replace(outputs=wanted, scale=float(scales[i]))
    if text(node, "coordinate_transformation_mode", "") == "tf_crop_and_resize" and node.has(1):
        region = node.constants("roi", 1)
        if len(region) != 2 * len(axes):
            raise NotConvertible(f"its region has {len(region)} numbers, for {len(axes)} dimensions")
        for i, axis in enumerate(axes):
            found[axis] = found[axis]._replace(start=float(region[i]), end=float(region[len(axes) + i]))
    return found
