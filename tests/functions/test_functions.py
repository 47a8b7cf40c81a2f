"""Functions: types and attributes, values at the edges, the names of the package."""

from __future__ import annotations

import math
import sys
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from function_calls import CALLS, X, functions
from support import ALL, FLOATING, assert_same_bits

import tvmdml
from tvmdml import InvalidArgument, RoundingMode, TensorDataType, TvmdmlError

types = pytest.mark.parametrize("data_type", ALL, ids=str)
INDEX_TYPES = ("uint32", "uint64", "int32", "int64")


# -- Types --------------------------------------------------------------------------------------------------------


@functions
def test_a_type_that_directml_lacks_is_refused_by_name(name: str) -> None:
    for dtype in ("complex64", "O", "U1", "longdouble", "f4,f4"):
        with pytest.raises(InvalidArgument) as caught:
            CALLS[name](np.zeros((3, 3), dtype))
        said = f"tvmdml.{name}: input: given data type {np.dtype(dtype)}; allowed: float64, float32, float16, int64, "
        assert str(caught.value).startswith(said)


@pytest.mark.parametrize("index_dtype", [*INDEX_TYPES, np.int64, np.dtype("uint32"), "<i4", "u8"], ids=str)
def test_indices_come_in_the_type_asked_for(index_dtype: Any) -> None:
    x = np.array([[3, 0, 5], [0, 9, 1]], np.float32)
    values, indices = tvmdml.top_k(x, 2, index_dtype=index_dtype)
    assert_same_bits(indices, np.array([[2, 0], [1, 2]], index_dtype))
    assert_same_bits(values, np.array([[5, 3], [9, 1]], np.float32))
    expected = np.array([[0, 0], [0, 2], [1, 1], [1, 2]], index_dtype)
    assert_same_bits(tvmdml.nonzero_coordinates(x, index_dtype=index_dtype), expected)
    found = tvmdml.nonzero_coordinates(x, index_dtype=index_dtype, trim=False)
    assert found.count.dtype == np.uint32
    assert_same_bits(found.coordinates[:4], expected)


@pytest.mark.parametrize("index_dtype", ["int16", "float32", "index", 5])
def test_another_index_type_is_refused(index_dtype: Any) -> None:
    x = np.zeros((2, 3), np.float32)
    for operator, call in (("top_k", lambda: tvmdml.top_k(x, 1, index_dtype=index_dtype)),
                           ("nonzero_coordinates", lambda: tvmdml.nonzero_coordinates(x, index_dtype=index_dtype))):  # fmt: skip
        with pytest.raises(InvalidArgument) as caught:
            call()
        assert str(caught.value) == (
            f"tvmdml.{operator}: index_dtype: given {index_dtype!r}; allowed: uint32, int32, uint64, int64."
        )


# -- Attributes ---------------------------------------------------------------------------------------------------


def test_defaults_are_nearest_even_decreasing_the_last_axis_and_the_main_diagonal() -> None:
    assert tvmdml.round(np.array([2.5, 3.5], np.float32)).tolist() == [2, 4]
    found = tvmdml.top_k(np.array([[1, 3, 2], [6, 5, 4]]), 2)
    assert found.values.tolist() == [[3, 2], [6, 5]]
    assert found.indices.dtype == np.uint32
    assert_same_bits(tvmdml.diagonal_matrix(sizes=(2, 3)), np.eye(2, 3, dtype=np.float32))


class Hashless:
    """What raises an error of its own where it is hashed."""

    def __hash__(self) -> int:
        raise RuntimeError("no hash")

    def __repr__(self) -> str:
        return "<hashless>"


