"""Functions: they accept arrays of any kind and layout, and return the same kind."""

from __future__ import annotations

import functools
import math
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import array_api_strict
import numpy as np
import pytest
from support import (
    ALL,
    FLOATING,
    INT_MAX,
    assert_same_bits,
    mixture,
    seeded,
)

import tvmdml
from tvmdml import InvalidArgument, RoundingMode, TensorDataType, TvmdmlError

Array = np.ndarray[Any, np.dtype[Any]]

types = pytest.mark.parametrize("data_type", ALL, ids=str)
INDEX_TYPES = ("uint32", "uint64", "int32", "int64")

# Each function with attributes that change most elements, and its expected result: the same as on a packed copy.
CALLS: dict[str, Callable[..., Any]] = {
    "round": lambda x, **more: tvmdml.round(x, rounding_mode="toward_infinity", **more),
    "top_k": lambda x, **more: tvmdml.top_k(x, 2, axis=0, **more),
    "nonzero_coordinates": lambda x, **more: tvmdml.nonzero_coordinates(x, **more),
    "diagonal_matrix": lambda x, **more: tvmdml.diagonal_matrix(x, value=3, diagonal_fill_begin=-1, **more),
}
functions = pytest.mark.parametrize("name", CALLS)


def flat(result: Any) -> tuple[Array, ...]:
    """The arrays of a result, whether one or several."""
    return tuple(np.asarray(r) for r in (result if isinstance(result, tuple) else (result,)))


def assert_like_packed(name: str, x: Any) -> None:
    """The function gives for an awkward array what it gives for a plain copy of it."""
    plain = np.array(x, dtype=x.dtype.newbyteorder("="), order="C", copy=True, subok=False)
    before = x.tobytes()
    for got, expected in zip(flat(CALLS[name](x)), flat(CALLS[name](plain)), strict=True):
        assert_same_bits(got, expected)
        assert got.flags.writeable
        assert got.flags.owndata or got.base is not None
    assert x.tobytes() == before


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


X = np.arange(6, dtype=np.float32).reshape(2, 3)


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


# -- What is no array ---------------------------------------------------------------------------------------------


@functions
def test_what_is_no_array_is_refused_with_advice(name: str) -> None:
    for thing in ([[1.0, 2.0]], 1.5, 7, "abc", {1: 2}, object()):
        with pytest.raises(InvalidArgument) as caught:
            CALLS[name](thing)
        said = f"input: given {type(thing).__name__}; allowed: a NumPy array, a PyTorch tensor, or any array that supports DLPack"
        assert said in str(caught.value)
        assert str(caught.value).endswith("Convert it with numpy.asarray(x, dtype=…).")


# -- Forms of NumPy arrays ----------------------------------------------------------------------------------------


def _mapped(tmp: Path, values: Array) -> Array:
    path = tmp / "values.bin"
    values.tofile(path)
    return np.memmap(path, values.dtype, "r", shape=values.shape)


def _packed_struct(values: Array) -> Array:
    """A field of packed structures: strides of 7 bytes, no element aligned."""
    records = np.zeros(values.shape, np.dtype([("a", "u1"), ("b", values.dtype), ("c", "u2")]))
    records["b"] = values
    return records["b"]


def _aligned_struct(values: Array) -> Array:
    """A field of structures whose strides are no multiple of the element, though each first element is aligned."""
    records = np.zeros(values.shape, np.dtype({"names": ["b"], "formats": [values.dtype], "itemsize": values.itemsize + 2}))
    records["b"] = values
    return records["b"]


def _read_only(values: Array) -> Array:
    copy = values.copy()
    copy.flags.writeable = False
    return copy


class Tagged(np.ndarray):  # type: ignore[type-arg]
    """A subclass with arithmetic of its own, which no function must fall into."""

    def __array_ufunc__(self, *arguments: Any, **more: Any) -> Any:
        raise AssertionError("the subclass was computed with")


