"""Descriptors, dispatchables and bindings of JSON models."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import specimens
from dispatch_models import ABSENT, Run, changed, refusal, resource, rounding, tensor

import tvmdml
from tvmdml import operators
from tvmdml.enums import DmlEnum
from tvmdml.errors import ModelError
from tvmdml.operators import Operator
from tvmdml.operators._contract import (
    Input,
    Int,
    Output,
)
from tvmdml.operators._json import descriptors
from tvmdml.operators._json.nodes import JsonNode
from tvmdml.tensors import TensorDataType

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
    return descriptors.read(cls, JsonNode(fields, "model.json", "dispatchables.op.desc"))


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
