"""The kinds of fields: what each takes, refuses and becomes, in Python, in JSON and in a line of a pack's spec."""

from __future__ import annotations

import dataclasses
import itertools
import json
import math
import pickle
import struct
from collections.abc import Sequence
from typing import Any

import numpy as np
import pytest
import specimens
from drawn import some_operators

from tvmdml import (
    FeatureLevel,
    InvalidArgument,
    ModelError,
    ScaleBias,
    Size2D,
    TensorDataType,
    TensorDesc,
    TopK1,
    Unsupported,
    operators,
)
from tvmdml.library import lines, spec
from tvmdml.operators import _fused
from tvmdml.operators._contract import Field, Role
from tvmdml.operators._json import descriptors, sketch
from tvmdml.operators._json.nodes import JsonNode
from tvmdml.operators._roles import TENSORS, coerce, is_coerced
from tvmdml.proof.conformance import cases

PAYLOAD: float = struct.unpack("<d", struct.pack("<Q", 0x7FF8_0001_0000_0000))[0]
X = TensorDesc("float32", (2, 3))


def every_role(**changes: Any) -> Any:
    fields: dict[str, Any] = {
        "input_tensor": X,
        "part_tensors": [X, X],
        "output_tensor": X,
        "result_tensors": [X],
        "value_data_type": "float16",
        "value": 0.5,
        "count": 7,
        "offset": -7,
        "alpha": 0.1,
        "exact": True,
        "axes": [0, 1],
        "strides": [-1, 1],
        "scales": [0.1, 2],
        "scale_bias": (0.5, 1.9),
        "pooled_size": (4, 5),
        "direction": "increasing",
        "fused_activation": specimens.Act.fused(alpha=1, scale_bias=(2, -0.0)),
        "activation_descs": [specimens.Act.fused(alpha=2)],
    }
    return specimens.EveryRole(**{**fields, **changes})


@pytest.fixture
def known(monkeypatch: pytest.MonkeyPatch) -> None:
    found = {**operators.all_operators(), **{cls.NAME: cls for cls in (specimens.Act, specimens.EveryRole)}}
    monkeypatch.setattr(operators, "all_operators", lambda: found)


def test_the_specimen_has_every_role() -> None:
    assert {field.role for field in specimens.EveryRole.fields()} == set(Role)


# -- Structures ---------------------------------------------------------------------------------------------------


def test_a_structure_is_given_as_itself_or_as_a_sequence_of_its_members() -> None:
    for given in (ScaleBias(0.1, 2), (0.1, 2), [np.float64(0.1), np.int8(2)]):
        found = every_role(scale_bias=given).scale_bias
        assert type(found) is ScaleBias
        assert found == (float(np.float32(0.1)), 2.0), "C floats hold no more"
        assert type(found.bias) is float
    assert every_role(pooled_size=[1, 2**32 - 1]).pooled_size == Size2D(1, 2**32 - 1)
    assert every_role(scale_bias=None).scale_bias is None
    assert every_role().alpha == float(np.float32(0.1))


@pytest.mark.parametrize(
    ("field", "value", "said"),
    [
        ("scale_bias", 1.0, r"scale_bias: given 1\.0; allowed: a scale and a bias: .*Write tvmdml\.ScaleBias\(scale, bias\)"),
        ("scale_bias", "ab", r"scale_bias: given 'ab'; allowed: a scale and a bias"),
        ("scale_bias", {"scale": 1, "bias": 0}, r"scale_bias: given \{.*allowed: a scale and a bias"),
        ("scale_bias", (1,), r"scale_bias: given 1 value; allowed: a scale and a bias"),
        ("scale_bias", (1, 2, 3), r"scale_bias: given 3 values; allowed"),
        ("scale_bias", (1, "2"), r"scale_bias\.bias: given '2'; allowed"),
        ("scale_bias", (True, 2), r"scale_bias\.scale: given True; allowed"),
        ("scale_bias", (10**400, 2), r"scale_bias\.scale: given a number outside the range of a float"),
        ("scale_bias", (None, 2), r"scale_bias\.scale: given None; allowed"),
        ("pooled_size", (1, -1), r"pooled_size\.height: given -1; allowed: an integer from 0 to 4294967295"),
        ("pooled_size", (1.5, 1), r"pooled_size\.width: given 1\.5; allowed"),
        ("pooled_size", None, r"pooled_size: given None; allowed"),
        ("scales", (1, None), r"scales\[1\]: given None; allowed"),
        ("part_tensors", X, r"part_tensors: given .*; allowed: a sequence; each an input tensor"),
        ("part_tensors", [X, 3], r"part_tensors\[1\]: given 3; allowed"),
        ("axes", [1, -1], r"axes\[1\]: given -1; allowed: an integer from 0 to 4294967295"),
        ("fused_activation", "relu", r"fused_activation: given 'relu'; allowed: operator descriptor"),
        ("direction", 5, r"direction: given 5; allowed: 'increasing', 'decreasing'"),
    ],
)  # fmt: skip
def test_a_wrong_value_is_refused_with_field_and_member(field: str, value: Any, said: str) -> None:
    with pytest.raises(InvalidArgument, match=f"^SPECIMEN_EVERY_ROLE {said}"):
        every_role(**{field: value})


