"""Dispatchables that are serialized graphs and ONNX models, resources that are images; and hostile files of these kinds."""

from __future__ import annotations

import contextlib
import importlib
import json
import random
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from folders import MODELS
from support import seeded

from tvmdml import dxdispatch
from tvmdml.errors import ModelError, TvmdmlError, Unsupported
from tvmdml.targets import Target

pytest.importorskip("flatbuffers", reason="flatbuffers is not installed")
onnx: Any = pytest.importorskip("onnx", reason="ONNX is not installed")
images: Any = pytest.importorskip("PIL.Image", reason="Pillow is not installed")
graphs: Any = importlib.import_module("serialized_graphs")
Tensor: Any = graphs.Tensor

ZEROS = {"valueCount": 8, "value": 0}


def said(
    folder: Path, dispatchable: dict[str, Any], bindings: dict[str, Any], target: str | Target = "cpu", **resources: Any
) -> str:
    """What a model prints that dispatches once and prints the resource ``y``."""
    model = {
        "resources": {name: {"initialValuesDataType": kind, "initialValues": values} for name, (kind, values) in resources.items()},
        "dispatchables": {"it": dispatchable},
        "commands": [
            {"type": "dispatch", "dispatchable": "it", "bindings": bindings},
            {"type": "print", "resource": "y"},
        ],
    }
    (folder / "model.json").write_text(json.dumps(model))
    lines: list[str] = []
    dxdispatch.read(folder / "model.json").run(target, write=lines.append)
    return "".join(lines).splitlines()[-1].partition(": ")[2]


def graph(folder: Path, content: bytes, bindings: dict[str, Any], target: str | Target = "cpu", **resources: Any) -> str:
    (folder / "graph.bin").write_bytes(content)
    return said(folder, {"type": "dmlSerializedGraph", "sourcePath": "graph.bin"}, bindings, target, **resources)


def test_attributes_of_every_kind_and_arrays_of_tensors_are_read(tmp_path: Path) -> None:
    writer = graphs.Writer()
    four = Tensor((1, 1, 2, 2))
    writer.operator("ELEMENT_WISE_IDENTITY", [("x", four)], [("scaled", four)], ("ScaleBias", "ScaleBias", (2.0, -1.0)))
    writer.operator(
        "ELEMENT_WISE_CLIP1",
        [("scaled", four)],
        [("clipped", four)],
        ("ScaleBias", "Activation", None),
        ("MinMaxDataType", "UInt32", 1),
        ("Min", "Scalar", np.array([1.5, 0], np.float32).tobytes()),
        ("Max", "Scalar", np.array([4, 0], np.float32).tobytes()),
    )
    writer.operator(
        "UPSAMPLE_2D",
        [("clipped", four)],
        [("wide", Tensor((1, 1, 2, 4)))],
        ("ScaleSize", "Size2D", (2, 1)),
        ("InterpolationMode", "UInt32", 0),
    )
    writer.operator(
        "SLICE1",
        [("wide", Tensor((1, 1, 2, 4)))],
        [("cut", four)],
        ("DimensionCount", "UInt32", 4),
        ("InputWindowOffsets", "UIntArray", [0, 0, 0, 0]),
        ("InputWindowSizes", "UIntArray", [1, 1, 2, 4]),
        ("InputWindowStrides", "IntArray", [1, 1, 1, -2]),
    )
    writer.operator(
        "JOIN", [("cut", four), ("x", four)], [("y", Tensor((1, 2, 2, 2)))], ("InputCount", "UInt32", 2), ("Axis", "UInt32", 1)
    )
    found = graph(tmp_path, writer.finish(["x"], ["y"]), {"x": "x", "y": "y"}, x=("FLOAT32", [1, 2, 3, 4]), y=("FLOAT32", ZEROS))
    assert found == "3, 1.5, 4, 4, 1, 2, 3, 4"


def test_results_lie_as_their_strides_say_and_what_is_between_them_stays(tmp_path: Path, target: Target) -> None:
    writer = graphs.Writer()
    packed, turned, apart = (Tensor((1, 1, 2, 3), "FLOAT32", strides) for strides in (None, (6, 6, 1, 2), (10, 10, 5, 1)))
    writer.operator("ACTIVATION_RELU", [("x", packed)], [("turned", turned)])
    writer.operator("ELEMENT_WISE_ADD", [("turned", turned), ("x", packed)], [("y", apart)])
    content = writer.finish(["x"], ["turned", "y"])
    bindings = {"x": "x", "turned": "z", "y": "y"}
    resources = {"x": ("FLOAT32", [1, -2, 3, -4, 5, 6]), "z": ("FLOAT32", [7] * 6), "y": ("FLOAT32", [7] * 8)}
    assert graph(tmp_path, content, bindings, target, **resources) == "2, -2, 6, 7, 7, -4, 10, 12"
    bindings |= {"turned": "y", "y": "z"}
    resources |= {"z": ("FLOAT32", [7] * 8), "y": ("FLOAT32", [7] * 7)}
    assert graph(tmp_path, content, bindings, target, **resources) == "1, 0, 0, 5, 3, 6, 7"


