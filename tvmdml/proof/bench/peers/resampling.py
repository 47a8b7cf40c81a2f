"""Resampling of images, linear or to the nearest: PyTorch's interpolate, and ONNX's Resize."""

from __future__ import annotations

from functools import partial
from typing import Any

import numpy as np

from tvmdml.proof.bench import inputs
from tvmdml.proof.bench.peers._common import Attempt, Peer, on_torch, tensor, torch, writes
from tvmdml.proof.bench.sessions import onnx_session
from tvmdml.proof.bench.task import Task
from tvmdml.proof.bench.work import Work


def _suits(work: Work) -> bool:
    """Whether the scales are the quotients of the sizes, as they are of images that no test has made small."""
    if work.operator != "RESAMPLE3":
        return False
    sizes, outputs = work.inputs[0].sizes, work["output_tensor"].sizes  # type: ignore[union-attr]
    return all(abs(n * scale - m) < 1 for n, m, scale in zip(sizes, outputs, work["scales"], strict=True))


def _torch(task: Task, threads: int) -> Attempt:
    sizes = task.desc.outputs()[0].sizes
    x = tensor(task.x)
    mode = "bilinear" if task.work["interpolation_mode"] == "linear" else "nearest-exact"
    call = partial(torch().nn.functional.interpolate, x, sizes[2:], mode=mode)
    return on_torch(call, lambda: (call().numpy(),), threads)


def _onnx(task: Task, threads: int) -> Attempt:
    sizes = task.desc.outputs()[0].sizes
    out = inputs.empty(sizes, task.x.dtype)
    mode = "linear" if task.work["interpolation_mode"] == "linear" else "nearest"
    none = np.zeros(0, np.float32)
    constants: dict[str, Any] = {"roi": none, "scales": none, "sizes": np.array(sizes, np.int64)}
    attributes: dict[str, Any] = {"mode": mode, "nearest_mode": "round_prefer_ceil"}
    call = onnx_session("Resize", {"x": task.x}, {"y": out}, threads, opset=18, constants=constants, **attributes)
    return Attempt(call, writes(call, out))


PEERS = (Peer("torch", "interpolate", _torch, _suits), Peer("onnxruntime", "Resize", _onnx, _suits))
