"""``tvmdml.multihead_attention``."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any, NamedTuple

from tvmdml.doors._made import door, truth
from tvmdml.enums import MultiheadAttentionMaskType
from tvmdml.errors import InvalidArgument, message
from tvmdml.functions import AnyArray, Described, call, describes
from tvmdml.operators._attention import Attention
from tvmdml.operators._broadcast import repeated
from tvmdml.operators.multihead_attention import MultiheadAttention, MultiheadAttention1
from tvmdml.tensors import ArrayTensorDesc

__all__ = ["MultiheadAttentionResult", "multihead_attention"]


class MultiheadAttentionResult(NamedTuple):
    """The results of ``multihead_attention(compute_present=True)``."""

    output: AnyArray
    """The weighed sums of values."""
    present_key: AnyArray
    """All keys: those of earlier steps, and the new ones."""
    present_value: AnyArray
    """All values."""


@door(
    MultiheadAttention,
    ({"compute_present": "Literal[True]", "out": "Sequence[AnyArray] | None"}, "MultiheadAttentionResult"),
    ({}, "AnyArray"),
)
def multihead_attention(
    query: AnyArray | None = None,
    key: AnyArray | None = None,
    value: AnyArray | None = None,
    stacked_query_key: AnyArray | None = None,
    stacked_key_value: AnyArray | None = None,
    stacked_query_key_value: AnyArray | None = None,
    bias: AnyArray | None = None,
    mask: AnyArray | None = None,
    attention_bias: AnyArray | None = None,
    past_key: AnyArray | None = None,
    past_value: AnyArray | None = None,
    past_sequence_lengths: AnyArray | None = None,
    *,
    head_count: int,
    key_value_head_count: int | None = None,
    scale: float | None = None,
    mask_filter_value: float = -10000.0,
    mask_type: MultiheadAttentionMaskType | str = "none",
    compute_present: bool = False,
    out: AnyArray | Sequence[AnyArray] | None = None,
    device: str | None = None,
) -> AnyArray:
    """Weighed sums of values for each head (DML_OPERATOR_MULTIHEAD_ATTENTION, DML_OPERATOR_MULTIHEAD_ATTENTION1).

    The weights of a query are ``softmax(scale * query @ keys.T + attention_bias)``, with ``mask_filter_value`` added for keys that
    the mask does not keep. A row whose scores are all -inf is 0. Queries, keys and values are in three arrays, or stacked: with new
    keys and values in the same way, or without any, if ``past_key`` and ``past_value`` have them all.

    Args:
        query: {batch, rows, heads * channels}: float16 or float32; 3 to 5 dimensions, the first ones 1.
        key: {batch, new rows, heads of keys * channels}, of the same type, as are all others but masks and lengths.
        value: {batch, new rows, heads of keys * channels of values}.
        stacked_query_key: {batch, rows, heads, 2, channels}, in place of ``query`` and ``key``.
        stacked_key_value: {batch, new rows, heads of keys, 2, channels}, in place of ``key`` and ``value``.
        stacked_query_key_value: {batch, rows, heads, 3, channels}, in place of all three.
        bias: what is added to queries, keys and values: for each channel of all heads, one after the other.
        mask: int32: what ``mask_type`` says. Lengths of keys are {batch}; ends and then starts are {2, batch}; lengths with starts
            and ends are {3 * batch + 2}. Truth values (0 or not) are broadcast to {batch, heads, rows, keys}.
        attention_bias: is added to the scores: {batch, heads, rows, keys}; broadcast.
        past_key: {batch, heads of keys, rows, channels}: keys of earlier steps, which come before the new ones.
        past_value: the same of values.
        past_sequence_lengths: int32, for each batch: how many rows of ``past_key`` there are. New rows come after them, and a query
            sees no key after its own. It is cut to what there is room for. Needs ``compute_present``; the results have the rows of
            ``past_key``, and may be these arrays (``out``): then only new rows are written. Rows after the new ones are the past's.
        head_count: the number of heads of queries.
        key_value_head_count: the number of heads of keys, by default the same. Each is for as many heads of queries.
        scale: the factor of scores, by default 1 / sqrt(channels).
        mask_filter_value: what is added to the scores of keys that the mask does not keep.
        mask_type: ``"none"``, ``"key_sequence_length"``, ``"key_sequence_end_start"``, ``"key_query_sequence_length_start_end"`` or
            ``"boolean"``.
        compute_present: whether all keys and values are returned, for the next step.
        out: an array for the result, or three with ``compute_present``.

    Returns:
        {batch, rows, heads * channels of values}; with ``compute_present`` a ``MultiheadAttentionResult``.
    """
    wanted = truth("multihead_attention", "compute_present", compute_present)
    inputs = (
        *(query, key, value, stacked_query_key, stacked_key_value, stacked_query_key_value),
        *(bias, mask, attention_bias, past_key, past_value, past_sequence_lengths),
    )
    attributes = (head_count, key_value_head_count, scale, mask_filter_value, mask_type, wanted)
    results = call(_describe, inputs, attributes, out, device, optional=True)
    return MultiheadAttentionResult(*results) if wanted else results[0]


_INPUTS = tuple(field.name.removesuffix("_tensor") for field in MultiheadAttention1.fields() if field.role.value == "input tensor")
_LEAST_RANKS = {
    **dict.fromkeys(("query", "key", "value"), 3),
    **dict.fromkeys(("stacked_query_key", "stacked_key_value", "stacked_query_key_value"), 5),
    **dict.fromkeys(("past_key", "past_value"), 4),
}
_PAST, _LENGTHS, _MASK, _BIAS = (_INPUTS.index(name) for name in ("past_key", "past_sequence_lengths", "mask", "attention_bias"))


@describes("tvmdml.multihead_attention", *_INPUTS)
def _describe(*given: Any) -> Described:
    tensors: list[ArrayTensorDesc | None] = list(given[: len(_INPUTS)])
    heads, joint, scale, limit, kind, present = given[len(_INPUTS) :]
    counts = {"query_head_count": heads, "key_value_head_count": heads if joint is None else joint}
    kept: dict[str, Any] = {}
    first = next((one for one in tensors if one is not None), None)
    where = MultiheadAttention.where
    if first is None:
        raise InvalidArgument(message(where("query"), "None", "an array of queries"))
    if present:
        names = ("output_present_key_tensor", "output_present_value_tensor")
        kept = dict.fromkeys(names, first.data_type)
    past, lengths = tensors[_PAST : _PAST + 2], tensors[_LENGTHS]
    if lengths is not None:
        if None in past or not present:
            said = "past_key and past_value, and compute_present"
            raise InvalidArgument(message(where("past_sequence_lengths"), f"without {said}", f"together with {said}"))
        kept = {name: one.with_sizes(one.sizes) for name, one in zip(kept, past, strict=True) if one is not None}
    plain = lengths is None and joint in (None, heads)
    usual = {"scale": 1.0 if scale is None else scale, "mask_filter_value": limit, "mask_type": kind, **kept}

    for name, tensor in zip(_INPUTS, tensors, strict=True):
        least = _LEAST_RANKS.get(name, 1)
        if tensor is not None and tensor.rank < least:
            allowed = "rank 5" if least == 5 else f"rank {least} to 5"
            raise InvalidArgument(message(where(f"{name}_tensor"), f"rank {tensor.rank}", allowed))

    def described() -> Attention:
        if plain:
            return MultiheadAttention.of(*tensors[:-1], head_count=heads, **usual)
        return MultiheadAttention1.of(*tensors, **counts, **usual)

    found = described()
    sizes = found.sizes()
    full = (sizes.batch, sizes.heads, sizes.rows, sizes.total)
    changed = False
    for i in (_BIAS, _MASK):
        own = tensors[i]
        boolean = i == _BIAS or found.mask_type is MultiheadAttentionMaskType.BOOLEAN
        if own is not None and boolean and own.sizes != full and own.rank <= 4:
            fits = all(size in (1, most) for size, most in zip(own.sizes[::-1], full[::-1], strict=False))
            found.require(fits, f"{_INPUTS[i]}_tensor.sizes", own.sizes, f"{full}, or sizes that can be broadcast to them")
            tensors[i], changed = repeated(own, full), True
    if scale is None:
        usual["scale"], changed = 1 / math.sqrt(max(sizes.channels, 1)), True
    return Described(described() if changed else found)
