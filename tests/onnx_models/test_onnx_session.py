"""Programs for ONNX Runtime run with one import changed."""

from __future__ import annotations

import contextlib
import gc
import json
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

import tvmdml
from tvmdml import targets
from tvmdml.targets import Target

onnx: Any = pytest.importorskip("onnx", reason="ONNX is not installed")

from onnx_nodes import FLOAT, INT64, N, info, model, ramp  # noqa: E402 - they need ONNX

import tvmdml.onnx  # noqa: E402 - it needs ONNX
from tvmdml.onnx import providers  # noqa: E402


def small() -> bytes:
    nodes = [N("MatMul", ["x", "w"], ["y"]), N("Add", ["y", "state"], ["next"]), N("Shape", ["x"], ["s"])]
    made = model(
        nodes,
        [info("x", ["n", 3]), info("state", ["n", 2])],
        [info("y", ["n", 2]), info("next", ["n", 2]), info("s", [2], INT64)],
        {"w": ramp(3, 2)},
        ir_version=10,
        producer_name="tests",
    )
    onnx.helper.set_model_props(made, {"author": "me"})
    return bytes(made.SerializeToString())


@pytest.mark.parametrize("name", ["cpu", "vulkan", "cuda"])
def test_bound_arrays_stay_on_their_device(name: str, request: pytest.FixtureRequest) -> None:
    """A decoder's loop: what one run gives is an input of the next, and nothing leaves the device."""
    if name != "cpu":
        request.getfixturevalue(name)
    nodes = [N("MatMul", ["x", "w"], ["y"]), N("Add", ["y", "state"], ["next"])]
    inputs, outputs = [info("x", ["n", 3]), info("state", ["n", 2])], [info("y", ["n", 2]), info("next", ["n", 2])]
    session = tvmdml.onnx.InferenceSession(model(nodes, inputs, outputs, {"w": ramp(3, 2)}), providers=[name])
    value = tvmdml.onnx.OrtValue
    two = [value.ortvalue_from_numpy(ramp(4, 2), name), value.ortvalue_from_shape_and_type([4, 2], np.float32, name)]
    step = ramp(4, 3) @ ramp(3, 2)
    binding = session.io_binding()
    binding.bind_cpu_input("x", ramp(4, 3))
    y = value.ortvalue_from_shape_and_type([4, 2], FLOAT, name)
    binding.bind_ortvalue_output("y", y)
    for i in range(3):
        binding.bind_ortvalue_input("state", two[i % 2])
        binding.bind_ortvalue_output("next", two[1 - i % 2])
        session.run_with_iobinding(binding)
    assert np.allclose(two[1].numpy(), ramp(4, 2) + 3 * step, atol=1e-4)
    assert np.allclose(y.numpy(), step, atol=1e-5)
    assert y.device_name() == name
    binding.bind_ortvalue_input("state", two[1])  # in its own place: it is computed first, and then copied
    binding.bind_ortvalue_output("next", two[1])
    session.run_with_iobinding(binding)
    assert np.allclose(two[1].numpy(), ramp(4, 2) + 4 * step, atol=1e-4)
    binding.bind_output("next", name)
    binding.bind_output("y", "cpu")
    session.run_with_iobinding(binding)
    there, here = binding.get_outputs()
    assert (there.device_name(), here.device_name()) == (name, "cpu")
    assert np.allclose(there.numpy(), ramp(4, 2) + 5 * step, atol=1e-4)
    feeds = {"x": value.ortvalue_from_numpy(ramp(4, 3), name), "state": two[0]}
    assert {one.device_name() for one in session.run_with_ort_values(None, feeds)} == {name}


