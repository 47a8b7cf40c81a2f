"""The contracts: what each feature level supports, and every rule violated once, with the expected message.

The violations are those that ``tvmdml conformance`` tests. The support of feature levels is repeated here, in another form than the
operators' own tables.
"""

from __future__ import annotations

import dataclasses
import itertools
import pickle
from collections.abc import Callable
from typing import Any

import pytest
from support import ALL, FLOATING, INT_MAX, INT_MIN, diagonal_desc, nonzero_desc, round_desc, top_k_desc

import tvmdml
from tvmdml import (
    AxisDirection,
    DiagonalMatrix,
    DiagonalMatrix1,
    ElementWiseRound,
    FeatureLevel,
    InvalidArgument,
    NonzeroCoordinates,
    Operator,
    RoundingMode,
    TensorDataType,
    TensorDesc,
    TopK,
    TopK1,
    TvmdmlError,
    Unsupported,
    operators,
)
from tvmdml.conformance import cases
from tvmdml.conformance.cases.top_k import best_1_0
from tvmdml.conformance.rules import refusal

FLOATS = {TensorDataType.FLOAT32, TensorDataType.FLOAT16}
INTS_64 = {TensorDataType.INT64, TensorDataType.UINT64}
INTS_TO_32 = set(ALL) - set(FLOATING) - INTS_64

T = TensorDesc


def change(desc: Operator, **fields: Any) -> Operator:
    """The descriptor with some fields changed."""
    return dataclasses.replace(desc, **fields)  # type: ignore[type-var]


X = T("float32", (2, 3, 4, 5))
ROUND = round_desc(X)
TOP = top_k_desc(X, 1, 2, "increasing")
TOP_1_0 = best_1_0(X)
NONZERO = nonzero_desc(X)
DIAGONAL = diagonal_desc(X, 1, 0, 1)
DIAGONAL_2_0 = DiagonalMatrix(output_tensor=X, offset=0, value=1)


# -- What each level takes ----------------------------------------------------------------------------------------


def round_is_taken(level: FeatureLevel, data_type: TensorDataType, rank: int) -> bool:
    return data_type in FLOATS and (level >= 0x3000 or (level >= 0x2100 and rank == 4))


def top_k1_is_taken(level: FeatureLevel, data_type: TensorDataType, rank: int) -> bool:
    types = (FLOATS | INTS_TO_32 | INTS_64) if level >= 0x5000 else (FLOATS | INTS_TO_32)
    return data_type in types and (level >= 0x3100 or (level >= 0x2100 and rank == 4))


def top_k_is_taken(level: FeatureLevel, data_type: TensorDataType, rank: int) -> bool:
    return (data_type in FLOATS and rank == 4) or top_k1_is_taken(level, data_type, rank)


def nonzero_is_taken(level: FeatureLevel, data_type: TensorDataType, rank: int) -> bool:
    return data_type in FLOATS | INTS_TO_32 and (level >= 0x4000 or (level >= 0x3000 and rank in (4, 5)))


def diagonal_matrix1_is_taken(level: FeatureLevel, data_type: TensorDataType, rank: int) -> bool:
    return level >= 0x5100 and rank in (2, 3, 4)


def diagonal_matrix_is_taken(level: FeatureLevel, data_type: TensorDataType, rank: int) -> bool:
    return rank == 4 and ((data_type in FLOATS and level >= 0x2000) or (data_type in INTS_TO_32 and level >= 0x2100))


TAKES: dict[type[Operator], Callable[[FeatureLevel, TensorDataType, int], bool]] = {
    ElementWiseRound: round_is_taken,
    TopK1: top_k1_is_taken,
    TopK: top_k_is_taken,
    NonzeroCoordinates: nonzero_is_taken,
    DiagonalMatrix1: diagonal_matrix1_is_taken,
    DiagonalMatrix: diagonal_matrix_is_taken,
}
each_operator = pytest.mark.parametrize("operator", TAKES, ids=lambda cls: cls.NAME)


@each_operator
@pytest.mark.parametrize("level", FeatureLevel, ids=str)
def test_a_level_takes_exactly_the_types_and_ranks_of_its_table(operator: type[Operator], level: FeatureLevel) -> None:
    make, is_taken = cases.described(operator.NAME), TAKES[operator]
    for data_type, rank in itertools.product(ALL, range(1, 9)):
        desc = make(T(data_type, (2,) * rank))
        if is_taken(level, data_type, rank):
            desc.validate(level)
        else:
            with pytest.raises(TvmdmlError):
                desc.validate(level)


