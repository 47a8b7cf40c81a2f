"""CompiledOperator: which arrays it accepts and refuses, and its error messages."""

from __future__ import annotations

import itertools
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from support import (
    Placed,
    assert_same_bits,
    diagonal_desc,
    nonzero_desc,
    round_desc,
    top_k_desc,
)

import tvmdml
from tvmdml import CompiledOperator, ElementWiseRound, InvalidArgument, TensorDesc, targets
from tvmdml.library.scheduling import kernel_for
from tvmdml.targets import Target

T = TensorDesc
Array = np.ndarray[Any, np.dtype[Any]]

VALUES = np.array([[0.5, 1.5, -2.5], [np.inf, -0.0, 2.75]], np.float32)
ROUNDED = np.array([[0, 2, -2], [np.inf, -0.0, 3]], np.float32)


@pytest.fixture
def round_(target: Target) -> CompiledOperator:
    """Rounds float32[2, 3] to the nearest even."""
    return tvmdml.compile(round_desc(T("float32", (2, 3)), "halves_to_nearest_even"), target)


@pytest.fixture
def top(target: Target) -> CompiledOperator:
    """The two largest of each row of float32[2, 3]."""
    return tvmdml.compile(top_k_desc(T("float32", (2, 3)), 1, 2, "decreasing"), target)


@pytest.fixture
def fill(target: Target) -> CompiledOperator:
    """Sevens on the diagonal of int32[2, 3], with no input."""
    return tvmdml.compile(diagonal_desc(T("int32", (2, 3)), 7, 0, 1, has_input=False), target)


# -- How arrays are given -----------------------------------------------------------------------------------------


def test_arrays_are_given_in_field_order_or_by_name(round_: CompiledOperator) -> None:
    ways: list[Callable[[Array, Array], object]] = [
        lambda x, y: round_(x, y),
        lambda x, y: round_(x, output_tensor=y),
        lambda x, y: round_(output_tensor=y, input_tensor=x),
        lambda x, y: round_.bind(x, y)(),
        lambda x, y: round_.bind(output_tensor=y, input_tensor=x)(),
    ]
    for way in ways:
        y = np.full((2, 3), 9, np.float32)
        assert way(VALUES, y) is None
        assert_same_bits(y, ROUNDED)


@pytest.mark.parametrize(
    ("positional", "named", "said"),
    [
        (0, (), "0 tensors by position"),
        (1, (), "1 tensor by position"),
        (3, (), "3 tensors by position"),
        (1, ("input_tensor",), "1 tensor by position and input_tensor by name"),
        (2, ("output_tensor",), "2 tensors by position and output_tensor by name"),
        (0, ("output_tensor",), "0 tensors by position and output_tensor by name"),
        (2, ("outputTensor",), "2 tensors by position and outputTensor by name"),
        (0, ("input_tensor", "output"), "0 tensors by position and input_tensor, output by name"),
    ],
)
def test_a_missing_unknown_or_repeated_array_is_refused(
    round_: CompiledOperator, positional: int, named: tuple[str, ...], said: str
) -> None:
    arrays = [np.zeros((2, 3), np.float32) for _ in range(positional)]
    by_name = {name: np.zeros((2, 3), np.float32) for name in named}
    for call in (round_, round_.bind):
        with pytest.raises(InvalidArgument) as caught:
            call(*arrays, **by_name)
        assert str(caught.value) == f"ELEMENT_WISE_ROUND call: given {said}; allowed: input_tensor, output_tensor, each once."


def test_an_absent_optional_tensor_is_none_or_left_out_by_name(fill: CompiledOperator) -> None:
    expected = np.array([[7, 0, 0], [0, 7, 0]], np.int32)
    ways: list[Callable[[Array], object]] = [
        lambda y: fill(None, y),
        lambda y: fill(output_tensor=y),
        lambda y: fill(None, output_tensor=y),
        lambda y: fill(input_tensor=None, output_tensor=y),
        lambda y: fill.bind(None, y)(),
        lambda y: fill.bind(output_tensor=y)(),
    ]
    for way in ways:
        y = np.full((2, 3), 9, np.int32)
        way(y)
        assert_same_bits(y, expected)


