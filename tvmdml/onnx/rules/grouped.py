"""ONNX Runtime's GroupQueryAttention: heads of queries that share keys, after rows of earlier steps."""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np

import tvmdml
from tvmdml.enums import MultiheadAttentionMaskType as MaskType
from tvmdml.graph import Expression
from tvmdml.onnx.descriptors import NotConvertible
from tvmdml.onnx.node import Node, Results, reshaped, rule
from tvmdml.onnx.rules.normalizing import normalized
from tvmdml.onnx.rules.transformers import rotated, with_elements
from tvmdml.onnx.rules.views import parted
from tvmdml.system import at_hand

_NOT_THERE = {12: "scales of quantized keys", 13: "scales of quantized values"}


@rule("com.microsoft.GroupQueryAttention")
def _grouped(node: Node) -> Results:
    """One operator: how many rows are before the new ones is a tensor of the run."""
    for at, what in _NOT_THERE.items():
        if node.has(at):
            raise NotConvertible(f"it has {what}")
    if any(node.outputs[3:]) and node.integer("qk_output", 0):
        raise NotConvertible("its output of scores has no counterpart in DirectML")
    node.inputs[3:5] = with_elements(node.inputs[3:5])
    heads, joint = node.integer("num_heads", 0), node.integer("kv_num_heads", 0)
    if heads < 1 or joint < 1 or heads % joint:
        raise NotConvertible(f"it has {heads} heads of queries, and {joint} of keys")
    if node.has(1):
        query, key, value = (node.x(i) for i in range(3))
    else:
        whole = node.x()
        width = whole.shape[2] // (heads + 2 * joint)
        query, key, value = parted(whole, 2, [heads * width, joint * width, joint * width])
    query, key = (_of_heads(node, one, n, at) for one, n, at in ((query, heads, 14), (key, joint, 15)))
    past = _past(node, query.shape[1])
    query, key = _turned(node, query, key, (heads, joint), past)
    rows = _Rows(node, (query, key, value), (heads, joint), past)
    if not node.integer("causal", 1):
        return rows.all_seen()
    return rows.of_window() if node.integer("sliding_window_cache", 0) else rows.seen(past.lengths, past.room)


def _of_heads(node: Node, one: Expression, heads: int, at: int) -> Expression:
    """Queries or keys; each head is normalized if there are weights for it."""
    if one.ndim != 3 or one.shape[2] % heads:
        raise NotConvertible(f"it has {heads} heads, for the sizes {list(one.shape)}")
    if not node.has(at):
        return one
    epsilon = node.real("q_norm_epsilon" if at == 14 else "k_norm_epsilon", node.real("qk_norm_epsilon", 1e-6))
    whole = one.reshape(*one.shape[:2], heads, -1)
    return normalized(whole, node.x(at), None, epsilon, mean=False).reshape(one.shape)


class _Past(NamedTuple):
    """Rows of earlier steps."""

    lengths: Expression
    """How many each batch has: int64."""
    new: Expression | int
    """How many of the new ones are no padding: int64, or a number for all batches."""
    room: int
    """The rows of what is kept."""
    is_first: bool
    """Whether these are the first rows of all texts."""


def _past(node: Node, rows: int) -> _Past:
    """Whether these are the first rows of a text follows from sizes; how many were before is a value of the run."""
    room, total = node.shape(3)[2] if node.has(3) else 0, node.count(6)
    window = node.integer("sliding_window_cache", 0)
    if not rows <= total or not (window or total <= room + rows):
        raise NotConvertible(f"its total_sequence_length is {total}, for {rows} rows and a past of {room}")
    every = node.x(5).astype(np.int64).reshape(-1) + 1
    new: Any = rows
    is_first = not node.has(16) and bool(total == rows)
    if node.has(16):
        new = node.x(16).astype(np.int64).reshape(-1)
    elif is_first:  # behind the rows of shorter texts is padding
        new = tvmdml.min(every, rows)
    return _Past(every - new, new, room if window else max(room, total), is_first)


