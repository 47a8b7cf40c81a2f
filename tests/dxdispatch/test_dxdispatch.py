"""DirectML's JSON models: their meaning, their output, and the error messages for invalid ones."""

from __future__ import annotations

import copy
import json
import os
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import specimens
from folders import MODELS

import tvmdml
from tvmdml import CompiledOperator, dxdispatch, operators
from tvmdml.dxdispatch import Timing, descriptors, resources
from tvmdml.dxdispatch.nodes import Node
from tvmdml.enums import DmlEnum
from tvmdml.errors import ModelError, TvmdmlError
from tvmdml.operators import Operator
from tvmdml.operators._contract import (
    Input,
    Int,
    Output,
)
from tvmdml.tensors import TensorDataType

Run = Callable[..., list[str]]


@pytest.fixture
def run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Run:
    """Runs a model, given as a path, text or Python objects, and returns the lines it prints but the first."""
    monkeypatch.chdir(tmp_path)

    def run_model(model: Any, **options: Any) -> list[str]:
        if not isinstance(model, Path):
            text = model if isinstance(model, str) else json.dumps(model)
            model = Path("model.json")
            model.write_text(text)
        said: list[str] = []
        dxdispatch.read(model).run(**{"output_path": tmp_path, "overwrite": True, "write": said.append, **options})
        first, *lines = "".join(said).splitlines()
        assert re.fullmatch(r"Running on '.+'", first)
        return lines

    return run_model


def resource(values: Any, data_type: str | None = "FLOAT32", **more: Any) -> dict[str, Any]:
    return {**({"initialValuesDataType": data_type} if data_type else {}), "initialValues": values, **more}


def tensor(*sizes: int, data_type: str = "FLOAT32", **more: Any) -> dict[str, Any]:
    return {"DataType": data_type, "Sizes": list(sizes), **more}


def prints(**declared: Any) -> dict[str, Any]:
    """A model that prints its resources."""
    return {
        "resources": declared,
        "dispatchables": {},
        "commands": [{"type": "print", "resource": name} for name in declared],
    }


def rounding() -> dict[str, Any]:
    """A small model that is right."""
    return {
        "resources": {"input": resource([1.5, 2.5, -0.4, "nan"]), "output": resource({"valueCount": 4, "value": 9})},
        "dispatchables": {
            "round": {
                "type": "DML_OPERATOR_ELEMENT_WISE_ROUND",
                "desc": {"InputTensor": tensor(4), "OutputTensor": tensor(4), "RoundingMode": "TOWARD_ZERO"},
            }
        },
        "commands": [
            {"type": "dispatch", "dispatchable": "round", "bindings": {"InputTensor": "input", "OutputTensor": "output"}},
            {"type": "print", "resource": "output"},
        ],
    }


ABSENT = object()


def changed(model: dict[str, Any], path: str, value: Any) -> dict[str, Any]:
    """A copy of a model with one place changed or taken away; a path is such as ``commands.0.bindings``."""
    result = copy.deepcopy(model)
    *way, last = [int(step) if step.isdigit() else step for step in path.split(".")]
    place: Any = result
    for step in way:
        place = place[step]
    if value is ABSENT:
        del place[last]
    else:
        place[last] = value
    return result


def refusal(run: Run, model: Any, **options: Any) -> str:
    """What a refused model is told, without the file's name, which is always there."""
    with pytest.raises(ModelError) as caught:
        run(model, **options)
    text = str(caught.value)
    assert text.startswith("model.json: ")
    assert ": given " in text
    assert "; allowed: " in text
    return text.removeprefix("model.json: ")


# -- Resources ----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("declared", "printed"),
    [
        (resource([1, 2.5, -3]), "1, 2.5, -3"),
        (resource([0.1, 1e6, 16777216, 1e-7]), "0.1, 1e+06, 1.67772e+07, 1e-07"),
        (resource(["nan", "NaN", "inf", "-Inf", -0.0]), "nan, nan, inf, -inf, -0"),
        (resource([1e39, -1e39]), "inf, -inf"),
        (resource([65504, "nan", "-inf", 0.1], "FLOAT16"), "65504, nan, -inf, 0.0999756"),
        (resource([1e300, 2**70], "FLOAT64"), "1e+300, 1.18059e+21"),
        (resource([-128, 127], "INT8"), "-128, 127"),
        (resource([65, 255, 0], "uint8"), "65, 255, 0"),
        (resource([-(2**31), 2**31 - 1], "DML_TENSOR_DATA_TYPE_INT32"), "-2147483648, 2147483647"),
        (resource([-(2**63), 2**63 - 1], "INT64"), "-9223372036854775808, 9223372036854775807"),
        (resource([2**64 - 1], "UINT64"), "18446744073709551615"),
        (resource({"valueCount": 3, "value": 7}, "INT16"), "7, 7, 7"),
        (resource({"valueCount": 2, "value": "nan"}), "nan, nan"),
        (resource({"valueCount": 4, "valueStart": 1, "valueDelta": 2.5}), "1, 3.5, 6, 8.5"),
        (resource({"valueCount": 4, "valueStart": 5, "valueDelta": -3}, "INT32"), "5, 2, -1, -4"),
        (resource({"valueCount": 3, "valueStart": 250, "valueDelta": 4}, "UINT8"), "250, 254, 2"),
        # The delta is added in the type itself: beyond 2048, float16 has a spacing of 2, and adding 1 changes nothing.
        (resource({"valueCount": 3, "valueStart": 2047, "valueDelta": 1}, "FLOAT16"), "2047, 2048, 2048"),
        (resource([1, 2], initialValuesOffsetInBytes=8), "0, 0, 1, 2"),
        (resource([1, 2, 3], "FLOAT16", type="buffer"), "1, 2, 3"),
    ],
)
def test_a_resource_prints_what_it_was_declared_with(run: Run, declared: Any, printed: str) -> None:
    assert run(prints(x=declared)) == [f"Resource 'x': {printed}"]


def test_a_long_sequence_goes_on_across_chunks(tmp_path: Path) -> None:
    count = 3 * resources._CHUNK + 5
    declared = resource({"valueCount": count, "valueStart": -1, "valueDelta": 3}, "INT64")
    found = resources.read(Node(declared, "model.json"), (tmp_path,))
    buffer = resources.allocate({"x": found})["x"]
    np.testing.assert_array_equal(found.elements(buffer, found.size), np.arange(count) * 3 - 1)


def test_verbose_printing_shows_positions_and_bits(run: Run) -> None:
    model = prints(x=resource([1, -2] + [0] * 8 + ["nan"]))
    model["commands"][0]["verbose"] = True
    lines = run(model)
    assert lines[0] == "Resource 'x':"
    assert lines[1:4] == ["[ 0] 1 (0x3F800000)", "[ 1] -2 (0xC0000000)", "[ 2] 0 (0x00000000)"]
    assert lines[11] == "[10] nan (0x7FC00000)"
    assert len(lines) == 12


