"""The plan of memory: no two results that are alive at the same time meet, and little is wasted."""

from __future__ import annotations

import itertools

import hypothesis
import hypothesis.strategies as st
import numpy as np
import pytest

import tvmdml
from tvmdml.graph.memory import ALIGNMENT, Lifetime, planned

LIFETIMES = st.lists(
    st.builds(
        lambda size, first, length: Lifetime(size, first, first + length),
        st.integers(0, 10_000),
        st.integers(0, 50),
        st.integers(0, 12),
    ),
    max_size=60,
)


@hypothesis.given(LIFETIMES)
def test_results_that_are_alive_together_have_places_of_their_own(lifetimes: list[Lifetime]) -> None:
    places = planned(lifetimes)
    assert len(places.offsets) == len(lifetimes)
    for one, at in zip(lifetimes, places.offsets, strict=True):
        assert at % ALIGNMENT == 0
        assert 0 <= at <= at + one.size <= places.size
    for (one, at), (other, there) in itertools.combinations(zip(lifetimes, places.offsets, strict=True), 2):
        if one.first <= other.last and other.first <= one.last:
            assert at + one.size <= there or there + other.size <= at
    assert places.bound <= places.size


def test_a_chain_needs_two_places() -> None:
    chain = [Lifetime(1000, i, i + 1) for i in range(3000)]
    places = planned(chain)
    assert places.size == places.bound == 2 * 1024


@pytest.mark.full
def test_results_are_in_place_where_that_saves_memory() -> None:
    rng = np.random.default_rng(1)
    graph = tvmdml.Graph()
    x = graph.input((256, 256), name="x")
    y = tvmdml.gemm(x, x)
    for _ in range(20):  # more operators than one kernel takes
        y = tvmdml.exp(y * 0.001)
    compiled = graph.compile([tvmdml.gemm(y, y)])
    array = rng.random((256, 256), np.float32)
    assert compiled.temporary_size == array.nbytes
    expected = array @ array
    for _ in range(20):
        expected = np.exp(expected * np.float32(0.001))
    np.testing.assert_allclose(compiled({"x": array})[0], expected @ expected, rtol=1e-4)


@pytest.mark.full
def test_a_result_is_not_in_place_of_one_that_is_read_later() -> None:
    rng = np.random.default_rng(1)
    graph = tvmdml.Graph()
    x = graph.input((64, 64), name="x")
    first = tvmdml.gemm(x, x)
    values = [first]
    for _ in range(12):
        values.append(tvmdml.cumulative_summation(values[-1], axis=1) * 0.01)
    compiled = graph.compile([tvmdml.gemm(first, values[-1]), tvmdml.gemm(values[3], values[-1])])
    array = rng.random((64, 64), np.float32)
    expected = [array @ array]
    for _ in range(12):
        expected.append(np.cumsum(expected[-1], 1, dtype=np.float32) * np.float32(0.01))
    found = compiled({"x": array})
    np.testing.assert_allclose(found[0], expected[0] @ expected[-1], rtol=1e-3)
    np.testing.assert_allclose(found[1], expected[3] @ expected[-1], rtol=1e-3)
