"""Resize in the forms that DirectML has no operator for: a product with a matrix of weights for each dimension."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

import numpy as np

import tvmdml
from tvmdml.arrays import NumpyArray
from tvmdml.errors import TvmdmlError
from tvmdml.graph import Expression
from tvmdml.onnx import described
from tvmdml.onnx.node import Node, Results, axis_of, reshaped, rule
from tvmdml.onnx_nodes import Refused

_MOST_WEIGHTS = 1 << 24


class _Axis(NamedTuple):
    """One dimension that is resized."""

    size: int
    result: int
    scale: float
    region: tuple[float, float]
    """The part of the input, from 0 to 1, of tf_crop_and_resize."""

    @property
    def exact(self) -> float:
        """The result's size before it is rounded."""
        return self.scale * self.size


_PLACES: Mapping[str, Callable[[_Axis, NumpyArray], NumpyArray]] = {
    "half_pixel": lambda axis, i: (i + 0.5) / axis.scale - 0.5,
    "half_pixel_symmetric": lambda axis, i: axis.size / 2 * (1 - axis.result / axis.exact) + (i + 0.5) / axis.scale - 0.5,
    "pytorch_half_pixel": lambda axis, i: (i + 0.5) / axis.scale - 0.5 if axis.result != 1 else 0 * i,
    "align_corners": lambda axis, i: i * ((axis.size - 1) / (axis.exact - 1)) if axis.exact != 1 else 0 * i,
    "asymmetric": lambda axis, i: i / axis.scale,
    "tf_crop_and_resize": lambda axis, i: _cropped(axis, i),
}
"""Where an element of the result lies in the input, by ``coordinate_transformation_mode``."""


def _cropped(axis: _Axis, i: NumpyArray) -> NumpyArray:
    low, high = axis.region
    if axis.exact == 1:
        return 0 * i + (low + high) * (axis.size - 1) / 2
    return low * (axis.size - 1) + i * ((high - low) * (axis.size - 1) / (axis.exact - 1))


def _linear(x: NumpyArray, a: float) -> NumpyArray:
    found: NumpyArray = np.maximum(1 - np.abs(x), 0)
    return found


def _cubic(x: NumpyArray, a: float) -> NumpyArray:
    x = np.abs(x)
    near = ((a + 2) * x - (a + 3)) * x * x + 1
    far = ((a * x - 5 * a) * x + 8 * a) * x - 4 * a
    return np.where(x <= 1, near, np.where(x < 2, far, 0))


_KERNELS: Mapping[str, tuple[Callable[[NumpyArray, float], NumpyArray], int]] = {"linear": (_linear, 1), "cubic": (_cubic, 2)}
"""The weight of an element by its distance, and the distance from which on it is 0."""


@rule("Resize")
def _resize(node: Node) -> Results:
    if 0 in node.shape():
        return _of_none(node)
    if node.text("mode", "nearest") not in _KERNELS or node.opset < 11:
        return described.convert(node)
    try:
        return described.convert(node)
    except (Refused, TvmdmlError):
        return _by_weights(node)


def _of_none(node: Node) -> NumpyArray:
    """Nothing, of the sizes that the node states: ONNX derives none, as a size of 0 has no scale."""
    sizes = list(node.shape())
    for i, n in zip(node.attributes.get("axes", range(len(sizes))), node.integers(3), strict=True):
        sizes[i] = n
    if 0 not in sizes or any(n and not before for n, before in zip(sizes, node.shape(), strict=True)):
        raise Refused(f"it resizes {list(node.shape())}, which has no elements, to {sizes}")
    return np.empty(sizes, node.dtype())


def _by_weights(node: Node) -> Results:
    x, kind = node.x(), node.dtype()
    mode = node.text("coordinate_transformation_mode", "half_pixel")
    if mode not in _PLACES:
        raise Refused(f"its coordinate_transformation_mode is {mode}")
    found: Any = x if kind.kind == "f" else x.astype(np.float32)
    axes = _resized(node)
    outside = np.zeros([axes[i].result if i in axes else n for i, n in enumerate(x.shape)], np.bool_)
    for i, axis in axes.items():
        weights, beyond = _weights(node, axis, mode)
        found = _along(node, found, i, weights)
        outside |= beyond.reshape([-1 if n == i else 1 for n in range(x.ndim)])
    if outside.any():
        value = node.like(node.real("extrapolation_value", 0.0), found)
        found = tvmdml.where(node.constant(outside).view(np.uint8), value.broadcast(found.shape), found)
    return found.astype(kind) if found.dtype != kind else found


