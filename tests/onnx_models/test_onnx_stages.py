"""Models in which elements that a run computes decide sizes: detectors that end in NonMaxSuppression, random ones."""

from __future__ import annotations

import gc
import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from programs import python

onnx: Any = pytest.importorskip("onnx", reason="ONNX is not installed")

from counting_models import counting_model  # noqa: E402
from onnx import helper, numpy_helper  # noqa: E402
from onnx_nodes import BOOL, FLOAT, INT64, N, info, model  # noqa: E402 - they need ONNX
from support import Array  # noqa: E402

import tvmdml.graph.stored.cache  # noqa: E402 - it is changed here
import tvmdml.onnx  # noqa: E402 - it needs ONNX
from tvmdml import targets  # noqa: E402
from tvmdml.tensors.arrays.device_array import DeviceArray  # noqa: E402

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


@pytest.mark.parametrize("most", [5, 1000])
def test_the_best_of_many_boxes(most: int) -> None:
    """As one after the other: more boxes than are compared at once, some of no area, and equal scores."""
    random = np.random.default_rng(most)
    lower = random.integers(0, 60, (1, 300, 2))
    boxes = np.concatenate([lower, lower + random.integers(0, 12, (1, 300, 2))], -1).astype(np.float32)
    scores = random.integers(0, 9, (1, 2, 300)).astype(np.float32)
    weights = {"most": np.array(most), "overlap": np.array(0.317, np.float32), "least": np.array(1, np.float32)}
    nodes = [N("NonMaxSuppression", ["boxes", "scores", *weights], ["chosen"])]
    inputs = [info("boxes", [1, "n", 4]), info("scores", [1, 2, "n"])]
    loaded = tvmdml.onnx.load(model(nodes, inputs, [info("chosen", ["k", 3], INT64)], weights, ir_version=10))

    def overlap(a: Array, b: Array) -> float:
        common = np.prod(np.maximum(np.minimum(a[2:], b[2:]) - np.maximum(a[:2], b[:2]), 0))
        whole = np.prod(a[2:] - a[:2]) + np.prod(b[2:] - b[:2]) - common
        return float(common / whole) if whole else 0.0

    right: list[list[int]] = []
    for label in range(2):
        best: list[int] = []
        for place in np.argsort(-scores[0, label], kind="stable").tolist():
            far = all(overlap(boxes[0, place], boxes[0, other]) <= 0.317 for other in best)
            if scores[0, label, place] > 1 and far and len(best) < most:
                best.append(place)
        right += [[0, label, place] for place in best]
    assert loaded(boxes=boxes, scores=scores)[0].tolist() == right


def test_arrays_of_other_libraries_come_back_as_such(file: bytes) -> None:
    torch: Any = pytest.importorskip("torch", reason="PyTorch is not installed")
    image = torch.rand(1, 3, 8 * PLACES, 8 * PLACES)
    found = tvmdml.onnx.load(file)(image=image)
    assert {type(one) for one in found} == {torch.Tensor}
    assert found[2].dtype == torch.int64


def test_outputs_that_are_known_come_back_as_arrays_of_the_inputs_library() -> None:
    """A small input's elements are constants, so that all is known before a run."""
    torch: Any = pytest.importorskip("torch", reason="PyTorch is not installed")
    weights = {"c": np.array([1, 2], np.float32)}
    nodes = [N("NonZero", ["x"], ["places"]), N("Neg", ["places"], ["y"]), N("Identity", ["c"], ["z"])]
    made = model(nodes, [info("x", ["n"])], [info("y", [1, "k"], INT64), info("z", [2])], weights, ir_version=10)
    loaded = tvmdml.onnx.load(made)
    for x in (torch.tensor([0.0, 3.0, 4.0]), torch.ones(40)):
        y, z = loaded(x=x)
        assert (type(y), type(z)) == (torch.Tensor, torch.Tensor)
        assert np.array_equal(y.numpy(), -np.stack(np.nonzero(x.numpy())))
        assert z.tolist() == [1, 2]
    there = loaded.target.asarray(np.array([0, 3], np.float32))
    assert {type(array) for array in loaded(x=there)} == {type(there)}


