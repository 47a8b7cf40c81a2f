"""Resize to sizes that are open, and no fixed multiple of the input's: the graph computes the weights, too.

DirectML's operator has a scale, which would be another one for each size. Where the dimensions are short, as those of a table of
positions are, each is a product with a matrix of weights, which nodes make from the sizes.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from typing import Any

import numpy as np

import tvmdml
from tvmdml.graph import Expression
from tvmdml.onnx.node import Node, axis_of, reshaped
from tvmdml.tensors.sizes import are_equal, hint, is_open
from tvmdml.tensors.sizes.size import Size

_MOST = 1 << 13
"""The most weights of a dimension in the case at hand: DirectML's operator is quicker where there are more."""


def _linear(t: Any, a: float) -> Mapping[int, Any]:
    return {0: 1.0 - t, 1: t}


def _cubic(t: Any, a: float) -> Mapping[int, Any]:
    def near(x: Any) -> Any:
        return ((a + 2) * x - (a + 3)) * x * x + 1.0

    def far(x: Any) -> Any:
        return ((a * x - 5 * a) * x + 8 * a) * x - 4 * a

    return {-1: far(t + 1.0), 0: near(t), 1: near(1.0 - t), 2: far(2.0 - t)}


_KERNELS: Mapping[str, Callable[[Any, float], Mapping[int, Any]]] = {"linear": _linear, "cubic": _cubic}
"""The weights of the elements beside a place, by how far it is behind the one before."""
_PLACES: Mapping[str, Callable[[Any, Any, Any], Any]] = {
    "half_pixel": lambda o, n, m: (o + 0.5) * n / m - 0.5,
    "pytorch_half_pixel": lambda o, n, m: (o + 0.5) * n / m - 0.5,
    "align_corners": lambda o, n, m: o * (n - 1.0) / (m - 1.0),
    "asymmetric": lambda o, n, m: o * n / m,
}
"""Where an element of the result lies in the input, by ``coordinate_transformation_mode``."""


def by_open_weights(node: Node) -> Expression | None:
    """The result, if it can be computed so, and DirectML's operator would be another one for each size."""
    if not node.has(3) or not node.value(3).size or node.dtype().kind != "f" or not node.has(0):
        return None
    mode, way = node.text("mode", "nearest"), node.text("coordinate_transformation_mode", "half_pixel")
    if mode not in _KERNELS or way not in _PLACES or node.text("keep_aspect_ratio_policy", "stretch") != "stretch":
        return None
    if node.integer("antialias", 0) or node.integer("exclude_outside", 0) or node.value(3).elements is None:
        return None
    shape, rank = node.shape(), len(node.shape())
    axes = [axis_of(axis, rank) for axis in node.attributes.get("axes") or range(rank)]
    resized = {axis: (shape[axis], m) for axis, m in zip(axes, node.integers(3), strict=True) if not are_equal(shape[axis], m)}
    if not any(_varies(n, m) for n, m in resized.values()) or any(hint(n) * hint(m) > _MOST for n, m in resized.values()):
        return None
    found = node.x()
    for axis, (n, m) in resized.items():
        if not (n > 1 and m > 1):
            return None
        found = _along(found, axis, m, _weights(node, mode, way, n, m))
    return found


def _varies(n: Any, m: Any) -> bool:
    """Whether the ratio depends on sizes."""
    if not (is_open(n) or is_open(m)):
        return False
    return not (type(n) is Size and type(m) is Size and n.record.are_proportional(n, m))


def _weights(node: Node, mode: str, way: str, n: Any, m: Any) -> Any:
    """The weight of each element of the input for each of the result: computed in float64, as where sizes are known."""
    graph: Any = node.graph
    inputs, outputs = (graph.sizes_array(np.array([[size]], object), np.int64).astype(np.float64) for size in (n, m))
    o: Any = tvmdml.fill_value_sequence([m, 1], 0.0, 1.0, dtype="float64", device=graph)
    j: Any = tvmdml.fill_value_sequence([1, n], 0.0, 1.0, dtype="float64", device=graph)
    place = _PLACES[way](o, inputs, outputs)
    before = tvmdml.floor(place)
    zero, last = node.like(0.0, o), inputs - 1.0
    total: Any = None
    for step, weight in _KERNELS[mode](place - before, node.real("cubic_coeff_a", -0.75)).items():
        at = tvmdml.min(tvmdml.max(before + float(step), zero), last)
        part = tvmdml.where(tvmdml.equals(at, j), weight, zero)
        total = part if total is None else total + part
    return total.astype(node.dtype())


def _along(x: Any, axis: int, size: Any, weights: Any) -> Any:
    """A product along one dimension."""
    before, after = math.prod(x.shape[:axis]), math.prod(x.shape[axis + 1 :])
    shape = (*x.shape[:axis], size, *x.shape[axis + 1 :])
    flat = reshaped(x, (before, x.shape[axis], after))
    return reshaped(tvmdml.gemm(weights.reshape(1, *weights.shape).broadcast(before, *weights.shape), flat), shape)
