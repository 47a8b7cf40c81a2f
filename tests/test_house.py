"""The conventions of the code base hold, and it has room for operators unlike the existing ones."""

from __future__ import annotations

import inspect
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

import tvmdml
from tvmdml import _stub, operators
from tvmdml.enums import DmlEnum, FeatureLevel
from tvmdml.errors import InvalidArgument, Unsupported
from tvmdml.operators import Operator
from tvmdml.operators._contract import (
    Bool,
    Float,
    Input,
    Inputs,
    Operators,
    OptionalInput,
    OptionalOperator,
    OptionalOutput,
    Output,
    Role,
    Uint,
    Uints,
)
from tvmdml.operators._support import support
from tvmdml.tensors import TensorDesc

TOP = Path(__file__).parents[1]


class ReduceFunction(DmlEnum):
    SUM = 0
    MAX = 1


class Relu(Operator):
    NAME = "ACTIVATION_RELU"
    SUPPORT = support("1.0 F r45")
    input_tensor: Input
    output_tensor: Output


class Convolution(Operator):
    NAME = "CONVOLUTION"
    SUPPORT = support("1.0 F r45 · 4.0 r3-5")
    input_tensor: Input
    filter_tensor: Input
    bias_tensor: OptionalInput = None
    output_tensor: Output
    strides: Uints
    group_count: Uint
    fused_activation: OptionalOperator = None

    def check(self) -> None:
        spatial = self.input_tensor.rank - 2
        self.require(len(self.strides) == spatial, "strides", self.strides, f"{spatial} numbers, one a spatial dimension")


class Join(Operator):
    NAME = "JOIN"
    SUPPORT = support("1.0 all r8")
    input_tensors: Inputs
    output_tensor: Output
    axis: Uint


class Reduce(Operator):
    NAME = "REDUCE"
    SUPPORT = support("1.0 F r4")
    function: ReduceFunction
    input_tensor: Input
    output_tensor: Output
    axes: Uints


class Lstm(Operator):
    NAME = "LSTM"
    SUPPORT = support("1.0 F r4")
    input_tensor: Input
    bias_tensor: OptionalInput = None
    output_sequence_tensor: OptionalOutput = None
    output_single_tensor: OptionalOutput = None
    activation_descs: Operators
    clip_threshold: Float
    use_clip_threshold: Bool


IMAGE = TensorDesc("float32", (1, 3, 8, 8))


def convolution(**changes: object) -> Convolution:
    fields: dict[str, object] = {
        "input_tensor": IMAGE,
        "filter_tensor": TensorDesc("float32", (4, 3, 3, 3)),
        "output_tensor": TensorDesc("float32", (1, 4, 6, 6)),
        "strides": [1, 1],
        "group_count": 1,
    }
    return Convolution(**{**fields, **changes})  # type: ignore[arg-type]


def test_fields_have_the_names_and_the_order_of_directml() -> None:
    names = [field.dml_name for field in Convolution.fields()]
    assert names == ["InputTensor", "FilterTensor", "BiasTensor", "OutputTensor", "Strides", "GroupCount", "FusedActivation"]
    assert [field.dml_name for field in Reduce.fields()] == ["Function", "InputTensor", "OutputTensor", "Axes"]
    assert [field.dml_name for field in tvmdml.DiagonalMatrix1.fields()][-2:] == ["DiagonalFillBegin", "DiagonalFillEnd"]


def test_an_optional_tensor_may_be_absent_and_a_needed_one_not() -> None:
    convolution().validate(FeatureLevel.LEVEL_1_0)
    convolution(bias_tensor=TensorDesc("float32", (1, 4, 1, 1))).validate(FeatureLevel.LEVEL_1_0)
    with pytest.raises(InvalidArgument, match="CONVOLUTION filter_tensor: given None; allowed: input tensor: a TensorDesc"):
        convolution(filter_tensor=None).validate(FeatureLevel.LEVEL_1_0)


def test_arrays_of_numbers_and_a_fused_activation_have_their_checks() -> None:
    fused = convolution(fused_activation=Relu.fused())
    fused.validate(FeatureLevel.LEVEL_1_0)
    assert fused.strides == (1, 1)
    with pytest.raises(InvalidArgument, match=r"CONVOLUTION strides: given \(1,\); allowed: 2 numbers"):
        convolution(strides=[1]).validate(FeatureLevel.LEVEL_1_0)
    with pytest.raises(InvalidArgument, match=r"CONVOLUTION strides.1.: given -1; allowed: an integer from 0"):
        convolution(strides=[1, -1])
    with pytest.raises(InvalidArgument, match="CONVOLUTION fused_activation: given 'relu'; allowed: operator descriptor"):
        convolution(fused_activation="relu")
    with pytest.raises(InvalidArgument, match="ACTIVATION_RELU input_tensor: given None"):
        Relu.fused().validate(FeatureLevel.LEVEL_1_0)


