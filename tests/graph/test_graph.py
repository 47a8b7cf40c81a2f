"""Graphs: what functions record is what they compute."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

import tvmdml


@pytest.mark.full
def test_a_graph_gives_what_its_functions_give_one_by_one() -> None:
    graph = tvmdml.Graph()
    x = graph.input((1, 3, 16, 16), name="x")
    weights = np.random.default_rng(1).standard_normal((8, 3, 3, 3)).astype(np.float32)
    y = tvmdml.convolution(x, graph.constant(weights), start_padding=[1, 1], end_padding=[1, 1])
    z = tvmdml.activation_relu(y) * 2 + y
    table = z.transpose(0, 2, 3, 1).reshape(256, 8)
    best = tvmdml.top_k(table[:, 0], 5)
    folded = graph.constant(np.ones(3, np.float32)) * 2
    compiled = graph.compile([z, table, x, best.values, best.indices, folded, z])

    given = np.random.default_rng(2).standard_normal((1, 3, 16, 16)).astype(np.float32)
    found = compiled({"x": given})
    convolved = tvmdml.convolution(given, weights, start_padding=[1, 1], end_padding=[1, 1])
    right = tvmdml.add(tvmdml.multiply(tvmdml.activation_relu(convolved), 2), convolved)
    rows = np.ascontiguousarray(right.transpose(0, 2, 3, 1)).reshape(256, 8)
    values, indices = tvmdml.top_k(rows[:, 0], 5)
    for one, other in zip(found, (right, rows, given, values, indices, np.full(3, 2, np.float32), right), strict=True):
        assert one.dtype == other.dtype
        assert np.array_equal(one, other)
    assert all(np.array_equal(one, other) for one, other in zip(compiled([given]), found, strict=True))
    assert all(np.array_equal(one, other) for one, other in zip(compiled({x: given}), found, strict=True))


def test_inputs_that_do_not_fit_are_refused() -> None:
    graph = tvmdml.Graph()
    compiled = graph.compile(-graph.input((2, 3), name="x"))
    for given, said in (
        ({}, r"no x; allowed: float32\[2, 3\]"),
        ({"y": np.zeros((2, 3), np.float32)}, "'y'; allowed: x"),
        ({"x": np.zeros((3, 2), np.float32)}, r"float32\[3, 2\]; allowed: float32\[2, 3\]"),
        ({"x": np.zeros((2, 3))}, "float64"),
        ([], "0 arrays; allowed: 1: x"),
        (np.zeros((1, 2, 3), np.float32), "one array; allowed: a mapping by name, or a sequence.* list"),
    ):
        with pytest.raises(tvmdml.InvalidArgument, match=said):
            compiled(given)  # type: ignore[arg-type]


def test_what_is_not_a_sequence_of_outputs_or_compiled_is_refused(tmp_path: Path) -> None:
    graph = tvmdml.Graph()
    x = graph.input((2,))
    with pytest.raises(tvmdml.InvalidArgument, match=r"outputs: .* sequence of expressions"):
        graph.compile({"y": -x})  # type: ignore[arg-type]
    with pytest.raises(tvmdml.InvalidArgument, match=r"compiled: .* Graph.compile returns"):
        tvmdml.save_graph(graph, tmp_path / "x.graph")  # type: ignore[arg-type]


def test_arrays_leave_arithmetic_to_expressions() -> None:
    graph = tvmdml.Graph()
    x = graph.input((3, 2))
    sums = [np.full((3, 2), 2, np.float32) + x, np.float32(2) + x]
    assert all(isinstance(one, tvmdml.Expression) for one in sums)
    for found in graph.compile(sums)([np.ones((3, 2), np.float32)]):
        assert np.array_equal(found, np.full((3, 2), 3))
    with pytest.raises(TypeError, match="no value"):
        np.asarray(x)


@pytest.mark.full
def test_an_expression_has_pythons_operators() -> None:
    """But ``==``, which is identity: expressions are keys."""
    graph = tvmdml.Graph()
    x, y = graph.input((4,), name="x"), graph.input((4,), name="y")
    results = [x**2, x**y, abs(x), x < y, x <= y, x > y, x >= y, x < 1, np.ones(4, np.float32) <= x]
    given = {"x": np.array([-1, 0, 2, 3], np.float32), "y": np.array([2, 0, 1, 3], np.float32)}
    a, b = given.values()
    right = [a**2, a**b, abs(a), a < b, a <= b, a > b, a >= b, a < 1, a >= 1]
    for found, wanted in zip(graph.compile(results)(given), right, strict=True):
        assert np.array_equal(found, wanted)
        assert found.dtype == (np.uint8 if wanted.dtype == bool else np.float32)
    assert (x == y) is False
    with pytest.raises(AttributeError, match=r"no attribute 'sizes'. Did you mean 'shape'"):
        x.sizes  # noqa: B018


@pytest.mark.parametrize(
    "key", [np.array([1, 2]), (np.array([1, 2]), 0), np.ones((5, 5), bool), True, slice("a", None), slice(0, 9, 0)]
)
def test_an_index_that_is_no_view_is_refused(key: object) -> None:
    with pytest.raises(tvmdml.InvalidArgument, match="index"):
        tvmdml.Graph().input((5, 5))[key]


def test_views_of_nothing_are_views() -> None:
    graph = tvmdml.Graph()
    x = graph.input((0, 5))
    (found,) = graph.compile(x[:, 3] + 1)([np.zeros((0, 5), np.float32)])
    assert found.shape == (0,)


def test_what_is_no_sequence_is_refused() -> None:
    graph = tvmdml.Graph()
    x = graph.input((2,))
    compiled = graph.compile(x + graph.input((2,)))
    some = np.ones(2, np.float32)
    for wrong in (
        lambda: graph.input(5),  # type: ignore[arg-type]
        lambda: graph.compile(None),  # type: ignore[arg-type]
        lambda: x.reinterpret((2,), offset=0.5),  # type: ignore[arg-type]
        lambda: compiled(5),  # type: ignore[arg-type]
        lambda: compiled({"": some}),
        lambda: compiled.bind([some, some], None),  # type: ignore[arg-type]
    ):
        with pytest.raises(tvmdml.InvalidArgument):
            wrong()


def test_descriptors_are_nodes() -> None:
    graph = tvmdml.Graph()
    x, bytes_ = graph.input((4, 3), name="x"), graph.input((20,), "uint8")
    owned = tvmdml.TensorDesc("float32", (3, 2), flags="OWNED_BY_DML")
    desc = tvmdml.Gemm.of(tvmdml.TensorDesc("float32", (4, 3)), owned)
    weights = np.arange(6, dtype=np.float32).reshape(3, 2)
    (y,) = graph.add(desc, [x, graph.constant(weights), None])
    ones = np.ones((4, 3), np.float32)
    (z,) = graph.add(desc, [graph.constant(ones), graph.constant(weights), None])
    found = graph.compile([y, z])({"x": ones}) if y is not None and z is not None else []
    assert all(np.array_equal(one, ones @ weights) for one in found)
    negative = tvmdml.ElementWiseNegate.of(tvmdml.TensorDesc("float32", (4,)))
    with pytest.raises(tvmdml.InvalidArgument, match="a multiple of 4 bytes"):
        graph.add(negative, [bytes_[1:17]])
    with pytest.raises(tvmdml.InvalidArgument, match="an owned input or a constant"):
        graph.add(desc, [x, x[:2].reshape(6), None])


def test_known_arrays_of_owned_inputs_are_constants() -> None:
    graph = tvmdml.Graph()
    x, w = graph.input((2, 2), name="x"), graph.input((2, 2), owned=True, name="w")
    given, known = np.arange(4, dtype=np.float32).reshape(2, 2), np.full((2, 2), 3, np.float32)
    compiled = graph.compile([x - tvmdml.sqrt(w * w)], known={w: known})
    assert (compiled.initialized, compiled.kernel_count) == (True, 1)
    assert np.array_equal(compiled({"x": given})[0], given - 3)
    assert not graph.compile([x + w]).initialized  # the graph itself stays as it is
    strided = graph.input((2, 2), strides=(1, 2), owned=True)
    for wrong, array in (
        (x, known),
        (w.T[1:], known[1:]),
        (w, known[:1]),
        (w, known.astype(np.int32)),
        (strided, known),
        ("w", known),
    ):
        with pytest.raises(tvmdml.errors.InvalidArgument, match=r"Graph\.compile known"):
            graph.compile([x - w], known={wrong: array})