FORMS: dict[str, Callable[[Array, Path], Array]] = {
    "broadcast row": lambda x, tmp: np.broadcast_to(x[:1], x.shape),
    "broadcast column": lambda x, tmp: np.broadcast_to(x[:, :1], x.shape),
    "broadcast scalar": lambda x, tmp: np.broadcast_to(x[1, 1], x.shape),
    "memory-mapped": lambda x, tmp: _mapped(tmp, x),
    "packed structure": lambda x, tmp: _packed_struct(x),
    "aligned structure": lambda x, tmp: _aligned_struct(x),
    "matrix": lambda x, tmp: x.view(np.matrix),
    "subclass": lambda x, tmp: x.view(Tagged),
    "character of longlong": lambda x, tmp: x.view("q") if x.dtype == np.int64 else x,
}
"""Besides those that test_properties.py draws: any order, steps, byte order and alignment, read-only or not."""


@functions
@pytest.mark.parametrize("form", FORMS)
def test_an_array_of_any_form_gives_what_a_packed_copy_gives(name: str, form: str, tmp_path: Path) -> None:
    for dtype in ("float16", "float64") if name == "round" else ("float16", "int64", "uint8"):
        x = FORMS[form](mixture(seeded(form, dtype), TensorDataType.parse(dtype, "dtype"), (5, 7)), tmp_path)
        assert_like_packed(name, x)
        assert_like_packed(name, x)  # again, with a plan that exists


@functions
def test_views_of_many_dimensions_are_taken(name: str) -> None:
    whole = mixture(seeded(name), TensorDataType.FLOAT32, (4, 3, 2, 2, 2, 2, 2, 2))
    for x in (whole.transpose(*range(1, 8), 0), whole[::2, ::-1], np.moveaxis(whole, 0, 1)[:, 1:3]):
        assert_like_packed(name, x)


def test_results_are_plain_arrays_whatever_subclass_came_in() -> None:
    for x in (np.array([[1.5, 2.5]]).view(np.matrix), np.array([[1.5]]).view(Tagged)):
        assert type(tvmdml.round(x)) is np.ndarray
        assert type(tvmdml.top_k(x, 1).values) is np.ndarray


def test_a_numpy_scalar_is_an_array_without_dimensions() -> None:
    assert_same_bits(tvmdml.round(np.float32(2.5)), np.array(2, np.float32))
    assert_same_bits(tvmdml.top_k(np.int64(-7), 1).values, np.array(-7, np.int64))


# -- No dimensions, no elements -----------------------------------------------------------------------------------


def test_an_array_without_dimensions_stays_one() -> None:
    x = np.array(2.5, np.float32)
    for axis in (0, -1):
        values, indices = tvmdml.top_k(x, 1, axis=axis, index_dtype="int64")
        assert_same_bits(values, x)
        assert_same_bits(indices, np.array(0, np.int64))
    y = np.empty((), np.float32)
    assert tvmdml.round(x, out=y) is y
    assert_same_bits(y, np.rint(x))
    assert_same_bits(tvmdml.cast(x, "float64"), x.astype(np.float64))
    scale, zero = np.array(0.5, np.float32), np.array(3, np.uint8)
    for given in ([scale], [scale, zero]):
        assert tvmdml.quantize(x, given).shape == () == tvmdml.dequantize(zero, given).shape


@pytest.mark.parametrize("value", [0.0, 5.0])
def test_coordinates_of_an_array_without_dimensions_have_no_columns(value: float) -> None:
    x = np.array(value, np.float32)
    assert_same_bits(tvmdml.nonzero_coordinates(x), np.argwhere(x).astype(np.uint32))


def test_an_array_without_elements_is_answered_as_numpy_would() -> None:
    for shape in ((0,), (2, 0, 3), (1, 2, 0, 1, 1, 1, 1, 1)):
        x = np.zeros(shape, np.float32)
        assert_same_bits(tvmdml.round(x), np.rint(x))
        y = np.empty_like(x)
        assert tvmdml.round(x, out=y) is y
        assert_same_bits(tvmdml.nonzero_coordinates(x), np.argwhere(x).astype(np.uint32))
        found = tvmdml.nonzero_coordinates(x, trim=False)
        assert_same_bits(found.count, np.zeros(1, np.uint32))
        assert found.coordinates.shape == (0, len(shape))
        if len(shape) > 1:
            assert_same_bits(tvmdml.diagonal_matrix(x), x)
            assert_same_bits(tvmdml.diagonal_matrix(sizes=shape), x)
        for axis, size in enumerate(shape):
            if size:
                values, indices = tvmdml.top_k(x, size, axis=axis, index_dtype="int32")
                assert_same_bits(values, np.sort(x, axis=axis))
                assert_same_bits(indices, np.argsort(x, axis=axis).astype(np.int32))