@pytest.mark.full
def test_what_such_a_model_cannot_do_is_said(file: bytes, tmp_path: Path) -> None:
    shape = (1, 3, 8 * PLACES, 8 * PLACES)
    loaded = tvmdml.onnx.load(file)
    with pytest.raises(tvmdml.Unsupported, match="NonMaxSuppression"):
        loaded.forms({"image": np.zeros(shape, np.float32)})
    assert loaded.compiled(image=shape).kernel_count
    assert len(loaded.graphs({"image": np.random.default_rng(0).standard_normal(shape, np.float32)})) == 2
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


def test_another_count_converts_nothing(recordings: list[Any]) -> None:
    nodes = [
        N("Abs", ["x"], ["a"]),
        N("Constant", [], ["limit"], value_float=1.5),
        N("Greater", ["a", "limit"], ["far"]),
        N("Compress", ["a", "far"], ["chosen"]),
        N("Sqrt", ["chosen"], ["root"]),
        N("ReduceSum", ["chosen"], ["sum"], keepdims=0),
        N("Cast", ["sum"], ["length"], to=INT64),
        N("Constant", [], ["zero"], value_int=0),
        N("Constant", [], ["one"], value_int=1),
        N("Range", ["zero", "length", "one"], ["line"]),
    ]
    loaded = large(*nodes, root=(["k"], FLOAT), line=(["m"], INT64))
    for seed in range(12):
        x = np.random.default_rng(seed).standard_normal((50 + seed, 100), np.float32)
        root, line = loaded(x=x)
        far = np.abs(x)[np.abs(x) > 1.5]
        assert np.allclose(root, np.sqrt(far))
        assert abs(len(line) - far.sum()) < 2
        assert np.array_equal(line, np.arange(len(line)))
    assert len(recordings) == 3, "the model, what follows the count, and what follows the sum"


def test_few_elements_are_counted_by_the_run_too(recordings: list[Any]) -> None:
    nodes = [N("NonZero", ["x"], ["places"])]
    loaded = tvmdml.onnx.load(model(nodes, [info("x", [3, 4])], [info("places", [2, "k"], INT64)], {}, ir_version=10))
    for seed in range(12):
        x = np.random.default_rng(seed).integers(-1, 2, (3, 4)).astype(np.float32)
        assert np.array_equal(loaded(x=x)[0], np.stack(np.nonzero(x)))
    assert len(recordings) <= 4, "the model, and what follows for no, for one, and for more elements"


def test_what_few_measured_numbers_decide_is_a_count(recordings: list[Any]) -> None:
    nodes = [
        N("ReduceSum", ["x"], ["sum"], keepdims=0),
        N("Cast", ["sum"], ["length"], to=INT64),
        N("Constant", [], ["zero"], value_int=0),
        N("Constant", [], ["one"], value_int=1),
        N("Range", ["zero", "length", "one"], ["line"]),
    ]
    loaded = tvmdml.onnx.load(model(nodes, [info("x", [3])], [info("line", ["k"], INT64)], {}, ir_version=10))
    for seed in range(12):
        x = np.random.default_rng(seed).uniform(1, 9, 3).astype(np.float32)
        assert abs(len(loaded(x=x)[0]) - int(x.sum())) < 2
    assert len(recordings) == 2


@pytest.mark.parametrize("device", ["vulkan"])
def test_of_a_device_only_the_count_is_read(device: str, monkeypatch: pytest.MonkeyPatch) -> None:
    try:
        target = targets.resolve(device)
    except tvmdml.TvmdmlError as error:
        pytest.skip(str(error))
    nodes = [N("Constant", [], ["zero"], value_float=0.0), N("Greater", ["x", "zero"], ["far"])]
    nodes += [N("Compress", ["x", "far"], ["chosen"]), N("Sqrt", ["chosen"], ["y"])]
    made = model(nodes, [info("x", ["n", 100])], [info("y", ["k"])], {}, ir_version=10)
    loaded = tvmdml.onnx.load(made, target=device)
    x = np.random.default_rng(2).standard_normal((60, 100), np.float32)
    there = target.asarray(x)
    read: list[int] = []
    copy = DeviceArray.numpy

    def counted(self: Any) -> Array:
        read.append(self.size)
        return copy(self)

    monkeypatch.setattr(DeviceArray, "numpy", counted)
    (y,) = loaded(x=there)
    assert read == [1]
    assert type(y) is DeviceArray
    assert np.allclose(y.numpy(), np.sqrt(x[x > 0]), atol=1e-6)


