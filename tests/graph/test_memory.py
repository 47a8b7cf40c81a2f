"""The plan of memory: no two results that are alive at the same time meet, and little is wasted."""

from __future__ import annotations

import itertools

import hypothesis
import hypothesis.strategies as st

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
