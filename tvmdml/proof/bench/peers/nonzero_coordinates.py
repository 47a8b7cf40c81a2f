"""Coordinates of nonzero elements. On a device all wait for the count, since the size of their results depends on it."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

import numpy as np

from tvmdml.proof.bench import inputs
from tvmdml.proof.bench.inputs import NumpyArray
from tvmdml.proof.bench.peers._arrays import CUDA_TORCH, CUPY, NUMPY, TORCH, Arrays
from tvmdml.proof.bench.peers._common import Attempt, Peer, torch
from tvmdml.proof.bench.sessions import onnx_session
from tvmdml.proof.bench.task import Task


def _coordinates(found: Any) -> tuple[NumpyArray, ...]:
    """Convert coordinates of shape (count, rank) to the reference's form."""
    return np.array([len(found)], np.uint32), np.asarray(found)


def _input(arrays: Arrays, task: Task) -> Any:
    """The input; bytes that represent booleans in the library's boolean type, which has faster code."""
    x = arrays.input(task)
    return x.view(torch().bool if arrays.library == "torch" else bool) if task.x.dtype == np.uint8 else x


def _returns(arrays: Arrays, threads: int, call: Callable[[], Any], change: Callable[[Any], Any] = lambda found: found) -> Attempt:
    return arrays.attempt(call, lambda: _coordinates(change(call())), threads)


def _nonzero_numpy(arrays: Arrays, task: Task, threads: int) -> Attempt:
    return _returns(arrays, threads, partial(np.nonzero, _input(arrays, task)), partial(np.stack, axis=-1))


def _nonzero_torch(arrays: Arrays, task: Task, threads: int) -> Attempt:
    out = arrays.empty(task, (int(task.expected[0].item()), task.x.ndim), np.int64)
    return _returns(arrays, threads, partial(torch().nonzero, _input(arrays, task), out=out), arrays.back)


def _argwhere_cupy(arrays: Arrays, task: Task, threads: int) -> Attempt:
    return _returns(arrays, threads, partial(arrays.functions.argwhere, _input(arrays, task)), arrays.back)


def _flatnonzero_cupy(arrays: Arrays, task: Task, threads: int) -> Attempt:
    call = partial(arrays.functions.flatnonzero, arrays.input(task))
    return _returns(arrays, threads, call, lambda found: arrays.back(found).reshape(-1, 1))


def _nonzero_onnx(task: Task, threads: int) -> Attempt:
    out = inputs.empty((task.x.ndim, int(task.expected[0].item())), np.int64)
    call = onnx_session("NonZero", {"x": _input(NUMPY, task)}, {"y": out}, threads, opset=13)

    def results() -> tuple[NumpyArray, ...]:
        call()
        return _coordinates(out.T)

    return Attempt(call, results)


_INT64 = "writes int64"
_WAITS = "waits for the count"
_NEW = f"{_INT64}, allocates, {_WAITS}; its own scan, not CUB's"

PEERS = (
    NUMPY.peer("nonzero", _nonzero_numpy, note=_INT64),
    TORCH.peer("nonzero", _nonzero_torch, note=_INT64),
    CUDA_TORCH.peer("nonzero", _nonzero_torch, note=f"{_INT64}, {_WAITS}"),
    CUPY.peer("argwhere", _argwhere_cupy, note=_NEW),
    CUPY.peer("flatnonzero", _flatnonzero_cupy, lambda work: len(work.sizes) == 1, _NEW),
    Peer("onnxruntime", "NonZero", _nonzero_onnx, note=_INT64),
)
