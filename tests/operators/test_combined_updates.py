"""Scatters that combine: one update after the other, in the order of the indices, on every target and with any number of tasks."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from support import assert_same_bits

import tvmdml
from tvmdml import functions, targets
from tvmdml.enums import ReduceFunction
from tvmdml.errors import InvalidArgument, TvmdmlError
from tvmdml.graph.scattering import _elements, _tuples, scattered, scattered_nd
from tvmdml.library import knobs
from tvmdml.library.scheduling import kernel_for
from tvmdml.operators._movement_scatter_fused import FusedScatter
from tvmdml.targets import Target
from tvmdml.targets.cpu import CpuTarget
from tvmdml.tensors import TensorDesc

Array = np.ndarray[Any, np.dtype[Any]]


def larger(a: Any, b: Any) -> Any:
    return a if a > b or a != a else b


def smaller(a: Any, b: Any) -> Any:
    return a if a < b or a != a else b


STEPS: dict[ReduceFunction, Callable[[Any, Any], Any]] = {
    ReduceFunction.SUM: lambda a, b: a + b,
    ReduceFunction.MULTIPLY: lambda a, b: a * b,
    ReduceFunction.MAX: larger,
    ReduceFunction.MIN: smaller,
}
TYPES = ("float16", "float32", "float64", "int8", "int16", "int32", "int64", "uint8", "uint16", "uint32", "uint64")


def one_by_one(x: Array, indices: Array, updates: Array, axis: int, function: ReduceFunction) -> Array:
    """Elements in plain Python: in the type of the tensor, so each result is rounded to it."""
    result = x.copy()
    with np.errstate(all="ignore"):
        for at in np.ndindex(*indices.shape):
            place = int(indices[at])
            place += x.shape[axis] if place < 0 else 0
            if 0 <= place < x.shape[axis]:
                to = (*at[:axis], place, *at[axis + 1 :])
                result[to] = STEPS[function](result[to], updates[at])
    return result


def values(rng: Any, dtype: str, shape: tuple[int, ...]) -> Array:
    """Numbers of all signs, and some that are special."""
    if dtype.startswith("float"):
        special = rng.choice(np.array([0.0, -0.0, 1.5, -2.0, np.inf, np.nan]), shape)
        return np.where(rng.random(shape) < 0.1, special, rng.standard_normal(shape) * 3).astype(dtype)
    limits = np.iinfo(dtype)
    return rng.integers(limits.min, limits.max, shape, dtype, endpoint=True)


def on(target: Target, describe: Any, arrays: tuple[Array, ...], *attributes: Any) -> Array:
    (result,) = functions.call(describe, arrays, attributes, device=target.name)
    return result  # type: ignore[no-any-return]


def test_sums_of_rows(target: Target) -> None:
    rng = np.random.default_rng(2)
    x, updates, indices = values(rng, "float32", (9, 5)), values(rng, "float32", (60, 5)), rng.integers(-11, 11, (60, 1))
    expected = one_by_one(x, indices.repeat(5, 1), updates, 0, ReduceFunction.SUM)
    np.testing.assert_array_equal(on(target, _tuples, (x, indices, updates), ReduceFunction.SUM), expected)


@pytest.mark.full
@pytest.mark.parametrize("dtype", TYPES)
def test_updates_are_combined_one_after_the_other(dtype: str, target: Target) -> None:
    first = TYPES.index(dtype) % 2
    for n, function in enumerate(list(STEPS)[first::2]):
        rng = np.random.default_rng(n)
        x, updates = values(rng, dtype, (9, 5)), values(rng, dtype, (60, 5))
        indices = rng.integers(-11, 11, (60, 1))
        expected = one_by_one(x, indices.repeat(5, 1), updates, 0, function)
        try:
            results = [
                on(target, _tuples, (x, indices, updates), function),
                on(target, _elements, (x, indices.repeat(5, 1), updates), 0, function),
                on(target, _elements, (x, np.broadcast_to(indices, (60, 5)), updates), 0, function),
                on(target, _elements, (x.T, indices.repeat(5, 1).T, updates.T), 1, function).T,
            ]
        except tvmdml.Unsupported:  # a device without such a type says so
            assert target.kind == "vulkan"
            continue
        for result in results:
            np.testing.assert_array_equal(result, expected)
            if dtype.startswith("float"):  # zeros have signs
                np.testing.assert_array_equal(np.signbit(result) | np.isnan(result), np.signbit(expected) | np.isnan(expected))


@pytest.mark.full
@settings(max_examples=12, deadline=None)
@given(st.data())
def test_any_shapes_and_indices(data: st.DataObject) -> None:
    """Kernels are few: shapes and numbers are drawn, of two types."""
    sizes = data.draw(st.lists(st.integers(1, 6), min_size=1, max_size=4))
    axis = data.draw(st.integers(0, len(sizes) - 1))
    part = [data.draw(st.integers(0, 40)) if i == axis else data.draw(st.integers(0, n)) for i, n in enumerate(sizes)]
    rng = np.random.default_rng(data.draw(st.integers(0, 1 << 16)))
    function, dtype = data.draw(st.sampled_from(list(STEPS))), data.draw(st.sampled_from(["float32", "int32"]))
    x, updates = values(rng, dtype, tuple(sizes)), values(rng, dtype, tuple(part))
    indices = rng.integers(-sizes[axis] - 1, sizes[axis] + 1, part).astype(data.draw(st.sampled_from(["int32", "int64"])))
    expected = one_by_one(x, indices, updates, axis, function)
    np.testing.assert_array_equal(scattered(x, indices, updates, axis, function), expected)
    depth = data.draw(st.integers(1, len(sizes)))
    tuples = np.stack([rng.integers(-n, n, 7) for n in sizes[:depth]], axis=1)
    slices = values(rng, dtype, (7, *sizes[depth:]))
    flat = np.ravel_multi_index(tuple((tuples % sizes[:depth]).T), sizes[:depth])
    rows, several = x.reshape(int(np.prod(sizes[:depth])), -1), slices.reshape(7, -1)
    expected = one_by_one(rows, flat[:, None].repeat(rows.shape[1], 1), several, 0, function).reshape(x.shape)
    np.testing.assert_array_equal(scattered_nd(x, tuples, slices, function), expected)


@pytest.mark.full(first=1)
@pytest.mark.parametrize("width", [1, 16, 21])
def test_the_number_of_tasks_changes_no_bits(width: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(CpuTarget, "handover", lambda target: 1)
    rng = np.random.default_rng(width)
    x, updates = (rng.standard_normal((n, width)).astype(np.float32) for n in (70, 4000))
    tuples = rng.integers(-75, 75, (4000, 1))
    elements = rng.integers(-75, 75, (4000, width))
    desc = FusedScatter.of(*(TensorDesc(array.dtype.name, array.shape) for array in (x, elements, updates)), axis=0, function="sum")
    results, ways = [], set()
    for threads in (1, 2, 7):
        monkeypatch.setenv("TVMDML_NUM_THREADS", str(threads))
        functions._plans.clear()
        with knobs.using(movement={"task_bytes": 1}):
            ways.add(kernel_for(desc, targets.resolve("cpu")).scalars[0])
            results.append(scattered_nd(x, tuples, updates, ReduceFunction.SUM).tobytes())
            results.append(scattered(x, elements, updates, 0, ReduceFunction.SUM).tobytes())
    assert len(ways) > 1
    assert len(set(results[::2])) == len(set(results[1::2])) == 1


@pytest.mark.full
def test_very_many_updates_of_one_element(device: Target) -> None:
    """Loops of a device's driver may end after 65535 rounds."""
    updates = np.random.default_rng(0).standard_normal((150_001, 1)).astype(np.float32)
    indices = np.zeros((150_001, 1), np.int64)
    expected = np.zeros((2, 1), np.float32)
    for update in updates:
        expected[0] += update
    assert_same_bits(on(device, _tuples, (np.zeros((2, 1), np.float32), indices, updates), ReduceFunction.SUM), expected)


