"""``tvmdml run`` of ONNX models."""

from __future__ import annotations

import json
import re
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from commands import call

onnx: Any = pytest.importorskip("onnx", reason="ONNX is not installed")

from onnx_nodes import N, info, model, ramp  # noqa: E402 - they need ONNX

from tvmdml.onnx.running import Runnable  # noqa: E402
from tvmdml.onnx.stage import Stage  # noqa: E402


@pytest.fixture
def path(tmp_path: Path) -> Path:
    onnx.save(model([N("Neg", ["x"], ["y"])], [info("x", ["n", 2])], [info("y", ["n", 2])]), tmp_path / "m.onnx")
    np.save(tmp_path / "x.npy", ramp(3, 2))
    return tmp_path


def run(*arguments: object) -> Any:
    return call("run", *map(str, arguments))


def test_inputs_are_read_and_outputs_written(path: Path) -> None:
    given = (path / "m.onnx", "--input", f"x={path / 'x.npy'}", "--output_path", path / "out")
    found = run(*given, "-i", 3, "-v", 1)
    assert found.exit_code == 0, found.stderr
    assert "Dispatch 'm.onnx': 3 iterations" in found.output
    assert "Output 'y': float32[3, 2], -3.0 to 2.0" in found.output
    assert "Preparation: " in found.output
    assert np.array_equal(np.load(path / "out" / "y.npy"), -ramp(3, 2))
    again = run(*given)
    assert again.exit_code == 1
    assert "already exists" in again.stderr
    assert "--overwrite" in again.stderr
    assert run(*given, "--overwrite").exit_code == 0


def test_inputs_are_made_up_where_sizes_are_known(path: Path) -> None:
    found = run(path / "m.onnx", "--size", "n=4")
    assert found.exit_code == 0, found.stderr
    assert "float32[4, 2]" in found.output
    assert found.output.splitlines()[1:] == run(path / "m.onnx", "--size", "n=4").output.splitlines()[1:]


def test_sizes_are_given_as_dxdispatch_gives_them(path: Path) -> None:
    for given in (("-f", "n:4"), ("-b", "x:4,2"), ("--onnx_free_dim_name_override", "n:4", "--binding_shape", "x:4,2")):
        found = run(path / "m.onnx", *given)
        assert found.exit_code == 0, found.stderr
        assert "float32[4, 2]" in found.output
    for wrong, said in (("x:4,3", "given [4, 3]; allowed: [n, 2]"), ("x:4", "given [4]; allowed: [n, 2]"), ("z:4", "allowed: x")):
        found = run(path / "m.onnx", "-b", wrong)
        assert found.exit_code == 1
        assert said in found.stderr


def test_compilation_is_no_sample(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Sizes that an input gives are compiled for when it is there."""
    runs: list[bool] = []
    call, made = Runnable.__call__, Stage.made

    def counted(self: Any, *given: Any) -> Any:
        runs.append(False)
        return call(self, *given)

    def compiled(self: Any, *given: Any) -> Any:
        runs[-1] = True
        return made(self, *given)

    monkeypatch.setattr(Runnable, "__call__", counted)
    monkeypatch.setattr(Stage, "made", compiled)
    found = run(path / "m.onnx", "--input", f"x={path / 'x.npy'}", "-v", 2)
    assert runs == [True, False]
    assert sum(line.startswith("iteration ") for line in found.output.splitlines()) == 1


def test_a_profile_is_shown_and_written(path: Path) -> None:
    found = run(path / "m.onnx", "--size", "n=4", "--profile", path / "trace.json")
    assert found.exit_code == 0, found.stderr
    assert re.search(r"Profile: 1 kernel, [1-9][0-9.]* (ns|µs|ms) in all; ", found.output)
    assert "100%  ELEMENT_WISE_NEGATE" in found.output
    (event,) = json.loads((path / "trace.json").read_text())["traceEvents"]
    assert event["args"]["output_tensor"] == "float32[4, 2]"
    assert run(path / "m.onnx", "--size", "n=4", "--profile", path / "no" / "trace.json").exit_code == 1


@pytest.mark.parametrize(
    ("arguments", "code", "said"),
    [
        ((), 1, "allowed: --input x=FILE.npy, or --size n=N"),
        (("--size", "n"), 2, "NAME=VALUE"),
        (("--size", "n=-1"), 2, "0 or more"),
        (("--size", "m=1"), 1, "'m'"),
        (("--input", "y=y.npy"), 1, "'y'; allowed: x"),
        (("--input", "x=missing.npy"), 1, "missing.npy"),
        (("--input", "x=m.onnx"), 1, "numpy.save"),
    ],
)
def test_wrong_arguments_are_said(path: Path, monkeypatch: pytest.MonkeyPatch, arguments: Any, code: int, said: str) -> None:
    monkeypatch.chdir(path)
    found = run("m.onnx", *arguments)
    assert found.exit_code == code
    assert said in found.stderr


def test_a_missing_file_is_said_before_a_missing_package(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "onnx", None)
    monkeypatch.setenv("TVMDML_DISABLE_PLANS", "1")
    assert "cannot be read (No such file" in run(path / "nothere.onnx").stderr
    assert "`pip install onnx`" in run(path / "m.onnx").stderr


def test_an_output_cannot_leave_its_folder(path: Path) -> None:
    onnx.save(model([N("Neg", ["x"], ["../y"])], [info("x", [2])], [info("../y", [2])]), path / "m.onnx")
    found = run(path / "m.onnx", "--output_path", path / "out")
    assert found.exit_code == 1
    assert "outside" in found.stderr
    assert not (path / "y.npy").exists()
