"""ONNX Runtime's GroupQueryAttention: heads of queries that share keys, after rows of earlier steps."""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np

import tvmdml
from tvmdml.graph import Expression
from tvmdml.onnx import described
from tvmdml.onnx.node import Node, Results, reshaped, rule
from tvmdml.onnx.rules.normalizing import normalized
from tvmdml.onnx.rules.transformers import rotated
from tvmdml.onnx.rules.views import parted
from tvmdml.onnx.values import Value
from tvmdml.onnx_nodes import Refused

_NOT_THERE = {12: "scales of quantized keys", 13: "scales of quantized values", 16: "lengths of padded queries"}


@rule("com.microsoft.GroupQueryAttention")
def _grouped(node: Node) -> Results:
    """One query row after earlier ones is DirectML's own operator, and so are several rows of one length. Others are composed."""
    for at, what in _NOT_THERE.items():
        if node.has(at):
            raise Refused(f"it has {what}")
    if not node.integer("causal", 1) or node.integer("sliding_window_cache", 0):
        raise Refused("it is not causal, or keeps a window only")
    heads, joint = node.integer("num_heads", 0), node.integer("kv_num_heads", 0)
    if heads < 1 or joint < 1 or heads % joint:
        raise Refused(f"it has {heads} heads of queries, and {joint} of keys")
    if node.has(1):
        query, key, value = (node.x(i) for i in range(3))
    else:
        whole = node.x()
        width = whole.shape[2] // (heads + 2 * joint)
        query, key, value = parted(whole, 2, [heads * width, joint * width, joint * width])
    query, key = (_of_heads(node, one, n, at) for one, n, at in ((query, heads, 14), (key, joint, 15)))
    rows, room = query.shape[1], node.shape(3)[2] if node.has(3) else 0
    plain = not (node.integer("smooth_softmax", 0) or node.real("softcap", 0.0) or node.has(10) or node.has(11))
    at_once = plain and room > 0 and rows == 1 and node.integer("local_window_size", -1) < 0
    past = _past(node, rows, room) if not at_once else None
    query, key = _turned(node, query, key, (heads, joint), past)
    if at_once:
        names = ("num_heads", "kv_num_heads", "scale")
        inputs = [*(Value.computed(one) for one in (query, key, value)), *node.inputs[3:7]]
        own = {name: number for name, number in node.attributes.items() if name in names}
        return described.convert(node.replaced(node.kind, inputs, **own))
    assert past is not None
    new = [one.reshape(*one.shape[:2], joint, one.shape[2] // joint).transpose(0, 2, 1, 3) for one in (key, value)]
    kept = [_kept(node, past, node.maybe(at), one) for at, one in ((3, new[0]), (4, new[1]))]
    seen = [one[:, :, : past.before + rows] if past.before >= 0 else one for one in kept]
    hidden = _hidden(node, past, rows, seen[0].shape[2])
    scale = node.real("scale", 0.0) or (query.shape[2] / heads) ** -0.5
    if not plain:
        return [_composed(node, query, (seen[0], seen[1]), hidden, scale), *kept]
    batch, _, total, _ = seen[0].shape
    lowest = node.like(float(np.finfo(query.dtype).min), query)
    bias = tvmdml.where(hidden, lowest, node.like(0, query)).broadcast(batch, heads, rows, total)
    key, value = (one.transpose(0, 2, 1, 3).reshape(batch, total, -1) for one in seen)
    found = tvmdml.multihead_attention(
        query, key, value, attention_bias=bias,
        head_count=heads, key_value_head_count=joint, scale=scale,
    )  # fmt: skip
    return [found, *kept]


def _of_heads(node: Node, x: Expression, heads: int, at: int) -> Expression:
    """Queries or keys; each head is normalized if there are weights for it."""
    if x.ndim != 3 or x.shape[2] % heads:
        raise Refused(f"it has {heads} heads, for the sizes {list(x.shape)}")
    if not node.has(at):
        return x
    epsilon = node.real("q_norm_epsilon" if at == 14 else "k_norm_epsilon", node.real("qk_norm_epsilon", 1e-6))
    found: Expression = normalized(x.reshape(*x.shape[:2], heads, -1), node.x(at), None, epsilon, mean=False).reshape(x.shape)
    return found


class _Past(NamedTuple):
    """How many rows are before the query's."""

    before: int
    """-1 if the batches differ, or it is not known."""
    each: Expression | None
    """In each batch, as int64, if they differ."""
    total: int
    """The rows that are kept."""


def _past(node: Node, rows: int, room: int) -> _Past:
    if not room:
        return _Past(0, None, rows)
    total = int(node.number(6))
    if not 0 < total <= room + rows:
        raise Refused(f"its total_sequence_length is {total}, for {rows} rows and a past of {room}")
    most = max(room, total)
    if total == rows:  # the first rows of a text; behind shorter ones is padding
        return _Past(0, None, most)
    if node.is_known(5) or rows > 1:
        lasts = set(node.integers(5))
        if not all(0 <= last + 1 - rows <= room for last in lasts):
            raise Refused(f"its seqlens_k are {sorted(lasts)}, for {rows} rows and a past of {room}")
        if len(lasts) == 1:
            return _Past(lasts.pop() + 1 - rows, None, most)
    return _Past(-1, node.x(5).astype(np.int64).reshape(-1) - (rows - 1), most)


def _places(node: Node, past: _Past, rows: int) -> Expression:
    """The place of each query row in its text: {batch or 1, rows}."""
    steps = node.constant(np.arange(rows, dtype=np.int64) + max(past.before, 0)).reshape(1, rows)
    found: Expression = steps if past.each is None else steps + past.each.reshape(-1, 1)
    return found


def _turned(node: Node, query: Expression, key: Expression, heads: tuple[int, int], past: _Past | None) -> list[Expression]:
    """Queries and keys, turned by the angles of their places if the node says so."""
    if not node.integer("do_rotary", 0):
        return [query, key]
    tables, side = (node.x(7), node.x(8)), bool(node.integer("rotary_interleaved", 0))
    batch, rows, _ = query.shape
    if node.has(9):
        places = node.x(9).astype(np.int64)
    elif past is None:
        places = node.x(5).astype(np.int64).reshape(batch, 1)
    else:
        places = _places(node, past, rows).broadcast(batch, rows)
    pairs = zip((query, key), heads, strict=True)
    return [rotated(node, one, places, tables, n, 2 * tables[0].shape[1], side) for one, n in pairs]


def _kept(node: Node, past: _Past, old: Expression | None, new: Expression) -> Expression:
    """The rows of earlier steps with the new ones behind them, in each batch: {batch, heads, rows, channels}."""
    rows = new.shape[2]
    if old is None or past.total == rows:
        return new
    if past.each is None:
        parts = [old[:, :, : past.before], new, old[:, :, past.before + rows :]]
        found: Expression = tvmdml.join([one for one in parts if one.shape[2]], axis=2)
    else:
        shape = (*new.shape[:2], past.total, new.shape[3])
        steps = node.constant(np.arange(past.total, dtype=np.int64)).reshape(1, 1, past.total, 1)
        at = steps - past.each.reshape(-1, 1, 1, 1)
        inside = tvmdml.logical_and(tvmdml.greater_than_or_equal(at, node.like(0, at)), tvmdml.less_than(at, node.like(rows, at)))
        index = tvmdml.min(tvmdml.max(at, node.like(0, at)), node.like(rows - 1, at)).broadcast(shape)
        found = tvmdml.where(inside.broadcast(shape), tvmdml.gather_elements(new, index, axis=2), _padded(old, 2, past.total))
    return _padded(found, 2, past.total)


def _padded(x: Expression, axis: int, size: int) -> Expression:
    """With zeros behind."""
    more = [size - n if i == axis else 0 for i, n in enumerate(x.shape)]
    found: Expression = tvmdml.padding(x, start_padding=[0] * x.ndim, end_padding=more) if any(more) else x
    return found


def _hidden(node: Node, past: _Past, rows: int, total: int) -> Expression:
    """Which keys a query row does not see, those after it and those before its window: {batch or 1, 1, rows, keys}."""
    places = _places(node, past, rows)
    at = places.reshape(places.shape[0], 1, rows, 1) - node.constant(np.arange(total, dtype=np.int64)).reshape(1, 1, 1, total)
    found: Expression = tvmdml.less_than(at, node.like(0, at))
    if (window := node.integer("local_window_size", -1)) >= 0:
        found = tvmdml.logical_or(found, tvmdml.greater_than_or_equal(at, node.like(window, at)))
    return found


def _composed(node: Node, query: Expression, seen: tuple[Expression, Expression], hidden: Expression, scale: float) -> Any:
    """By products and a softmax, with what DirectML's operator has not: soft limits, sinks, and a bias of each head."""
    key, value = seen
    (batch, rows, width), (_, joint, total, channels) = query.shape, key.shape
    heads = width // channels
    split = query.reshape(batch, rows, heads, channels).transpose(0, 2, 1, 3).reshape(batch, joint, -1, channels)
    scores = tvmdml.gemm(split, key, trans_b="transpose", alpha=scale).reshape(batch, heads, rows, total).astype(np.float32)
    if limit := node.real("softcap", 0.0):
        scores = tvmdml.tanh(scores * (1 / limit)) * limit
    if node.has(10):
        scores = scores + _padded(node.x(10)[..., :total].astype(np.float32), 3, total)
    scores = tvmdml.where(hidden, node.like(float(np.finfo(np.float32).min), scores), scores)
    if node.has(11) or node.integer("smooth_softmax", 0):
        sink = node.x(11).astype(np.float32) if node.has(11) else node.constant(np.zeros(heads, np.float32))
        column = reshaped(sink, (1, heads, 1, 1)).broadcast(batch, heads, rows, 1)
        scores = tvmdml.join([scores, column], axis=3)
    weights = tvmdml.activation_softmax(scores, axes=[3])[..., :total].astype(query.dtype)
    found = tvmdml.gemm(weights.reshape(batch, joint, -1, total), value)
    return found.reshape(batch, heads, rows, -1).transpose(0, 2, 1, 3).reshape(batch, rows, -1)
