"""Indices of any value: no operator reads or writes outside of a tensor, and a caller may have them checked."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from support import assert_same_bits

import tvmdml
from tvmdml.errors import IndexOutOfRange
from tvmdml.targets import Target

Array = np.ndarray[Any, np.dtype[Any]]
SIZE = 5
HOSTILE = (0, 4, -1, -5, -6, 5, 2**31, 2**32 + 1, -(2**32) - 2, 2**63 - 1, -(2**63), 3, 2**64 - 1, 0)
"""Of a dimension of five elements: the good ones are 0, 3, 4, -1 and -5."""
TYPES = ("int32", "int64", "uint32", "uint64")


def hostile(dtype: str) -> Array:
    """Those of these indices that a type has."""
    limits = np.iinfo(dtype)
    return np.array([one for one in HOSTILE if limits.min <= one <= limits.max], dtype)


def counted(index: int) -> int:
    """A negative index counts from the end."""
    return index + SIZE if index < 0 else index


def nearest(index: int) -> int:
    """An index that is out of range is that of the first or the last element."""
    return min(max(counted(index), 0), SIZE - 1)


@pytest.mark.full
@pytest.mark.parametrize("dtype", TYPES)
def test_a_gather_stays_inside_of_its_input(dtype: str, target: Target) -> None:
    x, indices = np.arange(SIZE * 3, dtype=np.float32).reshape(SIZE, 3), hostile(dtype)
    places = [nearest(int(one)) for one in indices]
    expected = x[places]
    assert_same_bits(tvmdml.gather(x, indices, axis=0, device=target.name), expected)
    assert_same_bits(tvmdml.gather(x.T, indices, axis=1, device=target.name), expected.T)
    assert_same_bits(tvmdml.gather_elements(x, np.repeat(indices[:, None], 3, 1), axis=0, device=target.name), expected)
    assert_same_bits(tvmdml.gather_nd(x, indices[:, None], device=target.name), expected)


@pytest.mark.full
@pytest.mark.parametrize("dtype", TYPES)
def test_a_scatter_writes_only_where_an_index_is_in_range_and_the_last_update_counts(dtype: str, target: Target) -> None:
    x, indices = np.arange(SIZE * 3, dtype=np.float32).reshape(SIZE, 3), hostile(dtype)
    updates = 100 + np.arange(len(indices) * 3, dtype=np.float32).reshape(-1, 3)
    expected = x.copy()
    for index, update in zip(indices, updates, strict=True):
        if 0 <= counted(int(index)) < SIZE:
            expected[counted(int(index))] = update
    whole = np.repeat(indices[:, None], 3, 1)
    assert_same_bits(tvmdml.scatter(x, whole, updates, axis=0, device=target.name), expected)
    assert_same_bits(tvmdml.scatter_elements(x.T, whole.T, updates.T, axis=1, device=target.name), expected.T)
    assert_same_bits(tvmdml.scatter_nd(x, indices[:, None], updates, device=target.name), expected)


@pytest.mark.full(first=1)
@pytest.mark.parametrize("dtype", TYPES)
def test_only_an_index_in_range_is_hot(dtype: str, target: Target) -> None:
    indices = hostile(dtype)
    hot = [[counted(int(one)) == place for place in range(SIZE)] for one in indices]
    values = np.array([[-2.5, 7.0]], np.float32)
    found = tvmdml.one_hot(indices[:, None], values, axis=1, output_length=SIZE, device=target.name)
    assert_same_bits(found, np.where(hot, values[0, 1], values[0, 0]))


@pytest.mark.full(first=1)
def test_indices_are_checked_if_that_is_asked_for(target: Target) -> None:
    x, good, bad = np.zeros((SIZE, 3), np.float32), np.array([0, -5, 4]), np.array([0, -6, 9])
    updates = np.ones((3, 3), np.float32)
    for name, call in {
        "gather: indices[1]": lambda one: tvmdml.gather(x, one, axis=0, check_indices=True, device=target.name),
        "gather_nd: indices[1, 0]": lambda one: tvmdml.gather_nd(x, one[:, None], check_indices=True, device=target.name),
        "scatter_nd: indices[1, 0]": lambda one: tvmdml.scatter_nd(
            x, one[:, None], updates, check_indices=True, device=target.name
        ),
    }.items():
        call(good)
        with pytest.raises(IndexOutOfRange) as caught:
            call(bad)
        assert str(caught.value) == f"tvmdml.{name}: given -6; allowed: -5 to 4."
        assert isinstance(caught.value, IndexError)


@pytest.mark.full
def test_parts_and_wholes_are_numpys() -> None:
    x = np.arange(60, dtype=np.int16).reshape(3, 20)
    parts = tvmdml.split(x, axis=1, output_axis_sizes=(3, 0 + 7, 10))
    assert [part.tolist() for part in parts] == [part.tolist() for part in np.split(x, (3, 10), 1)]
    assert_same_bits(tvmdml.join(parts, axis=1), x)
    assert_same_bits(tvmdml.join([x] * 100, axis=0), np.concatenate([x] * 100))
    window = tvmdml.slice(x, input_window_offsets=(0, 1), input_window_sizes=(3, 19), input_window_strides=(2, -3))
    assert_same_bits(window, x[::2, 19:0:-3])


@pytest.mark.full(first=1)
@pytest.mark.parametrize("shape", [(70_001,), (3, 40_009), (40_009, 3)], ids=str)
def test_many_updates_that_meet_happen_in_their_order(shape: tuple[int, ...], target: Target) -> None:
    axis, rng = int(np.argmax(shape)), np.random.default_rng(1)
    x, updates = rng.integers(0, 1 << 30, shape, np.uint32), rng.integers(0, 1 << 30, shape, np.uint32)
    indices = rng.integers(-shape[axis] - 9, shape[axis] + 9, shape)
    places = np.where(indices < 0, indices + shape[axis], indices)
    inside = (places >= 0) & (places < shape[axis])
    at = np.indices(shape)
    at[axis] = places
    expected = x.copy()
    expected[tuple(one[inside] for one in at)] = updates[inside]
    assert_same_bits(tvmdml.scatter(x, indices, updates, axis=axis, device=target.name), expected)
    tuples = np.stack([one[inside] for one in at], axis=-1)
    assert_same_bits(tvmdml.scatter_nd(x, tuples, updates[inside], device=target.name), expected)
