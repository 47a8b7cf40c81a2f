"""Batch normalisation in PyTorch and ONNX Runtime."""

from __future__ import annotations

from functools import partial
from typing import Any

import numpy as np

from tvmdml.proof.bench import inputs
from tvmdml.proof.bench.inputs import NumpyArray
from tvmdml.proof.bench.peers._common import Attempt, Peer, on_torch, tensor, torch, writes
from tvmdml.proof.bench.sessions import onnx_session
from tvmdml.proof.bench.task import Task


def _flat(one: NumpyArray | None) -> Any:
    assert one is not None
    return tensor(one.reshape(-1))


def _epsilon(task: Task) -> float:
    return float(getattr(task.desc, "epsilon"))  # noqa: B009 - of these operators


def _given(task: Task, threads: int) -> Attempt:
    call = partial(torch().nn.functional.batch_norm, tensor(task.x), *map(_flat, list(task.given)[1:]), eps=_epsilon(task))
    return on_torch(call, lambda: (call().numpy(),), threads)


def _onnx(task: Task, threads: int) -> Attempt:
    (result,) = task.desc.outputs()
    out = inputs.empty(result.sizes, task.x.dtype)
    mean, variance, scale, bias = (one.reshape(-1) for one in list(task.given)[1:] if one is not None)
    own = {"scale": scale, "bias": bias, "mean": mean, "variance": variance}
    call = onnx_session("BatchNormalization", {"x": task.x}, {"y": out}, threads, opset=15, constants=own, epsilon=_epsilon(task))
    return Attempt(call, writes(call, out))


def _training(task: Task, threads: int) -> Attempt:
    """PyTorch gives one over the deviation in place of the variance."""
    parameters = map(_flat, list(task.given)[1:3])
    call = partial(torch().native_batch_norm, tensor(task.x), *parameters, None, None, True, 0.1, _epsilon(task))

    def results() -> tuple[NumpyArray, ...]:
        output, mean, inverse = (one.numpy() for one in call())
        sizes = task.desc.outputs()[1].sizes
        variance = (1 / inverse.astype(np.float64) ** 2 - _epsilon(task)).astype(mean.dtype)
        return output, mean.reshape(sizes), variance.reshape(sizes)

    return on_torch(call, results, threads)


def _is(operator: str, inputs: int) -> Any:
    return lambda work: work.operator == operator and len(work.inputs) == inputs


PEERS = (
    Peer("torch", "batch_norm", _given, _is("BATCH_NORMALIZATION", 5)),
    Peer("onnxruntime", "BatchNormalization", _onnx, _is("BATCH_NORMALIZATION", 5)),
    Peer("torch", "native_batch_norm", _training, _is("BATCH_NORMALIZATION_TRAINING", 3)),
)
