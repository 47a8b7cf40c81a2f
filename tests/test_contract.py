"""The contracts: what each feature level takes, and every rule broken once, with the message that says so."""

from __future__ import annotations

import dataclasses
import itertools
import pickle
from collections.abc import Callable
from typing import Any, NamedTuple

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

FLOATS = {TensorDataType.FLOAT32, TensorDataType.FLOAT16}
INTS_64 = {TensorDataType.INT64, TensorDataType.UINT64}
INTS_TO_32 = set(ALL) - set(FLOATING) - INTS_64

T = TensorDesc


def top_k_of_level_1(x: TensorDesc, index: str = "uint32") -> TopK:
    sizes = (1, *x.sizes[1:])
    return TopK(input_tensor=x, output_value_tensor=T(x.data_type, sizes), output_index_tensor=T(index, sizes), axis=0, k=1)


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


TAKES: dict[type[Operator], tuple[Callable[[TensorDesc], Operator], Callable[[FeatureLevel, TensorDataType, int], bool]]] = {
    ElementWiseRound: (round_desc, round_is_taken),
    TopK1: (lambda x: top_k_desc(x, 0, 1, "increasing"), top_k1_is_taken),
    TopK: (top_k_of_level_1, top_k_is_taken),
    NonzeroCoordinates: (nonzero_desc, nonzero_is_taken),
    DiagonalMatrix1: (lambda x: diagonal_desc(x, 1, 0, 1), diagonal_matrix1_is_taken),
    DiagonalMatrix: (lambda x: DiagonalMatrix(output_tensor=x, offset=0, value=1), diagonal_matrix_is_taken),
}
each_operator = pytest.mark.parametrize("operator", TAKES, ids=lambda cls: cls.NAME)


@each_operator
@pytest.mark.parametrize("level", FeatureLevel, ids=str)
def test_a_level_takes_exactly_the_types_and_ranks_of_its_table(operator: type[Operator], level: FeatureLevel) -> None:
    make, is_taken = TAKES[operator]
    for data_type, rank in itertools.product(ALL, range(1, 9)):
        desc = make(T(data_type, (2,) * rank))
        if is_taken(level, data_type, rank):
            desc.validate(level)
        else:
            with pytest.raises(TvmdmlError):
                desc.validate(level)


@each_operator
def test_the_function_door_takes_every_type_and_rank_that_is_promised_to_it(operator: type[Operator]) -> None:
    make, _ = TAKES[operator]
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
        top_k_of_level_1(T("float16", (2,) * 4), "uint64"),
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


class Broken(NamedTuple):
    """A descriptor that breaks one rule, and what the message must say."""

    build: Callable[[], Operator]
    where: str
    given: str
    allowed: str
    error: type[TvmdmlError] = InvalidArgument
    level: str = "6.4"
    advice: str = ""


X = T("float32", (2, 3, 4, 5))


def change(desc: Operator, **fields: Any) -> Callable[[], Operator]:
    """The descriptor with some fields changed, made when the test runs."""
    return lambda: dataclasses.replace(desc, **fields)  # type: ignore[type-var]


ROUND = round_desc(X)
TOP = top_k_desc(X, 1, 2, "increasing")
TOP_1_0 = top_k_of_level_1(X)
NONZERO = nonzero_desc(X)
DIAGONAL = diagonal_desc(X, 1, 0, 1)
DIAGONAL_2_0 = DiagonalMatrix(output_tensor=X, offset=0, value=1)

INT_32_NAMES = "float32, float16, uint32, uint16, uint8, int32, int16, int8"
NAMES = "float32, float16, uint32, uint16, uint8, int32, int16, int8, uint64, int64"
TENSOR = "input tensor: a TensorDesc"
DISTINCT = "strides that give each element its own address"
EXTENSION = "The function door of tvmdml takes it as an extension."