def test_arrays_without_elements_obey_the_rules_too() -> None:
    for call in (
        lambda: tvmdml.top_k(np.zeros((0, 3), "f4"), 4),
        lambda: tvmdml.top_k(np.zeros((0, 3), "f4"), -1),
        lambda: tvmdml.round(np.zeros(0, "i4")),
        lambda: tvmdml.round(np.zeros(0, "f4"), out=np.zeros(1, "f4")),
        lambda: tvmdml.diagonal_matrix(np.zeros((0, 3), "i4"), value=0.5),
    ):
        with pytest.raises(TvmdmlError):
            call()


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


# -- out= ---------------------------------------------------------------------------------------------------------

OUTS: dict[str, Callable[[Array], Array]] = {
    "packed": lambda y: y,
    "shifted": lambda y: np.zeros(y.size + 1, y.dtype)[1:].reshape(y.shape),
    "every second": lambda y: np.zeros((2 * y.shape[0], 2 * y.shape[1]), y.dtype)[::2, 1::2],
    "transposed": lambda y: np.zeros(y.shape[::-1], y.dtype).T,
    "backwards": lambda y: np.zeros_like(y)[::-1, ::-1],
    "big-endian": lambda y: np.zeros(y.shape, y.dtype.newbyteorder(">")),
    "packed structure": lambda y: _packed_struct(y),
    "matrix": lambda y: y.view(np.matrix),
    "subclass": lambda y: y.view(Tagged),
}


@pytest.mark.parametrize("name", ["round", "top_k", "diagonal_matrix"])
def test_out_of_any_form_is_written_and_returned(name: str) -> None:
    x = mixture(seeded(name), TensorDataType.FLOAT32, (5, 4))
    expected = flat(CALLS[name](x))
    for form in [*OUTS.values()] * 2:
        out = tuple(form(np.zeros_like(e)) for e in expected)
        result = CALLS[name](x, out=out if len(out) > 1 else out[0])
        for got, given, e in zip(result if len(out) > 1 else (result,), out, expected, strict=True):
            assert got is given
            assert_same_bits(np.array(got, dtype=e.dtype, subok=False), e, any_nan=name == "round")


@pytest.mark.parametrize("name", ["round", "diagonal_matrix"])
def test_nothing_but_the_elements_of_out_is_written(name: str) -> None:
    x = mixture(seeded(name), TensorDataType.FLOAT32, (5, 4))
    memory = np.full((12, 13), 77, np.float32)
    CALLS[name](x, out=memory[1:11:2, 2:10:2])
    memory[1:11:2, 2:10:2] = 77
    assert (memory == 77).all()


@pytest.mark.parametrize("name", ["round", "diagonal_matrix"])
def test_out_may_be_the_input(name: str) -> None:
    for form in ["packed", "transposed", "every second", "backwards", "big-endian"] * 2:
        values = mixture(seeded(name), TensorDataType.FLOAT32, (4, 5))
        x = OUTS[form](values.copy())
        x[...] = values
        expected = CALLS[name](values)
        assert CALLS[name](x, out=x) is x
        assert_same_bits(np.array(x, dtype="f4"), expected, any_nan=True)


@pytest.mark.parametrize("name", ["round", "diagonal_matrix"])
def test_out_may_overlap_the_input_in_part(name: str) -> None:
    for shift in (-5, -1, 1, 6):
        memory = mixture(seeded(name, shift), TensorDataType.FLOAT32, (40,))
        x, out = (memory[at : at + 20].reshape(4, 5) for at in (10, 10 + shift))
        expected = CALLS[name](x.copy())
        CALLS[name](x, out=out)
        assert_same_bits(out, expected, any_nan=True)