def test_a_typed_list_is_packed_bytes_and_can_be_bound_as_anything(run: Run) -> None:
    model = rounding()
    model["resources"]["input"] = resource(
        [
            {"name": "a comment", "type": "FLOAT32", "value": -1.5},
            {"type": "UINT16", "value": 0},
            {"type": "UINT8", "value": 0x20},
            {"type": "INT8", "value": 0x40},
            {"type": "UINT64", "value": 0x4060000040600000},
        ],
        "UNKNOWN",
    )
    assert run(model)[1:] == ["Resource 'output': -1, 2, 3, 3"]
    model["resources"]["input"].pop("initialValuesDataType")
    assert run(model)[1:] == ["Resource 'output': -1, 2, 3, 3"]


@pytest.mark.parametrize(
    ("array", "printed"),
    [
        (np.array([[1, 2], [3, 4]], "f4"), "1, 2, 3, 4"),
        (np.asfortranarray([[1, 2], [3, 4]]), "1, 2, 3, 4"),
        (np.array([1, 2], ">i4"), "1, 2"),
        (np.array([True, False]), "1, 0"),
        (np.array(3.5), "3.5"),
    ],
)
def test_npy_files_bring_their_type_with_them(run: Run, tmp_path: Path, array: np.ndarray[Any, Any], printed: str) -> None:
    np.save(tmp_path / "x.npy", array)
    assert run(prints(x=resource({"sourcePath": "x.npy"}, None))) == [f"Resource 'x': {printed}"]


def test_raw_files_have_the_type_that_the_model_names(run: Run, tmp_path: Path) -> None:
    (tmp_path / "data.bin").write_bytes(bytes([1, 0, 2, 0]))
    source = {"sourcePath": "data.bin"}
    assert run(prints(x=resource(source, "UINT16"), y=resource(source, "UINT8"))) == [
        "Resource 'x': 1, 2",
        "Resource 'y': 1, 0, 2, 0",
    ]


def test_files_are_read_from_the_models_folder_or_the_one_that_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for folder in ("models", "here", "elsewhere"):
        (tmp_path / folder / "deep").mkdir(parents=True)
        np.save(tmp_path / folder / "deep" / "x.npy", np.array([len(folder)]))
        np.save(tmp_path / folder / f"{folder}.npy", np.array([0]))
    monkeypatch.chdir(tmp_path / "here")
    model = tmp_path / "models" / "model.json"
    model.write_text(json.dumps(prints(x=resource({"sourcePath": "deep\\x.npy"}, None))))
    for options, value in (({}, 6), ({"input_path": tmp_path / "elsewhere"}, 9)):
        said: list[str] = []
        dxdispatch.read(model, **options).run(write=said.append)
        assert "".join(said).splitlines()[1:] == [f"Resource 'x': {value}"]
    model.write_text(json.dumps(prints(x=resource({"sourcePath": "here.npy"}, None))))
    with pytest.raises(
        ModelError, match=r"here\.npy.*does not exist; allowed: a file in '.*/models'. Choose another folder with --input_path"
    ):
        dxdispatch.read(model)


def test_the_folder_of_a_model_may_be_a_link_and_links_may_stay_inside(tmp_path: Path) -> None:
    (tmp_path / "real").mkdir()
    (tmp_path / "link").symlink_to("real")
    np.save(tmp_path / "real" / "y.npy", np.array([3]))
    (tmp_path / "real" / "x.npy").symlink_to("y.npy")
    (tmp_path / "real" / "model.json").write_text(json.dumps(prints(x=resource({"sourcePath": "x.npy"}, None))))
    said: list[str] = []
    dxdispatch.read(tmp_path / "link" / "model.json").run(write=said.append)
    assert "".join(said).splitlines()[1:] == ["Resource 'x': 3"]


@pytest.mark.parametrize(
    ("path", "reason"),
    [
        ("../secret.npy", "which is outside the folder"),
        ("deep/../../secret.npy", "which is outside the folder"),
        ("..\\secret.npy", "which is outside the folder"),
        ("{outside}/secret.npy", "which is an absolute path"),
        ("\\\\host\\share\\secret.npy", "which is an absolute path"),
        ("link.npy", "which is a symbolic link to a file outside the folder"),
        ("folder/secret.npy", "which is a symbolic link to a file outside the folder"),
        ("circle.npy", "which cannot be read"),
    ],
)
def test_nothing_is_read_outside_the_folder(run: Run, tmp_path: Path, path: str, reason: str) -> None:
    outside, folder = tmp_path / "outside", tmp_path / "model"
    for made in (outside, folder):
        made.mkdir()
    np.save(outside / "secret.npy", np.array([7]))
    np.save(tmp_path / "secret.npy", np.array([7]))
    (folder / "link.npy").symlink_to("../secret.npy")
    (folder / "folder").symlink_to(outside)
    (folder / "circle.npy").symlink_to("circle.npy")
    (folder / "model.json").write_text(json.dumps(prints(x=resource({"sourcePath": path.format(outside=outside)}, None))))
    for options in ({}, {"input_path": folder}):
        with pytest.raises(ModelError, match=re.escape(reason)):
            dxdispatch.read(folder / "model.json", **options)


def test_a_file_that_became_another_meanwhile_is_refused(tmp_path: Path) -> None:
    np.save(tmp_path / "x.npy", np.arange(1000.0))
    (tmp_path / "model.json").write_text(json.dumps(prints(x=resource({"sourcePath": "x.npy"}, None))))
    model = dxdispatch.read(tmp_path / "model.json")
    os.truncate(tmp_path / "x.npy", 200)
    with pytest.raises(ModelError, match="became shorter"):
        model.run(write=lambda text: None)
    (tmp_path / "x.npy").unlink()
    (tmp_path / "x.npy").symlink_to("/dev/zero")
    with pytest.raises(ModelError, match="a symbolic link to a file outside the folder"):
        model.run(write=lambda text: None)


@pytest.mark.parametrize(
    "sizes", ["(1099511627776,)", "(-1,)", "(0, 5)", "(True,)", f"({'1, ' * 65})", "(2**9,)", f"({'9' * 5000},)"]
)
def test_a_header_of_a_file_that_lies_about_sizes_is_refused(run: Run, tmp_path: Path, sizes: str) -> None:
    header = f"{{'descr': '<f4', 'fortran_order': True, 'shape': {sizes}, }}".encode()
    content = b"\x93NUMPY\x01\x00" + len(header).to_bytes(2, "little") + header + bytes(4 if sizes.startswith("(1, ") else 2)
    (tmp_path / "x.npy").write_bytes(content)
    assert "sourcePath: given a file" in refusal(run, prints(x=resource({"sourcePath": "x.npy"}, None)))