def test_values_and_devices_have_the_facts_of_onnx_runtime() -> None:
    runtime: Any = pytest.importorskip("onnxruntime", reason="ONNX Runtime is not installed")

    def facts(ort: Any) -> Any:
        value = ort.OrtValue.ortvalue_from_numpy_with_onnx_type(
            np.arange(6, dtype=np.uint16).reshape(2, 3), onnx.TensorProto.FLOAT16
        )
        devices = [ort.OrtDevice.make(name, 1) for name in ("cpu", "cuda", "dml", "gpu")]
        numbers = [(one.device_id(), one.device_type(), one.device_vendor_id(), one.device_mem_type()) for one in devices]
        return value.data_type(), value.shape(), value.numpy().tobytes(), numbers, ort.get_version_string() == ort.__version__

    assert facts(tvmdml.onnx) == facts(runtime)
    for wrong, said in (
        (lambda: tvmdml.onnx.OrtDevice.make("foo", 0), "'foo'; allowed: cpu, cuda, dml, gpu, vulkan"),
        (lambda: tvmdml.onnx.OrtDevice.make("cpu", -1), "an integer of 0 or more"),
        (lambda: tvmdml.onnx.OrtValue.ortvalue_from_numpy_with_onnx_type(np.zeros(2, np.uint16), FLOAT), "elements of 4 bytes"),
        (lambda: tvmdml.onnx.OrtValue.ortvalue_from_numpy_with_onnx_type(np.zeros(2, np.uint16), 16), "a type that DirectML has"),
    ):
        with pytest.raises(tvmdml.InvalidArgument, match=said):
            wrong()
    value = tvmdml.onnx.OrtValue.ortvalue_from_numpy(np.zeros(2, np.float32))
    value.update_inplace(tvmdml.onnx.OrtValue(np.ones(2, np.float32)))
    assert value.numpy().tolist() == [1, 1]


def test_wrong_bindings_are_refused() -> None:
    session = tvmdml.onnx.InferenceSession(small())
    binding = session.io_binding()
    value, place = tvmdml.onnx.OrtValue, np.zeros((4, 2), np.float32)
    for call, said in (
        (lambda: binding.bind_cpu_input("z", place), "'z'; allowed: x, state"),
        (lambda: binding.bind_cpu_input("x", [1.0]), "list"),
        (lambda: binding.bind_output("x"), "'x'; allowed: y, next, s"),
        (lambda: binding.bind_output("y", "tpu"), "'tpu'"),
        (lambda: binding.bind_input("x", "cpu", 0, np.float32, [4, 3], 0), "buffer_ptr"),
        (lambda: binding.bind_input("x", "cpu", 0, np.float32, [4, -3], 64), "shape"),
        (lambda: binding.bind_input("x", "cpu", 0, np.complex64, [4, 3], 64), "element_type"),
        (lambda: binding.bind_input("x", "cpu", 0, np.float32, [4, 3], place.ctypes.data + 1), "aligned"),
        (lambda: session.run_with_iobinding(binding), "no bound outputs"),
        (lambda: session.run(["z"], {}), "run output_names"),
        (lambda: session.run(None, {"x": ramp(4, 3)}), "no state"),
        (lambda: session.run(None, {"x": [[1, 2], [3]], "state": place}), "lists of such numbers"),
        (lambda: value.ortvalue_from_shape_and_type([1 << 60], np.float32), "shape"),
        (lambda: value.ortvalue_from_numpy(place, "cpu").update_inplace(place[:2]), "update_inplace"),
        (lambda: tvmdml.onnx.SessionOptions().get_session_config_entry("x"), "'x'"),
        (lambda: tvmdml.onnx.InferenceSession(small(), providers=[7]), "providers"),
        (lambda: tvmdml.onnx.InferenceSession(small(), providers=["vulkan:x"]), "providers|no Vulkan"),
        (lambda: tvmdml.onnx.InferenceSession(small(), None, ["cpu"], [{}, {}]), "2 for 1 provider; allowed: one for each"),
    ):
        with pytest.raises((tvmdml.InvalidArgument, tvmdml.DeviceError), match=said):
            call()
    binding.bind_cpu_input("x", ramp(4, 3))
    binding.bind_cpu_input("state", ramp(4, 2))
    binding.bind_ortvalue_output("y", value(np.zeros((3, 2), np.float32)))
    with pytest.raises(tvmdml.InvalidArgument, match="bound output y"):
        session.run_with_iobinding(binding)
    held = np.zeros((4, 2), np.float32)
    held.flags.writeable = False
    binding.bind_ortvalue_output("y", value(held))
    with pytest.raises((tvmdml.InvalidArgument, ValueError), match=r"read-only|writ"):
        session.run_with_iobinding(binding)