def test_out_may_be_the_input_reversed_or_transposed() -> None:
    x = mixture(seeded("reversed"), TensorDataType.FLOAT32, (4, 4))
    for turn in (lambda a: a[::-1], lambda a: a.T, lambda a: a[:, ::-1].T):
        memory = x.copy()
        tvmdml.round(memory, out=turn(memory))
        assert_same_bits(turn(memory), tvmdml.round(x), any_nan=True)


def test_a_sort_may_go_where_its_input_was() -> None:
    x = mixture(seeded("sort"), TensorDataType.INT32, (3, 50))
    expected = tvmdml.top_k(x, 50)
    indices = np.empty((3, 50), np.uint32)
    tvmdml.top_k(x, 50, out=(x, indices))
    assert_same_bits(x, expected.values)
    assert_same_bits(indices, expected.indices)


def test_outs_that_overlap_each_other_are_refused() -> None:
    x = np.arange(12, dtype=np.float32).reshape(3, 4)
    memory = np.zeros(12, np.uint32)
    for at in (0, 2):
        values, indices = memory[:6].view(np.float32).reshape(3, 2), memory[at : at + 6].reshape(3, 2)
        with pytest.raises(InvalidArgument, match=r"^tvmdml.top_k: out .*overlaps"):
            tvmdml.top_k(x, 2, out=(values, indices))


NO_ARRAY = "NoneType; allowed: a NumPy array, a PyTorch tensor, or any array that supports DLPack"
WRONG_OUTS: dict[str, tuple[Callable[[], Any], str]] = {
    "type": (lambda: tvmdml.round(X, out=_out("f8")), "float64 of shape (2, 3); allowed: float32 of shape (2, 3)"),
    "shape": (lambda: tvmdml.round(X, out=_out("f4", 3, 2)), "float32 of shape (3, 2); allowed: float32 of shape (2, 3)"),
    "broadcastable shape": (lambda: tvmdml.round(X, out=_out("f4", 1, 2, 3)), "float32 of shape (1, 2, 3); allowed: float32 of s"),
    "read-only": (lambda: tvmdml.round(X, out=_read_only(X)), "a read-only array; allowed: a writable one"),
    "list": (lambda: tvmdml.round(X, out=[[0.0] * 3] * 2), NO_ARRAY.replace("NoneType", "list")),
    "repeated elements": (
        lambda: tvmdml.round(X, out=np.lib.stride_tricks.as_strided(np.zeros(5, "f4"), (2, 3), (4, 4))),
        "strides (1, 1) for sizes (2, 3); allowed: strides that give each element its own address",
    ),
    "two": (lambda: tvmdml.round(X, out=(X, X)), "2 arrays; allowed: 1: output_tensor"),
    "one of two": (lambda: tvmdml.top_k(X, 1, out=X), "1 array; allowed: 2: output_value_tensor, output_index_tensor"),  # type: ignore[arg-type]
    "values and none": (lambda: tvmdml.top_k(X, 1, out=(_out("f4", 2, 1), None)), NO_ARRAY),
    "values swapped with indices": (
        lambda: tvmdml.top_k(X, 1, out=(_out("u4", 2, 1), _out("f4", 2, 1))),
        "uint32 of shape (2, 1); allowed: float32 of shape (2, 1)",
    ),
    "other indices than those asked for": (
        lambda: tvmdml.top_k(X, 1, index_dtype="uint32", out=(_out("f4", 2, 1), _out("i4", 2, 1))),
        "int32 of shape (2, 1); allowed: uint32 of shape (2, 1)",
    ),
    "indices of no index type": (
        lambda: tvmdml.top_k(X, 1, out=(_out("f4", 2, 1), _out("f8", 2, 1))),
        "float64 of shape (2, 1); allowed: uint32 of shape (2, 1)",
    ),
}


def _out(dtype: str, *sizes: int) -> Array:
    return np.empty(sizes or (2, 3), dtype)


@pytest.mark.parametrize("fault", WRONG_OUTS)
def test_an_out_that_does_not_fit_is_refused(fault: str) -> None:
    call, text = WRONG_OUTS[fault]
    before = X.copy()
    for _ in range(2):
        with pytest.raises(InvalidArgument) as caught:
            call()
        assert text in str(caught.value)
        assert str(caught.value).split()[1].startswith("out")
    assert_same_bits(X, before)