@pytest.mark.parametrize(
    ("declared", "message"),
    [
        ([], "resources.x: given []; allowed: an object"),
        ({"initialValues": [1]}, "resources.x: given no initialValuesDataType; allowed: FLOAT32, FLOAT16"),
        (resource([1], "UNKNOWN"), "resources.x.initialValuesDataType: given UNKNOWN; allowed: FLOAT32"),
        (resource([1], "FLOAT31"), 'resources.x.initialValuesDataType: given "FLOAT31"; allowed: FLOAT32'),
        ({"initialValuesDataType": "INT8"}, "resources.x.initialValues: given nothing"),
        (resource([1], initialValue=2), "resources.x.initialValue: given an unknown field; allowed: initialValues, "),
        (resource([1], sizeinbytes=4), "Did you mean sizeInBytes?"),
        (resource([1], type="texture"), 'resources.x.type: given "texture"; allowed: buffer'),
        (resource([]), "resources.x.initialValues: given []; allowed: a list of at least one value"),
        (resource("deferred"), "given 'x', which is deferred; allowed: a resource that a dispatch before this command writes"),
        (resource("deferred", sizeInBytes=4), "given a deferred resource with a size or an offset"),
        (resource([1, True]), 'initialValues[1]: given true; allowed: a number, "nan", "inf" or "-inf", for FLOAT32'),
        (resource(["ten"]), 'initialValues[0]: given "ten"'),
        (resource([10**400]), "initialValues[0]: given 1000"),
        (resource([1.5], "INT8"), "initialValues[0]: given 1.5; allowed: an integer from -128 to 127, for INT8"),
        (resource(["nan"], "UINT8"), 'initialValues[0]: given "nan"; allowed: an integer from 0 to 255'),
        (resource({}), "initialValues: given an empty object; allowed: an object with one of value, valueStart, sourcePath"),
        (
            resource({"valueCount": 1, "value": 1, "valueStart": 1}),
            "initialValues: given an object of valueCount, value, valueStart",
        ),
        (resource({"value": 1}), "initialValues.valueCount: given nothing"),
        (resource({"valueCount": 0, "value": 1}), "valueCount: given 0; allowed: an integer from 1 to 4294967295"),
        (resource({"valueCount": 2, "valueStart": 1}), "initialValues.valueDelta: given nothing"),
        (resource([{"type": "INT8", "value": 200}], "UNKNOWN"), "initialValues[0].value: given 200"),
        (resource([{"type": "INT8", "value": 2}, 3], "UNKNOWN"), "initialValues[1]: given 3; allowed: an object"),
        (resource([{"type": "UNKNOWN", "value": 2}], "UNKNOWN"), "initialValues[0].type: given"),
        (resource([1, 2], sizeInBytes=4), "sizeInBytes: given 4 bytes; allowed: at least 8"),
        (resource([1, 2], sizeInBytes=8, initialValuesOffsetInBytes=4), "sizeInBytes: given 8 bytes; allowed: at least 12"),
        (resource([1], sizeInBytes=2**64), "sizeInBytes: given 18446744073709551616"),
        (resource([1], sizeInBytes=2**62), "resources.x: given 4611686018427387904 bytes; allowed: "),
        (resource([1], initialValuesOffsetInBytes=2**63), "resources.x: given 9223372036854775812 bytes; allowed: "),
        (resource({"sourcePath": "none.npy"}), 'sourcePath: given "none.npy", which does not exist'),
        (resource({"sourcePath": "a\0b"}), "which is not a valid file name"),
        (resource({"sourcePath": "zero"}), 'sourcePath: given "zero", which is a symbolic link to a file outside the folder'),
        (resource({"sourcePath": "folder"}), 'sourcePath: given "folder", which is not a regular file'),
        (resource({"sourcePath": "pipe"}), 'sourcePath: given "pipe", which is not a regular file'),
        (resource({"sourcePath": "odd.bin"}), "sourcePath: given a file of 7 bytes; allowed: 4 bytes for each element"),
        (resource({"sourcePath": "odd.bin"}, None), "given no initialValuesDataType"),
        (resource({"sourcePath": "image.png"}), "sourcePath: given a file that is no image"),
        (resource({"sourcePath": "int.npy"}), "sourcePath: given a file of INT32; allowed: FLOAT32, as in initialValuesDataType"),
        (resource({"sourcePath": "complex.npy"}), "sourcePath: given a file of complex64"),
        (resource({"sourcePath": "object.npy"}), "sourcePath: given a file that cannot be read (ValueError"),
        (resource({"sourcePath": "cut.npy"}), "sourcePath: given a file that cannot be read (ValueError"),
        (resource({"sourcePath": "none-in-it.npy"}), "sourcePath: given a file"),
    ],
)
def test_a_wrong_resource_is_refused(run: Run, tmp_path: Path, declared: Any, message: str) -> None:
    os.mkfifo(tmp_path / "pipe")
    (tmp_path / "zero").symlink_to("/dev/zero")
    (tmp_path / "folder").mkdir()
    for name, content in {"odd.bin": b"1234567", "empty.bin": b"", "image.png": b"\x89PNG"}.items():
        (tmp_path / name).write_bytes(content)
    np.save(tmp_path / "int.npy", np.zeros(2, "i4"))
    np.save(tmp_path / "complex.npy", np.zeros(2, "c8"))
    np.save(tmp_path / "object.npy", np.array([{}]), allow_pickle=True)
    np.save(tmp_path / "none-in-it.npy", np.zeros(0, "f4"))
    (tmp_path / "cut.npy").write_bytes((tmp_path / "int.npy").read_bytes()[:-4])
    assert message in refusal(run, prints(x=declared))


# -- Descriptors --------------------------------------------------------------------------------------------------
# test_roles.py has every kind of field; here are scalars, tensors, and what is said of wrong ones.


class RandomGeneratorType(DmlEnum):
    PHILOX_4X32_10 = 0


class RandomGenerator(Operator):
    NAME = "RANDOM_GENERATOR"

    input_tensor: Input
    output_tensor: Output
    type: RandomGeneratorType
    offset: Int


def describe(cls: type[Operator], **fields: Any) -> Any:
    return descriptors.read(cls, Node(fields, "model.json", "dispatchables.op.desc"))


@pytest.mark.parametrize(
    ("data_type", "given", "value"),
    [
        ("FLOAT32", 2.5, 2.5),
        ("FLOAT32", "nan", float("nan")),
        ("FLOAT32", {"Float32": -1}, -1),
        ("FLOAT64", {"Float64": 0.1}, 0.1),
        ("FLOAT16", 2.5, 2.5),
        ("FLOAT16", {"UInt16": 0x4100}, 2.5),
        ("UINT8", {"UInt8": 255}, 255),
        ("INT64", {"Int64": -(2**63)}, -(2**63)),
        ("UINT64", 2**64 - 1, 2**64 - 1),
    ],
)
def test_a_scalar_is_a_number_or_a_member_of_the_union(data_type: str, given: Any, value: float) -> None:
    out = tensor(5, data_type=data_type)
    desc = describe(tvmdml.FillValueSequence, OutputTensor=out, ValueDataType=data_type, ValueStart=given, ValueDelta=0)
    np.testing.assert_equal(desc.value_start, value)