BROKEN: dict[str, Broken] = {
    # ELEMENT_WISE_ROUND
    "round before its level": Broken(
        lambda: ROUND,
        *("ELEMENT_WISE_ROUND feature_level", "2.0", "2.1 and above", Unsupported, "2.0"),
        advice="The operator came with that level.",
    ),
    "round of rank 3 at 2.1": Broken(
        lambda: round_desc(T("float32", (2, 3, 4))),
        *("ELEMENT_WISE_ROUND input_tensor", "float32 of rank 3", "float32, float16; rank 4, at feature level 2.1"),
        *(Unsupported, "2.1", "Feature level 3.0 has it."),
    ),
    "round of float64": Broken(
        lambda: round_desc(T("float64", (2, 3))),
        *("ELEMENT_WISE_ROUND input_tensor", "float64 of rank 2", "float32, float16; rank 1 to 8, at feature level 6.4"),
        *(Unsupported, "6.4", EXTENSION),
    ),
    "round of integers": Broken(
        lambda: round_desc(T("int32", (2, 3))),
        *("ELEMENT_WISE_ROUND input_tensor", "int32 of rank 2", "float32, float16; rank 1 to 8, at feature level 6.4"),
        *(Unsupported, "6.4", "Convert or reshape the tensor."),
    ),
    "round to another type": Broken(
        change(ROUND, output_tensor=T("float16", X.sizes)),
        *("ELEMENT_WISE_ROUND output_tensor.data_type", "float16", "float32, as in input_tensor"),
    ),
    "round to other sizes": Broken(
        change(ROUND, output_tensor=T("float32", (2, 3, 5, 4))),
        *("ELEMENT_WISE_ROUND output_tensor.sizes", "(2, 3, 5, 4)", "(2, 3, 4, 5), as in input_tensor"),
    ),
    "round to another rank": Broken(
        change(ROUND, output_tensor=T("float32", (6, 4, 5))),
        *("ELEMENT_WISE_ROUND output_tensor.sizes", "(6, 4, 5)", "(2, 3, 4, 5), as in input_tensor"),
    ),
    "round to repeated elements": Broken(
        change(ROUND, output_tensor=T("float32", X.sizes, (60, 20, 5, 0))),
        *("ELEMENT_WISE_ROUND output_tensor", "strides (60, 20, 5, 0) for sizes (2, 3, 4, 5)", DISTINCT),
        advice="Only inputs may repeat elements.",
    ),
    "round up": Broken(
        change(ROUND, rounding_mode="up"),
        *("ELEMENT_WISE_ROUND rounding_mode", "'up'", "'halves_to_nearest_even', 'toward_zero', 'toward_infinity'"),
    ),
    "round nothing": Broken(change(ROUND, input_tensor=None), "ELEMENT_WISE_ROUND input_tensor", "None", TENSOR),
    "round to nothing": Broken(
        change(ROUND, output_tensor=None), "ELEMENT_WISE_ROUND output_tensor", "None", "output tensor: a TensorDesc"
    ),
    "round a tuple": Broken(
        change(ROUND, input_tensor=("float32", (2,))),
        *("ELEMENT_WISE_ROUND input_tensor", "('float32', (2,))", TENSOR),
    ),
    # TOP_K1
    "top k1 before its level": Broken(
        lambda: TOP, "TOP_K1 feature_level", "2.0", "2.1 and above", Unsupported, "2.0", "The operator came with that level."
    ),
    "top k1 of rank 2 at 3.0": Broken(
        lambda: top_k_desc(T("int8", (2, 3)), 0, 1, "increasing"),
        *("TOP_K1 input_tensor", "int8 of rank 2", f"{INT_32_NAMES}; rank 4, at feature level 3.0"),
        *(Unsupported, "3.0", "Feature level 3.1 has it."),
    ),
    "top k1 of int64 at 4.1": Broken(
        lambda: top_k_desc(T("int64", (2, 3)), 0, 1, "increasing"),
        *("TOP_K1 input_tensor", "int64 of rank 2", f"{INT_32_NAMES}; rank 1 to 8, at feature level 4.1"),
        *(Unsupported, "4.1", "Feature level 5.0 has it."),
    ),
    "top k1 with 64-bit indices at 4.1": Broken(
        lambda: top_k_desc(T("int8", (2, 3)), 0, 1, "increasing", "uint64"),
        *("TOP_K1 output_index_tensor", "uint64 of rank 2", "uint32; rank 1 to 8, at feature level 4.1"),
        *(Unsupported, "4.1", "Feature level 5.0 has it."),
    ),
    "top k1 with signed indices": Broken(
        lambda: top_k_desc(T("int8", (2, 3)), 0, 1, "increasing", "int32"),
        *("TOP_K1 output_index_tensor", "int32 of rank 2", "uint32, uint64; rank 1 to 8, at feature level 6.4"),
        *(Unsupported, "6.4", "Convert or reshape the tensor."),
    ),
    "top k1 of float64": Broken(
        lambda: top_k_desc(T("float64", (2, 3)), 0, 1, "increasing"),
        *("TOP_K1 input_tensor", "float64 of rank 2", f"{NAMES}; rank 1 to 8, at feature level 6.4"),
        *(Unsupported, "6.4", EXTENSION),
    ),
    "axis past the rank": Broken(change(TOP, axis=4), "TOP_K1 axis", "4", "0 to 3", advice="The input has no such dimension."),
    "negative axis": Broken(change(TOP, axis=-1), "TOP_K1 axis", "-1", "integer from 0 to 4294967295"),
    "fraction as an axis": Broken(change(TOP, axis=1.0), "TOP_K1 axis", "1.0", "integer from 0 to 4294967295"),
    "boolean as an axis": Broken(change(TOP, axis=True), "TOP_K1 axis", "True", "integer from 0 to 4294967295"),
    "axis past 32 bits": Broken(change(TOP, axis=2**32), "TOP_K1 axis", "4294967296", "integer from 0 to 4294967295"),
    "k of 0": Broken(change(TOP, k=0), "TOP_K1 k", "0", "1 to 3, the input's size along axis 1"),
    "k past the axis": Broken(change(TOP, k=4), "TOP_K1 k", "4", "1 to 3, the input's size along axis 1"),
    "negative k": Broken(change(TOP, k=-1), "TOP_K1 k", "-1", "integer from 0 to 4294967295"),
    "values of another type": Broken(
        change(TOP, output_value_tensor=T("float16", (2, 2, 4, 5))),
        *("TOP_K1 output_value_tensor.data_type", "float16", "float32, as in input_tensor"),
    ),
    "values of the input's sizes": Broken(
        change(TOP, output_value_tensor=X),
        *("TOP_K1 output_value_tensor.sizes", "(2, 3, 4, 5)", "(2, 2, 4, 5): the input's, but k along the axis"),
    ),
    "indices of other sizes": Broken(
        change(TOP, output_index_tensor=T("uint32", (2, 2, 4, 1))),
        *("TOP_K1 output_index_tensor.sizes", "(2, 2, 4, 1)", "(2, 2, 4, 5): the input's, but k along the axis"),
    ),
    "indices of another rank": Broken(
        change(TOP, output_index_tensor=T("uint32", (4, 4, 5))),
        *("TOP_K1 output_index_tensor.sizes", "(4, 4, 5)", "(2, 2, 4, 5): the input's, but k along the axis"),
    ),
    "values that share addresses": Broken(
        change(TOP, output_value_tensor=T("float32", (2, 2, 4, 5), (40, 0, 5, 1))),
        *("TOP_K1 output_value_tensor", "strides (40, 0, 5, 1) for sizes (2, 2, 4, 5)", DISTINCT),
    ),
    "indices that share addresses": Broken(
        change(TOP, output_index_tensor=T("uint32", (2, 2, 4, 5), (40, 20, 4, 1))),
        *("TOP_K1 output_index_tensor", "strides (40, 20, 4, 1) for sizes (2, 2, 4, 5)", DISTINCT),
    ),
    "sideways": Broken(change(TOP, axis_direction=2), "TOP_K1 axis_direction", "2", "'increasing', 'decreasing'"),
    # TOP_K
    "top k of integers at 2.0": Broken(
        lambda: top_k_of_level_1(T("int32", (2, 3, 4, 5))),
        *("TOP_K input_tensor", "int32 of rank 4", "float32, float16; rank 4, at feature level 2.0"),
        *(Unsupported, "2.0", "Feature level 2.1 has it."),
    ),
    "top k of rank 3 at 1.0": Broken(
        lambda: top_k_of_level_1(T("float32", (2, 3, 4))),
        *("TOP_K input_tensor", "float32 of rank 3", "float32, float16; rank 4, at feature level 1.0"),
        *(Unsupported, "1.0", "Feature level 3.1 has it."),
    ),
    "top k past the axis": Broken(change(TOP_1_0, k=3), "TOP_K k", "3", "1 to 2, the input's size along axis 0"),
    "top k along no axis": Broken(change(TOP_1_0, axis=7), "TOP_K axis", "7", "0 to 3"),
    # NONZERO_COORDINATES
    "nonzero before its level": Broken(
        lambda: NONZERO, "NONZERO_COORDINATES feature_level", "2.1", "3.0 and above", Unsupported, "2.1"
    ),
    "nonzero of rank 3 at 3.0": Broken(
        lambda: nonzero_desc(T("float32", (2, 3, 4)), rank=4),
        *("NONZERO_COORDINATES input_tensor", "float32 of rank 3", f"{INT_32_NAMES}; rank 4 to 5, at feature level 3.0"),
        *(Unsupported, "3.0", "Feature level 4.0 has it."),
    ),
    "nonzero of int64": Broken(
        lambda: nonzero_desc(T("int64", (2, 3))),
        *("NONZERO_COORDINATES input_tensor", "int64 of rank 2", f"{INT_32_NAMES}; rank 1 to 8, at feature level 6.4"),
        *(Unsupported, "6.4", EXTENSION),
    ),
    "nonzero counted in int32": Broken(
        change(NONZERO, output_count_tensor=T("int32", (1,))),
        *("NONZERO_COORDINATES output_count_tensor", "int32 of rank 1", "uint32; rank 1 to 8, at feature level 6.4"),
        *(Unsupported, "6.4", "Convert or reshape the tensor."),
    ),
    "nonzero with 64-bit coordinates": Broken(
        lambda: nonzero_desc(X, index="uint64"),
        *("NONZERO_COORDINATES output_coordinates_tensor", "uint64 of rank 4", "uint32; rank 2 to 8, at feature level 6.4"),
        *(Unsupported, "6.4", EXTENSION),
    ),
    "nonzero with flat coordinates": Broken(
        change(NONZERO, output_coordinates_tensor=T("uint32", (480,))),
        *("NONZERO_COORDINATES output_coordinates_tensor", "uint32 of rank 1", "uint32; rank 2 to 8, at feature level 6.4"),
        *(Unsupported, "6.4", "Convert or reshape the tensor."),
    ),
    "two counts": Broken(
        change(NONZERO, output_count_tensor=T("uint32", (1, 2))),
        *("NONZERO_COORDINATES output_count_tensor.sizes", "(1, 2)", "all sizes 1"),
    ),
    "a row too few": Broken(
        change(NONZERO, output_coordinates_tensor=T("uint32", (119, 4))),
        "NONZERO_COORDINATES output_coordinates_tensor.sizes",
        *("(119, 4)", "(1, …, 1, 120, n) with n from 4 to 4: a row for each element of the input"),
    ),
    "a coordinate too few": Broken(
        lambda: nonzero_desc(T("int8", (1, 1, 3, 2)), 1),
        "NONZERO_COORDINATES output_coordinates_tensor.sizes",
        *("(1, 1, 6, 1)", "(1, …, 1, 6, n) with n from 2 to 4: a row for each element of the input"),
    ),
    "a coordinate too many": Broken(
        lambda: nonzero_desc(T("int8", (1, 1, 3, 2)), 5),
        "NONZERO_COORDINATES output_coordinates_tensor.sizes",
        *("(1, 1, 6, 5)", "(1, …, 1, 6, n) with n from 2 to 4: a row for each element of the input"),
    ),
    "no coordinate of one element": Broken(
        lambda: nonzero_desc(T("int8", (1, 1, 1, 1)), 5),
        "NONZERO_COORDINATES output_coordinates_tensor.sizes",
        *("(1, 1, 1, 5)", "(1, …, 1, 1, n) with n from 1 to 4: a row for each element of the input"),
    ),
    "rows in two planes": Broken(
        change(NONZERO, output_coordinates_tensor=T("uint32", (2, 120, 4))),
        "NONZERO_COORDINATES output_coordinates_tensor.sizes",
        *("(2, 120, 4)", "(1, …, 1, 120, n) with n from 4 to 4: a row for each element of the input"),
    ),
    "count of another rank at 3.0": Broken(
        change(NONZERO, output_count_tensor=T("uint32", (1,) * 5)),
        *("NONZERO_COORDINATES output_count_tensor.rank", "5", "4, as in input_tensor"),
        level="3.0",
    ),
    "coordinates that share addresses": Broken(
        change(NONZERO, output_coordinates_tensor=T("uint32", (120, 4), (3, 1))),
        *("NONZERO_COORDINATES output_coordinates_tensor", "strides (3, 1) for sizes (120, 4)", DISTINCT),
    ),
    # DIAGONAL_MATRIX1
    "diagonal 1 before its level": Broken(
        lambda: DIAGONAL, "DIAGONAL_MATRIX1 feature_level", "5.0", "5.1 and above", Unsupported, "5.0"
    ),
    "diagonal of a vector": Broken(
        lambda: diagonal_desc(T("int8", (3,)), 1, 0, 1),
        "DIAGONAL_MATRIX1 input_tensor",
        *(
            "int8 of rank 1",
            "float32, float16, uint32, uint16, uint8, int32, int16, int8, float64, uint64, int64; "
            "rank 2 to 4, at feature level 6.4",
        ),
        *(Unsupported, "6.4", "Convert or reshape the tensor."),
    ),
    "diagonal of rank 5 without an input": Broken(
        lambda: diagonal_desc(T("int8", (3, 1, 1, 1, 1)), 1, 0, 1, has_input=False),
        "DIAGONAL_MATRIX1 output_tensor",
        *(
            "int8 of rank 5",
            "float32, float16, uint32, uint16, uint8, int32, int16, int8, float64, uint64, int64; "
            "rank 2 to 4, at feature level 6.4",
        ),
        *(Unsupported, "6.4", EXTENSION),
    ),
    "diagonal to another type": Broken(
        change(DIAGONAL, output_tensor=T("int32", X.sizes), value_data_type="int32"),
        *("DIAGONAL_MATRIX1 output_tensor.data_type", "int32", "float32, as in input_tensor"),
    ),
    "diagonal to other sizes": Broken(
        change(DIAGONAL, output_tensor=T("float32", (2, 3, 5, 4))),
        *("DIAGONAL_MATRIX1 output_tensor.sizes", "(2, 3, 5, 4)", "(2, 3, 4, 5), as in input_tensor"),
    ),
    "diagonal to another rank": Broken(
        change(DIAGONAL, output_tensor=T("float32", (6, 4, 5))),
        *("DIAGONAL_MATRIX1 output_tensor.sizes", "(6, 4, 5)", "(2, 3, 4, 5), as in input_tensor"),
    ),
    "a value of another type": Broken(
        change(DIAGONAL, value_data_type="float16"),
        *("DIAGONAL_MATRIX1 value_data_type", "float16", "float32, the output's type"),
    ),
    "a value that is text": Broken(change(DIAGONAL, value="7"), "DIAGONAL_MATRIX1 value", "'7'", "number"),
    "a value that is true": Broken(change(DIAGONAL, value=True), "DIAGONAL_MATRIX1 value", "True", "number"),
    "a value past a float": Broken(
        change(DIAGONAL, value=2**1024), "DIAGONAL_MATRIX1 value", str(2**1024), "a number that a float can hold"
    ),
    "a value that rounds past a float": Broken(
        change(DIAGONAL, value=2**1024 - 1), "DIAGONAL_MATRIX1 value", str(2**1024 - 1), "a number that a float can hold"
    ),
    "a value with a fraction for integers": Broken(
        lambda: diagonal_desc(T("int8", (2, 2)), 1.5, 0, 1),
        *("DIAGONAL_MATRIX1 value", "1.5", "an integer from -128 to 127, to fill int8"),
    ),
    "NaN for integers": Broken(
        lambda: diagonal_desc(T("int64", (2, 2)), float("nan"), 0, 1),
        *("DIAGONAL_MATRIX1 value", "nan", f"an integer from {-(2**63)} to {2**63 - 1}, to fill int64"),
    ),
    "infinity for integers": Broken(
        lambda: diagonal_desc(T("uint64", (2, 2)), float("inf"), 0, 1),
        *("DIAGONAL_MATRIX1 value", "inf", f"an integer from 0 to {2**64 - 1}, to fill uint64"),
    ),
    "begin past an INT": Broken(
        change(DIAGONAL, diagonal_fill_begin=INT_MAX + 1),
        *("DIAGONAL_MATRIX1 diagonal_fill_begin", "2147483648", "integer from -2147483648 to 2147483647"),
    ),
    "end below an INT": Broken(
        change(DIAGONAL, diagonal_fill_end=INT_MIN - 1),
        *("DIAGONAL_MATRIX1 diagonal_fill_end", "-2147483649", "integer from -2147483648 to 2147483647"),
    ),
    "begin that is a fraction": Broken(
        change(DIAGONAL, diagonal_fill_begin=0.0),
        *("DIAGONAL_MATRIX1 diagonal_fill_begin", "0.0", "integer from -2147483648 to 2147483647"),
    ),
    "diagonal that shares addresses": Broken(
        change(DIAGONAL, output_tensor=T("float32", X.sizes, (0, 20, 5, 1))),
        *("DIAGONAL_MATRIX1 output_tensor", "strides (0, 20, 5, 1) for sizes (2, 3, 4, 5)", DISTINCT),
    ),
    # DIAGONAL_MATRIX
    "diagonal before its level": Broken(
        lambda: DIAGONAL_2_0, "DIAGONAL_MATRIX feature_level", "1.0", "2.0 and above", Unsupported, "1.0"
    ),
    "diagonal of integers at 2.0": Broken(
        change(DIAGONAL_2_0, output_tensor=T("uint8", X.sizes)),
        *("DIAGONAL_MATRIX output_tensor", "uint8 of rank 4", "float32, float16; rank 4, at feature level 2.0"),
        *(Unsupported, "2.0", "Feature level 2.1 has it."),
    ),
    "diagonal of rank 3": Broken(
        change(DIAGONAL_2_0, output_tensor=T("float32", (3, 4, 5))),
        *("DIAGONAL_MATRIX output_tensor", "float32 of rank 3", f"{INT_32_NAMES}; rank 4, at feature level 6.4"),
        *(Unsupported, "6.4", "Convert or reshape the tensor."),
    ),
    "an offset past an INT": Broken(
        change(DIAGONAL_2_0, offset=2**31),
        *("DIAGONAL_MATRIX offset", "2147483648", "integer from -2147483648 to 2147483647"),
    ),
    "an offset whose diagonal has no end": Broken(
        change(DIAGONAL_2_0, output_tensor=T("uint8", (1, 1, 1, 2**31)), offset=INT_MAX),
        *("DIAGONAL_MATRIX offset", "2147483647", "below 2147483647 for 2147483648 columns"),
    ),
    "a value past the integers": Broken(
        change(DIAGONAL_2_0, output_tensor=T("uint8", X.sizes), value=256.5),
        *("DIAGONAL_MATRIX value", "256.5", "an integer from 0 to 255, to fill uint8"),
    ),
    "NaN for the integers": Broken(
        change(DIAGONAL_2_0, output_tensor=T("int16", X.sizes), value=float("nan")),
        *("DIAGONAL_MATRIX value", "nan", "an integer from -32768 to 32767, to fill int16"),
    ),
}


