"""Chains of pointwise operators in graphs become one kernel, and give the same bits."""

from __future__ import annotations

import random
from typing import Any

import hypothesis.strategies as st
import numpy as np
import pytest
from hypothesis import given

import tvmdml
from tvmdml.graph import passes
from tvmdml.targets import Target

RNG = np.random.default_rng(7)


def array(*shape: int) -> Any:
    return RNG.standard_normal(shape).astype(np.float32)


def both(graph: tvmdml.Graph, outputs: list[Any], given: dict[str, Any], target: str = "cpu") -> tvmdml.CompiledGraph:
    """The graph with this pass, whose results have the bits of those without."""
    compiled = graph.compile(outputs, target)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(passes, "PASSES", tuple(one for one in passes.PASSES if one[1] is not passes.chains.run))
        plain = graph.compile(outputs, target)
    for one, other in zip(compiled(given), plain(given), strict=True):
        assert one.dtype == other.dtype
        assert one.shape == other.shape
        assert np.array_equal(one, other, equal_nan=one.dtype.kind == "f")
    return compiled


@pytest.mark.full
def test_a_chain_is_one_kernel(target: Target) -> None:
    graph = tvmdml.Graph()
    x, row = graph.input((20, 30), name="x"), graph.input((30,), name="row")
    y = tvmdml.activation_leaky_relu((x + row) * 2 - 1, alpha=0.3)
    z = tvmdml.where(tvmdml.greater_than(y, x), y, tvmdml.exp(x))
    compiled = both(graph, [z], {"x": array(20, 30), "row": array(30)}, target.name)
    assert compiled.kernel_count == 1
    assert "of FUSED_POINTWISE, with 6 others" in str(compiled.explain())


@pytest.mark.full
def test_what_others_read_is_written_too() -> None:
    graph = tvmdml.Graph()
    x = graph.input((20, 30), name="x")
    y = x * x + 1
    best = tvmdml.top_k(y, 3).values
    z = tvmdml.activation_relu(y - x)
    compiled = both(graph, [best, z, y * 2], {"x": array(20, 30)})
    assert compiled.kernel_count == 2


def test_a_call_between_members_keeps_them_apart() -> None:
    """The sum needs the reduction, and that the product: they cannot be one kernel."""
    graph = tvmdml.Graph()
    x = graph.input((20, 30), name="x")
    y = tvmdml.exp(x * 0.5)
    total = tvmdml.reduce(y, function="sum", axes=[1])
    z = y / total
    compiled = both(graph, [z, -z], {"x": array(20, 30)})
    assert compiled.kernel_count == 3


def test_a_result_that_is_read_otherwise_than_it_was_written() -> None:
    graph = tvmdml.Graph()
    x = graph.input((30, 30), name="x")
    y = x * 2
    compiled = both(graph, [y + y.T, (x + 1)[1:] * x[:-1]], {"x": array(30, 30)})
    assert compiled.kernel_count == 4


def test_sizes_that_differ_are_groups_of_their_own() -> None:
    graph = tvmdml.Graph()
    x, scale = graph.input((20, 30), name="x"), graph.input((1, 30), name="scale")
    compiled = both(graph, [tvmdml.exp(x * (scale * 2 + 1))], {"x": array(20, 30), "scale": array(1, 30)})
    assert compiled.kernel_count == 2


@pytest.mark.full
def test_long_chains_are_several_kernels() -> None:
    graph = tvmdml.Graph()
    x = y = graph.input((20, 30), name="x")
    for i in range(40):
        y = tvmdml.activation_relu(y + x) if i % 2 else y * 0.9
    compiled = both(graph, [y], {"x": array(20, 30)})
    assert 3 <= compiled.kernel_count <= 5


def test_one_input_that_lies_badly_does_not_slow_others_down() -> None:
    """An input of every second element is read one by one; the functions after it are not."""
    graph = tvmdml.Graph()
    x = graph.input((40, 64), name="x")
    y = tvmdml.tanh(tvmdml.exp(x[:, ::2] + 1))
    assert both(graph, [y], {"x": array(40, 64)}).kernel_count == 2


@pytest.mark.full
@given(st.integers(0, 2**32))
def test_any_graph_gives_the_same_bits(seed: int) -> None:
    rng = random.Random(seed)
    graph = tvmdml.Graph()
    given = {"a": array(6, 10), "b": array(6, 10), "c": array(10), "d": array(6, 1)}
    known: list[Any] = [graph.input(one.shape, name=name) for name, one in given.items()]
    full = known[:2]
    for _ in range(rng.randint(3, 20)):
        a, b = rng.choice(full[-6:]), rng.choice([*known[2:], *full])
        kind = rng.randrange(9)
        if kind < 4:
            full.append((a + b, a * b, a - b, tvmdml.max(a, b))[kind])
        elif kind < 6:
            full.append((tvmdml.activation_relu(a), tvmdml.abs(a))[kind - 4])
        elif kind == 6:
            full.append(tvmdml.where(tvmdml.greater_than(a, b), a, b))
        elif kind == 7:
            full.append(a - tvmdml.reduce(a, function="max", axes=[1]))
        else:
            full.append(-a)
    outputs = rng.sample(full[2:], min(3, len(full) - 2))
    both(graph, outputs, given)
