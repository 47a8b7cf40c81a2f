"""Models with nodes that another library runs: texts, and operators that DirectML has not."""

from __future__ import annotations

import sys
import types
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from commands import call

onnx: Any = pytest.importorskip("onnx", reason="ONNX is not installed")

from onnx import TensorProto, helper, numpy_helper  # noqa: E402
from onnx.reference import ReferenceEvaluator  # noqa: E402
from onnx_nodes import FLOAT, INT64, N, info  # noqa: E402 - they need ONNX

import tvmdml  # noqa: E402
import tvmdml.onnx  # noqa: E402 - it needs ONNX

STRING = TensorProto.STRING
TABLE = np.random.default_rng(0).standard_normal((9, 4), np.float32)
ML = "ai.onnx.ml"


@pytest.fixture
def evaluator(monkeypatch: pytest.MonkeyPatch) -> list[Any]:
    """A module with a backend of ONNX's own kind; the models that it was given."""
    models: list[Any] = []

    class Ready:
        def __init__(self, model: Any) -> None:
            models.append(model)
            self.evaluator, self.names = ReferenceEvaluator(model), [one.name for one in model.graph.input]

        def run(self, inputs: list[Any]) -> tuple[Any, ...]:
            return tuple(self.evaluator.run(None, dict(zip(self.names, inputs, strict=True))))

    module = types.ModuleType("evaluating_backend")
    module.prepare = Ready  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, "evaluating_backend", module)
    return models


def words() -> bytes:
    """Words of texts, by a table of vectors; their lengths are made 1 in between by an operator of another domain."""
    nodes = [
        N("StringConcat", ["words", "end"], ["ended"]),
        N("LabelEncoder", ["ended"], ["i"], domain=ML, keys_strings=["a!", "b!", "c!"], values_int64s=[1, 2, 3], default_int64=0),
        N("Gather", ["table", "i"], ["rows"]),
        N("Relu", ["rows"], ["positive"]),
        N("Normalizer", ["positive"], ["unit"], domain=ML, norm="L2"),
        N("Neg", ["unit"], ["y"]),
        N("Abs", ["x"], ["z"]),
    ]
    inputs = [info("words", ["n"], STRING), info("x", ["k"])]
    outputs = [info("y", ["n", 4]), info("ended", ["n"], STRING), info("z", ["k"])]
    weights = [numpy_helper.from_array(TABLE, "table"), numpy_helper.from_array(np.array(["!"], object), "end")]
    opsets = [helper.make_opsetid("", 20), helper.make_opsetid(ML, 3)]
    graph = helper.make_graph(nodes, "words", inputs, outputs, weights)
    return bytes(helper.make_model(graph, opset_imports=opsets, ir_version=9).SerializeToString())


WORDS = (["a", "b", "zz", "c"], ["c", "c"], ["b"], ["a", "b", "c", "b", "a"])


@pytest.mark.filterwarnings("ignore:.*evaluating_backend runs")
@pytest.mark.parametrize("target", ["cpu", "vulkan"])
def test_another_library_runs_what_is_not_mapped(evaluator: list[Any], target: str) -> None:
    try:
        loaded = tvmdml.onnx.load(words(), target=target, fallback="evaluating_backend")
    except tvmdml.TvmdmlError as error:
        pytest.skip(str(error))
    x = np.array([-1, 2, -3], np.float32)
    for several in WORDS:
        y, ended, z = loaded(words=np.array(several), x=x)
        rows = np.maximum(TABLE[[" abc".find(word) if len(word) == 1 else 0 for word in several]], 0)
        assert np.allclose(y, -rows / np.linalg.norm(rows, axis=1, keepdims=True), atol=1e-6)
        assert ended.tolist() == [f"{word}!" for word in several]
        assert z.tolist() == [1, 2, 3]
    kinds = {tuple(node.op_type for node in model.graph.node) for model in evaluator}
    assert kinds == {("StringConcat", "LabelEncoder"), ("Normalizer",)}, "parts are as few as possible"
    said = str(loaded.explain())
    assert said.count("recorded with words") == 2, "one word, and all other numbers of words"
    assert "StringConcat, LabelEncoder" in said
    assert "evaluating_backend, given end, words" in said


@pytest.mark.filterwarnings("ignore:.*evaluating_backend runs")
def test_the_command_has_a_library_too(evaluator: list[Any], tmp_path: Path) -> None:
    (tmp_path / "words.onnx").write_bytes(words())
    np.save(tmp_path / "words.npy", np.array(WORDS[0]))
    given = [str(tmp_path / "words.onnx"), "--input", f"words={tmp_path / 'words.npy'}", "--size", "n=4", "--size", "k=3"]
    done = call("run", *given, "--fallback", "evaluating_backend")
    assert "Output 'y': float32[4, 4]" in done.output, done.output
    assert "it cannot be imported" in call("run", *given, "--fallback", "no such module").output


