"""Products of matrices of integers in PyTorch and ONNX Runtime."""

from __future__ import annotations

from functools import partial
from typing import Any

import numpy as np

from tvmdml.proof.bench import inputs
from tvmdml.proof.bench.inputs import NumpyArray
from tvmdml.proof.bench.peers._common import Attempt, Peer, on_torch, tensor, torch, writes
from tvmdml.proof.bench.sessions import onnx_session
from tvmdml.proof.bench.task import Task
from tvmdml.proof.bench.work import Work

_QUANTIZED = "QUANTIZED_LINEAR_MATRIX_MULTIPLY"


def _is_plain(work: Work) -> bool:
    """Whether PyTorch has it: of int8, without zero points."""
    return work.operator == "MATRIX_MULTIPLY_INTEGER" and work.dtype == "int8" and work.inputs[1] is None


def _torch(task: Task, threads: int) -> Attempt:
    a, b = (tensor(one) for one in task.given if one is not None)
    out: Any = torch().empty(task.desc.outputs()[0].sizes, dtype=torch().int32)
    call = partial(torch()._int_mm, a, b, out=out)
    return on_torch(call, lambda: (call().numpy(),), threads)


def _small(array: NumpyArray | None) -> Any:
    """A scale or a zero point as ONNX has it."""
    return None if array is None else np.ascontiguousarray(array.reshape(() if array.size == 1 else (-1,)))


def _onnx(task: Task, threads: int) -> Attempt:
    output = task.desc.outputs()[0]
    out = inputs.empty(output.sizes, output.data_type.numpy)
    if task.work.operator == _QUANTIZED:
        names = ("a", "a_scale", "a_zero", "b", "b_scale", "b_zero", "y_scale", "y_zero")
        found = dict(zip(names, task.given, strict=True))
        given: dict[str, Any] = {name: one if name in ("a", "b") else _small(one) for name, one in found.items()}
        call = onnx_session("QLinearMatMul", given, {"y": out}, threads, opset=10)
    else:
        a, a_zero, b, b_zero, *_ = [*task.given, None]
        given = {"a": a, "b": b} | {f"zero{i}": _small(one) for i, one in enumerate((a_zero, b_zero)) if one is not None}
        call = onnx_session("MatMulInteger", given, {"y": out}, threads, opset=10)
    return Attempt(call, writes(call, out))


def _scaled(task: Task, threads: int) -> Attempt:
    """The product by ONNX Runtime, and the scale by NumPy."""
    a, a_scale, a_zero, b, b_scale, *_ = task.given
    assert a is not None
    assert b is not None
    assert a_scale is not None
    assert b_scale is not None
    total = inputs.empty(task.desc.outputs()[0].sizes, np.dtype("int32"))
    out = inputs.empty(total.shape, np.dtype("float32"))
    session = onnx_session("MatMulInteger", {"a": a, "b": b, "zero": _small(a_zero)}, {"y": total}, threads, opset=10)

    def call() -> None:
        session()
        np.multiply(total, a_scale * b_scale, out=out)

    return Attempt(call, writes(call, out))


PEERS = (
    Peer("torch", "_int_mm", _torch, _is_plain),
    Peer(
        "onnxruntime",
        "MatMulInteger, QLinearMatMul",
        _onnx,
        lambda work: work.operator != "MATRIX_MULTIPLY_INTEGER_TO_FLOAT",
    ),
    Peer(
        "onnxruntime",
        "MatMulInteger, multiply",
        _scaled,
        lambda work: work.operator == "MATRIX_MULTIPLY_INTEGER_TO_FLOAT",
        note="NumPy scales the product",
    ),
)