def _resized(node: Node) -> dict[int, _Axis]:
    """The dimensions that change."""
    sizes = node.shape()
    axes = [axis_of(n, len(sizes)) for n in node.attributes.get("axes", range(len(sizes)))]
    if node.has(2) and node.shape(2) != (0,):
        scales = np.asarray(node.known(2), np.float64).tolist()
        wanted = [math.floor(sizes[i] * scale) for i, scale in zip(axes, scales, strict=True)]
    else:
        wanted = node.integers(3)
        scales = [n / sizes[i] for i, n in zip(axes, wanted, strict=True)]
        policy = node.text("keep_aspect_ratio_policy", "stretch")
        if policy != "stretch":
            scales = [(min if policy == "not_larger" else max)(scales)] * len(axes)
            wanted = [math.floor(scales[0] * sizes[i] + 0.5) for i in axes]
    regions = [(0.0, 1.0)] * len(axes)
    cropped = node.text("coordinate_transformation_mode", "") == "tf_crop_and_resize"
    if node.has(1) and cropped:
        region = np.asarray(node.known(1), np.float64).tolist()
        regions = list(zip(region[: len(axes)], region[len(axes) :], strict=True))
    found = {i: _Axis(sizes[i], n, scale, part) for i, n, scale, part in zip(axes, wanted, scales, regions, strict=True)}
    if any(one.result < 1 or one.scale <= 0 or one.size * one.result > _MOST_WEIGHTS for one in found.values()):
        raise Refused(f"it resizes {list(sizes)} by the scales {scales} to {wanted}")
    return {i: one for i, one in found.items() if cropped or one.scale != 1 or one.size != one.result}


def _weights(node: Node, axis: _Axis, mode: str) -> tuple[NumpyArray, NumpyArray]:
    """The weights of the input's elements for each of the result's, and the latter that lie outside of the input."""
    kernel, reach = _KERNELS[node.text("mode", "")]
    places = _PLACES[mode](axis, np.arange(axis.result, dtype=np.float64))
    narrow = min(axis.scale, 1.0) if node.integer("antialias", 0) else 1.0
    taps = math.ceil(reach / narrow)
    near = np.floor(places)[:, None].astype(np.int64) + np.arange(-taps, taps + 1)
    weights = kernel((near - places[:, None]) * narrow, node.real("cubic_coeff_a", -0.75))
    if node.integer("exclude_outside", 0):
        weights = np.where((near >= 0) & (near < axis.size), weights, 0)
    weights /= weights.sum(1, keepdims=True)
    found = np.zeros((axis.result, axis.size), np.float64)
    np.add.at(found, (np.arange(axis.result)[:, None], np.clip(near, 0, axis.size - 1)), weights)
    beyond = (places < 0) | (places > axis.size - 1) if mode == "tf_crop_and_resize" else np.zeros(axis.result, np.bool_)
    return found, beyond


def _along(node: Node, x: Expression, axis: int, matrix: NumpyArray) -> Any:
    """A product along one dimension."""
    before, after = math.prod(x.shape[:axis]), math.prod(x.shape[axis + 1 :])
    shape = (*x.shape[:axis], matrix.shape[0], *x.shape[axis + 1 :])
    weights = node.constant(matrix.astype(x.dtype))
    if after == 1:
        flat = reshaped(x, (before, x.shape[axis]))
        return reshaped(tvmdml.gemm(flat, weights, trans_b="transpose"), shape)
    flat = reshaped(x, (before, x.shape[axis], after))
    return reshaped(tvmdml.gemm(weights.reshape(1, *matrix.shape).broadcast(before, *matrix.shape), flat), shape)