def test_an_array_for_an_absent_optional_tensor_is_refused(fill: CompiledOperator) -> None:
    x, y = np.zeros((2, 3), np.int32), np.zeros((2, 3), np.int32)
    with pytest.raises(InvalidArgument) as caught:
        fill(x, y)
    assert str(caught.value) == "DIAGONAL_MATRIX1 input_tensor: given a tensor; allowed: None: the descriptor has no such tensor."
    with pytest.raises(InvalidArgument, match=r"^DIAGONAL_MATRIX1 call: given 1 tensor by position; "):
        fill(y)


def test_none_for_a_tensor_that_is_there_is_refused(round_: CompiledOperator) -> None:
    with pytest.raises(InvalidArgument) as caught:
        round_(VALUES, None)
    assert str(caught.value) == "ELEMENT_WISE_ROUND output_tensor: given None; allowed: float32[2, 3]."


# -- What an array must be ----------------------------------------------------------------------------------------


def _misaligned(dtype: str, shape: tuple[int, ...]) -> Array:
    itemsize = np.dtype(dtype).itemsize
    memory = np.zeros(int(np.prod(shape)) * itemsize + 1, np.uint8)
    return np.frombuffer(memory, dtype, offset=1, count=int(np.prod(shape))).reshape(shape)


# An invalid argument for an array, with what the message calls it and what the message allows.
WRONG: dict[str, tuple[Callable[[], Any], str, str]] = {
    "type": (lambda: np.zeros((2, 3), "f8"), "data type float64", "float32"),
    "type of the same size": (lambda: np.zeros((2, 3), "i4"), "data type int32", "float32"),
    "byte order": (lambda: np.zeros((2, 3), ">f4"), "data type >f4", "float32"),
    "shape": (lambda: np.zeros((3, 2), "f4"), "shape (3, 2)", "(2, 3)"),
    "rank": (lambda: np.zeros((1, 2, 3), "f4"), "shape (1, 2, 3)", "(2, 3)"),
    "flat shape": (lambda: np.zeros(6, "f4"), "shape (6,)", "(2, 3)"),
    "nothing in it": (lambda: np.zeros((0, 3), "f4"), "shape (0, 3)", "(2, 3)"),
    "transposed": (lambda: np.zeros((3, 2), "f4").T, "strides (1, 2) in elements", "(3, 1)"),
    "padded": (lambda: np.zeros((2, 4), "f4")[:, :3], "strides (4, 1) in elements", "(3, 1)"),
    "backwards": (lambda: np.zeros((2, 3), "f4")[:, ::-1], "strides (3, -1) in elements", "(3, 1)"),
    "half strides": (
        lambda: np.zeros(2, np.dtype({"names": ["a"], "formats": ["(3,)f4"], "itemsize": 14}))["a"],
        "strides (3.5, 1) in elements",
        "(3, 1)",
    ),
    "misaligned": (
        lambda: _misaligned("f4", (2, 3)),
        "memory that is not aligned to its element size",
        "an address that is a multiple of 4 bytes",
    ),
    "a list": (
        lambda: [[0.0] * 3] * 2,
        "list",
        "a NumPy array, a PyTorch tensor, or any array that supports DLPack, on the CPU or on a CUDA device",
    ),
    "a number": (
        lambda: 1.5,
        "float",
        "a NumPy array, a PyTorch tensor, or any array that supports DLPack, on the CPU or on a CUDA device",
    ),
}


