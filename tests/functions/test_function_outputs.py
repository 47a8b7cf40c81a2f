"""`out=`: functions write into the arrays that a caller gives, and into nothing else."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from function_calls import CALLS, Array, Tagged, X, flat, packed_struct, read_only
from support import assert_same_bits, mixture, seeded

import tvmdml
from tvmdml import InvalidArgument, TensorDataType

# -- out= ---------------------------------------------------------------------------------------------------------

OUTS: dict[str, Callable[[Array], Array]] = {
    "packed": lambda y: y,
    "shifted": lambda y: np.zeros(y.size + 1, y.dtype)[1:].reshape(y.shape),
    "every second": lambda y: np.zeros((2 * y.shape[0], 2 * y.shape[1]), y.dtype)[::2, 1::2],
    "transposed": lambda y: np.zeros(y.shape[::-1], y.dtype).T,
    "backwards": lambda y: np.zeros_like(y)[::-1, ::-1],
    "big-endian": lambda y: np.zeros(y.shape, y.dtype.newbyteorder(">")),
    "packed structure": lambda y: packed_struct(y),
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
    "read-only": (lambda: tvmdml.round(X, out=read_only(X)), "a read-only array; allowed: a writable one"),
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
        for bad in (np.empty((2, 3), "f8"), np.empty((2, 3), "i4"), np.empty((3, 2), "f4"), read_only(good)):
            with pytest.raises(InvalidArgument):
                tvmdml.round(x, out=bad)
