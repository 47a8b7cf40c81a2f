"""Scatters: DirectML's replace elements, so those that combine run once for each time that an element is written."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from typing import Any

import numpy as np

import tvmdml
from tvmdml.arrays import NumpyArray
from tvmdml.graph import Expression
from tvmdml.onnx import described
from tvmdml.onnx.node import Node, Results, axis_of, reshaped, rule
from tvmdml.onnx_nodes import Refused

_COMBINED: Mapping[str, Callable[[Any, Any], Any]] = {
    "add": tvmdml.add,
    "mul": tvmdml.multiply,
    "max": tvmdml.max,
    "min": tvmdml.min,
}
_MOST_ROUNDS = 64


@rule("Scatter")
def _scatter(node: Node) -> Results:
    return _elements(node.replaced("ScatterElements", axis=node.integer("axis", 0)))


@rule("ScatterElements")
def _elements(node: Node) -> Results:
    """Of indices that are known: the places of all elements, in one dimension."""
    if 0 in node.shape(1):
        return node.x()
    if node.text("reduction", "none") == "none":
        return _replaced(node)
    x = node.x()
    axis = node.axis(x.ndim)
    at = node.known(1)
    places = np.indices(at.shape)
    places[axis] = _wrapped(at, x.shape[axis])
    return _combined(node, x.reshape(x.size), np.asarray(np.ravel_multi_index(list(places), x.shape)))


def _replaced(node: Node) -> Results:
    """Of fewer rows than the tensor has: the indices of the others are behind it, and replace nothing."""
    x, at, updates = node.x(), node.x(1), node.x(2)
    axis = node.axis(x.ndim)
    more = [0 if i == axis else n - m for i, (n, m) in enumerate(zip(x.shape, at.shape, strict=True))]
    if not any(more):
        return described.convert(node)
    if any(n < 0 for n in more):
        raise Refused(f"its indices have the sizes {list(at.shape)}, for {list(x.shape)}")
    given: dict[str, Any] = {"start_padding": [0] * x.ndim, "end_padding": more}
    at, updates = tvmdml.padding(at, **given, padding_value=x.shape[axis]), tvmdml.padding(updates, **given)
    return tvmdml.scatter_elements(x, at, updates, axis=axis)


@rule("ScatterND")
def _nd(node: Node) -> Results:
    """The same, of slices along the dimensions that the indices leave."""
    if node.text("reduction", "none") == "none":
        return described.convert(node)
    x, at = node.x(), node.known(1)
    depth = at.shape[-1]
    if not 0 < depth <= x.ndim:
        raise Refused(f"its indices have {depth} coordinates, for {x.ndim} dimensions")
    columns = [_wrapped(at[..., i], x.shape[i]) for i in range(depth)]
    slices = reshaped(x, (math.prod(x.shape[:depth]), math.prod(x.shape[depth:])))
    return _combined(node, slices, np.asarray(np.ravel_multi_index(columns, x.shape[:depth])))


def _wrapped(at: NumpyArray, size: int) -> NumpyArray:
    """Indices counted from the front."""
    if at.size and not -size <= at.min() <= at.max() < size:
        raise Refused(f"an index is outside of {size} elements")
    return np.where(at < 0, at + size, at)


def _combined(node: Node, x: Expression, places: NumpyArray) -> Results:
    """Elements or rows of ``x`` combined with updates: in each round, those that no earlier update of the round writes."""
    shape = node.shape()
    name = node.text("reduction", "none")
    if name not in _COMBINED:
        raise Refused(f"its reduction is {name}")
    places = places.reshape(-1)
    updates = reshaped(node.x(2), (places.size, *x.shape[1:]))
    order = np.argsort(places, kind="stable")
    ranked = places[order]
    first = np.flatnonzero(np.r_[True, ranked[1:] != ranked[:-1]]) if places.size else places
    turn = np.arange(places.size) - np.repeat(first, np.diff(np.r_[first, places.size]))  # how often it was written before
    if places.size and turn.max() >= _MOST_ROUNDS:
        raise Refused(f"it writes one element {turn.max() + 1} times, which is more than {_MOST_ROUNDS}")
    for i in range(int(turn.max()) + 1 if places.size else 0):
        now = np.sort(order[turn == i])
        at = node.constant(places[now].astype(np.int64))
        given = updates if now.size == places.size else tvmdml.gather(updates, node.constant(now.astype(np.int64)), axis=0)
        found = _COMBINED[name](tvmdml.gather(x, at, axis=0), given)
        x = tvmdml.scatter_nd(x, at.reshape(at.size, 1), found)
    return reshaped(x, shape)


@rule("TensorScatter")
def _cache(node: Node) -> Results:
    """Rows written to a cache, from a place on that each batch has."""
    x, updates = node.x(), node.x(1)
    axis = axis_of(node.integer("axis", -2), x.ndim)
    if not axis:
        raise Refused("its axis is that of the batches")
    steps = np.arange(updates.shape[axis], dtype=np.int64)
    places = node.constant(steps).reshape(*[1] * axis, steps.size, *[1] * (x.ndim - axis - 1))
    if node.has(2):
        places = places + node.x(2).astype(np.int64).reshape(x.shape[0], *[1] * (x.ndim - 1))
    if node.text("mode", "linear") == "circular":
        places = tvmdml.modulus_floor(places, node.like(x.shape[axis], places))
    return tvmdml.scatter_elements(x, places.broadcast(updates.shape), updates, axis=axis)
