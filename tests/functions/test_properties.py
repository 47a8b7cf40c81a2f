"""Any NumPy array, of any form, values and attributes: functions agree with the contract in plain Python."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from plain import PLAIN
from support import (
    ALL,
    FLOATING,
    INT_MAX,
    INT_MIN,
    Array,
    assert_same_bits,
    bits_of,
    special_values,
)

import tvmdml
from tvmdml import (
    AxisDirection,
    DiagonalMatrix1,
    ElementWiseRound,
    RoundingMode,
    TensorDataType,
    TensorDesc,
    TopK1,
    Unsupported,
)
from tvmdml.targets import Target

Draw = Callable[[st.SearchStrategy[Any]], Any]

# -- What is drawn --------------------------------------------------------------------------------------------------


# -- The descriptor door ------------------------------------------------------------------------------------------


BOUNDS = st.one_of(
    st.integers(-12, 12), st.sampled_from([INT_MIN, INT_MIN + 1, INT_MAX - 1, INT_MAX]), st.integers(INT_MIN, INT_MAX)
)


# -- The function door --------------------------------------------------------------------------------------------


@st.composite
def arrays(draw: Draw, types: tuple[TensorDataType, ...] = ALL, least_rank: int = 0) -> Array:
    """NumPy arrays of any form: few dimensions or eight, empty ones, steps in any direction, any byte order, misaligned."""
    data_type = draw(st.sampled_from(types))
    sizes = tuple(draw(st.lists(st.integers(0, 6) | st.integers(1, 40), min_size=least_rank, max_size=4)))
    steps = [draw(st.sampled_from([1, 1, 1, -1, 2, -3])) for _ in sizes]
    whole = tuple(n * abs(step) for n, step in zip(sizes, steps, strict=True))
    rng = np.random.default_rng(draw(st.integers(0, 2**32)))
    choice = np.concatenate([bits_of(special_values(data_type)), np.frombuffer(rng.bytes(64), f"u{data_type.itemsize}")])
    order, shift = draw(st.permutations(range(len(sizes)))), draw(st.sampled_from([0, 0, data_type.itemsize, 1]))
    laid = tuple(whole[i] for i in order)
    memory = np.zeros(math.prod(laid) * data_type.itemsize + shift, np.uint8)
    array = np.ndarray(laid, data_type.numpy, buffer=memory, offset=shift)
    array[...] = rng.choice(choice, laid).view(data_type.numpy)
    array = array.transpose(np.argsort(order))[(..., *(slice(None, None, step) for step in steps))]
    if draw(st.booleans()) and draw(st.booleans()):
        array = array.byteswap().view(array.dtype.newbyteorder())
    if draw(st.booleans()) and draw(st.booleans()):
        array.flags.writeable = False
    return array


def plain(x: Array) -> Array:
    """The same values in native order, packed, with at least one dimension."""
    return np.atleast_1d(np.array(x, dtype=x.dtype.newbyteorder("="), order="C"))


def described(x: Array) -> TensorDesc:
    from tvmdml.tensors import ArrayTensorDesc

    return ArrayTensorDesc(TensorDataType.from_numpy(x.dtype), x.shape)


@pytest.mark.full
@given(x=arrays(FLOATING), mode=st.sampled_from(RoundingMode))
def test_the_function_round_agrees(x: Array, mode: RoundingMode, target: Target) -> None:
    packed = plain(x)
    desc = ElementWiseRound(input_tensor=described(packed), output_tensor=described(packed), rounding_mode=mode)
    (expected,) = PLAIN[desc.NAME](desc, packed)
    assert_same_bits(tvmdml.round(x, rounding_mode=mode, device=target.name), expected.reshape(x.shape), any_nan=True)
    out = np.zeros((*x.shape[:-1], 2 * x.shape[-1]) if x.ndim else (), packed.dtype)
    out = out[..., ::-2] if x.ndim else out
    assert tvmdml.round(x, rounding_mode=mode, out=out, device=target.name) is out
    assert_same_bits(out, expected.reshape(x.shape), any_nan=True)


@pytest.mark.full
@given(x=arrays(), direction=st.sampled_from(AxisDirection), data=st.data())
def test_the_function_top_k_agrees(x: Array, direction: AxisDirection, data: st.DataObject, target: Target) -> None:
    packed = plain(x)
    axes = [i for i, n in enumerate(packed.shape) if n]
    if not axes:
        return
    axis = data.draw(st.sampled_from(axes))
    k = data.draw(st.integers(1, packed.shape[axis]))
    index = data.draw(st.sampled_from(["uint32", "uint64", "int32", "int64"]))
    sizes = (*packed.shape[:axis], k, *packed.shape[axis + 1 :])
    result = described(np.empty(sizes, packed.dtype))
    desc = TopK1(
        input_tensor=described(packed),
        output_value_tensor=result,
        output_index_tensor=described(np.empty(sizes, np.uint64)),
        axis=axis,
        k=k,
        axis_direction=direction,
    )
    values, indices = PLAIN[desc.NAME](desc, packed)
    shape = sizes if x.ndim else ()
    found = tvmdml.top_k(
        x, k, axis=data.draw(st.sampled_from([axis, axis - packed.ndim])), axis_direction=direction,
        index_dtype=index, device=target.name,
    )  # fmt: skip
    assert_same_bits(found.values, values.reshape(shape))
    assert_same_bits(found.indices, indices.astype(index).reshape(shape))


@pytest.mark.full
@given(x=arrays(least_rank=1), index=st.sampled_from(["uint32", "uint64", "int32", "int64"]))
def test_the_function_nonzero_coordinates_agrees(x: Array, index: str, target: Target) -> None:
    expected = np.argwhere(plain(x) != 0).astype(index)
    assert_same_bits(tvmdml.nonzero_coordinates(x, index_dtype=index, device=target.name), expected)
    found = tvmdml.nonzero_coordinates(x, trim=False, index_dtype=index, device=target.name)
    assert found.count.tolist() == [len(expected)]
    assert_same_bits(found.coordinates[: len(expected)], expected)


@pytest.mark.full
@given(x=arrays(), begin=BOUNDS, end=BOUNDS, data=st.data())
def test_the_function_diagonal_matrix_agrees(x: Array, begin: int, end: int, data: st.DataObject, target: Target) -> None:
    attributes: dict[str, Any] = {
        "value": data.draw(st.sampled_from(special_values(TensorDataType.from_numpy(x.dtype)).tolist())),
        "diagonal_fill_begin": begin,
        "diagonal_fill_end": end,
        "device": target.name,
    }
    if x.ndim < 2:
        with pytest.raises(Unsupported):
            tvmdml.diagonal_matrix(x, **attributes)
        return
    packed = plain(x)
    tensor = described(packed)
    for source in (packed, None):
        desc = DiagonalMatrix1(
            input_tensor=None if source is None else tensor,
            output_tensor=tensor,
            value_data_type=tensor.data_type,
            **{k: v for k, v in attributes.items() if k != "device"},
        )
        (expected,) = PLAIN[desc.NAME](desc, source)
        if source is None:
            found = tvmdml.diagonal_matrix(sizes=x.shape, dtype=packed.dtype, **attributes)
        else:
            found = tvmdml.diagonal_matrix(x, **attributes)
        assert_same_bits(found, expected)
    if x.flags.writeable:
        assert tvmdml.diagonal_matrix(x, out=x, **attributes) is x
        assert_same_bits(plain(x), tvmdml.diagonal_matrix(packed, **attributes))