def test_an_out_of_another_form_is_refused_after_one_that_fits() -> None:
    x, good = X.copy(), np.empty((2, 3), np.float32)
    for _ in range(2):
        tvmdml.round(x, out=good)
        for bad in (np.empty((2, 3), "f8"), np.empty((2, 3), "i4"), np.empty((3, 2), "f4"), _read_only(good)):
            with pytest.raises(InvalidArgument):
                tvmdml.round(x, out=bad)


# -- PyTorch ------------------------------------------------------------------------------------------------------


@pytest.fixture
def torch() -> Any:
    return pytest.importorskip("torch", reason="PyTorch is not installed")


def test_torch_tensors_come_back_as_torch_tensors(torch: Any) -> None:
    x = torch.tensor([[2.5, -1.5, 0.5], [3.5, float("nan"), -0.4]])
    rounded = tvmdml.round(x)
    assert isinstance(rounded, torch.Tensor)
    assert_same_bits(rounded.numpy(), np.rint(x.numpy()), any_nan=True)
    values, indices = tvmdml.top_k(x, 2, index_dtype="int64")
    assert (values.dtype, indices.dtype) == (torch.float32, torch.int64)
    assert indices.tolist() == [[0, 2], [1, 0]]
    assert tvmdml.top_k(x, 2, index_dtype="uint32").indices.dtype == torch.uint32
    assert tvmdml.nonzero_coordinates(x > 0, index_dtype="int64").tolist() == torch.nonzero(x > 0).tolist()
    found = tvmdml.nonzero_coordinates(x, trim=False, index_dtype="int32")
    assert int(found.count[0]) == 6
    assert torch.equal(
        tvmdml.diagonal_matrix(x, value=0, diagonal_fill_begin=1, diagonal_fill_end=INT_MAX).isnan(), x.tril().isnan()
    )


def test_indices_of_torch_tensors_are_int64_and_of_other_arrays_uint32(torch: Any) -> None:
    """In turns: what is remembered of calls must not mix the two."""
    x = np.array([[3, 0, 5], [0, 9, 1]], np.float32)
    t = torch.from_numpy(x)
    for _ in range(3):
        for library, array, dtype in ((torch, t, torch.int64), (np, x, np.uint32)):
            indices, coordinates = tvmdml.top_k(array, 2).indices, tvmdml.nonzero_coordinates(array)
            assert (indices.dtype, coordinates.dtype) == (dtype, dtype)
            assert (indices.tolist(), coordinates.tolist()) == ([[2, 0], [1, 2]], [[0, 0], [0, 2], [1, 1], [1, 2]])
            assert tvmdml.nonzero_coordinates(array, trim=False).coordinates.dtype == dtype
            assert tvmdml.top_k(array, 2, index_dtype=library.int32).indices.dtype == library.int32
    assert torch.equal(t.gather(1, tvmdml.top_k(t, 2).indices), tvmdml.top_k(t, 2).values)
    assert tvmdml.top_k(torch.empty(0, 2), 2).indices.dtype == torch.int64


@pytest.mark.parametrize("dtype", INDEX_TYPES)
def test_the_array_for_indices_chooses_their_type(torch: Any, dtype: str) -> None:
    x = np.array([[3, 0, 5], [0, 9, 1]], np.float32)
    for _ in range(2):
        for make, empty in ((lambda a: a, np.empty), (torch.from_numpy, torch.empty)):
            array, of = make(x), np if empty is np.empty else torch
            out = (empty((2, 2), dtype=of.float32), empty((2, 2), dtype=getattr(of, dtype)))
            assert tvmdml.top_k(array, 2, out=out).indices is out[1]
            assert out[1].tolist() == [[2, 0], [1, 2]]
    with pytest.raises(InvalidArgument, match=r"^tvmdml.top_k: out \(output_index_tensor\): given "):
        tvmdml.top_k(
            x, 2, index_dtype="uint64" if "32" in dtype else "uint32", out=(np.empty((2, 2), "f4"), np.empty((2, 2), dtype))
        )


