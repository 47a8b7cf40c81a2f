"""Operators of elements: those of several inputs, those whose function depends on the type, and compositions."""

from __future__ import annotations

import functools
import math
from typing import Any

import numpy as np

import tvmdml
from tvmdml.graph import Expression
from tvmdml.onnx import described
from tvmdml.onnx.descriptors import NotConvertible
from tvmdml.onnx.narrow import rounded
from tvmdml.onnx.node import Node, Results, rule
from tvmdml.onnx.types import dtype_of, is_narrow, is_ours, wide_of
from tvmdml.onnx.values import Value

_CHAINS = {"Sum": "add", "Max": "max", "Min": "min", "Mean": "add"}


@rule("Sum", "Max", "Min", "Mean")
def _several(node: Node) -> Results:
    inputs = [node.x(i) for i in range(len(node.inputs))]
    found = functools.reduce(getattr(tvmdml, _CHAINS[node.kind]), inputs)
    return found if node.kind != "Mean" or len(inputs) == 1 else found * (1 / len(inputs))


@rule("Mod")
def _modulus(node: Node) -> Results:
    return (tvmdml.modulus_truncate if node.integer("fmod", 0) else tvmdml.modulus_floor)(node.x(), node.x(1))


@rule("BitShift")
def _shift(node: Node) -> Results:
    """Signed integers keep their sign to the right: the bits of a negative one are shifted as their complement."""
    x, n = node.x(), node.x(1)
    kind, bits = x.dtype, 8 * x.dtype.itemsize
    plain, by = x.view(f"uint{bits}"), n.view(f"uint{bits}")
    if node.text("direction", "") == "LEFT":
        return tvmdml.bit_shift_left(plain, by).view(kind)
    if kind.kind == "u":
        return tvmdml.bit_shift_right(plain, by)
    by = tvmdml.min(by, node.like(bits - 1, by))  # no bits are left; a negative number is a large one here
    negative = tvmdml.less_than(x, node.like(0, x))
    moved = tvmdml.bit_shift_right(tvmdml.where(negative, tvmdml.bit_not(plain), plain), by)
    return tvmdml.where(negative, tvmdml.bit_not(moved), moved).view(kind)


@rule("BitCast")
def _bit_cast(node: Node) -> Results:
    return node.x().view(node.results[0].dtype)


@rule("Equal")
def _equal(node: Node) -> Results:
    return tvmdml.equals(node.x(), node.x(1))


@rule("Pow")
def _power(node: Node) -> Results:
    """The result has the base's type. A product is one for graph passes, too; it is what the operator gives for this exponent."""
    x = node.x()
    if node.is_known(1) and node.value(1).size == 1:
        exponent = node.number(1)
        if exponent == 2:
            return x * x
        if exponent == 0.5 and x.dtype.kind == "f":
            return tvmdml.pow(x, 0.5)
    return tvmdml.pow(x, node.x(1))


@rule("Cast", "CastLike")
def _cast(node: Node) -> Results:
    """From bool elements are 0 or 1; to bool they are whether they are not 0."""
    to = node.dtype(1) if node.kind == "CastLike" else dtype_of(node.integer("to", 0))
    x = node.x()
    if is_narrow(to):
        mode = node.text("round_mode", "up")
        return Value.narrowed(to, rounded(x, to, saturate=bool(node.integer("saturate", 1)), mode=mode))
    if not is_ours(to):
        raise NotConvertible("the type of its output is not one of DirectML's")
    if to.kind != "b":
        return x.astype(to)
    if node.dtype().kind == "b":
        return x
    return tvmdml.logical_not(tvmdml.equals(x, node.like(0, x)))


@rule("ConstantOfShape")
def _filled(node: Node) -> Results:
    """Of a type that DirectML has not, in the one that has its elements."""
    given = node.attributes.get("value")
    value = np.zeros(1, np.float32) if given is None else node.around.array(given)
    if value.size != 1:
        raise NotConvertible(f"its value has {value.size} elements, and not one")
    dtype = value.dtype
    plain = wide_of(dtype) if is_narrow(dtype) else np.dtype(np.uint8) if dtype.kind == "b" else dtype
    graph: Any = node.graph
    found: Any = tvmdml.fill_value_constant(node.integers(0), value.astype(plain).item(), dtype=plain, device=graph)
    return Value.narrowed(dtype, found) if is_narrow(dtype) else found


@rule("Where")
def _where(node: Node) -> Results:
    return tvmdml.where(node.x(), node.x(1), node.x(2))


