"""Reductions in NumPy, PyTorch and ONNX Runtime."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from functools import partial
from typing import Any

import numpy as np

from tvmdml.proof.bench import inputs
from tvmdml.proof.bench.inputs import NumpyArray
from tvmdml.proof.bench.peers._arrays import CUDA_TORCH, TORCH, Arrays
from tvmdml.proof.bench.peers._common import Attempt, Peer, on_torch, tensor, torch, writes
from tvmdml.proof.bench.sessions import onnx_session
from tvmdml.proof.bench.task import Task
from tvmdml.proof.bench.work import Work

_NUMPY: dict[str, Callable[..., Any]] = {
    "sum": np.sum,
    "max": np.max,
    "min": np.min,
    "average": np.mean,
    "multiply": np.prod,
}


_ONNX = {
    "sum": "ReduceSum",
    "max": "ReduceMax",
    "min": "ReduceMin",
    "average": "ReduceMean",
    "log_sum_exp": "ReduceLogSumExp",
    "l2": "ReduceL2",
    "argmax": "ArgMax",
    "argmin": "ArgMin",
    "activation_softmax1": "Softmax",
    "activation_log_softmax1": "LogSoftmax",
    "mean_variance_normalization1": "LayerNormalization",
}


def _function(work: Work) -> str:
    """The function of REDUCE; another operator's name."""
    return str(dict(work.attributes).get("function", work.operator)).lower()


def _axes(work: Work) -> tuple[Any, ...]:
    axes = dict(work.attributes).get("axes", ())
    return axes if isinstance(axes, tuple) else ()


def _in_numpy(work: Work) -> bool:
    single = work.operator in ("ARGMAX", "ARGMIN") and len(_axes(work)) == 1
    return single or (work.operator == "REDUCE" and _function(work) in _NUMPY)


def _numpy(task: Task, threads: int) -> Attempt:
    axes, function = _axes(task.work), _function(task.work)
    if task.work.operator == "REDUCE":
        out = np.empty(task.desc.outputs()[0].sizes, task.x.dtype)
        call: Callable[[], Any] = partial(_NUMPY[function], task.x, axis=axes, out=out, keepdims=True)
        return Attempt(call, writes(call, out))
    call = partial(getattr(np, function), task.x, axes[0], keepdims=True)
    return Attempt(call, lambda: (call().astype(task.desc.outputs()[0].data_type.numpy),))


def _flat(one: NumpyArray | None) -> Any:
    return None if one is None else tensor(one.reshape(-1))


def _torch_call(task: Task, x: Any) -> Callable[[], Any] | None:
    """A call of PyTorch on a tensor of the input; ``None`` if there is none."""
    axes, function, given = _axes(task.work), _function(task.work), list(task.given)
    library = torch()
    F = library.nn.functional  # noqa: N806 - as everyone calls it
    if task.work.operator in ("ARGMAX", "ARGMIN"):
        return partial(getattr(library, function), x, axes[0], True) if len(axes) == 1 else None
    simple: dict[str, Callable[[], Any]] = {
        "sum": lambda: x.sum(axes, keepdim=True),
        "average": lambda: x.mean(axes, keepdim=True),
        "max": lambda: x.amax(axes, keepdim=True),
        "min": lambda: x.amin(axes, keepdim=True),
        "log_sum_exp": lambda: x.logsumexp(axes, keepdim=True),
        "l2": lambda: library.linalg.vector_norm(x, 2, axes, True),
    }
    if task.work.operator == "REDUCE":
        return simple.get(function)
    own = [_flat(one) for one in given[1:]]
    normal = partial(F.layer_norm, x, task.x.shape[-len(axes) :], *own, 1e-5)
    if _followed(task.work):
        then = {"ACTIVATION_RELU": torch().relu_}[_followed(task.work)]
        return lambda: then(normal())
    others: dict[str, Callable[[], Any] | None] = {
        "activation_softmax1": partial(library.softmax, x, axes[0]) if len(axes) == 1 else None,
        "activation_log_softmax1": partial(library.log_softmax, x, axes[0]) if len(axes) == 1 else None,
        "mean_variance_normalization1": normal if _is_last(task.work) else None,
    }
    return others.get(function)