@pytest.mark.parametrize("rule", BROKEN)
def test_a_broken_rule_is_refused_with_what_was_given_and_what_is_allowed(rule: str) -> None:
    broken = BROKEN[rule]
    with pytest.raises(broken.error) as caught:
        tvmdml.compile(broken.build(), feature_level=broken.level)
    text = str(caught.value)
    assert text.startswith(f"{broken.where}: given {broken.given}; allowed: {broken.allowed}.")
    assert text.endswith(broken.advice)


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
        change(TOP, k=3, output_value_tensor=X, output_index_tensor=T("uint32", X.sizes))(),
        change(TOP, axis=3, k=1, **dict.fromkeys(["output_value_tensor"], T("float32", (2, 3, 4, 1))),
               output_index_tensor=T("uint32", (2, 3, 4, 1)))(),
        change(DIAGONAL, diagonal_fill_begin=INT_MIN, diagonal_fill_end=INT_MAX)(),
        change(DIAGONAL_2_0, offset=INT_MAX)(),
        change(DIAGONAL_2_0, offset=INT_MIN)(),
        change(DIAGONAL_2_0, value=1e39)(),
        change(DIAGONAL, value=2**1023)(),
        change(ROUND, input_tensor=T("float32", X.sizes, (0, 0, 0, 0)))(),
        change(ROUND, output_tensor=T("float32", X.sizes, (1, 2, 6, 24)))(),
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
    assert change(DIAGONAL, value_data_type="FLOAT32")() == DIAGONAL


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