@pytest.mark.parametrize("shape", [(2, 3), (0, 3), (2, 0), ()])
def test_a_k_of_0_gives_empty_arrays(torch: Any, shape: tuple[int, ...]) -> None:
    x = np.zeros(shape, np.float32)
    expected = (*shape[:-1], 0)
    values, indices = tvmdml.top_k(x, 0)
    assert (values.shape, values.dtype, indices.shape, indices.dtype) == (expected, np.float32, expected, np.uint32)
    values, indices = tvmdml.top_k(torch.from_numpy(x), 0)
    assert (values.shape, values.dtype, indices.shape, indices.dtype) == (expected, torch.float32, expected, torch.int64)
    out = (np.empty(expected, np.float32), np.empty(expected, np.int64))
    assert tvmdml.top_k(x, 0, out=out).indices is out[1]


def test_a_bound_of_none_is_no_bound() -> None:
    x = np.ones((3, 4), np.float32)
    fill = functools.partial(tvmdml.diagonal_matrix, x, value=0)
    assert_same_bits(fill(diagonal_fill_begin=1, diagonal_fill_end=None), np.tril(x))
    assert_same_bits(fill(diagonal_fill_begin=None, diagonal_fill_end=0), np.triu(x))
    assert not fill(diagonal_fill_begin=None, diagonal_fill_end=None).any()


def test_an_array_of_bool_is_told_what_the_function_takes() -> None:
    x = np.array([[True, False], [False, True]])
    for call in (lambda: tvmdml.top_k(x, 1), lambda: tvmdml.diagonal_matrix(x)):
        with pytest.raises(
            InvalidArgument, match=r"input: given data type bool; .*uint8.* Pass x\.view\(numpy\.uint8\), which has the same bytes"
        ):
            call()
    with pytest.raises(InvalidArgument) as caught:
        tvmdml.round(x)
    assert str(caught.value) == (
        "tvmdml.round: input: given data type bool; allowed: float32, float16, float64. "
        "Convert it: numpy.asarray(x, 'float32'); for a PyTorch tensor, x.to(torch.float32)."
    )
    assert_same_bits(tvmdml.round(np.asarray(x, "float32")), x.astype(np.float32))


def test_torch_views_are_read_as_they_lie(torch: Any) -> None:
    base = torch.arange(-12.0, 12.0).reshape(4, 6) / 4
    for x in (
        base.T,
        base[::2, 1::2],
        base[1:, 2:],
        base[:1].expand(4, 6),
        torch.empty(0, 3),
        torch.tensor(2.5),
        base.contiguous(),
    ):
        assert_same_bits(tvmdml.round(x).numpy(), np.rint(x.numpy()))


def test_torch_tensors_with_a_pending_sign_or_conjugation_are_read_right(torch: Any) -> None:
    z = torch.complex(torch.tensor([1.5, 2.5]), torch.tensor([0.5, -2.5]))
    x = z.conj().imag
    assert x.is_neg()
    assert tvmdml.round(x).tolist() == [-0.0, 2.0]


def test_a_result_cannot_be_written_to_a_torch_tensor_with_a_pending_sign_unnoticed(torch: Any) -> None:
    z = torch.zeros(2, dtype=torch.complex64)
    out = z.conj().imag
    assert out.is_neg()
    try:
        tvmdml.round(torch.tensor([1.5, 2.5]), out=out)
    except InvalidArgument:
        return
    assert out.tolist() == [2, 2]


def test_a_torch_tensor_that_requires_a_gradient_is_refused_unless_gradients_are_off(torch: Any) -> None:
    x = torch.ones(2, 3, requires_grad=True)
    for call in (tvmdml.round, tvmdml.nonzero_coordinates, lambda t: tvmdml.round(x.detach(), out=t)):
        with pytest.raises(InvalidArgument) as caught:
            call(x)
        assert "given a PyTorch tensor that requires a gradient; allowed: one that does not. Pass x.detach()." in str(caught.value)
        assert "`import tvmdml.torch`" in str(caught.value)
    assert tvmdml.round(x.detach()).tolist() == [[1] * 3] * 2
    with torch.no_grad():
        assert tvmdml.round(x).tolist() == [[1] * 3] * 2