# What is wrong: the function, its arguments, and what is said.
REFUSED: dict[str, tuple[str, tuple[Any, ...], dict[str, Any], str]] = {
    "mode": (
        *("round", (X,), {"rounding_mode": "up"}),
        "rounding_mode: given 'up'; allowed: 'halves_to_nearest_even', 'toward_zero', 'toward_infinity'.",
    ),
    "unhashable mode": ("round", (X,), {"rounding_mode": []}, "rounding_mode: given []; allowed: "),
    "a mode that cannot be hashed": ("round", (X,), {"rounding_mode": Hashless()}, "rounding_mode: given <hashless>; allowed: "),
    "a scale that cannot be hashed": ("abs", (X,), {"scale_bias": Hashless()}, "scale_bias: given <hashless>; allowed: "),
    "a device that cannot be hashed": ("abs", (X,), {"device": Hashless()}, "device: given <hashless>; allowed: "),
    "another machine": (
        "round",
        (X,),
        {"device": "abacus"},
        f"device: given 'abacus'; allowed: {', '.join(tvmdml.targets.kinds())}.",
    ),
    "k that is True": ("top_k", (X, True), {}, "k: given True; allowed: an integer from 0 to 3, the"),
    "k past the axis": ("top_k", (X, 4), {}, "k: given 4; allowed: 0 to 3, the input's size along axis 1."),
    "k past 32 bits": ("top_k", (X, 2**40), {}, "k: given 1099511627776; allowed: an integer from 0 to 4294967295."),
    "negative k": ("top_k", (X, -1), {}, "k: given -1; allowed: an integer from 0 to 3, the input's size along axis 1."),
    "axis past the end": ("top_k", (X, 1), {"axis": 2}, "axis: given 2; allowed: an integer from -2 to 1."),
    "axis before the start": ("top_k", (X, 1), {"axis": -3}, "axis: given -3; allowed: an integer from -2 to 1."),
    "no axis": ("top_k", (X, 1), {"axis": None}, "axis: given None; allowed: an integer from -2 to 1."),
    "vector as a matrix": ("diagonal_matrix", (X[0],), {}, "input: given float32 of rank 1; allowed: "),
    "no sizes": ("diagonal_matrix", (), {}, "sizes: given neither an input nor sizes; allowed: an input or sizes"),
    "one size": ("diagonal_matrix", (), {"sizes": (3,)}, "output: given float32 of rank 1; allowed: "),
    "a number as sizes": ("diagonal_matrix", (), {"sizes": 3}, "sizes: given 3; allowed: a sequence of integers."),
    "fractions as sizes": ("diagonal_matrix", (), {"sizes": (2.0, 3)}, "sizes: given (2.0, 3); allowed: a sequence of integers."),
    "other sizes than the input's": (
        *("diagonal_matrix", (X,), {"sizes": (3, 2)}),
        "sizes: given (3, 2); allowed: (2, 3), the input's. Leave it out.",
    ),
    "another type than the input's": (
        *("diagonal_matrix", (X,), {"dtype": "int32"}),
        "dtype: given int32; allowed: float32, the input's. Leave it out.",
    ),
    "a type there is not": (
        *("diagonal_matrix", (), {"sizes": (2, 3), "dtype": "complex64"}),
        "dtype: given data type complex64; allowed: float64, ",
    ),
    "bool as a type": ("diagonal_matrix", (), {"sizes": (2, 3), "dtype": bool}, "dtype: given "),
    "a word as a type": (
        *("diagonal_matrix", (), {"sizes": (2, 3), "dtype": "single precision"}),
        "dtype: given 'single precision'; allowed: 'float32', ",
    ),
    "text as a value": ("diagonal_matrix", (X,), {"value": "7"}, "value: given '7'; allowed: a number."),
    "bytes as a value": ("diagonal_matrix", (X,), {"value": b"12345678"}, "value: given b'12345678'; allowed: a number."),
    "an array as a value": ("diagonal_matrix", (X,), {"value": np.ones(2)}, "value: given array([1., 1.]); allowed: a number."),
    "begin past an INT": (
        *("diagonal_matrix", (X,), {"diagonal_fill_begin": 2**31}),
        "diagonal_fill_begin: given 2147483648; allowed: an integer from -2147483648 to 2147483647.",
    ),
}


