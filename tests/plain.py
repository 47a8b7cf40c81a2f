"""Contracts in plain Python, an element at a time: they share nothing with the operators' references."""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable
from fractions import Fraction
from typing import Any

import numpy as np
from support import Array

from tvmdml import AxisDirection, RoundingMode

Plain = Callable[..., tuple[Array, ...]]
PLAIN: dict[str, Plain] = {}
"""What the outputs must be, by the operator's name: functions of a descriptor and its inputs."""


def contract(*names: str) -> Callable[[Plain], Plain]:
    """The decorated function says what these operators compute."""

    def known(function: Plain) -> Plain:
        PLAIN.update(dict.fromkeys(names, function))
        return function

    return known


@contract("ELEMENT_WISE_ROUND")
def rounded(desc: Any, x: Array) -> tuple[Array, ...]:
    """The nearest integer; a half becomes the even one, or the one nearer to zero, or the one further from it."""
    result = x.copy()
    for at in np.ndindex(*x.shape):
        value = float(x[at])
        if not math.isfinite(value):
            continue
        below = math.floor(Fraction(value))
        part = Fraction(value) - below
        if desc.rounding_mode is RoundingMode.TOWARD_ZERO:
            whole = below + (1 if part and value < 0 else 0)
        elif part != Fraction(1, 2):
            whole = below + (1 if part > Fraction(1, 2) else 0)
        elif desc.rounding_mode is RoundingMode.HALVES_TO_NEAREST_EVEN:
            whole = below + below % 2
        else:
            whole = below + (1 if value > 0 else 0)
        result[at] = math.copysign(whole, value)
    return (result,)


@contract("TOP_K", "TOP_K1")
def best(desc: Any, x: Array) -> tuple[Array, ...]:
    """The first K of each row in order, and where they were; equal elements in the order of their positions, NaN above all."""
    axis, k, tensor = desc.axis, desc.k, desc.output_index_tensor
    decreasing = getattr(desc, "axis_direction", AxisDirection.DECREASING) is AxisDirection.DECREASING
    values, indices = np.empty(tensor.sizes, x.dtype), np.empty(tensor.sizes, tensor.data_type.numpy)
    for row in itertools.product(*(range(n) for n in (*x.shape[:axis], *x.shape[axis + 1 :]))):
        sequence = [x[(*row[:axis], i, *row[axis:])] for i in range(x.shape[axis])]

        def rank(i: int, sequence: list[Any] = sequence) -> tuple[bool, Any]:
            number = sequence[i].item()
            return (True, 0) if number != number else (False, number)

        # Python's sort is stable even when reversed: equal elements stay in ascending order of position.
        order = sorted(range(len(sequence)), key=rank, reverse=decreasing)[:k]
        for place, i in enumerate(order):
            values[(*row[:axis], place, *row[axis:])] = sequence[i]
            indices[(*row[:axis], place, *row[axis:])] = i
    return values, indices


@contract("NONZERO_COORDINATES")
def found(desc: Any, x: Array) -> tuple[Array, ...]:
    """How many elements are not zero, and where they are: the last coordinates, in ascending order."""
    tensor = desc.output_coordinates_tensor
    columns = tensor.sizes[-1]
    places = [at[len(at) - columns :] for at in itertools.product(*map(range, x.shape)) if x[at].item() != 0]
    rows = np.zeros((x.size, columns), tensor.data_type.numpy)
    for i, at in enumerate(places):
        rows[i] = at
    return np.full(desc.output_count_tensor.sizes, len(places), np.uint32), rows.reshape(tensor.sizes)


@contract("RANDOM_GENERATOR")
def random_words(desc: Any, state: Array) -> tuple[Array, ...]:
    """Philox 4x32-10 of a counter that goes up by one with each block; the counter after the last block is the new one."""
    words, found = [int(word) for word in state.reshape(6)], []
    counter = sum(word << 32 * i for i, word in enumerate(words[:4]))
    for block in range(-(-desc.output_tensor.element_count // 4)):
        c = [(counter + block) >> 32 * i & 0xFFFFFFFF for i in range(4)]
        for turn in range(10):
            k = [words[4] + turn * 0x9E3779B9, words[5] + turn * 0xBB67AE85]
            p, q = 0xD2511F53 * c[0], 0xCD9E8D57 * c[2]
            c = [(x & 0xFFFFFFFF) for x in (q >> 32 ^ c[1] ^ k[0], q, p >> 32 ^ c[3] ^ k[1], p)]
        found += c
    values = np.array(found[: desc.output_tensor.element_count], np.uint32).reshape(desc.output_tensor.sizes)
    after = counter + len(found) // 4
    new = np.array([*(after >> 32 * i & 0xFFFFFFFF for i in range(4)), *words[4:]], np.uint32).reshape(state.shape)
    return (values,) if desc.output_state_tensor is None else (values, new)


@contract("DIAGONAL_MATRIX1")
def banded(desc: Any, x: Array | None) -> tuple[Array, ...]:
    """A value where the column less the row is in a range, or outside of an inverted range; elsewhere the input, or zero."""
    return (_filled(desc.output_tensor, x, desc.value, desc.diagonal_fill_begin, desc.diagonal_fill_end),)


@contract("DIAGONAL_MATRIX")
def diagonal(desc: Any) -> tuple[Array, ...]:
    """A value on one diagonal, cut to an integer for integers; elsewhere zero."""
    value = desc.value if desc.output_tensor.data_type.is_float else int(desc.value)
    return (_filled(desc.output_tensor, None, value, desc.offset, desc.offset + 1),)


def _filled(tensor: Any, x: Array | None, value: int | float, begin: int, end: int) -> Array:
    result: Array = np.zeros(tensor.sizes, tensor.data_type.numpy) if x is None else x.copy()
    with np.errstate(over="ignore", invalid="ignore"):
        fill = np.array(value).astype(result.dtype) if isinstance(value, float) else np.array(value, result.dtype)
    for at in np.ndindex(*result.shape):
        column = at[-1] - at[-2]
        if begin <= column < end if begin <= end else column < end or column >= begin:
            result[at] = fill
    return result
