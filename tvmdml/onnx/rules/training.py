"""Optimizers of training: Adam, Momentum and Adagrad, for any number of tensors.

Inputs of an optimizer are a rate, a count of steps, and groups of tensors.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

import tvmdml
from tvmdml.graph import Expression
from tvmdml.onnx.descriptors import NotConvertible
from tvmdml.onnx.node import Node, Results, rule

_DOMAIN = "ai.onnx.preview.training."


def _groups(node: Node, count: int) -> list[tuple[Expression, ...]]:
    """The tensors that belong together: elements, gradients, and what is kept of earlier steps."""
    each, rest = divmod(len(node.inputs) - 2, count)
    if rest or each < 1:
        raise NotConvertible(f"it has {len(node.inputs)} inputs, which are not two and {count} of each tensor")
    return [tuple(node.x(2 + part * each + i) for part in range(count)) for i in range(each)]


def _each(node: Node, count: int, step: Callable[..., tuple[Any, ...]]) -> Results:
    """The results of each group, as ONNX orders them: all new elements first."""
    rate, steps = node.x(0).reshape(()), node.x(1).reshape(())
    norm = node.real("norm_coefficient", 0.0)
    found = []
    for x, gradient, *kept in _groups(node, count):
        given = rate.astype(x.dtype), steps.astype(x.dtype)
        found.append(step(*given, x, gradient + x * norm if norm else gradient, *kept))
    return [one for several in zip(*found, strict=True) for one in several]


@rule(_DOMAIN + "Adagrad")
def _adagrad(node: Node) -> Results:
    decay, epsilon = node.real("decay_factor", 0.0), node.real("epsilon", 1e-6)

    def step(rate: Any, steps: Any, x: Any, gradient: Any, squares: Any) -> tuple[Any, ...]:
        squares = squares + gradient * gradient
        return x - rate / (steps * decay + 1.0) * gradient / (tvmdml.sqrt(squares) + epsilon), squares

    return _each(node, 3, step)


@rule(_DOMAIN + "Adam")
def _adam(node: Node) -> Results:
    """From the second step on, the rate is corrected for means that began as 0."""
    alpha, beta, epsilon = node.real("alpha", 0.9), node.real("beta", 0.999), node.real("epsilon", 1e-6)
    post = node.real("norm_coefficient_post", 0.0)

    def step(rate: Any, steps: Any, x: Any, gradient: Any, mean: Any, squares: Any) -> tuple[Any, ...]:
        mean = mean * alpha + gradient * (1 - alpha)
        squares = squares * beta + gradient * gradient * (1 - beta)
        powers = [tvmdml.exp(steps * float(np.log(one))) if one > 0 else node.like(0, x) for one in (alpha, beta)]
        corrected = rate * tvmdml.sqrt(powers[1] * -1.0 + 1.0) / (powers[0] * -1.0 + 1.0)
        rate = tvmdml.where(tvmdml.greater_than(steps, node.like(0, x)), corrected, rate)
        found = x - rate * mean / (tvmdml.sqrt(squares) + epsilon)
        return found * (1 - post) if post else found, mean, squares

    return _each(node, 4, step)


@rule(_DOMAIN + "Momentum")
def _momentum(node: Node) -> Results:
    """Of the first step, the gradient counts whole."""
    alpha, beta, mode = node.real("alpha", 0.0), node.real("beta", 0.0), node.text("mode", "standard")
    if mode not in ("standard", "nesterov"):
        raise NotConvertible(f"its mode is {mode}")

    def step(rate: Any, steps: Any, x: Any, gradient: Any, speed: Any) -> tuple[Any, ...]:
        part = tvmdml.where(tvmdml.greater_than(steps, node.like(0, x)), node.like(beta, x), node.like(1, x))
        speed = speed * alpha + gradient * part
        return x - rate * (gradient + speed * alpha if mode == "nesterov" else speed), speed

    return _each(node, 3, step)
