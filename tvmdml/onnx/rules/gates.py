"""Gates and norms of branches, as ONNX Runtime's newer operators have them."""

from __future__ import annotations

import math

import numpy as np

import tvmdml
from tvmdml.graph import Expression
from tvmdml.onnx.descriptors import NotConvertible
from tvmdml.onnx.node import Node, Results, reshaped, rule
from tvmdml.onnx.rules.experts import swiglu


@rule("com.microsoft.SwiGLU")
def _swiglu(node: Node) -> Results:
    """Of two tensors, or of the halves of one."""
    x = node.x()
    half = x.shape[-1] // 2
    gate, linear = (x, node.x(1)) if node.has(1) else (x[..., :half], x[..., half : 2 * half])
    limit = node.real("limit", 0.0)
    gate, linear = gate.astype(np.float32), linear.astype(np.float32)
    found = swiglu(
        gate, linear, node.real("activation_alpha", 1.0), node.real("activation_beta", 0.0), limit if limit > 0 else math.inf
    )
    return found.astype(x.dtype)


@rule("com.microsoft.ScaledSiLU")
def _scaled(node: Node) -> Results:
    x = node.x()
    scaled = x * (reshaped(node.x(1), ()) if node.has(1) else node.real("alpha", 1.0))
    return scaled * tvmdml.activation_sigmoid(scaled)


@rule("com.microsoft.GatedAdd")
def _added(node: Node) -> Results:
    if node.has(3):
        raise NotConvertible("it projects its gate")
    return node.x() + node.x(1) * node.x(2)


@rule("com.microsoft.GatedRMSNorm")
def _gated(node: Node) -> Results:
    x, gate = node.x().astype(np.float32), node.x(2).astype(np.float32)
    kind = node.text("activation", "silu")
    if kind not in ("silu", "swish", "sigmoid"):
        raise NotConvertible(f"its activation is {kind}")
    factor = tvmdml.activation_sigmoid(gate) if kind == "sigmoid" else tvmdml.activation_swish(gate)
    found = _normalized(x, node.x(1).astype(np.float32), node.real("epsilon", 1e-5)) * factor
    return found.astype(node.dtype())


def _normalized(x: Expression, scale: Expression, epsilon: float) -> Expression:
    """Slices of as many elements as there are scales, by the roots of their mean squares."""
    parts = reshaped(x, (x.size // scale.size, scale.size))
    return tvmdml.mean_variance_normalization(
        parts, scale.reshape(1, -1).broadcast(parts.shape), axes=[1], normalize_mean=False, epsilon=epsilon
    ).reshape(x.shape)


@rule("com.microsoft.BranchwiseRMSNorm")
def _branches(node: Node) -> Results:
    """The last dimension is one branch, or has several."""
    x = node.x().astype(np.float32)
    count = node.integer("num_branches", 0)
    width = x.shape[-1] // max(count, 1)
    parts = reshaped(x, (x.size // width, width))
    found = tvmdml.mean_variance_normalization(parts, axes=[1], normalize_mean=False, epsilon=node.real("epsilon", 1e-5))
    if node.has(1):
        scale = node.x(1).astype(np.float32).reshape(-1)
        found = found.reshape(x.size // scale.size, scale.size) * scale
    return found.reshape(x.shape).astype(node.dtype())


@rule("com.microsoft.LinearAttentionGate")
def _decay(node: Node) -> Results:
    a = node.x().astype(np.float32) + node.x(1)
    beta = tvmdml.activation_sigmoid(node.x(3).astype(np.float32)).astype(node.dtype(3)) if node.has(3) else None
    return [(tvmdml.activation_softplus(a) * node.x(2)).astype(node.dtype()), beta]


@rule("com.microsoft.ComplexMul", "com.microsoft.ComplexMulConj")
def _complex(node: Node) -> Results:
    """The last dimension has a real and an imaginary part; of one, the second factor is conjugated."""
    (a, b), (c, d) = ((x[..., :1], x[..., 1:]) for x in (node.x(), node.x(1)))
    side = -1.0 if node.kind.endswith("Conj") else 1.0
    return tvmdml.join([a * c - b * d * side, a * d * side + b * c], axis=len(node.shape()) - 1)
