"""Scatters: elements and slices that updates replace, or are combined with."""

from __future__ import annotations

import math
from collections.abc import Mapping

import numpy as np

import tvmdml
from tvmdml.enums import ReduceFunction
from tvmdml.graph.scattering import scattered, scattered_nd
from tvmdml.onnx.descriptors import NotConvertible
from tvmdml.onnx.node import Node, Results, axis_of, reshaped, rule

_FUNCTIONS: Mapping[str, ReduceFunction | None] = {
    "none": None,
    "add": ReduceFunction.SUM,
    "mul": ReduceFunction.MULTIPLY,
    "max": ReduceFunction.MAX,
    "min": ReduceFunction.MIN,
}
_OF_BOOLS: Mapping[str, ReduceFunction | None] = {**_FUNCTIONS, "add": ReduceFunction.MAX, "mul": ReduceFunction.MIN}
"""Of truth values, which are 0 or 1: a sum is that either holds, and a product that both do."""


def _function(node: Node) -> ReduceFunction | None:
    """What an element and an update come to."""
    known, name = _OF_BOOLS if node.dtype() == np.bool_ else _FUNCTIONS, node.text("reduction", "none")
    if name not in known:
        raise NotConvertible(f"its reduction is {name}")
    return known[name]


@rule("Scatter")
def _scatter(node: Node) -> Results:
    return _elements(node.replaced("ScatterElements", axis=node.integer("axis", 0)))


@rule("ScatterElements")
def _elements(node: Node) -> Results:
    x, at, updates = node.x(), node.x(1), node.x(2)
    axis = node.axis(x.ndim)
    if x.ndim != at.ndim or any(i != axis and n < m for i, (n, m) in enumerate(zip(x.shape, at.shape, strict=True))):
        raise NotConvertible(f"its indices have the sizes {list(at.shape)}, for {list(x.shape)}")
    return scattered(x, at, reshaped(updates, at.shape), axis, _function(node))


@rule("ScatterND")
def _nd(node: Node) -> Results:
    """Of slices along the dimensions that the indices leave."""
    x, at = node.x(), node.x(1)
    depth = at.shape[-1] if at.ndim else 0
    if not 0 < depth <= x.ndim:
        raise NotConvertible(f"its indices have {depth} coordinates, for {x.ndim} dimensions")
    count = math.prod(at.shape[:-1])
    updates = reshaped(node.x(2), (count, *x.shape[depth:]))
    return scattered_nd(x, at.reshape(count, depth), updates, _function(node))


@rule("TensorScatter")
def _cache(node: Node) -> Results:
    """Rows written to a cache, from a place on that each batch has."""
    x, updates = node.x(), node.x(1)
    axis = axis_of(node.integer("axis", -2), x.ndim)
    if not axis:
        raise NotConvertible("its axis is that of the batches")
    count = updates.shape[axis]
    places = node.upto(count).reshape(*[1] * axis, count, *[1] * (x.ndim - axis - 1))
    if node.has(2):
        places = places + node.x(2).astype(np.int64).reshape(x.shape[0], *[1] * (x.ndim - 1))
    if node.text("mode", "linear") == "circular":
        places = tvmdml.modulus_floor(places, x.shape[axis])
    return scattered(x, places.broadcast(updates.shape), updates, axis)
