"""Scatters of models: whatever the indices are, and however many; beside NumPy, and beside ONNX Runtime where it is installed."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

onnx: Any = pytest.importorskip("onnx", reason="ONNX is not installed")

from onnx_nodes import N, info, model, single  # noqa: E402 - they need ONNX

import tvmdml.onnx  # noqa: E402 - it needs ONNX
from tvmdml.onnx import converting  # noqa: E402

INT64, BOOL = onnx.TensorProto.INT64, onnx.TensorProto.BOOL
UFUNCS = {"add": np.add, "mul": np.multiply, "max": np.maximum, "min": np.minimum}


def layer(atoms: int, width: int, reduction: str) -> Any:
    """Messages of edges, combined at the atoms that they go to: what exporters make of a graph network's layer."""
    nodes = [
        N("Gather", ["x", "from"], ["message"]),
        N("Constant", [], ["axes"], value_ints=[1]),
        N("Unsqueeze", ["to", "axes"], ["column"]),
        N("Shape", ["message"], ["sizes"]),
        N("Expand", ["column", "sizes"], ["at"]),
        N("ScatterElements", ["x", "at", "message"], ["y"], axis=0, reduction=reduction),
    ]
    inputs = [info("x", [atoms, width]), info("from", ["e"], INT64), info("to", ["e"], INT64)]
    return model(nodes, inputs, [info("y", [atoms, width])], ir_version=10)


@pytest.mark.full(first=1)
@pytest.mark.parametrize("reduction", UFUNCS)
def test_a_layer_is_converted_once_for_any_number_of_edges(reduction: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TVMDML_DISABLE_PLANS", "1")
    whole = []
    original = converting.Conversion.of.__func__  # type: ignore[attr-defined]
    of = classmethod(lambda cls, *arguments: (whole.append(1), original(cls, *arguments))[1])
    monkeypatch.setattr(converting.Conversion, "of", of)
    ours = tvmdml.onnx.load(layer(11, 3, reduction))
    for edges in (7, 8, 1, 50, 333, 51):
        rng = np.random.default_rng(edges)
        x, source, target = rng.standard_normal((11, 3)).astype(np.float32), *(rng.integers(0, 11, edges) for _ in range(2))
        expected = x.copy()
        UFUNCS[reduction].at(expected, target, x[source])
        np.testing.assert_array_equal(ours({"x": x, "from": source, "to": target})[0], expected)
    assert len(whole) <= 2


def test_a_layer_without_edges() -> None:
    x, none = np.ones((11, 3), np.float32), np.zeros(0, np.int64)
    np.testing.assert_array_equal(tvmdml.onnx.load(layer(11, 3, "add"))({"x": x, "from": none, "to": none})[0], x)


def test_indices_that_the_data_tell() -> None:
    nodes = [
        N("NonZero", ["chosen"], ["places"]),
        N("Transpose", ["places"], ["at"]),
        N("GatherND", ["x", "at"], ["message"]),
        N("ScatterND", ["x", "at", "message"], ["y"], reduction="add"),
    ]
    ours = tvmdml.onnx.load(model(nodes, [info("x", [6, 2]), info("chosen", [6, 2], BOOL)], [info("y", [6, 2])], ir_version=10))
    for seed in range(3):
        rng = np.random.default_rng(seed)
        x, chosen = rng.standard_normal((6, 2)).astype(np.float32), rng.random((6, 2)) < seed / 2
        np.testing.assert_array_equal(ours({"x": x, "chosen": chosen})[0], np.where(chosen, x + x, x))


@pytest.mark.full(first=2)
@pytest.mark.parametrize("reduction", ["none", *UFUNCS])
@pytest.mark.parametrize("axis", [0, 1, -1])
def test_a_part_of_the_other_dimensions(axis: int, reduction: str) -> None:
    rng = np.random.default_rng(axis + 1)
    x, updates = rng.standard_normal((5, 4, 3)).astype(np.float32), rng.standard_normal((2, 4, 2)).astype(np.float32)
    indices = np.argsort(rng.random((2, 4, 2)), axis=axis) % x.shape[axis]
    made, feeds = single("ScatterElements", [x, indices, updates], axis=axis, reduction=reduction)
    expected, at = x.copy(), np.indices(indices.shape)
    at[axis] = indices
    if reduction == "none":
        expected[tuple(at)] = updates
    else:
        UFUNCS[reduction].at(expected, tuple(at), updates)
    np.testing.assert_array_equal(tvmdml.onnx.load(made)(feeds)[0], expected)


@pytest.mark.parametrize(("reduction", "expected"), [("add", "or"), ("max", "or"), ("mul", "and"), ("min", "and")])
def test_of_bools_a_sum_is_or_and_a_product_is_and(reduction: str, expected: str) -> None:
    x, updates = np.array([0, 0, 1, 1, 0], bool), np.array([0, 1, 0, 1, 1, 1], bool)
    made, feeds = single("ScatterElements", [x, np.array([0, 1, 2, 3, 4, 4]), updates], reduction=reduction)
    (result,) = tvmdml.onnx.load(made)(feeds)
    assert result.dtype == bool
    right = [False, True, True, True, True] if expected == "or" else [False, False, False, True, False]
    assert result.tolist() == right


def test_an_unknown_reduction_is_refused() -> None:
    made, feeds = single("ScatterElements", [np.ones(3, np.float32), np.array([0]), np.ones(1, np.float32)], reduction="mean")
    with pytest.raises(tvmdml.TvmdmlError, match="its reduction is mean"):
        tvmdml.onnx.load(made)(feeds)


@pytest.mark.full
@pytest.mark.parametrize("reduction", UFUNCS)
def test_bits_are_those_of_onnx_runtime(reduction: str) -> None:
    onnxruntime: Any = pytest.importorskip("onnxruntime", reason="ONNX Runtime is not installed")
    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = 1  # with more, it loses updates that meet
    for kind, width in (("ScatterElements", 5), ("ScatterND", 5), ("ScatterND", 40)):
        rng = np.random.default_rng(width)
        x, updates = (rng.standard_normal((n, width)).astype(np.float32) for n in (30, 900))
        at = rng.integers(-30, 30, (900, width if kind == "ScatterElements" else 1))
        made, feeds = single(kind, [x, at, updates], reduction=reduction)
        session = onnxruntime.InferenceSession(made.SerializeToString(), options, providers=["CPUExecutionProvider"])
        assert tvmdml.onnx.load(made)(feeds)[0].tobytes() == session.run(None, feeds)[0].tobytes()
