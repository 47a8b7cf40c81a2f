"""Options of sessions that only this package has, or that are honoured in its own way."""

from __future__ import annotations

import dataclasses
import importlib
import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from programs import python

import tvmdml

onnx: Any = pytest.importorskip("onnx", reason="ONNX is not installed")

from test_onnx_programs import B, X, Y, close, linear, session, unary  # noqa: E402 - they need ONNX


def test_values_are_copied() -> None:
    ort = importlib.import_module("tvmdml.onnx")
    source = [ort.OrtValue.ortvalue_from_numpy(X), ort.OrtValue.ortvalue_from_numpy(B)]
    to = [ort.OrtValue.ortvalue_from_shape_and_type(one.shape(), np.float32, "cpu", 0) for one in source]
    ort.copy_tensors(source, to)
    assert all(np.array_equal(one.numpy(), other.numpy()) for one, other in zip(source, to, strict=True))
    with pytest.raises(tvmdml.InvalidArgument, match="copy_tensors dst: given 1 value; allowed: 2"):
        ort.copy_tensors(source, to[:1])


def test_options_without_effect_are_named_once(tmp_path: Path) -> None:
    ort = importlib.import_module("tvmdml.onnx")
    code = (
        "import tvmdml.onnx as ort, sys; o = ort.SessionOptions(); o.enable_mem_pattern = False\n"
        "o.intra_op_num_threads = 1; o.add_session_config_entry('session.x', '1')\n"
        "for _ in range(2): ort.InferenceSession(sys.argv[1], o, providers=[('CPUExecutionProvider', {'use_arena': '1'})])\n"
        "r = ort.RunOptions(only_execute_path_to_fetches=True)\n"
        "for _ in range(2): ort.InferenceSession(sys.argv[1]).run(None, {'x': [[1, 2, 3]]}, r)\n"
    )
    path = tmp_path / "linear.onnx"
    path.write_bytes(linear())
    assert ort.SessionOptions().without_effect() == []
    done = subprocess.run([sys.executable, "-c", code, str(path)], capture_output=True, text=True, check=True)
    assert done.stderr.count("these options of sessions have no effect: enable_mem_pattern, session.x, use_arena.") == 1
    assert done.stderr.count("these options of runs have no effect: only_execute_path_to_fetches.") == 1
    assert done.stderr.count("Warning: ") == 2


@pytest.mark.parametrize("count", [-1, 1025, 1.5, True])
def test_a_number_of_threads_that_is_none_is_refused(count: Any) -> None:
    options = importlib.import_module("tvmdml.onnx").SessionOptions(intra_op_num_threads=count)
    with pytest.raises(tvmdml.InvalidArgument, match=r"intra_op_num_threads: given .*; allowed: an integer from 0 to 1024"):
        session(importlib.import_module("tvmdml.onnx"), options=options)


THREADS = """
import sys, threading, numpy as np, tvmdml.onnx as ort
from tvmdml.targets.cpu import threads
x = np.ones(16_000_000, np.float32)
found = []
for count in (1, 2, 0):
    made = ort.InferenceSession(sys.argv[1], ort.SessionOptions(intra_op_num_threads=count))
    made.run(None, {"x": x})
    binding = made.io_binding()
    binding.bind_cpu_input("x", x)
    binding.bind_output("y")
    made.run_with_iobinding(binding)
    found.append(threads.native().started() if threads.native() else sum(t.name == "tvmdml" for t in threading.enumerate()))
print(found)
"""


@pytest.mark.parametrize(("disabled", "started"), [("0", ([0, 1, 3], [1, 2, 4])), ("1", ([1, 2, 4],))])
def test_a_session_uses_as_many_threads_as_it_was_told(disabled: str, started: tuple[list[int], ...], tmp_path: Path) -> None:
    """The caller is one of them. With the pool in Python a thread makes the calls of the main thread."""
    (tmp_path / "m.onnx").write_bytes(unary("Neg"))
    variables = {"TVMDML_NUM_THREADS": "4", "TVMDML_DISABLE_NATIVE": disabled}
    assert json.loads(python(THREADS, tmp_path / "m.onnx", may_complain=True, **variables)) in started


