"""TensorDesc: every rule about a tensor, violated one by one, and its arithmetic against brute force."""

from __future__ import annotations

import itertools
import math
import pickle
from collections import Counter
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from support import ALL

from tvmdml import (
    AxisDirection,
    FeatureLevel,
    InvalidArgument,
    RoundingMode,
    TensorDataType,
    TensorDesc,
    TensorFlags,
    TvmdmlError,
    tensors,
)
from tvmdml.kernels.layout import collapse
from tvmdml.tensors import packed_strides

# -- Data types ---------------------------------------------------------------------------------------------------

DML_NUMBERS = {
    "FLOAT32": 1, "FLOAT16": 2, "UINT32": 3, "UINT16": 4, "UINT8": 5, "INT32": 6, "INT16": 7, "INT8": 8, "FLOAT64": 9,
    "UINT64": 10, "INT64": 11, "UINT4": 12, "INT4": 13,
}  # fmt: skip


def test_data_types_have_directml_numbers() -> None:
    assert {t.name: t.value for t in TensorDataType} == DML_NUMBERS


@pytest.mark.parametrize("data_type", ALL, ids=str)
def test_a_data_type_agrees_with_numpy_about_itself(data_type: TensorDataType) -> None:
    dtype = np.dtype(data_type.name.lower())
    assert data_type.numpy == dtype
    assert data_type.tvm == dtype.name
    assert data_type.itemsize == dtype.itemsize
    assert data_type.is_float == (dtype.kind == "f")
    assert data_type.is_signed == (dtype.kind == "i")
    assert data_type.dlpack == ("iuf".index(dtype.kind), 8 * dtype.itemsize)
    assert TensorDataType.from_numpy(dtype) is data_type


@pytest.mark.parametrize("data_type", ALL, ids=str)
def test_a_foreign_byte_order_is_the_same_data_type(data_type: TensorDataType) -> None:
    assert TensorDataType.from_numpy(data_type.numpy.newbyteorder()) is data_type


@pytest.mark.parametrize(
    ("alias", "name"), [("longlong", "INT64"), ("ulonglong", "UINT64"), ("intc", "INT32"), ("byte", "INT8"), ("?", "UINT8")]
)
def test_numpy_aliases_are_known(alias: str, name: str) -> None:
    assert TensorDataType.from_numpy(np.dtype(alias)).name == name


@pytest.mark.parametrize(("name", "clear"), [("float", "float32 or float64"), ("int", "int32 or int64"), ("uint", "uint32 or ")])
def test_a_name_that_libraries_read_differently_is_refused(name: str, clear: str) -> None:
    for call in (lambda: TensorDesc(name, (2,)), lambda: TensorDataType.of(name, "here"), lambda: TensorDataType.parse(name, "")):
        with pytest.raises(InvalidArgument, match=rf"given '{name}'; allowed: float64, float32, .*\. Write {clear}"):
            call()
    assert TensorDesc("float32", (2,)).data_type is TensorDataType.FLOAT32


def test_metadata_of_a_numpy_type_is_ignored() -> None:
    assert TensorDataType.from_numpy(np.dtype("float32", metadata={"unit": "m"})) is TensorDataType.FLOAT32


@pytest.mark.parametrize("dtype", ["complex64", "U3", "S3", "datetime64[s]", "O", "longdouble", "f4,f4", "V4"])
def test_a_type_that_directml_lacks_is_refused(dtype: str) -> None:
    with pytest.raises(InvalidArgument) as caught:
        TensorDataType.from_numpy(np.dtype(dtype), "OP input")
    text = str(caught.value)
    assert text.startswith(f"OP input: given data type {np.dtype(dtype)}; allowed: ")
    assert all(t.tvm in text for t in ALL)
    assert text.endswith("Convert the array first.")


# -- Enumerations -------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "spelling", [RoundingMode.TOWARD_ZERO, 1, "TOWARD_ZERO", "toward_zero", "Toward_Zero", "DML_ROUNDING_MODE_TOWARD_ZERO"]
)
def test_an_enumeration_takes_members_numbers_and_names_in_any_case(spelling: object) -> None:
    assert RoundingMode.parse(spelling, "here") is RoundingMode.TOWARD_ZERO


@pytest.mark.parametrize(
    "spelling", ["up", "", "1", 3, -1, True, 1.0, None, [], b"toward_zero", AxisDirection.DECREASING, FeatureLevel.LEVEL_1_0]
)
def test_an_enumeration_refuses_what_is_no_member(spelling: object) -> None:
    with pytest.raises(InvalidArgument) as caught:
        RoundingMode.parse(spelling, "OP rounding_mode")
    text = str(caught.value)
    assert text == (
        f"OP rounding_mode: given {spelling!r}; allowed: 'halves_to_nearest_even', 'toward_zero', 'toward_infinity'. "
        "Or a member of tvmdml.RoundingMode."
    )