@pytest.mark.parametrize("tensor", ["input_tensor", "output_tensor"])
@pytest.mark.parametrize("fault", WRONG)
def test_an_array_that_does_not_fit_is_refused_and_nothing_is_written(round_: CompiledOperator, fault: str, tensor: str) -> None:
    make, given, allowed = WRONG[fault]
    good = np.full((2, 3), 9, np.float32)
    for call in (round_, round_.bind):
        with pytest.raises(InvalidArgument) as caught:
            call(**{"input_tensor": good, "output_tensor": good.copy(), tensor: make()})
        assert str(caught.value).startswith(f"ELEMENT_WISE_ROUND {tensor}: given {given}; allowed: {allowed}.")
        in_order = (make(), good.copy()) if tensor == "input_tensor" else (good, make())
        with pytest.raises(InvalidArgument):
            call(*in_order)
    assert (good == 9).all()


def test_a_read_only_output_is_refused_and_a_read_only_input_is_not(round_: CompiledOperator) -> None:
    x, y = VALUES.copy(), np.zeros((2, 3), np.float32)
    x.flags.writeable = False
    round_(x, y)
    assert_same_bits(y, ROUNDED)
    round_.bind(x, y)()
    y.flags.writeable = False
    for call in (round_, round_.bind):
        with pytest.raises(InvalidArgument) as caught:
            call(x, y)
        assert str(caught.value) == (
            "ELEMENT_WISE_ROUND output_tensor: given a read-only array; allowed: a writable one: it is an output."
        )


@pytest.mark.full(first=1)
def test_read_only_inputs_are_taken_by_kernels_with_scratch(top: CompiledOperator) -> None:
    x = VALUES.copy()
    x.flags.writeable = False
    values, indices = np.empty((2, 2), np.float32), np.empty((2, 2), np.uint32)
    for run in (lambda: top(x, values, indices), top.bind(x, values, indices)):
        values[:], indices[:] = 0, 9
        run()
        assert values.tolist() == [[1.5, 0.5], [np.inf, 2.75]]
        assert indices.tolist() == [[1, 0], [0, 2]]
    assert_same_bits(x, VALUES)


@pytest.mark.parametrize(("input_layout", "output_layout"), [("padded", "transposed"), ("broadcast outer", "spread")])
def test_arrays_have_the_strides_of_their_descriptions(input_layout: str, output_layout: str, target: Target) -> None:
    x = Placed.holding(np.arange(12, dtype=np.float32).reshape(3, 4) / 4, input_layout)
    y = Placed(x.desc.data_type, x.desc.sizes, output_layout)
    operator = tvmdml.compile(ElementWiseRound(input_tensor=x.desc, output_tensor=y.desc, rounding_mode="toward_zero"), target)
    operator(x.array, y.array)
    assert_same_bits(y.array, np.trunc(x.array))
    y.assert_nothing_else_was_written()
    with pytest.raises(InvalidArgument, match=r"^ELEMENT_WISE_ROUND output_tensor: given strides \(4, 1\) in elements; "):
        operator(x.array, np.empty((3, 4), np.float32))


def test_strides_of_dimensions_of_size_1_do_not_matter(target: Target) -> None:
    operator = tvmdml.compile(round_desc(T("float32", (1, 3, 1)), "toward_zero"), target)
    x = np.lib.stride_tricks.as_strided(np.array([1.5, -2.5, 0.25], np.float32), (1, 3, 1), (52, 4, 7))
    y = np.lib.stride_tricks.as_strided(np.zeros(3, np.float32), (1, 3, 1), (-4, 4, 2**40))
    operator(x, y)
    assert y.ravel().tolist() == [1, -2, 0]


def test_a_buffer_that_begins_anywhere_between_elements_is_taken(round_: CompiledOperator) -> None:
    memory = np.zeros(64, np.float32)
    for offset in range(32):
        x = memory[offset : offset + 6].reshape(2, 3)
        x[...] = VALUES
        y = memory[offset + 8 : offset + 14].reshape(2, 3)
        round_(x, y)
        assert_same_bits(y, ROUNDED)


