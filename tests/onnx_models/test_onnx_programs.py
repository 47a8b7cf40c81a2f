"""Short programs for ONNX Runtime. Each holds for this package, and for ONNX Runtime where it is installed beside."""

from __future__ import annotations

import importlib
import json
import os
import threading
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

onnx: Any = pytest.importorskip("onnx", reason="ONNX is not installed")

from onnx_nodes import BOOL, FLOAT, INT64, N, info, model, ramp  # noqa: E402 - they need ONNX

Program = Callable[[Any, Path], object]
PROGRAMS: dict[str, Program] = {}
W, B = ramp(3, 2), ramp(2)
X = ramp(4, 3)
Y = X @ W + B


def program(function: Program) -> Program:
    PROGRAMS[function.__name__] = function
    return function


@pytest.mark.parametrize("package", ["tvmdml.onnx", "onnxruntime"])
@pytest.mark.parametrize("name", PROGRAMS)
def test_a_program_holds(name: str, package: str, tmp_path: Path) -> None:
    ort = pytest.importorskip(package, reason="ONNX Runtime is not installed")
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # what has no effect is told; another test looks at that
        PROGRAMS[name](ort, tmp_path)


# -- Models -------------------------------------------------------------------------------------------------------


def linear(n: Any = "n", **more: Any) -> bytes:
    """``y = x @ w + b``."""
    nodes = [N("MatMul", ["x", "w"], ["xw"], name="product"), N("Add", ["xw", "b"], ["y"], name="sum")]
    return bytes(
        model(nodes, [info("x", [n, 3])], [info("y", [n, 2])], {"w": W, "b": B}, ir_version=10, **more).SerializeToString()
    )


def unary(operator: str, kind: int = FLOAT, shape: Any = ("n",), to: int | None = None) -> bytes:
    made = model([N(operator, ["x"], ["y"])], [info("x", shape, kind)], [info("y", shape, to or kind)], ir_version=10)
    return bytes(made.SerializeToString())


def two_outputs() -> bytes:
    nodes = [N("Neg", ["a"], ["minus"]), N("Add", ["a", "b"], ["sum"])]
    inputs = [info("a", ["n"]), info("b", ["n"])]
    return bytes(model(nodes, inputs, [info("minus", ["n"]), info("sum", ["n"])], ir_version=10).SerializeToString())


def session(ort: Any, made: bytes | None = None, options: Any = None, **more: Any) -> Any:
    return ort.InferenceSession(made or linear(), options, providers=["CPUExecutionProvider"], **more)


def close(found: Any, right: Any) -> None:
    assert np.allclose(found, right, atol=1e-5)


def refused(call: Callable[[], object]) -> Exception:
    try:
        call()
    except Exception as error:
        return error
    raise AssertionError("nothing was raised")


# -- Sessions and what they say of a model ------------------------------------------------------------------------


@program
def first_example(ort: Any, tmp: Path) -> None:
    close(session(ort).run(None, {"x": X})[0], Y)


@program
def from_paths(ort: Any, tmp: Path) -> None:
    (tmp / "linear.onnx").write_bytes(linear())
    for path in (tmp / "linear.onnx", str(tmp / "linear.onnx")):
        close(ort.InferenceSession(path).run(["y"], {"x": X})[0], Y)


@program
def weights_beside_the_model(ort: Any, tmp: Path) -> None:
    made = onnx.load_model_from_string(linear())
    onnx.save_model(made, tmp / "linear.onnx", save_as_external_data=True, location="weights.bin", size_threshold=0)
    close(ort.InferenceSession(str(tmp / "linear.onnx")).run(None, {"x": X})[0], Y)


@program
def names_types_and_shapes(ort: Any, tmp: Path) -> None:
    (given,), (result,) = session(ort).get_inputs(), session(ort).get_outputs()
    assert (given.name, given.type, given.shape) == ("x", "tensor(float)", ["n", 3])
    assert (result.name, result.type, result.shape) == ("y", "tensor(float)", ["n", 2])


@program
def a_size_without_a_name(ort: Any, tmp: Path) -> None:
    assert session(ort, unary("Neg", shape=[None, 2])).get_inputs()[0].shape == [None, 2]