def test_a_list_of_tensors_is_checked_one_by_one() -> None:
    join = Join(input_tensors=[IMAGE, IMAGE], output_tensor=TensorDesc("float32", (1, 6, 8, 8)), axis=1)  # type: ignore[arg-type]
    join.validate(FeatureLevel.LEVEL_1_0)
    assert [name for name, _ in join.tensors(Role.INPUT)] == ["input_tensors[0]", "input_tensors[1]"]
    with pytest.raises(InvalidArgument, match=r"JOIN input_tensors\[1\]: given 3"):
        Join(input_tensors=[IMAGE, 3], output_tensor=IMAGE, axis=1)  # type: ignore[arg-type,list-item]


def test_an_enumeration_and_several_optional_outputs() -> None:
    reduce = Reduce(function="max", input_tensor=IMAGE, output_tensor=IMAGE, axes=[3])  # type: ignore[arg-type]
    assert reduce.function is ReduceFunction.MAX
    lstm = Lstm(
        input_tensor=IMAGE,
        output_single_tensor=IMAGE,
        activation_descs=[Relu.fused(), Relu.fused()],  # type: ignore[arg-type]
        clip_threshold=0.1,
        use_clip_threshold=True,
    )
    lstm.validate(FeatureLevel.LEVEL_1_0)
    assert lstm.outputs() == (IMAGE,)
    assert lstm.clip_threshold == float(np.float32(0.1)), "a C float holds no more"
    with pytest.raises(Unsupported, match="LSTM bias_tensor: given int32 of rank 4; allowed: float32, float16; rank 4"):
        Lstm(
            input_tensor=IMAGE,
            bias_tensor=TensorDesc("int32", IMAGE.sizes),
            activation_descs=(),
            clip_threshold=0,
            use_clip_threshold=False,
        ).validate(FeatureLevel.LEVEL_1_0)


def test_a_lower_level_refuses_and_says_which_has_it() -> None:
    flat = {
        "input_tensor": TensorDesc("float32", (1, 3, 8)),
        "filter_tensor": TensorDesc("float32", (4, 3, 3)),
        "output_tensor": TensorDesc("float32", (1, 4, 6)),
        "strides": [1],
    }
    convolution(**flat).validate(FeatureLevel.LEVEL_4_0)
    with pytest.raises(Unsupported, match=r"rank 4 to 5, at feature level 3.1. Feature level 4.0 has it"):
        convolution(**flat).validate(FeatureLevel.LEVEL_3_1)


@pytest.mark.parametrize("cls", operators.all_operators().values(), ids=lambda cls: cls.NAME)
def test_every_operator_is_whole(cls: type[Operator]) -> None:
    module = sys.modules[cls.__module__]
    assert cls.__name__ in module.__all__
    assert inspect.getdoc(cls)
    assert f"DML_{cls.NAME}_OPERATOR_DESC" in str(inspect.getdoc(cls))
    assert cls.computation is not Operator.computation
    assert cls.reference is not Operator.reference
    named = {field.name for field in cls.fields() if field.role in (Role.INPUT, Role.OUTPUT)}
    assert all(set(row.tensors) == named for row in cls.SUPPORT)
    functions = [getattr(module, name) for name in module.__all__ if inspect.isfunction(getattr(module, name))]
    assert functions
    assert all("Returns:" in str(f.__doc__) and "DML_OPERATOR" in str(f.__doc__) for f in functions)


def test_a_schedule_belongs_to_an_operator() -> None:
    files = {path.stem for path in (TOP / "schedules").glob("*/*.py") if not path.stem.startswith("_")}
    assert files <= {operators.module_of(cls) for cls in operators.all_operators().values()}


def test_a_name_finds_its_operator() -> None:
    assert operators.by_name("dml_operator_top_k1") is tvmdml.TopK1
    with pytest.raises(Unsupported, match=r"operator: given 'NO_SUCH_OPERATOR'; allowed: DIAGONAL_MATRIX, .*tvmdml operators"):
        operators.by_name("NO_SUCH_OPERATOR")


def test_type_checkers_see_every_name() -> None:
    assert _stub.PATH.read_text() == _stub.text(), "run `python -m tvmdml._stub`"


def test_the_top_level_holds_what_it_should() -> None:
    known = subprocess.run(["git", "ls-files", "-co", "--exclude-standard"], cwd=TOP, capture_output=True, text=True, check=False)
    if known.returncode:
        pytest.skip("not a git checkout")
    names = {line.split("/")[0] for line in known.stdout.splitlines()}
    allowed = {"pyproject.toml", "README.md", "LICENSE", "tvmdml", "schedules", "tests", "tuning_logs"}
    assert {name for name in names if not name.startswith(".")} == allowed
