"""Any shape, strides, values and attributes that the contract allows: functions and compiled operators agree with the reference."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from support import (
    ALL,
    FLOATING,
    INT_MAX,
    INT_MIN,
    Array,
    assert_outputs_agree,
    assert_same_bits,
    bits_of,
    plainly,
    ready,
    reference,
    special_values,
)

import tvmdml
from tvmdml import (
    AxisDirection,
    DiagonalMatrix,
    DiagonalMatrix1,
    ElementWiseRound,
    NonzeroCoordinates,
    Operator,
    RoundingMode,
    TensorDataType,
    TensorDesc,
    TopK,
    TopK1,
    Unsupported,
)
from tvmdml.operators._contract import Role
from tvmdml.targets import Target

Draw = Callable[[st.SearchStrategy[Any]], Any]
_GUARD = 0xA5
_MARGIN = 24

# -- What is drawn --------------------------------------------------------------------------------------------------


@st.composite
def shapes(draw: Draw, least_rank: int = 1, most_elements: int = 3000) -> tuple[int, ...]:
    """Up to eight dimensions, a few of them long, in any order."""
    rank = draw(st.integers(least_rank, 8))
    sizes: list[int] = []
    left = most_elements
    for _ in range(rank):
        size = draw(st.one_of(st.integers(1, 3), st.integers(1, 9), st.sampled_from([1, 63, 64, 65, 130, 1500])))
        sizes.append(min(size, left))
        left //= sizes[-1]
    return tuple(draw(st.permutations(sizes)))


@st.composite
def input_strides(draw: Draw, sizes: tuple[int, ...]) -> tuple[int, ...] | None:
    """Anything: repeated, overlapping, padded, permuted."""
    if draw(st.booleans()):
        return None
    if draw(st.booleans()):
        return tuple(draw(output_strides(sizes)) or (1,) * len(sizes))
    return tuple(draw(st.integers(0, 70)) for _ in sizes)


@st.composite
def output_strides(draw: Draw, sizes: tuple[int, ...]) -> tuple[int, ...] | None:
    """Dimensions nested in any order, with gaps of any size."""
    if draw(st.booleans()):
        return None
    strides, step = [0] * len(sizes), draw(st.integers(1, 3))
    for i in draw(st.permutations(range(len(sizes)))):
        strides[i] = step
        step = step * sizes[i] + draw(st.integers(0, 4))
    return tuple(strides)


class Placed:
    """A tensor in guarded memory, some elements past any alignment."""

    def __init__(self, desc: TensorDesc, offset: int) -> None:
        self.desc = desc
        itemsize = desc.data_type.itemsize
        elements = 2 * _MARGIN + offset + desc.span
        self.memory = np.full(elements * itemsize, _GUARD, np.uint8)
        self.flat = self.memory.view(desc.data_type.numpy)
        steps = tuple(s * itemsize for s in desc.layout)
        self.array = np.lib.stride_tricks.as_strided(self.flat[_MARGIN + offset :], desc.sizes, steps)

    def assert_only_elements_were_written(self) -> None:
        bits_of(self.array)
        self.array[...] = np.frombuffer(bytes([_GUARD]) * self.array.itemsize, self.array.dtype)
        assert (self.memory == _GUARD).all()


def filled(draw: Draw, desc: TensorDesc, kinds: tuple[str, ...] = ("special", "bits", "mixture", "ties")) -> Placed:
    """A tensor of drawn values: all bits random, all special, a mixture, or two values in many ties."""
    placed = Placed(desc, draw(st.integers(0, 5)))
    rng = np.random.default_rng(draw(st.integers(0, 2**32)))
    bits = np.frombuffer(rng.bytes(placed.flat.nbytes), f"u{desc.data_type.itemsize}")
    special = bits_of(special_values(desc.data_type))
    kind = draw(st.sampled_from(kinds))
    if kind != "bits":
        choice = rng.choice(special, 2) if kind == "ties" else special
        share = 0.5 if kind == "mixture" else 1.0
        bits = np.where(rng.random(bits.shape) < share, rng.choice(choice, bits.shape), bits)
    if kind == "sparse":
        bits = np.where(rng.random(bits.shape) < draw(st.sampled_from([0.0, 0.01, 0.5])), bits, 0)
    placed.flat[...] = bits.astype(f"u{desc.data_type.itemsize}").view(placed.flat.dtype)
    return placed


def check(desc: Operator, target: Target, x: Array | None, draw: Draw) -> None:
    """Run through the descriptor door; small ones also against the contract in plain Python."""
    outputs = [Placed(tensor, draw(st.integers(0, 5))) for _, tensor in desc.tensors(Role.OUTPUT) if tensor is not None]
    before = None if x is None else bits_of(x)
    inputs = [x] if any(True for _ in desc.tensors(Role.INPUT)) else []
    ready(desc, target)(*inputs, *(o.array for o in outputs))
    actual = tuple(o.array.copy() for o in outputs)
    expected = reference(desc, *inputs)
    assert_outputs_agree(desc, actual, expected)
    if sum(o.array.size for o in outputs) < 200:
        assert_outputs_agree(desc, actual, plainly(desc, x))
    for output in outputs:
        output.assert_only_elements_were_written()
    if x is not None:
        assert np.array_equal(bits_of(x), before)


# -- The descriptor door ------------------------------------------------------------------------------------------


@given(data=st.data())
def test_round_agrees(data: st.DataObject, target: Target) -> None:
    draw = data.draw
    data_type, sizes = draw(st.sampled_from(FLOATING)), draw(shapes())
    x = filled(draw, TensorDesc(data_type, sizes, draw(input_strides(sizes))))
    desc = ElementWiseRound(
        input_tensor=x.desc,
        output_tensor=TensorDesc(data_type, sizes, draw(output_strides(sizes))),
        rounding_mode=draw(st.sampled_from(RoundingMode)),
    )
    check(desc, target, x.array, draw)


@given(data=st.data())
def test_round_in_place_agrees(data: st.DataObject, target: Target) -> None:
    draw = data.draw
    data_type, sizes = draw(st.sampled_from(FLOATING)), draw(shapes())
    tensor = TensorDesc(data_type, sizes, draw(output_strides(sizes)))
    x = filled(draw, tensor)
    desc = ElementWiseRound(input_tensor=tensor, output_tensor=tensor, rounding_mode=draw(st.sampled_from(RoundingMode)))
    memory = x.flat.copy()
    (expected,) = reference(desc, x.array.copy())
    ready(desc, target)(x.array, x.array)
    assert_same_bits(x.array.copy(), expected, any_nan=True)
    x.array[...] = 0
    steps = tuple(s * tensor.data_type.itemsize for s in tensor.layout)
    start = (x.array.ctypes.data - x.flat.ctypes.data) // tensor.data_type.itemsize
    np.lib.stride_tricks.as_strided(memory[start:], sizes, steps)[...] = 0
    assert np.array_equal(bits_of(x.flat), bits_of(memory))


@given(data=st.data())
def test_top_k_agrees(data: st.DataObject, target: Target) -> None:
    draw = data.draw
    data_type, sizes = draw(st.sampled_from(ALL)), draw(shapes())
    x = filled(draw, TensorDesc(data_type, sizes, draw(input_strides(sizes))))
    axis = draw(st.integers(0, len(sizes) - 1))
    k = draw(st.integers(1, sizes[axis]))
    result = (*sizes[:axis], k, *sizes[axis + 1 :])
    index = draw(st.sampled_from([TensorDataType.UINT32, TensorDataType.UINT64]))
    fields: dict[str, Any] = {
        "input_tensor": x.desc,
        "output_value_tensor": TensorDesc(data_type, result, draw(output_strides(result))),
        "output_index_tensor": TensorDesc(index, result, draw(output_strides(result))),
        "axis": axis,
        "k": k,
    }
    older = draw(st.booleans())
    desc = TopK(**fields) if older else TopK1(**fields, axis_direction=draw(st.sampled_from(AxisDirection)))
    check(desc, target, x.array, draw)


@given(data=st.data())
def test_nonzero_agrees(data: st.DataObject, target: Target) -> None:
    draw = data.draw
    data_type, sizes = draw(st.sampled_from(ALL)), draw(shapes())
    x = filled(draw, TensorDesc(data_type, sizes, draw(input_strides(sizes))), ("sparse", "special", "mixture", "ties"))
    columns = draw(st.integers(max(x.desc.effective_rank, 1), len(sizes)))
    rows = (*(1,) * draw(st.integers(0, 6)), math.prod(sizes), columns)
    desc = NonzeroCoordinates(
        input_tensor=x.desc,
        output_count_tensor=TensorDesc("uint32", (1,) * draw(st.integers(1, 8))),
        output_coordinates_tensor=TensorDesc(draw(st.sampled_from(["uint32", "uint64"])), rows, draw(output_strides(rows))),
    )
    check(desc, target, x.array, draw)


BOUNDS = st.one_of(
    st.integers(-12, 12), st.sampled_from([INT_MIN, INT_MIN + 1, INT_MAX - 1, INT_MAX]), st.integers(INT_MIN, INT_MAX)
)


@given(data=st.data())
def test_diagonal_matrix_agrees(data: st.DataObject, target: Target) -> None:
    draw = data.draw
    data_type, sizes = draw(st.sampled_from(ALL)), draw(shapes(least_rank=2))
    x = filled(draw, TensorDesc(data_type, sizes, draw(input_strides(sizes)))) if draw(st.booleans()) else None
    desc = DiagonalMatrix1(
        input_tensor=None if x is None else x.desc,
        output_tensor=TensorDesc(data_type, sizes, draw(output_strides(sizes))),
        value_data_type=data_type,
        value=draw(st.sampled_from(special_values(data_type).tolist())),
        diagonal_fill_begin=draw(BOUNDS),
        diagonal_fill_end=draw(BOUNDS),
    )
    check(desc, target, None if x is None else x.array, draw)


@given(data=st.data())
def test_diagonal_matrix_of_level_2_agrees(data: st.DataObject, target: Target) -> None:
    draw = data.draw
    taken = [t for t in ALL if t.itemsize < 8]
    data_type, sizes = draw(st.sampled_from(taken)), tuple(draw(st.integers(1, 6)) for _ in range(4))
    value = draw(st.floats(width=32) if data_type.is_float else st.floats(0 if not data_type.is_signed else -127, 127, width=32))
    desc = DiagonalMatrix(output_tensor=TensorDesc(data_type, sizes, draw(output_strides(sizes))), offset=draw(BOUNDS), value=value)
    check(desc, target, None, draw)


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


@given(x=arrays(FLOATING), mode=st.sampled_from(RoundingMode))
def test_the_function_round_agrees(x: Array, mode: RoundingMode, target: Target) -> None:
    packed = plain(x)
    desc = ElementWiseRound(input_tensor=described(packed), output_tensor=described(packed), rounding_mode=mode)
    (expected,) = plainly(desc, packed)
    assert_same_bits(tvmdml.round(x, rounding_mode=mode, device=target.name), expected.reshape(x.shape), any_nan=True)
    out = np.zeros((*x.shape[:-1], 2 * x.shape[-1]) if x.ndim else (), packed.dtype)
    out = out[..., ::-2] if x.ndim else out
    assert tvmdml.round(x, rounding_mode=mode, out=out, device=target.name) is out
    assert_same_bits(out, expected.reshape(x.shape), any_nan=True)


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
    values, indices = plainly(desc, packed)
    shape = sizes if x.ndim else ()
    found = tvmdml.top_k(
        x, k, axis=data.draw(st.sampled_from([axis, axis - packed.ndim])), axis_direction=direction,
        index_dtype=index, device=target.name,
    )  # fmt: skip
    assert_same_bits(found.values, values.reshape(shape))
    assert_same_bits(found.indices, indices.astype(index).reshape(shape))


@given(x=arrays(least_rank=1), index=st.sampled_from(["uint32", "uint64", "int32", "int64"]))
def test_the_function_nonzero_coordinates_agrees(x: Array, index: str, target: Target) -> None:
    expected = np.argwhere(plain(x) != 0).astype(index)
    assert_same_bits(tvmdml.nonzero_coordinates(x, index_dtype=index, device=target.name), expected)
    found = tvmdml.nonzero_coordinates(x, trim=False, index_dtype=index, device=target.name)
    assert found.count.tolist() == [len(expected)]
    assert_same_bits(found.coordinates[: len(expected)], expected)


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
        (expected,) = plainly(desc, source)
        if source is None:
            found = tvmdml.diagonal_matrix(sizes=x.shape, dtype=packed.dtype, **attributes)
        else:
            found = tvmdml.diagonal_matrix(x, **attributes)
        assert_same_bits(found, expected)
    if x.flags.writeable:
        assert tvmdml.diagonal_matrix(x, out=x, **attributes) is x
        assert_same_bits(plain(x), tvmdml.diagonal_matrix(packed, **attributes))