@program
def types_of_inputs(ort: Any, tmp: Path) -> None:
    types = {"FLOAT16": "tensor(float16)", "DOUBLE": "tensor(double)", "INT64": "tensor(int64)", "INT32": "tensor(int32)"}
    for name, said in types.items():
        assert session(ort, unary("Abs", getattr(onnx.TensorProto, name))).get_inputs()[0].type == said


@program
def metadata(ort: Any, tmp: Path) -> None:
    made = onnx.load_model_from_string(linear(producer_name="somebody", model_version=7, domain="net", doc_string="words"))
    onnx.helper.set_model_props(made, {"labels": "a,b", "author": "me"})
    about = session(ort, made.SerializeToString()).get_modelmeta()
    assert about.custom_metadata_map == {"labels": "a,b", "author": "me"}
    assert (about.producer_name, about.version, about.domain, about.description) == ("somebody", 7, "net", "words")
    assert (about.graph_name, about.graph_description) == ("g", "")


@program
def weights_that_may_be_given(ort: Any, tmp: Path) -> None:
    made = onnx.load_model_from_string(linear())
    made.graph.input.append(info("b", [2]))
    opened = session(ort, made.SerializeToString())
    assert [one.name for one in opened.get_overridable_initializers()] == ["b"]
    close(opened.run(None, {"x": X})[0], Y)
    close(opened.run(None, {"x": X, "b": B + 1})[0], Y + 1)


@program
def options_are_those_given(ort: Any, tmp: Path) -> None:
    options = ort.SessionOptions()
    options.intra_op_num_threads, options.logid = 2, "mine"
    found = session(ort, options=options).get_session_options()
    assert (found.intra_op_num_threads, found.logid) == (2, "mine")


@program
def defaults_of_options(ort: Any, tmp: Path) -> None:
    options, run = ort.SessionOptions(), ort.RunOptions()
    assert (options.intra_op_num_threads, options.inter_op_num_threads, options.enable_profiling) == (0, 0, False)
    assert options.graph_optimization_level == ort.GraphOptimizationLevel.ORT_ENABLE_ALL
    assert options.execution_mode == ort.ExecutionMode.ORT_SEQUENTIAL
    assert (options.log_severity_level, options.enable_mem_pattern, options.enable_cpu_mem_arena) == (-1, True, True)
    assert (run.log_severity_level, run.terminate, run.only_execute_path_to_fetches) == (-1, False, False)


@program
def providers_of_a_session(ort: Any, tmp: Path) -> None:
    opened = session(ort)
    assert opened.get_providers() == ["CPUExecutionProvider"]
    assert opened.get_provider_options() == {"CPUExecutionProvider": {}}


@program
def providers_in_every_form(ort: Any, tmp: Path) -> None:
    name = "CPUExecutionProvider"
    for given in ({"providers": ["NoSuchExecutionProvider", name]}, {"providers": [(name, {"use_arena": "1"})]}):
        assert ort.InferenceSession(linear(), **given).get_providers() == [name]
    opened = ort.InferenceSession(linear(), providers=[name], provider_options=[{}])
    opened.set_providers([name])
    close(opened.run(None, {"x": X})[0], Y)


@program
def providers_in_options(ort: Any, tmp: Path) -> None:
    options = ort.SessionOptions()
    assert not options.has_providers()
    (device,) = [one for one in ort.get_ep_devices() if one.ep_name == "CPUExecutionProvider"]
    options.add_provider_for_devices([device], {})
    assert options.has_providers()
    assert ort.InferenceSession(linear(), options).get_providers() == ["CPUExecutionProvider"]


@program
def a_policy_for_providers(ort: Any, tmp: Path) -> None:
    options = ort.SessionOptions()
    options.set_provider_selection_policy(ort.OrtExecutionProviderDevicePolicy.PREFER_CPU)
    close(ort.InferenceSession(linear(), options).run(None, {"x": X})[0], Y)


