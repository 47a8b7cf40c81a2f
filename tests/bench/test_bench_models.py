"""``tvmdml bench MODEL.onnx``: a line for each model, checked against ONNX Runtime where it is installed."""

from __future__ import annotations

import importlib.util
import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from commands import call, succeed

import tvmdml
from tvmdml.proof.bench import changing, models, suite
from tvmdml.proof.bench.measure import CallTiming
from tvmdml.proof.bench.networks.table import TABLE
from tvmdml.proof.bench.sources import ModelSource

onnx: Any = pytest.importorskip("onnx", reason="ONNX is not installed")


@pytest.fixture
def model(tmp_path: Path) -> Path:
    helper = onnx.helper
    nodes = [helper.make_node("MatMul", ["x", "w"], ["a"]), helper.make_node("Relu", ["a"], ["y"])]
    x, y = (helper.make_tensor_value_info(name, onnx.TensorProto.FLOAT, ["rows", n]) for name, n in (("x", 3), ("y", 2)))
    w = onnx.numpy_helper.from_array(np.arange(6, dtype=np.float32).reshape(3, 2) - 2, "w")
    graph = helper.make_graph(nodes, "small", [x], [y], [w])
    path = tmp_path / "small.onnx"
    onnx.save(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 21)], ir_version=10), path)
    return path


@pytest.mark.full
def test_a_model_is_measured_beside_its_peer(model: Path, tmp_path: Path) -> None:
    kept = tmp_path / "figures.json"
    done = succeed("bench", model, "--size", "rows=4", "--size", "other=3", "--json", kept)
    assert "small.onnx" in done.output
    (found,) = json.loads(kept.read_text())
    assert found["kernels"] == 1
    assert found["persistent"] >= 24
    assert found["ours"]["median"] > 0
    assert sum(part for _, part in found["shares"]) == pytest.approx(1)
    if found["note"]:
        assert "not installed" in found["note"]
    else:
        assert found["difference"] < 1e-5
        assert found["peer"]["median"] > 0


def test_a_size_that_is_missing_is_an_error(model: Path) -> None:
    done = call("bench", model)
    assert done.exit_code != 0
    assert "allowed: --size rows=N." in str(done.output)


def test_sizes_that_change_are_measured(model: Path) -> None:
    done = succeed("bench", model, "--vary", "rows=1:64:3", "--threads", "1")
    assert "beyond" in done.output
    row = changing.figures(str(model), {"rows": range(1, 64)}, {}, None, 1)
    assert float(row["new"].split()[0]) > 0
    assert row["sizes"] == 38
    assert changing.figures(str(model), {"rows": range(4, 9)}, {}, None, 1)["sizes"] == 3


@pytest.mark.parametrize(
    ("arguments", "named"),
    [
        (["--vary", "rows"], "NAME=VALUE"),
        (["--vary", "rows=4"], "LEAST:MOST"),
        (["--vary", "rows=4:2"], "at most MOST"),
        (["--vary", "rows=1:9:0"], "STEP of 1"),
        (["--vary", "columns=1:9"], "each open size: rows"),
        (["--vary", "rows=1:9", "--size", "rows=4"], "one of both"),
        (["--vary", "rows=1:2"], "more than 2"),
        (["--vary", "rows=1:9", "--full"], "has no"),
        (["--size", "rows=4", "--html", "page.html"], "--html: of no effect where a MODEL is given; `tvmdml explain"),
        (["--resume", "--plot", "p.png"], "--plot, --resume: of no effect"),
    ],
)
def test_wrong_options_are_errors(model: Path, arguments: list[str], named: str) -> None:
    done = call("bench", model, *arguments)
    assert done.exit_code != 0
    assert named in str(done.output) + str(done.exception)


def test_differences_are_parts_of_the_largest_element() -> None:
    right = [np.array([1.0, -4.0, np.inf])]
    assert models._difference([np.array([1.0, -4.4, np.inf])], right) == pytest.approx(0.1)
    assert models._difference([np.zeros(0)], [np.zeros(0)]) == 0


def test_an_output_of_other_sizes_differs_without_end() -> None:
    assert models._difference([np.zeros(3)], [np.zeros(4)]) == float("inf")


def test_known_models_are_listed_once_and_found_by_name() -> None:
    everything = suite.points(True)
    assert len({one.name for one in everything}) == len(everything)
    assert {one.source.network or one.source.package for one in everything} >= {*TABLE, "magika", "nudenet"}
    assert {one.source.batch for one in suite.points(False)} == {1}
    assert all(one.source.arrays().keys() == one.source.inputs.keys() for one in suite.points(True, "LSTM"))
    with pytest.raises(tvmdml.InvalidArgument, match="BERT-base"):
        suite.points(True, "nothing of this name")


@pytest.mark.full
def test_a_run_of_known_models_continues_its_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TVMDML_CACHE_DIR", str(tmp_path / "cache"))
    answers = {
        "race": {
            "entries": [entry("tvmdml", "ours", 0.25), entry("ONNX Runtime", "peer", 0.5), entry("OpenVINO", "aside", 0.125)],
            "difference": 1e-6,
            "shares": [["GEMM tiles", 0.75], ["other", 0.25]],
        },
        "prepare": {"entries": [], "difference": 0.0, "shares": []},
        **{library: {"seconds": 0.1, "peak": 2.0**27, "grown": 0.0} for library in ("tvmdml", "ONNX Runtime")},
    }
    asked = []

    def child(point: suite.Point, path: Path, what: str, *rest: Any) -> dict[str, Any]:
        asked.append(what)
        return dict(answers[what])

    monkeypatch.setattr(suite, "_child", child)
    monkeypatch.setattr(ModelSource, "path", lambda self, folder: tmp_path)
    monkeypatch.setattr(ModelSource, "lacks", lambda self: "" if self.network else self.package)
    arguments = ["bench", "--models", "--filter", "a", "--threads", "1", "--json", str(tmp_path / "a.json")]
    picture = [] if importlib.util.find_spec("matplotlib") is None else ["--plot", str(tmp_path / "a.png")]
    done = succeed(*arguments, *picture)
    assert not picture or (tmp_path / "a.png").read_bytes().startswith(b"\x89PNG")
    assert "2.00" in done.output, "beside ONNX Runtime"
    assert "0.50" in done.output, "beside OpenVINO in its own precision"
    assert "GEMM tiles 75 %" in " ".join(done.output.split())
    assert "magika is not installed" in done.output
    assert set(asked) == {"race", "tvmdml", "ONNX Runtime"}
    assert asked.count("race") > asked.count("ONNX Runtime"), "a file is loaded once, and not for each line"
    asked.clear()
    succeed(*arguments[:-2], "--prepare")
    assert set(asked) == {"prepare"}
    asked.clear()
    done = succeed(*arguments, "--resume")
    assert not asked


def entry(library: str, role: str, seconds: float) -> dict[str, Any]:
    timing = CallTiming(seconds, seconds, seconds, 5, 1)._asdict()
    return {"role": role, "library": library, "name": "", "threads": 1, "timing": timing, "note": "", "problem": ""}
