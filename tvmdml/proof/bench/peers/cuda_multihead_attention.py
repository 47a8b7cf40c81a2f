"""Attention on a CUDA device."""

from __future__ import annotations

from functools import partial
from typing import Any

from tvmdml.proof.bench.peers._common import Attempt, torch
from tvmdml.proof.bench.peers._cuda import OnDevice, input_tensor, on_torch
from tvmdml.proof.bench.task import Task
from tvmdml.proof.bench.work import Work


def _torch(task: Task, threads: int) -> Attempt:
    stacked = input_tensor(task)
    own = [stacked[:, :, :, i].transpose(1, 2).contiguous() for i in range(3)]
    call: Any = partial(torch().nn.functional.scaled_dot_product_attention, *own, scale=task.work["scale"])
    sizes = task.desc.outputs()[0].sizes
    return on_torch(call, lambda: (call().transpose(1, 2).reshape(sizes).cpu().numpy(),))


def _alone(work: Work) -> bool:
    return len(list(work.operands())) == 1


PEERS = (OnDevice("torch", "scaled_dot_product_attention", _torch, _alone),)