def _followed(work: Work) -> str:
    """The activation that follows; empty if none does."""
    return str(dict(work.attributes).get("fused_activation", ""))


def _is_last(work: Work) -> bool:
    """Whether the axes are the last ones."""
    axes = _axes(work)
    return bool(axes) and tuple(range(len(work.sizes)))[-len(axes) :] == axes


def _in_torch(work: Work) -> bool:
    """Whether PyTorch has such a function."""
    known = ("ARGMAX", "ARGMIN", "ACTIVATION_SOFTMAX1", "ACTIVATION_LOG_SOFTMAX1", "MEAN_VARIANCE_NORMALIZATION1")
    return work.operator in known or (
        work.operator == "REDUCE" and _function(work) in ("sum", "average", "max", "min", "log_sum_exp", "l2")
    )


def _torch(arrays: Arrays, task: Task, threads: int) -> Attempt:
    call = _torch_call(task, arrays.input(task))
    if call is None:
        raise NotImplementedError(task.work.operator)
    kind = task.desc.outputs()[0].data_type.numpy
    return arrays.returns(threads, call, lambda found: found.astype(kind, copy=False))


def _fused(task: Task, threads: int) -> Attempt:
    """What PyTorch's compiler makes of both: one function in C++, written for these sizes."""
    x, *own = (tensor(one.reshape(-1) if i else one) for i, one in enumerate(task.given) if one is not None)

    def both(x: Any, *own: Any) -> Any:
        normal = torch().nn.functional.layer_norm(x, task.x.shape[-len(_axes(task.work)) :], *own, 1e-5)
        return torch().relu(normal)

    torch().set_num_threads(threads)
    torch()._dynamo.reset()
    compiled = torch().compile(both, dynamic=False)

    def call() -> Any:
        with torch().no_grad():
            return compiled(x, *own)

    call()
    return on_torch(call, lambda: (call().numpy(),), threads)


def _can_fuse(work: Work) -> bool:
    return bool(_followed(work)) and _is_last(work) and any(map(shutil.which, ("g++", "clang++", "c++")))


def _onnx(task: Task, threads: int) -> Attempt:
    work, axes, function = task.work, _axes(task.work), _function(task.work)
    (result,) = task.desc.outputs()
    kind = np.dtype(np.int64) if function.startswith("arg") else result.data_type.numpy
    out = inputs.empty(result.sizes, kind)
    given: dict[str, NumpyArray] = {"x": task.x}
    more: dict[str, Any] = {"axis": axes[0] if axes else -1}
    constants: dict[str, NumpyArray] = {}
    if function.startswith("arg"):
        more["keepdims"] = 1
    elif work.operator == "REDUCE":
        more, constants = {"keepdims": 1}, {"axes": np.array(axes, np.int64)}
    elif function == "mean_variance_normalization1":
        more["epsilon"] = 1e-5
        constants = {f"own{i}": one.reshape(-1) for i, one in enumerate(task.given[1:]) if one is not None}
    then = {"ACTIVATION_RELU": ("Relu",)}.get(_followed(work), ())
    call = onnx_session(_ONNX[function], given, {"y": out}, threads, constants=constants, then=then, **more)
    return Attempt(call, lambda: (writes(call, out)()[0].astype(result.data_type.numpy, copy=False),))


def _in_onnx(work: Work) -> bool:
    """Whether ONNX Runtime has a node for it."""
    own = work.operator in ("REDUCE", "MEAN_VARIANCE_NORMALIZATION1") or len(_axes(work)) == 1
    fits = work.operator != "MEAN_VARIANCE_NORMALIZATION1" or (_is_last(work) and len(_axes(work)) == 1 and len(work.inputs) > 1)
    return _function(work) in _ONNX and own and fits and work.layout == "packed"


PEERS = (
    Peer("numpy", "sum, max, argmax", _numpy, _in_numpy),
    TORCH.peer("its function", _torch, _in_torch),
    CUDA_TORCH.peer("its function", _torch, lambda work: _in_torch(work) and len(work.inputs) == 1),
    Peer("torch", "compiled", _fused, _can_fuse, "made for these sizes by a compiler for C++"),
    Peer("onnxruntime", "its node", _onnx, _in_onnx, "places are int64"),
)
