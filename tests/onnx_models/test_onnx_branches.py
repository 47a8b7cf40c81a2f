"""Branches of If, chosen by inputs and by kernels: only one is computed, and all ways to run a model give the same."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from commands import succeed

import tvmdml
from tvmdml.library import finding

onnx: Any = pytest.importorskip("onnx", reason="ONNX is not installed")

from onnx_nodes import BOOL, N, info  # noqa: E402 - they need ONNX

import tvmdml.onnx  # noqa: E402 - it needs ONNX

RNG = np.random.default_rng(3)
WEIGHTS = {name: RNG.standard_normal((12, 12)).astype(np.float32) for name in ("v", "w")}


def branch(name: str, nodes: list[Any], *outputs: str) -> Any:
    return onnx.helper.make_graph(nodes, name, [], [info(one, None) for one in outputs])


@pytest.fixture(scope="module")
def path(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Two results of an If, whose else-branch has an If by a kernel's result."""
    inner = {
        "then_branch": branch("many", [N("MatMul", ["x", "w"], ["m1"]), N("Softmax", ["m1"], ["m2"])], "m2"),
        "else_branch": branch("few", [N("CumSum", ["x", "one"], ["f1"], reverse=1), N("MatMul", ["f1", "v"], ["f2"])], "f2"),
    }
    first = branch(
        "first", [N("MatMul", ["x", "v"], ["a1"]), N("Relu", ["a1"], ["a2"]), N("CumSum", ["x", "one"], ["a3"])], "a2", "a3"
    )
    second = branch(
        "second",
        [
            N("MatMul", ["x", "w"], ["b1"]),
            N("ReduceSum", ["b1"], ["b2"], keepdims=0),
            N("Greater", ["b2", "zero"], ["b3"]),
            N("If", ["b3"], ["b4"], **inner),
            N("Tanh", ["b1"], ["b5"]),
        ],
        "b4",
        "b5",
    )
    nodes = [N("If", ["c"], ["y", "z"], then_branch=first, else_branch=second)]
    known = {**WEIGHTS, "one": np.int64(1), "zero": np.float32(0)}
    values = [onnx.numpy_helper.from_array(np.asarray(value), name) for name, value in known.items()]
    outputs = [info("y", ["n", 12]), info("z", ["n", 12])]
    graph = onnx.helper.make_graph(nodes, "branches", [info("x", ["n", 12]), info("c", [], BOOL)], outputs, values)
    made = onnx.helper.make_model(graph, opset_imports=[onnx.helper.make_opsetid("", 18)])
    found = tmp_path_factory.mktemp("branches") / "branches.onnx"
    onnx.save(made, found)
    return found


def right(x: Any, c: bool) -> list[Any]:
    v, w = WEIGHTS["v"], WEIGHTS["w"]
    if c:
        return [np.maximum(x @ v, 0), x.cumsum(1)]
    b = x @ w
    e = np.exp(b - b.max(1, keepdims=True))
    return [e / e.sum(1, keepdims=True) if b.sum() > 0 else x[:, ::-1].cumsum(1)[:, ::-1] @ v, np.tanh(b)]


def cases(rows: int = 5) -> list[tuple[Any, bool]]:
    x = np.random.default_rng(rows).standard_normal((rows, 12)).astype(np.float32)
    return [(x, True), (x, False), (-x, False), (x, True), (-x, True)]


def check(run: Any, rows: int = 5) -> None:
    for x, c in cases(rows):
        for one, other in zip(run(x, np.array(c)), right(x, c), strict=True):
            assert np.allclose(one, other, rtol=1e-4, atol=1e-4)


@pytest.mark.full
def test_one_branch_is_computed(path: Path) -> None:
    model = tvmdml.onnx.load(path)
    check(lambda x, c: model(x=x, c=c))
    graph = model.compiled(x=(5, 12), c=())
    names = [
        {one.name.partition(" ")[0] for one in graph.profile({"x": x, "c": np.array(c)}) if not one.skipped} for x, c in cases()
    ]
    assert all("CUMULATIVE_SUMMATION" in one for one in (names[0], names[3]))
    softmax, sums = ("SOFTMAX" in " ".join(one) for one in names[1:3]), ("CUMULATIVE_SUMMATION" in one for one in names[1:3])
    assert sorted(zip(softmax, sums, strict=True)) == [(False, True), (True, False)]
    assert all("SOFTMAX" not in " ".join(names[i]) for i in (0, 3, 4))


@pytest.mark.full
def test_a_plan_from_the_cache_leaves_out_the_same(path: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(finding, "_memory", {})
    monkeypatch.setenv("TVMDML_CACHE_DIR", str(tmp_path))
    first = tvmdml.onnx.load(path)
    check(lambda x, c: first(x=x, c=c))
    again = tvmdml.onnx.load(path)
    check(lambda x, c: again(x=x, c=c))
    graphs = [one.compiled(x=(5, 12), c=()) for one in (first, again)]
    assert graphs[1].laid.plan is None  # it was read
    for x, c in cases():
        first_run, second_run = ([each.skipped for each in one.profile({"x": x, "c": np.array(c)})] for one in graphs)
        assert first_run == second_run
        assert any(first_run)


@pytest.mark.full
def test_bindings_and_threads(path: Path) -> None:
    session = tvmdml.onnx.InferenceSession(str(path), providers=["CPUExecutionProvider"])

    def bound(x: Any, c: Any) -> list[Any]:
        binding = session.io_binding()
        results = [tvmdml.onnx.OrtValue.ortvalue_from_numpy(np.full(x.shape, np.nan, np.float32)) for _ in "yz"]
        binding.bind_cpu_input("x", x)
        binding.bind_cpu_input("c", c)
        for name, one in zip("yz", results, strict=True):
            binding.bind_ortvalue_output(name, one)
        session.run_with_iobinding(binding)
        return [one.numpy() for one in results]

    check(bound)
    with ThreadPoolExecutor(4) as pool:
        list(pool.map(lambda _: check(lambda x, c: session.run(None, {"x": x, "c": c})), range(8)))


@pytest.mark.full
def test_a_size_that_grows(path: Path) -> None:
    model = tvmdml.onnx.load(path)
    for rows in (*range(2, 12), 30, 31):
        check(lambda x, c: model(x=x, c=c), rows)


@pytest.mark.full
def test_packs_and_profiles(path: Path, tmp_path: Path) -> None:
    succeed("pack", "build", path, "--size", "n=5", "--target", "cpu", "-o", tmp_path / "branches.pack")
    served = tvmdml.onnx.load(tmp_path / "branches.pack")
    check(lambda x, c: served(x=x, c=c))
    np.save(tmp_path / "c.npy", np.array(True))
    arguments = ["run", str(path), "--size", "n=5", "--input", f"c={tmp_path / 'c.npy'}", "--profile", str(tmp_path / "trace.json")]
    found = succeed(*arguments)
    assert "of branches not taken were skipped" in found.output
