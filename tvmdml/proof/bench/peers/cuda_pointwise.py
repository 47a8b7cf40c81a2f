"""Pointwise operators on a CUDA device: the same functions of PyTorch as on the processor, and CuPy's, which are NumPy's.

Functions that read or write several times are left out: CuPy makes a kernel of each.
"""

from __future__ import annotations

from functools import partial
from typing import Any

from tvmdml.proof.bench.peers import _names
from tvmdml.proof.bench.peers._common import Attempt, torch
from tvmdml.proof.bench.peers._cuda import OnDevice, cupy, on_cupy, on_torch, returns_array, tensor, writes_arrays, writes_tensors
from tvmdml.proof.bench.peers.pointwise import TORCH, arrays, as_numbers, of_one, output, when_cupy, when_torch
from tvmdml.proof.bench.task import Task


def _by_torch(task: Task, threads: int) -> Attempt:
    given, name = list(map(tensor, arrays(task))), _names.function(task.work.operator)
    function = None if name in TORCH else getattr(torch(), _names.in_torch(task.work.operator))
    is_bool = function is not None and function(*of_one(given)).dtype == torch().bool
    out = given[0] if task.work.in_place else tensor(output(task, (), is_bool))
    call = TORCH[name](task, given, out) if function is None else partial(function, *given, out=out)
    results = writes_tensors(call, out)
    return on_torch(call, lambda: (as_numbers(results()[0], task),))


def _by_torch_new(task: Task, threads: int) -> Attempt:
    call = partial(getattr(torch(), _names.in_torch(task.work.operator)), *map(tensor, arrays(task)))
    return on_torch(call, lambda: (as_numbers(call().cpu().numpy(), task),))


def _cupy_call(task: Task) -> tuple[Any, list[Any]]:
    return getattr(cupy(), _names.in_numpy(task.work.operator)), list(map(cupy().asarray, arrays(task)))


def _by_cupy(task: Task, threads: int) -> Attempt:
    function, given = _cupy_call(task)
    is_bool = function(*of_one(given)).dtype == bool
    out = given[0] if task.work.in_place else cupy().asarray(output(task, (), is_bool))
    call = partial(function, *given, out)
    results = writes_arrays(call, out)
    return on_cupy(call, lambda: (as_numbers(results()[0], task),))


def _by_cupy_new(task: Task, threads: int) -> Attempt:
    function, given = _cupy_call(task)
    results = returns_array(partial(function, *given))
    return on_cupy(partial(function, *given), lambda: (as_numbers(results()[0], task),))


PEERS = (
    OnDevice("torch", "out=", _by_torch, when_torch(new=False)),
    OnDevice("torch", "allocates", _by_torch_new, when_torch(new=True)),
    OnDevice("cupy", "out=", _by_cupy, when_cupy(new=False)),
    OnDevice("cupy", "allocates", _by_cupy_new, when_cupy(new=True)),
)
