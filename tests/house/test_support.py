"""The notation of support tables, tables that depend on an attribute, and the error if no row fits."""

from __future__ import annotations

import pytest

from tvmdml import TensorDesc
from tvmdml.enums import DmlEnum, FeatureLevel
from tvmdml.errors import Unsupported
from tvmdml.operators import Operator
from tvmdml.operators._contract import Input, Output
from tvmdml.operators._support import FLOATS, INTS_TO_32, Allows, Support, support
from tvmdml.tensors import TensorDataType as D


def rows(found: tuple[Support, ...]) -> list[tuple[str | None, Allows | None]]:
    return [(None if row.level is None else str(row.level), row.others) for row in found]


def test_a_part_changes_what_it_names_and_keeps_the_rest() -> None:
    found = rows(support("1.0 F r4 · 2.1 +I · 3.0 r8 · 4.1 u"))
    signed = INTS_TO_32[:3]
    assert [level for level, _ in found] == ["1.0", "2.1", "3.0", "4.1"]
    assert [set(allows.types) for _, allows in found if allows] == [{*FLOATS}, {*FLOATS, *signed}, {*FLOATS, *signed}, {D.UINT32}]
    assert [(a.min_rank, a.max_rank) for _, a in found if a] == [(4, 4), (4, 4), (1, 8), (1, 8)]


@pytest.mark.parametrize(("text", "ranks"), [("r4", (4, 4)), ("r45", (4, 5)), ("r2-8", (2, 8)), ("r8", (1, 8)), ("r1", (1, 1))])
def test_ranks(text: str, ranks: tuple[int, int]) -> None:
    (row,) = support(f"1.0 F {text}")
    assert row.others is not None
    assert row.others[1:] == ranks


def test_a_tensor_with_a_line_of_its_own_stays_as_it_was_at_levels_that_it_does_not_name() -> None:
    found = support("2.1 F r4 · 3.1 r8 · ext D", index_tensor="2.1 u r4 · 5.0 +W")
    assert [(str(row.level), row.tensors["index_tensor"].types) for row in found] == [
        ("2.1", (D.UINT32,)),
        ("3.1", (D.UINT32,)),
        ("5.0", (D.UINT32, D.UINT64)),
        ("None", (D.UINT32, D.UINT64)),
    ]
    assert [row.others.types for row in found if row.others] == [FLOATS, FLOATS, FLOATS, (D.FLOAT64,)]


@pytest.mark.parametrize(
    ("text", "more", "said"),
    [
        ("1.0 F", {}, "has no types or ranks"),
        ("1.0 r4", {}, "has no types or ranks"),
        ("1.0 F r4 · 1.0 r8", {}, "is a duplicate"),
        ("1.0 X r4", {}, "unknown types 'X'"),
        ("1.0 F r4", {"other": "2.0 F r4"}, "a tensor has no types at 1.0"),
        ("9.9 F r4", {}, "9.9"),
    ],
)
def test_a_wrong_table_is_an_error_where_it_is_written(text: str, more: dict[str, str], said: str) -> None:
    with pytest.raises(ValueError, match=said):
        support(text, **more)


class Function(DmlEnum):
    SUM = 0
    ARGMAX = 1


BY_FUNCTION = {
    Function.SUM: support(input_tensor="1.0 F r4 · 3.0 r8", output_tensor="1.0 F r4 · 3.0 r8"),
    Function.ARGMAX: support(input_tensor="3.0 F r8", output_tensor="3.0 u r8"),
}


class Reduces(Operator):
    """Its table depends on an attribute, as REDUCE's does."""

    NAME = "SPECIMEN_REDUCES"
    SUPPORT = support("1.0 F r4 · 3.0 r8", output_tensor="1.0 F u r4 · 3.0 r8")

    function: Function
    input_tensor: Input
    output_tensor: Output

    def rows(self) -> tuple[Support, ...]:
        return BY_FUNCTION[self.function]


def reduces(function: Function, output: str, level: FeatureLevel) -> None:
    x = TensorDesc("float32", (1, 2, 3, 4))
    Reduces(function=function, input_tensor=x, output_tensor=TensorDesc(output, x.sizes)).validate(level)


def test_rows_that_depend_on_an_attribute() -> None:
    assert list(Reduces.SUPPORT[0].tensors) == ["input_tensor", "output_tensor"]
    reduces(Function.SUM, "float32", FeatureLevel.LEVEL_1_0)
    reduces(Function.ARGMAX, "uint32", FeatureLevel.LEVEL_3_0)
    with pytest.raises(Unsupported, match="output_tensor: given uint32 of rank 4; allowed: float32, float16; rank 1"):
        reduces(Function.SUM, "uint32", FeatureLevel.LEVEL_3_0)
    with pytest.raises(Unsupported, match="SPECIMEN_REDUCES output_tensor: given float32 of rank 4; allowed: uint32; rank 1 to 8"):
        reduces(Function.ARGMAX, "float32", FeatureLevel.LEVEL_3_0)


class Pair(Operator):
    """Each row takes both tensors of one type."""

    NAME = "SPECIMEN_PAIR"
    SUPPORT = (*support("1.0 F r4"), *support("2.0 u r4"))

    input_tensor: Input
    output_tensor: Output


def test_a_pair_that_no_row_takes_is_refused_by_what_the_closest_row_takes() -> None:
    desc = Pair(input_tensor=TensorDesc("float32", (1,) * 4), output_tensor=TensorDesc("uint32", (1,) * 4))
    with pytest.raises(Unsupported, match="SPECIMEN_PAIR output_tensor: given uint32 of rank 4; allowed: float32, float16; rank 4"):
        desc.validate(FeatureLevel.LEVEL_2_0)
