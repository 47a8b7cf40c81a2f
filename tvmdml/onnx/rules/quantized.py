"""Quantized operators: those with a descriptor of their own, and compositions of dequantize, an operator, and quantize."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

import tvmdml
from tvmdml.errors import TvmdmlError
from tvmdml.graph.passes.recurrent_bytes import read_bytes
from tvmdml.onnx import described
from tvmdml.onnx.descriptors import NotConvertible
from tvmdml.onnx.narrow import limits, rounded
from tvmdml.onnx.node import Node, Results, along, axis_of, channels_first, channels_last, reshaped, rule
from tvmdml.onnx.rules.products import turned
from tvmdml.onnx.rules.reductions import dropped, from_axis_on
from tvmdml.onnx.types import is_narrow, is_ours, wide_of
from tvmdml.onnx.values import Value
from tvmdml.tensors.sizes import is_open


def _real(node: Node, at: int) -> Any:
    """A quantized input, its scale and its zero point, as float32."""
    return tvmdml.dequantize_linear(node.x(at), *_spread(node, at + 1, node.x(at).ndim))


def _spread(node: Node, at: int, rank: int) -> list[Any]:
    """A scale and a zero point of one element."""
    found = []
    for i in (at, at + 1):
        x = node.maybe(i)
        if x is not None and x.size != 1:
            raise NotConvertible("its scale has several elements")
        found.append(None if x is None else x.reshape([1] * rank))
    return found


def _stored(node: Node, x: Any, at: int) -> Any:
    """A result with a scale and a zero point."""
    scale, zero = _spread(node, at, x.ndim)
    return tvmdml.quantize_linear(x, scale, zero)


@rule("com.microsoft.QLinearMul", "com.microsoft.QLinearAdd")
def _binary(node: Node) -> Results:
    a, b = _real(node, 0), _real(node, 3)
    return _stored(node, a * b if node.kind.endswith("Mul") else a + b, 6)


def _softmax(x: Any, axis: int, opset: int) -> Any:
    """Before version 13 all dimensions from the axis on are one."""
    return tvmdml.activation_softmax(x, axes=[axis]) if opset >= 13 else from_axis_on(tvmdml.activation_softmax, x, axis)


_UNARY: dict[str, Callable[[Node, Any], Any]] = {
    "com.microsoft.QLinearSigmoid": lambda node, x: tvmdml.activation_sigmoid(x),
    "com.microsoft.QLinearLeakyRelu": lambda node, x: tvmdml.activation_leaky_relu(x, alpha=node.real("alpha", 0.01)),
    "com.microsoft.QLinearSoftmax": lambda node, x: _softmax(x, node.axis(x.ndim, -1), node.integer("opset", 13)),
}


@rule(*_UNARY)
def _unary(node: Node) -> Results:
    return _stored(node, _UNARY[node.kind](node, _real(node, 0)), 3)


@rule("com.microsoft.QLinearConcat")
def _concat(node: Node) -> Results:
    parts = [_real(node, i) for i in range(2, len(node.inputs), 3)]
    return _stored(node, tvmdml.join(parts, axis=node.axis(parts[0].ndim)), 0)


@rule("com.microsoft.QLinearWhere")
def _where(node: Node) -> Results:
    return _stored(node, tvmdml.where(node.x(), _real(node, 1), _real(node, 4)), 7)


@rule("com.microsoft.QLinearReduceMean")
def _mean(node: Node) -> Results:
    x = _real(node, 0)
    axes = sorted({axis_of(n, x.ndim) for n in node.attributes.get("axes", range(x.ndim))})
    return dropped(_stored(node, tvmdml.reduce(x, function="average", axes=axes), 3), axes, node)


@rule("com.microsoft.MulInteger")
def _integers(node: Node) -> Results:
    """A product of integers without their zero points."""
    a, b = (_without_zero(node, at) for at in (0, 2))
    return a * b


@rule("com.microsoft.MatMulInteger16")
def _wide_product(node: Node) -> Results:
    """Through float64, where the sums of products of 16 bits are exact; they are kept modulo 2^32."""
    a, b = (node.x(i).astype(np.float64) for i in (0, 1))
    return tvmdml.gemm(a, b).astype(np.int64).astype(np.int32)


def _without_zero(node: Node, at: int) -> Any:
    x = node.x(at).astype(np.int32)
    return x - node.x(at + 1).astype(np.int32) if node.has(at + 1) else x


@rule("com.microsoft.QLinearConv")
def _channels_last(node: Node) -> Results:
    """ONNX's operator, perhaps with channels last."""
    own = {name: value for name, value in node.attributes.items() if name != "channels_last"}
    if not node.integer("channels_last", 0):
        return described.convert(node.replaced("QLinearConv", **own))
    first = Value.computed(channels_first(node.x()))
    (found,) = described.convert(node.replaced("QLinearConv", [first, *node.inputs[1:]], **own))
    return channels_last(found)


