"""Products of matrices in NumPy, PyTorch and ONNX Runtime."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

import numpy as np

from tvmdml.proof.bench import inputs
from tvmdml.proof.bench.inputs import NumpyArray
from tvmdml.proof.bench.peers._common import Attempt, Peer, on_torch, tensor, torch, writes
from tvmdml.proof.bench.sessions import onnx_nodes_session, onnx_session
from tvmdml.proof.bench.task import Task
from tvmdml.proof.bench.work import Work

_BEHIND = ("ELEMENT_WISE_ADD", "ACTIVATION_RELU")


def _factors(task: Task) -> tuple[NumpyArray, NumpyArray, NumpyArray | None]:
    a, b, *more = task.inputs
    assert a is not None
    assert b is not None
    return a, b, more[0] if more else None


def _is_turned(work: Work) -> bool:
    return bool(dict(work.attributes).get("trans_b") == "transpose")


def _is_of_floats(work: Work) -> bool:
    return not work.behind and not _has_few_bits(work)


def _is_plain(work: Work) -> bool:
    return _is_of_floats(work) and work.dtype == "float32" and len(work.inputs) < 3


def _numpy(task: Task, threads: int) -> Attempt:
    a, b, _ = _factors(task)
    out = inputs.empty(task.desc.outputs()[0].sizes, a.dtype)
    call = partial(np.matmul, a, b.swapaxes(-1, -2) if _is_turned(task.work) else b, out=out)
    return Attempt(call, writes(call, out))


def _torch(task: Task, threads: int) -> Attempt:
    given: list[Any] = [one if one is None else tensor(one) for one in _factors(task)]
    a, b, c = given
    second: Any = b.transpose(-1, -2) if _is_turned(task.work) else b
    library, out = torch(), torch().empty(task.desc.outputs()[0].sizes, dtype=a.dtype)
    call: Callable[[], Any] = partial(library.matmul, a, second, out=out)
    if c is not None:
        call = partial(library.addmm, c[0], a, second, out=out)
    return on_torch(call, lambda: (call().numpy(),), threads)


def _onnx(task: Task, threads: int) -> Attempt:
    a, b, c = _factors(task)
    out = inputs.empty(task.desc.outputs()[0].sizes, a.dtype)
    given = {"a": a, "b": b}
    if len(a.shape) > 2:
        call = onnx_session("MatMul", given, {"y": out}, threads)
    else:
        added = {} if c is None else {"c": np.ascontiguousarray(c[0])}
        call = onnx_session("Gemm", {**given, **added}, {"y": out}, threads, transB=int(_is_turned(task.work)))
    return Attempt(call, writes(call, out))


# -- With a matrix of few bits: ONNX Runtime's sums of float32


def _has_few_bits(work: Work) -> bool:
    return work.operator == "FUSED_BLOCKWISE_GEMM"


def _onnx_few_bits(task: Task, threads: int) -> Attempt:
    a, b, scale = (array for array in task.given if array is not None)
    out = inputs.empty(task.desc.outputs()[0].sizes, a.dtype)
    (n, blocks), k = scale.shape, a.shape[1]
    known = {"b": b.reshape(n, blocks, -1), "scale": scale}
    sizes = {"K": k, "N": n, "bits": task.work["bits"], "block_size": task.work["block_size"]}
    call = onnx_session("MatMulNBits", {"a": a}, {"y": out}, threads, constants=known, domain="com.microsoft", **sizes)
    return Attempt(call, writes(call, out))


def _in_onnx(work: Work) -> bool:
    return _is_of_floats(work) and work.dtype == "float32" and not (len(work.sizes) > 2 and _is_turned(work))


# -- With a sum and an activation behind: in PyTorch step by step, in place; ONNX Runtime fuses what it can


def _with_steps(work: Work) -> bool:
    return work.behind == _BEHIND and work.dtype == "float32" and not _is_turned(work)


def _torch_steps(task: Task, threads: int) -> Attempt:
    a, b, bias, residual = (tensor(one) for one in task.given if one is not None)
    out = torch().empty(task.desc.outputs()[0].sizes, dtype=a.dtype)

    def call() -> Any:
        torch().addmm(bias[0], a, b, out=out)
        return out.add_(residual).relu_()

    return on_torch(call, lambda: (call().numpy(),), threads)


def _onnx_steps(task: Task, threads: int) -> Attempt:
    a, b, bias, residual = (one for one in task.given if one is not None)
    out = inputs.empty(task.desc.outputs()[0].sizes, a.dtype)
    nodes: list[tuple[str, tuple[str, ...], tuple[str, ...], dict[str, Any]]] = [
        ("Gemm", ("a", "b", "bias"), ("product",), {}),
        ("Add", ("product", "residual"), ("sum",), {}),
        ("Relu", ("sum",), ("y",), {}),
    ]
    given = {"a": a, "b": b, "bias": np.ascontiguousarray(bias[0]), "residual": residual}
    call = onnx_nodes_session(nodes, given, {"y": out}, threads)
    return Attempt(call, writes(call, out))


PEERS = (
    Peer("numpy", "matmul", _numpy, _is_plain),
    Peer("torch", "matmul, addmm", _torch, _is_of_floats),
    Peer("onnxruntime", "Gemm, MatMul", _onnx, _in_onnx),
    Peer("onnxruntime", "MatMulNBits", _onnx_few_bits, _has_few_bits),
    Peer("torch", "addmm, add_, relu_", _torch_steps, _with_steps),
    Peer("onnxruntime", "Gemm, Add, Relu", _onnx_steps, _with_steps),
)