def test_a_field_called_type_is_the_operators_own_within_desc() -> None:
    fields = {"InputTensor": tensor(6), "OutputTensor": tensor(6), "Type": "PHILOX_4X32_10", "Offset": -1}
    assert describe(RandomGenerator, **fields).type is RandomGeneratorType.PHILOX_4X32_10


@pytest.mark.parametrize(
    "given",
    [
        {"DataType": "FLOAT16", "Sizes": [2, 3]},
        {"DataType": "DML_TENSOR_DATA_TYPE_FLOAT16", "Sizes": [2, 3], "DimensionCount": 2, "Strides": None, "Flags": []},
        {"Type": "BUFFER", "DataType": "float16", "Sizes": [2, 3], "Strides": [], "TotalTensorSizeInBytes": 0},
        {"Type": "DML_TENSOR_TYPE_BUFFER", "Desc": {"DataType": "FLOAT16", "Sizes": [2, 3], "GuaranteedBaseOffsetAlignment": 0}},
        {"Desc": {"DataType": "FLOAT16", "Sizes": [2, 3], "Flags": "DML_TENSOR_FLAG_NONE"}},
    ],
)
def test_a_tensor_is_flat_or_a_desc_and_needs_only_type_and_sizes(given: Any) -> None:
    desc = describe(tvmdml.ElementWiseIdentity, InputTensor=given, OutputTensor=tensor(1)).input_tensor
    assert (desc.data_type, desc.sizes, desc.strides) == (TensorDataType.FLOAT16, (2, 3), None)
    assert desc.total_tensor_size_in_bytes is None


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"Direction": ABSENT}, "desc.Direction: given nothing; allowed: INCREASING, DECREASING."),
        ({"Direction": "SIDEWAYS"}, 'desc.Direction: given "SIDEWAYS"; allowed: INCREASING, DECREASING.'),
        ({"direction": "INCREASING"}, "desc.direction: given an unknown field; allowed: InputTensor, "),
        ({"direction": "INCREASING"}, "Did you mean Direction?"),
        ({"Axes": 1}, "desc.Axes: given 1; allowed: a sequence"),
        ({"Axes": [1, -1]}, "desc.Axes[1]: given -1; allowed: an integer from 0 to 4294967295"),
        ({"PartCount": 3}, "desc.PartCount: given 3; allowed: 2, the length of PartTensors"),
        ({"PartCount": "2"}, 'desc.PartCount: given "2"; allowed: 2, the length of PartTensors'),
        ({"PartTensors": [tensor(1), tensor(0)]}, "desc.PartTensors[1].Sizes[0]: given 0"),
        ({"Count": 2**32}, "desc.Count: given 4294967296; allowed: an integer from 0 to 4294967295"),
        ({"InputTensor": None}, "desc.InputTensor: given nothing; allowed: input tensor"),
        ({"InputTensor": [tensor(1)]}, "desc.InputTensor: given "),
        ({"InputTensor": {"Sizes": [1]}}, "desc.InputTensor.DataType: given nothing; allowed: FLOAT32"),
        ({"InputTensor": tensor(data_type="FLOAT8")}, 'desc.InputTensor.DataType: given "FLOAT8"; allowed: FLOAT32'),
        ({"InputTensor": tensor(*[1] * 9)}, "desc.InputTensor.Sizes: given 9 dimensions; allowed: 1 to 8"),
        ({"InputTensor": tensor(2**16, 2**16)}, "desc.InputTensor.Sizes: given 4294967296 elements"),
        ({"InputTensor": tensor(2, Strides=[1, 1])}, "desc.InputTensor.Strides: given 2 strides; allowed: 1"),
        ({"InputTensor": tensor(2, DimensionCount=1, Strides={})}, "desc.InputTensor.Strides: given an empty object"),
        ({"InputTensor": tensor(2, DimensionCount=3)}, "desc.InputTensor.DimensionCount: given 3; allowed: an integer from 1 to 1"),
        ({"InputTensor": tensor(2, TotalTensorSizeInBytes=4)}, "InputTensor.TotalTensorSizeInBytes: given 4; allowed: at least 8"),
        ({"InputTensor": tensor(2, GuaranteedBaseOffsetAlignment=3)}, "desc.InputTensor.GuaranteedBaseOffsetAlignment: given 3"),
        ({"InputTensor": tensor(2, Flags="SHARED")}, 'desc.InputTensor.Flags: given "SHARED"; allowed: NONE, OWNED_BY_DML'),
        ({"InputTensor": tensor(2, Type="TEXTURE")}, 'desc.InputTensor.Type: given "TEXTURE"; allowed: BUFFER'),
        ({"InputTensor": {"Desc": tensor(1), "Sizes": [1]}}, "desc.InputTensor.Sizes: given an unknown field"),
        ({"OutputTensor": tensor(2, Flags="OWNED_BY_DML")}, "desc.OutputTensor: given an output that is OWNED_BY_DML"),
        ({"FusedActivation": {"Type": "SPECIMEN_ACT", "Alfa": 1}}, "desc.FusedActivation.Alfa: given an unknown field"),
        ({"FusedActivation": {"Type": "SPECIMEN_ACT"}}, "desc.FusedActivation.Alpha: given nothing"),
        ({"FusedActivation": {"Type": "SPECIMEN_ACT", "Desc": {"Alpha": []}}}, "desc.FusedActivation.Desc.Alpha: given []"),
        ({"FusedActivation": {"Type": "ACTIVATION_NONE"}}, "desc.FusedActivation.Type: "),
    ],
)
def test_a_wrong_field_is_named_by_its_path(changes: Any, message: str, monkeypatch: pytest.MonkeyPatch) -> None:
    known = {**operators.all_operators(), specimens.Act.NAME: specimens.Act}
    monkeypatch.setattr(operators, "all_operators", lambda: known)
    fields = {name: value for name, value in {**specimens.JSON, **changes}.items() if value is not ABSENT}
    with pytest.raises(ModelError) as caught:
        describe(specimens.EveryRole, **fields)
    assert str(caught.value).startswith("model.json: dispatchables.op.desc.")
    assert message in str(caught.value)


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ("much", 'desc.ValueStart: given "much"'),
        ({"Int32": 1}, "desc.ValueStart.Int32: given an unknown field; allowed: Float32"),
        ({}, "desc.ValueStart.Float32: given nothing"),
    ],
)
def test_a_wrong_scalar_is_named(given: Any, message: str) -> None:
    with pytest.raises(ModelError) as caught:
        describe(tvmdml.FillValueSequence, OutputTensor=tensor(5), ValueDataType="FLOAT32", ValueStart=given, ValueDelta=1)
    assert message in str(caught.value)