@pytest.mark.parametrize("spelling", [FeatureLevel.LEVEL_5_1, "5.1", 5.1, "LEVEL_5_1", "level_5_1", "DML_FEATURE_LEVEL_5_1"])
def test_a_feature_level_takes_each_of_its_spellings(spelling: Any) -> None:
    assert FeatureLevel.of(spelling) is FeatureLevel.LEVEL_5_1


def test_no_feature_level_is_the_newest() -> None:
    assert FeatureLevel.of(None) is FeatureLevel.LEVEL_6_4
    assert max(FeatureLevel) == FeatureLevel.LEVEL_6_4


@pytest.mark.parametrize("spelling", ["7.0", "5", 5, "", "five", 5.3])
def test_an_unknown_feature_level_is_refused(spelling: Any) -> None:
    with pytest.raises(InvalidArgument) as caught:
        FeatureLevel.of(spelling)
    assert str(caught.value).startswith(f"feature_level: given {spelling!r}; allowed: 1.0, 2.0, 2.1, 3.0, ")


# -- The rules ----------------------------------------------------------------------------------------------------

ALIGNMENT, BYTES = "guaranteed_base_offset_alignment", "total_tensor_size_in_bytes"
NAMES = ", ".join(repr(name.lower()) for name in DML_NUMBERS)
ALIGNED = "0, or a power of two of at least 4 (the element size)"
# A violation of a rule: what the description is made of, the field, and what the message says was given and is allowed.
BROKEN: dict[str, tuple[dict[str, Any], str, str, str]] = {
    "no sizes": ({"sizes": ()}, "sizes", "0 dimensions", "1 to 8"),
    "nine sizes": ({"sizes": (1,) * 9}, "sizes", "9 dimensions", "1 to 8"),
    "size 0": ({"sizes": (3, 0)}, "sizes[1]", "0", "1 to 4294967295"),
    "negative size": ({"sizes": (-1, 3)}, "sizes[0]", "-1", "a non-negative integer"),
    "size past 32 bits": ({"sizes": (2**32,)}, "sizes[0]", "4294967296", "1 to 4294967295"),
    "fraction as a size": ({"sizes": (1.5,)}, "sizes[0]", "1.5", "an integer"),
    "boolean as a size": ({"sizes": (True,)}, "sizes[0]", "True", "a non-negative integer"),
    "text as sizes": ({"sizes": "12"}, "sizes", "'12'", "a sequence of integers"),
    "number as sizes": ({"sizes": 12}, "sizes", "12", "a sequence of integers"),
    "endless sizes": ({"sizes": itertools.repeat(1)}, "sizes", "more than 64 values", "at most 8"),
    "too many elements": ({"sizes": (2**16, 2**16)}, "sizes", "4294967296 elements", "at most 2^32 - 1"),
    "too few strides": ({"strides": (3,)}, "strides", "1 stride", "2, one for each size"),
    "too many strides": ({"sizes": (2,), "strides": (3, 1)}, "strides", "2 strides", "1, one for each size"),
    "negative stride": ({"strides": (3, -1)}, "strides[1]", "-1", "a non-negative integer"),
    "stride past 32 bits": ({"strides": (2**32, 1)}, "strides[0]", "4294967296", "0 to 4294967295"),
    "fraction as a stride": ({"strides": (0.5, 1)}, "strides[0]", "0.5", "an integer"),
    "unknown type": ({"data_type": "float24"}, "data_type", "'float24'", NAMES),
    "type 0": ({"data_type": 0}, "data_type", "0", NAMES),
    "alignment below the element": ({ALIGNMENT: 2}, ALIGNMENT, "2", ALIGNED),
    "alignment that is no power": ({ALIGNMENT: 12}, ALIGNMENT, "12", ALIGNED),
    "negative alignment": ({ALIGNMENT: -4}, ALIGNMENT, "-4", "a non-negative integer"),
    "buffer too small": ({BYTES: 23}, BYTES, "23", "at least 24"),
    "buffer too small by the rounding": ({"data_type": "int8", "sizes": (5,), BYTES: 5}, BYTES, "5", "at least 8"),
    "buffer too small for the strides": ({"data_type": "float16", "strides": (10, 2), BYTES: 28}, BYTES, "28", "at least 32"),
    "fraction of a buffer": ({BYTES: 24.0}, BYTES, "24.0", "an integer"),
    "unknown flag": ({"flags": 2}, "flags", "2", "'none', 'owned_by_dml'"),
}