def test_a_descriptor_with_every_role_is_a_value() -> None:
    desc = every_role()
    assert pickle.loads(pickle.dumps(desc)) == desc
    assert hash(dataclasses.replace(desc)) == hash(desc)
    assert "scale_bias=ScaleBias(scale=0.5, bias=1.899999976158142)" in repr(desc)


def test_an_optional_tensor_may_be_absent_and_a_needed_one_not() -> None:
    every_role(other_tensor=None).validate(FeatureLevel.LEVEL_6_4)
    assert [name for name, _ in every_role().tensors(Role.INPUT)][-2:] == ["part_tensors[0]", "part_tensors[1]"]
    with pytest.raises(InvalidArgument, match="SPECIMEN_EVERY_ROLE input_tensor: given None; allowed: input tensor: a TensorDesc"):
        every_role(input_tensor=None).validate(FeatureLevel.LEVEL_6_4)


def test_floats_inside_of_fields_are_told_apart_by_their_bits() -> None:
    alike = (0.0, -0.0, math.nan, -math.nan, PAYLOAD)
    bits = [every_role(scale_bias=pair).exactly() for pair in itertools.product(alike, alike)]
    assert len(set(bits)) == 25
    fused = [every_role(fused_activation=specimens.Act.fused(alpha=0, scale_bias=(1, one))).exactly() for one in alike]
    assert len(set(fused)) == 5


# -- Fused operators ----------------------------------------------------------------------------------------------


def test_what_may_be_fused_depends_on_the_operator_and_the_level() -> None:
    desc = every_role()
    desc.validate(FeatureLevel.LEVEL_3_0)
    with pytest.raises(Unsupported) as caught:
        desc.validate(FeatureLevel.LEVEL_2_1)
    assert str(caught.value) == (
        "SPECIMEN_EVERY_ROLE fused_activation: given SPECIMEN_ACT; allowed: ACTIVATION_RELU, at 2.1. "
        "It can be fused from feature level 3.0."
    )
    other = TopK1.fused(axis=0, k=1, axis_direction="increasing")
    with pytest.raises(Unsupported, match=r"activation_descs\[1\]: given TOP_K1; allowed: SPECIMEN_ACT, ACTIVATION_RELU, at 6.4"):
        every_role(activation_descs=[specimens.Act.fused(alpha=1), other]).validate(FeatureLevel.LEVEL_6_4)


def test_a_fused_operator_has_no_tensors_and_keeps_the_rules_of_its_attributes() -> None:
    whole = specimens.Act(input_tensor=X, output_tensor=X, alpha=1)
    with pytest.raises(InvalidArgument, match=r"fused_activation\.input_tensor: given float32\[2, 3\]; allowed: None\."):
        every_role(fused_activation=whole).validate(FeatureLevel.LEVEL_6_4)
    negative = every_role(activation_descs=[specimens.Act.fused(alpha=-1)])
    negative.validate(FeatureLevel.LEVEL_6_4)
    with pytest.raises(InvalidArgument, match=r"^SPECIMEN_ACT alpha: given -1\.0; allowed: 0 or more"):
        negative.validate(FeatureLevel.LEVEL_6_3)
    with pytest.raises(InvalidArgument, match=r"^SPECIMEN_ACT alpha: given -1\.0"):
        specimens.Act(input_tensor=X, output_tensor=X, alpha=-1).validate(FeatureLevel.LEVEL_6_3)


