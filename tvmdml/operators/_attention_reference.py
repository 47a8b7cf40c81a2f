"""Attention in NumPy, in float64, and how far a result may be off."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, NamedTuple

import numpy as np

from tvmdml.operators._accuracy import Expected, Near
from tvmdml.operators._attention_masks import kept_keys
from tvmdml.operators._contract import NumpyArray

_U = 2.0**-24
_LEAST = 2.0**-126
_LARGE = 1e38
"""Sums of float32 whose terms have larger magnitudes together may be infinite, or not."""

_STACKED = (
    ("stacked_query_key_tensor", (0, 1)),
    ("stacked_key_value_tensor", (1, 2)),
    ("stacked_query_key_value_tensor", (0, 1, 2)),
)


def _sources(desc: Any, given: Mapping[str, NumpyArray | None]) -> list[NumpyArray | None]:
    """New queries, keys and values as {batch, heads, rows, channels}, with their biases, in the tensors' type."""
    s = desc.sizes()
    found: list[NumpyArray | None] = [None, None, None]
    for i, name in enumerate(("query_tensor", "key_tensor", "value_tensor")):
        x = given[name]
        if x is not None:
            heads = s.heads if i == 0 else s.joint
            found[i] = x.reshape(*x.shape[-3:-1], heads, x.shape[-1] // heads).swapaxes(1, 2)
    for name, parts in _STACKED:
        x = given[name]
        for k, i in enumerate(parts if x is not None else ()):
            found[i] = x[:, :, :, k].swapaxes(1, 2)  # type: ignore[index]
    bias = given["bias_tensor"]
    if bias is not None:
        flat = bias.reshape(-1).astype(np.float32)
        own = np.split(flat, [s.heads * s.channels, (s.heads + s.joint) * s.channels])
        for i, x in enumerate(found):
            if x is not None:
                part = own[i].reshape(x.shape[1], 1, x.shape[3])
                found[i] = (x.astype(np.float32) + part).astype(x.dtype)
    return found


def _joined(desc: Any, given: Mapping[str, NumpyArray | None], part: int, new: NumpyArray | None) -> tuple[NumpyArray, NumpyArray]:
    """All keys or values, and which of them queries may see: {batch, 1, rows, 1}. Others are the past's, or 0."""
    s = desc.sizes()
    past = given["past_key_tensor" if part == 1 else "past_value_tensor"]
    past = None if past is None else past.reshape(past.shape[-4:])
    lengths = past_lengths(desc, given)
    if lengths is None:
        there = [one for one in (past, new) if one is not None]
        found = np.concatenate(there, axis=2)
        return found, np.ones((s.batch, 1, found.shape[2], 1), bool)
    assert new is not None
    found = np.zeros((s.batch, s.joint, s.total, new.shape[3]), new.dtype)
    defined = np.zeros((s.batch, 1, s.total, 1), bool)
    for b, length in enumerate(lengths):
        if past is not None:
            found[b, :, : past.shape[2]] = past[b, :, : s.total]
            defined[b, :, :length] = True
        found[b, :, length : length + s.new] = new[b]
        defined[b, :, length : length + s.new] = True
    return found, defined


def past_lengths(desc: Any, given: Mapping[str, NumpyArray | None]) -> NumpyArray | None:
    """The number of rows of earlier steps of each batch."""
    lengths = given.get("past_sequence_lengths_tensor")
    if lengths is None:
        return None
    s = desc.sizes()
    most = s.total - s.new if given["past_key_tensor"] is None else min(s.total - s.new, s.past)
    return np.clip(lengths.reshape(-1).astype(np.int64), 0, most)


def attention(desc: Any, given: Mapping[str, NumpyArray | None]) -> tuple[Expected, ...]:
    """The outputs of the operator."""
    s = desc.sizes()
    dtype = desc.output_tensor.data_type.numpy
    query, key, value = _sources(desc, given)
    keys, defined = _joined(desc, given, 1, key)
    values, _ = _joined(desc, given, 2, value)
    assert query is not None
    group = s.heads // s.joint
    every = (s.batch, s.heads, s.rows, s.total)
    positions, mask = given[desc.POSITIONS], given["mask_tensor"]
    added = None if positions is None else positions.reshape(positions.shape[-4:])
    kept = None if mask is None else np.broadcast_to(kept_keys(desc.mask_type, mask, s), every)
    lengths, sinks = past_lengths(desc, given), given.get("sink_tensor")
    found, error = (np.zeros((s.batch, s.heads, s.rows, values.shape[3])) for _ in range(2))
    for b, n in np.ndindex(s.batch, s.heads):  # one by one: a matrix of all scores may be large
        one = slice(b, b + 1), slice(n, n + 1)
        shared = slice(b, b + 1), slice(n // group, n // group + 1)
        more = _More(
            None if added is None else added[one],
            None if kept is None else kept[one],
            None if lengths is None else lengths[b : b + 1],
            defined[b : b + 1],
            None if sinks is None else float(sinks.reshape(-1)[n]),
        )
        with np.errstate(all="ignore"):
            found[one], error[one] = _weighed(desc, query[one], keys[shared], values[shared], more)
    outputs: list[Expected] = [_result(desc, found, error, dtype)]
    for name, rows in (("output_present_key_tensor", keys), ("output_present_value_tensor", values)):
        tensor = getattr(desc, name)
        if tensor is not None:
            told = defined | (given["past_key_tensor"] is not None)  # without a past, other rows stay as they are
            anything = np.where(np.broadcast_to(told, rows.shape), 0.0, np.nan).reshape(tensor.sizes)
            wide = rows.astype(np.float64).reshape(tensor.sizes)
            outputs.append(Near(wide, np.dtype(dtype), 0, anything))
    return tuple(outputs)


def _result(desc: Any, found: NumpyArray, error: NumpyArray, dtype: Any) -> Near:
    sizes = desc.output_tensor.sizes
    error = np.where(np.isnan(found) & ~np.isnan(error), 0.0, error)
    return Near(found.swapaxes(1, 2).reshape(sizes), np.dtype(dtype), 0, error.swapaxes(1, 2).reshape(sizes))


class _More(NamedTuple):
    """What scores of a head depend on, beside queries and keys."""

    added: NumpyArray | None
    kept: NumpyArray | None
    lengths: NumpyArray | None
    defined: NumpyArray
    sink: float | None


def _weighed(desc: Any, query: NumpyArray, keys: NumpyArray, values: NumpyArray, more: _More) -> tuple[NumpyArray, NumpyArray]:
    """The results of a head's rows, and the errors that they may have; NaN is any."""
    s = desc.sizes()
    added, kept, lengths, defined, sink = more
    q, k, v = (one.astype(np.float64) for one in (query, keys, values))
    scale, limit = float(desc.scale), float(desc.mask_filter_value)
    scores: Any = q @ k.swapaxes(2, 3) * scale
    finite_q, finite_k = (np.nan_to_num(np.abs(one), nan=0.0, posinf=0.0) for one in (q, k))
    sizes = finite_q @ finite_k.swapaxes(2, 3)
    large = sizes * max(1.0, abs(scale)) > _LARGE
    sizes = sizes * abs(scale)
    if desc.most_score:
        scores = np.tanh(scores / desc.most_score) * desc.most_score
        sizes = sizes + 8 * desc.most_score
    if added is not None:
        scores, sizes = scores + added.astype(np.float64), sizes + np.abs(added.astype(np.float64))
    if kept is not None:
        scores, sizes = np.where(kept, scores, scores + limit), np.where(kept, sizes, sizes + abs(limit))
    seen = np.ones(scores.shape, bool)
    unknown = np.zeros((*scores.shape[:3], 1), bool)
    if lengths is not None:
        own = lengths[:, None, None, None] + np.arange(s.rows)[:, None]
        seen &= np.arange(s.total) <= own
        if desc.window_rows:
            seen &= np.arange(s.total) > own - desc.window_rows
        unknown |= (seen & ~defined.swapaxes(2, 3)).any(axis=3, keepdims=True)
    scores = np.where(seen, scores, -np.inf)
    # A sum beyond float32 is infinite there.
    large = np.asarray((large | (np.isfinite(scores) & (np.abs(scores) > _LARGE))) & seen).any(axis=3, keepdims=True)
    most = scores.max(axis=3, keepdims=True, initial=-np.inf if sink is None else sink)
    none = most == -np.inf
    powers = np.where(seen, np.exp(scores - np.where(none, 0.0, most)), 0.0)
    total = powers.sum(axis=3, keepdims=True) + (0.0 if sink is None else np.exp(sink - np.where(none, 0.0, most)))
    weights: Any = np.where(none, 0.0, powers / np.where(none, 1.0, total))
    seen_values = np.where(np.any(seen, axis=2)[..., None], v, 0.0)
    product = weights @ seen_values if bool(np.all(seen)) else _by_row(weights, seen, seen_values)
    found = np.where(none, desc.WITHOUT_WEIGHTS, product)
    finite_v = np.nan_to_num(np.abs(v), nan=0.0, posinf=0.0)
    weighed = np.nan_to_num(weights) @ finite_v
    counted = np.where(weights > _LEAST, sizes, 0.0).max(axis=3, keepdims=True, initial=0.0)
    difference = np.expm1(np.minimum(2.1 * (1.01 * s.channels + 8) * _U * counted, 40.0))
    error = (difference + (1.01 * s.total + 8) * _U) * weighed
    error = error + (s.total + s.channels + 2) * _LEAST * (1 + finite_v.max(axis=2, keepdims=True, initial=0.0))
    infinite, nan, smallest = np.isinf(v), np.isnan(v), 2.0**-100
    if query.dtype == np.float16:  # weights may be rounded to it before they meet values
        error = error + 2.0**-11 * weighed + 2.0**-25 * seen.astype(np.float64) @ finite_v
        smallest = 2.0**-24
    slight: Any = ((weights < smallest) & seen).astype(np.float64) @ infinite.astype(np.float64) > 0
    slight &= ~((seen.astype(np.float64) @ nan.astype(np.float64)) > 0)
    beyond = np.nan_to_num(powers) @ finite_v > _LARGE
    anything = (slight | beyond | large | unknown) & ~none
    if lengths is not None:  # a weight of 0 times what is not finite may be NaN
        last = np.where(defined[:, :, :, 0], np.arange(s.total), -1).max(axis=2)[:, :, None, None]
        near = (~seen & (np.arange(s.total) <= last)).astype(np.float64)
        anything |= near @ (~np.isfinite(v)).astype(np.float64) > 0
    anything |= unknown
    return found, np.where(np.broadcast_to(none, error.shape) & ~anything, 0.0, np.where(anything, np.nan, error))


def weighed(
    desc: Any, query: NumpyArray, keys: NumpyArray, values: NumpyArray, bias: NumpyArray | None
) -> tuple[NumpyArray, NumpyArray, NumpyArray]:
    """The results of all heads, their errors, and the weighed sums of the values' magnitudes; a bias is added to scores."""
    s = desc.sizes()
    found, error, sums = (np.zeros((s.batch, s.heads, s.rows, s.value_channels)) for _ in range(3))
    for b, n in np.ndindex(s.batch, s.heads):
        one = slice(b, b + 1), slice(n, n + 1)
        more = _More(None if bias is None else bias[one], None, None, np.ones((1, 1, s.total, 1), bool), None)
        found[one], error[one] = _weighed(desc, query[one], keys[one], values[one], more)
        sums[one] = _weighed(desc, query[one], keys[one], np.abs(values[one]), more)[0]
    return found, error, sums


def _by_row(weights: NumpyArray, seen: NumpyArray, values: NumpyArray) -> NumpyArray:
    """Products without the values that a row does not see, which may be NaN."""
    product = np.nan_to_num(weights) * 1.0 @ np.nan_to_num(values, nan=0.0, posinf=0.0, neginf=0.0)
    rows_nan = np.isnan(weights).any(axis=3, keepdims=True)
    odd = ~np.isfinite(values)
    if odd.any():
        for b, n, i in np.ndindex(*weights.shape[:3]):
            own = seen[b, n, i]
            product[b, n, i] = weights[b, n, i][own] @ values[b, n][own]
    return np.where(rows_nan, np.nan, product)