# -- Dispatchables ------------------------------------------------------------------------------------------------


def test_every_operator_that_is_missing_is_named_and_nothing_runs(run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    missing = {"CONVOLUTION", "GRU", "RNN", "GEMM", "MULTIHEAD_ATTENTION"}
    known = operators.by_name

    def by_name(name: str) -> Any:
        return known(f"NO_{name}" if name.upper().removeprefix("DML_OPERATOR_") in missing else name)

    monkeypatch.setattr(operators, "by_name", by_name)
    model = rounding()
    model["dispatchables"] |= {
        "conv": {"type": "DML_OPERATOR_CONVOLUTION", "desc": {"FusedActivation": {"Type": "GRU"}}},
        "rnn": {"type": "dml_operator_rnn", "desc": {"ActivationDescs": [{"Type": "GEMM"}]}},
        "shader": {"type": "hlsl", "sourcePath": "add.hlsl", "compilerArgs": []},
        "attention": {"type": "MULTIHEAD_ATTENTION", "desc": {"MaskType": "NONE", "InputTensor": {"Type": "BUFFER"}}},
    }
    text = refusal(run, model)
    assert text.startswith("dispatchables: given ")
    given = text.partition("; allowed: ")[0]
    assert re.findall(r"([A-Za-z_0-9]+) \(", given) == [
        "DML_OPERATOR_CONVOLUTION",
        "GRU",
        "dml_operator_rnn",
        "GEMM",
        "hlsl",
        "MULTIHEAD_ATTENTION",
    ]
    assert "dispatchables.rnn.desc.ActivationDescs[0].Type" in given


@pytest.mark.parametrize(
    ("path", "value", "message"),
    [
        ("type", ABSENT, "dispatchables.round.type: given nothing"),
        ("desc", ABSENT, "dispatchables.round.InputTensor: given nothing"),
        ("description", "x", "dispatchables.round.description: given an unknown field; allowed: type"),
        ("executionFlags", ["FAST"], 'dispatchables.round.executionFlags[0]: given "FAST"; allowed: NONE'),
        ("dmlCompileType", "Both", 'dispatchables.round.dmlCompileType: given "Both"; allowed: DmlCompileOp'),
        ("bindings", {"InputTensor": "input"}, "dispatchables.round.bindings.InputTensor: given a binding"),
        (
            "desc.OutputTensor.Sizes",
            [5],
            "dispatchables.round.desc.OutputTensor.Sizes: given (5,); allowed: (4,), as in input_tensor",
        ),
        ("desc.OutputTensor.Strides", [0], "dispatchables.round.desc.OutputTensor: given strides (0,)"),
        ("desc.InputTensor.DataType", "INT32", "dispatchables.round.desc.InputTensor: given int32 of rank 1; allowed: float32"),
    ],
)
def test_a_wrong_dispatchable_is_refused(run: Run, path: str, value: Any, message: str) -> None:
    assert message in refusal(run, changed(rounding(), f"dispatchables.round.{path}", value))


def test_the_feature_level_is_the_callers(run: Run) -> None:
    assert "rank 4, at feature level 2.1. Feature level 3.0 supports it." in refusal(run, rounding(), feature_level="2.1")
    assert "feature_level: given 2.0; allowed: 2.1 and above" in refusal(run, rounding(), feature_level="2.0")


def test_tensors_owned_by_dml_are_bound_at_the_start_and_keep_their_values(run: Run) -> None:
    model = rounding()
    model["dispatchables"]["round"]["desc"]["InputTensor"]["Flags"] = "DML_TENSOR_FLAG_OWNED_BY_DML"
    model["dispatchables"]["round"]["bindings"] = {"InputTensor": "input"}
    model["dispatchables"]["spoil"] = {
        "type": "DML_OPERATOR_DIAGONAL_MATRIX",
        "desc": {"OutputTensor": tensor(1, 1, 2, 2), "Offset": 0, "Value": 77},
    }
    del model["commands"][0]["bindings"]["InputTensor"]
    model["commands"].insert(0, {"type": "dispatch", "dispatchable": "spoil", "bindings": {"OutputTensor": "input"}})
    assert run(model)[2:] == ["Resource 'output': 1, 2, -0, nan"]

    text = refusal(run, changed(model, "commands.1.bindings.InputTensor", "input"))
    assert "commands[1].bindings.InputTensor: given a binding; allowed: bindings for OutputTensor." in text
    text = refusal(run, changed(model, "dispatchables.round.bindings", ABSENT))
    assert "dispatchables.round.bindings.InputTensor: given nothing; allowed: a resource for float32[4]" in text
    text = refusal(run, changed(model, "dispatchables.round.bindings.InputTensor", "nowhere"))
    assert 'bindings.InputTensor: given "nowhere"; allowed: the name of a resource of this model: input, output' in text


# -- Bindings -----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("binding", "printed"),
    [
        ({"name": "input"}, "1, 2, -0, nan"),
        ({"name": "input", "elementOffset": 0, "elementCount": 4, "elementSizeInBytes": 4}, "1, 2, -0, nan"),
        ({"name": "input", "elementCount": 0, "elementSizeInBytes": 0, "format": "R32_FLOAT", "shape": [4]}, "1, 2, -0, nan"),
        ({"name": "long", "elementOffset": 2}, "3, 4, 5, 6"),
        ({"name": "long", "elementOffset": 1, "elementSizeInBytes": 8, "elementCount": 2}, "3, 4, 5, 6"),
        ({"name": "bytes", "elementOffset": 4, "elementCount": 16}, "2, 2, 2, 2"),
    ],
)
def test_a_binding_is_a_view_of_a_resource(run: Run, binding: Any, printed: str) -> None:
    model = changed(rounding(), "commands.0.bindings.InputTensor", binding)
    model["resources"]["long"] = resource({"valueCount": 6, "valueStart": 1, "valueDelta": 1})
    model["resources"]["bytes"] = resource([0, 0, 0x10, 0x40] * 5, "UINT8")
    assert run(model)[1:] == [f"Resource 'output': {printed}"]


