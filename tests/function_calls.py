"""Calls of functions with arrays of many forms, and what a packed copy gives: shared by the tests of functions."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from support import assert_same_bits

import tvmdml

Array = np.ndarray[Any, np.dtype[Any]]


# Each function with attributes that change most elements, and its expected result: the same as on a packed copy.
CALLS: dict[str, Callable[..., Any]] = {
    "round": lambda x, **more: tvmdml.round(x, rounding_mode="toward_infinity", **more),
    "top_k": lambda x, **more: tvmdml.top_k(x, 2, axis=0, **more),
    "nonzero_coordinates": lambda x, **more: tvmdml.nonzero_coordinates(x, **more),
    "diagonal_matrix": lambda x, **more: tvmdml.diagonal_matrix(x, value=3, diagonal_fill_begin=-1, **more),
}
functions = pytest.mark.parametrize("name", CALLS)


def flat(result: Any) -> tuple[Array, ...]:
    """The arrays of a result, whether one or several."""
    return tuple(np.asarray(r) for r in (result if isinstance(result, tuple) else (result,)))


def assert_like_packed(name: str, x: Any) -> None:
    """The function gives for an awkward array what it gives for a plain copy of it."""
    plain = np.array(x, dtype=x.dtype.newbyteorder("="), order="C", copy=True, subok=False)
    before = x.tobytes()
    for got, expected in zip(flat(CALLS[name](x)), flat(CALLS[name](plain)), strict=True):
        assert_same_bits(got, expected)
        assert got.flags.writeable
        assert got.flags.owndata or got.base is not None
    assert x.tobytes() == before


X = np.arange(6, dtype=np.float32).reshape(2, 3)


def packed_struct(values: Array) -> Array:
    """A field of packed structures: strides of 7 bytes, no element aligned."""
    records = np.zeros(values.shape, np.dtype([("a", "u1"), ("b", values.dtype), ("c", "u2")]))
    records["b"] = values
    return records["b"]


def read_only(values: Array) -> Array:
    copy = values.copy()
    copy.flags.writeable = False
    return copy


class Tagged(np.ndarray):  # type: ignore[type-arg]
    """A subclass with arithmetic of its own, which no function must fall into."""

    def __array_ufunc__(self, *arguments: Any, **more: Any) -> Any:
        raise AssertionError("the subclass was computed with")