@rule("Clip")
def _clip(node: Node) -> Results:
    """Limits that are known are attributes. Those that are not there are the least and the largest finite number."""
    x = node.x()
    if x.dtype.kind != "f":
        found = tvmdml.max(x, node.x(1)) if node.has(1) else x
        return tvmdml.min(found, node.x(2)) if node.has(2) else found
    about = np.finfo(x.dtype)
    limits = ((1, float(about.min)), (2, float(about.max)))
    if all(node.is_known(i) for i, _ in limits if node.has(i)):
        low, high = (float(node.number(i)) if node.has(i) else limit for i, limit in limits)
        if low <= high:
            return tvmdml.clip(x, min=low, max=high)
    least, most = (node.x(i) if node.has(i) else node.like(limit, x) for i, limit in limits)
    return tvmdml.min(tvmdml.max(x, least), most)


@rule("IsInf")
def _infinite(node: Node) -> Results:
    if not node.integer("detect_positive", 1) and not node.integer("detect_negative", 1):
        return np.zeros(node.shape(), np.bool_)
    return described.convert(node)


@rule("Round")
def _round(node: Node) -> Results:
    return tvmdml.round(node.x())


@rule("Gelu", "com.microsoft.Gelu")
def _gelu(node: Node) -> Results:
    return gelu(node.x(), node.text("approximate", "none") == "tanh")


def gelu(x: Expression, approximate: bool) -> Any:
    """Each element times the part of the normal distribution below it; approximately by a tanh."""
    if not approximate:
        return tvmdml.activation_gelu(x)
    inner = (x * x * x * 0.044715 + x) * math.sqrt(2 / math.pi)
    return (tvmdml.tanh(inner) + 1.0) * (x * 0.5)


@rule("Mish")
def _mish(node: Node) -> Results:
    x = node.x()
    return x * tvmdml.tanh(tvmdml.activation_softplus(x))


@rule("HardSwish")
def _hard_swish(node: Node) -> Results:
    return tvmdml.activation_hard_swish(node.x(), alpha=1 / 6)


@rule("Swish", "com.microsoft.QuickGelu")
def _swish(node: Node) -> Results:
    usual = 1.702 if "." in node.kind else 1.0
    return tvmdml.activation_swish(node.x(), sigmoid_input_scale=node.real("alpha", usual))


@rule("PRelu")
def _parametric(node: Node) -> Results:
    x, slope = node.x(), node.x(1)
    return tvmdml.activation_parameterized_relu(x, slope.broadcast(x.shape))


@rule("BitwiseAnd", "BitwiseOr", "BitwiseXor")
def _bits(node: Node) -> Results:
    functions = {"BitwiseAnd": tvmdml.bit_and, "BitwiseOr": tvmdml.bit_or, "BitwiseXor": tvmdml.bit_xor}
    return functions[node.kind](node.x(), node.x(1))


_FARTHEST = 1 << 32
"""No diagonal is farther from the main one."""


@rule("Trilu")
def _triangle(node: Node) -> Results:
    k = max(-_FARTHEST, min(int(node.number(1)), _FARTHEST)) if node.has(1) else 0
    x = node.x()
    rows, columns = x.shape[-2:]
    kept = np.tri(rows, columns, k - 1, dtype=np.bool_) if node.integer("upper", 1) else ~np.tri(rows, columns, k, dtype=np.bool_)
    return tvmdml.where(node.constant(kept).view(np.uint8).broadcast(x.shape), node.like(0, x), x)


@rule("Crop")
def _crop(node: Node) -> Results:
    """Rows and columns inside of a border."""
    x = node.x()
    left, top, right, bottom = node.attributes.get("border", (0, 0, 0, 0))
    rows, columns = node.attributes.get("scale", (0, 0))
    return x[:, :, top : top + rows if rows else x.shape[2] - bottom, left : left + columns if columns else x.shape[3] - right]


@rule("ImageScaler")
def _scaled(node: Node) -> Results:
    x = node.x()
    bias = np.asarray(node.attributes.get("bias", [0.0] * x.shape[1]), x.dtype)
    return x * node.real("scale", 1.0) + node.constant(bias).reshape(1, x.shape[1], 1, 1)


@rule("ParametricSoftplus")
def _softplus(node: Node) -> Results:
    return tvmdml.activation_parametric_softplus(node.x(), alpha=node.real("alpha", 1.0), beta=node.real("beta", 1.0))


@rule("ScaledTanh")
def _tanh(node: Node) -> Results:
    return tvmdml.activation_scaled_tanh(node.x(), alpha=node.real("alpha", 1.0), beta=node.real("beta", 1.0))


@rule("ai.onnx.ml.Binarizer")
def _binarized(node: Node) -> Results:
    x = node.x()
    return tvmdml.greater_than(x, node.like(node.real("threshold", 0.0), x)).astype(x.dtype)
