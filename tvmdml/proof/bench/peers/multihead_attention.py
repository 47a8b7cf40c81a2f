"""Attention: PyTorch's scaled_dot_product_attention, and ONNX Runtime's MultiHeadAttention."""

from __future__ import annotations

from functools import partial
from typing import Any

import numpy as np

from tvmdml.proof.bench import inputs
from tvmdml.proof.bench.inputs import NumpyArray
from tvmdml.proof.bench.peers._arrays import CUDA_TORCH, TORCH, Arrays
from tvmdml.proof.bench.peers._common import Attempt, Peer, torch, writes
from tvmdml.proof.bench.sessions import onnx_session
from tvmdml.proof.bench.task import Task
from tvmdml.proof.bench.work import Work

_STACKED, _MASK, _PAST = 5, 7, 9


def _suits(work: Work) -> bool:
    """Whether queries, keys and values are in one tensor, as in all rows."""
    return len(work.inputs) > _STACKED and work.inputs[_STACKED] is not None


def _rows_of(task: Task) -> tuple[NumpyArray, NumpyArray, NumpyArray]:
    """Queries, and all keys and values: {batch, heads, rows, channels}."""
    stacked = task.inputs[_STACKED]
    assert stacked is not None
    query, key, value = (np.ascontiguousarray(stacked[:, :, :, i].swapaxes(1, 2)) for i in range(3))
    earlier = task.inputs[_PAST : _PAST + 2]
    if earlier[0] is not None and earlier[1] is not None:
        key, value = (np.concatenate([one, new], axis=2) for one, new in zip(earlier, (key, value), strict=True))
    return query, key, value


def _added_of(task: Task, keys: int) -> NumpyArray | None:
    """What the mask adds to the scores of keys: {batch, 1, 1, keys}."""
    lengths = task.inputs[_MASK]
    if lengths is None:
        return None
    kept = np.arange(keys) < lengths.reshape(-1, 1)
    return np.where(kept, 0, task.work["mask_filter_value"]).astype(task.x.dtype)[:, None, None]


def _torch(arrays: Arrays, task: Task, threads: int) -> Attempt:
    own = _rows_of(task)
    given: dict[str, Any] = {"scale": task.work["scale"]}
    added = _added_of(task, own[1].shape[2])
    if added is not None:
        given["attn_mask"] = arrays.of(added).expand(-1, own[0].shape[1], own[0].shape[2], -1)
    call = partial(torch().nn.functional.scaled_dot_product_attention, *map(arrays.of, own), **given)
    sizes = task.desc.outputs()[0].sizes
    return arrays.returns(threads, call, lambda found: found.swapaxes(1, 2).reshape(sizes))


def _onnx(task: Task, threads: int) -> Attempt:
    query, key, value = _rows_of(task)
    out = inputs.empty(task.desc.outputs()[0].sizes, task.x.dtype)
    heads = query.shape[1]
    query = np.ascontiguousarray(query.swapaxes(1, 2)).reshape(out.shape[0], out.shape[1], -1)
    if task.inputs[_PAST] is None:
        key, value = (np.ascontiguousarray(one.swapaxes(1, 2)).reshape(out.shape[0], one.shape[2], -1) for one in (key, value))
    given = {"query": query, "key": key, "value": value}
    lengths = task.inputs[_MASK]
    if lengths is not None:
        given["mask"] = np.clip(lengths.reshape(-1), 0, key.shape[1])
    call = onnx_session(
        "MultiHeadAttention", given, {"out": out}, threads, absent=(3,) if lengths is not None else (), domain="com.microsoft",
        num_heads=heads, scale=task.work["scale"], mask_filter_value=task.work["mask_filter_value"],
    )  # fmt: skip
    return Attempt(call, writes(call, out))


def _wide(work: Work) -> bool:
    return _suits(work) and work.dtype == "float32"


_NOTE = "keys are in one array already, each head's together"
PEERS = (
    TORCH.peer("scaled_dot_product_attention", _torch, _suits, _NOTE),
    CUDA_TORCH.peer("scaled_dot_product_attention", _torch, lambda work: len(list(work.operands())) == 1),
    Peer("onnxruntime", "MultiHeadAttention", _onnx, _wide, _NOTE),
)
