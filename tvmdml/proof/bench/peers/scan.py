"""Running sums and products."""

from __future__ import annotations

from functools import partial

import numpy as np

from tvmdml.proof.bench import inputs
from tvmdml.proof.bench.peers._common import Attempt, Peer, on_torch, tensor, torch, writes
from tvmdml.proof.bench.sessions import onnx_session
from tvmdml.proof.bench.task import Task
from tvmdml.proof.bench.work import Work


def _is_sum(work: Work) -> bool:
    return work.operator == "CUMULATIVE_SUMMATION"


def name(work: Work) -> str:
    """What NumPy, PyTorch and CuPy call it."""
    return "cumsum" if _is_sum(work) else "cumprod"


def _numpy(task: Task, threads: int) -> Attempt:
    out = inputs.empty(task.x.shape, task.x.dtype)
    call = partial(getattr(np, name(task.work)), task.x, task.work["axis"], task.x.dtype, out)
    return Attempt(call, writes(call, out))


def _torch(task: Task, threads: int) -> Attempt:
    out = inputs.empty(task.x.shape, task.x.dtype)
    x, result = tensor(task.x), tensor(out)
    call = partial(getattr(torch(), name(task.work)), x, task.work["axis"], dtype=x.dtype, out=result)
    return on_torch(call, writes(call, out), threads)


def _onnx(task: Task, threads: int) -> Attempt:
    out = inputs.empty(task.x.shape, task.x.dtype)
    axis = np.array(task.work["axis"], np.int64)
    call = onnx_session("CumSum", {"x": task.x}, {"y": out}, threads, opset=14, constants={"axis": axis})
    return Attempt(call, writes(call, out))


PEERS = (
    Peer("numpy", "cumsum", _numpy),
    Peer("torch", "cumsum", _torch),
    Peer("onnxruntime", "CumSum", _onnx, _is_sum),
)
