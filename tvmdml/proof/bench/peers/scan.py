"""Running sums and products."""

from __future__ import annotations

from functools import partial

import numpy as np

from tvmdml.proof.bench import inputs
from tvmdml.proof.bench.peers._arrays import IN_NUMPY, IN_TORCH, Arrays
from tvmdml.proof.bench.peers._common import Attempt, Peer, writes
from tvmdml.proof.bench.sessions import onnx_session
from tvmdml.proof.bench.task import Task
from tvmdml.proof.bench.work import Work


def _is_sum(work: Work) -> bool:
    return work.operator == "CUMULATIVE_SUMMATION"


def _name(work: Work) -> str:
    """What NumPy, PyTorch and CuPy call it."""
    return "cumsum" if _is_sum(work) else "cumprod"


def _scan(arrays: Arrays, task: Task, threads: int) -> Attempt:
    x, out = arrays.input(task), arrays.empty(task, task.x.shape, task.x.dtype)
    call = partial(getattr(arrays.functions, _name(task.work)), x, task.work["axis"], dtype=x.dtype, out=out)
    return arrays.writes(threads, call, out)


def _onnx(task: Task, threads: int) -> Attempt:
    out = inputs.empty(task.x.shape, task.x.dtype)
    axis = np.array(task.work["axis"], np.int64)
    call = onnx_session("CumSum", {"x": task.x}, {"y": out}, threads, opset=14, constants={"axis": axis})
    return Attempt(call, writes(call, out))


PEERS = (
    *(one.peer("cumsum", _scan) for one in (*IN_NUMPY, *IN_TORCH)),
    Peer("onnxruntime", "CumSum", _onnx, _is_sum),
)
