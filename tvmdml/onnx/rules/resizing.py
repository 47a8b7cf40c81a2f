"""Resize: the places of nearest elements, and where DirectML has no operator a product with weights for each dimension."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from typing import Any

import numpy as np

import tvmdml
from tvmdml.errors import TvmdmlError
from tvmdml.graph import Expression
from tvmdml.onnx import described
from tvmdml.onnx.descriptors import NotConvertible
from tvmdml.onnx.node import Node, Results, reshaped, rule
from tvmdml.onnx.rules.resizing_open import by_open_weights
from tvmdml.onnx.values import Value
from tvmdml.operators._resampling_onnx import SIMPLE, OnnxAxis, axes_of
from tvmdml.operators._resampling_reference import weighed
from tvmdml.tensors.arrays import NumpyArray
from tvmdml.tensors.sizes import hint, is_open
from tvmdml.tensors.sizes.evaluating import own

_MOST_WEIGHTS = 1 << 24
_MOST_PLACES = 1 << 22
"""So many places are compared with those of DirectML's operator, which has to be right for more of them."""

_PLACES: Mapping[str, Callable[[OnnxAxis, NumpyArray], NumpyArray]] = {
    "half_pixel": lambda axis, i: (i + 0.5) / axis.exact - 0.5,
    "half_pixel_symmetric": lambda axis, i: axis.shift + (i + 0.5) / axis.exact - 0.5,
    "pytorch_half_pixel": lambda axis, i: (i + 0.5) / axis.exact - 0.5 if axis.outputs > 1 else 0 * i,
    "align_corners": lambda axis, i: i * (axis.inputs - 1) / max(axis.outputs - 1, 1),
    "asymmetric": lambda axis, i: i / axis.exact,
    "tf_half_pixel_for_nn": lambda axis, i: (i + 0.5) / axis.exact,
    "tf_crop_and_resize": lambda axis, i: _cropped(axis, i),
}
"""Where an element of the result lies in the input, by ``coordinate_transformation_mode``."""


def _cropped(axis: OnnxAxis, i: NumpyArray) -> NumpyArray:
    last = axis.inputs - 1
    if axis.outputs == 1:
        return 0 * i + (axis.start + axis.end) * last / 2
    return axis.start * last + i * ((axis.end - axis.start) * last) / (axis.outputs - 1)


_ROUNDINGS: Mapping[str, Callable[[NumpyArray], NumpyArray]] = {
    "round_prefer_floor": lambda x: np.ceil(x - 0.5),
    "round_prefer_ceil": lambda x: np.floor(x + 0.5),
    "floor": np.floor,
    "ceil": np.ceil,
}
"""The nearest element of a place, by ``nearest_mode``."""


def _linear(x: NumpyArray, a: float) -> NumpyArray:
    return np.maximum(1 - np.abs(x), 0)


def _cubic(x: NumpyArray, a: float) -> NumpyArray:
    x = np.abs(x)
    near = ((a + 2) * x - (a + 3)) * x * x + 1
    far = ((a * x - 5 * a) * x + 8 * a) * x - 4 * a
    return np.where(x <= 1, near, np.where(x < 2, far, 0))


_KERNELS: Mapping[str, tuple[Callable[[NumpyArray, float], NumpyArray], int]] = {"linear": (_linear, 1), "cubic": (_cubic, 2)}
"""The weight of an element by its distance, and the distance from which on it is 0."""


@rule("Resize", "Upsample")
def _resize(node: Node) -> Results:
    if 0 in node.shape():
        return _of_none(node)
    if (found := by_open_weights(node)) is not None:
        return found
    # ONNX's inference computes sizes in higher precision, and so finds others.
    sizes = tuple(axis.outputs for axis in axes_of(described.read(node)))
    node.results = [node.results[0]._replace(shape=sizes)]
    if 0 in sizes:
        return np.empty(sizes, node.dtype())
    if node.text("mode", "nearest") == "nearest":
        return _nearest(node)
    if node.dtype().kind == "b":
        raise NotConvertible("it weighs elements, which are bool")
    if node.text("mode", "") not in _KERNELS:
        return described.convert(node)
    if node.dtype().kind != "f" and node.integer("antialias", 0):
        return _by_weights(node)
    try:
        return described.convert(node)
    except (NotConvertible, TvmdmlError):
        return _by_weights(node)