@each_operator
def test_the_function_door_takes_every_type_and_rank_that_is_promised_to_it(operator: type[Operator]) -> None:
    make = cases.described(operator.NAME)
    promised = {
        ElementWiseRound: (FLOATING, range(1, 9)),
        TopK1: (ALL, range(1, 9)),
        TopK: (ALL, range(1, 9)),
        NonzeroCoordinates: (ALL, range(1, 9)),
        DiagonalMatrix1: (ALL, range(2, 9)),
        DiagonalMatrix: ([*FLOATS, *INTS_TO_32], range(4, 5)),
    }[operator]
    for data_type, rank in itertools.product(*promised):
        make(T(data_type, (2,) * rank)).validate(FeatureLevel.LEVEL_6_4, extensions=True)


@pytest.mark.parametrize("level", FeatureLevel, ids=str)
def test_64_bit_indices_came_with_level_5_0(level: FeatureLevel) -> None:
    for desc in (
        top_k_desc(T("float32", (2,) * 4), 1, 2, "increasing", "uint64"),
        best_1_0(T("float16", (2,) * 4), "uint64"),
    ):
        if level >= FeatureLevel.LEVEL_5_0:
            desc.validate(level)
        else:
            with pytest.raises(Unsupported):
                desc.validate(level)


@pytest.mark.parametrize("level", [level for level in FeatureLevel if level >= 0x3000], ids=str)
def test_dimension_counts_of_nonzero_may_differ_from_level_4_0(level: FeatureLevel) -> None:
    differing = nonzero_desc(T("float32", (2, 2, 2, 2)), rank=5)
    if level >= FeatureLevel.LEVEL_4_0:
        differing.validate(level)
    else:
        with pytest.raises(InvalidArgument, match=r"output_coordinates_tensor\.rank: given 5; allowed: 4, as in input_tensor\."):
            differing.validate(level)


# -- Every rule, broken once --------------------------------------------------------------------------------------

RULES = [(name, rule) for name in operators.all_operators() for rule in cases.broken(name)]


@pytest.mark.parametrize(("operator", "rule"), RULES, ids=[f"{name}: {rule}" for name, rule in RULES])
def test_a_broken_rule_is_refused_with_what_was_given_and_what_is_allowed(operator: str, rule: str) -> None:
    assert not refusal(cases.broken(operator)[rule], tvmdml.targets.resolve("cpu"))


@each_operator
def test_every_operator_has_rules_that_are_broken_once(operator: type[Operator]) -> None:
    assert len(cases.broken(operator.NAME)) >= 4


@pytest.mark.parametrize("data_type", sorted(set(ALL) - set(FLOATING)), ids=str)
def test_the_value_must_lie_in_its_type(data_type: TensorDataType) -> None:
    bits = 8 * data_type.itemsize
    low, high = (-(2 ** (bits - 1)), 2 ** (bits - 1) - 1) if data_type.is_signed else (0, 2**bits - 1)
    x = T(data_type, (2, 2))
    for value in (low, high, float(low), 1.0):
        diagonal_desc(x, value, 0, 1).validate(FeatureLevel.LEVEL_6_4)
    for value in (low - 1, high + 1, float(high + 1), -1e300, 1e300):
        desc = diagonal_desc(x, value, 0, 1)
        with pytest.raises(InvalidArgument) as caught:
            desc.validate(FeatureLevel.LEVEL_6_4)
        assert str(caught.value) == (
            f"DIAGONAL_MATRIX1 value: given {value}; allowed: an integer from {low} to {high}, to fill {data_type.tvm}."
        )


def test_the_limits_of_each_rule_are_allowed() -> None:
    for desc in (
        change(TOP, k=3, output_value_tensor=X, output_index_tensor=T("uint32", X.sizes)),
        change(TOP, axis=3, k=1, **dict.fromkeys(["output_value_tensor"], T("float32", (2, 3, 4, 1))),
               output_index_tensor=T("uint32", (2, 3, 4, 1))),
        change(DIAGONAL, diagonal_fill_begin=INT_MIN, diagonal_fill_end=INT_MAX),
        change(DIAGONAL_2_0, offset=INT_MAX),
        change(DIAGONAL_2_0, offset=INT_MIN),
        change(DIAGONAL_2_0, value=1e39),
        change(DIAGONAL, value=2**1023),
        change(ROUND, input_tensor=T("float32", X.sizes, (0, 0, 0, 0))),
        change(ROUND, output_tensor=T("float32", X.sizes, (1, 2, 6, 24))),
        nonzero_desc(T("int8", (1, 1, 1, 1)), 1),
    ):  # fmt: skip
        desc.validate(FeatureLevel.LEVEL_6_4)