@pytest.mark.parametrize("rule", BROKEN)
def test_a_broken_rule_is_refused_with_what_was_given_and_what_is_allowed(rule: str) -> None:
    fields, where, shown, allowed = BROKEN[rule]
    with pytest.raises(InvalidArgument) as caught:
        TensorDesc(**{"data_type": "float32", "sizes": (2, 3), **fields})
    assert str(caught.value).startswith(f"TensorDesc.{where}: given {shown}; allowed: {allowed}.")
    assert isinstance(caught.value, TvmdmlError)
    assert isinstance(caught.value, ValueError)


@pytest.mark.parametrize(("sizes", "strides"), [((2, 3), (0, 1)), ((3, 3), (2, 1))], ids=["repeating", "crossing"])
def test_elements_of_an_output_with_one_address_are_refused(sizes: tuple[int, int], strides: tuple[int, int]) -> None:
    with pytest.raises(InvalidArgument) as caught:
        TensorDesc("float32", sizes, strides).check_writable("OP output_tensor")
    allowed = "strides that give each element its own address"
    assert str(caught.value).startswith(f"OP output_tensor: given strides {strides} for sizes {sizes}; allowed: {allowed}.")


def test_the_limits_themselves_are_allowed() -> None:
    assert TensorDesc("int8", (2**32 - 1,)).element_count == 2**32 - 1
    assert TensorDesc("int8", (1,) * 8).rank == 8
    assert TensorDesc("int8", (2, 1), (2**32 - 1, 2**32 - 1)).span == 2**32
    assert TensorDesc("float32", (2, 3), total_tensor_size_in_bytes=24).total_tensor_size_in_bytes == 24
    assert TensorDesc("float64", (2,), guaranteed_base_offset_alignment=8).guaranteed_base_offset_alignment == 8
    assert TensorDesc("float32", (2,), guaranteed_base_offset_alignment=4096).guaranteed_base_offset_alignment == 4096
    assert TensorDesc("float32", (2,), flags="OWNED_BY_DML").flags is TensorFlags.OWNED_BY_DML


def test_fields_come_to_their_types() -> None:
    desc = TensorDesc("DML_TENSOR_DATA_TYPE_FLOAT16", [np.int64(2), np.uint8(3)], iter([3, 1]))  # type: ignore[arg-type]
    assert desc == TensorDesc(TensorDataType.FLOAT16, (2, 3), (3, 1))
    assert [type(n) for n in (*desc.sizes, *desc.strides)] == [int] * 4  # type: ignore[misc]


def test_a_description_is_a_value() -> None:
    one, same, other = TensorDesc("int8", (2, 3)), TensorDesc("int8", [2, 3]), TensorDesc("int8", (3, 2))  # type: ignore[arg-type]
    assert one == same
    assert hash(one) == hash(same)
    assert one != other
    assert pickle.loads(pickle.dumps(one)) == one
    with pytest.raises(AttributeError):
        one.sizes = (1,)  # type: ignore[misc]


@pytest.mark.parametrize(
    ("sizes", "rank"),
    [((1, 2, 3, 4), 3), ((1, 1, 1, 1), 0), ((1,), 0), ((2, 1, 1), 3), ((1, 1, 5, 1), 2), ((7,), 1)],
)
def test_effective_rank_drops_leading_ones_only(sizes: tuple[int, ...], rank: int) -> None:
    assert TensorDesc("int8", sizes).effective_rank == rank


@pytest.mark.parametrize(
    ("data_type", "sizes", "strides", "size"),
    [
        ("float32", (2, 3), None, 24),
        ("float16", (3,), None, 8),
        ("int8", (1,), None, 4),
        ("int8", (5,), None, 8),
        ("float64", (3,), None, 24),
        ("float16", (2, 3), (10, 2), 32),
        ("float32", (4, 5), (0, 0), 4),
        ("uint8", (4, 5), (0, 1), 8),
        ("float32", (2, 1), (7, 1000), 32),
    ],
)
def test_the_smallest_buffer_ends_with_the_last_element_rounded_up_to_four_bytes(
    data_type: str, sizes: tuple[int, ...], strides: tuple[int, ...] | None, size: int
) -> None:
    assert TensorDesc(data_type, sizes, strides).minimum_size_in_bytes == size  # type: ignore[arg-type]


def test_the_text_form_shows_type_sizes_and_strides() -> None:
    assert str(TensorDesc("float32", (2, 3))) == "float32[2, 3]"
    assert str(TensorDesc("int8", (2, 3), (0, 2))) == "int8[2, 3] strides [0, 2]"


# -- Against brute force ------------------------------------------------------------------------------------------

DIMENSIONS = st.lists(st.tuples(st.integers(1, 5), st.integers(0, 14)), min_size=1, max_size=5)


def _addresses(sizes: tuple[int, ...], strides: tuple[int, ...]) -> list[int]:
    return [sum(i * s for i, s in zip(at, strides, strict=True)) for at in itertools.product(*map(range, sizes))]