def test_a_graph_with_any_number_of_indices_is_recorded_once() -> None:
    graph = tvmdml.Graph()
    x, at, updates = graph.input((9, 20)), graph.input(("n", 1), "int64"), graph.input(("n", 20))
    net: Any = graph.compile([scattered_nd(x, at, updates, ReduceFunction.SUM)])
    for n in (1, 2, 5, 40, 333):
        rng = np.random.default_rng(n)
        given = [values(rng, "float32", (9, 20)), rng.integers(-9, 9, (n, 1)), values(rng, "float32", (n, 20))]
        (result,) = net(given)
        np.testing.assert_array_equal(result, one_by_one(given[0], given[1].repeat(20, 1), given[2], 0, ReduceFunction.SUM))
    assert "1 recording, 5 sizes" in str(net.explain())


def test_what_does_not_fit_is_an_error() -> None:
    x, at, updates = np.zeros((4, 3), np.float32), np.zeros((2, 3), np.int64), np.zeros((2, 3), np.float32)
    for arrays in ((x, at, updates[:1]), (x, at.astype(np.float32), updates), (x, at, updates.astype(np.float64))):
        with pytest.raises(TvmdmlError, match=r"tvmdml.scatter_elements: (updates|indices)"):
            scattered(*arrays, 0, ReduceFunction.SUM)
    with pytest.raises(InvalidArgument, match="function: given AVERAGE; allowed: SUM, MULTIPLY, MAX, MIN"):
        scattered(x, at, updates, 0, ReduceFunction.AVERAGE)