def _wanted(file: bytes, feeds: dict[str, Array]) -> list[Any]:
    """The outputs of the model with its inputs as constants: all counts are known when it is converted."""
    known = onnx.load_from_string(file)
    del known.graph.input[:]
    known.graph.initializer.extend(numpy_helper.from_array(array, name) for name, array in feeds.items())
    return list(tvmdml.onnx.load(known)())


def _agree(some: list[Any], others: list[Any]) -> None:
    for one, other in zip(some, others, strict=True):
        assert (one.dtype, one.shape) == (other.dtype, other.shape)
        assert np.allclose(one, other, rtol=1e-4, atol=1e-4)


def _drawn(seed: int, sizes: tuple[int, int, int]) -> dict[str, Array]:
    random = np.random.default_rng((seed, *sizes))
    return {"x": random.standard_normal(sizes[:2], np.float32), "y": random.standard_normal(sizes[2], np.float32)}


SIZES = ((5, 4, 6), (3, 7, 9), (5, 4, 6), (2, 2, 3))


@pytest.mark.some(4)
@pytest.mark.parametrize("seed", range(24))
def test_random_models_count_as_constants_do(seed: int) -> None:
    file = counting_model(seed).SerializeToString()
    loaded = tvmdml.onnx.load(file)
    for sizes in SIZES[1:3]:
        feeds = _drawn(seed, sizes)
        _agree(loaded(feeds), _wanted(file, feeds))


@pytest.mark.parametrize("seed", range(100, 116))
def test_random_models_count_as_onnx_runtime_does(seed: int) -> None:
    runtime: Any = pytest.importorskip("onnxruntime", reason="ONNX Runtime is not installed")
    file = counting_model(seed).SerializeToString()
    loaded, session = tvmdml.onnx.load(file), runtime.InferenceSession(file, providers=["CPUExecutionProvider"])
    for sizes in SIZES:
        feeds = _drawn(seed, sizes)
        _agree(loaded(feeds), session.run(None, feeds))


@pytest.mark.full
def test_a_process_does_not_grow_with_the_values_that_it_met(monkeypatch: pytest.MonkeyPatch) -> None:
    """Negative ends of slices are constants of recordings, and of the stages that follow them."""
    monkeypatch.setattr("tvmdml.onnx.stage._MOST_PATTERNS", 4)
    monkeypatch.setattr("tvmdml.onnx.stage._MOST_PLANS", 4)
    nodes = [N("Slice", ["x", "zero", "end"], ["y"]), N("NonZero", ["y"], ["places"]), N("Mul", ["places", "end"], ["z"])]
    inputs = [info("x", ["n"]), info("end", [1], INT64)]
    made = model(nodes, inputs, [info("z", [1, "k"], INT64)], {"zero": np.array([0])}, ir_version=10)
    loaded: Any = tvmdml.onnx.load(made)
    x = np.arange(30, dtype=np.float32) % 3
    for end in (*range(-1, -16, -1), -3):
        assert np.array_equal(loaded(x=x, end=np.array([end]))[0], end * np.stack(np.nonzero(x[:end])))
    gc.collect()
    assert len(list(loaded._stage.recordings())) == len(loaded._stages) == 4, "the others were let go"


def test_elements_of_an_input_stay_open(recordings: list[Any]) -> None:
    """Where a slice ends is a size, too."""
    nodes = [N("Constant", [], ["zero"], value_ints=[0]), N("Slice", ["x", "zero", "end"], ["y"]), N("Neg", ["y"], ["z"])]
    inputs = [info("x", ["n", 3]), info("end", [1], INT64)]
    loaded = tvmdml.onnx.load(model(nodes, inputs, [info("z", ["m", 3])], {}, ir_version=10))
    for rows, end in ((9, 4), (12, 7), (40, 33), (5, 3), (6, 6), (5, 7)):
        x = np.arange(3.0 * rows, dtype=np.float32).reshape(rows, 3)
        assert np.array_equal(loaded(x=x, end=np.array([end]))[0], -x[:end])
    assert len(recordings) <= 3, "for a part, for all, and for more than all"