@rule("com.microsoft.DynamicQuantizeLSTM")
def _recurrent(node: Node) -> Results:
    """Weights are quantized, {directions, inputs, gates}; rows are not, which is more exact, unless the model may round."""
    factors = []
    for at, parameters in ((1, 8), (2, 10)):
        shape = node.shape(at)
        given = [node.x(i) for i in (parameters, parameters + 1)]
        scale, zero = (reshaped(one, (shape[0], 1, one.size // shape[0])).broadcast(shape) for one in given)
        factors.append(tvmdml.dequantize_linear(node.x(at), scale, zero).transpose(0, 2, 1))
    inputs = [node.inputs[0], *map(Value.computed, factors), *node.inputs[3:8]]
    before = len(node.graph.calls)
    found = node.around.other(node, "LSTM", 14, inputs, node.attributes)
    for call in node.graph.calls[before:]:
        if call.desc.NAME == "LSTM":
            read_bytes(call, node.around.may_round)
    return found


@rule("com.microsoft.QGemm")
def _product(node: Node) -> Results:
    """A product of quantized matrices, and of 32-bit integers what is added to it."""
    given = turned(node)
    scales = [node.x(1), node.x(4)]
    zeros = [node.maybe(2), node.maybe(5)]
    sides = (1, -1 if "trans_b" in given else 1)  # the columns' scales lie along one dimension of b
    factors = []
    for i, (at, scale, zero, side) in enumerate(zip((0, 3), scales, zeros, sides, strict=True)):
        shape = (1, 1) if scale.size == 1 else (scale.size, 1) if side < 0 else (1, scale.size)
        if scale.size != 1 and not i:
            raise NotConvertible("the scale of its first matrix has several elements")
        factors.append(tvmdml.dequantize_linear(node.x(at), scale.reshape(shape), None if zero is None else zero.reshape(shape)))
    found = tvmdml.gemm(*factors, **given)
    if node.has(6):
        found = found + node.x(6).astype(np.float32) * (scales[0].reshape(1) * scales[1].reshape(-1))
    if node.real("alpha", 1.0) != 1:
        found = found * node.real("alpha", 1.0)
    return _stored(node, found, 7) if node.has(7) else found


@rule("DequantizeLinear", "com.microsoft.DequantizeLinear")
def _dequantize(node: Node) -> Results:
    """Types and blocks that DirectML's operators do not have are computed by elements. A wider result has exact products."""
    to = node.results[0].dtype
    if to == np.float32 and node.dtype(1) == np.float16:
        node.inputs[1] = Value.computed(node.x(1).astype(np.float32))
    is_unsigned, sizes = str(node.value(0).dtype).startswith("uint"), node.shape(1)
    if node.integer("block_size", 0) and is_unsigned and not (node.has(2) or any(map(is_open, sizes))):
        # DirectML's zero point is another one where there is none.
        node.inputs = [*node.inputs[:2], Value.known(np.zeros(sizes, node.value(0).dtype))]
    try:
        if node.integer("block_size", 0) > 0:
            return _in_whole_blocks(node)
        return described.convert(node.replaced("DequantizeLinear", **node.attributes))
    except (NotConvertible, TvmdmlError):
        x = _bytes(node.value(0), node).astype(np.float32)
        scale, zero = (_parameter(node, i) for i in (1, 2))
        found = (x if zero is None else x - zero) * scale
        return found.astype(node.dtype(1))


def _in_whole_blocks(node: Node) -> Any:
    """DirectML has equal blocks: behind a last one with fewer elements, a constant gets some that are not read."""
    axis, x = node.axis(len(node.shape()), 1), node.value(0)
    n = node.shape()[axis]
    block = min(node.integer("block_size", 0), n)
    if x.array is not None and n % max(block, 1):
        x = Value.known(np.pad(x.array, [(0, -n % block if i == axis else 0) for i in range(x.array.ndim)]))
    attributes = {**node.attributes, "block_size": block}
    (found,) = described.convert(node.replaced("DequantizeLinear", [x, *node.inputs[1:]], **attributes))
    return found if x is node.inputs[0] else found[along(axis, slice(0, n))]


@rule("QuantizeLinear", "com.microsoft.QuantizeLinear")
def _quantize(node: Node) -> Results:
    to = node.results[0].dtype or (node.dtype(2) if node.has(2) else None)
    if is_narrow(to):
        return _narrowed(node, to)
    try:
        return described.convert(node.replaced("QuantizeLinear", **node.attributes))
    except (NotConvertible, TvmdmlError):
        if to is None or to.kind not in "iu" or to.itemsize > 2 or not is_ours(to) or node.integer("precision", 0) > 1:
            raise
        scale, zero = (_parameter(node, i) for i in (1, 2))
        found = tvmdml.round(node.x().astype(np.float32) / scale)
        about = np.iinfo(to)
        return tvmdml.clip(found if zero is None else found + zero, min=float(about.min), max=float(about.max)).astype(to)


def _narrowed(node: Node, to: Any) -> Value:
    """To a type that DirectML has not."""
    scale, zero = (_parameter(node, i) for i in (1, 2))
    found = node.x().astype(np.float32) / scale
    if wide_of(to).kind == "f":
        found = found if zero is None else found + zero
        return Value.narrowed(to, rounded(found, to, saturate=bool(node.integer("saturate", 1))))
    low, high = limits(to)
    found = tvmdml.round(found)
    limited = tvmdml.clip(found if zero is None else found + zero, min=low, max=high)
    return Value.narrowed(to, limited.astype(wide_of(to)))


def _bytes(value: Value, node: Node) -> Any:
    """A tensor; constants of 4 bits have one element in a byte."""
    if value.array is not None and not is_ours(value.dtype):
        return node.constant(value.array.astype(np.int16))
    return value.expression(node.graph)


def _parameter(node: Node, at: int) -> Any:
    """A scale or zero point as float32, repeated to the sizes of the input: for all, for slices of an axis, or for blocks."""
    if not node.has(at):
        return None
    found = _bytes(node.value(at), node).astype(np.float32)
    shape = node.shape()
    if found.size == 1:
        return found.reshape([1] * len(shape)).broadcast(shape)
    axis, block = node.axis(len(shape), 1), node.integer("block_size", 0)
    if not block:
        return reshaped(found, [n if i == axis else 1 for i, n in enumerate(shape)]).broadcast(shape)
    if found.ndim != len(shape) or found.shape[axis] * block < shape[axis]:
        raise NotConvertible(f"its parameter has the sizes {list(found.shape)}, for blocks of {block} in {list(shape)}")
    wide = found[along(axis + 1, None)]
    wide = wide.broadcast([*wide.shape[: axis + 1], block, *wide.shape[axis + 2 :]])
    wide = reshaped(wide, (*found.shape[:axis], found.shape[axis] * block, *found.shape[axis + 1 :]))
    return wide[along(axis, slice(0, shape[axis]))]


@rule("DynamicQuantizeLinear")
def _of_own_range(node: Node) -> Results:
    """Of no elements the range is that of 0: a scale of 1."""
    if not node.value(0).size:
        return [np.zeros(node.shape(), np.uint8), np.float32(1), np.uint8(0)]
    return described.convert(node)


@rule("com.microsoft.DynamicQuantizeMatMul")
def _dynamic(node: Node) -> Results:
    """The matrix is quantized by its own largest and least elements."""
    found = tvmdml.dynamic_quantize_linear(node.x())
    quantized = Value.computed(found[0])
    scale, zero = (Value.computed(one.reshape(())) for one in found[1:])
    inputs = [quantized, node.value(1), scale, node.value(2), zero, *(node.inputs[3:5])]
    return described.convert(node.replaced("com.microsoft.MatMulIntegerToFloat", inputs))
