"""Pooling and local response normalization of PyTorch and ONNX Runtime."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

from tvmdml.proof.bench import inputs
from tvmdml.proof.bench.peers._arrays import IN_TORCH, Arrays
from tvmdml.proof.bench.peers._common import Attempt, Peer, torch, writes
from tvmdml.proof.bench.sessions import onnx_session
from tvmdml.proof.bench.task import Task
from tvmdml.proof.bench.work import Work

_AVERAGE, _LARGEST, _NORM, _RESPONSE = "AVERAGE_POOLING1", "MAX_POOLING2", "LP_POOLING1", "LOCAL_RESPONSE_NORMALIZATION"
_ONNX = {_AVERAGE: "AveragePool", _LARGEST: "MaxPool", _NORM: "LpPool", _RESPONSE: "LRN"}


def _is_known(work: Work) -> bool:
    return work.operator in _ONNX and len(work.sizes) == 4


def _is_plain(work: Work) -> bool:
    """Whether ONNX Runtime has a node for it: its response normalization is of float32."""
    return _is_known(work) and work.layout == "packed" and (work.operator != _RESPONSE or work.dtype == "float32")


def _is_image(work: Work) -> bool:
    return work.operator in (_AVERAGE, _LARGEST) and work["window_size"] == tuple(work.sizes[2:])


def _is_symmetric(work: Work) -> bool:
    """Whether PyTorch has a function for it."""
    if not _is_known(work):
        return False
    if work.operator == _RESPONSE:
        return bool(work["cross_channel"]) and work["local_size"] % 2 == 1
    padding = work["start_padding"]
    plain = work["end_padding"] == padding and all(2 * p <= n for p, n in zip(padding, work["window_size"], strict=True))
    return plain and (work.operator == _LARGEST or set(work["dilations"]) == {1}) and (work.operator != _NORM or not any(padding))


def _on_tensor(work: Work, x: Any) -> Callable[[], Any]:
    """PyTorch's function on a tensor."""
    functional = torch().nn.functional
    if work.operator == _RESPONSE:
        return partial(functional.local_response_norm, x, work["local_size"], work["alpha"], work["beta"], work["bias"])
    if _is_image(work):
        whole = torch().mean if work.operator == _AVERAGE else torch().amax
        return partial(whole, x, (2, 3), keepdim=True)
    size, steps = work["window_size"], work["strides"]
    if work.operator == _NORM:
        return partial(functional.lp_pool2d, x, float(work["p"]), size, steps)
    if work.operator == _LARGEST:
        return partial(functional.max_pool2d, x, size, steps, work["start_padding"], work["dilations"])
    padded = bool(work["include_padding"])
    return partial(functional.avg_pool2d, x, size, steps, work["start_padding"], count_include_pad=padded)


def _torch(arrays: Arrays, task: Task, threads: int) -> Attempt:
    return arrays.returns(threads, _on_tensor(task.work, arrays.input(task)))


def _onnx(task: Task, threads: int) -> Attempt:
    work, out = task.work, inputs.empty(task.desc.outputs()[0].sizes, task.x.dtype)
    if work.operator == _RESPONSE:
        given: dict[str, Any] = {name: work[name] for name in ("alpha", "beta", "bias")} | {"size": work["local_size"]}
    elif _is_image(work):
        given = {}
    else:
        pads = [*work["start_padding"], *work["end_padding"]]
        given = {"kernel_shape": work["window_size"], "strides": work["strides"], "dilations": work["dilations"], "pads": pads}
        own = {_AVERAGE: ("count_include_pad", "include_padding"), _NORM: ("p", "p")}.get(work.operator)
        given |= {} if own is None else {own[0]: int(work[own[1]])}
    kind = f"{'Global' * _is_image(work)}{_ONNX[work.operator]}"
    call = onnx_session(kind, {"x": task.x}, {"y": out}, threads, opset=19, **given)
    return Attempt(call, writes(call, out))


PEERS = (
    *(one.peer("pool", _torch, _is_symmetric) for one in IN_TORCH),
    Peer("onnxruntime", "Pool", _onnx, _is_plain),
)
