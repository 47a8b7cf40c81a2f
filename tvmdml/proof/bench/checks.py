"""Checks of outputs: tvmdml's must be bit-identical to the reference, a peer's must have equal values."""

from __future__ import annotations

import numpy as np

from tvmdml.operators._accuracy import as_array
from tvmdml.proof.bench.inputs import NumpyArray
from tvmdml.proof.bench.task import Task

Outputs = tuple[NumpyArray, ...]


def ours(task: Task, actual: Outputs) -> str:
    """What is wrong with tvmdml's outputs; empty if they are correct."""
    return task.desc.mismatch(actual, task.expected)


def peer(task: Task, actual: Outputs) -> str:
    """What is wrong with a peer's outputs; empty if they are correct."""
    if task.kind.counted:
        count = int(task.expected[0].item())
        rows = task.expected[1].reshape(-1, task.expected[1].shape[-1])[:count]
        return _values(actual[0], task.expected[0].reshape(-1)) or _values(actual[1], rows)
    if task.kind.free:
        return "" if actual[0].shape == task.expected[0].shape else f"shape {actual[0].shape}"
    if task.kind.close:
        pairs = zip(actual, task.expected, strict=True)
        return next(filter(None, (_close(one, as_array(other), task.kind.steps) for one, other in pairs)), "")
    problem = _values(actual[0], task.expected[0])
    if problem or len(actual) == 1:
        return problem
    # A peer may return any of several equal elements, but each index must lead to its value.
    found = actual[1].astype(np.int64)
    if found.min(initial=0) < 0 or found.max(initial=0) >= task.x.shape[task.work["axis"]]:
        return "an index points outside the input"
    problem = _values(np.take_along_axis(task.x, found, task.work["axis"]), task.expected[0])
    return problem and f"an index points to another value: {problem}"


def _close(actual: NumpyArray, expected: NumpyArray, steps: int) -> str:
    """Floats may differ by some rounding errors of the largest value."""
    if expected.dtype.kind != "f" or not (problem := _values(actual, expected)) or actual.shape != expected.shape:
        return _values(actual, expected)
    largest = float(np.abs(expected[np.isfinite(expected)]).max(initial=0))
    near = np.isclose(actual.astype(np.float64), expected, 0, steps * float(np.finfo(expected.dtype).eps) * largest, equal_nan=True)
    return "" if near.all() else problem


def _values(actual: NumpyArray, expected: NumpyArray) -> str:
    if actual.shape != expected.shape:
        return f"shape {actual.shape}, should be {expected.shape}"
    differ = actual != expected
    if expected.dtype.kind == "f":
        differ &= ~(np.isnan(actual) & np.isnan(expected))
    return _first(differ, actual, expected)


def _first(differ: NumpyArray, actual: NumpyArray, expected: NumpyArray) -> str:
    if not differ.any():
        return ""
    at = np.unravel_index(int(differ.argmax()), differ.shape)
    where = tuple(int(i) for i in at)
    return f"{int(differ.sum())} of {differ.size} elements differ, first at {where}: {actual[at]}, should be {expected[at]}"