def _of_none(node: Node) -> NumpyArray:
    """Nothing, of the sizes that the node states: ONNX derives none, as a size of 0 has no scale."""
    sizes = list(node.shape())
    for i, n in zip(node.attributes.get("axes", range(len(sizes))), node.integers(3), strict=True):
        sizes[i] = n
    if 0 not in sizes or any(n and not before for n, before in zip(sizes, node.shape(), strict=True)):
        raise NotConvertible(f"it resizes {list(node.shape())}, which has no elements, to {sizes}")
    return np.empty(sizes, node.dtype())


def _coordinates(node: Node) -> tuple[str, list[OnnxAxis]]:
    """How places follow from each other, and the dimensions."""
    mode = node.text("coordinate_transformation_mode", "half_pixel")
    if mode not in _PLACES:
        raise NotConvertible(f"its coordinate_transformation_mode is {mode}")
    return mode, axes_of(described.read(node))


def _is_moved(axis: OnnxAxis) -> bool:
    """Whether a dimension does more than copy."""
    return axis != OnnxAxis(axis.inputs, axis.inputs, 1.0, 0.0, 1.0)


def _beyond(axis: OnnxAxis, mode: str, places: NumpyArray) -> NumpyArray:
    """Which places have the value of extrapolation."""
    outside: NumpyArray = (places < 0) | (places > axis.inputs - 1)
    return outside if mode == "tf_crop_and_resize" else np.zeros(axis.outputs, np.bool_)


def _filled(node: Node, found: Any, beyond: Mapping[int, NumpyArray]) -> Any:
    """The value of extrapolation at the places, by dimension, that are outside of the input."""
    outside = np.zeros(found.shape, np.bool_)
    for i, each in beyond.items():
        outside |= each.reshape([-1 if n == i else 1 for n in range(found.ndim)])
    if not outside.any():
        return found
    value = node.like(node.real("extrapolation_value", 0.0), found)
    return tvmdml.where(node.constant(outside).view(np.uint8), value.broadcast(found.shape), found)


def _nearest(node: Node) -> Results:
    """DirectML's operator where it takes the same elements; else they are gathered. Elements are moved as bits."""
    x, kind = node.x(), node.dtype()
    mode, axes = _coordinates(node)
    moved = {i: axis for i, axis in enumerate(axes) if _is_moved(axis)}
    by_size = any(is_open(axis.outputs) and not _is_exact(axis) for axis in moved.values())
    if by_size and (repeated := _repeated(node, x, mode, moved)) is not None:
        return repeated.view(kind)
    long = [axis.outputs for axis in moved.values() if axis.outputs > _MOST_PLACES]
    if not long and all(_is_exact(axis) for axis in moved.values() if is_open(axis.outputs)):
        seen = [axis._replace(inputs=hint(axis.inputs), outputs=hint(axis.outputs)) for axis in axes]
    else:
        seen = [axis._replace(inputs=own(axis.inputs), outputs=own(axis.outputs)) for axis in axes]
    moved = {i: seen[i] for i in moved}
    places = {} if long else {i: _places(mode, axis) for i, axis in moved.items()}
    taken = {i: _taken(node, seen[i], one) for i, one in places.items()}
    wide = x.dtype.kind != "f" and x.dtype.itemsize > 1
    node.inputs[0] = Value.computed(x.view(f"float{8 * x.dtype.itemsize}") if wide else x)
    try:
        desc: Any = described.descriptor(node)
        rules = desc.rules()
    except (NotConvertible, TvmdmlError):
        rules = None
    if rules is not None and all(
        np.array_equal(weighed(rules[i], seen[i].inputs, seen[i].outputs)[0][:, 0], one) for i, one in taken.items()
    ):
        (found,) = described.add(node, desc)
        assert found is not None
        return found.view(kind)
    axes = [axis._replace(inputs=own(axis.inputs), outputs=own(axis.outputs)) for axis in axes]
    if long:
        raise NotConvertible(f"it has {long[0]} places in a row; allowed: {_MOST_PLACES}, where DirectML's operator is another one")
    found = x
    for i, one in taken.items():
        found = tvmdml.gather(found, node.constant(one.astype(np.int32 if axes[i].inputs < 1 << 31 else np.int64)), axis=i)
    return _filled(node, found, {i: _beyond(axes[i], mode, one) for i, one in places.items()})


