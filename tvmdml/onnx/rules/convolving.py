"""Convolutions that DirectML has not: those of integers with three spatial dimensions, and those of nothing but padding."""

from __future__ import annotations

import math
from typing import Any

import numpy as np

import tvmdml
from tvmdml.errors import TvmdmlError
from tvmdml.onnx import described
from tvmdml.onnx.descriptors import NotConvertible
from tvmdml.onnx.node import Node, Results, reshaped, rule
from tvmdml.onnx.values import Value

_EXACT = 1 << 24
"""Integers up to here are exact in float32."""


@rule("Conv", "ConvTranspose")
def _convolved(node: Node) -> Results:
    if 0 in node.shape():
        return _of_padding(node, 2, node.dtype())
    found = described.convert(node)
    if found[0] is not None and (node.text("auto_pad", "NOTSET").startswith("SAME") or "output_shape" in node.attributes):
        # ONNX's inference takes output_padding for elements more, and stops at an output_shape that is smaller than the input.
        node.results = [node.results[0]._replace(shape=found[0].shape)]
    return found


@rule("ConvInteger")
def _integers(node: Node) -> Results:
    if 0 in node.shape():
        return _of_padding(node, 4, np.dtype(np.int32))
    try:
        return described.convert(node)
    except (NotConvertible, TvmdmlError):
        return _sums(node, (0, 2), (1, 3))


@rule("QLinearConv")
def _quantized(node: Node) -> Results:
    try:
        if 0 not in node.shape():
            return described.convert(node)
    except (NotConvertible, TvmdmlError):
        pass
    sums = _of_padding(node, 8, np.dtype(np.int32)) if 0 in node.shape() else _sums(node, (0, 2), (3, 5))
    each = (1, -1, *[1] * (sums.ndim - 2))
    if node.has(8) and 0 not in node.shape():
        sums = sums + node.x(8).reshape(each).broadcast(sums.shape)
    input_scale, scale, output_scale = (node.x(i).reshape(-1) for i in (1, 4, 6))
    factor = (input_scale * scale / output_scale).reshape((1, scale.size, *each[2:])).broadcast(sums.shape)
    found = tvmdml.round(sums.astype(np.float32) * factor)
    to = node.dtype(7)
    limits = np.iinfo(to)
    return tvmdml.clip(found + node.x(7).astype(np.float32).reshape(()), min=float(limits.min), max=float(limits.max)).astype(to)


def _of_padding(node: Node, bias: int, dtype: np.dtype[Any]) -> Any:
    """Sums of no elements: zeros, and the bias."""
    shape = node.results[0].shape
    if shape is None:
        raise NotConvertible(f"its input is {list(node.shape())}, and the sizes of its result are not known")
    if not node.has(bias):
        return node.constant(np.zeros((), dtype)).broadcast(shape)
    return node.x(bias).reshape(1, -1, *[1] * (len(shape) - 2)).broadcast(shape)


def _sums(node: Node, x: tuple[int, int], w: tuple[int, int]) -> Any:
    """The int32 sums of the input and the filter at these positions, with their zero points: exact, through floats."""
    terms = math.prod(node.shape(w[0])[1:])
    wide = np.float32 if 255 * 255 * terms < _EXACT else np.float64
    factors = []
    for at, zero in (x, w):
        found: Any = node.x(at).astype(wide)
        if node.has(zero):
            point = node.x(zero).astype(wide)
            channels = point.size if at == w[0] else 1
            found = found - reshaped(point, (channels, *[1] * (found.ndim - 1))).broadcast(found.shape)
        factors.append(Value.computed(found))
    (total,) = described.convert(node.replaced("Conv", factors, **node.attributes))
    assert total is not None
    return total.astype(np.int64).astype(np.int32)