@pytest.mark.parametrize(
    ("path", "value", "message"),
    [
        ("InputTensor", ABSENT, "bindings.InputTensor: given nothing; allowed: a resource for float32[4]"),
        (
            "InputTensor",
            "nowhere",
            'bindings.InputTensor: given "nowhere"; allowed: the name of a resource of this model: input, output',
        ),
        ("InputTensor", ["input", "output"], "bindings.InputTensor: given 2 resources; allowed: 1"),
        ("BiasTensor", "input", "bindings.BiasTensor: given a binding; allowed: bindings for InputTensor, OutputTensor."),
        (
            "InputTensor",
            {"name": "input", "elementOffset": 1},
            "bindings.InputTensor: given 12 bytes of 'input'; allowed: at least 16",
        ),
        ("InputTensor", {"name": "input", "elementOffset": 2**60}, "bindings.InputTensor: given 0 bytes of 'input'"),
        (
            "InputTensor",
            {"name": "input", "elementCount": 3},
            "bindings.InputTensor: given 3 elements of 4 bytes; allowed: at least 16",
        ),
        ("InputTensor", {"name": "input", "elementCount": 5}, "bindings.InputTensor: given 5 elements; allowed: at most 4"),
        (
            "InputTensor",
            {"name": "long", "elementOffset": 3, "elementSizeInBytes": 1},
            "given an offset of 3 bytes; allowed: a multiple of 4",
        ),
        ("InputTensor", "tiny", "bindings.InputTensor: given 4 bytes of 'tiny'; allowed: at least 16, for float32[4]"),
        ("OutputTensor", "tiny", "bindings.OutputTensor: given 4 bytes of 'tiny'"),
        (
            "OutputTensor",
            {"name": "long", "elementOffset": 1},
            "bindings.OutputTensor: given memory that overlaps input_tensor; allowed: separate memory, or exactly the input's",
        ),
    ],
)
def test_a_wrong_binding_is_refused_before_anything_runs(run: Run, path: str, value: Any, message: str) -> None:
    model = rounding()
    model["resources"] |= {"tiny": resource([1]), "long": resource({"valueCount": 9, "value": 1})}
    if path == "OutputTensor":
        model["commands"][0]["bindings"]["InputTensor"] = "long"
    model["commands"].insert(0, {"type": "writeFile", "resource": "input", "targetPath": "ran.dat"})
    message = message.replace("input, output", "input, output, tiny, long")
    assert message in refusal(run, changed(model, f"commands.1.bindings.{path}", value))
    assert not Path("ran.dat").exists()


def test_the_tensors_total_size_has_to_be_there(run: Run) -> None:
    model = rounding()
    model["dispatchables"]["round"]["desc"]["InputTensor"]["TotalTensorSizeInBytes"] = 20
    assert "InputTensor: given 16 bytes of 'input'; allowed: at least 20" in refusal(run, model)
    model["resources"]["input"]["sizeInBytes"] = 20
    assert run(model)[1:] == ["Resource 'output': 1, 2, -0, nan"]


def test_strides_reach_no_further_than_the_buffer(run: Run) -> None:
    model = changed(rounding(), "dispatchables.round.desc.InputTensor.Strides", [2])
    assert "InputTensor: given 16 bytes of 'input'; allowed: at least 28, for float32[4] strides [2]" in refusal(run, model)
    model = changed(rounding(), "dispatchables.round.desc.InputTensor.Strides", [0])
    assert run(model)[1:] == ["Resource 'output': 1, 1, 1, 1"]


# -- Commands and timing ------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("command", "message"),
    [
        ({}, "commands[1].type: given nothing; allowed: dispatch, print, writeFile"),
        ({"type": "dance"}, 'commands[1].type: given "dance"; allowed: dispatch, print, writeFile'),
        ({"type": "print", "resource": "ouput"}, 'commands[1].resource: given "ouput"; allowed: the name of a resource'),
        ({"type": "print", "resource": "mixed"}, "commands[1].resource: given 'mixed', of elements of type UNKNOWN"),
        ({"type": "print", "resource": "output", "verbose": 1}, "commands[1].verbose: given 1; allowed: true or false"),
        ({"type": "dispatch", "dispatchable": "flat", "bindings": {}}, 'commands[1].dispatchable: given "flat"'),
        ({"type": "dispatch", "dispatchable": "round"}, "commands[1].bindings: given nothing"),
        ({"type": "writeFile", "resource": "output"}, "commands[1].targetPath: given nothing"),
    ],
)
def test_a_wrong_command_is_refused(run: Run, command: Any, message: str) -> None:
    model = changed(rounding(), "commands.1", command)
    model["resources"]["mixed"] = resource([{"type": "INT8", "value": 1}], "UNKNOWN")
    assert message in refusal(run, model)


def test_one_line_tells_of_a_dispatch(run: Run) -> None:
    line, _ = run(rounding())
    assert re.fullmatch(r"Dispatch 'round': 1 iterations, \d+\.\d{4} ms median \(CPU\)", line)


def test_more_is_told_when_asked(run: Run) -> None:
    stats = r"\d+\.\d{4} ms average, \d+\.\d{4} ms min, \d+\.\d{4} ms median, \d+\.\d{4} ms max"
    lines = run(rounding(), timing=Timing(iterations=5, repeat=3, warmup=2, verbosity=2))
    patterns = [
        r"Initialize 'round': \d+\.\d{4} ms",
        r"Dispatch 'round': 5 iterations",
        rf"CPU Timings \(Cold\) : 2 samples, {stats}",
        rf"CPU Timings \(Hot\)  : 3 samples, {stats}",
        r"The timings of each iteration:",
        *[rf"iteration {i}: \d+\.\d{{4}} ms \(CPU\)" for i in range(5)],
        r"Resource 'output': 1, 2, -0, nan",
    ]
    assert len(lines) == len(patterns)
    for line, pattern in zip(lines, patterns, strict=True):
        assert re.fullmatch(pattern, line)
    assert run(rounding(), timing=Timing(iterations=5, verbosity=1))[2].startswith("CPU Timings (Cold) : 1 samples, ")


def test_one_sample_is_always_hot(run: Run) -> None:
    lines = run(rounding(), timing=Timing(warmup=10, verbosity=1))
    assert [line.partition(" samples")[0] for line in lines if "CPU" in line] == ["CPU Timings (Hot)  : 1"]


