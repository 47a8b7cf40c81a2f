"""Reductions of one tensor, on a CUDA device."""

from __future__ import annotations

from tvmdml.proof.bench.peers._common import Attempt
from tvmdml.proof.bench.peers._cuda import OnDevice, input_tensor, on_torch
from tvmdml.proof.bench.peers.reduction import in_torch, torch_call
from tvmdml.proof.bench.task import Task
from tvmdml.proof.bench.work import Work


def _torch(task: Task, threads: int) -> Attempt:
    call = torch_call(task, input_tensor(task))
    if call is None:
        raise NotImplementedError(task.work.operator)
    kind = task.desc.outputs()[0].data_type.numpy
    return on_torch(call, lambda: (call().cpu().numpy().astype(kind, copy=False),))


def _alone(work: Work) -> bool:
    return in_torch(work) and len(work.inputs) == 1


PEERS = (OnDevice("torch", "its function", _torch, _alone),)
