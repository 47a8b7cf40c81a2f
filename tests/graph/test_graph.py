"""Graphs: what functions record is what they compute."""

from __future__ import annotations

import numpy as np
import pytest

import tvmdml


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
    ):
        with pytest.raises(tvmdml.InvalidArgument, match=said):
            compiled(given)  # type: ignore[arg-type]