def test_each_sample_binds_once_and_dispatches_as_often_as_asked(run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    calls: list[str] = []
    bind = CompiledOperator.bind

    def counting(self: CompiledOperator, *tensors: Any) -> Callable[[], None]:
        calls.append("bind")
        call = bind(self, *tensors)
        return lambda: (calls.append("dispatch"), call())[1]

    monkeypatch.setattr(CompiledOperator, "bind", counting)
    run(rounding(), timing=Timing(iterations=2, repeat=3))
    assert calls == ["bind"] + 2 * ["bind", "dispatch", "dispatch", "dispatch"]  # the first one is the check


def test_commands_work_on_the_same_resources_one_after_the_other(run: Run) -> None:
    model = rounding()
    model["dispatchables"]["diagonal"] = {
        "type": "DML_OPERATOR_DIAGONAL_MATRIX1",
        "desc": {
            "InputTensor": tensor(2, 2),
            "OutputTensor": tensor(2, 2),
            "ValueDataType": "FLOAT32",
            "Value": {"Float32": 8},
            "DiagonalFillBegin": 1,
            "DiagonalFillEnd": 2,
        },
    }
    bindings = {"InputTensor": "output", "OutputTensor": "input"}
    model["commands"] += [
        {"type": "dispatch", "dispatchable": "diagonal", "bindings": bindings},
        {"type": "print", "resource": "input"},
    ]
    lines = run(model)
    assert lines[1] == "Resource 'output': 1, 2, -0, nan"
    assert lines[3] == "Resource 'input': 1, 8, -0, nan"


def test_time_to_run_takes_more_samples(run: Run) -> None:
    line, _ = run(rounding(), timing=Timing(iterations=2, milliseconds=30))
    assert int(re.findall(r"(\d+) iterations", line)[0]) > 2


# -- Writing files ------------------------------------------------------------------------------------------------


def written(**command: Any) -> dict[str, Any]:
    return {
        "resources": {"x": resource([1, 2, 3, 4, 5, 6], "FLOAT16", sizeInBytes=20)},
        "dispatchables": {},
        "commands": [{"type": "writeFile", "resource": "x", **command}],
    }


def test_the_sum_of_files_is_written_to_files(run: Run) -> None:
    run(MODELS / "pointwise.json")
    halves = np.load(MODELS / "halves.npy").reshape(2, 3)
    np.testing.assert_array_equal(np.load("sum.npy"), 2 * halves)
    assert Path("sum.dat").read_bytes() == (2 * halves).tobytes()


def test_written_files_read_back(run: Run, tmp_path: Path) -> None:
    assert run(MODELS / "files.json")[-2:] == [
        f"Resource 'dat' written to '{tmp_path}/results/rounded.npy'",
        f"Resource 'dat' written to '{tmp_path}/results/rounded.dat'",
    ]
    array = np.load("results/rounded.npy")
    np.testing.assert_array_equal(array, np.array([[0.5, 1.5, 2.5], [-0.0, -1, -2]], np.float32))
    assert Path("results/rounded.dat").read_bytes() == array.tobytes()
    again = prints(npy=resource({"sourcePath": "results/rounded.npy"}, None), dat=resource({"sourcePath": "results\\rounded.dat"}))
    assert run(again) == ["Resource 'npy': 0.5, 1.5, 2.5, -0, -1, -2", "Resource 'dat': 0.5, 1.5, 2.5, -0, -1, -2"]


def test_a_file_holds_the_whole_buffer_or_what_the_dimensions_say(run: Run) -> None:
    run(written(targetPath="all.npy"))
    np.testing.assert_array_equal(np.load("all.npy"), np.array([1, 2, 3, 4, 5, 6, 0, 0, 0, 0], np.float16))
    run(written(targetPath="some.npy", dimensions=[1, 2, 2]))
    np.testing.assert_array_equal(np.load("some.npy"), np.array([[[1, 2], [3, 4]]], np.float16))
    run(written(targetPath="raw", dimensions=[3]))
    assert np.fromfile("raw", np.float16).tolist() == [1, 2, 3]


@pytest.mark.parametrize(
    ("path", "message"),
    [
        ("../x.npy", 'commands[0].targetPath: given "../x.npy", which is outside the folder; allowed: a new file in '),
        ("deep/../../x.npy", "which is outside the folder"),
        ("link/x.npy", "whose path contains a symbolic link, or a file in place of a folder"),
        ("inner/x.npy", "whose path contains a symbolic link, or a file in place of a folder"),
        ("taken/x.npy", "whose path contains a symbolic link, or a file in place of a folder"),
        ("dangling.npy", "which already exists and is not a regular file"),
        ("outer.npy", "which already exists and is not a regular file"),
        ("deep", "which already exists and is not a regular file"),
        ("{folder}/x.npy", "which is an absolute path"),
        ("C:x.npy", "which is an absolute path"),
        ("", "which does not name a file"),
        ("pipe", "which already exists and is not a regular file"),
        ("a\0b", "which is not a valid file name"),
        ("x" * 300, "which is not a valid file name"),
        ("x.png", "given []; allowed: [1, channels, height, width], with 1, 3 or 4 channels"),
    ],
)
@pytest.mark.parametrize("overwrite", [False, True])
def test_nothing_is_written_outside_the_folder_that_is_named(
    run: Run, tmp_path: Path, path: str, message: str, overwrite: bool
) -> None:
    folder = tmp_path / "out"
    (folder / "deep").mkdir(parents=True)
    (folder / "link").symlink_to(tmp_path)
    (folder / "inner").symlink_to("deep")
    (folder / "outer.npy").symlink_to("../x.npy")
    (folder / "dangling.npy").symlink_to("nothing.npy")
    (folder / "taken").write_text("mine")
    os.mkfifo(folder / "pipe")
    model = written(targetPath=path.format(folder=folder))
    model["commands"].insert(0, {"type": "writeFile", "resource": "x", "targetPath": "first.dat"})
    assert message in refusal(run, model, output_path=folder, overwrite=overwrite).replace("commands[1]", "commands[0]")
    assert not (tmp_path / "x.npy").exists()
    assert sorted(os.listdir(folder)) == ["dangling.npy", "deep", "inner", "link", "outer.npy", "pipe", "taken"]
    assert (os.listdir(folder / "deep"), (folder / "taken").read_text()) == ([], "mine")


def test_a_model_that_writes_needs_a_folder_before_anything_runs(run: Run) -> None:
    model = written(targetPath="x.npy")
    model["commands"].insert(0, {"type": "print", "resource": "x"})
    said: list[str] = []
    text = refusal(run, model, output_path=None, write=said.append)
    assert (
        'commands[1].targetPath: given "x.npy", and no folder to write to; allowed: files inside the folder given by --output_path'
        in text
    )
    assert len(said) == 1
    assert os.listdir() == ["model.json"]


def test_what_was_there_before_is_replaced_only_if_asked_to(run: Run, tmp_path: Path) -> None:
    hooks = tmp_path / "out" / ".git" / "config"
    hooks.parent.mkdir(parents=True)
    hooks.write_text("mine")
    os.link(hooks, tmp_path / "other name")
    model = written(targetPath=".git/config", dimensions=[1])
    options = {"output_path": tmp_path / "out"}
    text = refusal(run, model, overwrite=False, **options)
    assert "which already exists; allowed: a new file in '" in text
    assert "Use --overwrite (in Python: overwrite=True) to replace files" in text
    assert hooks.read_text() == "mine"
    run(model, overwrite=True, **options)
    assert hooks.read_bytes() == np.float16(1).tobytes()
    assert (tmp_path / "other name").read_text() == "mine", "a file is replaced, and not written into"


def test_a_run_may_replace_what_it_wrote_itself(run: Run, tmp_path: Path) -> None:
    model = written(targetPath="new/x.dat", dimensions=[1])
    model["commands"] += [{**model["commands"][0], "dimensions": [2]}]
    run(model, overwrite=False, output_path=tmp_path / "out")
    assert (tmp_path / "out/new/x.dat").stat().st_size == 4
    assert "which already exists" in refusal(run, model, overwrite=False, output_path=tmp_path / "out")


@pytest.mark.parametrize(
    ("meanwhile", "reason"),
    [
        (lambda out: [out.mkdir(), (out / "new").symlink_to(out.parent)], "whose path contains a symbolic link"),
        (lambda out: [(out / "new").mkdir(parents=True), (out / "new/x.dat").write_text("mine")], "which already exists"),
        (lambda out: [(out / "new").mkdir(parents=True), (out / "new/x.dat").symlink_to("../../x.dat")], "is not a regular file"),
    ],
)
def test_what_came_to_be_while_it_ran_is_not_replaced(
    run: Run, tmp_path: Path, meanwhile: Callable[[Path], object], reason: str
) -> None:
    """Between the check and the writing somebody makes a file, or a link in place of a folder."""
    model = written(targetPath="new/x.dat")
    model["commands"].insert(0, {"type": "print", "resource": "x"})

    def write(text: str) -> None:
        if text.startswith("Resource"):
            meanwhile(tmp_path / "out")

    assert reason in refusal(run, model, overwrite=False, output_path=tmp_path / "out", write=write)
    assert not (tmp_path / "x.dat").exists()
    found = tmp_path / "out/new/x.dat"
    assert not found.is_file() or found.read_text() == "mine"


def test_names_reach_the_terminal_without_its_commands(run: Run, tmp_path: Path) -> None:
    name, shown = "x\x1b[2J\n\x9b\u202e\x7f", "x\\x1b[2J\\n\\x9b\\u202e\\x7f"
    model = rounding()
    model["resources"][name] = model["resources"]["input"]
    model["dispatchables"] = {name: model["dispatchables"]["round"]}
    model["commands"][0]["dispatchable"] = name
    model["commands"] += [{"type": "print", "resource": name}, {"type": "writeFile", "resource": name, "targetPath": f"{name}.dat"}]
    lines = run(model, timing=Timing(verbosity=1))
    assert lines[0].startswith(f"Initialize '{shown}': ")
    assert lines[1] == f"Dispatch '{shown}': 1 iterations"
    assert lines[-1] == f"Resource '{shown}' written to '{tmp_path}/{shown}.dat'"
    said = [refusal(run, changed(model, f"commands.{number}.resource", f"not {name}")) for number in (1, 2)]
    said.append(refusal(run, prints(**{name: resource([])})))
    said.append(refusal(run, prints(x=resource({name: 1}))))
    said.append(refusal(run, prints(x=resource({"sourcePath": name}))))
    said.append(refusal(run, prints(x=resource([1], name))))
    assert not [char for char in "".join(said) if not char.isprintable()]
    assert shown in said[0]


def test_a_file_that_cannot_be_written_is_named(run: Run) -> None:
    model = written(targetPath="x.dat")
    Path("taken").write_text("")
    for folder, reason in (("taken", "whose path contains a"), ("a\0b", "which cannot be written (embedded null")):
        text = refusal(run, model, output_path=folder)
        assert "commands[0].targetPath: given " in text
        assert reason in text


@pytest.mark.parametrize(
    ("dimensions", "message"),
    [
        ([11], "commands[0].dimensions: given 1 dimensions, 11 elements; allowed: at most 32 dimensions, and 10 elements"),
        ([1] * 65, "commands[0].dimensions: given 65 dimensions, 1 elements"),
        ([0], "commands[0].dimensions[0]: given 0"),
        (6, "commands[0].dimensions: given 6; allowed: a list"),
    ],
)
def test_wrong_dimensions_are_refused(run: Run, dimensions: Any, message: str) -> None:
    assert message in refusal(run, written(targetPath="x.npy", dimensions=dimensions))


# -- The file itself ----------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("", "line 1, column 1: given text that is not JSON (No JSON data found)"),
        (
            '{\n "resources": {}\n "commands": []}',
            "line 3, column 2: given text that is not JSON (Expected comma or '}', found '\"')",
        ),
        ('{"resources": {}} // yes\n no', "given text that is not JSON (Extra data 'n')"),
        ("[" * 10_000, "given text that is not JSON (Maximum nesting level exceeded)"),
        ('{"resources": {"x": {"initialValues": [1e999]}}}', "given text that is not JSON"),
        ("[]", "given []; allowed: an object"),
        ("{}", "resources: given nothing; allowed: an object"),
        ('{"resources": {}, "dispatchables": {}, "commands": {}}', "commands: given an empty object; allowed: a list"),
        ('{"resources": {}, "dispatchables": {}, "commands": [], "command": 1}', "command: given an unknown field"),
    ],
)
def test_a_wrong_file_is_refused(run: Run, text: str, message: str) -> None:
    assert message in refusal(run, text)