def test_providers_are_targets(vulkan: Target) -> None:
    with pytest.warns(UserWarning, match="TensorrtExecutionProvider"):
        session = tvmdml.onnx.InferenceSession(
            small(), providers=["TensorrtExecutionProvider", ("VulkanExecutionProvider", {"device_id": 0})]
        )
    assert session.target == vulkan
    assert session.get_providers() == ["VulkanExecutionProvider", "CPUExecutionProvider"]
    assert session.get_provider_options()["VulkanExecutionProvider"] == {"device_id": "0"}
    assert tvmdml.onnx.InferenceSession(small(), None, ["vulkan:0"]).target == vulkan
    value = tvmdml.onnx.OrtValue.ortvalue_from_numpy(ramp(3), "vulkan")
    with pytest.raises(tvmdml.Unsupported, match="no addresses"):
        value.data_ptr()
    with pytest.raises(tvmdml.Unsupported, match="OrtValue"):
        session.io_binding().bind_input("x", "vulkan", 0, np.float32, [4, 3], 64)


def test_inputs_are_given_by_name_or_in_their_order() -> None:
    x, state, both = ramp(4, 3), ramp(4, 2), tvmdml.onnx.load(small())
    right = both(x=x, state=state)
    for found in (both([x, state]), both({"x": x}, state=state), both((state,), x=x), both(state, x=x)):
        assert all(map(np.array_equal, found, right))
    one = tvmdml.onnx.load(model([N("Neg", ["x"], ["y"])], [info("x", [3])], [info("y", [3])]))
    assert np.array_equal(one(ramp(3))[0], one([ramp(3)])[0])
    told = r"; allowed: 2: x: float32\[n, 3\], state: float32\[n, 2\]. By name: model\(x=…, state=…\), or model\(\{'x': …\}\)"
    for given, said in ((x, "one array"), ([x], "a list of 1"), ((x, x, x), "a tuple of 3")):
        with pytest.raises(tvmdml.InvalidArgument, match=f"given {said}{told}"):
            both(given)


@pytest.mark.parametrize("driver", ["llvmpipe, CPU", "Radeon, GPU"])
def test_a_driver_for_processors_is_chosen_by_its_name_only(monkeypatch: pytest.MonkeyPatch, driver: str) -> None:
    rows = [{"target": "vulkan:0", "device": driver, "state": "ready; Vulkan 1.3"}]
    known = targets.target_class
    monkeypatch.setattr(providers, "_resolves", lambda kind: kind != "cuda")
    monkeypatch.setattr(known("vulkan"), "devices", classmethod(lambda cls: rows))
    gpu = driver.endswith("GPU")
    wanted = ["DmlExecutionProvider", "VulkanExecutionProvider"] if gpu else []
    assert tvmdml.onnx.get_available_providers() == [*wanted, "CPUExecutionProvider"]
    assert tvmdml.onnx.get_device() == ("GPU" if gpu else "CPU")
    asked: list[str] = []

    def resolved(text: str, where: str = "") -> Any:
        asked.append(text)
        return SimpleNamespace(name=text)

    monkeypatch.setattr(providers.targets, "resolve", resolved)
    providers.chosen(["VulkanExecutionProvider"])
    with contextlib.nullcontext() if gpu else pytest.warns(UserWarning, match="on the processor"):
        providers.chosen(["DmlExecutionProvider"], kinds=["vulkan"])  # of a pack
    assert asked == ["vulkan:0", "vulkan:0" if gpu else "cpu"]


