"""Graphs in files: they give the same results, from stored kernels; damaged and hostile files are refused."""

from __future__ import annotations

import json
import os
import struct
import subprocess
import sys
from pathlib import Path
from typing import Any

import hypothesis
import hypothesis.strategies as st
import numpy as np
import pytest
from click.testing import CliRunner

import tvmdml
from tvmdml import targets
from tvmdml.cli import main


def small() -> tvmdml.CompiledGraph:
    rng = np.random.default_rng(3)
    graph = tvmdml.Graph("small")
    x, mask = graph.input((2, 3, 8, 8), name="x"), graph.input((2, 8), "bool", name="mask")
    y = tvmdml.convolution(x, rng.standard_normal((4, 3, 3, 3)).astype(np.float32), graph.input((1, 4, 1, 1), owned=True, name="b"))
    table = tvmdml.activation_relu(y).reshape(2, 4, 36)
    best = tvmdml.top_k(table.transpose(0, 2, 1)[:, :, 0], 3)
    return graph.compile([table, best.indices, mask, graph.constant(np.arange(3, dtype=np.int16)), table])


@pytest.fixture(scope="module")
def saved(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("graphs") / "small.graph"
    tvmdml.save_graph(small(), path)
    return path


def given() -> dict[str, Any]:
    rng = np.random.default_rng(4)
    return {"x": rng.standard_normal((2, 3, 8, 8)).astype(np.float32), "mask": rng.random((2, 8)) > 0.5}


def test_a_saved_graph_gives_the_same_results(saved: Path, tmp_path: Path) -> None:
    compiled, loaded = small(), tvmdml.load_graph(saved)
    bias = np.full((1, 4, 1, 1), 0.5, np.float32)
    for one in (compiled, loaded):
        one.initialize({"b": bias})
    for a, b in zip(compiled(given()), loaded(given()), strict=True):
        assert (a.dtype, a.shape) == (b.dtype, b.shape)
        assert np.array_equal(a, b)
    assert loaded.name == "small"
    assert "CONVOLUTION" in str(loaded.explain())
    again = tmp_path / "again.graph"
    tvmdml.save_graph(loaded, again)
    assert again.read_bytes() == saved.read_bytes()


@pytest.mark.full
def test_it_runs_without_the_compiler(saved: Path) -> None:
    code = (
        "import sys, numpy as np, tvmdml\n"
        f"g = tvmdml.load_graph({str(saved)!r})\n"
        "g.initialize([np.zeros((1, 4, 1, 1), np.float32)])\n"
        "print(g([np.ones((2, 3, 8, 8), np.float32), np.ones((2, 8), bool)])[1].tolist(), 'tvm' in sys.modules)"
    )
    tvmdml.load_graph(saved)
    environment = {**os.environ, "TVMDML_DISABLE_JIT": "1"}
    done = subprocess.run([sys.executable, "-c", code], env=environment, capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[[0, 1, 2], [0, 1, 2]] False"


@pytest.mark.full
def test_a_pack_has_all_its_kernels(saved: Path, tmp_path: Path) -> None:
    pack = tmp_path / "small.pack"
    done = CliRunner().invoke(main, ["pack", "build", str(saved), "-o", str(pack), "--target", targets.resolve("cpu").name])
    assert done.exit_code == 0, done.output
    code = (
        "import sys, numpy as np, tvmdml\n"
        f"tvmdml.load_pack({str(pack)!r}, strict=True)\n"
        f"g = tvmdml.load_graph({str(saved)!r})\n"
        "g.initialize([np.zeros((1, 4, 1, 1), np.float32)])\n"
        "print(g([np.ones((2, 3, 8, 8), np.float32), np.ones((2, 8), bool)])[1].tolist(), 'tvm' in sys.modules)"
    )
    environment = {**os.environ, "TVMDML_CACHE_DIR": str(tmp_path / "cache")}
    done = subprocess.run([sys.executable, "-c", code], env=environment, capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[[0, 1, 2], [0, 1, 2]] False"


def test_it_is_for_one_kind_of_target(saved: Path) -> None:
    with pytest.raises(tvmdml.Unsupported, match=r"the kind that .* was compiled for: cpu"):
        tvmdml.load_graph(saved, "cuda:sm_80")


def _changed(content: bytes, change: Any) -> bytes:
    size = struct.unpack_from("<Q", content, 16)[0]
    described = json.loads(content[32 : 32 + size])
    change(described)
    text = json.dumps(described).encode()
    text += b" " * (-(32 + len(text)) % 64)
    return content[:16] + struct.pack("<Q", len(text)) + content[24:32] + text + content[32 + size :]


def _set(*path: Any) -> Any:
    *steps, last, value = path

    def change(described: Any) -> None:
        for step in steps:
            described = described[step]
        described[last] = value

    return change


HOSTILE = {
    "an input from far away": _set("calls", 0, "reads", "input_tensor", ["input", 0, 0, 1 << 40]),
    "an edge to a later call": _set("calls", 0, "reads", "input_tensor", ["call", 1, 0, 0]),
    "an edge to itself": _set("calls", 0, "reads", "input_tensor", ["call", 0, 0, 0]),
    "a negative place": _set("calls", 0, "reads", "filter_tensor", ["constant", -1, 0, 0]),
    "a constant behind the end": _set("constants", 0, "place", 1 << 30),
    "a constant too large": _set("constants", 0, "shape", [1 << 31, 1 << 31, 4]),
    "a small input": _set("inputs", 0, "sizes", [1]),
    "another operator": _set("calls", 0, "line", {"operator": "NOTHING"}),
    "no descriptor": _set("calls", 0, "line", 7),
    "an output that is not there": _set("outputs", 0, "reads", ["call", 0, 5, 0]),
    "a large output": _set("outputs", 0, "sizes", [1 << 20]),
    "an output of another shape": _set("outputs", 0, "shape", [7]),
    "an output that is smaller than its kernel's": lambda described: described["outputs"][0].update(sizes=[1], shape=[1]),
    "an output whose size overflows": _set("outputs", 0, "shape", [1 << 31, 1 << 31, 4]),
    "inputs with one name": lambda described: described["inputs"].append(described["inputs"][0]),
    "no type": _set("outputs", 0, "dtype", "complex64"),
    "inputs that are no list": _set("inputs", {"0": 1}),
}


@pytest.mark.parametrize("name", HOSTILE)
def test_hostile_descriptions_are_refused(name: str, saved: Path, tmp_path: Path) -> None:
    path = tmp_path / "hostile.graph"
    path.write_bytes(_changed(saved.read_bytes(), HOSTILE[name]))
    with pytest.raises(tvmdml.ModelError, match=r"hostile\.graph"):
        tvmdml.load_graph(path)


@hypothesis.settings(max_examples=60, deadline=None, suppress_health_check=[hypothesis.HealthCheck.function_scoped_fixture])
@hypothesis.given(st.integers(0, 6000), st.integers(0, 255), st.booleans())
def test_damaged_files_are_errors(saved: Path, tmp_path: Path, at: int, value: int, cut: bool) -> None:
    content = bytearray(saved.read_bytes())
    at %= len(content)
    if cut:
        del content[at:]
    else:
        content[at] = value
    path = tmp_path / "damaged.graph"
    path.write_bytes(content)
    try:
        tvmdml.load_graph(path)
    except tvmdml.TvmdmlError:
        pass
    else:
        assert not cut


def test_files_that_are_no_graphs(tmp_path: Path) -> None:
    with pytest.raises(tvmdml.ModelError, match="No such file"):
        tvmdml.load_graph(tmp_path / "nothing")
    (tmp_path / "text").write_text("x" * 100)
    with pytest.raises(tvmdml.ModelError, match="not a graph that tvmdml saved"):
        tvmdml.load_graph(tmp_path / "text")