def test_comments_trailing_commas_and_a_schema_are_fine(run: Run) -> None:
    assert run('\ufeff// nothing\n{"$schema": "x", "resources": {}, /* none */ "dispatchables": {}, "commands": [],}') == []


@pytest.mark.parametrize("path", ["missing.json", ".", "/dev/zero", "pipe", "latin.json", "a\0b"])
def test_what_is_no_text_file_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, path: str) -> None:
    monkeypatch.chdir(tmp_path)
    os.mkfifo("pipe")
    Path("latin.json").write_bytes(b'{"\xe9": 1}')
    with pytest.raises(ModelError, match=r"allowed: a JSON file"):
        dxdispatch.read(path)


def test_a_file_that_is_too_large_is_not_read(tmp_path: Path) -> None:
    path = tmp_path / "model.json"
    with path.open("wb") as file:
        file.truncate(1 << 40)
    with pytest.raises(ModelError, match="at most 256 MiB"):
        dxdispatch.read(path)


def test_names_may_be_any_text(run: Run) -> None:
    name = "a.b[0] 'é' \U0001f600"
    assert run(prints(**{name: resource([1])})) == [f"Resource '{name}': 1"]
    assert 'resources["a b"].initialValues: given []' in refusal(run, prints(**{"a b": resource([])}))


def test_every_refusal_is_tvmdmls_own_whatever_stands_where(run: Run) -> None:
    """Put things of every kind in every place of a model: it runs, or is refused with a message.

    So the tables have each rule once, and not for each place where it holds.
    """
    strange = [None, True, -1, 2**70, 1.5, "", "nan", "x", [], [[]], {}, {"Type": {}}, {"name": None}, {"valueCount": 1}]

    def places(value: Any, path: tuple[Any, ...] = ()) -> list[tuple[Any, ...]]:
        inner = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ()
        return [place for key, item in inner for place in [(*path, key), *places(item, (*path, key))]]

    said = []
    for place in places(rounding()):
        for value in strange:
            try:
                run(changed(rounding(), ".".join(map(str, place)), value))
            except TvmdmlError as error:
                said.append(str(error))
    assert len(said) > 300
    assert all(": given " in text for text in said)