def test_bool_stands_for_uint8(target: Target) -> None:
    operator = tvmdml.compile(nonzero_desc(T("uint8", (2, 3))), target)
    count, rows = np.zeros((1, 1), np.uint32), np.zeros((6, 2), np.uint32)
    operator(np.array([[True, False, True], [False, False, True]]), count, rows)
    assert count.item() == 3
    assert rows[:3].tolist() == [[0, 0], [0, 2], [1, 2]]


# -- Overlap ------------------------------------------------------------------------------------------------------


def test_round_runs_in_place(round_: CompiledOperator) -> None:
    for run in (lambda x: round_(x, x), lambda x: round_(x[:], x), lambda x: round_.bind(x, x)()):
        x = VALUES.copy()
        run(x)
        assert_same_bits(x, ROUNDED)


def test_interleaved_arrays_do_not_overlap(target: Target) -> None:
    desc = T("float32", (2, 3), (6, 2))
    operator = tvmdml.compile(ElementWiseRound(input_tensor=desc, output_tensor=desc, rounding_mode="toward_zero"), target)
    memory = np.zeros((2, 6), np.float32)
    x, y = memory[:, ::2], memory[:, 1::2]
    x[...] = VALUES
    operator(x, y)
    assert_same_bits(np.ascontiguousarray(y), np.trunc(VALUES))
    assert_same_bits(np.ascontiguousarray(x), VALUES)


def test_outputs_that_overlap_each_other_are_refused(top: CompiledOperator) -> None:
    memory = np.zeros(6, np.uint32)
    for at in (0, 1, 2):
        values, indices = memory[:4].view(np.float32).reshape(2, 2), memory[at : at + 4].reshape(2, 2)
        with pytest.raises(InvalidArgument) as caught:
            top(VALUES, values, indices)
        assert str(caught.value) == (
            "TOP_K1 output_index_tensor: given memory that overlaps output_value_tensor; allowed: separate memory."
        )


@pytest.mark.full
def test_an_output_that_is_the_input_is_refused_where_the_operator_is_not_in_place(target: Target) -> None:
    x = np.zeros((2, 3), np.float32)
    band = tvmdml.compile(diagonal_desc(T("float32", (2, 3)), 7, 0, 1), target)
    with pytest.raises(InvalidArgument) as caught:
        band(x, x)
    assert str(caught.value) == (
        "DIAGONAL_MATRIX1 output_tensor: given memory that overlaps input_tensor; allowed: separate memory."
    )
    sort = tvmdml.compile(top_k_desc(T("float32", (2, 3)), 1, 3, "increasing"), target)
    with pytest.raises(InvalidArgument, match=r"^TOP_K1 output_value_tensor: given memory that overlaps input_tensor; "):
        sort(x, x, np.zeros((2, 3), np.uint32))
    with pytest.raises(InvalidArgument, match=r"^TOP_K1 output_index_tensor: given memory that overlaps input_tensor; "):
        sort(x, np.zeros_like(x), x.view(np.uint32))
    found = tvmdml.compile(nonzero_desc(T("uint32", (4,))), target)
    memory = np.ones(8, np.uint32)
    with pytest.raises(InvalidArgument, match=r"^NONZERO_COORDINATES output_count_tensor: given memory that overlaps input_tens"):
        found(memory[:4], memory[3:4], np.zeros((4, 1), np.uint32))
    with pytest.raises(InvalidArgument, match=r"^NONZERO_COORDINATES output_coordinates_tensor: given .* overlaps output_count"):
        found(memory[:4], memory[7:8], memory[4:].reshape(4, 1))


# -- Binding ------------------------------------------------------------------------------------------------------