@pytest.mark.parametrize("fault", REFUSED)
def test_a_wrong_attribute_is_refused_with_what_was_given_and_what_is_allowed(fault: str) -> None:
    name, arguments, attributes, text = REFUSED[fault]
    for _ in range(2):  # the second call must not see the first call's results
        with pytest.raises(TvmdmlError) as caught:
            getattr(tvmdml, name)(*arguments, **attributes)
        assert str(caught.value).startswith(f"tvmdml.{name}: {text}")


# Values that compare equal to a valid attribute but have another type: in Python, 1 == 1.0 == True.
EQUALS: dict[str, tuple[Callable[[], Any], Callable[[], Any]]] = {
    "k": (lambda: tvmdml.top_k(X, 1), lambda: tvmdml.top_k(X, 1.0)),  # type: ignore[arg-type]
    "axis that is false": (lambda: tvmdml.top_k(X, 1, axis=0), lambda: tvmdml.top_k(X, 1, axis=False)),
    "mode": (lambda: tvmdml.round(X, rounding_mode=RoundingMode.TOWARD_ZERO), lambda: tvmdml.round(X, rounding_mode=1.0)),  # type: ignore[arg-type]
    "begin": (
        lambda: tvmdml.diagonal_matrix(X, diagonal_fill_begin=0),
        lambda: tvmdml.diagonal_matrix(X, diagonal_fill_begin=0.0),  # type: ignore[arg-type]
    ),
    "value": (lambda: tvmdml.diagonal_matrix(X, value=1), lambda: tvmdml.diagonal_matrix(X, value=True)),
}


@pytest.mark.usefixtures("forget")
@pytest.mark.parametrize("attribute", EQUALS)
def test_what_is_refused_does_not_depend_on_calls_before(attribute: str) -> None:
    right, wrong = EQUALS[attribute]
    with pytest.raises(TvmdmlError):
        wrong()
    right()
    with pytest.raises(TvmdmlError):
        wrong()


def test_nine_dimensions_are_refused_with_the_operator_named() -> None:
    for operator, name in (
        ("tvmdml.round: input: ", "round"),
        ("tvmdml.top_k: input: ", "top_k"),
        ("tvmdml.nonzero_coordinates: input: ", "nonzero_coordinates"),
        ("tvmdml.diagonal_matrix: input: ", "diagonal_matrix"),
    ):
        with pytest.raises(InvalidArgument) as caught:
            CALLS[name](np.zeros((2,) * 9, np.float32))
        assert str(caught.value).startswith(operator)
        assert "given 9 dimensions; allowed: 0 to 8." in str(caught.value)


# -- NONZERO_COORDINATES' own ---------------------------------------------------------------------------------------


def test_directmlx_spelling_is_the_same_function() -> None:
    assert tvmdml.non_zero_coordinates is tvmdml.nonzero_coordinates


# -- DIAGONAL_MATRIX1's own -----------------------------------------------------------------------------------------


def test_values_that_are_equal_but_not_the_same_are_told_apart() -> None:
    for _ in range(2):
        for value in (0.0, -0.0, 0, math.nan, -math.nan, 1, 1.0, np.float32(-0.0), np.float16(1.5), np.int8(-3)):
            for dtype in ("float16", "float32", "float64"):
                found = tvmdml.diagonal_matrix(sizes=(2, 2), dtype=dtype, value=value)
                expected = np.zeros((2, 2), dtype)
                np.fill_diagonal(expected, value)
                assert np.isnan(found[0, 0]) == np.isnan(expected[0, 0])
                assert np.signbit(found[0, 0]) == np.signbit(expected[0, 0]) or np.isnan(expected[0, 0])
                assert_same_bits(found, expected, any_nan=True)


