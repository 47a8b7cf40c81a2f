"""Reductions: axes as inputs, dimensions that are dropped, and softmax in its older form."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import numpy as np

import tvmdml
from tvmdml.graph import Expression
from tvmdml.onnx import described
from tvmdml.onnx.node import Node, Results, axis_of, reshaped, rule
from tvmdml.onnx_nodes import Refused
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
assert set(_FUNCTIONS) == set(Reduce.ONNX)


def dropped(x: Expression, axes: list[int], node: Node) -> Expression:
    """Without the dimensions that were reduced, unless the node keeps them."""
    return x if node.integer("keepdims", 1) else reshaped(x, [n for i, n in enumerate(x.shape) if i not in axes])


def _limits(dtype: np.dtype[Any]) -> tuple[int, int]:
    if dtype == np.bool_:
        return 0, 1
    about = np.iinfo(dtype)
    return int(about.min), int(about.max)


@rule(*_FUNCTIONS)
def _reduce(node: Node) -> Results:
    x = node.x()
    axes = sorted({axis_of(n, x.ndim) for n in (node.integers(1) if node.has(1) else [])})
    if not axes:
        if node.integer("noop_with_empty_axes", 0):
            alone = {"ReduceL1": tvmdml.abs, "ReduceL2": tvmdml.abs, "ReduceLogSum": tvmdml.log, "ReduceSumSquare": lambda x: x * x}
            return alone.get(node.kind, lambda x: x)(x)
        axes = list(range(x.ndim))
    if not x.size:
        shape = [1 if i in axes else n for i, n in enumerate(x.shape)]
        lowest, largest = (-np.inf, np.inf) if x.dtype.kind == "f" else _limits(node.dtype())
        of_none = {"ReduceProd": 1, "ReduceMax": lowest, "ReduceMin": largest, "ReduceLogSum": -np.inf, "ReduceLogSumExp": -np.inf}
        empty = 0 if node.kind != "ReduceMean" else np.nan
        return np.full(node.results[0].shape or shape, of_none.get(node.kind, empty), node.dtype())
    if not axes:  # of a tensor without dimensions
        return _reduced(node, x.reshape(1), [0]).reshape(())
    return dropped(_reduced(node, x, axes), axes, node)


def _reduced(node: Node, x: Expression, axes: list[int]) -> Any:
    """Means and logarithms of integers, which DirectML has not, are rounded towards 0, as in ONNX Runtime."""
    function = _FUNCTIONS[node.kind]
    if x.dtype.kind in "iu" and function == "average":
        total = tvmdml.reduce(x, function="sum", axes=axes)
        return tvmdml.divide(total, node.like(math.prod(x.shape[i] for i in axes), total))
    if x.dtype.kind in "iu" and function.startswith("log"):
        return tvmdml.reduce(x.astype(np.float32), function=function, axes=axes).astype(x.dtype)
    return tvmdml.reduce(x, function=function, axes=axes)


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
        raise Refused("its input has no dimensions")
    axis = node.axis(x.ndim, -1)
    return from_axis_on(function, x, axis) if node.is_before(13) else function(x, axes=[axis])


def from_axis_on(function: Callable[..., Any], x: Any, axis: int) -> Any:
    """A function of slices whose dimensions from the axis on are one."""
    flat = reshaped(x, (math.prod(x.shape[:axis]), math.prod(x.shape[axis:])))
    return reshaped(function(flat, axes=[1]), x.shape)