@program
def devices_of_the_machine(ort: Any, tmp: Path) -> None:
    device = next(one for one in ort.get_ep_devices() if one.ep_name == "CPUExecutionProvider").device
    assert device.type == ort.OrtHardwareDeviceType.CPU
    assert isinstance(device.vendor, str)
    assert isinstance(device.vendor_id, int)
    assert device.device_id == 0


@program
def what_is_installed(ort: Any, tmp: Path) -> None:
    assert "CPUExecutionProvider" in ort.get_available_providers()
    assert set(ort.get_available_providers()) <= set(ort.get_all_providers())
    assert ort.get_device() in ("CPU", "GPU")
    assert ort.__version__ == ort.get_version_string()
    assert isinstance(ort.get_build_info(), str)


# -- Options ------------------------------------------------------------------------------------------------------


@program
def options_that_change_no_result(ort: Any, tmp: Path) -> None:
    levels = ("ORT_DISABLE_ALL", "ORT_ENABLE_BASIC", "ORT_ENABLE_EXTENDED", "ORT_ENABLE_ALL")
    for given in (
        *({"intra_op_num_threads": count} for count in (1, 2, 3)),
        *({"graph_optimization_level": getattr(ort.GraphOptimizationLevel, level)} for level in levels),
        {"execution_mode": ort.ExecutionMode.ORT_PARALLEL, "inter_op_num_threads": 2},
        dict.fromkeys(("enable_mem_pattern", "enable_cpu_mem_arena", "enable_mem_reuse"), False),
    ):
        options = ort.SessionOptions()
        for name, value in given.items():
            setattr(options, name, value)
        close(session(ort, options=options).run(None, {"x": X})[0], Y)


@program
def a_size_by_name(ort: Any, tmp: Path) -> None:
    options = ort.SessionOptions()
    options.add_free_dimension_override_by_name("n", 4)
    opened = session(ort, options=options)
    assert opened.get_inputs()[0].shape == [4, 3]
    close(opened.run(None, {"x": X})[0], Y)


@program
def a_size_by_denotation(ort: Any, tmp: Path) -> None:
    made = onnx.load_model_from_string(linear())
    made.graph.input[0].type.tensor_type.shape.dim[0].denotation = "DATA_BATCH"
    options = ort.SessionOptions()
    options.add_free_dimension_override_by_denotation("DATA_BATCH", 4)
    options.add_free_dimension_override_by_denotation("DATA_CHANNEL", 9)
    opened = session(ort, made.SerializeToString(), options)
    assert opened.get_inputs()[0].shape == [4, 3]
    close(opened.run(None, {"x": X})[0], Y)


@program
def a_profile(ort: Any, tmp: Path) -> None:
    options = ort.SessionOptions()
    options.enable_profiling, options.profile_file_prefix = True, str(tmp / "times")
    opened = session(ort, options=options)
    opened.run(None, {"x": X})
    assert opened.get_profiling_start_time_ns() > 0
    name = opened.end_profiling()
    events = json.loads(Path(name).read_text())
    assert name.startswith(str(tmp / "times"))
    assert all({"cat", "pid", "tid", "dur", "ts", "ph", "name", "args"} <= set(event) for event in events)
    assert "model_run" in [event["name"] for event in events if event["cat"] == "Session"]
    assert any(event["cat"] == "Node" for event in events)


@program
def an_optimized_model(ort: Any, tmp: Path) -> None:
    options = ort.SessionOptions()
    options.optimized_model_filepath = str(tmp / "optimized.onnx")
    options.graph_optimization_level = ort.GraphOptimizationLevel.ORT_ENABLE_BASIC
    session(ort, options=options)
    onnx.checker.check_model(str(tmp / "optimized.onnx"))
    close(session(ort, (tmp / "optimized.onnx").read_bytes()).run(None, {"x": X})[0], Y)


@program
def an_optimized_model_of_one_size(ort: Any, tmp: Path) -> None:
    options = ort.SessionOptions()
    options.optimized_model_filepath = str(tmp / "optimized.onnx")
    options.add_free_dimension_override_by_name("n", 4)
    session(ort, options=options)
    assert session(ort, (tmp / "optimized.onnx").read_bytes()).get_inputs()[0].shape == [4, 3]


