"""Nodes of ONNX that are an attention: ONNX's own, and those of ONNX Runtime."""

from __future__ import annotations

import math
from typing import Any

from tvmdml.enums import MultiheadAttentionMaskType as MaskType
from tvmdml.operators import _broadcast
from tvmdml.operators._onnx import NotConvertible, OnnxNode
from tvmdml.tensors import ArrayTensorDesc, TensorDataType


def _refuse(node: OnnxNode, **usual: Any) -> None:
    """Refuse attributes with other values than these."""
    for name, value in usual.items():
        if node.attributes.get(name, value) != value:
            raise NotConvertible(f"its {name} is {node.attributes[name]}")


def _absent(node: OnnxNode, **positions: int) -> None:
    for name, position in positions.items():
        if node.has(position):
            raise NotConvertible(f"its {name} has no counterpart in DirectML")


def _optional(node: OnnxNode, position: int) -> ArrayTensorDesc | None:
    return node.tensor(position) if node.has(position) else None


def _scale(node: OnnxNode, channels: int) -> float:
    """The factor of scores; 0 stands for the usual one."""
    given = node.attributes.get("scale")
    return float(given) if given else 1 / math.sqrt(channels)


def repeated(tensor: ArrayTensorDesc, sizes: tuple[int, ...]) -> ArrayTensorDesc:
    """A tensor repeated along dimensions of size 1."""
    if tensor.rank != len(sizes) or any(own not in (1, size) for own, size in zip(tensor.sizes, sizes, strict=True)):
        raise NotConvertible(f"its mask or bias is {list(tensor.sizes)}, for scores of {list(sizes)}")
    return _broadcast.repeated(tensor, sizes)


def _with(desc: ArrayTensorDesc, *sizes: int) -> ArrayTensorDesc:
    return desc.with_sizes(sizes)


def _asked(node: OnnxNode) -> int:
    """How many outputs there are: the result alone, or all that is kept with it."""
    if node.results not in (1, 3):
        raise NotConvertible(
            "its output of scores has no counterpart in DirectML" if node.results in (2, 4) else "it has no result"
        )
    return node.results


def _kept(dtype: Any, count: int) -> dict[str, Any]:
    return dict.fromkeys(("output_present_key_tensor", "output_present_value_tensor"), dtype) if count == 3 else {}


def multi_head_attention(cls: Any, node: OnnxNode) -> Any:
    """ONNX Runtime's MultiHeadAttention."""
    _refuse(node, unidirectional=0)
    _absent(node, past_sequence_length=8, cache_indirection=9)
    heads = node.integer("num_heads", 0)
    if heads < 1:
        raise NotConvertible("it has no num_heads")
    fields: dict[str, Any] = dict.fromkeys(field.name for field in cls.fields())
    query, key, value = node.tensor(0), _optional(node, 1), _optional(node, 2)
    past = _optional(node, 6), _optional(node, 7)
    if query.rank == 5:
        fields["stacked_query_key_value_tensor"] = query
        batch, rows, channels, total = *query.sizes[:2], query.sizes[4], query.sizes[1]
    else:
        fields["query_tensor"] = query
        batch, rows, channels = *query.sizes[:2], query.sizes[-1] // heads
        if key is None:
            raise NotConvertible("it has no keys")
        total = key.sizes[2] if key.rank == 4 else key.sizes[1]
    if key is not None and key.rank == 4:
        past, key, value = (key, value), None, None
    elif past[0] is not None:
        total += past[0].sizes[-2]
    if key is not None and key.rank == 5:
        fields["stacked_key_value_tensor"] = key
    elif key is not None:
        fields |= {"key_tensor": key, "value_tensor": value}
    fields |= {"bias_tensor": _optional(node, 3), "past_key_tensor": past[0], "past_value_tensor": past[1]}
    kind = MaskType.NONE
    if node.has(4):
        kind, fields["mask_tensor"] = _mask(node.tensor(4), (batch, heads, rows, total))
    if node.has(5):
        fields["relative_position_bias_tensor"] = repeated(node.tensor(5), (batch, heads, rows, total))
    inputs = [fields[field.name] for field in cls.fields() if field.role.value == "input tensor"]
    limit = float(node.attributes.get("mask_filter_value", -10000.0))
    count = _asked(node)
    return cls.of(
        *inputs, head_count=heads, scale=_scale(node, channels), mask_filter_value=limit, mask_type=kind,
        **_kept(query.data_type, count),
    )  # fmt: skip


