"""Operators of ONNX Runtime that are ONNX's, with other names, inputs or layouts."""

from __future__ import annotations

import math
from typing import Any

import numpy as np

import tvmdml
from tvmdml.onnx import described
from tvmdml.onnx.descriptors import NotConvertible
from tvmdml.onnx.node import RULES, Node, Results, channels_first, channels_last, reshaped, rule
from tvmdml.onnx.values import Value

_SAME = {"GatherND": 13, "Trilu": 14, "Range": 11, "GridSample": 16, "LinearAttention": 27, "CausalConvWithState": 27}
"""Those with the same inputs and attributes, and the version of ONNX's operator."""
_MOST = 1 << 24
"""Elements of an array that is made while a model is converted."""
_ONLY = {
    "LinearAttention": {"state_window": 0},
    "CausalConvWithState": {
        "state_window": 0, "channels_last": 0, "ndim": 1, "dilation": 1, "state_update_capacity": 0, "state_length": 0,
        "input_channels": 0, "input_channel_offset": 0, "state_channels_last": -1,
    },
}  # fmt: skip
"""Attributes that ONNX's operator has not, and the values that do what it does."""


@rule(*(f"com.microsoft.{name}" for name in _SAME))
def _same(node: Node) -> Results:
    name = node.kind.rpartition(".")[2]
    only = _ONLY.get(name, {})
    for key, usual in only.items():
        if node.attributes.get(key, usual) != usual:
            raise NotConvertible(f"its {key} is {node.attributes[key]}; allowed: {usual}")
    own = {key: value for key, value in node.attributes.items() if key not in only}
    return node.around.other(node, name, _SAME[name], node.inputs, own)


@rule("com.microsoft.Pad")
def _pad(node: Node) -> Results:
    """The pads may be a row of a matrix."""
    pads = Value.known(node.known(1).reshape(-1))
    return node.around.other(node, "Pad", 13, [node.value(0), pads, *node.inputs[2:3]], node.attributes)


@rule("com.microsoft.ExpandDims")
def _expand(node: Node) -> Results:
    axes = Value.known(np.array([node.number(1)], np.int64))
    return node.around.other(node, "Unsqueeze", 13, [node.value(0), axes], {})


@rule("com.microsoft.TransposeMatMul")
def _product(node: Node) -> Results:
    return RULES["com.microsoft.FusedMatMul"](node.replaced("com.microsoft.FusedMatMul", **node.attributes))


@rule("com.microsoft.GemmFastGelu")
def _gelu(node: Node) -> Results:
    (found,) = node.around.other(node, "MatMul", 13, node.inputs[:2], {})
    return RULES["com.microsoft.FastGelu"](node.replaced("com.microsoft.FastGelu", [found, *node.inputs[2:3]]))


@rule("com.microsoft.TorchEmbedding")
def _embedding(node: Node) -> Results:
    return tvmdml.gather(node.x(), node.x(1), axis=0)


@rule("com.microsoft.NhwcMaxPool")
def _pool(node: Node) -> Results:
    first = Value.computed(channels_first(node.x()))
    return channels_last(described.convert(node.replaced("MaxPool", [first], **node.attributes))[0])


@rule("com.microsoft.UnfoldTensor")
def _unfold(node: Node) -> Results:
    """All slices of a dimension, each as elements of a new last one."""
    x = node.x()
    axis, size, step = node.axis(x.ndim, -1, "dim"), node.integer("size", 1), node.integer("step", 1)
    if not (0 < size <= x.shape[axis] and step > 0):
        raise NotConvertible(f"its slices have {size} of {x.shape[axis]} elements, with steps of {step}")
    count = (x.shape[axis] - size) // step + 1
    if count * size > _MOST:
        raise NotConvertible(f"its {count} slices have {size} elements, which are too many indices")
    places = np.arange(count)[:, None] * step + np.arange(size)
    found = tvmdml.gather(x, node.constant(places.astype(np.int64)), axis=axis)
    return found.transpose(*(i for i in range(found.ndim) if i != axis + 1), axis + 1)


@rule("com.microsoft.CDist")
def _distances(node: Node) -> Results:
    """Of each pair of rows, by their squares and products as ONNX Runtime does it."""
    metric = node.text("metric", "sqeuclidean")
    if metric not in ("euclidean", "sqeuclidean"):
        raise NotConvertible(f"its metric is {metric}")
    a, b = node.x(), node.x(1)
    squares = [tvmdml.reduce(one, function="sum_square", axes=[1]) for one in (a, b)]
    found = tvmdml.gemm(a, b, trans_b="transpose", alpha=-2.0) + squares[0] + squares[1].reshape(1, -1)
    found = tvmdml.max(found, node.like(0, found))
    return tvmdml.sqrt(found) if metric == "euclidean" else found


