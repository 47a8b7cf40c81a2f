"""Functions made from descriptors: what a class states is all that its function, docstring, stub and PyTorch schema need."""

from __future__ import annotations

import inspect
from typing import Any

import numpy as np
import pytest
import specimens
from support import assert_same_bits

import tvmdml
from tvmdml import FeatureLevel, TensorDataType, TensorDesc, TopK1
from tvmdml.commands import stub
from tvmdml.doors._made import made
from tvmdml.errors import InvalidArgument, TvmdmlError, Unsupported
from tvmdml.operators._json import sketch

Array = np.ndarray[Any, np.dtype[Any]]

less = made(specimens.Less)["specimen_less"]


@pytest.mark.full(first=1)
@pytest.mark.parametrize(("a", "b"), [((3, 1), (1, 4)), ((4,), (2, 3, 4)), ((), (2, 2)), ((2, 3), ()), ((0, 1), (1, 3)), ((), ())])
def test_inputs_are_broadcast_as_in_numpy(a: tuple[int, ...], b: tuple[int, ...]) -> None:
    random = np.random.default_rng(1)
    x, y = random.standard_normal(a).astype("f4"), random.standard_normal(b).astype("f4")
    assert_same_bits(np.asarray(less(x, y)), np.asarray(np.less(x, y), np.uint8))
    out = np.full(np.broadcast_shapes(a, b), 9, np.uint8)
    assert less(x, y, out=out) is out
    assert_same_bits(out, np.asarray(np.less(x, y), np.uint8))


@pytest.mark.full
def test_a_python_number_takes_the_type_of_the_array_beside_it() -> None:
    for dtype in ("float16", "float32", "int8", "uint32"):
        x = np.arange(6).astype(dtype).reshape(2, 3)
        for _ in range(2):
            assert less(x, 3).tolist() == (x < 3).astype(int).tolist()
            assert less(3, x).tolist() == (x > 3).astype(int).tolist()
    with pytest.raises(InvalidArgument, match=r"specimen_less: b: given 1.5; allowed: a number that int8, the type of the arr"):
        less(np.zeros(2, np.int8), 1.5)
    with pytest.raises(InvalidArgument, match=r"specimen_less: b: given 300; allowed: a number that int8"):
        less(np.zeros(2, np.int8), 300)
    with pytest.raises(InvalidArgument, match=r"specimen_less: a: given float; allowed: a NumPy array"):
        less(1.5, 2.5)


NUMBERS: tuple[tuple[str, object, object, dict[str, object], object], ...] = (
    ("float32", 0.5, 3, {}, np.uint8([6, 0, 255])),
    ("float16", 0.5, 3, {}, np.uint8([6, 0, 255])),
    ("float32", 1, np.int8(-2), {}, np.int8([0, -4, 127])),
    ("float32", np.float32(0.5), -2, {"output_dtype": "int8"}, np.int8([1, -7, 127])),
    ("int32", 0.5, None, {}, np.uint8([2, 0, 255])),
)


@pytest.mark.full(first=1)
@pytest.mark.parametrize(("dtype", "scale", "zero_point", "rest", "expected"), NUMBERS)
def test_a_number_without_an_array_of_its_types_has_a_usual_type(
    dtype: str, scale: Any, zero_point: Any, rest: Any, expected: np.ndarray
) -> None:
    x = np.array([1.5, -2.5, 300]).astype(dtype)
    for _ in range(2):
        assert_same_bits(tvmdml.quantize_linear(x, scale, zero_point, **rest), expected)
    found = tvmdml.dequantize_linear(expected, 0.5, 3 if expected.dtype == np.uint8 else -2)
    assert_same_bits(found, ((expected.astype(np.int32) - (3 if expected.dtype == np.uint8 else -2)) * 0.5).astype(np.float32))


def test_a_number_that_its_type_cannot_hold_is_refused() -> None:
    x = np.zeros(2, np.float32)
    with pytest.raises(InvalidArgument, match=r"zero_point: given -3; allowed: a number that uint8, its type unless"):
        tvmdml.quantize_linear(x, 0.5, -3)
    with pytest.raises(InvalidArgument, match=r"tvmdml.quantize_linear: output_dtype: given 'foo'"):
        tvmdml.quantize_linear(x, 0.5, -3, output_dtype="foo")
    with pytest.raises(Unsupported, match=r"quantize_linear: output_dtype: given float32 of rank 1; allowed: uint8, int8"):
        tvmdml.quantize_linear(x, 0.5, output_dtype="float32")
    with pytest.raises(Unsupported, match=r"where: condition: given float32 of rank 1; allowed: uint8, bool; rank"):
        tvmdml.where(x, x, x)


def test_what_a_function_refuses_it_names() -> None:
    x = np.zeros((2, 3), np.float32)
    with pytest.raises(
        InvalidArgument, match=r"specimen_less: b: given sizes \(2,\); allowed: sizes that can be broadcast .*\(2, 3\)"
    ):
        less(x, x[:, 0])
    with pytest.raises(TvmdmlError, match=r"specimen_less: b.*given int32"):
        less(x, x.astype(np.int32))
    with pytest.raises(InvalidArgument, match="specimen_less: offset: given 'a'; allowed: a number"):
        less(x, x, offset="a")
    with pytest.raises(Unsupported, match="specimen_less: a: given float64"):
        less(x.astype(np.float64), x.astype(np.float64))


