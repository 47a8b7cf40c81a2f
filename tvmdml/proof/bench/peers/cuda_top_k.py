"""The largest elements, the single largest, and full sorts, on a CUDA device.

CuPy has no selection: its argpartition sorts everything, as argsort does. Thrust sorts a single row of float32 by CUB's radix sort,
and several rows, or float16, by a merge sort.
"""

from __future__ import annotations

import importlib
from collections.abc import Callable
from functools import partial
from typing import Any

import numpy as np

from tvmdml.proof.bench.inputs import Array
from tvmdml.proof.bench.peers._common import Attempt, torch
from tvmdml.proof.bench.peers._cuda import OnDevice, cupy, input_array, input_tensor, on_cupy, on_torch, writes_tensors
from tvmdml.proof.bench.peers.top_k import is_full, is_one, is_part, is_rising, is_sort
from tvmdml.proof.bench.task import Task
from tvmdml.proof.bench.work import Work

_MOST_SORTED = 1 << 25
"""Elements. Sorting more of them to find a few takes seconds, and more memory than many devices have."""
_LEGACY_STREAM = 1
"""The CUDA handle of the legacy default stream, which is unambiguous; 0 may mean another default stream."""


def _few(work: Work) -> bool:
    return is_part(work) and int(np.prod(work.sizes)) <= _MOST_SORTED


def _selects(work: Work) -> bool:
    """The work that RAFT can do: rows of float32, in no order."""
    return not is_full(work) and work.dtype == "float32" and len(work.sizes) == 2 and work["axis"] == 1


def _values_and_indices(task: Task) -> tuple[Any, Any]:
    """Allocate the outputs, as tensors."""
    shape, x = task.expected[0].shape, input_tensor(task)
    return torch().empty(shape, dtype=x.dtype, device=x.device), torch().empty(shape, dtype=torch().int64, device=x.device)


def _topk_torch(task: Task, threads: int) -> Attempt:
    out = _values_and_indices(task)
    call = partial(torch().topk, input_tensor(task), task.work["k"], task.work["axis"], not is_rising(task.work), True, out=out)
    return on_torch(call, writes_tensors(call, *out))


def _max_torch(task: Task, threads: int) -> Attempt:
    out = _values_and_indices(task)
    call = partial(torch().max, input_tensor(task), task.work["axis"], True, out=out)
    return on_torch(call, writes_tensors(call, *out))


def _sort_torch(stable: bool, task: Task, threads: int) -> Attempt:
    out = _values_and_indices(task)
    call = partial(torch().sort, input_tensor(task), dim=task.work["axis"], stable=stable, out=out)
    return on_torch(call, writes_tensors(call, *out))


def _row(task: Task) -> tuple[Any, int]:
    """CuPy's input and its axis; a single row is given as one dimension, which is sorted faster."""
    x, axis = input_array(task), task.work["axis"]
    return (x.ravel(), 0) if x.size == x.shape[axis] else (x, axis)


def _positions(task: Task, call: Callable[[], Any]) -> Callable[[], tuple[Array, ...]]:
    """The results of a CuPy call that returns positions only."""

    def results() -> tuple[Array, ...]:
        found = cupy().asnumpy(call()).reshape(task.expected[0].shape)
        return np.take_along_axis(task.x, found, task.work["axis"]), found

    return results


def _argsort_cupy(task: Task, threads: int) -> Attempt:
    call = partial(cupy().argsort, *_row(task))
    return on_cupy(call, _positions(task, call))


def _largest_cupy(task: Task, threads: int) -> Attempt:
    (x, axis), k = _row(task), task.work["k"]
    last: tuple[slice, ...] = (*(slice(None),) * axis, slice(None, -k - 1, -1))
    argsort, take = cupy().argsort, cupy().take_along_axis

    def call() -> tuple[Any, Any]:
        found = argsort(x, axis)[last]
        return take(x, found, axis), found

    def results() -> tuple[Array, ...]:
        values, found = (cupy().asnumpy(array).reshape(task.expected[0].shape) for array in call())
        return values, found

    return on_cupy(call, results)


def _argmax_cupy(task: Task, threads: int) -> Attempt:
    call = partial(cupy().argmax, *_row(task))
    return on_cupy(call, _positions(task, call))


def _select_raft(task: Task, threads: int) -> Attempt:
    select_k = importlib.import_module("pylibraft.matrix").select_k
    common = importlib.import_module("pylibraft.common")
    shape = task.expected[0].shape
    values, found = cupy().empty(shape, np.float32), cupy().empty(shape, np.int64)
    stream = cupy().cuda.get_current_stream().ptr
    handle = common.DeviceResources(stream=stream or _LEGACY_STREAM)
    call = partial(select_k, input_array(task), task.work["k"], values, found, is_rising(task.work), handle=handle)

    def results() -> tuple[Array, ...]:
        call()
        handle.sync()
        unordered, positions = cupy().asnumpy(values), cupy().asnumpy(found)
        order = np.argsort(unordered if is_rising(task.work) else -unordered, 1, "stable")
        return np.take_along_axis(unordered, order, 1), np.take_along_axis(positions, order, 1)

    return on_cupy(call, results)


_INT64 = "writes int64"
_NO_VALUES = "writes int64 indices, no values, allocates"
_SORTS = "sorts everything (one row of float32: CUB's radix sort; else a merge sort), writes int64, allocates"

PEERS = (
    OnDevice("torch", "topk", _topk_torch, note=_INT64),
    OnDevice("torch", "max", _max_torch, is_one, _INT64),
    OnDevice("torch", "sort", partial(_sort_torch, False), is_sort, _INT64),
    OnDevice("torch", "sort stable", partial(_sort_torch, True), is_sort, _INT64),
    OnDevice("cupy", "argsort + take_along_axis", _largest_cupy, _few, _SORTS),
    OnDevice("cupy", "argmax", _argmax_cupy, is_one, f"{_NO_VALUES}; CUB's reduction where CUPY_ACCELERATORS has it"),
    OnDevice("cupy", "argsort", _argsort_cupy, is_sort, f"{_NO_VALUES}; of float32 CUB's radix sort"),
    OnDevice("raft", "select_k", _select_raft, _selects, "writes int64, in no order"),
)