def test_the_number_of_a_driver_for_processors_is_passed_over(monkeypatch: pytest.MonkeyPatch) -> None:
    """Beside a GPU: it has the next number, which a program may ask for."""
    devices = ("Radeon, GPU", "llvmpipe, CPU")
    rows = [{"target": f"vulkan:{i}", "device": device, "state": "ready; Vulkan 1.3"} for i, device in enumerate(devices)]
    known = targets.target_class
    monkeypatch.setattr(providers, "_resolves", lambda kind: kind != "cuda")
    monkeypatch.setattr(known("vulkan"), "devices", classmethod(lambda cls: rows))

    def resolved(text: str, where: str = "") -> SimpleNamespace:
        return SimpleNamespace(name=text, kind=text.partition(":")[0])

    monkeypatch.setattr(providers.targets, "resolve", resolved)
    assert providers.chosen([("DmlExecutionProvider", {"device_id": 0})])[1].name == "vulkan:0"
    assert providers.chosen([("VulkanExecutionProvider", {"device_id": 1})])[1].name == "vulkan:1"
    with pytest.warns(UserWarning, match="device_id: given 1; allowed: the number of a GPU. .* it is chosen as vulkan:1"):
        assert providers.chosen([("DmlExecutionProvider", {"device_id": 1})])[1].name == "cpu"


def test_sizes_are_closed_by_options() -> None:
    options = tvmdml.onnx.SessionOptions()
    options.add_free_dimension_override_by_name("n", 4)
    options.add_free_dimension_override_by_name("of another model", 9)
    session = tvmdml.onnx.InferenceSession(small(), options)
    assert session.get_inputs()[0].shape == [4, 3]
    assert session.get_session_options() is options
    options.sizes["n"] = -1
    with pytest.raises(tvmdml.InvalidArgument, match="-1"):
        tvmdml.onnx.InferenceSession(small(), options)


def test_providers_can_be_changed(vulkan: Target) -> None:
    session = tvmdml.onnx.InferenceSession(small(), providers="CPUExecutionProvider")
    feeds = {"x": ramp(4, 3), "state": ramp(4, 2)}
    right = session.run(["y"], feeds)[0]
    session.set_providers(["VulkanExecutionProvider"])
    assert session.target == vulkan
    assert np.allclose(session.run(["y"], feeds)[0], right, rtol=1e-6)


@pytest.mark.parametrize(
    "given",
    [{"optimized_model_filepath": "nowhere/model.onnx"}, {"enable_profiling": True, "profile_file_prefix": "nowhere/profile"}],
)
def test_files_of_options_are_in_folders_that_exist(given: dict[str, Any]) -> None:
    with pytest.raises(tvmdml.InvalidArgument, match=r"given 'nowhere/.*a folder that exists"):
        tvmdml.onnx.InferenceSession(small(), tvmdml.onnx.SessionOptions(**given))


def test_a_profile_has_every_run_and_its_kernels(tmp_path: Path) -> None:
    options = tvmdml.onnx.SessionOptions(enable_profiling=True, profile_file_prefix=str(tmp_path / "profile"))
    session = tvmdml.onnx.InferenceSession(small(), options)
    feeds = {"x": ramp(4, 3), "state": ramp(4, 2)}
    right = tvmdml.onnx.load(small()).run(None, feeds)
    binding = session.io_binding()
    for name, array in feeds.items():
        binding.bind_cpu_input(name, array)
    for name, array in zip(("y", "next", "s"), right, strict=True):
        binding.bind_ortvalue_output(name, tvmdml.onnx.OrtValue.ortvalue_from_numpy(np.zeros_like(array)))
    session.run_with_iobinding(binding)
    for found in (session.run(None, feeds), binding.copy_outputs_to_cpu()):
        assert all(map(np.array_equal, found, right))
    assert session.get_profiling_start_time_ns() > 0
    name = session.end_profiling()
    events = json.loads(Path(name).read_text())
    assert Path(name).parent == tmp_path
    runs = [one for one in events if one["cat"] == "Session"]
    kernels = [one for one in events if one["cat"] == "Node"]
    assert [one["name"] for one in runs] == ["model_run"] * 2
    assert len(kernels) == 2 * session.compiled(feeds).kernel_count
    assert {one["args"]["provider"] for one in kernels} == {"CPUExecutionProvider"}
    assert all(any(run["ts"] <= one["ts"] <= run["ts"] + run["dur"] for run in runs) for one in kernels)
    session.run(None, feeds)
    assert session.end_profiling() == tvmdml.onnx.load(small()).end_profiling() == ""
    assert len([*tmp_path.iterdir()]) == 1
    del session
    unended = tvmdml.onnx.InferenceSession(small(), options)
    unended.run(None, feeds)
    del unended  # its file is written all the same
    gc.collect()
    assert len([*tmp_path.iterdir()]) == 2