@pytest.mark.parametrize(("start", "limit", "delta"), [(0, 2**63 - 1, 1), (-5, 2**63 - 1, 1), (0, 2**62, 2**50), (2**62, 5, 3)])
def test_a_range_that_is_too_long_is_said(start: int, limit: int, delta: int) -> None:
    """Not empty, as NumPy makes arrays of 2^63 elements."""
    inputs = [info(name, [], INT64) for name in ("start", "limit", "delta")]
    loaded = tvmdml.onnx.load(model([N("Range", ["start", "limit", "delta"], ["y"])], inputs, [info("y", ["n"], INT64)], {}))
    feeds = {"start": np.array(start), "limit": np.array(limit), "delta": np.array(delta)}
    numbers = range(start, limit, delta)
    if limit == 2**63 - 1:
        with pytest.raises(tvmdml.TvmdmlError, match=r"2\^32 - 1"):
            loaded(feeds)
    else:
        assert loaded(feeds)[0].tolist() == list(numbers)


@pytest.mark.parametrize("k", [-(2**63), -(2**40), -1, 0, 3, 2**40, 2**63 - 1])
def test_a_diagonal_may_be_far_away(k: int) -> None:
    inputs = [info("x", ["n", "m"]), info("k", [], INT64)]
    nodes = [N("Trilu", ["x", "k"], ["y"]), N("Trilu", ["x", "k"], ["z"], upper=0)]
    loaded = tvmdml.onnx.load(model(nodes, inputs, [info("y", ["n", "m"]), info("z", ["n", "m"])], {}))
    x = np.arange(1, 21, dtype=np.float32).reshape(4, 5)
    y, z = loaded(x=x, k=np.array(k))
    near = max(-9, min(k, 9))
    assert np.array_equal(y, np.triu(x, near))
    assert np.array_equal(z, np.tril(x, near))


@pytest.mark.parametrize("rank", [1, 2, 3])
def test_places_of_all_elements_are_no_count(rank: int, recordings: list[Any]) -> None:
    """Older exporters write a range so."""
    one = helper.make_tensor("one", FLOAT, [1], [1.0])
    nodes = [N("Shape", ["x"], ["s"]), N("ConstantOfShape", ["s"], ["all"], value=one), N("NonZero", ["all"], ["y"])]
    shape = [f"n{i}" for i in range(rank)]
    loaded = tvmdml.onnx.load(model(nodes, [info("x", shape)], [info("y", [rank, "k"], INT64)], {}, ir_version=10))
    for sizes in ((5, 3, 2), (3, 7, 4), (40, 50, 9)):
        x = np.zeros(sizes[:rank], np.float32)
        assert np.array_equal(loaded(x=x)[0], np.stack(np.nonzero(x + 1)))
    assert len(recordings) == 1


ALONE = """
import sys
for name in ("onnx", "tvm", "tvmdml.library.scheduling", "tvmdml.onnx.origin"):
    sys.modules[name] = None  # an import would fail
import numpy as np, tvmdml.onnx
arrays = np.load(sys.argv[2])
model = tvmdml.onnx.load(sys.argv[1])
np.savez(sys.argv[3], *(array for i in range(int(arrays["runs"])) for array in model(x=arrays[f"x{i}"])))
"""


