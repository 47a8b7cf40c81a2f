"""RNN, GRU and LSTM: with the batch first, without steps, and with sums that are clipped where DirectML cannot clip them."""

from __future__ import annotations

import math
from collections.abc import Callable

import numpy as np

import tvmdml
from tvmdml.graph import Expression
from tvmdml.onnx import described
from tvmdml.onnx.descriptors import NotConvertible
from tvmdml.onnx.node import Node, Results, rule
from tvmdml.onnx.values import Value
from tvmdml.operators._recurrent_onnx import OnnxActivation, activation, functions_of

_MOST_STEPS = 1 << 12


@rule("RNN", "GRU", "LSTM")
def _recurrent(node: Node) -> Results:
    """With the batch first: views with the time first. Without steps all results are 0, as those of sequences without elements."""
    batch_first = node.integer("layout", 0)
    if not math.prod(node.shape()[:2]):
        steps, batch = node.shape()[1::-1] if batch_first else node.shape()[:2]
        directions, _, hidden = node.shape(2)
        shapes = [(batch, steps, directions, hidden), *[(batch, directions, hidden)] * 2]
        shapes = shapes if batch_first else [(steps, directions, batch, hidden), *[(directions, batch, hidden)] * 2]
        return [node.constant(np.zeros(shape, node.dtype())) for shape in shapes[: 3 if node.kind == "LSTM" else 2]]
    if not batch_first:
        return _time_first(node)
    inputs = list(node.inputs)
    for i in (0, 5, 6):
        if node.has(i):
            inputs[i] = Value.computed(node.x(i).transpose(1, 0, 2))
    own = {name: value for name, value in node.attributes.items() if name != "layout"}
    found = _time_first(node.replaced(node.kind, inputs, **own))
    orders = [(2, 0, 1, 3), (1, 0, 2), (1, 0, 2)]
    return [
        None if one is None else one.reshape(one.shape[-len(order) :]).transpose(*order)
        for one, order in zip(found, orders, strict=False)
    ]


def _time_first(node: Node) -> Results:
    """``clip`` bounds what the functions are given. DirectML's LSTM has it; its RNN and GRU have not."""
    clip = node.real("clip", math.inf)
    if node.kind == "LSTM" or "clip" not in node.attributes:
        return described.convert(node)
    if not clip >= 0:
        raise NotConvertible(f"its clip is {clip}, which is not a number from 0 up")
    if math.isinf(clip):
        return described.convert(node.replaced(node.kind, **{k: v for k, v in node.attributes.items() if k != "clip"}))
    return _as_cells(node, clip) if node.kind == "RNN" else _unrolled(node, clip)


def _as_cells(node: Node, clip: float) -> Results:
    """RNN as an LSTM whose cells are the states: its input and output gates are 1, so that the coupled forget gate is 0.

    All gates have the same weights: those of 0 would make NaN of an infinite input, which is clipped.
    """
    one, same = activation("LINEAR", alpha=0.0, beta=1.0), activation("LINEAR", alpha=1.0, beta=0.0)
    bias = node.maybe(3)
    if bias is not None:
        hidden = node.shape(2)[2]
        bias = tvmdml.join([bias[:, :hidden]] * 4 + [bias[:, hidden:]] * 4, axis=1)[None, None]
    weight, recurrence = (tvmdml.join([node.x(i)] * 4, axis=1)[None] for i in (1, 2))
    first, lengths = node.maybe(5), node.maybe(4)
    found = tvmdml.lstm(
        node.x()[None],
        weight,
        recurrence,
        bias,
        hidden_init=None if first is None else first[None],
        sequence_lengths=None if lengths is None else lengths[None, None, None],
        activation_descs=[each for f in _functions(node, "Tanh") for each in (one, f.fused(), same)],
        direction={"reverse": "backward"}.get(direction := node.text("direction", "forward"), direction),
        clip_threshold=clip,
        couple_input_forget=True,
    )
    return [found.sequence.reshape(found.sequence.shape[-4:]), found.single.reshape(found.single.shape[-3:])]


def _unrolled(node: Node, clip: float) -> Results:
    """GRU step by step, in at least 32 bits. A sequence that has ended keeps its state, and 0 is its result."""
    steps, batch, width = node.shape()
    directions, _, hidden = node.shape(2)
    if steps > _MOST_STEPS:
        raise NotConvertible(f"its clip takes kernels for each of its {steps} steps; at most {_MOST_STEPS} have them")
    wide = np.promote_types(node.dtype(), np.float32)
    x, *weights = (node.x(i).astype(wide) for i in range(3))
    biases, first = (node.x(i).astype(wide) if node.has(i) else None for i in (3, 5))
    zero = node.constant(np.zeros((batch, hidden), wide))
    lengths = node.x(4).astype(np.int32).reshape(batch, 1) if node.has(4) else None

    def until(n: int, value: Expression, after: Expression) -> Expression:
        if lengths is None:
            return value
        return tvmdml.where((lengths > n).broadcast(batch, hidden), value, after)

    f_and_g = [_clipped(one, clip) for one in _functions(node, "Sigmoid", "Tanh")]
    reset_after = node.integer("linear_before_reset", 0)
    results, states = {}, []
    for d in range(directions):
        f, g = f_and_g[2 * d : 2 * d + 2]
        w, r = (one[d].T for one in weights)
        own, of_state = x.reshape(steps * batch, width) @ w, node.constant(np.zeros(3 * hidden, wide))
        if biases is not None:
            own, of_state = own + biases[d, : 3 * hidden], biases[d, 3 * hidden :]
        h = zero if first is None else first[d]
        for n in range(steps) if not d and node.text("direction", "forward") != "reverse" else reversed(range(steps)):
            given = own[n * batch : (n + 1) * batch]
            sums = h @ r[:, : 2 * hidden] + of_state[: 2 * hidden] + given[:, : 2 * hidden]
            z, reset = f(sums[:, :hidden]), f(sums[:, hidden:])
            part, about = r[:, 2 * hidden :], of_state[2 * hidden :]
            recurrent = reset * (h @ part + about) if reset_after else (reset * h) @ part + about
            new = g(given[:, 2 * hidden :] + recurrent)
            new = (1 - z) * new + z * h
            results[n, d], h = until(n, new, zero), until(n, new, h)
        states.append(until(0, h, zero)[None])
    sequence = tvmdml.join([results[n, d][None] for n in range(steps) for d in range(directions)], axis=0)
    found = [sequence.reshape(steps, directions, batch, hidden), tvmdml.join(states, axis=0)]
    return [one.astype(node.dtype()) for one in found]


def _functions(node: Node, *usual: str) -> list[OnnxActivation]:
    """The functions of each direction."""
    count = node.shape(2)[0]
    found = list(functions_of(node.attributes if node.attributes.get("activations") else {"activations": usual * count}))
    if len(found) != len(usual) * count:
        raise NotConvertible(f"it has {len(found)} activations, and not {len(usual) * count}")
    return found


def _clipped(one: OnnxActivation, clip: float) -> Callable[[Expression], Expression]:
    """A function of sums that are bounded first."""
    function = getattr(tvmdml, f"activation_{one.name.lower()}")
    return lambda x: function(tvmdml.clip(x, min=-clip, max=clip), **one.numbers, **one.others)
