"""Normalizations of groups, and those of ONNX Runtime that add first."""

from __future__ import annotations

import math
from typing import Any

import numpy as np

import tvmdml
from tvmdml.graph import Expression
from tvmdml.onnx import described
from tvmdml.onnx.node import Node, Results, reshaped, rule
from tvmdml.onnx_nodes import Refused


@rule("GroupNormalization")
def _groups(node: Node) -> Results:
    """Scales are those of groups before version 21."""
    x = node.x()
    groups = node.integer("num_groups", 0)
    if x.ndim < 3 or groups < 1 or x.shape[1] % groups:
        raise Refused(f"it has {groups} groups, for an input of the sizes {list(x.shape)}")
    flat = reshaped(x, (x.shape[0], groups, math.prod(x.shape[1:]) // groups))
    found = tvmdml.mean_variance_normalization(flat, axes=[2], epsilon=node.real("epsilon", 1e-5))
    if node.shape(1) == (groups,) and node.is_before(21):
        scale, bias = (node.x(i).reshape(1, groups, 1) for i in (1, 2))
        return reshaped(found * scale + bias, x.shape)
    scale, bias = (node.x(i).reshape(1, x.shape[1], *[1] * (x.ndim - 2)) for i in (1, 2))
    return reshaped(found, x.shape) * scale + bias


@rule("BatchNormalization")
def _batch(node: Node) -> Results:
    """In training, the statistics are the batch's, and what is returned of them is a part of the way from the old ones."""
    if (node.is_before(9) and not node.integer("spatial", 1)) or (node.is_before(14) and any(node.outputs[1:])):
        raise Refused("it is in training as before version 14, or its parameters are not those of channels")
    if not node.integer("training_mode", 0):
        found = described.convert(node)
        return [*found[:1], *(node.value(i) for i in (3, 4))]
    x, part = node.x(), node.real("momentum", 0.9)
    each = (1, x.shape[1], *[1] * (x.ndim - 2))
    scale, bias = (node.x(i).astype(x.dtype).reshape(each) for i in (1, 2))
    result, mean, variance = tvmdml.batch_normalization_training(x, scale, bias, epsilon=node.real("epsilon", 1e-5))
    old = [node.x(i).reshape(each) for i in (3, 4)]
    moved = [a * part + b.astype(a.dtype) * (1 - part) for a, b in zip(old, (mean, variance), strict=True)]
    return [result, *(one.reshape(x.shape[1]) for one in moved)]


def normalized(x: Expression, scale: Any, bias: Any, epsilon: float, mean: bool = True) -> Any:
    """A normalization of the last dimension."""
    others = [None if one is None else one.broadcast(x.shape) for one in (scale, bias)]
    return tvmdml.mean_variance_normalization(x, *others, axes=[x.ndim - 1], normalize_mean=mean, epsilon=epsilon)


@rule("com.microsoft.SkipLayerNormalization", "com.microsoft.SkipSimplifiedLayerNormalization")
def _skip(node: Node) -> Results:
    simplified = "Simplified" in node.kind
    if any(node.outputs[1:3]):
        raise Refused("its mean or deviation is used, which DirectML does not give")
    bias = 3 if simplified else 4
    total = node.x() + node.x(1)
    if node.has(bias):
        total = total + node.x(bias)
    scale, shift = node.maybe(2), None if simplified else node.maybe(3)
    usual = 1e-6 if simplified else 1e-12
    return [normalized(total, scale, shift, node.real("epsilon", usual), not simplified), None, None, total]


@rule("com.microsoft.EmbedLayerNormalization")
def _embed(node: Node) -> Results:
    """Words, positions and segments, added and normalized."""
    words = node.shape()
    if len(words) != 2:
        raise Refused(f"its input_ids have {len(words)} dimensions")
    places = node.maybe(8)
    if places is None:
        places = node.constant(np.arange(words[1], dtype=np.int32)).reshape(1, words[1])
    total = tvmdml.gather(node.x(2), node.x(0), axis=0) + tvmdml.gather(node.x(3), places, axis=0)
    if node.has(1) and node.has(4):
        total = total + tvmdml.gather(node.x(4), node.x(1), axis=0)
    found = normalized(total, node.x(5), node.x(6), node.real("epsilon", 1e-12))
    if node.has(7):
        counts = tvmdml.reduce(node.x(7), function="sum", axes=[1]).reshape(words[0]).astype(np.int32)
    else:
        counts = node.constant(np.zeros(words[0], np.int32))
    return [found, counts, total]


@rule("com.microsoft.LayerNormalization")
def _layer(node: Node) -> Results:
    return described.convert(node.replaced("LayerNormalization", **node.attributes))


@rule("com.microsoft.GroupNorm")
def _group_norm(node: Node) -> Results:
    """With channels last, and perhaps a Swish after it."""
    if not node.integer("channels_last", 1):
        raise Refused("its channels are not last")
    x = node.x()
    groups, last = node.integer("groups", 1), x.shape[-1]
    flat = reshaped(x, (x.shape[0], math.prod(x.shape[1:-1]), groups, last // max(groups, 1)))
    found = tvmdml.mean_variance_normalization(flat, axes=[1, 3], epsilon=node.real("epsilon", 1e-5))
    found = reshaped(found, x.shape) * node.x(1) + node.x(2)
    return tvmdml.activation_swish(found) if node.integer("activation", 0) == 1 else found