PROGRAM = """
import sys
import onnxruntime
import onnxruntime as ort
from onnxruntime.capi.onnxruntime_pybind11_state import Fail, InvalidArgument, NoSuchFile
assert ort.capi.onnxruntime_pybind11_state.NoSuchFile is NoSuchFile
try:
    ort.InferenceSession("nothing.onnx")
except NoSuchFile:
    print(ort.__name__, sys.argv[1:], issubclass(InvalidArgument, Fail))
"""


@pytest.mark.full
def test_programs_run_as_they_are(tmp_path: Path) -> None:
    (tmp_path / "program.py").write_text(PROGRAM)
    command = [sys.executable, "-m", "tvmdml.onnx", "program.py", "a"]
    found = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, check=True).stdout
    assert found == "tvmdml.onnx ['a'] True\n"


def test_a_weight_that_is_an_input_may_be_given(tmp_path: Path) -> None:
    """Its value holds in other calls, and in those of other processes. A shape that decides, too; one that is no input cannot."""
    nodes = [N("MatMul", ["x", "w"], ["a"]), N("Add", ["a", "b"], ["c"]), N("Reshape", ["c", "s"], ["y"])]
    weights = {"w": ramp(3, 2), "b": ramp(2), "s": np.array([-1])}
    inputs = [info("x", ["n", 3]), info("w", [3, 2]), info("s", ["rank"], INT64)]
    path = tmp_path / "defaults.onnx"
    path.write_bytes(model(nodes, inputs, [info("y", None)], weights, ir_version=8).SerializeToString())
    x, w = ramp(4, 3), ramp(3, 2)[::-1].copy()
    right, other = ramp(4, 3) @ ramp(3, 2) + ramp(2), ramp(4, 3) @ w + ramp(2)
    for _ in range(2):  # the second one from the cache
        session = tvmdml.onnx.InferenceSession(path)
        assert [one.name for one in session.get_inputs()] == ["x"]
        assert [(one.name, list(one.shape)) for one in session.get_overridable_initializers()] == [("w", [3, 2]), ("s", ["rank"])]
        for _ in range(2):
            assert np.allclose(session.run(None, {"x": x})[0], right.reshape(-1), atol=1e-5)
            assert np.allclose(session.run(None, {"x": x, "w": w})[0], other.reshape(-1), atol=1e-5)
            assert np.allclose(session.run(None, {"s": [2, -1], "x": x})[0], right.reshape(2, -1), atol=1e-5)
        binding = session.io_binding()
        binding.bind_cpu_input("x", x)
        binding.bind_cpu_input("w", w)
        binding.bind_output("y")
        session.run_with_iobinding(binding)
        assert np.allclose(binding.copy_outputs_to_cpu()[0], other.reshape(-1), atol=1e-5)
    for given, said in (({"b": ramp(2)}, "'b'"), ({"w": ramp(2, 2)}, r"float32\[3, 2\]"), ({"w": w.astype(np.float64)}, "float32")):
        with pytest.raises(tvmdml.InvalidArgument, match=said):
            session.run(None, {"x": x, **given})
    assert np.allclose(tvmdml.onnx.load(path)([x])[0], right.reshape(-1), atol=1e-5)