def test_an_operator_fuses_nothing_unless_it_says_so(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(specimens.EveryRole, "FUSES", {})
    with pytest.raises(
        Unsupported, match=r"fused_activation: given SPECIMEN_ACT; allowed: none, at 6\.4\. Run it as a separate operator"
    ):
        every_role().validate(FeatureLevel.LEVEL_6_4)


def test_directmls_lists_of_what_may_be_fused() -> None:
    assert len(_fused.ACTIVATIONS) == 17
    assert {name for name, since in _fused.ACTIVATIONS.items() if since != "1.0"} == {
        "ACTIVATION_SHRINK",
        "ACTIVATION_CELU",
        "ACTIVATION_GELU",
    }
    assert set(_fused.OF_CONVOLUTION) - set(_fused.ACTIVATIONS) == {"ELEMENT_WISE_CLIP"}
    assert set(_fused.OF_GEMM) - set(_fused.OF_CONVOLUTION) == {"ACTIVATION_SOFTMAX", "ACTIVATION_SOFTMAX1"}


# -- JSON and packs -----------------------------------------------------------------------------------------------


def read(**changes: Any) -> Any:
    return descriptors.read(specimens.EveryRole, JsonNode({**specimens.JSON, **changes}, "model.json", "desc"))


@pytest.mark.usefixtures("known")
def test_every_role_is_read_from_json() -> None:
    assert read() == every_role()
    assert read(ScaleBias=None).scale_bias is None
    assert read(ScaleBias={"Scale": "-inf", "Bias": "nan"}).scale_bias.scale == -math.inf
    assert read(Scales=[1.5, "inf"]).scales == (1.5, math.inf)
    fused = {"Type": "specimen_act", "Desc": {"Alpha": 1, "InputTensor": None, "ScaleBias": {"Scale": 2, "Bias": -0.0}}}
    assert read(FusedActivation=fused) == every_role()


@pytest.mark.usefixtures("known")
@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"ScaleBias": [0.5, 1.9]}, r"desc\.ScaleBias: given \[0\.5, 1\.9\]; allowed: an object"),
        ({"ScaleBias": {"Scale": 1}}, r"desc\.ScaleBias\.Bias: given nothing; allowed: a number"),
        ({"ScaleBias": {"Scale": 1, "Bias": 1, "Base": 1}}, r"desc\.ScaleBias\.Base: given an unknown field; allowed: Scale, Bias"),
        ({"ScaleBias": {"Scale": "1", "Bias": 1}}, r'desc\.ScaleBias\.Scale: given "1"; allowed: a number'),
        ({"ScaleBias": {"Scale": 10**400, "Bias": 1}}, r"desc\.ScaleBias\.Scale: given a number outside the range of a float"),
        ({"PooledSize": {"Width": 4, "Height": -5}}, r"desc\.PooledSize\.Height: given -5; allowed: an integer"),
        ({"PooledSize": {"Width": 4}}, r"desc\.PooledSize\.Height: given nothing"),
        ({"PooledSize": None}, r"desc\.PooledSize: given nothing; allowed: a width and a height"),
    ],
)  # fmt: skip
def test_a_wrong_structure_in_json_is_refused(changes: dict[str, Any], said: str) -> None:
    with pytest.raises(ModelError, match=f"^model.json: {said}"):
        read(**changes)


@pytest.mark.usefixtures("known")
def test_a_count_applies_to_arrays_and_not_to_structures() -> None:
    arrays = {
        "PartTensors": [specimens.TENSOR],
        "Axes": [0],
        "Strides": [1],
        "Scales": [1],
        "ActivationDescs": specimens.JSON["ActivationDescs"],
    }
    assert read(ItemCount=1, **arrays).pooled_size == (4, 5)
    with pytest.raises(ModelError, match="ItemCount: given 2; allowed: 1, the length of PartTensors"):
        read(ItemCount=2, **arrays)


@pytest.mark.usefixtures("known")
@pytest.mark.parametrize("changes", [{}, {"scale_bias": (-0.0, math.inf)}, {"scale_bias": (math.nan, 1)}, {"scale_bias": None}])
def test_a_line_of_a_spec_keeps_every_role(changes: dict[str, Any]) -> None:
    desc = every_role(**changes)
    text = spec.Wanted(desc).line
    found = spec.parse(f"kernels = [{text}]", "pack.toml").wanted
    assert [one.line for one in found] == [text]
    assert found[0].desc.exactly() == desc.exactly()
    assert json.dumps(lines.of(desc))


@pytest.mark.usefixtures("known")
def test_structures_can_be_multiplied_out_in_a_spec() -> None:
    text = """
    [[operators]]
    operator = "SPECIMEN_ACT"
    types = "float32"
    sizes = [2, 3]
    Alpha = [0, 1]
    ScaleBias = [{ Scale = 1, Bias = 0 }, { Scale = 2.5, Bias = "inf" }]
    """
    found = [(one.desc.alpha, one.desc.scale_bias) for one in spec.parse(text, "pack.toml").wanted]  # type: ignore[attr-defined]
    assert found == [(0, (1, 0)), (0, (2.5, math.inf)), (1, (1, 0)), (1, (2.5, math.inf))]


@pytest.mark.usefixtures("known")
def test_a_sketch_leaves_out_what_may_be_zero() -> None:
    desc: Any = sketch.describe(specimens.EveryRole, TensorDataType.FLOAT32, (2, 3), {}, {}, FeatureLevel.LEVEL_6_4)
    assert desc.pooled_size == (0, 0)
    assert desc.scale_bias is None
    assert desc.activation_descs == ()