def test_the_value_of_diagonal_matrix_is_a_float_of_c() -> None:
    assert DiagonalMatrix(output_tensor=X, offset=0, value=0.1).value == 0.10000000149011612
    assert DiagonalMatrix(output_tensor=X, offset=0, value=1e39).value == float("inf")


# -- Descriptors as values ----------------------------------------------------------------------------------------

FIELDS = {
    ElementWiseRound: "InputTensor OutputTensor RoundingMode",
    TopK: "InputTensor OutputValueTensor OutputIndexTensor Axis K",
    TopK1: "InputTensor OutputValueTensor OutputIndexTensor Axis K AxisDirection",
    NonzeroCoordinates: "InputTensor OutputCountTensor OutputCoordinatesTensor",
    DiagonalMatrix: "OutputTensor Offset Value",
    DiagonalMatrix1: "InputTensor OutputTensor ValueDataType Value DiagonalFillBegin DiagonalFillEnd",
}
DESCS: tuple[Operator, ...] = (ROUND, TOP, TOP_1_0, NONZERO, DIAGONAL, DIAGONAL_2_0)
each_desc = pytest.mark.parametrize("desc", DESCS, ids=lambda desc: desc.NAME)


@each_operator
def test_fields_are_directmls_in_directmls_order(operator: type[Operator]) -> None:
    assert [field.dml_name for field in operator.fields()] == FIELDS[operator].split()


@each_operator
def test_an_operator_is_found_by_its_directml_name_in_any_case(operator: type[Operator]) -> None:
    for name in (operator.NAME, operator.NAME.lower(), f"DML_OPERATOR_{operator.NAME}"):
        assert operators.by_name(name) is operator
    assert operators.all_operators()[operator.NAME] is operator
    assert getattr(tvmdml, operator.__name__) is operator


def test_an_unknown_operator_is_answered_with_those_there_are() -> None:
    with pytest.raises(Unsupported) as caught:
        operators.by_name("DML_OPERATOR_TOP_K9")
    text = str(caught.value)
    assert text.startswith("operator: given 'DML_OPERATOR_TOP_K9'; allowed: ")
    assert all(cls.NAME in text for cls in TAKES)


@each_desc
def test_a_descriptor_is_a_value(desc: Operator) -> None:
    same = pickle.loads(pickle.dumps(desc))
    assert same == desc
    assert hash(same) == hash(desc)
    assert dataclasses.replace(desc) == desc  # type: ignore[type-var]
    assert repr(desc).startswith(f"{type(desc).__name__}(")
    with pytest.raises(dataclasses.FrozenInstanceError):
        setattr(desc, desc.fields()[0].name, None)


@each_desc
def test_fields_are_named_and_all_but_optional_ones_needed(desc: Operator) -> None:
    given = {field.name: getattr(desc, field.name) for field in desc.fields()}
    with pytest.raises(TypeError):
        type(desc)(*given.values())
    for field in desc.fields():
        rest = {name: value for name, value in given.items() if name != field.name}
        if field.optional:
            type(desc)(**rest)
        else:
            with pytest.raises(TypeError, match=field.name):
                type(desc)(**rest)


def test_enumerations_in_a_descriptor_may_be_names() -> None:
    assert round_desc(X, "DML_ROUNDING_MODE_TOWARD_ZERO").rounding_mode is RoundingMode.TOWARD_ZERO
    assert top_k_desc(X, 0, 1, "Decreasing").axis_direction is AxisDirection.DECREASING
    assert change(DIAGONAL, value_data_type="FLOAT32") == DIAGONAL


@pytest.mark.parametrize("desc", [None, "TOP_K1", ElementWiseRound, X], ids=["None", "a name", "a class", "a tensor"])
def test_compile_takes_a_descriptor_and_nothing_else(desc: Any) -> None:
    with pytest.raises(InvalidArgument) as caught:
        tvmdml.compile(desc)
    assert str(caught.value).startswith(
        f"compile desc: given {type(desc).__name__}; allowed: an operator descriptor, such as tvmdml.TopK1(…)."
    )


@pytest.mark.parametrize("target", ["abacus", "", "cpu2"])
def test_an_unknown_target_is_answered_with_those_there_are(target: str) -> None:
    with pytest.raises(InvalidArgument) as caught:
        tvmdml.compile(ROUND, target)
    assert str(caught.value).startswith(f"target: given {target!r}; allowed: {', '.join(tvmdml.targets.kinds())}.")


@pytest.mark.parametrize("level", ["7.0", "newest", 3])
def test_an_unknown_feature_level_is_refused(level: Any) -> None:
    with pytest.raises(InvalidArgument, match=r"^feature_level: given .* allowed: 1\.0, .*6\.4\."):
        tvmdml.compile(ROUND, feature_level=level)