@given(DIMENSIONS)
def test_an_output_is_accepted_exactly_when_no_two_elements_share_an_address(dims: list[tuple[int, int]]) -> None:
    sizes, strides = tuple(n for n, _ in dims), tuple(s for _, s in dims)
    distinct = max(Counter(_addresses(sizes, strides)).values()) == 1
    desc = TensorDesc("uint8", sizes, strides)
    if distinct:
        desc.check_writable("x")
    else:
        with pytest.raises(InvalidArgument):
            desc.check_writable("x")


@given(st.permutations(range(5)), st.lists(st.integers(1, 4), min_size=5, max_size=5), st.lists(st.integers(0, 3), min_size=5))
def test_a_permuted_and_padded_tensor_is_always_writable(order: list[int], sizes: list[int], gaps: list[int]) -> None:
    strides, step = [0] * 5, 1
    for i, gap in zip(order, gaps, strict=False):
        strides[i] = step
        step = step * sizes[i] + gap
    TensorDesc("uint8", tuple(sizes), tuple(strides)).check_writable("x")


def test_interleaved_layouts_are_accepted_exactly_when_no_address_is_shared() -> None:
    """All small ones: of (2, 3) with strides (3, 2) no stride exceeds the other dimension's extent, and 3a = 2b has no solution."""
    pairs = itertools.product(itertools.product(range(2, 6), repeat=2), itertools.product(range(10), repeat=2))
    triples = itertools.product(itertools.product((2, 3), repeat=3), itertools.product(range(7), repeat=3))
    for sizes, strides in (*pairs, *triples):
        addresses = _addresses(sizes, strides)
        assert tensors._addresses_are_distinct(sizes, strides) == (len({*addresses}) == len(addresses)), (sizes, strides)


@given(DIMENSIONS)
def test_span_and_size_are_those_of_the_furthest_element(dims: list[tuple[int, int]]) -> None:
    sizes, strides = tuple(n for n, _ in dims), tuple(s for _, s in dims)
    for data_type in (TensorDataType.UINT8, TensorDataType.FLOAT16, TensorDataType.INT64):
        desc = TensorDesc(data_type, sizes, strides)
        furthest = max(_addresses(sizes, strides)) + 1
        assert desc.span == furthest
        assert desc.minimum_size_in_bytes == math.ceil(furthest * data_type.itemsize / 4) * 4


@given(st.lists(st.integers(1, 5), min_size=1, max_size=8))
def test_packed_strides_are_numpys(sizes: list[int]) -> None:
    assert packed_strides(tuple(sizes)) == tuple(np.empty(sizes, np.int16, order="C").strides[i] // 2 for i in range(len(sizes)))
    desc = TensorDesc("int16", tuple(sizes))
    assert desc.is_packed
    assert _addresses(desc.sizes, desc.layout) == list(range(desc.element_count))


@given(DIMENSIONS)
def test_packed_means_that_addresses_count_up_from_zero(dims: list[tuple[int, int]]) -> None:
    sizes, strides = tuple(n for n, _ in dims), tuple(s for _, s in dims)
    assert TensorDesc("uint8", sizes, strides).is_packed == (_addresses(sizes, strides) == list(range(math.prod(sizes))))


@given(st.lists(st.tuples(st.integers(1, 4), st.integers(0, 8), st.integers(0, 8)), min_size=1, max_size=5))
def test_collapsing_keeps_every_tensors_addresses_in_order(dims: list[tuple[int, int, int]]) -> None:
    sizes, one, other = (tuple(d[i] for d in dims) for i in range(3))
    merged, (steps_one, steps_other) = collapse(sizes, one, other)
    assert 1 not in merged
    assert len(merged) <= len(sizes)
    assert _addresses(merged, steps_one) == _addresses(sizes, one)
    assert _addresses(merged, steps_other) == _addresses(sizes, other)


@given(st.lists(st.tuples(st.integers(1, 4), st.integers(0, 8), st.integers(0, 8)), min_size=1, max_size=5))
def test_collapsing_in_any_order_keeps_which_addresses_belong_together(dims: list[tuple[int, int, int]]) -> None:
    sizes, one, other = (tuple(d[i] for d in dims) for i in range(3))
    merged, (steps_one, steps_other) = collapse(sizes, one, other, reorder=True)
    before = zip(_addresses(sizes, one), _addresses(sizes, other), strict=True)
    after = zip(_addresses(merged, steps_one), _addresses(merged, steps_other), strict=True)
    assert sorted(before) == sorted(after)


def test_a_transposed_pair_collapses_to_one_dimension() -> None:
    assert collapse((3, 4, 5), (1, 3, 12), (1, 3, 12), reorder=True) == ((60,), ((1,), (1,)))