def test_onnx_runtime_runs_what_is_not_mapped() -> None:
    runtime: Any = pytest.importorskip("onnxruntime", reason="ONNX Runtime is not installed")
    with pytest.warns(UserWarning, match=r"onnxruntime runs StringConcat, ai\.onnx\.ml\.LabelEncoder, ai\.onnx\.ml\.Normalizer"):
        loaded = tvmdml.onnx.InferenceSession(words(), fallback="onnxruntime")
    session = runtime.InferenceSession(words(), providers=["CPUExecutionProvider"])
    for several in WORDS:
        feeds = {"words": np.array(several, object), "x": np.ones(2, np.float32)}
        for ours, theirs in zip(loaded.run(None, feeds), session.run(None, feeds), strict=True):
            assert ours.shape == theirs.shape
            assert (ours == theirs).all() if ours.dtype == object else np.allclose(ours, theirs, atol=1e-6)


@pytest.mark.filterwarnings("ignore:.*evaluating_backend runs")
def test_graphs_in_nodes_go_to_the_library_as_a_whole(evaluator: list[Any]) -> None:
    unit = helper.make_graph([N("Normalizer", ["a"], ["u"], domain=ML, norm="L1")], "yes", [], [info("u", ["n", 4])])
    same = helper.make_graph([N("Identity", ["a"], ["s"])], "no", [], [info("s", ["n", 4])])
    nodes = [N("Abs", ["x"], ["a"]), N("If", ["is"], ["b"], then_branch=unit, else_branch=same), N("Neg", ["b"], ["y"])]
    inputs = [info("x", ["n", 4]), info("is", [], onnx.TensorProto.BOOL)]
    graph = helper.make_graph(nodes, "branches", inputs, [info("y", ["n", 4])])
    opsets = [helper.make_opsetid("", 20), helper.make_opsetid(ML, 3)]
    made = helper.make_model(graph, opset_imports=opsets, ir_version=9)
    loaded = tvmdml.onnx.load(made, fallback="evaluating_backend")
    x = TABLE[:3]
    for condition in (True, False):
        right = np.abs(x) / np.abs(x).sum(1, keepdims=True) if condition else np.abs(x)
        assert np.allclose(loaded({"x": x, "is": np.array(condition)})[0], -right, atol=1e-6)


def test_without_a_library_all_missing_operators_are_named() -> None:
    made = onnx.load_from_string(words())
    made.graph.input[0].type.tensor_type.elem_type = INT64
    del made.graph.output[1]
    with pytest.raises(tvmdml.Unsupported, match=r"StringConcat(.|\n)*LabelEncoder(.|\n)*Normalizer"):
        tvmdml.onnx.load(made)
    with pytest.raises(tvmdml.Unsupported, match=r"type string(.|\n)*fallback=.onnxruntime"):
        tvmdml.onnx.load(words())


@pytest.mark.parametrize(
    ("library", "error", "said"),
    [
        (3, tvmdml.InvalidArgument, "fallback: given 3; allowed: a module's name"),
        ("no_such_module", tvmdml.Unsupported, "cannot be imported"),
        ("json", tvmdml.InvalidArgument, "ONNX's backend: prepare"),
    ],
)
def test_libraries_that_are_none(library: Any, error: type[Exception], said: str) -> None:
    with pytest.raises(error, match=said):
        tvmdml.onnx.load(words(), fallback=library)


@pytest.mark.filterwarnings("ignore:.*evaluating_backend runs")
def test_what_the_library_refuses_is_said(evaluator: list[Any]) -> None:
    node = N("Unheard", ["x"], ["y"], domain="com.example")
    opsets = [helper.make_opsetid("", 20), helper.make_opsetid("com.example", 1)]
    graph = helper.make_graph([node], "unheard", [info("x", ["n"], FLOAT)], [info("y", ["n"], FLOAT)])
    made = helper.make_model(graph, opset_imports=opsets, ir_version=9)
    loaded = tvmdml.onnx.load(made, fallback="evaluating_backend")
    with pytest.raises(tvmdml.Unsupported, match=r"evaluating_backend (does not run|fails in) Unheard"):
        loaded(x=np.ones(3, np.float32))
    with pytest.raises(tvmdml.InvalidArgument, match="an array of texts"):
        tvmdml.onnx.load(words(), fallback="evaluating_backend")(words=np.ones(3), x=np.ones(2, np.float32))
