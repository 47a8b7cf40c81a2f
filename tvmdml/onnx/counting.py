"""Operators whose results have as many elements as those of their inputs decide: NonMaxSuppression, Unique. In NumPy."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np

from tvmdml.errors import InvalidArgument
from tvmdml.tensors.arrays import NumpyArray
from tvmdml.tensors.arrays.device_array import DeviceArray

Inputs = Sequence[NumpyArray | None]


def _unique(inputs: Inputs, attributes: Mapping[str, Any]) -> list[NumpyArray]:
    """Different elements, or slices along an axis: sorted, or as they come first."""
    x, axis = _given(inputs, 0), attributes.get("axis")
    if axis is not None and not -x.ndim <= axis < x.ndim:
        raise InvalidArgument(f"it has axis {axis}, for {x.ndim} dimensions")
    different, first, back, counts = np.unique(x, True, True, True, axis=axis)
    back = back.reshape(-1)
    if not attributes.get("sorted", 1):
        order = np.argsort(first, kind="stable")
        different = different[order] if axis is None else np.take(different, order, axis)
        first, counts, back = first[order], counts[order], np.argsort(order)[back]
    return [different, *(array.astype(np.int64) for array in (first, back, counts))]


def _unique_of_row(inputs: Inputs, attributes: Mapping[str, Any]) -> list[NumpyArray]:
    """As they come first, with the places of all elements among them."""
    different, _, back, counts = _unique(inputs, {"sorted": 0})
    return [different, back, counts]


def _suppressed(inputs: Inputs, attributes: Mapping[str, Any]) -> list[NumpyArray]:
    """The best boxes of each class that do not overlap better ones."""
    boxes, scores = _given(inputs, 0), _given(inputs, 1)
    if boxes.ndim != 3 or boxes.shape[2] != 4 or scores.ndim != 3 or scores.shape[::2] != boxes.shape[:2]:
        raise InvalidArgument(f"its boxes have the sizes {list(boxes.shape)}, and its scores {list(scores.shape)}")
    most, overlap, least = (_number(inputs, place) for place in (2, 3, 4))
    corners = _corners(boxes, bool(attributes.get("center_point_box", 0)))
    chosen = [
        (batch, label, place)
        for batch in range(scores.shape[0])
        for label in range(scores.shape[1])
        for place in _best(corners[batch], scores[batch, label], int(most or 0), overlap or 0.0, least)
    ]
    return [np.array(chosen, np.int64).reshape(-1, 3)]


def _corners(boxes: NumpyArray, centred: bool) -> NumpyArray:
    """The lower and upper corner of each box."""
    if centred:
        x, y, width, height = np.moveaxis(boxes, -1, 0)
        ends = (y - height / 2, x - width / 2, y + height / 2, x + width / 2)
    else:
        a, b, c, d = np.moveaxis(boxes, -1, 0)
        ends = (np.minimum(a, c), np.minimum(b, d), np.maximum(a, c), np.maximum(b, d))
    return np.stack(ends, -1)


def _best(boxes: NumpyArray, scores: NumpyArray, most: int, overlap: float, least: float | None) -> list[int]:
    """The places of boxes, the best first."""
    places = np.arange(len(scores)) if least is None else np.flatnonzero(scores > least)
    places = places[np.argsort(-scores[places], kind="stable")]
    chosen: list[int] = []
    while len(places) and len(chosen) < most:  # boxes against each other in blocks: NumPy takes longer to begin than to compute
        block, places = places[:_BLOCK], places[_BLOCK:]
        if chosen:
            block = block[~np.greater(_overlaps(boxes[chosen], boxes[block]), overlap).any(0)]
        worse: NumpyArray = np.greater(_overlaps(boxes[block], boxes[block]), overlap)
        left: NumpyArray = np.ones(len(block), bool)
        overlapping: list[bool] = np.logical_or.reduce(worse, axis=1).tolist()
        for i, place in enumerate(block.tolist()):
            if left[i] and len(chosen) < most:
                chosen.append(place)
                if overlapping[i]:
                    left &= ~worse[i]
    return chosen


_BLOCK = 128


def _overlaps(some: NumpyArray, others: NumpyArray) -> NumpyArray:
    """What each box has in common with each other one, as a part of both."""
    lower, upper = np.maximum(some[:, None, :2], others[:, :2]), np.minimum(some[:, None, 2:], others[:, 2:])
    common = _area(lower, upper)
    with np.errstate(invalid="ignore", divide="ignore"):
        parts: NumpyArray = common / (_area(some[:, :2], some[:, 2:])[:, None] + _area(others[:, :2], others[:, 2:]) - common)
    return parts


def _area(lower: NumpyArray, upper: NumpyArray) -> NumpyArray:
    sides = np.maximum(upper - lower, 0)
    return sides[..., 0] * sides[..., 1]


def _given(inputs: Inputs, place: int) -> NumpyArray:
    array = inputs[place] if place < len(inputs) else None
    if array is None:
        raise InvalidArgument(f"its input {place} is missing")
    return array


def _number(inputs: Inputs, place: int) -> float | None:
    array = inputs[place] if place < len(inputs) else None
    if array is not None and array.size != 1:
        raise InvalidArgument(f"its input {place} has {array.size} elements, and not one")
    return None if array is None else float(array.reshape(-1)[0])


COUNTING: Mapping[str, Callable[[Inputs, Mapping[str, Any]], list[NumpyArray]]] = {
    "Unique": _unique,
    "com.microsoft.Unique": _unique_of_row,
    "NonMaxSuppression": _suppressed,
}
"""The results, from the inputs and attributes, by ONNX's name of the operator. They raise ``InvalidArgument`` for bad ones."""


def plain(array: Any) -> NumpyArray:
    """An array that NumPy computes with."""
    return array.numpy() if type(array) is DeviceArray else np.asarray(array)
