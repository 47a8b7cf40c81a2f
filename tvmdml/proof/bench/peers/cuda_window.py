"""Pooling and local response normalization of PyTorch, on a CUDA device."""

from __future__ import annotations

from tvmdml.proof.bench.peers._common import Attempt
from tvmdml.proof.bench.peers._cuda import OnDevice, input_tensor, on_torch
from tvmdml.proof.bench.peers.window import is_symmetric, on_tensor
from tvmdml.proof.bench.task import Task


def _torch(task: Task, threads: int) -> Attempt:
    call = on_tensor(task.work, input_tensor(task))
    return on_torch(call, lambda: (call().cpu().numpy(),))


PEERS = (OnDevice("torch", "pool", _torch, is_symmetric),)
