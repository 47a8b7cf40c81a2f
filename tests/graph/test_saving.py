"""Graphs in files: they give the same results, from stored kernels; damaged and hostile files are refused."""

from __future__ import annotations

import json
import struct
from pathlib import Path
from typing import Any

import hypothesis
import hypothesis.strategies as st
import numpy as np
import pytest
from commands import succeed
from packs import put
from programs import python

import tvmdml
from tvmdml import targets


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
    assert python(code, TVMDML_DISABLE_JIT="1").strip() == "[[0, 1, 2], [0, 1, 2]] False"


@pytest.mark.full
def test_a_pack_has_all_its_kernels(saved: Path, tmp_path: Path) -> None:
    pack = tmp_path / "small.pack"
    succeed("pack", "build", saved, "-o", pack, "--target", targets.resolve("cpu").name)
    code = (
        "import sys, numpy as np, tvmdml\n"
        f"tvmdml.load_pack({str(pack)!r}, strict=True)\n"
        f"g = tvmdml.load_graph({str(saved)!r})\n"
        "g.initialize([np.zeros((1, 4, 1, 1), np.float32)])\n"
        "print(g([np.ones((2, 3, 8, 8), np.float32), np.ones((2, 8), bool)])[1].tolist(), 'tvm' in sys.modules)"
    )
    assert python(code, TVMDML_CACHE_DIR=str(tmp_path / "cache")).strip() == "[[0, 1, 2], [0, 1, 2]] False"


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


def _value(number: int, value: Any) -> Any:
    """Another value in the place of one of the plan's numbers."""
    return put("plan", "function", 4, number, value)


_ARGUMENTS = "plan", "launchings", 0, 2
HOSTILE = {
    "an input that is not there": put(*_ARGUMENTS, 0, ["input", 9, "input_tensor", 0, 1]),
    "an input from far away": lambda one: (one["plan"]["function"][4].append(1 << 40), put(*_ARGUMENTS, 0, 3, 16)(one)),
    "an input from before": lambda one: (one["plan"]["function"][4].append(-4), put(*_ARGUMENTS, 0, 3, 16)(one)),
    "an input between elements": lambda one: (
        one["plan"]["function"][4].append(2),
        put("plan", "launchings", 1, 2, 0, 3, 16)(one),
    ),
    "a smaller input": put("plan", "inputs", 0, 3, [7, 14, 9, 9]),
    "an input with smaller steps": put("plan", "inputs", 0, 4, [13, 13, 13, 13]),
    "an input that says that it has more bytes": put("plan", "inputs", 0, 5, 99),
    "an input of no type": put("plan", "inputs", 0, 2, "O"),
    "an input of the other order of bytes": put("plan", "inputs", 0, 2, ">f4"),
    "inputs with one name": put("plan", "inputs", 1, 0, "x"),
    "inputs that are no list": put("plan", "inputs", {"0": 1}),
    "an array of fewer bytes than it reads": put(*_ARGUMENTS, 0, 4, 3),
    "a constant that is written": put(*_ARGUMENTS, 3, ["constant", 0, "output_tensor", 0, 4]),
    "an input that is written": put("plan", "launchings", 2, 2, 1, ["input", 1, "output_tensor", 0, 3]),
    "a launch with fewer arrays": lambda one: one["plan"]["launchings"][0][2].pop(),
    "a launch with more arrays": lambda one: one["plan"]["launchings"][0][2].append(["input", 0, "more", 0, 1]),
    "arrays in another order": lambda one: one["plan"]["launchings"][0][2].reverse(),
    "another operator": put("plan", "calls", 0, 0, {"operator": "NOTHING"}),
    "another call": put("plan", "launchings", 0, 0, 1),
    "a call that is not there": put("plan", "launchings", 0, 0, 4),
    "no descriptor": put("plan", "calls", 0, 0, 7),
    "tensors that cannot share memory": put("plan", "calls", 0, 1, True),
    "a smaller piece": put("plan", "pieces", [14]),
    "a piece that lies on itself": put("plan", "order", [[0, [0]]]),
    "a piece without a place": put("plan", "order", []),
    "an output that is not there": put(*_ARGUMENTS, 3, ["output", 9, "output_tensor", 0, 4]),
    "an output that is smaller than its kernel's": put("plan", "results", 0, 1, [14, 13, 15]),
    "an output whose size overflows": lambda one: (_value(7, 1 << 62)(one), _value(13, 1 << 62)(one)),
    "an output with fewer than no elements": _value(7, -2),
    "an output of no type": put("plan", "results", 0, 0, "complex64"),
    "an output that copies a later one": put("plan", "results", 3, 3, 4),
    "an output that copies another type": put("plan", "results", 3, 3, 0),
    "a constant behind the end": put("arrays", 1, 2, 1 << 30),
    "a constant between places": put("arrays", 1, 2, 3),
    "a constant too large": put("arrays", 1, 1, [1 << 31, 1 << 31, 4]),
    "a smaller constant": put("arrays", 1, 1, [4, 3]),
    "a constant that is not there": put("constants", 0, 1, 99),
    "a constant of another number": put("constants", 0, 0, 9),
    "a constant that was not written": put("constants", []),
    "fewer constants": put("plan", "constants", 0),
    "sizes that are open": put("plan", "function", 0, [0]),
    "a condition": put("plan", "function", 2, [[[[[], 1]], 2, 3, []]]),
    "a choice": put("plan", "function", 3, [["os:system", [["is", "true"]], 0]]),
    "numbers that are none": _value(3, 1.5),
    "a condition that is no byte": put("plan", "launchings", 0, 3, [1, 1, 1, 1, 1]),
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


def test_a_graph_of_an_earlier_format_is_refused(saved: Path, tmp_path: Path) -> None:
    content = bytearray(saved.read_bytes())
    content[8] = 1
    (tmp_path / "earlier").write_bytes(content)
    with pytest.raises(tvmdml.ModelError, match=r"format 1; this version of tvmdml reads format 4\. Save the graph"):
        tvmdml.load_graph(tmp_path / "earlier")


def test_files_that_are_no_graphs(tmp_path: Path) -> None:
    with pytest.raises(tvmdml.ModelError, match="No such file"):
        tvmdml.load_graph(tmp_path / "nothing")
    (tmp_path / "text").write_text("x" * 100)
    with pytest.raises(tvmdml.ModelError, match="not a graph that tvmdml saved"):
        tvmdml.load_graph(tmp_path / "text")
