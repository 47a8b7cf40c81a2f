"""Rounding: NumPy's and PyTorch's own functions for halves to even and toward zero, and a formula for halves away from zero."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

import numpy as np

from tvmdml.proof.bench import inputs
from tvmdml.proof.bench.peers._common import Attempt, Peer, on_torch, tensor, torch, writes
from tvmdml.proof.bench.sessions import onnx_session, topi_kernel
from tvmdml.proof.bench.task import Task
from tvmdml.proof.bench.work import Work

EVEN, ZERO, AWAY = "halves_to_nearest_even", "toward_zero", "toward_infinity"
NEAREST = {EVEN: "rint", ZERO: "trunc"}
IN_TORCH = {EVEN: "round", ZERO: "trunc"}
# The largest number below one half: adding one half itself would round 0.49999997 to 1.
BELOW_HALF = {"float32": 0.49999997, "float16": 0.49975586}


def rounds(*modes: str, new: bool = False, in_place: bool = False) -> Callable[[Work], bool]:
    """For work with these modes; ``new`` if results are allocated, ``in_place`` if they are written to the input."""

    def when(work: Work) -> bool:
        return (
            work["rounding_mode"] in modes
            and work.in_place is in_place
            and (work.door == "function") is new
            and work.layout == "packed"
        )

    return when


def _round_numpy(task: Task, threads: int) -> Attempt:
    out = inputs.empty(task.x.shape, task.x.dtype)
    call = partial(getattr(np, NEAREST[task.work["rounding_mode"]]), task.x, out)
    return Attempt(call, writes(call, out))


def _round_numpy_new(task: Task, threads: int) -> Attempt:
    call = partial(getattr(np, NEAREST[task.work["rounding_mode"]]), task.x)
    return Attempt(call, lambda: (call(),))


def _round_numpy_in_place(task: Task, threads: int) -> Attempt:
    x = inputs.like(task.x)
    call = partial(getattr(np, NEAREST[task.work["rounding_mode"]]), x, x)
    return Attempt(call, writes(call, x))


def _round_torch(task: Task, threads: int) -> Attempt:
    out = inputs.empty(task.x.shape, task.x.dtype)
    function = getattr(torch(), IN_TORCH[task.work["rounding_mode"]])
    call = partial(function, tensor(task.x), out=tensor(out))
    return on_torch(call, writes(call, out), threads)


def _round_torch_new(task: Task, threads: int) -> Attempt:
    call = partial(getattr(torch(), IN_TORCH[task.work["rounding_mode"]]), tensor(task.x))
    return on_torch(call, lambda: (call().numpy(),), threads)


def _round_torch_in_place(task: Task, threads: int) -> Attempt:
    x = inputs.like(task.x)
    call = getattr(tensor(x), IN_TORCH[task.work["rounding_mode"]] + "_")
    return on_torch(call, writes(call, x), threads)


def _away_numpy(task: Task, threads: int) -> Attempt:
    x, out = task.x, inputs.empty(task.x.shape, task.x.dtype)
    half = x.dtype.type(BELOW_HALF[x.dtype.name])

    def call() -> None:
        np.copysign(half, x, out)
        np.add(out, x, out)
        np.trunc(out, out)

    return Attempt(call, writes(call, out))


def _away_torch(task: Task, threads: int) -> Attempt:
    out = inputs.empty(task.x.shape, task.x.dtype)
    x, result = tensor(task.x), tensor(out)
    half = torch().full((1,), BELOW_HALF[task.x.dtype.name], dtype=x.dtype)
    copysign = torch().copysign

    def call() -> None:
        copysign(half, x, out=result)
        result.add_(x).trunc_()

    return on_torch(call, writes(call, out), threads)


def _round_onnx(task: Task, threads: int) -> Attempt:
    out = inputs.empty(task.x.shape, task.x.dtype)
    call = onnx_session("Round", {"x": task.x}, {"y": out}, threads)
    return Attempt(call, writes(call, out))


def _round_topi(task: Task, threads: int) -> Attempt:
    out = inputs.empty(task.x.shape, task.x.dtype)
    name = {EVEN: "round", ZERO: "trunc"}[task.work["rounding_mode"]]
    call = topi_kernel(lambda topi, x: [getattr(topi, name)(x)], [task.x], [out])
    return Attempt(call, writes(call, out))


PEERS = (
    Peer("numpy", "ufunc out=", _round_numpy, rounds(EVEN, ZERO)),
    Peer("numpy", "ufunc", _round_numpy_new, rounds(EVEN, ZERO, new=True)),
    Peer("numpy", "ufunc in place", _round_numpy_in_place, rounds(EVEN, ZERO, in_place=True)),
    Peer("numpy", "copysign + add + trunc", _away_numpy, rounds(AWAY)),
    Peer("torch", "round out=", _round_torch, rounds(EVEN, ZERO)),
    Peer("torch", "round", _round_torch_new, rounds(EVEN, ZERO, new=True)),
    Peer("torch", "round in place", _round_torch_in_place, rounds(EVEN, ZERO, in_place=True)),
    Peer("torch", "copysign + add_ + trunc_", _away_torch, rounds(AWAY)),
    Peer("onnxruntime", "Round", _round_onnx, rounds(EVEN)),
    Peer("tvm topi", "round", _round_topi, rounds(EVEN, ZERO)),
)