@pytest.mark.full
def test_a_recurrent_network_takes_an_array_of_activations(tmp_path: Path) -> None:
    writer = graphs.Writer()
    writer.constant("ones", np.ones(4, np.float32).tobytes())
    elus = [("DML_OPERATOR_ACTIVATION_LINEAR", ("Alpha", "Float32", scale), ("Beta", "Float32", 0.0)) for scale in (1.0, 2.0)]
    square = Tensor((1, 2, 1, 1))
    writer.operator(
        "RNN",
        [("x", Tensor((1, 2, 1, 1))), ("ones", square), ("ones", square), *[("", None)] * 3],
        [("y", Tensor((2, 2, 1, 1)))],
        ("ActivationDescCount", "UInt32", 2),
        ("ActivationDescs", "ActivationArray", elus),
        ("Direction", "UInt32", 2),
    )
    found = graph(tmp_path, writer.finish(["x"], ["y"]), {"x": "x", "y": "y"}, x=("FLOAT32", [1, 2]), y=("FLOAT32", ZEROS))
    assert found == "1, 10, 3, 4, 0, 0, 0, 0"


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda b: b[:40], "given a file with"),
        (lambda b: b"", "given a file with 4 bytes at 0, of a file of 0 bytes"),
        (lambda b: b"\xff" * 64, "given a file with"),
        (lambda b: b.replace(b"DML_OPERATOR_GEMM", b"DML_OPERATOR_GUMM"), "GUMM"),
        (lambda b: b.replace(b"FLOAT32", b"FLOAT33"), "DataType: given"),
        (lambda b: b.replace(b"model_input", b"nodel_input", 1), "reading 'model_input'"),
        (lambda b: b.replace(b"Alpha", b"Alpho"), "an unknown field"),
    ],
)
def test_damaged_graphs_are_refused_with_what_is_wrong(tmp_path: Path, change: Callable[[bytes], bytes], message: str) -> None:
    (tmp_path / "factor.bin").write_bytes(bytes(24))
    bindings = {"model_input": "x", "model_output": "y"}
    with pytest.raises(TvmdmlError, match=message):
        graph(tmp_path, change(graphs.matmul_add()), bindings, x=("FLOAT32", [1] * 6), y=("FLOAT32", ZEROS))


@pytest.mark.full
def test_no_change_of_a_few_bytes_does_more_than_an_error_of_ours(tmp_path: Path) -> None:
    rng = random.Random(seeded("serialized graphs").integers(1 << 30).item())
    content = graphs.matmul_add()
    (tmp_path / "factor.bin").write_bytes(bytes(24))
    for _ in range(600):
        damaged = bytearray(content)
        for _ in range(rng.randint(1, 3)):
            damaged[rng.randrange(len(damaged))] = rng.choice([0, 1, 4, 127, 128, 255, rng.randrange(256)])
        (tmp_path / "graph.bin").write_bytes(damaged[: rng.choice([len(damaged), rng.randrange(len(damaged))])])
        node = dxdispatch.nodes.JsonNode({"type": "dmlSerializedGraph", "sourcePath": "graph.bin"}, "model.json", "x")
        with contextlib.suppress(TvmdmlError):
            dxdispatch.dispatchables.graph_kind.read(node, tmp_path)


def test_a_graph_that_shares_its_parts_too_often_is_refused(tmp_path: Path) -> None:
    writer = graphs.Writer()
    big = writer.builder.CreateNumpyVector(np.zeros(1 << 16, np.uint32))
    tensor = writer.table(None, ("offset", big))
    several = writer.offsets([tensor] * 5000)
    kind, empty = writer.builder.CreateString("DML_OPERATOR_JOIN"), writer.offsets([])
    desc = writer.table(("offset", kind), ("offset", several), ("offset", empty), ("offset", empty))
    writer._node(1, desc, "bomb", [], [])
    with pytest.raises(ModelError, match="shared"):
        graph(tmp_path, writer.finish([], []), {}, y=("FLOAT32", ZEROS))


