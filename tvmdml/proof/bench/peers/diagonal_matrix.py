"""Diagonals, triangles and bands; no library has a function for bands."""

from __future__ import annotations

import importlib
from functools import partial
from typing import Any

import numpy as np

from tvmdml.proof.bench import inputs
from tvmdml.proof.bench.inputs import NumpyArray
from tvmdml.proof.bench.peers._arrays import CUDA_TORCH, CUPY, IN_NUMPY, IN_TORCH, NUMPY, TORCH, Arrays
from tvmdml.proof.bench.peers._common import Attempt, Peer, torch, writes
from tvmdml.proof.bench.sessions import onnx_session, topi_kernel
from tvmdml.proof.bench.task import Task
from tvmdml.proof.bench.work import Work


def _is_eye(work: Work) -> bool:
    """The main diagonal of one matrix, without input."""
    return not work.data and set(work.sizes[:-2]) <= {1} and (work["diagonal_fill_begin"], work["diagonal_fill_end"]) == (0, 1)


def _is_ones(work: Work) -> bool:
    """The same, of ones."""
    return _is_eye(work) and work["value"] == 1


def _is_upper(work: Work) -> bool:
    """The strict upper triangle of an input, and zeros."""
    return (
        bool(work.data) and work["value"] == 0 and work["diagonal_fill_end"] == 1 and work["diagonal_fill_begin"] < -max(work.sizes)
    )


def _is_band(work: Work) -> bool:
    """An input with some diagonals overwritten."""
    return bool(work.data) and -max(work.sizes) <= work["diagonal_fill_begin"] <= work["diagonal_fill_end"]


def _band(work: Work) -> range:
    """The diagonals of a band that cross the matrix."""
    height, width = work.sizes
    return range(max(work["diagonal_fill_begin"], 1 - height), min(work["diagonal_fill_end"], width))


def _output(arrays: Arrays, task: Task) -> tuple[Any, Any]:
    """The output, and its only matrix."""
    (out,) = map(arrays.of, task.outputs())
    return out, out.reshape(out.shape[-2:])


def _eye(arrays: Arrays, task: Task, threads: int) -> Attempt:
    *_, height, width = task.work.sizes
    call = partial(arrays.functions.eye, height, width, 0, task.work.dtype)
    return arrays.returns(threads, call, lambda found: found.reshape(task.work.sizes))


def _fill(arrays: Arrays, task: Task, threads: int) -> Attempt:
    out, matrix = _output(arrays, task)
    diagonal = arrays.functions.lib.stride_tricks.as_strided(matrix, (min(matrix.shape),), (sum(matrix.strides),))
    value = task.work["value"]

    def call() -> None:
        out.fill(0)
        diagonal.fill(value)

    return arrays.writes(threads, call, out)


def _eye_torch(arrays: Arrays, task: Task, threads: int) -> Attempt:
    out, matrix = _output(arrays, task)
    return arrays.writes(threads, partial(torch().eye, *task.work.sizes[-2:], out=matrix), out)


def _fill_torch(arrays: Arrays, task: Task, threads: int) -> Attempt:
    out, matrix = _output(arrays, task)
    diagonal, value = torch().diagonal(matrix, 0), task.work["value"]

    def call() -> None:
        matrix.zero_()
        diagonal.fill_(value)

    return arrays.writes(threads, call, out)


def _eye_onnx(task: Task, threads: int) -> Attempt:
    (out,) = task.outputs()
    matrix = out.reshape(out.shape[-2:])
    call = onnx_session("EyeLike", {"x": matrix.copy()}, {"y": matrix}, threads)
    return Attempt(call, writes(call, out))


def _upper(arrays: Arrays, task: Task, threads: int) -> Attempt:
    return arrays.returns(threads, partial(arrays.functions.triu, arrays.input(task), 1))


