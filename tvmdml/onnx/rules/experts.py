"""Mixtures of experts: MoE, and QMoE with weights of few bits."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np

import tvmdml
from tvmdml.graph import Expression
from tvmdml.onnx.descriptors import NotConvertible
from tvmdml.onnx.node import Node, Results, reshaped, rule
from tvmdml.onnx.rules.blocks import in_blocks, of_bits, typed
from tvmdml.onnx.rules.elements import gelu

_ACTIVATIONS: dict[str, Callable[[Any], Any]] = {
    "relu": lambda x: tvmdml.activation_relu(x),
    "gelu": lambda x: gelu(x, True),
    "silu": lambda x: tvmdml.activation_swish(x),
    "identity": lambda x: x,
}


class _Layer(NamedTuple):
    """A product of each expert: weights {experts, results, inputs}, and what is added, {experts, results}."""

    weights: Expression
    bias: Expression | None

    def of(self, x: Expression) -> Expression:
        """Rows {experts, rows, inputs} to {experts, rows, results}."""
        found: Expression = tvmdml.gemm(x, self.weights, trans_b="transpose")
        return found if self.bias is None else found + self.bias[:, None, :]


@rule("com.microsoft.MoE")
def _experts(node: Node) -> Results:
    layers = [_Layer(node.x(at), node.maybe(at + 1)) if node.has(at) else None for at in (2, 4, 6)]
    return _mixed(node, layers, after_choice=False)


@rule("com.microsoft.QMoE")
def _quantized_experts(node: Node) -> Results:
    if node.text("quant_type", "int") != "int" or node.integer("weights_prepacked", 0):
        raise NotConvertible(f"its quant_type is {node.text('quant_type', 'int')}, or its weights are in the layout of a device")
    if any(node.has(at) for at in range(15, 21)):
        raise NotConvertible("it has scales of experts or of inputs")
    layers = [_of_few_bits(node, n, at) if node.has(at) else None for n, at in ((1, 2), (2, 5), (3, 8))]
    return _mixed(node, layers, after_choice=True)


def _of_few_bits(node: Node, number: int, at: int) -> _Layer:
    """Weights in bytes, their scales {experts, results} or {experts, results, blocks}, and zero points."""
    bits = node.integer(f"fc{number}_expert_weight_bits", node.integer("expert_weight_bits", 4))
    if bits not in (2, 4, 8):
        raise NotConvertible(f"it has weights of {bits} bits")
    stored, scales = node.known(at), node.x(at + 1)
    experts, results = stored.shape[:2]
    columns = stored.shape[2] * 8 // bits
    size = node.integer("block_size", 0) if scales.ndim == 3 else 0
    blocks = columns // size if size > 0 else 1
    shape = (experts, results, blocks)
    if node.has(10 + number):
        zeros = node.known(10 + number)
        zeros = of_bits(zeros, bits, blocks if size else results).reshape(shape)
    else:
        zeros = typed(np.full(shape, 1 << (bits - 1), np.uint8), bits)
    matrix = of_bits(stored, bits, columns)
    return _Layer(in_blocks(node, matrix, reshaped(scales, shape), zeros, size or columns), node.maybe(at + 2))


def _mixed(node: Node, layers: list[_Layer | None], *, after_choice: bool) -> Results:
    """Each row goes through the experts that its routing chooses, and the results are added by its weights.

    All experts see all rows: so each weight is read once. ``after_choice`` says whether the softmax is that of the chosen ones.
    """
    if node.integer("use_sparse_mixer", 0) or node.integer("swiglu_limit_after_activation", 0):
        raise NotConvertible("it mixes sparsely, or limits after the activation")
    first, second, third = layers
    if first is None or second is None:
        raise NotConvertible("it has no weights")
    x = node.x()
    rows = x.reshape(math.prod(x.shape[:-1]), x.shape[-1])
    experts = first.weights.shape[0]
    wide = rows[None].broadcast(experts, *rows.shape)
    inner = first.of(wide)
    kind = node.text("activation_type", "relu")
    if kind == "swiglu":
        inner = _gated(node, inner, None if third is None else third.of(wide))
    elif kind in _ACTIVATIONS:
        inner = _ACTIVATIONS[kind](inner)
        inner = inner if third is None else inner * third.of(wide)
    else:
        raise NotConvertible(f"its activation_type is {kind}")
    found = second.of(inner).transpose(1, 0, 2)
    weights = _weights(node, experts, after_choice)[:, :, None].astype(found.dtype)
    # What an expert that is not chosen makes of a row may be infinite.
    shares = tvmdml.where(tvmdml.equals(weights, node.like(0, weights)), node.like(0, found), found * weights)
    return tvmdml.reduce(shares, function="sum", axes=[1]).reshape(x.shape)


def _gated(node: Node, inner: Expression, other: Expression | None) -> Expression:
    fusion = node.integer("swiglu_fusion", 0)
    if fusion == 1:
        gate, linear = inner[..., 0::2], inner[..., 1::2]
    elif fusion == 2:
        half = inner.shape[-1] // 2
        gate, linear = inner[..., :half], inner[..., half:]
    elif other is not None:
        gate, linear = inner, other
    else:
        raise NotConvertible(f"its swiglu_fusion is {fusion}, without a third matrix")
    return swiglu(
        gate, linear, node.real("activation_alpha", 1.0), node.real("activation_beta", 0.0), node.real("swiglu_limit", math.inf)
    )


def swiglu(gate: Expression, linear: Expression, alpha: float, beta: float, limit: float) -> Expression:
    """A gate of a sigmoid, with limits."""
    if limit < math.inf:
        gate, linear = tvmdml.clip(gate, min=-math.inf, max=limit), tvmdml.clip(linear, min=-limit, max=limit)
    return tvmdml.activation_swish(gate, sigmoid_input_scale=alpha) * (linear + beta if beta else linear)


def _weights(node: Node, experts: int, after_choice: bool) -> Expression:
    """By what an expert's results are multiplied, which is 0 for those that are not chosen: {rows, experts}."""
    logits, k = node.x(1).astype(np.float32), node.integer("k", 1)
    if not 1 <= k <= experts or logits.ndim != 2 or logits.shape[1] != experts:
        raise NotConvertible(f"it chooses {k} of {experts} experts by {list(logits.shape)}")
    best, at = tvmdml.top_k(logits, axis=1, k=k, axis_direction="decreasing")
    normalize = node.integer("normalize_routing_weights", 0)
    if node.has(14) and after_choice:
        chosen = tvmdml.gather_elements(node.x(14).astype(np.float32), at, axis=1)
    elif after_choice or normalize:
        chosen = tvmdml.activation_softmax(best, axes=[1])
    else:
        chosen = tvmdml.gather_elements(tvmdml.activation_softmax(logits, axes=[1]), at, axis=1)
    if node.has(14) and normalize:
        chosen = chosen / tvmdml.reduce(chosen, function="sum", axes=[1])
    numbers = node.constant(np.arange(experts, dtype=at.dtype)).reshape(1, 1, experts)
    one_hot = tvmdml.equals(at[:, :, None], numbers).astype(np.float32)
    return tvmdml.reduce(one_hot * chosen[:, :, None], function="sum", axes=[1]).reshape(logits.shape)
