"""Choices between whole tensors: what the other side depends on is not computed, and every result stays what it was."""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import hypothesis
import hypothesis.strategies as st
import numpy as np
import pytest

import tvmdml
from tvmdml.graph import conditional
from tvmdml.targets import Target, cpu

SHAPE = (4, 16)
RNG = np.random.default_rng(5)
WEIGHTS = RNG.integers(-1, 2, (16, 16)).astype(np.float32)
Expression = Any


def summed(x: Any) -> Any:
    """A kernel of its own, which is exact here."""
    return tvmdml.cumulative_summation(x, axis=1)


def mixed(x: Any) -> Any:
    """Another one."""
    return small(tvmdml.gemm(x, WEIGHTS))


def small(x: Any) -> Any:
    return tvmdml.clip(x, min=-9.0, max=9.0)


def holds(x: Any, row: int = 0) -> Any:
    """A condition: a kernel of its own says whether the largest element of a row is above 2."""
    return tvmdml.greater_than(tvmdml.reduce(x[row : row + 1], function="max", axes=[1]), 2.0)


def nested(a: Any, b: Any, c: Any) -> list[Any]:
    inner = tvmdml.where(holds(mixed(b)), summed(mixed(a)), mixed(summed(b)))
    return [summed(tvmdml.where(c, inner, summed(summed(a))))]


def shared(a: Any, b: Any, c: Any) -> list[Any]:
    """What both sides need, or what is a result, is always computed."""
    both, one = mixed(a), summed(b)
    chosen = tvmdml.where(c, summed(both), mixed(mixed(both)))
    return [tvmdml.where(c, summed(one), mixed(chosen)), one]


def joined(a: Any, b: Any, c: Any) -> list[Any]:
    always = summed(a)
    left = tvmdml.join([always, mixed(b)], axis=0)
    return [tvmdml.where(c, left, tvmdml.join([summed(b), mixed(summed(b))], axis=0)), summed(always)]


def twice(a: Any, b: Any, c: Any) -> list[Any]:
    """A side that two choices have, with conditions that are each other's contrary."""
    one, other = summed(a), mixed(b)
    return [tvmdml.where(c, one, other), tvmdml.where(tvmdml.logical_not(c), one, other)]


CASES: dict[str, tuple[Callable[[Any, Any, Any], Sequence[Any]], tuple[int, int]]] = {
    "each side has kernels": (lambda a, b, c: [tvmdml.where(c, summed(a), mixed(mixed(b)))], (2, 1)),
    "followed": (lambda a, b, c: [tvmdml.tanh(tvmdml.where(c, summed(a), mixed(mixed(b))))], (2, 1)),
    "one side is an input": (lambda a, b, c: [tvmdml.where(c, summed(a), b)], (0, 1)),
    "one side is a number": (lambda a, b, c: [summed(tvmdml.where(c, 1.0, summed(mixed(a))))], (2, 0)),
    "a side is a view": (lambda a, b, c: [tvmdml.where(c, summed(a)[1:3], mixed(summed(b))[::2])], (2, 1)),
    "two results": (lambda a, b, c: [tvmdml.where(c, summed(a), mixed(b)), tvmdml.where(c, mixed(a), summed(b))], (2, 2)),
    "the condition is computed late": (lambda a, b, c: [tvmdml.where(holds(summed(b), 1), summed(a), mixed(mixed(a)))], (1, 1)),
    "nested": (nested, (4, 7)),
    "shared": (shared, (5, 2)),
    "joined": (joined, (2, 2)),
    "twice": (twice, (0, 0)),
    "pointwise": (lambda a, b, c: [tvmdml.where(c, tvmdml.abs(a), tvmdml.negate(b)) + 1.0], (0, 0)),
    "the same condition inside": (lambda a, b, c: [tvmdml.where(c, tvmdml.where(c, summed(a), mixed(b)), mixed(a))], (2, 2)),
}
"""Expressions of two tensors and a condition, and how many kernels are left out if it holds, and if not."""


def inputs(graph: tvmdml.Graph) -> tuple[Expression, Expression, Expression]:
    return graph.input(SHAPE, name="a"), graph.input(SHAPE, name="b"), graph.input((1, 1), "uint8", name="c")


def given(condition: int) -> dict[str, Any]:
    a, b = (np.random.default_rng(i).integers(-3, 4, SHAPE).astype(np.float32) for i in (1, 2))
    return {"a": a, "b": b, "c": np.array([[condition]], np.uint8)}


def poison(compiled: tvmdml.CompiledGraph) -> None:
    """Let intermediate memory be NaNs: nothing of it may come into a result."""
    for arena in compiled._arenas:
        arena[:] = 0xFF


@pytest.mark.full(first=1)
@pytest.mark.parametrize("name", CASES)
def test_only_the_chosen_side_is_computed(name: str, target: Target) -> None:
    make, skipped = CASES[name]
    graph = tvmdml.Graph()
    compiled = graph.compile(make(*inputs(graph)), target=target)
    for condition in (1, 0, 255, 0, 1):
        feeds = given(condition)
        right = make(feeds["a"], feeds["b"], feeds["c"])
        for found in (compiled(feeds), compiled(feeds)):
            if not target.moves:
                poison(compiled)
            for one, other in zip(found, right, strict=True):
                assert np.array_equal(one, other)
        times = compiled.profile(feeds)
        assert sum(one.skipped for one in times) == (skipped[not condition] if conditional.are_skipped(target.kind) else 0)
        assert all(one.nanoseconds == 0 for one in times if one.skipped)


