"""Running sums and products, on a CUDA device."""

from __future__ import annotations

from functools import partial

from tvmdml.proof.bench.peers._common import Attempt, torch
from tvmdml.proof.bench.peers._cuda import (
    OnDevice,
    cupy,
    input_array,
    input_tensor,
    on_cupy,
    on_torch,
    writes_arrays,
    writes_tensors,
)
from tvmdml.proof.bench.peers.scan import name
from tvmdml.proof.bench.task import Task


def _torch(task: Task, threads: int) -> Attempt:
    x = input_tensor(task)
    out = torch().empty_like(x)
    call = partial(getattr(torch(), name(task.work)), x, task.work["axis"], dtype=x.dtype, out=out)
    return on_torch(call, writes_tensors(call, out))


def _cupy(task: Task, threads: int) -> Attempt:
    x = input_array(task)
    out = cupy().empty_like(x)
    call = partial(getattr(cupy(), name(task.work)), x, task.work["axis"], x.dtype, out)
    return on_cupy(call, writes_arrays(call, out))


PEERS = (OnDevice("torch", "cumsum", _torch), OnDevice("cupy", "cumsum", _cupy))