@pytest.mark.full(first=1)
@types
def test_the_value_reaches_both_limits_of_its_type_and_not_past_them(data_type: TensorDataType) -> None:
    if data_type in FLOATING:
        for value in (float(np.finfo(data_type.tvm).max), math.inf, -math.inf, 1e-320, 10**300, -(10**300), 1e300):
            found = tvmdml.diagonal_matrix(sizes=(1, 1), dtype=data_type.tvm, value=value)
            with np.errstate(over="ignore"):
                assert_same_bits(found, np.array([[value]], np.float64).astype(data_type.numpy))
        return
    limits = np.iinfo(data_type.tvm)
    for value in (limits.min, limits.max, float(limits.min)):
        found = tvmdml.diagonal_matrix(sizes=(1, 1), dtype=data_type.tvm, value=value)
        assert int(found[0, 0]) == value
    for value in (limits.min - 1, limits.max + 1, float(limits.max + 1), -1e300, 0.5, math.nan, math.inf):
        with pytest.raises(
            InvalidArgument, match=rf"^tvmdml.diagonal_matrix: value: given .*; allowed: an integer from {limits.min} to "
        ):
            tvmdml.diagonal_matrix(sizes=(1, 1), dtype=data_type.tvm, value=value)


@pytest.mark.parametrize("sizes", [(2, 3), [2, 3], np.array([2, 3]), range(2, 4), (np.int64(2), np.uint8(3))], ids=str)
def test_sizes_are_any_sequence_of_integers(sizes: Any) -> None:
    assert_same_bits(tvmdml.diagonal_matrix(sizes=sizes), np.eye(2, 3, dtype=np.float32))


@pytest.mark.parametrize("dtype", ["float16", "FLOAT16", np.float16, np.dtype("f2"), TensorDataType.FLOAT16], ids=str)
def test_dtype_is_numpys_or_directmls(dtype: Any) -> None:
    assert_same_bits(tvmdml.diagonal_matrix(sizes=(2, 3), dtype=dtype), np.eye(2, 3, dtype=np.float16))
    x = np.ones((2, 3), np.float16)
    assert_same_bits(tvmdml.diagonal_matrix(x, dtype=dtype, sizes=(2, 3)), x)


# -- The package --------------------------------------------------------------------------------------------------


@pytest.mark.full
def test_every_public_name_is_there_and_nothing_else_is() -> None:
    names = dir(tvmdml)
    for name in ("round", "top_k", "nonzero_coordinates", "non_zero_coordinates", "diagonal_matrix", "compile", "TensorDesc"):
        assert name in names
    assert all(getattr(tvmdml, name) is not None for name in names)
    with pytest.raises(AttributeError, match="module 'tvmdml' has no attribute 'frobnicate'"):
        tvmdml.frobnicate  # noqa: B018


@functions
def test_a_function_says_its_shapes_types_errors_and_directml_name(name: str) -> None:
    text = getattr(tvmdml, name).__doc__
    assert "DML_OPERATOR_" in text
    assert all(f"{part}:" in text for part in ("Args", "Returns", "Raises"))


@pytest.mark.usefixtures("forget")
def test_the_memory_of_calls_is_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    module = sys.modules["tvmdml.functions"]
    monkeypatch.setattr(module, "MAX_PLANS", 8)
    for length in range(1, 30):
        assert tvmdml.round(np.full(length, 0.75, np.float32)).tolist() == [1] * length
        assert len(module._plans) <= 8


def test_any_byte_but_0_of_a_bool_array_is_true() -> None:
    raw = np.array([0, 1, 2, 0, 255, 128], np.uint8)
    assert tvmdml.nonzero_coordinates(raw.view(bool))[:, 0].tolist() == [1, 2, 4, 5]


def test_several_outputs_may_be_strided_arrays() -> None:
    x = np.arange(24, dtype=np.float32).reshape(4, 6)
    room = np.zeros((4, 12), np.float32)
    out = (room[:, :4:2], room[:, 4::2])
    assert tvmdml.split(x, axis=1, output_axis_sizes=[2, 4], out=out) == out
    assert np.array_equal(out[0], x[:, :2])
    assert np.array_equal(out[1], x[:, 2:])
    assert not room[:, 1::2].any()
