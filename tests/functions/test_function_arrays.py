"""Functions take NumPy arrays of any form, and those without dimensions or elements."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
from function_calls import CALLS, Array, Tagged, assert_like_packed, functions, packed_struct
from support import assert_same_bits, mixture, seeded

import tvmdml
from tvmdml import InvalidArgument, TensorDataType, TvmdmlError

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


def _aligned_struct(values: Array) -> Array:
    """A field of structures whose strides are no multiple of the element, though each first element is aligned."""
    records = np.zeros(values.shape, np.dtype({"names": ["b"], "formats": [values.dtype], "itemsize": values.itemsize + 2}))
    records["b"] = values
    return records["b"]


FORMS: dict[str, Callable[[Array, Path], Array]] = {
    "broadcast row": lambda x, tmp: np.broadcast_to(x[:1], x.shape),
    "broadcast column": lambda x, tmp: np.broadcast_to(x[:, :1], x.shape),
    "broadcast scalar": lambda x, tmp: np.broadcast_to(x[1, 1], x.shape),
    "memory-mapped": lambda x, tmp: _mapped(tmp, x),
    "packed structure": lambda x, tmp: packed_struct(x),
    "aligned structure": lambda x, tmp: _aligned_struct(x),
    "matrix": lambda x, tmp: x.view(np.matrix),
    "subclass": lambda x, tmp: x.view(Tagged),
    "character of longlong": lambda x, tmp: x.view("q") if x.dtype == np.int64 else x,
}
"""Besides those that test_properties.py draws: any order, steps, byte order and alignment, read-only or not."""


@pytest.mark.full(first=1)
@functions
@pytest.mark.parametrize("form", FORMS)
def test_an_array_of_any_form_gives_what_a_packed_copy_gives(name: str, form: str, tmp_path: Path) -> None:
    for dtype in ("float16", "float64") if name == "round" else ("float16", "int64", "uint8"):
        x = FORMS[form](mixture(seeded(form, dtype), TensorDataType.parse(dtype, "dtype"), (5, 7)), tmp_path)
        assert_like_packed(name, x)
        assert_like_packed(name, x)  # again, with a plan that exists


@pytest.mark.full(first=1)
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
