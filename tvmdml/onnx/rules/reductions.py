"""Reductions: axes as inputs, dimensions that are dropped, and softmax in its older form."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import numpy as np

import tvmdml
from tvmdml.graph import Expression
from tvmdml.onnx import described
from tvmdml.onnx.descriptors import NotConvertible
from tvmdml.onnx.node import Node, Results, axis_of, reshaped, rule
from tvmdml.operators.cast import converted
from tvmdml.operators.reduce import Reduce

_FUNCTIONS = {
    "ReduceL1": "l1",
    "ReduceL2": "l2",
    "ReduceLogSum": "log_sum",
    "ReduceLogSumExp": "log_sum_exp",
    "ReduceMax": "max",
    "ReduceMean": "average",
    "ReduceMin": "min",
    "ReduceProd": "multiply",
    "ReduceSum": "sum",
    "ReduceSumSquare": "sum_square",
}
_MINUS_INFINITE = ("ReduceMax", "ReduceLogSum", "ReduceLogSumExp")
assert set(_FUNCTIONS) == set(Reduce.ONNX)


def dropped(x: Expression, axes: list[int], node: Node) -> Expression:
    """Without the dimensions that were reduced, unless the node keeps them."""
    return x if node.integer("keepdims", 1) else reshaped(x, [n for i, n in enumerate(x.shape) if i not in axes])


_OF_NOTHING = {"ReduceProd": 1.0, "ReduceMean": np.nan, "ReduceMin": np.inf, **dict.fromkeys(_MINUS_INFINITE, -np.inf)}
"""What reductions of no elements are; others are 0. Integers are the nearest ones."""


@rule(*_FUNCTIONS)
def _reduce(node: Node) -> Results:
    x = node.x()
    axes = sorted({axis_of(n, x.ndim) for n in (node.integers(1) if node.has(1) else [])})
    if not axes:
        if node.integer("noop_with_empty_axes", 0) and x.size:
            return _reduced(node, x.reshape(-1, 1), [1]).reshape(x.shape)
        axes = list(range(x.ndim))
    if not x.size:
        shape = [1 if i in axes else n for i, n in enumerate(x.shape)]
        number = _OF_NOTHING.get(node.kind, 0.0)
        number = max(number, 0.0) if node.dtype() == np.bool_ else number
        return converted(np.full(node.results[0].shape or shape, number), node.dtype())
    if not axes:  # of a tensor without dimensions
        return _reduced(node, x.reshape(1), [0]).reshape(())
    return dropped(_reduced(node, x, axes), axes, node)


def _reduced(node: Node, x: Expression, axes: list[int]) -> Any:
    """Means, norms and logarithms of integers, which DirectML has not, are rounded towards 0, as in ONNX Runtime."""
    function = _FUNCTIONS[node.kind]
    if x.dtype.kind in "iu" and function == "average":
        return _mean(node, x, axes)
    if x.dtype.kind in "iu" and function in ("l2", "log_sum", "log_sum_exp"):
        return tvmdml.reduce(x.astype(np.float64), function=function, axes=axes).astype(x.dtype)
    return tvmdml.reduce(x, function=function, axes=axes)


def _mean(node: Node, x: Expression, axes: list[int]) -> Any:
    """Of integers, exactly: no sum is beyond their range. It is that of quotients rounded down, and of remainders."""
    count = math.prod(x.shape[i] for i in axes)
    if x.dtype.itemsize < 8 and count >= 1 << 15:  # the sum of remainders
        return _mean(node, x.astype(np.int64), axes).astype(x.dtype)
    by, zero, unit = (node.like(n, x) for n in (count, 0, 1))

    def divided(x: Any) -> tuple[Any, Any]:
        rest = tvmdml.modulus_floor(x, by)
        below = tvmdml.logical_and(tvmdml.less_than(x, zero), tvmdml.greater_than(rest, zero))
        quotient = tvmdml.divide(x, by)
        return tvmdml.where(below, quotient - unit, quotient), rest

    quotients, rests = (tvmdml.reduce(one, function="sum", axes=axes) for one in divided(x))
    more, rest = divided(rests)
    down = quotients + more
    up = tvmdml.logical_and(tvmdml.less_than(down, zero), tvmdml.greater_than(rest, zero))
    return tvmdml.where(up, down + unit, down)


@rule("ArgMax", "ArgMin")
def _arg(node: Node) -> Results:
    axis = node.axis(len(node.shape()))
    (found,) = described.convert(node.replaced(keepdims=1))
    return dropped(found, [axis], node)


@rule("Softmax", "LogSoftmax", "Hardmax")
def _softmax(node: Node) -> Results:
    """Before version 13 all dimensions from the axis on are one."""
    x = node.x()
    function = {
        "Softmax": tvmdml.activation_softmax,
        "LogSoftmax": tvmdml.activation_log_softmax,
        "Hardmax": tvmdml.activation_hardmax,
    }[node.kind]
    if not x.ndim:
        raise NotConvertible("its input has no dimensions")
    axis = node.axis(x.ndim, -1)
    return from_axis_on(function, x, axis) if node.is_before(13) else function(x, axes=[axis])


def from_axis_on(function: Callable[..., Any], x: Any, axis: int) -> Any:
    """A function of slices whose dimensions from the axis on are one."""
    flat = reshaped(x, (math.prod(x.shape[:axis]), math.prod(x.shape[axis:])))
    return reshaped(function(flat, axes=[1]), x.shape)