@rule("com.microsoft.IsAllFinite")
def _finite(node: Node) -> Results:
    """Whether all elements of all inputs are numbers."""
    kinds: list[Any] = [tvmdml.is_nan] if node.integer("isnan_only", 0) else [tvmdml.is_infinity]
    kinds = kinds if node.integer("isnan_only", 0) or node.integer("isinf_only", 0) else [tvmdml.is_nan, tvmdml.is_infinity]
    each: list[Any] = [
        tvmdml.reduce(kind(node.x(i).reshape(-1)), function="max", axes=[0]) for i in range(len(node.inputs)) for kind in kinds
    ]
    return tvmdml.logical_not(tvmdml.reduce(tvmdml.join(each, axis=0), function="max", axes=[0]).reshape(())).view(np.bool_)


@rule("com.microsoft.ReduceSumInteger")
def _sum(node: Node) -> Results:
    axes = Value.known(np.array(node.attributes.get("axes", ()), np.int64))
    wide = Value.computed(node.x().astype(np.int32))
    return node.around.other(node, "ReduceSum", 13, [wide, axes], {"keepdims": node.integer("keepdims", 1)})


@rule("com.microsoft.Rfft", "com.microsoft.Irfft")
def _fourier(node: Node) -> Results:
    """Of the last dimensions; real numbers are half of the frequencies."""
    if not node.integer("onesided", 1) or node.integer("normalized", 0) or node.integer("signal_ndim", 1) != 1:
        raise NotConvertible("it is of several dimensions, of both sides, or normalized")
    x = node.x()
    if node.kind.endswith(".Rfft"):
        wide, axis = Value.computed(x[..., None]), x.ndim - 1
        return node.around.other(node, "DFT", 17, [wide], {"axis": axis, "onesided": 1})
    n = 2 * (x.shape[-2] - 1)
    if not 0 < n * n <= _MOST:
        raise NotConvertible(f"it makes {n} elements, which is too large a matrix")
    angles = 2 * np.pi * np.outer(np.arange(n // 2 + 1), np.arange(n)) / max(n, 1)
    each = np.where((np.arange(n // 2 + 1) % max(n // 2, 1)) == 0, 1, 2)[:, None] / max(n, 1)
    matrix = np.stack([np.cos(angles) * each, -np.sin(angles) * each], 1).reshape(n + 2, n)
    flat = reshaped(x, (math.prod(x.shape[:-2]), n + 2))
    return tvmdml.gemm(flat, node.constant(matrix.astype(x.dtype))).reshape(*x.shape[:-2], n)


@rule("com.microsoft.BiasDropout", "com.microsoft.BitmaskBiasDropout")
def _dropout(node: Node) -> Results:
    """A bias and what is added, and a Dropout, which does nothing but in training."""
    if node.has(4) and bool(node.number(4)):
        raise NotConvertible("it is in training")
    found = node.x() + node.x(1)
    return found + node.x(2) if node.has(2) else found


@rule("com.microsoft.BitmaskDropout")
def _bitmask(node: Node) -> Results:
    if node.has(2) and bool(node.number(2)):
        raise NotConvertible("it is in training")
    return node.x()


@rule("com.microsoft.SkipGroupNorm")
def _skip(node: Node) -> Results:
    """What is skipped may be one for all places."""
    x, skip = node.x(), node.x(3)
    last = node.integer("channels_last", 1)
    each = (x.shape[0], *([1] * (x.ndim - 2)), x.shape[-1]) if last else (*x.shape[:2], *([1] * (x.ndim - 2)))
    total = x + (skip if skip.ndim == x.ndim else reshaped(skip, each))
    if node.has(4):
        total = total + reshaped(node.x(4), (1, *each[1:]))
    inputs = [Value.computed(total), *node.inputs[1:3]]
    return [RULES["com.microsoft.GroupNorm"](node.replaced("com.microsoft.GroupNorm", inputs, **node.attributes)), total]


@rule("com.microsoft.RelativePositionBias")
def _relative(node: Node) -> Results:
    """T5's: distances in buckets, which grow by powers from half of them on."""
    buckets, most = node.shape()[0], node.integer("max_distance", 0)
    both = node.integer("is_bidirectional", 0)
    rows, keys = int(node.number(1)), int(node.number(2))
    if most < 1 or min(rows, keys) < 1 or rows * keys > _MOST:
        raise NotConvertible(f"it has {rows} rows, {keys} keys and a max_distance of {most}")
    distance = np.arange(rows)[:, None] - np.arange(keys)
    first = np.where(distance < 0, buckets // 2, 0) if both else 0
    buckets = buckets // 2 if both else buckets
    distance = np.abs(distance) if both else np.maximum(distance, 0)
    exact = max(buckets // 2, 1)
    with np.errstate(divide="ignore"):
        far = exact + np.log(np.float32(distance) / exact) / np.log(np.float32(most) / exact) * (buckets - exact)
    at = first + np.where(distance < exact, distance, np.minimum(np.nan_to_num(far, neginf=0.0), buckets - 1).astype(np.int64))
    return tvmdml.gather(node.x(), node.constant(at.astype(np.int64)), axis=0).transpose(2, 0, 1)[None]


@rule("com.microsoft.QEmbedLayerNormalization")
def _embedded(node: Node) -> Results:
    """An EmbedLayerNormalization of quantized tables; each has a scale and a zero point."""
    tables = {2: (8, 13), 3: (9, 14), 4: (10, 15), 5: (11, 16), 6: (12, 17)}
    inputs = list(node.inputs[:8])
    for at, (scale, zero) in tables.items():
        if node.has(at):
            x = node.x(at)
            given = [node.x(i).reshape([1] * x.ndim) for i in (scale, zero)]
            inputs[at] = Value.computed(tvmdml.dequantize_linear(x, *given))
    kind = "com.microsoft.EmbedLayerNormalization"
    return RULES[kind](node.replaced(kind, inputs, **node.attributes))[:2]


@rule("com.microsoft.GatedRelativePositionBias")
def _gated(node: Node) -> Results:
    """Of queries, two gates that say how much of a bias is added."""
    if node.has(6):
        raise NotConvertible("its batches are packed")
    heads = node.integer("num_heads", 0)
    x = node.x() + node.x(1)
    batch, rows, width = x.shape
    if heads < 1 or width % heads:
        raise NotConvertible(f"it has {heads} heads, for {width} channels")
    each = x.reshape(batch, rows, heads, width // heads).transpose(0, 2, 1, 3).reshape(batch * heads * rows, width // heads)
    both = tvmdml.gemm(each, node.x(3)) + node.x(4)
    sums = tvmdml.reduce(both.reshape(batch, heads, rows, 2, both.shape[1] // 2), function="sum", axes=[4])
    gates = tvmdml.activation_sigmoid(sums.reshape(batch, heads, rows, 2))
    return (gates[..., :1] * (gates[..., 1:] * node.x(5) - 1.0) + 2.0) * node.x(2)


@rule("com.microsoft.Inverse", "Det")
def _eliminated(node: Node) -> Results:
    """By elimination with the largest pivot of each column. All matrices of a batch take the same steps."""
    x = node.x()
    if x.ndim < 2 or x.shape[-1] != x.shape[-2] or not 1 <= x.shape[-1] <= _LARGEST:
        raise NotConvertible(f"its matrices are {list(x.shape)}; allowed: at most {_LARGEST} rows and as many columns")
    n, wide = x.shape[-1], np.float64 if x.dtype == np.float64 else np.float32
    inverse = node.kind != "Det"
    work = reshaped(x.astype(wide), (math.prod(x.shape[:-2]), n, n))
    if inverse:
        work = tvmdml.join([work, node.constant(np.eye(n, dtype=wide))[None].broadcast(work.shape)], axis=2)
    rows = node.constant(np.arange(n, dtype=np.uint32)).reshape(1, n, 1)
    product = node.constant(np.ones((1, 1, 1), wide))
    for k in range(n):
        sizes = tvmdml.abs(work[:, :, k : k + 1])
        done = tvmdml.less_than(rows, node.like(k, rows))
        at = tvmdml.argmax(tvmdml.where(done, node.like(-1, sizes), sizes), axes=[1])
        chosen = tvmdml.equals(rows, at)
        own = tvmdml.reduce(tvmdml.where(chosen, work, node.like(0, work)), function="sum", axes=[1])
        top = work[:, k : k + 1]
        pivot = own[:, :, k : k + 1]
        product = product * tvmdml.where(tvmdml.equals(at, node.like(k, at)), pivot, -pivot)
        line = own / pivot if inverse else own
        here = tvmdml.equals(rows, node.like(k, rows))
        moved = tvmdml.where(here, line, tvmdml.where(chosen, top, work))
        factor = moved[:, :, k : k + 1]
        kept = here if inverse else tvmdml.less_than_or_equal(rows, node.like(k, rows))
        if not inverse:
            factor = tvmdml.where(tvmdml.equals(pivot, node.like(0, pivot)), node.like(0, factor), factor / pivot)
        work = tvmdml.where(kept, moved, moved - factor * line)
    if inverse:
        return reshaped(work[:, :, n:], x.shape).astype(x.dtype)
    return reshaped(product, x.shape[:-2]).astype(x.dtype)


_LARGEST = 64
"""Rows of a matrix that is eliminated: each takes about ten operators."""
