"""A program as a function of a size: numbers are polynomials, and everything else is the same."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import tvmdml
from tvmdml.graph.building import finished
from tvmdml.graph.by_size import BySize, Described, Differs, Number
from tvmdml.graph.compiled import CompiledGraph
from tvmdml.graph.laying import laid_out
from tvmdml.graph.program import Finished
from tvmdml.targets import resolve

SIZES = st.lists(st.integers(2, 1 << 20), min_size=4, max_size=6, unique=True)
FACTORS = st.integers(-(1 << 40), 1 << 40)


@given(SIZES, FACTORS, FACTORS, FACTORS)
def test_numbers(sizes: list[int], square: int, linear: int, fixed: int) -> None:
    """A polynomial is found from three values and gives all others; a value that is another is refused."""
    values = [square * n * n + linear * n + fixed for n in sizes]
    found = Number.through(sizes, values)
    assert [found.at(n) for n in (3, *sizes)] == [square * 9 + linear * 3 + fixed, *values]
    with pytest.raises(Differs):
        Number.through(sizes, [*values[:-1], values[-1] + 1])


def test_values_that_differ_by_more_than_numbers() -> None:
    """Floats, types and lengths are compared by their bits: they must be the same."""
    assert Described.through([2, 3, 4], [("a", (n, n * n)) for n in (2, 3, 4)]).at(10) == ("a", (10, 100))
    for several in ([(0.0,), (0.0,), (-0.0,)], [(1,), (1,), (True,)], [(1,), (1, 1), (1, 1)], [("a",), ("a",), ("b",)]):
        with pytest.raises(Differs):
            Described.through([2, 3, 4], several)


def attention(n: int, scale: float = 0.5, more: bool = False) -> tuple[Finished, tvmdml.CompiledGraph]:
    graph = tvmdml.Graph()
    x = graph.input((n, 8), name="x")
    weights = graph.constant(np.arange(64, dtype=np.float32).reshape(8, 8) / 64)
    scores = tvmdml.gemm(x @ weights, x, trans_b="transpose") * scale
    y = tvmdml.activation_softmax(scores) @ x
    results = [tvmdml.cumulative_summation(y, axis=0) if more else y, x[1:].reshape(8, n - 1)]
    return finished(graph, results, resolve("cpu")), graph.compile(results)


@pytest.mark.full
def test_a_program_for_another_size() -> None:
    """It gives the bits of the graph that is recorded for the size."""
    found = BySize.through({n: attention(n)[0] for n in (5, 6, 7)})
    assert found.wanted == ()
    for n in (5, 9, 40):
        x = np.random.default_rng(n).standard_normal((n, 8), np.float32)
        made = CompiledGraph(laid_out(found.at(n, ()), resolve("cpu")), resolve("cpu"))
        for one, other in zip(made({"x": x}), attention(n)[1]({"x": x}), strict=True):
            assert one.shape == other.shape
            assert np.array_equal(one.view(np.uint32), other.view(np.uint32)), n


@pytest.mark.full
def test_programs_that_are_no_function() -> None:
    """Another number of calls, another attribute, another constant."""
    for other in (attention(7, 0.25)[0], attention(7, more=True)[0]):
        with pytest.raises(Differs):
            BySize.through({5: attention(5)[0], 6: attention(6)[0], 7: other})
