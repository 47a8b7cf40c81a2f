"""Operators whose results have as many elements as their inputs decide: NonMaxSuppression, NonZero, Unique."""

from __future__ import annotations

import numpy as np

from tvmdml.arrays import NumpyArray
from tvmdml.onnx.node import Node, Results, axis_of, rule
from tvmdml.onnx_nodes import Refused


@rule("NonZero")
def _nonzero(node: Node) -> Results:
    return np.stack(np.nonzero(np.atleast_1d(node.known(0)))).astype(np.int64)


@rule("Unique")
def _unique(node: Node) -> Results:
    """Different elements, or slices along an axis: sorted, or as they come first."""
    x = node.known(0)
    axis = axis_of(node.integer("axis", 0), x.ndim) if "axis" in node.attributes else None
    found, first, back, counts = np.unique(x, True, True, True, axis=axis)
    back = back.reshape(-1)
    if not node.integer("sorted", 1):
        order = np.argsort(first, kind="stable")
        found = found[order] if axis is None else np.take(found, order, axis)
        first, counts, back = first[order], counts[order], np.argsort(order)[back]
    return [found, *(one.astype(np.int64) for one in (first, back, counts))]


@rule("com.microsoft.Unique")
def _unique_of_row(node: Node) -> Results:
    """As they come first, with the places of all elements among them."""
    found, _, back, counts = _unique(node.replaced("Unique", sorted=0))
    return [found, back, counts]


@rule("NonMaxSuppression")
def _suppressed(node: Node) -> Results:
    """The best boxes of each class that do not overlap better ones."""
    boxes, scores = node.known(0), node.known(1)
    if boxes.ndim != 3 or boxes.shape[2] != 4 or scores.ndim != 3 or scores.shape[::2] != boxes.shape[:2]:
        raise Refused(f"its boxes have the sizes {list(boxes.shape)}, and its scores {list(scores.shape)}")
    most = int(node.number(2)) if node.has(2) else 0
    overlap = float(node.number(3)) if node.has(3) else 0.0
    least = float(node.number(4)) if node.has(4) else None
    corners = _corners(boxes, bool(node.integer("center_point_box", 0)))
    found = [
        (batch, label, place)
        for batch in range(scores.shape[0])
        for label in range(scores.shape[1])
        for place in _kept(corners[batch], scores[batch, label], most, overlap, least)
    ]
    return np.array(found, np.int64).reshape(-1, 3)


def _corners(boxes: NumpyArray, centred: bool) -> NumpyArray:
    """The lower and upper corner of each box."""
    if centred:
        x, y, width, height = np.moveaxis(boxes, -1, 0)
        ends = (y - height / 2, x - width / 2, y + height / 2, x + width / 2)
    else:
        a, b, c, d = np.moveaxis(boxes, -1, 0)
        ends = (np.minimum(a, c), np.minimum(b, d), np.maximum(a, c), np.maximum(b, d))
    return np.stack(ends, -1)


def _kept(boxes: NumpyArray, scores: NumpyArray, most: int, overlap: float, least: float | None) -> list[int]:
    """The places of boxes, the best first."""
    places = np.arange(len(scores)) if least is None else np.flatnonzero(scores > least)
    places = places[np.argsort(-scores[places], kind="stable")]
    sides = np.maximum(boxes[:, 2:] - boxes[:, :2], 0)
    areas = sides[:, 0] * sides[:, 1]
    found: list[int] = []
    while len(places) and len(found) < most:
        best, places = int(places[0]), places[1:]
        found.append(best)
        shared = np.minimum(boxes[best, 2:], boxes[places, 2:]) - np.maximum(boxes[best, :2], boxes[places, :2])
        common = np.prod(np.maximum(shared, 0), -1)
        with np.errstate(invalid="ignore", divide="ignore"):
            places = places[~(common / (areas[best] + areas[places] - common) > overlap)]
    return found
