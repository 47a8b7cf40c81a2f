"""Loops whose rounds a run counts."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

onnx: Any = pytest.importorskip("onnx", reason="ONNX is not installed")

from onnx import helper, numpy_helper  # noqa: E402
from onnx_nodes import BOOL, FLOAT, INT64, N, info, model  # noqa: E402 - they need ONNX

import tvmdml  # noqa: E402
import tvmdml.onnx  # noqa: E402 - it needs ONNX

BF16 = onnx.TensorProto.BFLOAT16


def loop(*nodes: Any, states: Any, wanted: Any, most: str = "", **weights: Any) -> Any:
    """A model of one Loop: ``states`` are names and types before and after a round, ``wanted`` the outputs."""
    taken = [info("i", [], INT64), info("on", [], BOOL), *(info(f"{name}_in", None, kind) for name, kind in states)]
    made = [info("goes_on", [], BOOL), *(info(f"{name}_out", None, kind) for name, kind in states)]
    body = helper.make_graph(nodes, "body", taken, [*made, *(info(name, None, kind) for name, kind in wanted)])
    outputs = [*(f"{name}_last" for name, _ in states), *(f"{name}_all" for name, _ in wanted)]
    whole = N("Loop", [most, "", *(name for name, _ in states)], outputs, body=body)
    inputs = [info(name, None, kind) for name, kind in states] + ([info(most, [], INT64)] if most else [])
    kinds = [*states, *wanted]
    results = [info(name, None, kind) for name, (_, kind) in zip(outputs, kinds, strict=True)]
    return tvmdml.onnx.load(model([whole], inputs, results, weights, ir_version=10))


def test_states_of_types_that_directml_has_not_are_rounded_each_round() -> None:
    """And the tensor that a round reads of the graph around it, the stacked results, and what reads them afterwards."""
    nodes = [N("Mul", ["v_in", "w"], ["v_out"]), N("Identity", ["on"], ["goes_on"])]
    weight = helper.make_tensor("w", BF16, [3], [1.7, 0.3, 1.1])
    taken = [info("i", [], INT64), info("on", [], BOOL), info("v_in", None, BF16)]
    body = helper.make_graph(nodes, "body", taken, [info("goes_on", [], BOOL), *[info("v_out", None, BF16)] * 2])
    whole = [N("Loop", ["m", "", "v"], ["last", "all"], body=body), N("Size", ["all"], ["n"]), N("Mul", ["last", "last"], ["y"])]
    results = [info("last", None, BF16), info("all", None, BF16), info("y", None, BF16), info("n", [], INT64)]
    made = model(whole, [info("m", [], INT64), info("v", [3], BF16)], results, {}, ir_version=10)
    made.graph.initializer.append(weight)
    loaded = tvmdml.onnx.load(made)
    factor = numpy_helper.to_array(weight)
    for rounds in (3, 0, 1, 9):
        v = np.array([1.3, 2.6, 3.9]).astype(factor.dtype)
        right = [v]
        for _ in range(rounds):
            right.append(right[-1] * factor)
        last, every, square, count = loaded(v=v, m=np.array(rounds))
        assert (last.dtype, every.dtype, every.shape, count) == (v.dtype, v.dtype, (rounds, 3), 3 * rounds)
        for found, wanted in ((last, right[-1]), (every, np.array(right[1:]).reshape(-1, 3)), (square, right[-1] * right[-1])):
            assert np.array_equal(found.astype(np.float32), wanted.astype(np.float32))


FAILING = {
    "its condition has 0 elements": ([N("Less", ["v_in", "ten"], ["goes_on"]), N("Neg", ["v_in"], ["v_out"])], 0, 3),
    "its number of rounds has 2 elements": ([N("Identity", ["on"], ["goes_on"]), N("Neg", ["v_in"], ["v_out"])], 3, [3, 3]),
    r"sizes \[2\] and \[4\], which cannot be stacked": (
        [N("Identity", ["on"], ["goes_on"]), N("Concat", ["v_in", "v_in"], ["v_out"], axis=0)],
        *(1, 3),
    ),
    "9 dimensions, of which DirectML has 8": (
        [N("Identity", ["on"], ["goes_on"]), N("Unsqueeze", ["v_in", "zero"], ["v_out"]), N("ReduceSum", ["v_in"], ["sum"])],
        *(2, 9),
    ),
}


@pytest.mark.parametrize("said", FAILING)
def test_what_a_loop_cannot_do_is_said(said: str) -> None:
    nodes, size, most = FAILING[said]
    stacked = [("v_out", FLOAT)] if len(nodes) == 2 else []
    taken = [info("i", [], INT64), info("on", [], BOOL), info("v_in", None, FLOAT)]
    made = [info("goes_on", None, BOOL), *[info("v_out", None, FLOAT)] * (1 + len(stacked))]
    body = helper.make_graph(nodes, "body", taken, made)
    outputs = ["last", "all"][: 1 + len(stacked)]
    inputs = [info("m", None, INT64), info("v", ["n"])]
    weights = {"ten": np.array(10, np.float32), "zero": np.array([0])}
    whole = model([N("Loop", ["m", "", "v"], outputs, body=body)], inputs, [info(name, None) for name in outputs], weights)
    with pytest.raises(tvmdml.Unsupported, match=said):
        tvmdml.onnx.load(whole)(v=np.ones(size, np.float32), m=np.array(most))


def test_a_run_counts_the_rounds_of_a_loop(recordings: list[Any]) -> None:
    """Sums of numbers until a limit, in place of a loop in Python."""
    nodes = [
        N("Mul", ["v_in", "factor"], ["v_out"]),
        N("ReduceSum", ["v_out"], ["sum"], keepdims=0),
        N("Less", ["sum", "limit"], ["goes_on"]),
    ]
    weights = {"factor": np.array(1.25, np.float32), "limit": np.array(1e4, np.float32)}
    loaded = loop(*nodes, states=[("v", FLOAT)], wanted=[("sum", FLOAT)], most="m", **weights)
    for size, most in ((5, 60), (5, 3), (7, 60), (5, 2)):
        v = np.arange(1, size + 1, dtype=np.float32)
        last, sums = loaded(v=v, m=np.array(most))
        right = [v.sum() * 1.25 ** (i + 1) for i in range(most)]
        count = next((i + 1 for i, total in enumerate(right) if total >= 1e4), most)
        assert len(sums) == count
        assert np.allclose(sums, right[:count])
        assert np.allclose(last, v * 1.25**count)
    assert len(recordings) == 2, "the model, and the body"
    last, sums = loaded(v=v, m=np.array(0))
    assert (sums.shape, sums.dtype) == ((0,), np.float32)
    assert np.array_equal(last, v)


def test_a_state_may_grow_in_a_loop() -> None:
    nodes = [
        N("Gather", ["next", "w_in"], ["w_out"]),
        N("Concat", ["line_in", "w_out"], ["line_out"], axis=0),
        N("Equal", ["w_out", "end"], ["is_end"]),
        N("Not", ["is_end"], ["more"]),
        N("Reshape", ["more", "none"], ["goes_on"]),
    ]
    after = np.roll(np.random.default_rng(5).permutation(30), 3)
    path, word = [], 4
    while word != 17 or not path:
        word = int(after[word])
        path.append(word)
        if len(path) > 30:
            break
    weights = {"next": after, "end": np.array([path[-1]]), "none": np.array([], np.int64), "m": np.array(40)}
    loaded = loop(*nodes, states=[("line", INT64), ("w", INT64)], wanted=[], **weights)
    first = np.array([4])
    line, last = loaded(line=first, w=first)
    reached = path[: path.index(path[-1]) + 1]
    assert line.tolist() == [4, *reached]
    assert last.tolist() == [path[-1]]


def test_each_round_of_a_loop_draws_its_own_numbers() -> None:
    nodes = [
        N("RandomUniformLike", ["v_in"], ["drawn"]),
        N("Identity", ["drawn"], ["v_out"]),
        N("ReduceMax", ["drawn"], ["highest"], keepdims=0),
        N("Less", ["highest", "limit"], ["goes_on"]),
    ]
    states, wanted = [("v", FLOAT)], [("drawn", FLOAT)]
    loaded = loop(*nodes, states=states, wanted=wanted, most="m", limit=np.array(2, np.float32))
    _, drawn = loaded(v=np.zeros(8, np.float32), m=np.array(20))
    assert drawn.shape == (20, 8)
    assert len(np.unique(drawn)) > 150