def test_sides_are_written_where_the_result_is() -> None:
    graph = tvmdml.Graph()
    a, b, c = inputs(graph)
    compiled = graph.compile([tvmdml.where(c, summed(a), mixed(b))])
    assert compiled.kernel_count == 2
    assert compiled.temporary_size == 0
    assert "is not 0" in str(compiled.explain())


@pytest.mark.full
def test_a_bound_run_reads_the_condition_each_time() -> None:
    graph = tvmdml.Graph()
    compiled = graph.compile(nested(*inputs(graph)))
    feeds, result = given(1), np.empty(SHAPE, np.float32)
    run = compiled.bind(feeds, [result])
    for condition in (1, 0, 1):
        feeds["c"][:] = condition
        run()
        assert np.array_equal(result, nested(feeds["a"], feeds["b"], feeds["c"])[0])


def test_python_runs_it_without_the_extension(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(cpu.threads, "connected", lambda: None)
    test_only_the_chosen_side_is_computed("nested", tvmdml.targets.resolve("cpu"))
    test_a_bound_run_reads_the_condition_each_time()


def test_a_saved_graph_leaves_out_the_same(tmp_path: Path) -> None:
    graph = tvmdml.Graph()
    compiled = graph.compile(nested(*inputs(graph)))
    tvmdml.save_graph(compiled, tmp_path / "chosen.graph")
    again = tvmdml.load_graph(tmp_path / "chosen.graph")
    for condition in (1, 0):
        feeds = given(condition)
        assert np.array_equal(again(feeds)[0], compiled(feeds)[0])
        assert [one.skipped for one in again.profile(feeds)] == [one.skipped for one in compiled.profile(feeds)]


def test_a_trace_says_what_was_left_out(tmp_path: Path) -> None:
    graph = tvmdml.Graph()
    a, b, c = inputs(graph)
    graph.compile([tvmdml.where(c, summed(a), mixed(b))]).trace(given(1), tmp_path / "trace.json")
    events = json.loads((tmp_path / "trace.json").read_text())["traceEvents"]
    assert [("skipped" in one["args"], one["dur"] > 0) for one in events] == [(False, True), (True, False)]


UNARY = (summed, mixed, lambda x: tvmdml.activation_relu(x), lambda x: tvmdml.negate(x), lambda x: x + 1.0)
BINARY = (lambda x, y: small(x + y), lambda x, y: small(tvmdml.join([x, y], axis=0)[2:6]), tvmdml.max)
Program = list[tuple[Any, ...]]


@st.composite
def programs(draw: st.DrawFn) -> Program:
    """Steps on earlier values, the last ones above all: many are choices, by an input or by a value."""
    steps: Program = []
    for count in range(2, draw(st.integers(6, 26))):

        def near(count: int = count) -> int:
            return draw(st.integers(max(0, count - 4), count - 1))

        kind = draw(st.sampled_from(("unary", "unary", "unary", "binary", "choice", "choice")))
        if kind == "unary":
            steps.append((kind, near(), draw(st.integers(0, len(UNARY) - 1))))
        elif kind == "binary":
            steps.append((kind, near(), near(), draw(st.integers(0, len(BINARY) - 1))))
        else:
            condition = draw(st.one_of(st.none(), st.integers(0, count - 1)))
            steps.append((kind, near(), near(), condition, draw(st.integers(0, 3))))
    return steps


def run(steps: Program, a: Any, b: Any, c: Any) -> list[Any]:
    values = [a, b]
    for kind, one, *rest in steps:
        if kind == "unary":
            values.append(small(UNARY[rest[0]](values[one])))
        elif kind == "binary":
            values.append(BINARY[rest[1]](values[one], values[rest[0]]))
        else:
            condition = c if rest[1] is None else holds(values[rest[1]], rest[2])
            values.append(tvmdml.where(condition, values[one], values[rest[0]]))
    return values


@pytest.mark.full
@hypothesis.given(programs(), st.integers(0, 1 << 30))
@hypothesis.settings(max_examples=60, deadline=None)
def test_random_choices(steps: Program, seed: int) -> None:
    rng = np.random.default_rng(seed)
    graph = tvmdml.Graph()
    expressions = run(steps, *inputs(graph))
    wanted = [len(expressions) - 1, *rng.integers(2, len(expressions), int(rng.integers(0, 2))).tolist()]
    compiled = graph.compile([expressions[i] for i in wanted])
    for condition in (1, 0, 1):
        feeds = {"a": rng.integers(-3, 4, SHAPE), "b": rng.integers(-3, 4, SHAPE)}
        every = {name: one.astype(np.float32) for name, one in feeds.items()} | {"c": np.array([[condition]], np.uint8)}
        right = run(steps, every["a"], every["b"], every["c"])
        found = compiled(every)
        poison(compiled)
        for i, one in zip(wanted, found, strict=True):
            assert np.array_equal(one, right[i]), i
