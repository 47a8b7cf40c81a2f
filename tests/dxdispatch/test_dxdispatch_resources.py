"""Resources of JSON models: values, files, and what is refused of them."""

from __future__ import annotations

import json
import os
import re
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from dispatch_models import Run, prints, refusal, resource, rounding

from tvmdml import dxdispatch
from tvmdml.dxdispatch import resources
from tvmdml.errors import ModelError
from tvmdml.operators._json.nodes import JsonNode

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
    found = resources.read(JsonNode(declared, "model.json"), (tmp_path,))
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
