"""Models whose results elements count: detectors that end in NonMaxSuppression. Their last nodes run after the graph."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

onnx: Any = pytest.importorskip("onnx", reason="ONNX is not installed")

from test_onnx_models import FLOAT, INT64, N, info, model  # noqa: E402 - they need ONNX

import tvmdml.onnx  # noqa: E402 - it needs ONNX

CLASSES, PLACES = 3, 24


def detector() -> bytes:
    """Boxes and scores at each place of an image's features, and the best boxes with their labels and scores."""
    rng = np.random.default_rng(3)
    weights = {
        "w": rng.standard_normal((4 + CLASSES, 3, 8, 8), np.float32) / 14,
        "most": np.array(9, np.int64),
        "overlap": np.array(0.3, np.float32),
        "least": np.array(0.9, np.float32),
        "parts": np.array([4, CLASSES], np.int64),
        "rows": np.array([0, 4, PLACES * PLACES], np.int64),
        "labels": np.array([0, CLASSES, PLACES * PLACES], np.int64),
        "one": np.array([1], np.int64),
        "two": np.array([2], np.int64),
        "three": np.array([3], np.int64),
        "axis": np.array([1], np.int64),
        "none": np.array([0], np.int64),
        "scale": np.array(8, np.float32),
    }
    nodes = [
        N("Conv", ["image", "w"], ["features"], strides=[8, 8]),
        N("Split", ["features", "parts"], ["where", "what"], axis=1),
        N("Reshape", ["where", "rows"], ["across"]),
        N("Transpose", ["across"], ["boxes"], perm=[0, 2, 1]),
        N("Reshape", ["what", "labels"], ["flat"]),
        N("Sigmoid", ["flat"], ["scores"]),
        N("NonMaxSuppression", ["boxes", "scores", "most", "overlap", "least"], ["chosen"]),
        N("Slice", ["chosen", "two", "three", "axis"], ["column"]),
        N("Squeeze", ["column", "axis"], ["places"]),
        N("Gather", ["boxes", "places"], ["found"], axis=1),
        N("Mul", ["found", "scale"], ["scaled"]),
        N("Slice", ["chosen", "one", "three", "axis"], ["label"]),
        N("Concat", ["none", "none"], ["origin"], axis=0),
        N("Slice", ["chosen", "none", "one", "axis"], ["batch"]),
        N("Concat", ["batch", "label"], ["coordinates"], axis=1),
        N("GatherND", ["scores", "coordinates"], ["best"]),
    ]
    results = [
        info("features", ["n", 7, PLACES, PLACES]),
        info("scaled", ["n", "count", 4]),
        info("chosen", ["count", 3], INT64),
        info("best", ["count"]),
    ]
    made = model(nodes, [info("image", ["n", 3, 8 * PLACES, 8 * PLACES])], results, weights, ir_version=10)
    return bytes(made.SerializeToString())


@pytest.fixture(scope="module")
def file() -> bytes:
    return detector()


@pytest.mark.parametrize("target", ["cpu", "vulkan"])
def test_a_detector_finds_what_onnx_runtime_finds(file: bytes, target: str) -> None:
    runtime: Any = pytest.importorskip("onnxruntime", reason="ONNX Runtime is not installed")
    try:
        loaded = tvmdml.onnx.load(file, target=target)
    except tvmdml.TvmdmlError as error:
        pytest.skip(str(error))
    session = runtime.InferenceSession(file, providers=["CPUExecutionProvider"])
    counts = set()
    for seed in range(4):
        image = np.random.default_rng(seed).standard_normal((1, 3, 8 * PLACES, 8 * PLACES), np.float32)
        found, right = loaded(image=image), session.run(None, {"image": image})
        counts.add(len(found[2]))
        for one, other in zip(found, right, strict=True):
            assert (one.dtype, one.shape) == (other.dtype, other.shape)
            assert np.allclose(one, other, rtol=0, atol=1e-5 * max(1, np.abs(other).max()))
    assert len(counts) > 1, "the images have different numbers of boxes"
    assert loaded.run(["best"], {"image": image})[0].shape == right[3].shape


def test_arrays_of_other_libraries_come_back_as_such(file: bytes) -> None:
    torch: Any = pytest.importorskip("torch", reason="PyTorch is not installed")
    image = torch.rand(1, 3, 8 * PLACES, 8 * PLACES)
    found = tvmdml.onnx.load(file)(image=image)
    assert {type(one) for one in found} == {torch.Tensor}
    assert found[2].dtype == torch.int64


