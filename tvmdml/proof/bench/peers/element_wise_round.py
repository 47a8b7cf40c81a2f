"""Rounding: a library's own functions for halves to even and toward zero, and a formula for halves away from zero."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

import numpy as np

from tvmdml.proof.bench import inputs
from tvmdml.proof.bench.peers._arrays import CUPY, IN_NUMPY, IN_TORCH, NUMPY, Arrays
from tvmdml.proof.bench.peers._common import Attempt, Peer, writes
from tvmdml.proof.bench.sessions import onnx_session, topi_kernel
from tvmdml.proof.bench.task import Task
from tvmdml.proof.bench.work import Work

EVEN, ZERO, AWAY = "halves_to_nearest_even", "toward_zero", "toward_infinity"
_TO_EVEN = {"numpy": "rint", "cupy": "rint", "torch": "round"}
# The largest number below one half: adding one half itself would round 0.49999997 to 1.
_BELOW_HALF = {"float32": 0.49999997, "float16": 0.49975586}


def _rounds(*modes: str, new: bool = False, in_place: bool = False) -> Callable[[Work], bool]:
    """For work with these modes; ``new`` if results are allocated, ``in_place`` if they are written to the input."""

    def when(work: Work) -> bool:
        return (
            work["rounding_mode"] in modes
            and work.in_place is in_place
            and (work.door == "function") is new
            and work.layout == "packed"
        )

    return when


def _away_of_float(work: Work) -> bool:
    return _rounds(AWAY)(work) and work.dtype == "float32"


def _name(arrays: Arrays, task: Task) -> str:
    return "trunc" if task.work["rounding_mode"] == ZERO else _TO_EVEN[arrays.library]


def _empty(arrays: Arrays, task: Task) -> Any:
    return arrays.empty(task, task.x.shape, task.x.dtype)


def _round(arrays: Arrays, task: Task, threads: int) -> Attempt:
    out = _empty(arrays, task)
    return arrays.writes(threads, arrays.into(out, getattr(arrays.functions, _name(arrays, task)), arrays.input(task)), out)


def _round_new(arrays: Arrays, task: Task, threads: int) -> Attempt:
    return arrays.returns(threads, partial(getattr(arrays.functions, _name(arrays, task)), arrays.input(task)))


def _round_in_place(arrays: Arrays, task: Task, threads: int) -> Attempt:
    x = arrays.copy(task)
    return arrays.writes(threads, partial(getattr(arrays.functions, _name(arrays, task)), x, x), x)


def _round_torch_in_place(arrays: Arrays, task: Task, threads: int) -> Attempt:
    x = arrays.copy(task)
    return arrays.writes(threads, getattr(x, f"{_name(arrays, task)}_"), x)


def _away_numpy(arrays: Arrays, task: Task, threads: int) -> Attempt:
    x, out = task.x, _empty(arrays, task)
    half = x.dtype.type(_BELOW_HALF[x.dtype.name])

    def call() -> None:
        np.copysign(half, x, out)
        np.add(out, x, out)
        np.trunc(out, out)

    return arrays.writes(threads, call, out)


def _away_torch(arrays: Arrays, task: Task, threads: int) -> Attempt:
    x, out, library = arrays.input(task), _empty(arrays, task), arrays.functions
    half = library.full((1,), _BELOW_HALF[task.x.dtype.name], dtype=x.dtype, device=x.device)
    copysign = library.copysign

    def call() -> None:
        copysign(half, x, out=out)
        out.add_(x).trunc_()

    return arrays.writes(threads, call, out)


def _away_cupy(arrays: Arrays, task: Task, threads: int) -> Attempt:
    library, out = arrays.functions, _empty(arrays, task)
    kernel = library.ElementwiseKernel(
        "float32 x, float32 half", "float32 y", "y = truncf(x + copysignf(half, x))", "tvmdml_bench_away"
    )
    return arrays.writes(threads, partial(kernel, arrays.input(task), library.float32(_BELOW_HALF["float32"]), out), out)


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
    *(one.peer("ufunc out=", _round, _rounds(EVEN, ZERO)) for one in IN_NUMPY),
    *(one.peer("ufunc", _round_new, _rounds(EVEN, ZERO, new=True)) for one in IN_NUMPY),
    *(one.peer("ufunc in place", _round_in_place, _rounds(EVEN, ZERO, in_place=True)) for one in IN_NUMPY),
    NUMPY.peer("copysign + add + trunc", _away_numpy, _rounds(AWAY)),
    CUPY.peer("ElementwiseKernel", _away_cupy, _away_of_float, "a kernel written by hand"),
    *(one.peer("round out=", _round, _rounds(EVEN, ZERO)) for one in IN_TORCH),
    *(one.peer("round", _round_new, _rounds(EVEN, ZERO, new=True)) for one in IN_TORCH),
    *(one.peer("round in place", _round_torch_in_place, _rounds(EVEN, ZERO, in_place=True)) for one in IN_TORCH),
    *(one.peer("copysign + add_ + trunc_", _away_torch, _rounds(AWAY)) for one in IN_TORCH),
    Peer("onnxruntime", "Round", _round_onnx, _rounds(EVEN)),
    Peer("tvm topi", "round", _round_topi, _rounds(EVEN, ZERO)),
)
