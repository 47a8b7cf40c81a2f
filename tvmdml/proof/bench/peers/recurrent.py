"""Recurrent networks in PyTorch and ONNX Runtime, in one direction and with biases."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from tvmdml.proof.bench import inputs
from tvmdml.proof.bench.inputs import NumpyArray
from tvmdml.proof.bench.peers._common import Attempt, Peer, on_torch, torch, writes
from tvmdml.proof.bench.sessions import onnx_session
from tvmdml.proof.bench.task import Task
from tvmdml.proof.bench.work import Work

_ORDER: dict[str, Sequence[int]] = {"RNN": (0,), "LSTM": (0, 2, 3, 1), "GRU": (1, 0, 2)}
"""Which of DirectML's gates each of PyTorch's is."""


def _simple(work: Work) -> bool:
    """Four inputs and nothing else."""
    return len(work.inputs) == 4 and None not in work.inputs and work["direction"] == "forward"


def _in_torch(work: Work) -> bool:
    """PyTorch's GRU multiplies what the state contributes."""
    return _simple(work) and (work.operator != "GRU" or bool(work["linear_before_reset"]))


def _in_onnx(work: Work) -> bool:
    return _simple(work) and work.dtype == "float32"


def _given(task: Task) -> list[NumpyArray]:
    return [one for one in task.given if one is not None]


def _torch(task: Task, threads: int) -> Attempt:
    x, weight, recurrence, bias = _given(task)
    order = _ORDER[task.work.operator]

    def gates(array: NumpyArray) -> Any:
        """The gates in PyTorch's order."""
        parts = np.split(array, len(order))
        return torch().from_numpy(np.ascontiguousarray(np.concatenate([parts[i] for i in order])))

    hidden = recurrence.shape[3]
    layer = getattr(torch().nn, task.work.operator)(x.shape[3], hidden, dtype=torch().from_numpy(x).dtype).eval()
    halves = np.split(bias.reshape(-1), 2)
    names = ("weight_ih_l0", "weight_hh_l0", "bias_ih_l0", "bias_hh_l0")
    with torch().no_grad():
        for name, one in zip(names, (weight[0, 0], recurrence[0, 0], *halves), strict=True):
            getattr(layer, name).copy_(gates(one))
    sequence = torch().from_numpy(x[0])

    def call() -> Any:
        with torch().inference_mode():
            return layer(sequence)

    def results() -> tuple[NumpyArray, ...]:
        found, last = call()
        states = last if isinstance(last, tuple) else (last,)
        return found.numpy()[:, None], *(one.numpy()[None] for one in states)

    return on_torch(call, results, threads)


def _onnx(task: Task, threads: int) -> Attempt:
    x, weight, recurrence, bias = _given(task)
    kind = task.work.operator
    outs = [inputs.empty(one.sizes if i == 0 else one.sizes[1:], x.dtype) for i, one in enumerate(task.desc.outputs())]
    more: dict[str, Any] = {"linear_before_reset": int(task.work["linear_before_reset"])} if kind == "GRU" else {}
    call = onnx_session(
        kind,
        {"x": x[0]},
        dict(zip(("y", "y_h", "y_c"), outs, strict=False)),
        threads,
        constants={"w": weight[0], "r": recurrence[0], "b": bias[0, 0]},
        hidden_size=recurrence.shape[3],
        **more,
    )
    return Attempt(call, writes(call, outs[0], *(one[None] for one in outs[1:])))


PEERS = (Peer("torch", "nn", _torch, _in_torch), Peer("onnxruntime", "recurrent", _onnx, _in_onnx))
