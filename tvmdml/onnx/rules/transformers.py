"""ONNX Runtime's operators of transformers."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

import tvmdml
from tvmdml.graph import Expression
from tvmdml.onnx import described
from tvmdml.onnx.descriptors import NotConvertible
from tvmdml.onnx.node import Node, Results, reshaped, rule
from tvmdml.onnx.rules.products import product
from tvmdml.onnx.rules.views import parted
from tvmdml.onnx.values import Value


def _value(x: Any) -> Value | None:
    return None if x is None else Value.computed(x)


def with_elements(past: Sequence[Value | None]) -> list[Value | None]:
    """Earlier rows; a first step has none, and DirectML no tensors without elements."""
    return [None if one is not None and not one.size else one for one in past]


@rule("Attention")
def _onnx_attention(node: Node) -> Results:
    """DirectML's operator has heads of four dimensions as batches; what is kept has ONNX's sizes."""
    node.inputs[4:6] = with_elements(node.inputs[4:6])
    found = list(described.convert(node))
    heads = node.shape(1)[1] if len(node.shape()) == 4 else node.integer("kv_num_heads", 0)
    return [found[0], *(None if one is None else reshaped(one, (node.shape()[0], heads, *one.shape[2:])) for one in found[1:])]


@rule("com.microsoft.Attention")
def _attention(node: Node) -> Results:
    """One product for queries, keys and values, and then a MultiHeadAttention."""
    if node.integer("do_rotary", 0) or node.has(6):
        raise NotConvertible("it has rotary embeddings, or a past of a given length")
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
        raise NotConvertible(f"it has {heads} heads, for queries of {whole.ndim} dimensions")
    sizes = list(node.attributes.get("qkv_hidden_sizes", [whole.shape[2] // 3] * 3))
    query, key, value = parted(whole, 2, sizes)
    past: list[Expression | None] = [None, None]
    outputs = len(node.outputs) > 1 and node.outputs[1]
    if sizes[1] != sizes[2] and (node.has(4) or outputs):
        raise NotConvertible(
            f"its keys have {sizes[1]} channels and its values {sizes[2]}: they cannot be one tensor, past or present"
        )
    if node.has(4):
        both = node.x(4)
        past = [both[0], both[1]]
    inputs = [_value(query), _value(key), _value(value), None, node.inputs[3] if node.has(3) else None, _value(bias)]
    inner = node.replaced("com.microsoft.MultiHeadAttention", [*inputs, *map(_value, past)], num_heads=heads)
    for name in ("scale", "mask_filter_value", "unidirectional"):
        if name in node.attributes:
            inner.attributes[name] = node.attributes[name]
    inner.outputs = (True, True, True) if outputs else (True,)
    found = _several_heads(inner)
    if not outputs:
        return found[0]
    present = [one[None] for one in found[1:3]]
    return [found[0], tvmdml.join(present, axis=0)]


@rule("com.microsoft.MultiHeadAttention")
def _several_heads(node: Node) -> Any:
    """DirectML's operator; with rows of earlier steps in longer tensors, or with queries that do not see later keys."""
    inputs = [node.inputs[i] if node.has(i) else None for i in range(10)]
    own = dict(node.attributes)
    old: list[Expression] = []
    if node.has(8) and node.has(6):
        before = node.count(8)
        old = [node.x(i) for i in (6, 7)]
        if not 0 <= before <= old[0].shape[2]:
            raise NotConvertible(f"its past_sequence_length is {before}, of {old[0].shape[2]} rows")
        inputs[6:9] = [*(_value(one[:, :, :before]) if before else None for one in old), None]
    inputs[6:8] = with_elements(inputs[6:8])
    if own.pop("unidirectional", 0):
        inputs[5] = _value(_later(node, inputs))
    inner = node.replaced(node.kind, inputs, **own)
    inner.attributes = own
    found = list(described.convert(inner))
    if old:
        found[1:3] = [
            tvmdml.join([one, rest[:, :, one.shape[2] :]], axis=2) if one.shape[2] < rest.shape[2] else one
            for one, rest in zip(found[1:3], old, strict=True)
        ]
    return found


def _later(node: Node, inputs: Sequence[Value | None]) -> Expression:
    """What is added to scores, so that a query does not see later keys. The last query is as late as the last key."""
    key, past = inputs[1], inputs[6]
    if key is None or node.x().ndim != 3 or key.shape is None or len(key.shape) not in (3, 4):
        raise NotConvertible("it is unidirectional, with queries and keys in one tensor")
    rows, before = node.shape()[1], 0 if past is None or past.shape is None else past.shape[2]
    total = before + key.shape[-2]
    last = node.upto(rows).reshape(1, 1, rows, 1) + (total - rows)
    lowest = node.constant(np.finfo(node.dtype()).min)
    hidden: Expression = tvmdml.where(
        tvmdml.less_than(last, node.upto(total).reshape(1, 1, 1, total)), lowest, node.like(0, lowest)
    )
    return hidden if inputs[5] is None else node.x(5) + hidden


@rule("com.microsoft.DecoderMaskedMultiHeadAttention")
def _one_row(node: Node) -> Results:
    """A MultiHeadAttention with other places of its inputs."""
    if node.has(9):
        raise NotConvertible("it follows the beams of a search")
    inputs = [node.inputs[i] if node.has(i) else None for i in (0, 1, 2, 10, 3, 4, 5, 6, 7)]
    names = ("num_heads", "scale", "mask_filter_value")
    own = {name: value for name, value in node.attributes.items() if name in names}
    return _several_heads(node.replaced("com.microsoft.MultiHeadAttention", inputs, **own))


@rule("com.microsoft.MRotaryEmbedding")
def _of_three(node: Node) -> Results:
    """Angles of three places: of time, height and width. Each has a part of the tables, or every third column of a part."""
    if node.integer("is_packed_batching", 0) or node.real("scale", 1.0) != 1 or node.value(1).size % 3:
        raise NotConvertible("its batches are packed, or it has a scale")
    sections, tables = node.attributes.get("mrope_section", ()), [node.x(2), node.x(3)]
    half = tables[0].shape[1]
    if len(sections) != 3 or sum(sections) != half or min(sections) < 0:
        raise NotConvertible(f"its mrope_section is {list(sections)}, for {half} columns")
    if node.integer("mrope_layout", 0):
        owner = np.zeros(half, np.int64)
        for i in (1, 2):
            owner[i : sections[i] * 3 : 3] = i
    else:
        owner = np.repeat(np.arange(3), sections)
    _, batch, rows = node.shape(1)
    wide = []
    for table in tables:
        each = tvmdml.gather(table, node.x(1), axis=0).reshape(3, batch * rows, half)
        kinds = node.constant(owner).reshape(1, half)
        first = each[0]
        for i in (1, 2):
            first = tvmdml.where(tvmdml.equals(kinds, node.like(i, kinds)), each[i], first)
        wide.append(first)
    places = node.upto(batch * rows).reshape(batch, rows)
    return rotated(
        node, node.x(), places, wide, node.integer("num_heads", 0), node.integer("rotary_embedding_dim", 0),
        bool(node.integer("interleaved", 0)),
    )  # fmt: skip


@rule("com.microsoft.RotaryEmbedding")
def _rotary(node: Node) -> Results:
    if node.integer("is_packed_batching", 0):
        raise NotConvertible("its batches are packed")
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
        steps = node.upto(rows).reshape(1, rows)
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
