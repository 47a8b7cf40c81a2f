"""Diagonals, triangles and bands; no library has a function for bands."""

from __future__ import annotations

import importlib
from functools import partial

import numpy as np

from tvmdml.proof.bench import inputs
from tvmdml.proof.bench.inputs import Array
from tvmdml.proof.bench.peers._common import Attempt, Peer, on_torch, tensor, torch, writes
from tvmdml.proof.bench.sessions import onnx_session, topi_kernel
from tvmdml.proof.bench.task import Task
from tvmdml.proof.bench.work import Work


def is_eye(work: Work) -> bool:
    """The main diagonal of one matrix, without input."""
    return not work.data and set(work.sizes[:-2]) <= {1} and (work["diagonal_fill_begin"], work["diagonal_fill_end"]) == (0, 1)


def is_upper(work: Work) -> bool:
    """The strict upper triangle of an input, and zeros."""
    return (
        bool(work.data) and work["value"] == 0 and work["diagonal_fill_end"] == 1 and work["diagonal_fill_begin"] < -max(work.sizes)
    )


def is_band(work: Work) -> bool:
    """An input with some diagonals overwritten."""
    return bool(work.data) and -max(work.sizes) <= work["diagonal_fill_begin"] <= work["diagonal_fill_end"]


def band(work: Work) -> range:
    """The diagonals of a band that cross the matrix."""
    height, width = work.sizes
    return range(max(work["diagonal_fill_begin"], 1 - height), min(work["diagonal_fill_end"], width))


def _matrix(out: Array) -> Array:
    """The only matrix of an array, without leading dimensions."""
    return out.reshape(out.shape[-2:])


def _eye_numpy(task: Task, threads: int) -> Attempt:
    *_, height, width = task.work.sizes
    call = partial(np.eye, height, width, 0, task.work.dtype)
    return Attempt(call, lambda: (call().reshape(task.work.sizes),))


def _fill_numpy(task: Task, threads: int) -> Attempt:
    (out,) = task.outputs()
    matrix = _matrix(out)
    diagonal = np.lib.stride_tricks.as_strided(matrix, (min(matrix.shape),), (sum(matrix.strides),))
    value = task.work["value"]

    def call() -> None:
        out.fill(0)
        diagonal.fill(value)

    return Attempt(call, writes(call, out))


def _eye_torch(task: Task, threads: int) -> Attempt:
    (out,) = task.outputs()
    call = partial(torch().eye, *task.work.sizes[-2:], out=tensor(_matrix(out)))
    return on_torch(call, writes(call, out), threads)


def _fill_torch(task: Task, threads: int) -> Attempt:
    (out,) = task.outputs()
    result = tensor(_matrix(out))
    diagonal = torch().diagonal(result, 0)
    value = task.work["value"]

    def call() -> None:
        result.zero_()
        diagonal.fill_(value)

    return on_torch(call, writes(call, out), threads)


def _eye_onnx(task: Task, threads: int) -> Attempt:
    (out,) = task.outputs()
    matrix = _matrix(out)
    call = onnx_session("EyeLike", {"x": matrix.copy()}, {"y": matrix}, threads)
    return Attempt(call, writes(call, out))


def _upper_numpy(task: Task, threads: int) -> Attempt:
    call = partial(np.triu, task.x, 1)
    return Attempt(call, lambda: (call(),))


def _upper_torch(task: Task, threads: int) -> Attempt:
    (out,) = task.outputs()
    call = partial(torch().triu, tensor(task.x), 1, out=tensor(out))
    return on_torch(call, writes(call, out), threads)


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


def inside(task: Task) -> Array:
    """The mask of the elements in the band."""
    height, width = task.work.sizes
    diagonal = np.arange(width)[None, :] - np.arange(height)[:, None]
    return inputs.like((task.work["diagonal_fill_begin"] <= diagonal) & (diagonal < task.work["diagonal_fill_end"]))


def _band_numpy(task: Task, threads: int) -> Attempt:
    (out,) = task.outputs()
    x, within, value = task.x, inside(task), task.x.dtype.type(task.work["value"])

    def call() -> None:
        np.copyto(out, x)
        np.copyto(out, value, where=within)

    return Attempt(call, writes(call, out))


def _band_torch(task: Task, threads: int) -> Attempt:
    (out,) = task.outputs()
    x, result, value = tensor(task.x), tensor(out), task.work["value"]
    diagonals = [torch().diagonal(result, d) for d in band(task.work)]

    def call() -> None:
        result.copy_(x)
        for diagonal in diagonals:
            diagonal.fill_(value)

    return on_torch(call, writes(call, out), threads)


def _where_torch(task: Task, threads: int) -> Attempt:
    (out,) = task.outputs()
    x = tensor(task.x)
    value = torch().tensor(task.work["value"], dtype=x.dtype)
    call = partial(torch().where, tensor(inside(task)), value, x, out=tensor(out))
    return on_torch(call, writes(call, out), threads)


PEERS = (
    Peer("numpy", "eye", _eye_numpy, lambda work: is_eye(work) and work["value"] == 1),
    Peer("numpy", "fill + diagonal", _fill_numpy, is_eye),
    Peer("torch", "eye", _eye_torch, lambda work: is_eye(work) and work["value"] == 1),
    Peer("torch", "zero_ + diagonal", _fill_torch, is_eye),
    Peer("onnxruntime", "EyeLike", _eye_onnx, lambda work: is_eye(work) and work["value"] == 1),
    Peer("numpy", "triu", _upper_numpy, is_upper),
    Peer("torch", "triu", _upper_torch, is_upper),
    Peer("onnxruntime", "Trilu", _upper_onnx, is_upper),
    Peer("tvm topi", "trilu", _upper_topi, is_upper),
    Peer("numpy", "copyto + copyto where", _band_numpy, is_band),
    Peer("torch", "copy_ + diagonals", _band_torch, is_band),
    Peer("torch", "where", _where_torch, is_band),
)
