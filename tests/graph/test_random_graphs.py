"""Random graphs: their results are, bit for bit, those of the same functions on arrays."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import hypothesis
import hypothesis.strategies as st
import numpy as np
import pytest

import tvmdml

SIZES = (1, 2, 3, 8, 17)
UNARY: tuple[Callable[[Any], Any], ...] = (
    tvmdml.abs,
    tvmdml.negate,
    tvmdml.activation_sigmoid,
    tvmdml.activation_relu,
    tvmdml.tanh,
    tvmdml.identity,
    lambda x: tvmdml.sqrt(tvmdml.abs(x)),
    lambda x: tvmdml.clip(x, min=-1.0, max=1.0),
    lambda x: tvmdml.cast(tvmdml.cast(x, "float16"), "float32"),
    lambda x: tvmdml.where(tvmdml.greater_than(x, tvmdml.negate(x)), x, tvmdml.activation_softmax(x, axes=[len(x.shape) - 1])),
    lambda x: tvmdml.multiply(x, 0.5),
    lambda x: tvmdml.add(1.5, x),
)
BINARY: tuple[Callable[[Any, Any], Any], ...] = (tvmdml.add, tvmdml.multiply, tvmdml.subtract, tvmdml.max, tvmdml.min)


@st.composite
def programs(draw: st.DrawFn) -> tuple[list[tuple[int, ...]], list[tuple[Any, ...]]]:
    """The shapes of the inputs, and steps: what each does, and to which earlier values."""
    shapes = draw(st.lists(st.lists(st.sampled_from(SIZES), min_size=1, max_size=3).map(tuple), min_size=1, max_size=3))
    known = list(shapes)
    steps: list[tuple[Any, ...]] = []
    for _ in range(draw(st.integers(5, 60))):
        one = draw(st.integers(max(0, len(known) - 6), len(known) - 1))
        shape = known[one]
        kind = draw(st.sampled_from(("unary", "unary", "binary", "binary", "transpose", "flat", "slice", "reduce", "join", "gemm")))
        if kind == "unary":
            steps.append((kind, one, draw(st.integers(0, len(UNARY) - 1))))
            known.append(shape)
        elif kind == "binary":
            near = [i for i, other in enumerate(known) if _common(shape, other) is not None]
            other = draw(st.sampled_from(near[-6:]))
            steps.append((kind, one, other, draw(st.integers(0, len(BINARY) - 1))))
            known.append(_common(shape, known[other]))  # type: ignore[arg-type]
        elif kind == "transpose":
            order = draw(st.permutations(range(len(shape))))
            steps.append((kind, one, order))
            known.append(tuple(shape[i] for i in order))
        elif kind == "flat":
            steps.append((kind, one))
            known.append((int(np.prod(shape)),))
        elif kind == "slice" and shape[0] > 1:
            start = draw(st.integers(0, shape[0] - 1))
            by = draw(st.integers(1, 2))
            steps.append((kind, one, start, by))
            known.append((len(range(start, shape[0], by)), *shape[1:]))
        elif kind == "reduce":
            axis = draw(st.integers(0, len(shape) - 1))
            steps.append((kind, one, axis, draw(st.sampled_from(("sum", "max")))))
            known.append(tuple(1 if i == axis else n for i, n in enumerate(shape)))
        elif kind == "join" and shape[0] < 100:
            other = draw(st.sampled_from([i for i, near in enumerate(known) if near[1:] == shape[1:] and near[0] < 100][-6:]))
            steps.append((kind, one, other))
            known.append((shape[0] + known[other][0], *shape[1:]))
        elif kind == "gemm" and len(shape) == 2:
            steps.append((kind, one))
            known.append((shape[0], shape[0]))
    hypothesis.assume(steps)
    return shapes, steps


def _common(one: tuple[int, ...], other: tuple[int, ...]) -> tuple[int, ...] | None:
    try:
        found = np.broadcast_shapes(one, other)
    except ValueError:
        return None
    return found if len(found) <= 4 and np.prod(found) < 5000 else None


def run(values: list[Any], steps: list[tuple[Any, ...]]) -> list[Any]:
    """All values of a program, of arrays or of expressions."""
    values = list(values)
    for kind, one, *rest in steps:
        x = values[one]
        match kind:
            case "unary":
                found = UNARY[rest[0]](x)
            case "binary":
                found = BINARY[rest[1]](x, values[rest[0]])
            case "transpose":
                found = x.transpose(rest[0])
            case "flat":
                found = x.reshape(x.size)
            case "slice":
                found = x[rest[0] :: rest[1]]
            case "reduce":
                found = tvmdml.reduce(x, function=rest[1], axes=[rest[0]])
            case "join":
                found = tvmdml.join([x, values[rest[0]]], axis=0)
            case _:
                found = tvmdml.gemm(x, x.transpose(1, 0))
        values.append(found)
    return values


def check(program: tuple[list[tuple[int, ...]], list[tuple[Any, ...]]], target: str, seed: int) -> None:
    shapes, steps = program
    rng = np.random.default_rng(seed)
    given = [rng.standard_normal(shape).astype(np.float32) for shape in shapes]
    right = run(given, steps)
    graph = tvmdml.Graph()
    expressions = run([graph.input(shape) for shape in shapes], steps)
    assert [one.shape for one in expressions] == [one.shape for one in right]
    wanted = sorted({len(right) - 1, *rng.integers(0, len(right), 3).tolist()})
    found = graph.compile([expressions[i] for i in wanted], target=target)(given)
    for i, one in zip(wanted, found, strict=True):
        same = np.array_equal(one, right[i], equal_nan=True)
        assert same if target == "cpu" else np.allclose(one, right[i], rtol=1e-3, atol=1e-3, equal_nan=True), i


@hypothesis.settings(max_examples=25, deadline=None)
@hypothesis.given(programs(), st.integers(0, 1 << 20))
def test_a_random_graph_has_the_bits_of_its_functions(program: Any, seed: int) -> None:
    check(program, "cpu", seed)


@hypothesis.settings(max_examples=2, deadline=None)
@hypothesis.given(program=programs(), seed=st.integers(0, 1 << 20))
@pytest.mark.parametrize("target", ["vulkan", "cuda"])
def test_a_random_graph_runs_on_devices(target: str, program: Any, seed: int) -> None:
    check(program, target, seed)
