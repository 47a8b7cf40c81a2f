"""Coordinates of nonzero elements, on a CUDA device. All wait for the count, since the size of their results depends on it."""

from __future__ import annotations

from functools import partial

from tvmdml.proof.bench.inputs import Array
from tvmdml.proof.bench.peers._common import Attempt, torch
from tvmdml.proof.bench.peers._cuda import OnDevice, cupy, input_array, input_tensor, on_cupy, on_torch
from tvmdml.proof.bench.peers.nonzero_coordinates import coordinates
from tvmdml.proof.bench.task import Task


def _nonzero_torch(task: Task, threads: int) -> Attempt:
    x = input_tensor(task)
    x = x.view(torch().bool) if task.x.dtype.name == "uint8" else x
    out = torch().empty((int(task.expected[0].item()), task.x.ndim), dtype=torch().int64, device=x.device)
    call = partial(torch().nonzero, x, out=out)
    return on_torch(call, lambda: coordinates(call().cpu().numpy()))


def _argwhere_cupy(task: Task, threads: int) -> Attempt:
    x = input_array(task)
    x = x.view(cupy().bool_) if task.x.dtype.name == "uint8" else x
    call = partial(cupy().argwhere, x)
    return on_cupy(call, lambda: coordinates(cupy().asnumpy(call())))


def _flatnonzero_cupy(task: Task, threads: int) -> Attempt:
    call = partial(cupy().flatnonzero, input_array(task))

    def results() -> tuple[Array, ...]:
        return coordinates(cupy().asnumpy(call()).reshape(-1, 1))

    return on_cupy(call, results)


PEERS = (
    OnDevice("torch", "nonzero", _nonzero_torch, note="writes int64, waits for the count"),
    OnDevice("cupy", "argwhere", _argwhere_cupy, note="writes int64, allocates, waits for the count; its own scan, not CUB's"),
    OnDevice(
        "cupy",
        "flatnonzero",
        _flatnonzero_cupy,
        lambda work: len(work.sizes) == 1,
        "writes int64, allocates, waits for the count; its own scan, not CUB's",
    ),
)
