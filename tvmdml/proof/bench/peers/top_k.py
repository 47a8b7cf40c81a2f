"""The largest elements, the single largest, and full sorts, stable and not stable."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

import numpy as np

from tvmdml.proof.bench import inputs
from tvmdml.proof.bench.inputs import Array
from tvmdml.proof.bench.peers._common import Attempt, Peer, on_torch, tensor, torch, writes
from tvmdml.proof.bench.sessions import onnx_session, topi_kernel
from tvmdml.proof.bench.task import Task
from tvmdml.proof.bench.work import Work


def is_full(work: Work) -> bool:
    """Whether all elements are selected."""
    return bool(work["k"] == work.sizes[work["axis"]])


def is_rising(work: Work) -> bool:
    """Whether the smallest come first."""
    return bool(work["axis_direction"] == "increasing")


def is_sort(work: Work) -> bool:
    """Whether the work is what is commonly called a sort."""
    return is_full(work) and is_rising(work)


def is_part(work: Work) -> bool:
    """Whether some of the largest are selected."""
    return not is_full(work) and not is_rising(work)


def is_one(work: Work) -> bool:
    """Whether only the largest is selected."""
    return is_part(work) and bool(work["k"] == 1)


def _with_values(task: Task, call: Callable[[], Any]) -> Callable[[], tuple[Array, ...]]:
    """The results of a peer that returns positions only."""

    def results() -> tuple[Array, ...]:
        found = np.asarray(call()).reshape(task.expected[0].shape)
        return np.take_along_axis(task.x, found, task.work["axis"]), found

    return results


def _values_and_indices(task: Task) -> tuple[Array, Array]:
    shape = task.expected[0].shape
    return inputs.empty(shape, task.x.dtype), inputs.empty(shape, np.int64)


def _partition_numpy(task: Task, threads: int) -> Attempt:
    x, k, axis = task.x, task.work["k"], task.work["axis"]
    largest = np.arange(x.shape[axis] - k, x.shape[axis])

    def call() -> tuple[Array, ...]:
        found = np.take(np.argpartition(x, largest[0], axis), largest, axis)
        values = np.take_along_axis(x, found, axis)
        order = np.flip(np.argsort(values, axis), axis)
        return np.take_along_axis(values, order, axis), np.take_along_axis(found, order, axis)

    return Attempt(call, call)


def _argmax_numpy(task: Task, threads: int) -> Attempt:
    call = partial(np.argmax, task.x, task.work["axis"])
    return Attempt(call, _with_values(task, call))


def _argsort_numpy(kind: Any, task: Task, threads: int) -> Attempt:
    call = partial(np.argsort, task.x, task.work["axis"], kind)
    return Attempt(call, _with_values(task, call))


def _topk_torch(task: Task, threads: int) -> Attempt:
    values, indices = _values_and_indices(task)
    out = (tensor(values), tensor(indices))
    call = partial(torch().topk, tensor(task.x), task.work["k"], task.work["axis"], not is_rising(task.work), True, out=out)
    return on_torch(call, writes(call, values, indices), threads)


def _max_torch(task: Task, threads: int) -> Attempt:
    values, indices = _values_and_indices(task)
    out = (tensor(values), tensor(indices))
    call = partial(torch().max, tensor(task.x), task.work["axis"], True, out=out)
    return on_torch(call, writes(call, values, indices), threads)


def _sort_torch(task: Task, threads: int) -> Attempt:
    values, indices = _values_and_indices(task)
    out = (tensor(values), tensor(indices))
    call = partial(torch().sort, tensor(task.x), dim=task.work["axis"], stable=True, out=out)
    return on_torch(call, writes(call, values, indices), threads)


def _topk_onnx(task: Task, threads: int) -> Attempt:
    values, indices = _values_and_indices(task)
    k = np.array([task.work["k"]], np.int64)
    attributes = {"axis": task.work["axis"], "largest": int(not is_rising(task.work)), "sorted": 1}
    # Version 24 of the operator set added bytes; the other types are as fast in the older version.
    opset = 24 if task.x.dtype == np.uint8 else 11
    outputs = {"values": values, "indices": indices}
    call = onnx_session("TopK", {"x": task.x}, outputs, threads, opset=opset, constants={"k": k}, **attributes)
    return Attempt(call, writes(call, values, indices))


def _topk_topi(task: Task, threads: int) -> Attempt:
    values, indices = _values_and_indices(task)
    k, axis, rising = task.work["k"], task.work["axis"], is_rising(task.work)
    call = topi_kernel(lambda topi, x: topi.topk(x, k, axis, "both", rising, "int64"), [task.x], [values, indices])
    return Attempt(call, writes(call, values, indices))


_INT64 = "writes int64"
_NO_VALUES = "writes int64 indices, no values"

PEERS = (
    Peer("numpy", "argpartition + argsort", _partition_numpy, is_part, _INT64),
    Peer("numpy", "argmax", _argmax_numpy, is_one, _NO_VALUES),
    Peer("numpy", "argsort", partial(_argsort_numpy, "quicksort"), is_sort, _NO_VALUES),
    Peer("numpy", "argsort stable", partial(_argsort_numpy, "stable"), is_sort, _NO_VALUES),
    Peer("torch", "topk", _topk_torch, note=_INT64),
    Peer("torch", "max", _max_torch, is_one, _INT64),
    Peer("torch", "sort stable", _sort_torch, is_sort, _INT64),
    Peer("onnxruntime", "TopK", _topk_onnx, note=_INT64),
    Peer("tvm topi", "topk", _topk_topi, note=_INT64),
)
