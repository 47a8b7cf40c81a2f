"""Random graphs: their results are those of NumPy, and, bit for bit, those of the same functions on arrays."""

from __future__ import annotations

from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import hypothesis
import hypothesis.strategies as st
import numpy as np
import pytest

import tvmdml

SIZES = (1, 2, 3, 8, 17)
NUMPY = SimpleNamespace(
    abs=np.abs,
    negate=np.negative,
    identity=np.copy,
    activation_relu=lambda x: np.maximum(x, np.float32(0)),
    clip=lambda x, **limits: np.clip(x, *map(np.float32, limits.values())),
    cast=lambda x, dtype: x.astype(dtype),
    round=np.round,
    add=lambda a, b: np.add(a, b, dtype=np.float32),
    subtract=np.subtract,
    multiply=lambda a, b: np.multiply(a, b, dtype=np.float32),
    max=np.maximum,
    min=np.minimum,
    reduce=lambda x, function, axes: getattr(np, function)(x, axis=tuple(axes), keepdims=True),
    join=lambda some, axis: np.concatenate(some, axis),
    split=lambda x, axis, output_axis_sizes: np.split(x, np.cumsum(output_axis_sizes)[:-1], axis),
    padding=lambda x, start_padding, end_padding, padding_mode: np.pad(
        x, list(zip(start_padding, end_padding, strict=True)), padding_mode
    ),
    tile=lambda x, repeats: np.tile(x, repeats),
    gather=lambda x, indices, axis: np.take(x, indices, axis),
    top_k=lambda x, k: SimpleNamespace(values=-np.sort(-x, axis=-1)[..., :k]),
    gemm=np.matmul,
)
"""The functions that are exact, in NumPy."""


def small(f: Any, x: Any) -> Any:
    """Small integers: their products and sums are exact in any order."""
    return f.round(f.clip(x, min=-4.0, max=4.0))


Unary = tuple[Callable[[Any, Any], Any], ...]
EXACT: Unary = (
    lambda f, x: f.abs(x),
    lambda f, x: f.negate(x),
    lambda f, x: f.identity(x),
    lambda f, x: f.activation_relu(x),
    lambda f, x: f.clip(x, min=-1.0, max=1.0),
    lambda f, x: f.cast(f.cast(f.clip(x, min=-100.0, max=100.0), "float16"), "float32"),
    lambda f, x: f.multiply(x, 0.5),
    lambda f, x: f.add(1.5, x),
)
UNARY: Unary = (
    *EXACT,
    lambda f, x: f.activation_sigmoid(x),
    lambda f, x: f.tanh(x),
    lambda f, x: f.sqrt(f.abs(x)),
    lambda f, x: f.where(f.greater_than(x, f.negate(x)), x, f.activation_softmax(x, axes=[len(x.shape) - 1])),
)
BINARY: tuple[Callable[[Any, Any, Any], Any], ...] = (
    lambda f, a, b: f.add(a, b),
    lambda f, a, b: f.subtract(a, b),
    lambda f, a, b: f.max(a, b),
    lambda f, a, b: f.min(a, b),
    lambda f, a, b: f.multiply(small(f, a), b),
)
KINDS = (
    *("unary", "unary", "unary", "binary", "binary", "binary", "transpose", "flat", "slice", "reduce", "join", "gemm"),
    *("split", "padding", "tile", "gather", "top_k"),
)
MOST = 5000
"""Elements."""

Program = tuple[list[tuple[int, ...]], list[tuple[Any, ...]]]


@st.composite
def programs(draw: st.DrawFn, unary: Unary) -> Program:
    """The shapes of the inputs, and steps: what each does, and to which earlier values."""
    shapes = draw(st.lists(st.lists(st.sampled_from(SIZES), min_size=1, max_size=3).map(tuple), min_size=1, max_size=3))
    known = list(shapes)
    steps: list[tuple[Any, ...]] = []
    for _ in range(draw(st.integers(5, 60))):
        one = draw(st.integers(max(0, len(known) - 6), len(known) - 1))
        shape, kind = known[one], draw(st.sampled_from(KINDS))
        first, *rest = shape
        more: tuple[Any, ...] = ()
        made = [shape]
        if kind == "unary":
            more = (draw(st.integers(0, len(unary) - 1)),)
        elif kind == "binary":
            other = draw(st.sampled_from([i for i, other in enumerate(known) if _common(shape, other) is not None][-6:]))
            more = (other, draw(st.integers(0, len(BINARY) - 1)))
            made = [_common(shape, known[other]) or shape]
        elif kind == "transpose":
            more = (draw(st.permutations(range(len(shape)))),)
            made = [tuple(shape[i] for i in more[0])]
        elif kind == "flat":
            made = [(int(np.prod(shape)),)]
        elif kind == "slice":
            more = (slice(draw(st.integers(0, first - 1)), None, draw(st.integers(1, 2))),)
            made = [(len(range(first)[more[0]]), *rest)]
        elif kind == "reduce":
            more = (draw(st.integers(0, len(shape) - 1)), draw(st.sampled_from(("sum", "max"))))
            made = [tuple(1 if i == more[0] else n for i, n in enumerate(shape))]
        elif kind == "split":
            more = (draw(st.integers(1, first - 1)),) if first > 1 else (0,)
            made = [(more[0], *rest), (first - more[0], *rest)] if more[0] else [shape]
        elif kind == "padding":
            more = (draw(st.integers(0, 2)), draw(st.sampled_from(("constant", "edge"))))
            made = [(first + more[0] + 1, *rest)]
        elif kind == "gather":
            more = (draw(st.lists(st.integers(0, first - 1), min_size=1, max_size=9)),)
            made = [(len(more[0]), *rest)]
        elif kind == "join":
            more = (draw(st.sampled_from([i for i, near in enumerate(known) if near[1:] == shape[1:]][-6:])),)
            made = [(first + known[more[0]][0], *rest)]
        elif kind == "tile":
            made = [(2 * first, *rest)]
        elif kind == "top_k":
            more = (draw(st.integers(1, shape[-1])),)
            made = [(*shape[:-1], more[0])]
        elif kind == "gemm":
            made = [(first, first)] if len(shape) == 2 else [shape]
        if all(np.prod(some) < MOST for some in made):
            steps.append((kind, one, *more))
            known += made
    hypothesis.assume(steps)
    return shapes, steps