def _turned(node: Node, query: Expression, key: Expression, heads: tuple[int, int], past: _Past) -> list[Expression]:
    """Queries and keys, turned by the angles of their places if the node says so."""
    if not node.integer("do_rotary", 0):
        return [query, key]
    tables, interleaved = (node.x(7), node.x(8)), bool(node.integer("rotary_interleaved", 0))
    rows = query.shape[1]
    first = past.lengths.reshape(-1, 1)
    if node.has(9):
        first = places = node.x(9).astype(np.int64)
    if past.is_first and node.has(9):  # only the first place is read
        first = first.reshape(-1)[:1].reshape(1, 1).broadcast(query.shape[0], 1)
    if past.is_first or not node.has(9):
        places = first + node.upto(rows).reshape(1, rows)
    pairs = zip((query, key), heads, strict=True)
    return [rotated(node, one, places, tables, n, 2 * tables[0].shape[1], interleaved) for one, n in pairs]


class _Rows(NamedTuple):
    """The new rows of queries, keys and values, and what they come after."""

    node: Node
    new: tuple[Expression, Expression, Expression]
    heads: tuple[int, int]
    past: _Past

    @property
    def scale(self) -> float:
        """The factor of scores; 0 stands for the usual one."""
        return self.node.real("scale", 0.0) or float(self.new[0].shape[2] / self.heads[0]) ** -0.5

    def seen(
        self, lengths: Expression, room: int, old: tuple[Expression | None, ...] | None = None, bias: Expression | None = None
    ) -> list[Any]:
        """The results, and what is kept: ``room`` rows, of which so many are before the new ones."""
        node, (heads, joint) = self.node, self.heads
        batch, rows, _ = self.new[0].shape
        given: dict[str, Expression | None] = dict(zip(("query_tensor", "key_tensor", "value_tensor"), self.new, strict=True))
        old = (node.maybe(3), node.maybe(4)) if old is None else old
        given |= dict(zip(("past_key_tensor", "past_value_tensor"), old, strict=True))
        given["past_sequence_lengths_tensor"] = lengths.astype(np.int32)
        if node.has(10):
            bias = _padded(node.x(10), 3, room) if bias is None else bias
            given["attention_bias_tensor"] = bias.broadcast(batch, heads, rows, room)
        limits: dict[str, Any] = {"softcap": node.real("softcap", 0.0), "window": max(node.integer("local_window_size", -1), 0)}
        if node.has(11) or node.integer("smooth_softmax", 0) > 0:
            sinks = node.x(11) if node.has(11) else node.constant(np.zeros(heads, self.new[0].dtype))
            given["sink_tensor"] = reshaped(sinks, (heads,))
        is_plain = not any(limits.values()) and "sink_tensor" not in given
        at_hand("tvmdml.operators._attention_limited_fused")  # attention is much to import, and few models have it
        from tvmdml.operators._attention_limited_fused import LimitedAttention
        from tvmdml.operators.multihead_attention import MultiheadAttention1

        cls: Any = MultiheadAttention1 if is_plain else LimitedAttention
        kept = {
            f"output_present_{name}_tensor": one.desc.with_sizes((batch, joint, room, one.shape[2] // joint))
            for name, one in zip(("key", "value"), self.new[1:], strict=True)
        }
        edges = {name: one for name, one in given.items() if one is not None}
        fields = dict.fromkeys(field.name for field in cls.fields()) | {name: one.desc for name, one in edges.items()} | kept
        fields["output_tensor"] = self.new[0].desc.with_sizes((batch, rows, heads * (self.new[2].shape[2] // joint)))
        desc = cls(
            **fields | ({} if is_plain else limits) | {"query_head_count": heads, "key_value_head_count": joint}
            | {"scale": self.scale, "mask_filter_value": 0.0, "mask_type": MaskType.NONE}
        )  # fmt: skip
        found, *every = node.graph.add(desc, edges)
        if node.integer("local_window_size", -1) == 0 and found is not None:  # no row sees a key, not even its own
            found = node.like(0, found).broadcast(found.shape)
        return [found, *every]

    def of_window(self) -> list[Any]:
        """The same where only the last rows are kept, in increasing order from the first row on.

        If there is room for all, they are kept as everywhere. Else they stay where they are until there is none, and then as many
        are dropped as are not in the window, and one more. Rows are put behind all that was kept: the first new one sees its
        whole window.
        """
        node, past = self.node, self.past
        window, room, rows = node.integer("local_window_size", -1), past.room, self.new[0].shape[1]
        if not (node.has(3) and 0 < window <= room):
            raise NotConvertible(f"it keeps a window of {window} rows in {room}")
        if node.count(6) <= room:  # nothing is dropped, and rows may be written where they are kept
            return self.seen(past.lengths, room)
        step = room - window + 1

        def kept(total: Expression) -> Expression:
            """How many rows are kept of so many."""
            over = tvmdml.max(total - room, node.like(0, total)) + (step - 1)
            return total - over / step * step

        before, after = kept(past.lengths), kept(past.lengths + past.new)
        places = node.upto(room + rows)
        bias = None
        if node.has(10):
            bias = _padded(node.x(10), 3, node.count(6))
            batch, heads, (_, _, _, total) = self.new[0].shape[0], self.heads[0], bias.shape
            at = (past.lengths - before).reshape(-1, 1, 1, 1) + places.reshape(1, 1, 1, -1)
            at = tvmdml.min(at, node.like(0, at) + (total - 1)).broadcast(batch, heads, rows, room + rows)
            bias = tvmdml.gather_elements(bias.broadcast(batch, heads, rows, total), at, axis=3)
        old = tuple(_padded(node.x(at), 2, room + rows) for at in (3, 4))
        found, *every = self.seen(before, room + rows, old, bias)
        at = (before + past.new - after).reshape(-1, 1, 1, 1) + places[:room].reshape(1, 1, room, 1)
        at = tvmdml.min(at, node.like(0, at) + (room + rows - 1))
        last = [tvmdml.gather_elements(one, at.broadcast(*one.shape[:2], room, one.shape[3]), axis=2) for one in every]
        return [found, *last]

    def all_seen(self) -> list[Any]:
        """The same where a query sees all keys of its text, also those after it."""
        node, (heads, joint), past = self.node, self.heads, self.past
        others = {name: node.attributes.get(name) for name in ("softcap", "smooth_softmax", "sliding_window_cache")}
        if any(one and one > 0 for one in others.values()) or node.has(11) or node.integer("local_window_size", -1) >= 0:
            raise NotConvertible("it is not causal, with limits of scores or keys")
        _, *kept = self.seen(past.lengths, past.room)
        batch, rows, _ = self.new[0].shape
        bias = _padded(node.x(10), 3, past.room).broadcast(batch, heads, rows, past.room) if node.has(10) else None
        ends = (past.lengths + past.new).astype(np.int32).reshape(1, -1)
        keys, values = (one.transpose(0, 2, 1, 3).reshape(batch, past.room, -1) for one in kept)
        found = tvmdml.multihead_attention(
            self.new[0], keys, values, None, None, None, None, ends, bias,
            head_count=heads, key_value_head_count=joint, scale=self.scale,
            mask_type=MaskType.KEY_SEQUENCE_LENGTH, mask_filter_value=float("-inf"),
        )  # fmt: skip
        return [found, *kept]


def _padded(x: Expression, axis: int, size: int) -> Expression:
    """So many elements along an axis: the first ones, or with zeros behind."""
    more = [size - n if i == axis else 0 for i, n in enumerate(x.shape)]
    if not any(more):
        return x
    if any(n < 0 for n in more):
        return x[..., :size]
    return tvmdml.padding(x, start_padding=[0] * x.ndim, end_padding=more)
