"""The largest elements, the single largest, and full sorts, stable and not stable.

CuPy has no selection: its argpartition sorts everything, as argsort does. Thrust sorts a single row of float32 by CUB's radix sort,
and several rows, or float16, by a merge sort.
"""

from __future__ import annotations

import importlib
from collections.abc import Callable
from functools import partial
from typing import Any

import numpy as np

from tvmdml.proof.bench.inputs import NumpyArray
from tvmdml.proof.bench.peers._arrays import CUDA_TORCH, CUPY, IN_TORCH, NUMPY, Arrays
from tvmdml.proof.bench.peers._common import Attempt, Peer, torch, writes
from tvmdml.proof.bench.sessions import onnx_session, topi_kernel
from tvmdml.proof.bench.task import Task
from tvmdml.proof.bench.work import Work

_MOST_SORTED = 1 << 25
"""Elements. Sorting more of them to find a few takes seconds, and more memory than many devices have."""
_LEGACY_STREAM = 1
"""The CUDA handle of the legacy default stream, which is unambiguous; 0 may mean another default stream."""


def _is_full(work: Work) -> bool:
    """Whether all elements are selected."""
    return bool(work["k"] == work.sizes[work["axis"]])


def _is_rising(work: Work) -> bool:
    """Whether the smallest come first."""
    return bool(work["axis_direction"] == "increasing")


def _is_sort(work: Work) -> bool:
    """Whether the work is what is commonly called a sort."""
    return _is_full(work) and _is_rising(work)


def _is_part(work: Work) -> bool:
    """Whether some of the largest are selected."""
    return not _is_full(work) and not _is_rising(work)


def _is_one(work: Work) -> bool:
    """Whether only the largest is selected."""
    return _is_part(work) and bool(work["k"] == 1)


def _few(work: Work) -> bool:
    return _is_part(work) and int(np.prod(work.sizes)) <= _MOST_SORTED


def _selects(work: Work) -> bool:
    """The work that RAFT can do: rows of float32, in no order."""
    return not _is_full(work) and work.dtype == "float32" and len(work.sizes) == 2 and work["axis"] == 1


def _values_and_indices(arrays: Arrays, task: Task) -> tuple[Any, Any]:
    shape = task.expected[0].shape
    return arrays.empty(task, shape, task.x.dtype), arrays.empty(task, shape, np.int64)


def _row(arrays: Arrays, task: Task) -> tuple[Any, int]:
    """The input and its axis; CuPy is given a single row as one dimension, which it sorts faster."""
    x, axis = arrays.input(task), task.work["axis"]
    return (x.ravel(), 0) if arrays is CUPY and x.size == x.shape[axis] else (x, axis)


def _positions(arrays: Arrays, task: Task, threads: int, call: Callable[[], Any]) -> Attempt:
    """A call that returns positions only."""

    def results() -> tuple[NumpyArray, ...]:
        found = arrays.back(call()).reshape(task.expected[0].shape)
        return np.take_along_axis(task.x, found, task.work["axis"]), found

    return arrays.attempt(call, results, threads)


def _partition_numpy(task: Task, threads: int) -> Attempt:
    x, k, axis = task.x, task.work["k"], task.work["axis"]
    largest = np.arange(x.shape[axis] - k, x.shape[axis])

    def call() -> tuple[NumpyArray, ...]:
        found = np.take(np.argpartition(x, largest[0], axis), largest, axis)
        values = np.take_along_axis(x, found, axis)
        order = np.flip(np.argsort(values, axis), axis)
        return np.take_along_axis(values, order, axis), np.take_along_axis(found, order, axis)

    return Attempt(call, call)


def _largest_cupy(arrays: Arrays, task: Task, threads: int) -> Attempt:
    (x, axis), k = _row(arrays, task), task.work["k"]
    last: tuple[slice, ...] = (*(slice(None),) * axis, slice(None, -k - 1, -1))
    argsort, take = arrays.functions.argsort, arrays.functions.take_along_axis

    def call() -> tuple[Any, Any]:
        found = argsort(x, axis)[last]
        return take(x, found, axis), found

    def results() -> tuple[NumpyArray, ...]:
        values, found = (arrays.back(array).reshape(task.expected[0].shape) for array in call())
        return values, found

    return arrays.attempt(call, results, threads)


def _argmax(arrays: Arrays, task: Task, threads: int) -> Attempt:
    return _positions(arrays, task, threads, partial(arrays.functions.argmax, *_row(arrays, task)))


def _argsort(kind: str, arrays: Arrays, task: Task, threads: int) -> Attempt:
    more = (kind,) if kind else ()
    return _positions(arrays, task, threads, partial(arrays.functions.argsort, *_row(arrays, task), *more))