def test_the_variable_names_the_device_of_directml(monkeypatch: pytest.MonkeyPatch) -> None:
    ort = importlib.import_module("tvmdml.onnx")
    monkeypatch.setenv("TVMDML_DEVICE", "cpu")
    opened = ort.InferenceSession(linear(), providers=["DmlExecutionProvider"])
    assert opened.target.kind == "cpu"
    assert opened.get_providers() == ["DmlExecutionProvider", "CPUExecutionProvider"]
    close(opened.run(None, {"x": X})[0], Y)
    assert ort.OrtValue.ortvalue_from_numpy(X, "dml", 0).device_name() == "cpu"
    assert "DmlExecutionProvider" in ort.get_available_providers()
    monkeypatch.setenv("TVMDML_DEVICE", "toaster")
    with pytest.warns(UserWarning, match="TVMDML_DEVICE: given 'toaster'"):
        assert ort.InferenceSession(linear(), providers=["DmlExecutionProvider"]).target.kind == "cpu"


QUANTIZES = """
import sys
import onnxruntime
from onnxruntime.quantization import QuantType, quantize_dynamic
quantize_dynamic(sys.argv[1], sys.argv[2], weight_type=QuantType.QInt8)
session = onnxruntime.InferenceSession(sys.argv[2])
print(onnxruntime.__name__, session.run(None, {"x": [[1, 2, 3]]})[0].shape, type(session).__module__)
"""


def test_tools_for_files_are_those_of_onnx_runtime(tmp_path: Path) -> None:
    pytest.importorskip("onnxruntime.quantization", reason="ONNX Runtime is not installed")
    (tmp_path / "m.onnx").write_bytes(linear())
    (tmp_path / "program.py").write_text(QUANTIZES)
    command = [sys.executable, "-m", "tvmdml.onnx", "program.py", "m.onnx", "small.onnx"]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, check=False)
    assert (done.returncode, done.stdout) == (0, "tvmdml.onnx (1, 2) tvmdml.onnx.model\n"), done.stderr
    assert hasattr(importlib.import_module("tvmdml.onnx").quantization, "quantize_dynamic")


ODD = (None, 1.5, b"x", [1], {1: 2}, object(), np.array([1, 2]), 10**30)


@pytest.mark.parametrize("kind", ["SessionOptions", "RunOptions"])
def test_options_of_other_types_are_refused(kind: str) -> None:
    """An integer for a path would be a file that is open."""
    ort = importlib.import_module("tvmdml.onnx")
    usual, made = getattr(ort, kind)(), session(ort)
    uses = {
        "SessionOptions": lambda options: session(ort, options=options),
        "RunOptions": lambda options: made.run(None, {}, options),
    }
    use = uses[kind]
    for text in ("\0", "\ud800"):
        if kind == "SessionOptions":
            with pytest.raises(tvmdml.InvalidArgument, match="optimized_model_filepath: given"):
                session(ort, options=ort.SessionOptions(optimized_model_filepath=text))
    for one in dataclasses.fields(usual):
        wanted = type(getattr(usual, one.name))
        for value in (*ODD, 1):
            if isinstance(value, int if issubclass(wanted, int) else wanted):
                continue
            options = dataclasses.replace(usual, **{one.name: value})
            with pytest.raises(tvmdml.InvalidArgument, match=f"{one.name}: given"):
                use(options)


def test_arguments_of_sessions_of_other_types_are_refused() -> None:
    ort = importlib.import_module("tvmdml.onnx")
    model, made = linear(), session(ort)
    calls: dict[str, Any] = {
        "sess_options": lambda odd: ort.InferenceSession(model, odd),
        "providers": lambda odd: ort.InferenceSession(model, providers=odd),
        "provider_options": lambda odd: ort.InferenceSession(model, providers=["cpu"], provider_options=odd),
        "run output_names": lambda odd: made.run(odd, {"x": X}),
        "run input_feed": lambda odd: made.run(None, odd),
        "run_options": lambda odd: made.run(None, {"x": X}, odd),
        "run_with_iobinding": made.run_with_iobinding,
        "add_provider options": lambda odd: ort.SessionOptions().add_provider("cpu", odd),
        "add_provider_for_devices devices": lambda odd: ort.SessionOptions().add_provider_for_devices(odd, {}),
        "add_session_config_entry key": lambda odd: ort.SessionOptions().add_session_config_entry(odd, ""),
        "add_run_config_entry key": lambda odd: ort.RunOptions().add_run_config_entry(odd, ""),
    }
    for where, call in calls.items():
        for odd in (1.5, object()):
            with pytest.raises(tvmdml.InvalidArgument, match=f"{where}: given .*; allowed: "):
                call(odd)
