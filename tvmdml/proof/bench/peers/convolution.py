"""Convolutions in PyTorch and ONNX Runtime, which may pack filters beforehand."""

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

_INTEGER, _QUANTIZED = "CONVOLUTION_INTEGER", "QUANTIZED_LINEAR_CONVOLUTION"


def _is_backward(work: Work) -> bool:
    return work.operator == "CONVOLUTION" and work["direction"] == "BACKWARD"


def _torch(task: Task, threads: int) -> Attempt:
    work, (x, w, *_) = task.work, [tensor(one) for one in task.given if one is not None]
    functional = torch().nn.functional
    numbers: dict[str, Any] = {"stride": work["strides"], "padding": work["start_padding"], "groups": work["group_count"]}
    which = functional.conv_transpose2d if _is_backward(work) else functional.conv2d
    call = partial(which, x, w, **numbers)
    return on_torch(call, lambda: (call().numpy(),), threads)


def _numbers(work: Work) -> dict[str, Any]:
    pads = [*work["start_padding"], *work["end_padding"]]
    return {"strides": work["strides"], "dilations": work["dilations"], "pads": pads, "group": work["group_count"]}


def _onnx(task: Task, threads: int) -> Attempt:
    work, output = task.work, task.desc.outputs()[0]
    out = inputs.empty(output.sizes, output.data_type.numpy)
    if work.operator == _INTEGER:
        x, zero, w, *_ = task.given
        kind, names = "ConvInteger", {"x": x, "w": w, "x_zero": _small(zero)}
    elif work.operator == _QUANTIZED:
        own = ("x", "x_scale", "x_zero", "w", "w_scale", "w_zero", "bias", "y_scale", "y_zero")
        found = dict(zip(own, task.given, strict=True))
        kind = "QLinearConv"
        names = {name: one if name in ("x", "w") else _small(one) for name, one in found.items() if one is not None}
    else:
        kind = "ConvTranspose" if _is_backward(work) else "Conv"
        names = dict(zip(("x", "w"), task.given, strict=False))
    x = names.pop("x")
    assert x is not None
    constants = {name: one for name, one in names.items() if one is not None}
    call = onnx_session(kind, {"x": x}, {"y": out}, threads, opset=11, constants=constants, **_numbers(work))
    return Attempt(call, writes(call, out))


def _small(array: NumpyArray | None) -> Any:
    """A scale or a zero point as ONNX has it."""
    return None if array is None else np.ascontiguousarray(array.reshape(() if array.size == 1 else (-1,)))


PEERS = (
    Peer("torch", "conv2d, conv_transpose2d", _torch, lambda work: work.operator == "CONVOLUTION"),
    Peer("onnxruntime", "Conv, ConvTranspose, ConvInteger, QLinearConv", _onnx, note="filters packed before"),
)