def _topk_torch(arrays: Arrays, task: Task, threads: int) -> Attempt:
    out, largest = _values_and_indices(arrays, task), not _is_rising(task.work)
    call = partial(torch().topk, arrays.input(task), task.work["k"], task.work["axis"], largest, True, out=out)
    return arrays.writes(threads, call, *out)


def _max_torch(arrays: Arrays, task: Task, threads: int) -> Attempt:
    out = _values_and_indices(arrays, task)
    return arrays.writes(threads, partial(torch().max, arrays.input(task), task.work["axis"], True, out=out), *out)


def _sort_torch(stable: bool, arrays: Arrays, task: Task, threads: int) -> Attempt:
    out = _values_and_indices(arrays, task)
    call = partial(torch().sort, arrays.input(task), dim=task.work["axis"], stable=stable, out=out)
    return arrays.writes(threads, call, *out)


def _topk_onnx(task: Task, threads: int) -> Attempt:
    values, indices = _values_and_indices(NUMPY, task)
    k = np.array([task.work["k"]], np.int64)
    attributes = {"axis": task.work["axis"], "largest": int(not _is_rising(task.work)), "sorted": 1}
    # Version 24 of the operator set added bytes; the other types are as fast in the older version.
    opset = 24 if task.x.dtype == np.uint8 else 11
    outputs = {"values": values, "indices": indices}
    call = onnx_session("TopK", {"x": task.x}, outputs, threads, opset=opset, constants={"k": k}, **attributes)
    return Attempt(call, writes(call, values, indices))


def _topk_topi(task: Task, threads: int) -> Attempt:
    values, indices = _values_and_indices(NUMPY, task)
    k, axis, rising = task.work["k"], task.work["axis"], _is_rising(task.work)
    call = topi_kernel(lambda topi, x: topi.topk(x, k, axis, "both", rising, "int64"), [task.x], [values, indices])
    return Attempt(call, writes(call, values, indices))


def _select_raft(arrays: Arrays, task: Task, threads: int) -> Attempt:
    select_k = importlib.import_module("pylibraft.matrix").select_k
    common = importlib.import_module("pylibraft.common")
    values, found = _values_and_indices(arrays, task)
    stream = arrays.functions.cuda.get_current_stream().ptr
    handle = common.DeviceResources(stream=stream or _LEGACY_STREAM)
    call = partial(select_k, arrays.input(task), task.work["k"], values, found, _is_rising(task.work), handle=handle)

    def results() -> tuple[NumpyArray, ...]:
        call()
        handle.sync()
        unordered, positions = arrays.back(values), arrays.back(found)
        order = np.argsort(unordered if _is_rising(task.work) else -unordered, 1, "stable")
        return np.take_along_axis(unordered, order, 1), np.take_along_axis(positions, order, 1)

    return arrays.attempt(call, results, threads)


_INT64 = "writes int64"
_NO_VALUES = "writes int64 indices, no values"
_NEW = f"{_NO_VALUES}, allocates"
_SORTS = "sorts everything (one row of float32: CUB's radix sort; else a merge sort), writes int64, allocates"

PEERS = (
    Peer("numpy", "argpartition + argsort", _partition_numpy, _is_part, _INT64),
    NUMPY.peer("argmax", _argmax, _is_one, _NO_VALUES),
    NUMPY.peer("argsort", partial(_argsort, "quicksort"), _is_sort, _NO_VALUES),
    NUMPY.peer("argsort stable", partial(_argsort, "stable"), _is_sort, _NO_VALUES),
    *(one.peer("topk", _topk_torch, note=_INT64) for one in IN_TORCH),
    *(one.peer("max", _max_torch, _is_one, _INT64) for one in IN_TORCH),
    CUDA_TORCH.peer("sort", partial(_sort_torch, False), _is_sort, _INT64),
    *(one.peer("sort stable", partial(_sort_torch, True), _is_sort, _INT64) for one in IN_TORCH),
    CUPY.peer("argsort + take_along_axis", _largest_cupy, _few, _SORTS),
    CUPY.peer("argmax", _argmax, _is_one, f"{_NEW}; CUB's reduction where CUPY_ACCELERATORS has it"),
    CUPY.peer("argsort", partial(_argsort, ""), _is_sort, f"{_NEW}; of float32 CUB's radix sort"),
    CUPY.peer("select_k", _select_raft, _selects, "writes int64, in no order")._replace(library="raft"),
    Peer("onnxruntime", "TopK", _topk_onnx, note=_INT64),
    Peer("tvm topi", "topk", _topk_topi, note=_INT64),
)