def _upper_torch(arrays: Arrays, task: Task, threads: int) -> Attempt:
    out, _ = _output(arrays, task)
    return arrays.writes(threads, partial(torch().triu, arrays.input(task), 1, out=out), out)


def _upper_onnx(task: Task, threads: int) -> Attempt:
    (out,) = task.outputs()
    above = np.array(1, np.int64)
    call = onnx_session("Trilu", {"x": task.x}, {"y": out}, threads, opset=14, constants={"k": above}, upper=1)
    return Attempt(call, writes(call, out))


def _upper_topi(task: Task, threads: int) -> Attempt:
    (out,) = task.outputs()
    tirx = importlib.import_module("tvm.tirx")
    call = topi_kernel(lambda topi, x: [topi.trilu(x, tirx.const(1, "int32"), True)], [task.x], [out])
    return Attempt(call, writes(call, out))


def _inside(task: Task) -> NumpyArray:
    """The mask of the elements in the band."""
    height, width = task.work.sizes
    diagonal = np.arange(width)[None, :] - np.arange(height)[:, None]
    return inputs.like((task.work["diagonal_fill_begin"] <= diagonal) & (diagonal < task.work["diagonal_fill_end"]))


def _band_numpy(task: Task, threads: int) -> Attempt:
    (out,) = task.outputs()
    x, within, value = task.x, _inside(task), task.x.dtype.type(task.work["value"])

    def call() -> None:
        np.copyto(out, x)
        np.copyto(out, value, where=within)

    return Attempt(call, writes(call, out))


def _band_cupy(arrays: Arrays, task: Task, threads: int) -> Attempt:
    x, within = arrays.input(task), arrays.of(_inside(task))
    return arrays.returns(threads, partial(arrays.functions.where, within, x.dtype.type(task.work["value"]), x))


def _band_torch(arrays: Arrays, task: Task, threads: int) -> Attempt:
    x, (out, _), value = arrays.input(task), _output(arrays, task), task.work["value"]
    diagonals = [torch().diagonal(out, d) for d in _band(task.work)]

    def call() -> None:
        out.copy_(x)
        for diagonal in diagonals:
            diagonal.fill_(value)

    return arrays.writes(threads, call, out)


def _where_torch(arrays: Arrays, task: Task, threads: int) -> Attempt:
    x, (out, _) = arrays.input(task), _output(arrays, task)
    value = torch().full((), task.work["value"], dtype=x.dtype, device=x.device)
    return arrays.writes(threads, partial(torch().where, arrays.of(_inside(task)), value, x, out=out), out)


_NEW, _MASK = "allocates", "reads the band as a mask"
PEERS = (
    NUMPY.peer("eye", _eye, _is_ones),
    CUPY.peer("eye", _eye, _is_ones, _NEW),
    *(one.peer("fill + diagonal", _fill, _is_eye) for one in IN_NUMPY),
    *(one.peer("eye", _eye_torch, _is_ones) for one in IN_TORCH),
    *(one.peer("zero_ + diagonal", _fill_torch, _is_eye) for one in IN_TORCH),
    Peer("onnxruntime", "EyeLike", _eye_onnx, _is_ones),
    NUMPY.peer("triu", _upper, _is_upper),
    CUPY.peer("triu", _upper, _is_upper, _NEW),
    *(one.peer("triu", _upper_torch, _is_upper) for one in IN_TORCH),
    Peer("onnxruntime", "Trilu", _upper_onnx, _is_upper),
    Peer("tvm topi", "trilu", _upper_topi, _is_upper),
    Peer("numpy", "copyto + copyto where", _band_numpy, _is_band),
    CUPY.peer("where", _band_cupy, _is_band, f"{_NEW}, {_MASK}"),
    *(one.peer("copy_ + diagonals", _band_torch, _is_band) for one in IN_TORCH),
    TORCH.peer("where", _where_torch, _is_band),
    CUDA_TORCH.peer("where", _where_torch, _is_band, _MASK),
)