def test_signature_and_docstring_are_read_off_the_class() -> None:
    found = inspect.signature(less)
    assert list(found.parameters) == ["a", "b", "offset", "out", "device"]
    assert str(found.parameters["offset"].default) == "-0.0"
    text = str(less.__doc__)
    for part in ("Whether elements are less", "a: float16, float32, ", "offset: it is added", "Args:", "Returns:", "Raises:"):
        assert part in text


def test_the_stub_declares_the_function() -> None:
    text = "\n".join(stub.written("specimen_less", less))
    assert "def specimen_less(\n    a: NumpyArray | Number, b: NumpyArray | Number, *, offset: float = ..., out: " in text
    assert ") -> Expression: ..." in text


def test_of_fills_in_the_outputs() -> None:
    x = TensorDesc("float32", (2, 3))
    found = specimens.Less.of(x, TensorDesc("float32", (3,)))
    assert (found.output_tensor.data_type.tvm, found.output_tensor.sizes) == ("uint8", (2, 3))
    assert (found.b_tensor.sizes, found.b_tensor.strides) == ((2, 3), (0, 1))
    assert TopK1.of(x, k=2, axis=-2).output_value_tensor.sizes == (2, 3)
    assert TopK1.of(x, k=1, output_index_tensor="uint64").output_index_tensor.data_type.tvm == "uint64"


@pytest.mark.parametrize(
    ("inputs", "given", "text"),
    [
        (1, {}, "TOP_K1 k: given nothing; allowed: an integer from 0"),
        (1, {"k": 1, "axes": 1}, "TOP_K1 attribute: given 'axes'; allowed: output_value_tensor, output_index_tensor, axis, k, "),
        (1, {"k": 4}, "TOP_K1 k: given 4; allowed: 1 to 3, the input's size along axis 1"),
        (1, {"k": 1, "axis": 2}, "TOP_K1 axis: given 2; allowed: an integer from -2 to 1"),
        (2, {"k": 1}, "TOP_K1 inputs: given 2 tensors; allowed: 1: input_tensor"),
        (0, {"k": 1}, "TOP_K1 input_tensor: given nothing; allowed: input tensor"),
    ],
)
def test_of_says_what_is_wrong(inputs: int, given: dict[str, Any], text: str) -> None:
    with pytest.raises(InvalidArgument, match=text):
        TopK1.of(*[TensorDesc("float32", (2, 3))] * inputs, **given)


# -- Several results, an optional input, an enumeration, types of results -----------------------------------------

graded = made(specimens.Graded)["specimen_graded"]


def test_an_optional_input_comes_last_and_may_be_absent() -> None:
    x, places, grade = np.array([1, 2, 4], np.float32), np.array([2, 0, 9], np.int32), np.array([8, 8, 8], np.float32)
    assert list(inspect.signature(graded).parameters)[:4] == ["input", "indices", "grade", "axis_direction"]
    for _ in range(2):
        assert graded(x, places).values.tolist() == [4, 1, 0]
        assert graded(x, places, grade).values.tolist() == [12, 9, 0]
        assert graded(x, places, grade, axis_direction="decreasing", factor=2).values.tolist() == [10, 16, 0]


def test_results_have_names_and_types_that_the_caller_may_choose() -> None:
    x, places = np.array([1, 2, 4], np.float32), np.array([2, 0], np.int32)
    _, found, flags = graded(x, places)
    assert (found.dtype, flags.dtype) == (np.uint32, np.uint8)
    assert type(graded(x, places)).__name__ == "SpecimenGradedResult"
    chosen = graded(x, places, index_dtype="int64", flag_dtype="uint32")
    assert (chosen.places.dtype, chosen.flags.dtype) == (np.int64, np.uint32)
    out = tuple(np.empty(2, dtype) for dtype in (np.float32, np.int64, np.uint8))
    assert graded(x, places, out=out).places is out[1]
    assert out[1].tolist() == [2, 0]
    with pytest.raises(InvalidArgument, match="axis_direction: given 'up'; allowed: 'increasing', 'decreasing'"):
        graded(x, places, axis_direction="up")


def test_all_of_it_is_documented_and_declared() -> None:
    for part in (
        '``"increasing"`` counts places',
        "It may be absent.",
        'index_dtype: ``"uint32"``, ``"uint64"``, ``"int32"`` or ``"int64"``; by default',
        "flag_dtype: the type of output flag: uint8",
        "(values, places, flags)",
    ):
        assert part in " ".join(str(graded.__doc__).split())
    text = "\n".join(stub.written("specimen_graded", graded))
    assert "grade: NumpyArray | Number | None = ...," in text
    assert "axis_direction: AxisDirection | str = ...," in text
    assert "out: Sequence[NumpyArray] | None = ...," in text
    assert text.endswith("SpecimenGradedResult[_Array]: ...")


def test_a_sketch_has_its_outputs() -> None:
    tensors = {"indices_tensor": (TensorDataType.INT32, (4,))}
    desc = sketch.describe(specimens.Graded, TensorDataType.FLOAT16, (3,), {"Factor": 1}, tensors, FeatureLevel.LEVEL_6_4)
    assert [(one.data_type.tvm, one.sizes) for one in desc.outputs()] == [("float16", (4,)), ("uint32", (4,)), ("uint8", (4,))]
