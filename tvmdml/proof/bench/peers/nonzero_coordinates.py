"""Coordinates of nonzero elements."""

from __future__ import annotations

from functools import partial
from typing import Any

import numpy as np

from tvmdml.proof.bench import inputs
from tvmdml.proof.bench.inputs import Array
from tvmdml.proof.bench.peers._common import Attempt, Peer, on_torch, tensor, torch
from tvmdml.proof.bench.sessions import onnx_session
from tvmdml.proof.bench.task import Task


def _as_bool(x: Array) -> Array:
    """Bytes that represent booleans, as the peers' boolean type, which has faster code."""
    return x.view(bool) if x.dtype == np.uint8 else x


def coordinates(found: Any) -> tuple[Array, ...]:
    """Convert coordinates of shape (count, rank) to the reference's form."""
    return np.array([len(found)], np.uint32), np.asarray(found)


def _nonzero_numpy(task: Task, threads: int) -> Attempt:
    call = partial(np.nonzero, _as_bool(task.x))
    return Attempt(call, lambda: coordinates(np.stack(call(), axis=-1)))


def _nonzero_torch(task: Task, threads: int) -> Attempt:
    out = inputs.empty((int(task.expected[0].item()), task.x.ndim), np.int64)
    call = partial(torch().nonzero, tensor(_as_bool(task.x)), out=tensor(out))
    return on_torch(call, lambda: coordinates(call().numpy()), threads)


def _nonzero_onnx(task: Task, threads: int) -> Attempt:
    out = inputs.empty((task.x.ndim, int(task.expected[0].item())), np.int64)
    call = onnx_session("NonZero", {"x": _as_bool(task.x)}, {"y": out}, threads, opset=13)

    def results() -> tuple[Array, ...]:
        call()
        return coordinates(out.T)

    return Attempt(call, results)


PEERS = (
    Peer("numpy", "nonzero", _nonzero_numpy, note="writes int64"),
    Peer("torch", "nonzero", _nonzero_torch, note="writes int64"),
    Peer("onnxruntime", "NonZero", _nonzero_onnx, note="writes int64"),
)
