"""Reductions in NumPy and PyTorch."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

import numpy as np

from tvmdml.bench.inputs import Array
from tvmdml.bench.peers._common import Attempt, Peer, on_torch, tensor, torch, writes
from tvmdml.bench.task import Task
from tvmdml.bench.work import Work

_NUMPY: dict[str, Callable[..., Any]] = {
    "sum": np.sum,
    "max": np.max,
    "min": np.min,
    "average": np.mean,
    "multiply": np.prod,
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


def _flat(one: Array | None) -> Any:
    return None if one is None else tensor(one.reshape(-1))


def torch_call(task: Task, x: Any) -> Callable[[], Any] | None:
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
    last = tuple(range(len(task.x.shape)))[-len(axes) :] == axes if axes else False
    others: dict[str, Callable[[], Any] | None] = {
        "activation_softmax1": partial(library.softmax, x, axes[0]) if len(axes) == 1 else None,
        "activation_log_softmax1": partial(library.log_softmax, x, axes[0]) if len(axes) == 1 else None,
        "mean_variance_normalization1": partial(F.layer_norm, x, task.x.shape[-len(axes) :], *own, 1e-5) if last else None,
    }
    return others.get(function)


def in_torch(work: Work) -> bool:
    """Whether PyTorch has such a function."""
    known = ("ARGMAX", "ARGMIN", "ACTIVATION_SOFTMAX1", "ACTIVATION_LOG_SOFTMAX1", "MEAN_VARIANCE_NORMALIZATION1")
    return work.operator in known or (
        work.operator == "REDUCE" and _function(work) in ("sum", "average", "max", "min", "log_sum_exp", "l2")
    )


def _torch(task: Task, threads: int) -> Attempt:
    call = torch_call(task, tensor(task.x))
    if call is None:
        raise NotImplementedError(task.work.operator)
    kind = task.desc.outputs()[0].data_type.numpy
    return on_torch(call, lambda: (call().numpy().astype(kind, copy=False),), threads)


PEERS = (
    Peer("numpy", "sum, max, argmax", _numpy, _in_numpy),
    Peer("torch", "its function", _torch, in_torch),
)
