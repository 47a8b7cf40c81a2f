"""Random words, on a CUDA device."""

from __future__ import annotations

from tvmdml.proof.bench.peers._common import Attempt, torch
from tvmdml.proof.bench.peers._cuda import OnDevice, input_tensor, on_torch, writes_tensors
from tvmdml.proof.bench.task import Task


def _random_torch(task: Task, threads: int) -> Attempt:
    out = torch().empty(task.expected[0].shape, dtype=torch().int32, device=input_tensor(task).device)
    return on_torch(out.random_, writes_tensors(out.random_, out))


PEERS = (OnDevice("torch", "random_", _random_torch, note="Philox 4x32-10 in another order, 31 bits"),)