def test_files_of_constants_stay_inside_the_folder(tmp_path: Path) -> None:
    inner = tmp_path / "inner"
    inner.mkdir()
    (tmp_path / "secret.bin").write_bytes(bytes(16))
    four = Tensor((4,))
    for name in ("../secret", "none", str(tmp_path / "secret")):
        writer = graphs.Writer()
        writer.constant(name, None)
        writer.operator("ELEMENT_WISE_ADD", [("x", four), (name, four)], [("y", four)])
        with pytest.raises(ModelError, match=r"outside the folder|does not exist|absolute path"):
            graph(inner, writer.finish(["x"], ["y"]), {"x": "x", "y": "y"}, x=("FLOAT32", ZEROS), y=("FLOAT32", ZEROS))


def test_a_constant_that_is_too_small_is_refused(tmp_path: Path) -> None:
    writer = graphs.Writer()
    four = Tensor((4,))
    writer.constant("c", bytes(8))
    writer.operator("ELEMENT_WISE_ADD", [("x", four), ("c", four)], [("y", four)])
    with pytest.raises(ModelError, match="8 bytes"):
        graph(tmp_path, writer.finish(["x"], ["y"]), {"x": "x", "y": "y"}, x=("FLOAT32", ZEROS), y=("FLOAT32", ZEROS))


@pytest.mark.parametrize(
    ("package", "dispatchable"),
    [("flatbuffers.table", {"type": "dmlSerializedGraph", "sourcePath": "matmul_add/graph.bin"})],
)
def test_a_missing_package_is_named_with_the_command_that_installs_it(
    monkeypatch: pytest.MonkeyPatch, package: str, dispatchable: dict[str, Any]
) -> None:
    monkeypatch.setitem(importlib.import_module("sys").modules, package, None)
    node = dxdispatch.nodes.JsonNode(dispatchable, "model.json", "x")
    with pytest.raises((Unsupported, ModelError), match=r"flatbuffers, which is not installed.*pip install.*dxdispatch"):
        dxdispatch.dispatchables.graph_kind.read(node, MODELS)


# -- ONNX


def model(path: Path, kind: str, inputs: dict[str, Any], outputs: dict[str, Any], **attributes: Any) -> dict[str, str]:
    """A model of one node, as a dispatchable; sizes and types by name."""
    h = onnx.helper
    several = [
        [h.make_tensor_value_info(name, getattr(onnx.TensorProto, dtype), sizes) for name, (dtype, sizes) in some.items()]
        for some in (inputs, outputs)
    ]
    made = h.make_graph([h.make_node(kind, list(inputs), list(outputs), **attributes)], "g", *several)
    found = h.make_model(made, opset_imports=[h.make_opsetid("", 17)])
    found.ir_version = 8
    onnx.save(found, path / "model.onnx")
    return {"type": "onnx", "sourcePath": "model.onnx"}


def test_open_sizes_come_from_bindings_from_the_model_or_are_one(tmp_path: Path) -> None:
    what: Any = model(tmp_path, "Relu", {"x": ("FLOAT", ["n", "m"])}, {"y": ("FLOAT", ["n", "m"])})
    resources = {"x": ("FLOAT32", [-1, 2, -3, 4]), "y": ("FLOAT32", "deferred")}
    assert said(tmp_path, what, {"x": "x", "y": "y"}, **resources) == "0"
    assert said(tmp_path, what, {"x": {"name": "x", "shape": [2, 2]}, "y": "y"}, **resources) == "0, 2, 0, 4"
    what["freeDimensionNameOverrides"] = {"m": 3}
    assert said(tmp_path, what, {"x": "x", "y": "y"}, **resources) == "0, 2, 0"
    assert said(tmp_path, what, {"y": "y"}, **resources) == "0, 0, 0"


def test_bools_are_bytes(tmp_path: Path) -> None:
    what = model(tmp_path, "Not", {"x": ("BOOL", [3])}, {"y": ("BOOL", [3])})
    assert said(tmp_path, what, {"x": "x", "y": "y"}, x=("UINT8", [0, 1, 1]), y=("UINT8", [7, 7, 7])) == "1, 0, 0"