def _mask(mask: ArrayTensorDesc, sizes: tuple[int, ...]) -> tuple[MaskType, ArrayTensorDesc]:
    """A mask of lengths, or of truth values that are repeated."""
    batch, _, rows, total = sizes
    if mask.data_type is not TensorDataType.INT32:
        raise NotConvertible(f"its mask is {mask.data_type.tvm}, and not int32")
    if mask.rank == 1:
        if mask.sizes == (batch,):
            return MaskType.KEY_SEQUENCE_LENGTH, _with(mask, 1, batch)
        if mask.sizes == (2 * batch,):
            return MaskType.KEY_SEQUENCE_END_START, _with(mask, 2, batch)
        return MaskType.KEY_QUERY_SEQUENCE_LENGTH_START_END, mask
    own = {2: (mask.sizes[0], 1, 1, mask.sizes[-1]), 3: (mask.sizes[0], 1, *mask.sizes[1:])}.get(mask.rank, mask.sizes)
    if own[3] != total or own[2] not in (1, rows):
        raise NotConvertible(f"its mask is {list(mask.sizes)}, for {rows} query rows and {total} keys")
    return MaskType.BOOLEAN, repeated(_with(mask, *own), sizes)


def attention(cls: Any, node: OnnxNode) -> Any:
    """ONNX's Attention. With four dimensions a head is a batch, and heads that share keys are query rows."""
    _refuse(node, is_causal=0, softcap=0.0, left_window_size=-1, right_window_size=-1)
    _absent(node, nonpad_kv_seqlen=6)
    if node.integer("softmax_precision", 1) != 1:
        raise NotConvertible("the type of its softmax is not float32")
    count = _asked(node)
    query, key, value = (node.tensor(i) for i in range(3))
    past: Any = _optional(node, 4), _optional(node, 5)
    added = _optional(node, 3)
    total = key.sizes[-2] + (0 if past[0] is None else past[0].sizes[-2])
    heads, joint = node.integer("q_num_heads", 0), node.integer("kv_num_heads", 0)
    if query.rank == 4:
        batch, heads, rows, channels = query.sizes
        joint = key.sizes[1]
        group = heads // max(joint, 1)
        if added is not None:
            added = _merged(_added(added, (batch, heads, rows, total)), group)
        query = query.with_sizes((batch * joint, group * rows, channels))
        key, value = (one.with_sizes((batch * joint, *one.sizes[2:])) for one in (key, value))
        past = tuple(None if one is None else one.with_sizes((batch * joint, 1, *one.sizes[2:])) for one in past)
        heads = joint = 1
    else:
        batch, rows, width = query.sizes
        if heads < 1 or joint < 1:
            raise NotConvertible("it has no q_num_heads or kv_num_heads")
        channels = width // heads
        if added is not None:
            added = _added(added, (batch, heads, rows, total))
    return cls.of(
        query, key, value, None, None, None, None, None, added, *past,
        query_head_count=heads, key_value_head_count=joint, scale=_scale(node, channels), mask_filter_value=0.0,
        mask_type=MaskType.NONE, **_kept(query.data_type, count),
    )  # fmt: skip


def _added(mask: ArrayTensorDesc, sizes: tuple[int, ...]) -> ArrayTensorDesc:
    """A mask that is added, repeated to all heads."""
    if not mask.data_type.is_float:
        raise NotConvertible("its mask of truth values is not int32")
    if mask.sizes[-1] != sizes[3]:
        raise NotConvertible(f"its mask has {mask.sizes[-1]} keys of {sizes[3]}")
    return repeated(mask.with_sizes((*(1,) * (4 - mask.rank), *mask.sizes)), sizes)


def _merged(mask: ArrayTensorDesc, group: int) -> ArrayTensorDesc:
    """The same with a batch for each head of keys, and a row for each query row of the heads that share it."""
    (batch, heads, rows, total), (of_batch, of_head, of_row, of_key) = mask.sizes, mask.layout
    joint = heads // group
    outer, inner = (batch > 1 and joint > 1), (group > 1 and rows > 1)
    if (outer and of_batch != joint * group * of_head) or (inner and of_head != rows * of_row):
        raise NotConvertible("its mask is repeated for some heads, which are batches and rows here")
    steps = (group * of_head if joint > 1 else of_batch, of_key * 0, of_row if rows > 1 else of_head, of_key)
    return ArrayTensorDesc(mask.data_type, (batch * joint, 1, group * rows, total), steps)
