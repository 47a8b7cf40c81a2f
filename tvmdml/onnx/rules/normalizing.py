"""Normalizations of groups, and those of ONNX Runtime that add first."""

from __future__ import annotations

import math
from typing import Any

import numpy as np

import tvmdml
from tvmdml.graph import Expression
from tvmdml.onnx import described
from tvmdml.onnx.descriptors import NotConvertible
from tvmdml.onnx.node import Node, Results, reshaped, rule
from tvmdml.onnx.values import Value


@rule("GroupNormalization")
def _groups(node: Node) -> Results:
    """Scales are those of groups before version 21."""
    x = node.x()
    groups = node.integer("num_groups", 0)
    if x.ndim < 3 or groups < 1 or x.shape[1] % groups:
        raise NotConvertible(f"it has {groups} groups, for an input of the sizes {list(x.shape)}")
    flat = reshaped(x, (x.shape[0], groups, math.prod(x.shape[1:]) // groups))
    found = tvmdml.mean_variance_normalization(flat, axes=[2], epsilon=node.real("epsilon", 1e-5))
    if node.shape(1) == (groups,) and node.is_before(21):
        scale, bias = (node.x(i).reshape(1, groups, 1) for i in (1, 2))
        return reshaped(found * scale + bias, x.shape)
    scale, bias = (node.x(i).reshape(1, x.shape[1], *[1] * (x.ndim - 2)) for i in (1, 2))
    return reshaped(found, x.shape) * scale + bias


@rule("LpNormalization")
def _by_norm(node: Node) -> Results:
    """DirectML's operator divides by an epsilon at least; ONNX Runtime by any norm but 0, where results are 0.

    All that float16 has is far from its epsilon. Other types may have norms, or squares, that are below any.
    """
    x = node.x()
    if x.dtype == np.float16:
        return described.convert(node)
    power = node.integer("p", 2)
    if power not in (1, 2):
        raise NotConvertible(f"its p is {power}, which is neither 1 nor 2")
    norm = tvmdml.reduce(x, function=f"l{power}", axes=[node.axis(x.ndim, -1)])
    return tvmdml.where(tvmdml.equals(norm, node.like(0, norm)), node.like(0, x), x / norm)


@rule("LRN")
def _of_channels(node: Node) -> Results:
    """Over neighbouring channels, each place for itself: all dimensions of space are one."""
    x = node.x()
    if x.ndim == 4 or x.ndim < 2:
        return described.convert(node)
    flat = Value.computed(x.reshape(*x.shape[:2], math.prod(x.shape[2:]), 1))
    (found,) = described.convert(node.replaced(inputs=[flat]))
    return reshaped(found, x.shape)


@rule("BatchNormalization")
def _batch(node: Node) -> Results:
    """In training, the statistics are the batch's, and what is returned of them is a part of the way from the old ones."""
    if (node.is_before(9) and not node.integer("spatial", 1)) or (node.is_before(14) and any(node.outputs[1:])):
        raise NotConvertible("it is in training as before version 14, or its parameters are not those of channels")
    own = node.dtype()
    wide = np.result_type(*(node.dtype(i) for i in range(5)))
    if not node.integer("training_mode", 0):
        alike = node.replaced(
            inputs=[Value.computed(node.x(i).astype(wide)) if node.dtype(i) != wide else node.value(i) for i in range(5)]
        )
        (found, *_) = described.convert(alike)
        return [found.astype(own), *(node.value(i) for i in (3, 4))]
    x, part = node.x().astype(wide), node.real("momentum", 0.9)
    each = (1, x.shape[1], *[1] * (x.ndim - 2))
    scale, bias = (node.x(i).astype(wide).reshape(each) for i in (1, 2))
    result, mean, variance = tvmdml.batch_normalization_training(x, scale, bias, epsilon=node.real("epsilon", 1e-5))
    old = [node.x(i).reshape(each) for i in (3, 4)]
    moved = [a * part + b.astype(a.dtype) * (1 - part) for a, b in zip(old, (mean, variance), strict=True)]
    return [result.astype(own), *(one.reshape(x.shape[1]) for one in moved)]


def normalized(x: Expression, scale: Any, bias: Any, epsilon: float, mean: bool = True) -> Any:
    """A normalization of the last dimension."""
    others = [None if one is None else one.broadcast(x.shape) for one in (scale, bias)]
    return tvmdml.mean_variance_normalization(x, *others, axes=[x.ndim - 1], normalize_mean=mean, epsilon=epsilon)


@rule("com.microsoft.SkipLayerNormalization", "com.microsoft.SkipSimplifiedLayerNormalization")
def _skip(node: Node) -> Results:
    simplified = "Simplified" in node.kind
    bias = 3 if simplified else 4
    total = node.x() + node.x(1)
    if node.has(bias):
        total = total + node.x(bias)
    scale, shift = node.maybe(2), None if simplified else node.maybe(3)
    usual = 1e-6 if simplified else 1e-12
    epsilon = node.real("epsilon", usual)
    statistics = _statistics(node, total, [total.ndim - 1], epsilon, not simplified)
    return [normalized(total, scale, shift, epsilon, not simplified), *statistics, total]


def _statistics(node: Node, x: Expression, axes: list[int], epsilon: float, mean: bool) -> list[Any]:
    """The means, and one over the deviations, as far as outputs 1 and 2 are used: those of differences from the means."""
    if not any(node.outputs[1:3]):
        return [None, None]
    x = x.astype(np.float32) if x.dtype == np.float16 else x
    if mean:
        own = node.constant(np.ones([1 if i in axes else n for i, n in enumerate(x.shape)], x.dtype))
        _, middle, variance = tvmdml.batch_normalization_training(x, own, node.like(0, x).broadcast(own.shape), epsilon=epsilon)
    else:
        middle, variance = None, tvmdml.reduce(x * x, function="average", axes=axes)
    return [middle, tvmdml.recip(tvmdml.sqrt(variance + epsilon))]


@rule("LayerNormalization", "SimplifiedLayerNormalization", "com.microsoft.LayerNormalization")
def _layer(node: Node) -> Results:
    """The result is the same whether statistics are asked for or not. Without a mean, output 1 is one over the deviations."""
    mean = "Simplified" not in node.kind
    alone = node.replaced(node.kind.removeprefix("com.microsoft."), **node.attributes)
    alone.outputs = (True,)
    (found,) = described.convert(alone)
    wanted = node.replaced(**node.attributes)
    if not mean:
        wanted.outputs = (True, False, *node.outputs[1:2])
    axis = node.axis(len(node.shape()), -1)
    statistics = _statistics(wanted, node.x(), list(range(axis, len(node.shape()))), node.real("epsilon", 1e-5), mean)
    return [found, *(statistics if mean else statistics[1:])]


@rule("com.microsoft.EmbedLayerNormalization")
def _embed(node: Node) -> Results:
    """Words, positions and segments, added and normalized."""
    words = node.shape()
    if len(words) != 2:
        raise NotConvertible(f"its input_ids have {len(words)} dimensions")
    places = node.maybe(8)
    if places is None:
        places = node.upto(words[1]).reshape(1, words[1])
    total = tvmdml.gather(node.x(2), node.x(0), axis=0) + tvmdml.gather(node.x(3), places, axis=0)
    if node.has(1) and node.has(4):
        total = total + tvmdml.gather(node.x(4), node.x(1), axis=0)
    found = normalized(total, node.x(5), node.x(6), node.real("epsilon", 1e-12))
    if node.has(7):
        counts = tvmdml.reduce(node.x(7), function="sum", axes=[1]).reshape(words[0]).astype(np.int32)
    else:
        counts = node.constant(np.zeros(1, np.int32)).broadcast(words[0])
    return [found, counts, total]


@rule("com.microsoft.GroupNorm")
def _group_norm(node: Node) -> Results:
    """With channels last or second, and perhaps a Swish after it."""
    x, groups, last = node.x(), node.integer("groups", 1), node.integer("channels_last", 1)
    channels, places = (x.shape[-1], x.shape[1:-1]) if last else (x.shape[1], x.shape[2:])
    group, count = (groups, channels // max(groups, 1)), math.prod(places)
    flat = reshaped(x, (x.shape[0], count, *group) if last else (x.shape[0], *group, count))
    found = tvmdml.mean_variance_normalization(flat, axes=[1, 3] if last else [2, 3], epsilon=node.real("epsilon", 1e-5))
    scale, bias = (reshaped(node.x(i), (channels, *([] if last else [1] * len(places)))) for i in (1, 2))
    found = reshaped(found, x.shape) * scale + bias
    return tvmdml.activation_swish(found) if node.integer("activation", 0) == 1 else found