@pytest.mark.parametrize(
    ("bindings", "resources", "message"),
    [
        ({"z": "x"}, {}, "z: given a binding; allowed: bindings for x, y"),
        ({"x": {"name": "x", "shape": [2, 3]}, "y": "y"}, {}, "at least 24"),
        ({"x": {"name": "x", "shape": [0]}, "y": "y"}, {}, r"shape\[0\]: given 0"),
        ({"x": {"name": "x", "shape": [1] * 9}, "y": "y"}, {}, "given"),
        ({"x": {"name": "x", "shape": [2, 2]}, "y": {"name": "y", "shape": [4]}}, {}, r"allowed: \[2, 2\]"),
        ({"x": "x", "y": "y"}, {"y": ("INT32", "deferred")}, "a deferred resource of INT32; allowed: one of float32"),
        ({"x": "y", "y": "y"}, {"y": ("FLOAT32", "deferred")}, "no dispatch before has written"),
        ({"x": {"name": "x", "elementOffset": 4}, "y": "y"}, {}, "0 bytes"),
    ],
)
def test_wrong_bindings_of_a_model_are_refused(tmp_path: Path, bindings: Any, resources: Any, message: str) -> None:
    what = model(tmp_path, "Relu", {"x": ("FLOAT", ["n", "m"])}, {"y": ("FLOAT", ["n", "m"])})
    with pytest.raises(ModelError, match=message):
        said(tmp_path, what, bindings, **{"x": ("FLOAT32", [1, 2, 3, 4]), "y": ("FLOAT32", ZEROS), **resources})


def test_a_file_that_is_no_model_is_refused(tmp_path: Path) -> None:
    (tmp_path / "model.onnx").write_bytes(b"\xff" * 99)
    with pytest.raises(ModelError, match="not an ONNX model"):
        said(tmp_path, {"type": "onnx", "sourcePath": "model.onnx"}, {}, y=("FLOAT32", ZEROS))
    with pytest.raises(ModelError, match="outside the folder"):
        said(tmp_path, {"type": "onnx", "sourcePath": "../model.onnx"}, {}, y=("FLOAT32", ZEROS))


# -- Images


def test_an_image_that_is_written_reads_back(tmp_path: Path) -> None:
    pixels = np.arange(2 * 3 * 4, dtype=np.uint8).reshape(2, 3, 4)
    images.fromarray(pixels, "RGBA").save(tmp_path / "x.png")
    source = {"initialValuesDataType": "FLOAT32", "initialValues": {"sourcePath": "x.png"}, "resampleSize": [1, 4, 2, 3]}
    command = {"type": "writeFile", "resource": "x", "targetPath": "y.png", "dimensions": [1, 4, 2, 3]}
    (tmp_path / "model.json").write_text(json.dumps({"resources": {"x": source}, "dispatchables": {}, "commands": [command]}))
    dxdispatch.read(tmp_path / "model.json").run(output_path=tmp_path, write=lambda text: None)
    assert np.abs(np.asarray(images.open(tmp_path / "y.png")).astype(int) - pixels).max() <= 1  # floats are cut off


def test_a_small_file_does_not_take_all_memory(tmp_path: Path) -> None:
    """Neither decoded, nor while Pillow resizes it, which makes rows of one size and columns of the other."""
    images.fromarray(np.zeros((100, 1), np.uint8)).save(tmp_path / "tall.png")
    images.new("1", (8192, 8193)).save(tmp_path / "large.png")
    assert (tmp_path / "large.png").stat().st_size < 1 << 16
    for name, sizes in (("tall.png", [1, 1, 1, 1 << 20]), ("large.png", [1, 1, 2, 2])):
        source = {"initialValuesDataType": "FLOAT32", "initialValues": {"sourcePath": name}, "resampleSize": sizes}
        (tmp_path / "model.json").write_text(json.dumps({"resources": {"x": source}, "dispatchables": {}, "commands": []}))
        with pytest.raises(ModelError, match="at most 67108864 pixels"):
            dxdispatch.read(tmp_path / "model.json").run(write=lambda text: None)


def test_hostile_images_are_refused(tmp_path: Path) -> None:
    images.fromarray(np.zeros((4, 4), np.uint8)).save(tmp_path / "x.png")
    content = (tmp_path / "x.png").read_bytes()
    huge = content[:16] + (1 << 24).to_bytes(4, "big") * 2 + content[24:]
    for damaged in (b"", content[:50], huge):
        (tmp_path / "x.png").write_bytes(damaged)
        with pytest.raises(ModelError, match="image"):
            said(tmp_path, {"type": "ELEMENT_WISE_ADD", "desc": {}}, {}, y=("FLOAT32", {"sourcePath": "x.png"}))
