"""Diagonals, triangles and bands on a CUDA device. As on the CPU, no library has a function for bands."""

from __future__ import annotations

from functools import partial
from typing import Any

from tvmdml.proof.bench.peers._common import Attempt, torch
from tvmdml.proof.bench.peers._cuda import (
    OnDevice,
    cupy,
    input_array,
    input_tensor,
    on_cupy,
    on_torch,
    returns_array,
    tensor,
    writes_arrays,
    writes_tensors,
)
from tvmdml.proof.bench.peers.diagonal_matrix import band, inside, is_band, is_eye, is_upper
from tvmdml.proof.bench.task import Task
from tvmdml.proof.bench.work import Work


def _ones(work: Work) -> bool:
    return is_eye(work) and work["value"] == 1


def _output_tensor(task: Task) -> Any:
    """Allocate the output, in the descriptor's layout."""
    (out,) = task.outputs()
    return tensor(out)


def _eye_torch(task: Task, threads: int) -> Attempt:
    out = _output_tensor(task)
    call = partial(torch().eye, *task.work.sizes, out=out)
    return on_torch(call, writes_tensors(call, out))


def _fill_torch(task: Task, threads: int) -> Attempt:
    out = _output_tensor(task)
    diagonal, value = torch().diagonal(out, 0), task.work["value"]

    def call() -> None:
        out.zero_()
        diagonal.fill_(value)

    return on_torch(call, writes_tensors(call, out))


def _upper_torch(task: Task, threads: int) -> Attempt:
    out = _output_tensor(task)
    call = partial(torch().triu, input_tensor(task), 1, out=out)
    return on_torch(call, writes_tensors(call, out))


def _band_torch(task: Task, threads: int) -> Attempt:
    x, out, value = input_tensor(task), _output_tensor(task), task.work["value"]
    diagonals = [torch().diagonal(out, d) for d in band(task.work)]

    def call() -> None:
        out.copy_(x)
        for diagonal in diagonals:
            diagonal.fill_(value)

    return on_torch(call, writes_tensors(call, out))


def _where_torch(task: Task, threads: int) -> Attempt:
    x, out = input_tensor(task), _output_tensor(task)
    value = torch().full((1,), task.work["value"], dtype=x.dtype, device=x.device)
    call = partial(torch().where, tensor(inside(task)), value, x, out=out)
    return on_torch(call, writes_tensors(call, out))


def _eye_cupy(task: Task, threads: int) -> Attempt:
    height, width = task.work.sizes
    return _returning(partial(cupy().eye, height, width, 0, task.work.dtype))


def _fill_cupy(task: Task, threads: int) -> Attempt:
    height, width = task.work.sizes
    out = cupy().empty((height, width), task.work.dtype)
    diagonal, value = out.ravel()[:: width + 1][: min(height, width)], task.work["value"]

    def call() -> None:
        out.fill(0)
        diagonal.fill(value)

    return on_cupy(call, writes_arrays(call, out))


def _upper_cupy(task: Task, threads: int) -> Attempt:
    return _returning(partial(cupy().triu, input_array(task), 1))


def _band_cupy(task: Task, threads: int) -> Attempt:
    x, within = input_array(task), cupy().asarray(inside(task))
    return _returning(partial(cupy().where, within, x.dtype.type(task.work["value"]), x))


def _returning(call: Any) -> Attempt:
    return on_cupy(call, returns_array(call))


_NEW = "allocates"

PEERS = (
    OnDevice("torch", "eye", _eye_torch, _ones),
    OnDevice("torch", "zero_ + diagonal", _fill_torch, is_eye),
    OnDevice("torch", "triu", _upper_torch, is_upper),
    OnDevice("torch", "copy_ + diagonals", _band_torch, is_band),
    OnDevice("torch", "where", _where_torch, is_band, "reads the band as a mask"),
    OnDevice("cupy", "eye", _eye_cupy, _ones, _NEW),
    OnDevice("cupy", "fill + diagonal", _fill_cupy, is_eye),
    OnDevice("cupy", "triu", _upper_cupy, is_upper, _NEW),
    OnDevice("cupy", "where", _band_cupy, is_band, "allocates, reads the band as a mask"),
)
