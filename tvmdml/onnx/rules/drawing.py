"""Random numbers: RANDOM_GENERATOR makes 32-bit words, and pointwise operators numbers of a distribution of them."""

from __future__ import annotations

import math
from typing import Any

import numpy as np

import tvmdml
from tvmdml.graph import Expression
from tvmdml.onnx.descriptors import NotConvertible
from tvmdml.onnx.node import Node, Results, rule

_FLOATS = ("float16", "float32", "float64")
_BITS = 24
"""Those of a uniform number: as many as a float32 has."""


@rule("RandomUniform", "RandomUniformLike")
def _uniform_numbers(node: Node) -> Results:
    """At least ``low``, and less than ``high``, also where the sum is rounded."""
    dtype, shape = _form(node)
    low, high = np.float32(node.real("low", 0.0)), np.float32(node.real("high", 1.0))
    span = float(high) - float(low)
    if not 0 <= span <= float(np.finfo(np.float32).max):
        raise NotConvertible(f"its numbers are from {low} to {high}")
    found = _fractions(node, shape)
    if (low, high) != (0, 1):
        found = found * span + float(low)
    wide = np.float32 if dtype == np.float64 else dtype.type
    with np.errstate(over="ignore"):
        most = max(np.nextafter(wide(high), wide(low)), wide(low))
    return found if (low, high, wide) == (0, 1, np.float32) else tvmdml.min(found, node.like(float(most), found))


@rule("RandomNormal", "RandomNormalLike")
def _normal_numbers(node: Node) -> Results:
    """Two of two words, by the transform of Box and Muller: the sine is the cosine a quarter before."""
    _, shape = _form(node)
    count = math.prod(shape)
    half = (count + 1) // 2
    words = _words(node, 2 * half)
    first, second = words[:half].reshape(1, half), words[half:].reshape(1, half).broadcast((2, half))
    radius = tvmdml.sqrt(tvmdml.log(first.astype(np.float32) * 2.0**-32 + 2.0**-33) * -2.0)
    quarter = node.constant(np.array([[0], [-math.pi / 2]], np.float32))
    found = tvmdml.cos(second.astype(np.float32) * (2.0**-31 * math.pi) + quarter) * radius
    found = found * node.real("scale", 1.0) + node.real("mean", 0.0)
    return found.reshape(2 * half)[:count].reshape(shape)


@rule("Bernoulli")
def _decisions(node: Node) -> Results:
    return tvmdml.less_than(_fractions(node, node.shape()), node.x().astype(np.float32))


@rule("Multinomial")
def _classes(node: Node) -> Results:
    """The first class whose sum of weights, up to it, is above a random part of the sum of all.

    A class without weight is never chosen, whatever rounding does.
    """
    logits = node.x().astype(np.float32)
    if logits.ndim != 2:
        raise NotConvertible(f"its input has {logits.ndim} dimensions, and not 2")
    batch, classes = logits.shape
    samples = node.integer("sample_size", 1)
    if samples < 1 or not classes:
        raise NotConvertible(f"it draws {samples} of {classes} classes")
    weights = tvmdml.exp(logits - tvmdml.reduce(logits, function="max", axes=[1]))
    sums = tvmdml.cumulative_summation(weights, axis=1)
    sums = tvmdml.where(tvmdml.greater_than(weights, node.like(0, weights)), sums, node.like(-1, weights))
    part = _fractions(node, (batch, samples)) * tvmdml.reduce(sums, function="max", axes=[1])
    above = tvmdml.greater_than(sums.reshape(batch, 1, classes), part.reshape(batch, samples, 1))
    return tvmdml.argmax(above, axes=[2]).reshape(batch, samples)


@rule("Dropout")
def _dropout(node: Node) -> Results:
    """Without training, and of no ratio, it changes nothing."""
    rate = None if node.has(1) and not node.is_known(1) else float(node.number(1)) if node.has(1) else 0.5
    if not (node.has(2) and bool(node.number(2)) and rate != 0):
        mask = np.ones(node.shape(), np.bool_) if len(node.outputs) > 1 and node.outputs[1] else None
        return [node.value(0), mask]
    x = node.x()
    given: Any = node.x(1).astype(np.float32).reshape() if rate is None else node.constant(np.float32(rate))
    kept = tvmdml.greater_than_or_equal(_fractions(node, x.shape), given.broadcast(x.shape))
    scale = tvmdml.recip(1.0 - given) if rate is None else node.constant(np.float32(1 / (1 - rate) if rate < 1 else 0))
    return [tvmdml.where(kept, x * scale.astype(x.dtype).broadcast(x.shape), node.like(0, x)), kept]


def _form(node: Node) -> tuple[np.dtype[Any], tuple[int, ...]]:
    """The type and shape of the result."""
    dtype, shape = node.results[0][:2]
    if dtype is None or dtype.name not in _FLOATS or shape is None:
        raise NotConvertible(f"its numbers are of the type {dtype}, which is none of {', '.join(_FLOATS)}")
    return dtype, shape


def _words(node: Node, count: int) -> Expression:
    """Random words of 32 bits."""
    given = node.attributes.get("seed")
    return tvmdml.random_generator(node.around.random_state(None if given is None else float(given)), (count,), output_state=False)


def _fractions(node: Node, shape: tuple[int, ...]) -> Expression:
    """Numbers of 24 bits, from 0 to less than 1."""
    words = _words(node, math.prod(shape)).reshape(shape)
    return tvmdml.bit_shift_right(words, 32 - _BITS).astype(np.float32) * 2.0**-_BITS
