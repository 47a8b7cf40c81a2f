"""Sequences for tests: chains of additions in an arena."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

import tvmdml
from tvmdml import TensorDesc, compiler
from tvmdml.targets import Launch, ReadySequence, SequenceStep, Target
from tvmdml.tensors.arrays.device_array import DeviceArray

Array = np.ndarray[Any, np.dtype[Any]]

N = 40
PLACE = 256
"""The bytes from one place to the next: right for every device."""


def add_desc(n: int = N) -> tvmdml.Operator:
    like = TensorDesc("float32", (n,))
    return tvmdml.ElementWiseAdd(a_tensor=like, b_tensor=like, output_tensor=like)


def abs_desc(n: int = N) -> tvmdml.Operator:
    like = TensorDesc("float32", (n,))
    return tvmdml.ElementWiseAbs(input_tensor=like, output_tensor=like)


def ready(desc: tvmdml.Operator, target: Target) -> Launch:
    return compiler.ready(desc.canonical(), target)[1]


def arena_of(target: Target, values: Array) -> Any:
    """The rows of these values, each at a place of its own; and a function that reads them."""
    rows = np.zeros((len(values), PLACE), np.uint8)
    rows[:, : 4 * N] = values.view(np.uint8)
    return target.asarray(rows.reshape(-1).copy())


def rows_of(arena: Any) -> Array:
    content: Array = arena.numpy() if isinstance(arena, DeviceArray) else arena
    rows: Array = content.reshape(-1, PLACE)[:, : 4 * N].copy().view(np.float32)
    return rows


def chain(launch: Launch, count: int, slot: int = 0) -> list[SequenceStep]:
    """Fibonacci's numbers: each row is the sum of the two before it."""
    return [SequenceStep(launch, tuple((slot, PLACE * (i + k)) for k in range(3))) for i in range(count)]


def ones(count: int) -> Array:
    values = np.zeros((count, N), np.float32)
    values[:2] = 1
    return values


def fibonacci(count: int) -> Array:
    values = ones(count)
    with np.errstate(over="ignore"):
        for i in range(2, count):
            values[i] = values[i - 1] + values[i - 2]
    return values


def ways(run: ReadySequence) -> list[Callable[[Any], object]]:
    return [run, lambda arrays: run.bind(arrays)(), run.timed, lambda arrays: run(tuple(arrays))]
