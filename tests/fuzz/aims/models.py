"""DxDispatch's models: read, and run where they are small."""

from __future__ import annotations

import functools
from pathlib import Path
from typing import Any

from fuzz import trees
from fuzz.choices import Choices
from fuzz.oracle import refusals
from tvmdml import dxdispatch
from tvmdml.enums import TensorFlags
from tvmdml.operators import all_operators
from tvmdml.tensors import TensorDataType

EXAMPLES = 300
_MODELS = Path(__file__).parents[2] / "models"
_LARGEST = 1 << 20
"""Bytes of all resources of a model that is run."""
WORDS = (
    "resources", "dispatchables", "commands", "initialValues", "initialValuesDataType", "initialValuesOffsetInBytes",
    "sizeInBytes", "type", "Type", "desc", "Desc", "bindings", "dmlCompileType", "executionFlags", "name", "elementCount",
    "elementSizeInBytes", "elementOffset", "valueCount", "value", "valueStart", "valueDelta", "sourcePath", "targetPath",
    "dimensions", "verbose", "resource", "dispatchable", "dispatch", "print", "writeFile", "DataType", "Sizes", "Strides",
    "TotalTensorSizeInBytes", "Flags", "GuaranteedBaseOffsetAlignment", "DimensionCount", "UNKNOWN", "halves.npy", "halves.dat",
    "../x", "/dev/zero", "a/b.npy", "x.png", "Float32", "UInt16", "Int64", "BUFFER", "deferred", "$schema", "DML_TENSOR_FLAG_",
    "DML_OPERATOR_", "null", "//", "/*", "*/", *(flag.name for flag in TensorFlags), *(member.name for member in TensorDataType),
    *all_operators(), "Infinity", "NaN", *(field.dml_name for cls in all_operators().values() for field in cls.fields()),
)  # fmt: skip


def seeds() -> list[bytes]:
    """The models of the tests, as they are."""
    return [b"\0" + path.read_bytes() for path in sorted(_MODELS.glob("*.json"))]


def one(choices: Choices) -> None:
    """The bytes as they come; or a model with some changes, as a text or as a tree."""
    kind = choices.integer(0, 3)
    if kind == 0:
        check(choices.rest())
    elif kind == 1:
        path = choices.pick(sorted(_MODELS.glob("*.json")))
        check(trees.damaged(choices, path.read_bytes(), WORDS))
    else:
        check(trees.text(trees.changed(choices, choices.pick(_trees()), WORDS)).encode("utf-8", "surrogatepass"))


def check(content: bytes) -> None:
    """Read it, and run what was read."""
    path = Path("model.json")
    path.write_bytes(content)
    before = {place.name for place in Path().iterdir()}
    with refusals():
        model = dxdispatch.read(path, input_path=_MODELS)
        if sum(resource.size for resource in model.resources.values()) <= _LARGEST and len(model.commands) < 50:
            model.run(output_path="out", overwrite=True, write=lambda text: None)
    outside = {place.name for place in Path().iterdir()} - before - {"out"}
    assert not outside, f"written outside of the folder for it: {outside}"


@functools.cache
def _trees() -> list[Any]:
    import pyjson5

    return [pyjson5.decode(path.read_text()) for path in sorted(_MODELS.glob("*.json"))]