def _common(one: tuple[int, ...], other: tuple[int, ...]) -> tuple[int, ...] | None:
    try:
        found = np.broadcast_shapes(one, other)
    except ValueError:
        return None
    return found if len(found) <= 4 and np.prod(found) < MOST else None


def run(f: Any, values: list[Any], steps: list[tuple[Any, ...]]) -> list[Any]:
    """All values of a program, of arrays or of expressions, by functions of tvmdml or of NumPy."""
    values = list(values)
    for kind, one, *rest in steps:
        x = values[one]
        zeros = [0] * (len(x.shape) - 1)
        match kind:
            case "unary":
                values.append(UNARY[rest[0]](f, x))
            case "binary":
                values.append(BINARY[rest[1]](f, x, values[rest[0]]))
            case "transpose":
                values.append(x.transpose(rest[0]))
            case "flat":
                values.append(x.reshape(x.size))
            case "slice":
                values.append(x[rest[0]])
            case "reduce":
                values.append(f.reduce(small(f, x) if rest[1] == "sum" else x, function=rest[1], axes=[rest[0]]))
            case "join":
                values.append(f.join([x, values[rest[0]]], axis=0))
            case "split":
                parts = [rest[0], x.shape[0] - rest[0]]
                values += f.split(x, axis=0, output_axis_sizes=parts) if rest[0] else [x]
            case "padding":
                pads = {"start_padding": [rest[0], *zeros], "end_padding": [1, *zeros]}
                values.append(f.padding(x, **pads, padding_mode=rest[1]))
            case "tile":
                values.append(f.tile(x, repeats=[2, *(1 for _ in zeros)]))
            case "gather":
                values.append(f.gather(x, np.array(rest[0], np.int32), axis=0))
            case "top_k":
                values.append(f.top_k(x, k=rest[0]).values)
            case _:
                y = small(f, x)
                values.append(f.gemm(y, y.transpose(1, 0)) if len(x.shape) == 2 else x)
    return values


def check(program: Program, target: str, seed: int, f: Any = tvmdml) -> None:
    """The graph's results, some of them inputs or views, and some twice, are those of functions."""
    shapes, steps = program
    rng = np.random.default_rng(seed)
    given = [rng.standard_normal(shape).round(2).astype(np.float32) for shape in shapes]
    right = run(f, given, steps)
    graph = tvmdml.Graph()
    expressions = run(tvmdml, [graph.input(shape) for shape in shapes], steps)
    assert [one.shape for one in expressions] == [one.shape for one in right]
    wanted = [len(right) - 1, *rng.integers(0, len(right), 4).tolist()]
    wanted.append(wanted[int(rng.integers(0, len(wanted)))])
    found = graph.compile([expressions[i] for i in wanted], target=target)(given)
    for i, one in zip(wanted, found, strict=True):
        same = np.array_equal(one, right[i], equal_nan=True)
        assert same if target == "cpu" else np.allclose(one, right[i], rtol=1e-3, atol=1e-3, equal_nan=True), i


@pytest.mark.full
@hypothesis.settings(max_examples=6, deadline=None)
@hypothesis.given(programs(EXACT), st.integers(0, 1 << 20))
def test_a_random_graph_has_the_bits_of_numpy(program: Any, seed: int) -> None:
    check(program, "cpu", seed, NUMPY)


@pytest.mark.full
@hypothesis.settings(max_examples=6, deadline=None)
@hypothesis.given(programs(UNARY), st.integers(0, 1 << 20))
def test_a_random_graph_has_the_bits_of_its_functions(program: Any, seed: int) -> None:
    check(program, "cpu", seed)


@pytest.mark.full
@hypothesis.settings(max_examples=2, deadline=None)
@hypothesis.given(program=programs(EXACT), seed=st.integers(0, 1 << 20))
@pytest.mark.parametrize("target", ["vulkan", "cuda"])
def test_a_random_graph_runs_on_devices(target: str, program: Any, seed: int) -> None:
    check(program, target, seed, NUMPY)