@program
def entries(ort: Any, tmp: Path) -> None:
    options, run = ort.SessionOptions(), ort.RunOptions()
    options.add_session_config_entry("session.intra_op.allow_spinning", "0")
    assert options.get_session_config_entry("session.intra_op.allow_spinning") == "0"
    run.add_run_config_entry("disable_synchronize_execution_providers", "1")
    assert run.get_run_config_entry("disable_synchronize_execution_providers") == "1"
    refused(lambda: options.get_session_config_entry("other"))
    refused(lambda: run.get_run_config_entry("other"))
    close(session(ort, options=options).run(None, {"x": X}, run)[0], Y)


@program
def severities(ort: Any, tmp: Path) -> None:
    for severity in (3, 4, 2):
        ort.set_default_logger_severity(severity)
        options = ort.SessionOptions()
        options.log_severity_level = severity
        session(ort, options=options)
    refused(lambda: ort.set_default_logger_severity(9))
    ort.set_default_logger_verbosity(0)


@program
def a_function_for_the_log(ort: Any, tmp: Path) -> None:
    told: list[Any] = []
    ort.set_default_logger_callback(lambda *record: told.append(record), 0)
    session(ort, unary("Neg", shape=[len(os.fspath(tmp)) + 1, 3]))
    ort.set_default_logger_callback(None)
    ort.set_default_logger_severity(2)
    assert all(len(one) == 5 and 0 <= one[0] <= 4 and all(isinstance(text, str) for text in one[1:]) for one in told)
    assert told
    refused(lambda: ort.set_default_logger_callback(3))


@program
def events_are_not_reported(ort: Any, tmp: Path) -> None:
    ort.enable_telemetry_events()
    ort.disable_telemetry_events()


# -- Running ------------------------------------------------------------------------------------------------------


@program
def some_outputs(ort: Any, tmp: Path) -> None:
    feeds = {"a": ramp(5), "b": np.ones(5, np.float32)}
    opened = session(ort, two_outputs())
    (total,) = opened.run(["sum"], feeds)
    close(total, ramp(5) + 1)
    total, minus = opened.run(["sum", "minus"], feeds)
    close(minus, -ramp(5))
    assert len(opened.run([], feeds)) == len(opened.run(None, feeds)) == 2


@program
def arrays_of_any_form(ort: Any, tmp: Path) -> None:
    opened = session(ort)
    for x in (*(ramp(n, 3) for n in (1, 7, 2)), np.zeros((0, 3), np.float32), np.asfortranarray(X), ramp(8, 3)[::2], [[1, 2, 3.5]]):
        close(opened.run(None, {"x": x})[0], np.asarray(x) @ W + B)


@program
def truth_values(ort: Any, tmp: Path) -> None:
    found = session(ort, unary("Not", BOOL)).run(None, {"x": np.array([True, False])})[0]
    assert found.dtype == np.bool_
    assert found.tolist() == [False, True]


@program
def half_precision(ort: Any, tmp: Path) -> None:
    found = session(ort, unary("Abs", onnx.TensorProto.FLOAT16)).run(None, {"x": np.array([-1.5, 2], np.float16)})[0]
    assert found.dtype == np.float16
    assert found.tolist() == [1.5, 2]


@program
def a_scalar(ort: Any, tmp: Path) -> None:
    found = session(ort, unary("Neg", shape=[])).run(None, {"x": np.array(3, np.float32)})[0]
    assert found.shape == ()
    assert float(found) == -3


@program
def shapes_as_results(ort: Any, tmp: Path) -> None:
    made = model([N("Shape", ["x"], ["s"])], [info("x", ["a", "b"])], [info("s", [2], INT64)], ir_version=10)
    assert session(ort, made.SerializeToString()).run(None, {"x": ramp(2, 5)})[0].tolist() == [2, 5]


@program
def a_sequence(ort: Any, tmp: Path) -> None:
    nodes = [N("SequenceConstruct", ["a", "b"], ["s"])]
    sequence = onnx.helper.make_tensor_sequence_value_info("s", FLOAT, None)
    made = model(nodes, [info("a", [2]), info("b", [3])], [sequence], ir_version=10)
    opened = session(ort, made.SerializeToString())
    found = opened.run(None, {"a": ramp(2), "b": ramp(3)})[0]
    assert isinstance(found, list)
    assert [one.shape for one in found] == [(2,), (3,)]
    assert opened.get_outputs()[0].type == "seq(tensor(float))"


