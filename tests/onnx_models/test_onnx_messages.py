"""ONNX's messages and schemas without the rest of the package onnx."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest

onnx = pytest.importorskip("onnx", reason="models are made with the package onnx")

from onnx import TensorProto, helper, numpy_helper  # noqa: E402 - as above

from tvmdml.operators._onnx_messages import (  # noqa: E402
    attribute_of,
    attribute_value,
    element_of,
    elements,
    node_of,
    numpy_type,
    tensor_of,
    tensor_type,
)

_PROGRAM = """
import sys
import numpy as np
import tvmdml.onnx

x = np.array([[1, -2]], np.float32)
assert tvmdml.onnx.load(sys.argv[1])(x)[0].tolist() == [[1, 0]]
assert "onnx" not in sys.modules, "the whole package was imported"
mine = sys.modules["onnx.onnx_ml_pb2"]

import importlib.resources, importlib.util, pkgutil
loader = importlib.util.find_spec("onnx").loader
assert "SPDX" in loader.get_source("onnx") and loader.is_package("onnx")
assert "onnx" not in sys.modules
assert pkgutil.get_data("onnx", "__init__.py") and importlib.resources.files("onnx").joinpath("__init__.py").is_file()
import onnx, onnx.helper, onnx.checker
assert onnx.onnx_ml_pb2 is mine and onnx.ModelProto is mine.ModelProto
assert onnx.onnx_cpp2py_export is sys.modules["onnx.onnx_cpp2py_export"]
assert onnx.__spec__.loader is onnx.__loader__ and onnx.__file__ == onnx.__spec__.origin
model = onnx.load(sys.argv[1])
onnx.checker.check_model(model)
assert tvmdml.onnx.load(model)(x)[0].tolist() == [[1, 0]]

import importlib
del onnx.helper
assert importlib.reload(onnx).helper.make_node and onnx.ModelProto is mine.ModelProto
assert onnx.__spec__.loader is onnx.__loader__ and onnx.__loader__.get_data(onnx.__file__)
"""


_REFUSED = """
import gc, sys
import tvmdml.onnx
sys.modules["onnx"] = None  # it is not installed
try:
    tvmdml.onnx.load(sys.argv[1])
except tvmdml.Unsupported:
    pass
else:
    sys.exit("it was read")
gc.collect()
"""


def _small(path: Path) -> Path:
    x, y = (helper.make_tensor_value_info(name, TensorProto.FLOAT, [1, 2]) for name in "xy")
    graph = helper.make_graph([helper.make_node("Relu", ["x"], ["y"])], "small", [x], [y])
    onnx.save(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)]), path)
    return path


def test_a_model_that_is_not_read_leaves_no_file_open(tmp_path: Path) -> None:
    command = [sys.executable, "-W", "default::ResourceWarning", "-c", _REFUSED, str(_small(tmp_path / "small.onnx"))]
    done = subprocess.run(
        command, check=True, capture_output=True, text=True, env={**os.environ, "TVMDML_CACHE_DIR": str(tmp_path)}
    )
    assert "ResourceWarning" not in done.stderr, done.stderr


def test_a_model_needs_messages_and_schemas_only(tmp_path: Path) -> None:
    """And a program that imports the package afterwards has each module once."""
    path = _small(tmp_path / "small.onnx")
    subprocess.run([sys.executable, "-c", _PROGRAM, str(path)], check=True)


@pytest.mark.parametrize(
    "value",
    [
        *(3, 2.5, "text", b"bytes", [1, 2], [1.5, 2.0], ["a", b"b"], numpy_helper.from_array(np.arange(3)), onnx.TypeProto()),
        *(np.int8(3), np.float16(0.5), np.float32(2.5), np.float64(0.1), [np.float32(1), 2], np.arange(3), np.arange(3.0)),
    ],
    ids=lambda value: type(value).__name__,
)
def test_attributes_are_those_of_the_package(value: Any) -> None:
    """Made, and read."""
    right = helper.make_attribute("name", value)
    assert attribute_of("name", value) == right
    assert attribute_value(right) == helper.get_attribute_value(right)


@pytest.mark.parametrize("value", [None, 1j, object(), np.zeros((2, 2)), [1.5, None], {}])
def test_what_is_no_attribute_is_refused(value: Any) -> None:
    with pytest.raises(TypeError, match="a number, a text"):
        attribute_of("name", value)


def test_attributes_without_a_value() -> None:
    """Lists of nothing, attributes without a type, and those that refer to others."""
    empty = helper.make_attribute("name", [], attr_type=onnx.AttributeProto.INTS)
    assert attribute_of("name", [], onnx.AttributeProto.INTS) == empty
    assert attribute_value(empty) == []
    assert attribute_value(onnx.AttributeProto(name="name")) is None
    with pytest.raises(ValueError, match="refers to"):
        attribute_value(onnx.AttributeProto(name="name", ref_attr_name="other"))


def test_nodes_and_types_are_those_of_the_package() -> None:
    """Sizes may have names, and a tensor no known shape."""
    assert node_of("Gather", ["x", "i"], ["y"], axis=1) == helper.make_node("Gather", ["x", "i"], ["y"], axis=1)
    assert tensor_type(1, [2, "n"]) == helper.make_tensor_type_proto(1, [2, "n"])
    for shape in ([], None):
        assert tensor_type(1, shape) == helper.make_tensor_type_proto(1, shape)


@pytest.mark.parametrize("element", sorted(TensorProto.DataType.values())[1:])
def test_types_are_those_of_the_package(element: int) -> None:
    """By their numbers, and back."""
    assert numpy_type(element) == helper.tensor_dtype_to_np_dtype(element)
    assert element_of(numpy_type(element)) == element


def test_what_has_no_number() -> None:
    """A type that ONNX has not."""
    assert numpy_type(99) is None
    with pytest.raises(ValueError, match="no type"):
        element_of(np.dtype("datetime64[s]"))


@pytest.mark.parametrize("dtype", ["float32", "float64", "int32", "int64", "int8", "uint16", "bool", "float16", "uint64"])
@pytest.mark.parametrize("raw", [False, True])
def test_elements_are_those_of_the_package(dtype: str, raw: bool) -> None:
    """In each field of the message."""
    array = np.array([[0, 1, 3], [1, 0, 100]]).astype(dtype)
    whole = numpy_helper.from_array(array, "t")
    tensor = whole if raw else helper.make_tensor("t", element_of(array.dtype), array.shape, array.reshape(-1).tolist())
    np.testing.assert_array_equal(elements(tensor), array)
    assert elements(tensor).dtype == array.dtype
    assert tensor_of(array, "t") == whole
