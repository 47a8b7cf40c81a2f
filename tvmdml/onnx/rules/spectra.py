"""Fourier transforms as products with matrices of angles, and the weights of the bands of a spectrum."""

from __future__ import annotations

import math
from typing import Any

import numpy as np

import tvmdml
from tvmdml.graph import Expression
from tvmdml.onnx.descriptors import NotConvertible
from tvmdml.onnx.node import Node, Result, Results, axis_of, reshaped, rule
from tvmdml.onnx.types import dtype_of, is_ours
from tvmdml.operators.cast import converted
from tvmdml.tensors.arrays import NumpyArray

_MOST_ANGLES = 1 << 24


@rule("DFT")
def _transform(node: Node) -> Results:
    x = node.x()
    axis = axis_of(int(node.number(2)) if node.has(2) else -2, x.ndim)
    if axis == x.ndim - 1:
        raise NotConvertible("its axis is that of the real and imaginary parts")
    onesided, inverse = bool(node.integer("onesided", 0)), bool(node.integer("inverse", 0))
    usual = 2 * (x.shape[axis] - 1) if onesided and inverse else x.shape[axis]
    length = int(node.number(1)) if node.has(1) else usual
    return transformed(node, x, axis, length, onesided, inverse)


@rule("STFT")
def _short_time(node: Node) -> Results:
    """Overlapping frames, times a window."""
    x, step = node.x(), int(node.number(1))
    if x.ndim == 2:
        x = x.reshape(*x.shape, 1)
    window = node.maybe(2)
    length = int(node.number(3)) if node.has(3) else window.shape[0] if window is not None else 0
    if x.ndim != 3 or step < 1 or not 0 < length <= x.shape[1]:
        raise NotConvertible(f"its frames have {length} elements, with steps of {step}")
    count = (x.shape[1] - length) // step + 1
    graph: Any = node.graph
    starts = tvmdml.fill_value_sequence([count, 1], 0, step, dtype="int64", device=graph)
    frames = tvmdml.gather(x, (starts + node.constant(np.arange(length)[None])).reshape(-1), axis=1)
    frames = reshaped(frames, (x.shape[0], count, length, x.shape[2]))
    node.results[0] = Result(node.results[0].dtype, None)  # ONNX's inference does not know that the result is one-sided
    if window is not None:
        frames = frames * reshaped(window, (length, 1))
    return transformed(node, frames, 2, length, bool(node.integer("onesided", 1)), False)


def transformed(node: Node, x: Expression, axis: int, length: int, onesided: bool, inverse: bool) -> Any:
    """The Fourier transform along an axis; the last dimension has real parts alone, or real and imaginary parts."""
    given, parts = x.shape[axis], x.shape[-1]
    if parts not in (1, 2) or length < 1 or (onesided and (parts == 2) != inverse):
        raise NotConvertible(f"it is of length {length}, and its elements have {parts} parts")
    if given * parts * (2 * length) > _MOST_ANGLES:
        raise NotConvertible(f"it transforms {given} elements to {length}, which is too large a matrix")
    matrix = _backwards_to_real(given, length) if onesided and inverse else _matrix(given, parts, length, onesided, inverse)
    last = [n for n in range(x.ndim) if n not in (axis, x.ndim - 1)]
    turned = x.transpose(*last, axis, x.ndim - 1)
    flat = turned.reshape(math.prod(x.shape[n] for n in last), given * parts)
    results = matrix.shape[1]
    found = tvmdml.gemm(flat, node.constant(matrix.reshape(given * parts, -1).astype(x.dtype)))
    found = found.reshape(*(x.shape[n] for n in last), results, matrix.shape[2])
    order = list(range(len(last)))
    order.insert(axis, len(last))
    return found.transpose(*order, x.ndim - 1)


def _angles(rows: int, columns: int, length: int) -> NumpyArray:
    return np.outer(np.arange(rows), np.arange(columns)) % length * (2 * np.pi / length)


def _matrix(given: int, parts: int, length: int, onesided: bool, inverse: bool) -> NumpyArray:
    """{elements * parts, results, 2}; elements from ``length`` on are not read."""
    results = length // 2 + 1 if onesided else length
    angles = _angles(given, results, length) * (1 if inverse else -1)
    real, imaginary = np.cos(angles), np.sin(angles)
    rows = [np.stack([real, imaginary], -1), np.stack([-imaginary, real], -1)][:parts]
    found = np.stack(rows, 1).reshape(given * parts, results, 2) / (length if inverse else 1)
    found[length * parts :] = 0
    return found


def _backwards_to_real(given: int, length: int) -> NumpyArray:
    """{elements * 2, results, 1}: each element stands for its conjugate, too."""
    angles = _angles(given, length, length)
    twice = np.full((given, 1), 2 / length)
    twice[0] = 1 / length
    if not length % 2 and length // 2 < given:
        twice[length // 2] = 1 / length
    twice[length // 2 + 1 :] = 0
    return np.stack([np.cos(angles) * twice, -np.sin(angles) * twice], 1).reshape(given * 2, length, 1)


_WINDOWS = {"BlackmanWindow": (0.42, 0.5, 0.08), "HammingWindow": (25 / 46, 21 / 46, 0.0), "HannWindow": (0.5, 0.5, 0.0)}
"""A number, and the factors of two cosines, of which the first is taken away."""


@rule(*_WINDOWS)
def _window(node: Node) -> Results:
    count, dtype = int(node.number(0)), dtype_of(node.integer("output_datatype", 1))
    if not 0 < count <= _MOST_ANGLES or not is_ours(dtype):
        raise NotConvertible(f"it has {count} elements, or a type that is not one of DirectML's")
    with np.errstate(invalid="ignore", divide="ignore"):
        angles = 2 * np.pi * np.arange(count) / np.float64(count if node.integer("periodic", 1) else count - 1)
    first, second, third = _WINDOWS[node.kind]
    found = first - second * np.cos(angles) + third * np.cos(2 * angles)
    return converted(np.round(found, 15), dtype)  # a sum that is 1 is not a little less, which would be 0 as an integer


@rule("MelWeightMatrix")
def _mel(node: Node) -> Results:
    """Weights of triangles over the frequencies; their corners are as far apart as they sound."""
    count, length, rate = (int(node.number(i)) for i in range(3))
    dtype = dtype_of(node.integer("output_datatype", 1))
    if not (0 < count <= _MOST_ANGLES and 0 < length <= _MOST_ANGLES and rate > 0 and is_ours(dtype)):
        raise NotConvertible(f"it has {count} bands of {length} frequencies, at a rate of {rate}")
    low, high = (2595 * math.log10(1 + node.number(i) / 700) for i in (3, 4))
    places = 700 * (10 ** ((low + np.arange(count + 2) * (high - low) / (count + 2)) / 2595) - 1)
    left, middle, right = (((length + 1) * places // rate)[i : i + count] for i in range(3))
    if (length // 2 + 1) * count > _MOST_ANGLES:
        raise NotConvertible(f"it has {count} bands of {length} frequencies")
    at = np.arange(length // 2 + 1)[:, None]
    rising = (at - left) / np.maximum(middle - left, 1) + (middle == left)
    falling = (right - at) / np.maximum(right - middle, 1)
    inside = np.where(at < middle, rising, np.where(right == middle, 1, falling))
    return np.where((at >= left) & (at <= np.maximum(middle, right - 1)), inside, 0).astype(dtype)