def _repeated(node: Node, x: Expression, mode: str, moved: Mapping[int, OnnxAxis]) -> Expression | None:
    """Each element several times, if that is the result for all sizes: where the scale is an integer, places repeat."""
    times = {}
    for i, axis in moved.items():
        count = round(axis.scale)
        if mode not in _EVEN or axis.scale != count or count * axis.inputs != axis.outputs or axis.outputs > _MOST_PLACES:
            return None
        few = axis._replace(inputs=3, outputs=3 * count)
        if not np.array_equal(_taken(node, few, _places(mode, few)), np.repeat(np.arange(3), count)):
            return None
        times[i] = count
    repeated = x
    for i, count in times.items():
        before, after = repeated.shape[: i + 1], repeated.shape[i + 1 :]
        wide = repeated.reshape((*before, 1, *after)).broadcast((*before, count, *after))
        repeated = wide.reshape((*before[:-1], before[-1] * count, *after))
    return repeated


_EVEN = ("half_pixel", "pytorch_half_pixel", "asymmetric")
"""Ways in which a place that is one period further is one element further."""


def _is_exact(axis: OnnxAxis) -> bool:
    """Whether places are exact in float32, so that those of one size show those of all: the scale is a power of 2."""
    number, divisor = axis.scale.as_integer_ratio()
    return axis.is_ratio and not (number & (number - 1) or divisor & (divisor - 1)) and max(number, divisor) <= 64


def _places(mode: str, axis: OnnxAxis) -> NumpyArray:
    """Where the elements of a result lie in the input, for rounding.

    With the ratio of the sizes places are exact. With another scale they are computed as ONNX Runtime and PyTorch do, in float32:
    17 / 1.7 is 10 there, and less in higher precision.
    """
    if axis.is_ratio and mode != "tf_crop_and_resize":
        return np.round(_PLACES[mode](axis, np.arange(axis.outputs, dtype=np.float64)), 9)
    return _PLACES[mode](axis, np.arange(axis.outputs, dtype=np.float32))


def _taken(node: Node, axis: OnnxAxis, places: NumpyArray) -> NumpyArray:
    """The element that is nearest to each place."""
    rounding = node.text("nearest_mode", "round_prefer_floor")
    if rounding == SIMPLE:
        rounding = "ceil" if axis.scale < 1 else "floor"
    if rounding not in _ROUNDINGS:
        raise NotConvertible(f"its nearest_mode is {rounding}")
    return np.clip(_ROUNDINGS[rounding](places), 0, axis.inputs - 1).astype(np.int64)


def _by_weights(node: Node) -> Results:
    x, kind = node.x(), node.dtype()
    mode, axes = _coordinates(node)
    moved = {i: axis for i, axis in enumerate(axes) if _is_moved(axis) or mode == "tf_crop_and_resize"}
    if any(axis.inputs * axis.outputs > _MOST_WEIGHTS for axis in moved.values()):
        raise NotConvertible(
            f"it resizes {list(x.shape)} to {[axis.outputs for axis in axes]}, with weights of each element for each"
        )
    found: Any = x if x.dtype == np.float64 else x.astype(np.float32)
    beyond = {}
    for i, axis in moved.items():
        places = _PLACES[mode](axis, np.arange(axis.outputs, dtype=np.float64))
        found, beyond[i] = _along(node, found, i, _weights(node, axis, places)), _beyond(axis, mode, places)
    found = _filled(node, found, beyond)
    if kind.kind != "f" and (node.integer("antialias", 0) or node.text("mode", "") == "cubic"):
        found = tvmdml.floor(found + 0.5)  # ONNX Runtime cuts others
    return found.astype(kind) if found.dtype != kind else found


def _weights(node: Node, axis: OnnxAxis, places: NumpyArray) -> NumpyArray:
    """The weights of the input's elements for each of the result's."""
    kernel, reach = _KERNELS[node.text("mode", "")]
    narrow = min(axis.scale, 1.0) if node.integer("antialias", 0) else 1.0
    taps = math.ceil(reach / narrow)
    near = np.floor(places)[:, None].astype(np.int64) + np.arange(-taps, taps + 1)
    weights = kernel((near - places[:, None]) * narrow, node.real("cubic_coeff_a", -0.75))
    if node.integer("exclude_outside", 0):
        weights = np.where((near >= 0) & (near < axis.inputs), weights, 0)
    weights /= weights.sum(1, keepdims=True)
    found = np.zeros((axis.outputs, axis.inputs), np.float64)
    np.add.at(found, (np.arange(axis.outputs)[:, None], np.clip(near, 0, axis.inputs - 1)), weights)
    return found


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