@program
def a_branch(ort: Any, tmp: Path) -> None:
    def graph(name: str, operator: str) -> Any:
        return onnx.helper.make_graph([N(operator, ["x"], [f"{name}_y"])], name, [], [info(f"{name}_y", [3])])

    node = N("If", ["c"], ["y"], then_branch=graph("yes", "Neg"), else_branch=graph("no", "Abs"))
    opened = session(ort, model([node], [info("c", [], BOOL), info("x", [3])], [info("y", [3])], ir_version=10).SerializeToString())
    for c in (True, False):
        close(opened.run(None, {"c": np.array(c), "x": -ramp(3)})[0], ramp(3) if c else np.abs(ramp(3)))


@program
def many_threads(ort: Any, tmp: Path) -> None:
    opened, found = session(ort), dict[int, Any]()

    def run(i: int) -> None:
        found[i] = opened.run(None, {"x": X + i})[0]

    threads = [threading.Thread(target=run, args=(i,)) for i in range(8)]
    for one in threads:
        one.start()
    for one in threads:
        one.join()
    for i in range(8):
        close(found[i], (X + i) @ W + B)


@program
def later_in_another_thread(ort: Any, tmp: Path) -> None:
    for made, feeds, names, right in (
        (linear(), {"x": X}, ["y"], [Y]),
        (two_outputs(), {"a": ramp(2), "b": ramp(2)}, None, [-ramp(2), 2 * ramp(2)]),
    ):
        done, told = threading.Event(), list[Any]()

        def callback(results: Any, data: Any, error: str, done: Any = done, told: Any = told) -> None:
            told.append((list(results), data, error))
            done.set()

        opened = session(ort, made)
        opened.run_async(names, feeds, callback, {"which": 1})
        assert done.wait(60)
        ((results, data, error),) = told
        for one, other in zip(results, right, strict=True):
            close(one, other)
        assert (data, error) == ({"which": 1}, "")


@program
def names_in_a_run(ort: Any, tmp: Path) -> None:
    options = ort.RunOptions()
    options.logid, options.log_severity_level = "first", 3
    close(session(ort).run(None, {"x": X}, run_options=options)[0], Y)


# -- What is refused ----------------------------------------------------------------------------------------------


@program
def a_missing_input(ort: Any, tmp: Path) -> None:
    assert isinstance(refused(lambda: session(ort).run(None, {})), ValueError)


@program
def calls_that_do_not_fit(ort: Any, tmp: Path) -> None:
    opened, options = session(ort), ort.RunOptions()
    options.terminate = True
    for call in (
        lambda: opened.run(None, {"x": X, "z": X}),
        lambda: opened.run(["z"], {"x": X}),
        lambda: opened.run(None, {"x": ramp(4, 5)}),
        lambda: opened.run(None, {"x": X.astype(np.float64)}),
        lambda: opened.run(None, {"x": X}, options),
        lambda: opened.io_binding().bind_cpu_input("z", X),
        lambda: session(ort, b"these bytes are no model"),
    ):
        refused(call)


@program
def a_wrong_rank(ort: Any, tmp: Path) -> None:
    error = refused(lambda: session(ort).run(None, {"x": ramp(3)}))
    states = importlib.import_module(f"{ort.__name__}.capi.onnxruntime_pybind11_state")
    assert isinstance(error, states.InvalidArgument)


@program
def no_such_file(ort: Any, tmp: Path) -> None:
    error = refused(lambda: ort.InferenceSession(str(tmp / "none.onnx")))
    assert isinstance(error, importlib.import_module(f"{ort.__name__}.capi.onnxruntime_pybind11_state").NoSuchFile)


# -- Values and bindings ------------------------------------------------------------------------------------------