@pytest.mark.full
def test_what_such_a_model_cannot_do_is_said(file: bytes, tmp_path: Path) -> None:
    shape = (1, 3, 8 * PLACES, 8 * PLACES)
    loaded = tvmdml.onnx.load(file)
    with pytest.raises(tvmdml.Unsupported, match="NonMaxSuppression"):
        loaded.forms({"image": np.zeros(shape, np.float32)})
    assert loaded.compiled(image=shape).kernel_count
    with pytest.raises(tvmdml.Unsupported, match=r"one by one, after the graph: NonMaxSuppression, Slice.*Cut it"):
        tvmdml.onnx.load(file, {"n": 1}).recorded()


def large(*nodes: Any, **outputs: Any) -> Any:
    """A model of one large input."""
    results = [info(name, shape, kind) for name, (shape, kind) in outputs.items()]
    return tvmdml.onnx.load(model(nodes, [info("x", ["n", 100])], results, ir_version=10))


def test_nonzero_of_a_large_tensor_and_what_follows() -> None:
    """Also inside of branches, and where the number decides how much is taken."""
    branch = onnx.helper.make_graph([N("Gather", ["row", "at"], ["taken"])], "branch", [], [info("taken", ["m"])])
    nodes = [
        N("Abs", ["x"], ["a"]),
        N("Constant", [], ["limit"], value_float=1.5),
        N("Greater", ["a", "limit"], ["far"]),
        N("NonZero", ["far"], ["places"]),
        N("Shape", ["places"], ["count"], start=1),
        N("Constant", [], ["flat"], value_ints=[-1]),
        N("Reshape", ["a", "flat"], ["all"]),
        N("Constant", [], ["zero"], value_ints=[0]),
        N("Slice", ["all", "zero", "count"], ["first"]),
        N("Compress", ["a", "far"], ["chosen"]),
        N("Constant", [], ["many"], value_ints=[40]),
        N("Greater", ["count", "many"], ["is_many"]),
        N("Slice", ["places", "zero", "zero", "zero"], ["nothing"]),
        N("Constant", [], ["head"], value_ints=[0, 1, 2]),
        N("Identity", ["first"], ["row"]),
        N("Identity", ["head"], ["at"]),
        N("If", ["is_many"], ["some"], then_branch=branch, else_branch=branch),
    ]
    loaded = large(*nodes, places=([2, "k"], INT64), first=(["k"], FLOAT), chosen=(["k"], FLOAT), some=(["m"], FLOAT))
    for seed in (1, 2):
        x = np.random.default_rng(seed).standard_normal((50 + seed, 100), np.float32)
        places, first, chosen, some = loaded(x=x)
        far = np.abs(x) > 1.5
        assert np.array_equal(places, np.stack(np.nonzero(far)))
        assert np.array_equal(first, np.abs(x).reshape(-1)[: far.sum()])
        assert np.array_equal(chosen, np.abs(x)[far])
        assert np.array_equal(some, first[:3])


def test_different_elements_as_onnx_orders_them() -> None:
    x = (np.random.default_rng(4).standard_normal((60, 100)) * 9).astype(np.int32).astype(np.float32)
    names = {"y": (["k"], FLOAT), "first": (["k"], INT64), "back": (["all"], INT64), "counts": (["k"], INT64)}
    y, first, back, counts = large(N("Unique", ["x"], list(names), sorted=0), **names)(x=x)
    flat = x.reshape(-1)
    assert np.array_equal(y[back], flat)
    assert np.array_equal(flat[first], y)
    assert np.array_equal(np.sort(first), first), "in the order in which they come first"
    assert counts.sum() == flat.size
    assert len(set(y.tolist())) == len(y)


def test_small_and_large_inputs_may_take_turns() -> None:
    places = onnx.helper.make_tensor_value_info("y", INT64, [1, "k"])
    graph = onnx.helper.make_graph([N("NonZero", ["x"], ["y"])], "turns", [info("x", ["n"])], [places])
    whole = onnx.helper.make_model(graph, opset_imports=[onnx.helper.make_opsetid("", 17)], ir_version=8).SerializeToString()
    for sizes in ((5000, 10, 5000, 7), (5000, 11)):  # the second model finds what the first one kept on disk
        some = tvmdml.onnx.load(whole)
        for size in sizes:
            assert some(x=np.ones(size, np.float32))[0].shape == (1, size)


def test_a_node_that_fails_says_so_when_it_runs() -> None:
    nodes = [
        N("NonZero", ["x"], ["places"]),
        N("Constant", [], ["five"], value_ints=[5, 7]),
        N("Reshape", ["places", "five"], ["y"]),
    ]
    loaded = large(*nodes, y=([5, 7], INT64))
    x = np.zeros((50, 100), np.float32)
    with pytest.raises((tvmdml.Unsupported, tvmdml.ModelError), match="Reshape"):
        loaded(x=x)