def test_torch_types_that_directml_lacks_are_refused(torch: Any) -> None:
    for x in (
        torch.zeros(2, dtype=torch.bfloat16),
        torch.zeros(2, dtype=torch.complex64),
        torch.zeros(2, dtype=torch.float8_e4m3fn),
        torch.zeros(2, 2).to_sparse(),
        torch.zeros(2, device="meta"),
    ):
        with pytest.raises(InvalidArgument, match=r"^tvmdml.round: input: given .*; allowed: "):
            tvmdml.round(x)
    with pytest.raises(InvalidArgument, match="DirectML has no bfloat16: convert to float32"):
        tvmdml.round(torch.zeros(2, dtype=torch.bfloat16))


def test_results_go_to_torch_tensors(torch: Any) -> None:
    x = torch.tensor([[2.5, -1.5, 0.5], [3.5, 4.5, -0.4]])
    expected = np.rint(x.numpy())
    for out in (torch.empty(2, 3), torch.empty(3, 2).T, torch.empty(4, 6)[::2, ::2]):
        for _ in range(2):
            out.fill_(77)
            assert tvmdml.round(x, out=out) is out
            assert_same_bits(out.numpy().copy(), expected)
    values, indices = torch.empty(2, 2), torch.empty(2, 2, dtype=torch.int64)
    found = tvmdml.top_k(x, 2, index_dtype="int64", out=(values, indices))
    assert found.indices is indices
    assert indices.tolist() == [[0, 2], [1, 0]]
    y = x.clone()
    assert tvmdml.round(y, out=y) is y
    assert_same_bits(y.numpy(), expected)
    mixed = np.empty((2, 3), np.float32)
    assert tvmdml.round(x, out=mixed) is mixed
    with pytest.raises(InvalidArgument):
        tvmdml.round(x, out=torch.empty(2, 3, dtype=torch.float64))


def test_torch_tensors_go_to_compiled_operators(torch: Any) -> None:
    desc = tvmdml.TensorDesc("float32", (2, 3))
    operator = tvmdml.compile(tvmdml.ElementWiseRound(input_tensor=desc, output_tensor=desc, rounding_mode="toward_zero"))
    x, y = torch.full((2, 3), 1.75), torch.empty(2, 3)
    operator(x, y)
    assert y.tolist() == [[1] * 3] * 2
    operator.bind(x, x)()
    assert x.tolist() == [[1] * 3] * 2


# -- Arrays of other libraries ------------------------------------------------------------------------------------


def test_array_api_arrays_come_back_as_themselves() -> None:
    xp = array_api_strict
    x = xp.asarray([[2.5, -1.5, 0.5], [3.5, 0.0, -0.4]], dtype=xp.float32)
    rounded = tvmdml.round(x)
    assert type(rounded) is type(x)
    assert bool(xp.all(rounded == xp.round(x)))
    values, indices = tvmdml.top_k(x, 2, index_dtype="int64")
    assert type(values) is type(indices) is type(x)
    assert indices.dtype == xp.int64
    assert bool(xp.all(values == xp.flip(xp.sort(x), axis=-1)[:, :2]))
    assert bool(xp.all(tvmdml.diagonal_matrix(x, value=0, diagonal_fill_begin=1, diagonal_fill_end=INT_MAX) == xp.tril(x)))


def test_array_api_arrays_are_searched_and_trimmed() -> None:
    xp = array_api_strict
    x = xp.asarray([[2.5, -1.5, 0.5], [3.5, 0.0, -0.4]], dtype=xp.float32)
    found = tvmdml.nonzero_coordinates(x, index_dtype="int64")
    assert type(found) is type(x)
    for column, expected in enumerate(xp.nonzero(x)):
        assert bool(xp.all(found[:, column] == expected))