@pytest.mark.full
def test_a_later_process_finds_all_stages(tmp_path: Path) -> None:
    """Counts that it had not met need neither compiler nor onnx; a loop's body is one of the stages."""
    taken = [info("i", [], INT64), info("on", [], BOOL), info("v", None)]
    rounds = [N("Mul", ["v", "half"], ["w"]), N("ReduceMax", ["w"], ["m"], keepdims=0), N("Greater", ["m", "limit"], ["goes_on"])]
    body = helper.make_graph(rounds, "body", taken, [info("goes_on", [], BOOL), info("w", None), info("m", [])])
    nodes = [
        N("Greater", ["x", "limit"], ["far"]),
        N("Compress", ["x", "far"], ["chosen"]),
        N("Loop", ["", "", "chosen"], ["last", "highest"], body=body),
    ]
    weights = {"half": np.array(0.5, np.float32), "limit": np.array(1, np.float32)}
    made = model(nodes, [info("x", ["n"])], [info("last", ["k"]), info("highest", ["r"])], weights, ir_version=10)
    place = tmp_path / "m.onnx"
    onnx.save(made, place)
    loaded = tvmdml.onnx.load(place)
    random = np.random.default_rng(8)
    arrays = [random.standard_normal(n).astype(np.float32) * 9 for n in (500, 500, 800, 700)]
    right = [loaded(x=x) for x in arrays]
    assert len({len(last) for last, _ in right}) == 4
    np.savez(tmp_path / "x.npz", runs=len(arrays), **{f"x{i}": x for i, x in enumerate(arrays[::-1])})
    python(ALONE, place, tmp_path / "x.npz", tmp_path / "y.npz", may_complain=True, TVMDML_DISABLE_JIT="1")
    with np.load(tmp_path / "y.npz") as results:
        for i, array in enumerate(array for arrays in right[::-1] for array in arrays):
            assert np.array_equal(results[f"arr_{i}"], array)


FORGED = {
    "a name that nothing makes": lambda tail: tail["host"][0][1].__setitem__(2, "nothing"),
    "a state less": lambda tail: tail["host"][0][1].pop(),
    "an output less": lambda tail: tail["host"][0][2].pop(),
    "a taken one less": lambda tail: tail["host"][0][3].pop(),
    "a captured one less": lambda tail: tail["host"][0][4].clear(),
    "no stacked ones": lambda tail: tail["host"][0][5].clear(),
    "stacked ones of no sizes": lambda tail: tail["host"][0][5].__setitem__(0, ["<f4", ["n"]]),
    "another operator": lambda tail: tail["host"][0].__setitem__(0, "Scan"),
    "attributes that are texts": lambda tail: tail["host"].append(["Unique", {"axis": "0"}, ["v"], ["u"]]),
    "an output of the model that it has not": lambda tail: tail["makes"].append([7, "last"]),
    "no numbers": lambda tail: tail.__setitem__("makes", 5),
}


@pytest.mark.parametrize("change", [*FORGED, "names"])
def test_what_is_damaged_in_the_cache_is_made_again(change: str, monkeypatch: pytest.MonkeyPatch) -> None:
    taken = [info("i", [], INT64), info("on", [], BOOL), info("v", None)]
    rounds = [N("Mul", ["v", "factor"], ["w"]), N("ReduceMax", ["w"], ["m"], keepdims=0), N("Greater", ["m", "limit"], ["goes_on"])]
    body = helper.make_graph(rounds, "body", taken, [info("goes_on", [], BOOL), info("w", None), info("m", [])])
    nodes = [N("Sqrt", ["x"], ["v0"]), N("Loop", ["", "", "v0"], ["last", "highest"], body=body), N("Neg", ["highest"], ["y"])]
    inputs, results = [info("x", ["n"]), info("factor", [])], [info("last", ["k"]), info("y", ["r"])]
    file = model(nodes, inputs, results, {"limit": np.array(1, np.float32)}, ir_version=10).SerializeToString()
    feeds = {"x": np.array([4, 900, 16], np.float32), "factor": np.array(0.5, np.float32)}
    right = tvmdml.onnx.load(file)(feeds)
    found: list[str] = []
    find = tvmdml.graph.stored.cache.find

    def forged(*arguments: Any) -> Any:
        part = find(*arguments)
        if part is None:
            return None
        described = json.loads(json.dumps(part.described))
        if change in described:
            found.append(change)
            described[change] = 5
        elif described.get("tail") and change in FORGED:
            found.append(change)
            FORGED[change](described["tail"])
        return part._replace(described=described)

    monkeypatch.setattr("tvmdml.graph.stored.cache.find", forged)
    again = tvmdml.onnx.load(file)(feeds)
    assert found, "it was there"
    for one, other in zip(again, right, strict=True):
        assert np.array_equal(one, other)