def test_a_bound_call_runs_again_on_what_its_arrays_hold_now(round_: CompiledOperator, top: CompiledOperator) -> None:
    x, y = VALUES.copy(), np.empty((2, 3), np.float32)
    values, indices = np.empty((2, 2), np.float32), np.empty((2, 2), np.uint32)
    rounding, topping = round_.bind(x, y), top.bind(x, values, indices)
    for factor in (1, -1, 0.5):
        x[...] = VALUES * np.float32(factor)
        rounding()
        assert_same_bits(y, np.rint(x))
        topping()
        assert_same_bits(values, -np.sort(-x, axis=1)[:, :2])


def test_a_bound_call_keeps_its_arrays_alive(round_: CompiledOperator) -> None:
    memory = np.zeros((2, 2, 3), np.float32)
    memory[0] = VALUES
    bound = round_.bind(memory[0], memory[1])
    for _ in range(3):
        junk = [np.full((2, 3), 7, np.float32) for _ in range(100)]  # might be allocated where the freed object was
        bound()
    assert_same_bits(memory[1], ROUNDED)
    assert len(junk) == 100


# -- Looking at it ------------------------------------------------------------------------------------------------


def test_arrays_cannot_be_resized_while_they_are_bound(round_: CompiledOperator) -> None:
    """NumPy's own check can be left out by ``refcheck=False``. Nor can arrays that bound ones are views of. The same in graphs."""
    graph = tvmdml.Graph()
    compiled = graph.compile(-graph.input((2, 3), name="x"))
    for bind in (lambda x, y: round_.bind(x, y), lambda x, y: compiled.bind({"x": x}, [y])):
        x, y, whole = VALUES.copy(), np.empty((2, 3), np.float32), np.empty(12, np.float32)
        run = bind(x, y), bind(whole[3:9].reshape(2, 3), y)
        for array in (x, y, whole):
            with pytest.raises(ValueError, match="resize"):
                array.resize((1 << 20,), refcheck=False)
        run[0]()
        del run
        for array in (x, y, whole):
            array.resize((1 << 10,), refcheck=False)


def test_repr_shows_operator_tensors_and_target(round_: CompiledOperator, fill: CompiledOperator, target: Target) -> None:
    assert repr(round_) == (
        f"<CompiledOperator ELEMENT_WISE_ROUND(input_tensor=float32[2, 3], output_tensor=float32[2, 3]) on {target.name}>"
    )
    assert repr(fill) == f"<CompiledOperator DIAGONAL_MATRIX1(output_tensor=int32[2, 3]) on {target.name}>"
    assert round_.target == target
    assert round_.desc == round_desc(T("float32", (2, 3)), "halves_to_nearest_even")


@pytest.mark.parametrize(("kind", "part"), [("tir", "prim_func"), ("llvm", "define "), ("asm", "ret")])
def test_the_source_can_be_read(kind: str, part: str) -> None:
    operator = tvmdml.compile(round_desc(T("float32", (2, 3)), "toward_zero"), "cpu")
    assert part in operator.source(kind)


def test_the_source_is_tir_by_default_and_an_unknown_kind_is_refused() -> None:
    operator = tvmdml.compile(top_k_desc(T("float32", (2, 3)), 1, 2, "decreasing"), "cpu")
    assert operator.source() == operator.source("tir")
    with pytest.raises(InvalidArgument) as caught:
        operator.source("ptx")
    assert str(caught.value) == "source kind: given 'ptx'; allowed: tir, llvm, asm."


# -- One kernel for many shapes -----------------------------------------------------------------------------------


@pytest.mark.usefixtures("forget")
def test_what_a_kernel_depends_on_gives_it_a_kernel_of_its_own() -> None:
    descs = [
        top_k_desc(T(data_type, (2, length)), 1, k, direction, index)
        for data_type, (length, k), direction, index in itertools.product(
            ("float32", "int32", "uint32", "float16"),
            [(8, 2), (100, 40), (2000, 40)],  # one a way
            ("increasing", "decreasing"),
            ("uint32", "uint64"),
        )
    ]
    cpu = targets.resolve("cpu")
    assert len({kernel_for(desc, cpu).identity for desc in descs}) == len(descs)
