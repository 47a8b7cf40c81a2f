"""Rounding on a CUDA device: PyTorch's and CuPy's own functions, and combinations of functions for halves away from zero."""

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
    returns_array,
    writes_arrays,
    writes_tensors,
)
from tvmdml.proof.bench.peers.element_wise_round import AWAY, BELOW_HALF, EVEN, IN_TORCH, NEAREST, ZERO, rounds
from tvmdml.proof.bench.task import Task
from tvmdml.proof.bench.work import Work


def _away_of_float(work: Work) -> bool:
    return rounds(AWAY)(work) and work.dtype == "float32"


def _round_torch(task: Task, threads: int) -> Attempt:
    x = input_tensor(task)
    out = torch().empty_like(x)
    call = partial(getattr(torch(), IN_TORCH[task.work["rounding_mode"]]), x, out=out)
    return on_torch(call, writes_tensors(call, out))


def _round_torch_new(task: Task, threads: int) -> Attempt:
    call = partial(getattr(torch(), IN_TORCH[task.work["rounding_mode"]]), input_tensor(task))
    return on_torch(call, lambda: (call().cpu().numpy(),))


def _round_torch_in_place(task: Task, threads: int) -> Attempt:
    x = input_tensor(task).clone()
    call = getattr(x, IN_TORCH[task.work["rounding_mode"]] + "_")
    return on_torch(call, writes_tensors(call, x))


def _away_torch(task: Task, threads: int) -> Attempt:
    x = input_tensor(task)
    out = torch().empty_like(x)
    half = torch().full((1,), BELOW_HALF[task.x.dtype.name], dtype=x.dtype, device=x.device)
    copysign = torch().copysign

    def call() -> None:
        copysign(half, x, out=out)
        out.add_(x).trunc_()

    return on_torch(call, writes_tensors(call, out))


def _round_cupy(task: Task, threads: int) -> Attempt:
    x = input_array(task)
    out = cupy().empty_like(x)
    call = partial(getattr(cupy(), NEAREST[task.work["rounding_mode"]]), x, out)
    return on_cupy(call, writes_arrays(call, out))


def _round_cupy_new(task: Task, threads: int) -> Attempt:
    call = partial(getattr(cupy(), NEAREST[task.work["rounding_mode"]]), input_array(task))
    return on_cupy(call, returns_array(call))


def _round_cupy_in_place(task: Task, threads: int) -> Attempt:
    x = input_array(task).copy()
    call = partial(getattr(cupy(), NEAREST[task.work["rounding_mode"]]), x, x)
    return on_cupy(call, writes_arrays(call, x))


def _away_cupy(task: Task, threads: int) -> Attempt:
    x = input_array(task)
    out = cupy().empty_like(x)
    kernel = cupy().ElementwiseKernel(
        "float32 x, float32 half", "float32 y", "y = truncf(x + copysignf(half, x))", "tvmdml_bench_away"
    )
    call = partial(kernel, x, cupy().float32(BELOW_HALF["float32"]), out)
    return on_cupy(call, writes_arrays(call, out))


PEERS = (
    OnDevice("torch", "round out=", _round_torch, rounds(EVEN, ZERO)),
    OnDevice("torch", "round", _round_torch_new, rounds(EVEN, ZERO, new=True)),
    OnDevice("torch", "round in place", _round_torch_in_place, rounds(EVEN, ZERO, in_place=True)),
    OnDevice("torch", "copysign + add_ + trunc_", _away_torch, rounds(AWAY)),
    OnDevice("cupy", "ufunc out=", _round_cupy, rounds(EVEN, ZERO)),
    OnDevice("cupy", "ufunc", _round_cupy_new, rounds(EVEN, ZERO, new=True)),
    OnDevice("cupy", "ufunc in place", _round_cupy_in_place, rounds(EVEN, ZERO, in_place=True)),
    OnDevice("cupy", "ElementwiseKernel", _away_cupy, _away_of_float, "a kernel written by hand"),
)