@program
def a_value(ort: Any, tmp: Path) -> None:
    value = ort.OrtValue.ortvalue_from_numpy(X)
    assert (value.shape(), value.data_type(), value.device_name()) == ([4, 3], "tensor(float)", "cpu")
    assert (value.element_type(), value.has_value(), value.is_tensor()) == (FLOAT, True, True)
    assert (value.is_sparse_tensor(), value.is_tensor_sequence()) == (False, False)
    assert value.tensor_size_in_bytes() == X.nbytes
    assert isinstance(value.data_ptr(), int)
    assert np.array_equal(value.numpy(), X)


@program
def a_value_with_room(ort: Any, tmp: Path) -> None:
    for kind, dtype in ((np.int32, np.int32), (onnx.TensorProto.FLOAT16, np.float16)):
        value = ort.OrtValue.ortvalue_from_shape_and_type([2, 3], kind, "cpu", 0)
        assert value.numpy().shape == (2, 3)
        assert value.numpy().dtype == dtype


@program
def a_value_with_new_elements(ort: Any, tmp: Path) -> None:
    value = ort.OrtValue.ortvalue_from_numpy(np.zeros((4, 3), np.float32))
    value.update_inplace(X)
    assert np.array_equal(value.numpy(), X)


@program
def a_value_of_another_type(ort: Any, tmp: Path) -> None:
    bits = np.array([0x3F80, 0xC000], np.uint16)
    value = ort.OrtValue.ortvalue_from_numpy_with_onnx_type(bits, onnx.TensorProto.FLOAT16)
    assert value.element_type() == onnx.TensorProto.FLOAT16
    assert value.shape() == [2]


@program
def values_as_inputs(ort: Any, tmp: Path) -> None:
    opened, value = session(ort), ort.OrtValue.ortvalue_from_numpy(X)
    (found,) = opened.run_with_ort_values(["y"], {"x": value})
    assert found.data_type() == "tensor(float)"
    for result in (found.numpy(), opened.run(None, {"x": value})[0]):
        close(result, Y)


@program
def a_binding(ort: Any, tmp: Path) -> None:
    opened = session(ort)
    binding = opened.io_binding()
    binding.bind_cpu_input("x", X)
    binding.bind_output("y")
    opened.run_with_iobinding(binding)
    close(binding.copy_outputs_to_cpu()[0], Y)
    close(binding.get_outputs()[0].numpy(), Y)


@program
def a_binding_to_memory(ort: Any, tmp: Path) -> None:
    opened, x, y = session(ort), X.copy(), np.zeros((4, 2), np.float32)
    binding = opened.io_binding()
    binding.bind_input("x", "cpu", 0, np.float32, x.shape, x.ctypes.data)
    binding.bind_output("y", "cpu", 0, np.float32, y.shape, y.ctypes.data)
    for factor in (1, 2):
        x[:] = X * factor
        opened.run_with_iobinding(binding, ort.RunOptions())
        close(y, X * factor @ W + B)


@program
def a_binding_to_values(ort: Any, tmp: Path) -> None:
    opened = session(ort)
    given, result = ort.OrtValue.ortvalue_from_numpy(X), ort.OrtValue.ortvalue_from_shape_and_type([4, 2], np.float32, "cpu", 0)
    binding = opened.io_binding()
    binding.bind_ortvalue_input("x", given)
    binding.bind_ortvalue_output("y", result)
    binding.synchronize_inputs()
    opened.run_with_iobinding(binding)
    binding.synchronize_outputs()
    close(result.numpy(), Y)


@program
def a_binding_that_is_cleared(ort: Any, tmp: Path) -> None:
    opened = session(ort)
    binding = opened.io_binding()
    binding.bind_cpu_input("x", X)
    binding.bind_output("y")
    binding.clear_binding_inputs()
    binding.clear_binding_outputs()
    binding.bind_cpu_input("x", X[:2])
    binding.bind_output("y", "cpu")
    opened.run_with_iobinding(binding)
    close(binding.copy_outputs_to_cpu()[0], Y[:2])


@program
def a_device(ort: Any, tmp: Path) -> None:
    device = ort.OrtDevice.make("cpu", 0)
    assert (device.device_id(), device.device_type()) == (0, 0)