def test_array_api_views_and_types_are_taken() -> None:
    xp = array_api_strict
    for dtype in (xp.float32, xp.float64, xp.int8, xp.int64, xp.uint16, xp.uint64):
        x = xp.reshape(xp.arange(24, dtype=dtype), (4, 6))
        for view in (x.T, x[::2, 1::2], x[::-1, :], xp.broadcast_to(x[:1, :], (4, 6))):
            found = tvmdml.top_k(view, 2)
            assert found.values.dtype == dtype
            assert_same_bits(np.from_dlpack(found.values), tvmdml.top_k(np.from_dlpack(view).copy(), 2).values)


def test_runtime_tensors_are_taken_and_given_back() -> None:
    import tvm  # noqa: F401 - registers its own class for the runtime's tensors
    import tvm_ffi

    values = np.array([[2.5, -1.5, 0.5], [3.5, 0.0, -0.4]], np.float32)
    x = tvm_ffi.from_dlpack(values.copy())
    rounded = tvmdml.round(x)
    assert isinstance(rounded, tvm_ffi.Tensor)
    assert_same_bits(np.from_dlpack(rounded), np.rint(values))
    out = tvm_ffi.from_dlpack(np.empty((2, 3), np.float32))
    assert tvmdml.round(x, out=out) is out
    assert_same_bits(np.from_dlpack(out), np.rint(values))
    desc = tvmdml.TensorDesc("float32", (2, 3))
    tvmdml.compile(tvmdml.ElementWiseRound(input_tensor=desc, output_tensor=desc, rounding_mode="toward_zero"))(x, out)
    assert_same_bits(np.from_dlpack(out), np.trunc(values))


def test_runtime_tensors_are_searched_and_trimmed() -> None:
    import tvm_ffi

    found = tvmdml.nonzero_coordinates(tvm_ffi.from_dlpack(np.array([0, 3, 4], np.float32)))
    assert isinstance(found, tvm_ffi.Tensor)
    assert_same_bits(np.from_dlpack(found), np.array([[1], [2]], np.uint32))


class Exporter:
    """An array of a library without a namespace: it speaks DLPack and nothing else."""

    def __init__(self, array: Array, device: int = 1) -> None:
        self._array, self._device = array, device

    def __dlpack__(self, **options: Any) -> Any:
        if self._device != 1:
            raise BufferError("not on the CPU")
        return self._array.__dlpack__(**options)

    def __dlpack_device__(self) -> tuple[int, int]:
        return (self._device, 0)


def test_an_array_that_only_speaks_dlpack_is_read() -> None:
    values = np.array([[2.5, -1.5]], np.float32)
    assert_same_bits(np.asarray(tvmdml.round(Exporter(values))), np.rint(values))
    out = np.zeros((1, 2), np.float32)
    tvmdml.round(Exporter(values), out=out)
    assert_same_bits(out, np.rint(values))


class Bfloat16:
    """As JAX's: it speaks DLPack, and NumPy has no such type."""

    dtype = "bfloat16"

    def __dlpack__(self, **options: Any) -> Any:
        raise BufferError("bfloat16 is not supported")

    def __dlpack_device__(self) -> tuple[int, int]:
        return (1, 0)


def test_an_array_of_bfloat16_on_the_cpu_is_told_about_its_type() -> None:
    with pytest.raises(InvalidArgument) as caught:
        tvmdml.round(Bfloat16())
    assert str(caught.value) == (
        "tvmdml.round: input: given Bfloat16 of bfloat16; allowed: float64, float32, float16, int64, int32, int16, int8, uint64, "
        "uint32, uint16, uint8. DirectML has no bfloat16: convert to float32, which has all its values, or to float16."
    )


def test_an_array_that_cannot_be_seen_on_the_cpu_is_not_told_to_go_there(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Bfloat16, "dtype", "float8_e4m3fn")
    with pytest.raises(InvalidArgument, match=r"bfloat16 is not supported.* Convert it first: numpy\.asarray"):
        tvmdml.round(Bfloat16())


def test_an_array_on_another_device_is_refused_with_advice() -> None:
    with pytest.raises(InvalidArgument) as caught:
        tvmdml.round(Exporter(np.zeros(3, np.float32), device=2))
    assert str(caught.value).startswith("tvmdml.round: input: given Exporter that NumPy cannot access (")
    assert str(caught.value).endswith("Copy it to the CPU first.")


# -- The package --------------------------------------------------------------------------------------------------


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
