"""ONNX Runtime's operators of transformers."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

import tvmdml
from tvmdml.graph import Expression
from tvmdml.onnx import described
from tvmdml.onnx.node import Node, Results, reshaped, rule
from tvmdml.onnx.rules.products import product
from tvmdml.onnx.rules.views import parted
from tvmdml.onnx.values import Value
from tvmdml.onnx_nodes import Refused


def _value(x: Any) -> Value | None:
    return None if x is None else Value.computed(x)


@rule("com.microsoft.Attention")
def _attention(node: Node) -> Results:
    """One product for queries, keys and values, and then a MultiHeadAttention."""
    if node.integer("do_rotary", 0) or node.has(6):
        raise Refused("it has rotary embeddings, or a past of a given length")
    whole = product(node.x(), node.x(1))
    return _of_stacked(node, whole + node.x(2) if node.has(2) else whole, node.maybe(5))


@rule("com.microsoft.QAttention")
def _quantized_attention(node: Node) -> Results:
    """The same of quantized numbers: inputs 3, 4, 6 and 7 are scales and zero points."""
    inputs = [node.value(0), node.value(1), node.value(3), node.value(4), *(node.inputs[6:8])]
    whole = described.convert(node.replaced("com.microsoft.MatMulIntegerToFloat", inputs))[0].reshape(*node.shape()[:2], -1)
    inner = Node(
        node.kind, [*node.inputs[:3], node.inputs[5] if node.has(5) else None, *node.inputs[8:9]], node.outputs, node.attributes,
        node.results, node.opset, node.around,
    )  # fmt: skip
    return _of_stacked(inner, whole + node.x(2), None)


def _of_stacked(node: Node, whole: Expression, bias: Any) -> Results:
    """The attention of queries, keys and values that lie beside each other; input 3 is the mask, and input 4 earlier rows."""
    heads = node.integer("num_heads", 0)
    if heads < 1 or whole.ndim != 3:
        raise Refused(f"it has {heads} heads, for queries of {whole.ndim} dimensions")
    rows = whole.shape[1]
    sizes = list(node.attributes.get("qkv_hidden_sizes", [whole.shape[2] // 3] * 3))
    query, key, value = parted(whole, 2, sizes)
    past: list[Expression | None] = [None, None]
    before = 0
    if node.has(4):
        both = node.x(4)
        past, before = [both[0], both[1]], both.shape[3]
    if node.integer("unidirectional", 0):
        limit = node.real("mask_filter_value", -10000.0)
        later = np.triu(np.full((rows, before + rows), limit, query.dtype), before + 1)
        bias = node.constant(later).reshape(1, 1, *later.shape) if bias is None else bias + node.constant(later)
    inputs = [_value(query), _value(key), _value(value), None, node.inputs[3] if node.has(3) else None, _value(bias)]
    outputs = len(node.outputs) > 1 and node.outputs[1]
    inner = node.replaced("com.microsoft.MultiHeadAttention", [*inputs, *map(_value, past)], num_heads=heads)
    for name in ("scale", "mask_filter_value"):
        if name in node.attributes:
            inner.attributes[name] = node.attributes[name]
    inner.outputs = (True, True, True) if outputs else (True,)
    found = described.convert(inner)
    if not outputs:
        return found[0]
    present = [one[None] for one in found[1:3]]
    return [found[0], tvmdml.join(present, axis=0)]


@rule("com.microsoft.RotaryEmbedding")
def _rotary(node: Node) -> Results:
    if node.integer("is_packed_batching", 0):
        raise Refused("its batches are packed")
    return rotated(
        node,
        node.x(),
        node.x(1),
        (node.x(2), node.x(3)),
        node.integer("num_heads", 0),
        node.integer("rotary_embedding_dim", 0),
        bool(node.integer("interleaved", 0)),
    )


def rotated(
    node: Node, x: Expression, places: Expression, tables: Sequence[Expression], heads: int, part: int, interleaved: bool
) -> Any:
    """Pairs of channels turned by the angles of their places.

    Args:
        node: the node.
        x: {batch, rows, channels} or {batch, heads, rows, channels}.
        places: {batch, rows}, or the first place of all.
        tables: cosines and sines, {places, half of the channels}.
        heads: how many heads there are; 0 is found from the tables.
        part: how many channels of a head are turned; 0 for all.
        interleaved: whether the pairs are neighbours.
    """
    shape = x.shape
    if x.ndim == 3:
        width = tables[0].shape[1] * 2
        count = heads or shape[2] // width
        x = reshaped(x, (shape[0], shape[1], count, shape[2] // max(count, 1))).transpose(0, 2, 1, 3)
    batch, _, rows, channels = x.shape
    part = part or channels
    if places.size == 1 and rows * batch != 1:
        steps = node.constant(np.arange(rows, dtype=np.int64)).reshape(1, rows)
        places = (places.reshape(1, 1).astype(np.int64) + steps).broadcast(batch, rows)
    places = places.reshape(batch, rows)
    cosine, sine = (tvmdml.gather(one, places, axis=0).reshape(batch, 1, rows, part // 2) for one in tables)
    turning, rest = x[..., :part], x[..., part:]
    if interleaved:
        first, second = turning[..., 0::2], turning[..., 1::2]
    else:
        first, second = turning[..., : part // 2], turning[..., part // 2 :]
    real, other = first * cosine - second * sine, first * sine + second * cosine
    if interleaved:
        found = tvmdml.join([real[..., None], other[..., None]], axis=4).reshape(*x.shape[:3], part)
    else:
        found = tvmdml.join([real, other], axis=3)
    if part != channels:
        found = tvmdml.join([found, rest], axis=3)
    return found.transpose(0, 2, 1, 3).reshape(shape) if len(shape) == 3 else found


@rule("com.microsoft.GroupQueryAttention")
def _grouped(node: Node) -> Results:
    """One query row after earlier ones is DirectML's own operator; several rows have a mask, for lengths that are known then."""
    if node.integer("smooth_softmax", 0) or node.real("softcap", 0.0) or node.has(11) or node.has(10):
        raise Refused("it has a smooth softmax, a softcap, a bias or a sink")
    heads, joint = node.integer("num_heads", 0), node.integer("kv_num_heads", 0)
    if node.has(1):
        query, key, value = (node.x(i) for i in range(3))
    else:
        whole = node.x()
        width = whole.shape[2] // max(heads + 2 * joint, 1)
        query, key, value = parted(whole, 2, [heads * width, joint * width, joint * width])
    batch, rows, _ = query.shape
    room = node.shape(3)[2] if node.has(3) else 0
    window = node.integer("local_window_size", -1)
    at_once = room and rows == 1 and window < 0
    before = _before(node, rows) if room and not at_once else 0
    if node.integer("do_rotary", 0):
        tables, side = (node.x(7), node.x(8)), bool(node.integer("rotary_interleaved", 0))
        if node.has(9):
            places = node.x(9).astype(np.int64)
        elif at_once:
            places = node.x(5).astype(np.int64).reshape(batch, 1)
        else:
            steps = node.constant(np.arange(before, before + rows, dtype=np.int64))
            places = steps.reshape(1, rows).broadcast(batch, rows)
        query = rotated(node, query, places, tables, heads, 2 * tables[0].shape[1], side)
        key = rotated(node, key, places, tables, joint, 2 * tables[0].shape[1], side)
    if at_once:
        inputs = [*map(_value, (query, key, value)), *node.inputs[3:7]]
        own = {name: number for name, number in node.attributes.items() if "rotary" not in name and name != "local_window_size"}
        return described.convert(node.replaced(node.kind, inputs, **own))
    kept = [one.reshape(batch, rows, joint, one.shape[2] // joint).transpose(0, 2, 1, 3) for one in (key, value)]
    past = [node.x(i) for i in (3, 4)] if room else []
    if before:
        kept = [tvmdml.join([old[:, :, :before], new], axis=2) for old, new in zip(past, kept, strict=True)]
    distances = np.arange(before, before + rows)[:, None] - np.arange(before + rows)
    hidden = (distances < 0) | ((distances >= window) if window >= 0 else False)
    bias = node.constant(np.where(hidden, float(np.finfo(query.dtype).min), 0).astype(query.dtype))
    scale = node.real("scale", 0.0) or (query.shape[2] / heads) ** -0.5
    if before:
        key, value = (one.transpose(0, 2, 1, 3).reshape(batch, before + rows, -1) for one in kept)
    found = tvmdml.multihead_attention(
        query, key, value, attention_bias=bias.reshape(1, 1, *distances.shape).broadcast(batch, heads, *distances.shape),
        head_count=heads, key_value_head_count=joint, scale=scale,
    )  # fmt: skip
    if room > before + rows:
        kept = [tvmdml.join([new, old[:, :, before + rows :]], axis=2) for old, new in zip(past, kept, strict=True)]
    return [found, *kept]


def _before(node: Node, rows: int) -> int:
    """How many rows are before the query's, in each batch."""
    lasts = set(node.integers(5))
    (last,) = lasts if len(lasts) == 1 else (-1,)
    if last + 1 < rows:
        raise Refused(
            f"its seqlens_k are {sorted(lasts)}, for {rows} rows: the batches have different lengths, or a prompt is padded"
        )
    before = last + 1 - rows
    if before > node.shape(3)[2]:
        raise Refused(f"its seqlens_k are {last}, for a past of {node.shape(3)[2]} rows")
    return before