def _written(value: Any) -> Any:
    """A structure or a sequence, as in JSON."""
    return {one.title(): each for one, each in value._asdict().items()} if hasattr(value, "_asdict") else [*value]


@some_operators(20)
def test_a_sketch_of_inputs_and_attributes_has_the_operators_outputs(name: str) -> None:
    cls, row = operators.by_name(name), operators.by_name(name).SUPPORT[0]
    if any(field.many for field in cls.fields()):
        pytest.skip("in a sketch, a list of tensors has one")
    first = next(iter(row.tensors.values()))
    desc = cases.described(name)(TensorDesc(first.types[0], (2, 3, 4, 5)[-max(first.min_rank, min(2, first.max_rank)) :]))
    attributes = [(f, getattr(desc, f.name)) for f in cls.fields() if f.role not in TENSORS]
    fields = {f.dml_name: value.name if f.enum else value for f, value in attributes if value is not None and value != ()}
    fields |= {
        name: _written(value) for name, value in fields.items() if isinstance(value, Sequence) and not isinstance(value, str)
    }
    inputs = [(f, getattr(desc, f.name)) for f in cls.fields() if f.role is Role.INPUT]
    tensors = {f.dml_name: (one.data_type, one.sizes) for f, one in inputs if isinstance(one, TensorDesc)}
    (like, *_) = (one for _, one in desc.tensors() if one is not None)
    outputs = {
        f.dml_name: (one.data_type, one.sizes) for f in cls.fields() if f.role is Role.OUTPUT and (one := getattr(desc, f.name))
    }

    def sketched(given: dict[str, Any]) -> Any:
        return sketch.describe(cls, like.data_type, like.sizes, fields, given, FeatureLevel.LEVEL_6_4, extensions=True)

    try:
        found = sketched(tensors)
    except InvalidArgument:  # an output that does not follow from the inputs
        with pytest.raises(InvalidArgument, match=r"it does not follow from the inputs|at least one of both"):
            sketched(tensors)
        found = sketched(tensors | outputs)
    assert [one.sizes for one in found.outputs()] == [one.sizes for one in desc.outputs()]


def test_the_outputs_of_a_sketch_have_types_of_its_level() -> None:
    cls, float32 = operators.by_name("ELEMENT_WISE_LOGICAL_EQUALS"), TensorDataType.FLOAT32
    for level, wanted in ((FeatureLevel.LEVEL_1_0, "uint32"), (FeatureLevel.LEVEL_6_4, "uint8")):
        assert sketch.describe(cls, float32, (1, 1, 2, 3), {}, {}, level).outputs()[0].data_type.tvm == wanted


def test_a_sketch_says_which_output_does_not_follow() -> None:
    with pytest.raises(InvalidArgument, match="SPECIMEN_JOINED output_tensor: given nothing; allowed: a TensorDesc: it does not"):
        sketch.describe(specimens.Joined, TensorDataType.FLOAT32, (2, 3), {}, {}, FeatureLevel.LEVEL_6_4)
    given = {"output_tensor": (None, (4, 3))}
    found = sketch.describe(specimens.Joined, TensorDataType.FLOAT32, (2, 3), {}, given, FeatureLevel.LEVEL_6_4)
    assert found.outputs()[0].sizes == (4, 3)


FIELDS = {
    Role.UINT: [0, 2**32 - 1, -1, 2**32, True, np.uint32(3), 1.0],
    Role.INT: [-(2**31), 2**31 - 1, 2**31, -(2**31) - 1, False, np.int64(3)],
    Role.UINTS: [(), (0, 2**32 - 1), (1, -1), (2**32,), [1, 2], (1, True), (np.uint32(1),), tuple(range(70)), "12", None],
    Role.INTS: [(-(2**31), 2**31 - 1), (2**31,), [1]],
    Role.BOOL: [True, False, 0, 1, np.True_, 2],
    Role.ENUM: [TensorDataType.FLOAT32, FeatureLevel.LEVEL_1_0, "float32", 1, None],
    Role.INPUT: [X, None, "float32"],
    Role.FLOAT: [1.0, 0.1, 1],
}


@pytest.mark.parametrize("role", FIELDS)
def test_what_is_not_coerced_is_what_would_come_of_it(role: Role) -> None:
    """``is_coerced`` is a short way: what it passes is what ``coerce`` returns, with its type."""
    kind = {Role.ENUM: TensorDataType, Role.INPUT: TensorDesc}.get(role, int)
    field = Field("field", role, False, False, kind)
    passed = [value for value in FIELDS[role] if is_coerced(field, value)]
    assert all(repr(coerce("field", field, value)) == repr(value) for value in passed)
    assert bool(passed) == (role is not Role.FLOAT)
