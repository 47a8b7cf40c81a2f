"""What pointwise operators refuse beyond types and sizes: limits, numbers of a union, fused activations."""

from __future__ import annotations

import math
import re
from typing import Any

import numpy as np
import pytest

import tvmdml
from tvmdml import FeatureLevel, InvalidArgument, TensorDataType, TensorDesc, TvmdmlError, Unsupported
from tvmdml.operators import Operator

X = TensorDesc("float32", (2, 3, 4, 5))
I8 = TensorDesc("int8", (2, 3, 4, 5))
RELU = tvmdml.ActivationRelu.fused()


def clip1(x: TensorDesc, low: Any, high: Any, **given: Any) -> Operator:
    return tvmdml.ElementWiseClip1.of(x, min=low, max=high, **given)


def add1(activation: Operator | None, x: TensorDesc = X) -> Operator:
    return tvmdml.ElementWiseAdd1.of(x, x, fused_activation=activation)


CASES: list[tuple[Operator, str, str, type[TvmdmlError]]] = [
    (tvmdml.ElementWiseClip.of(X, min=math.nan, max=1), "6.4", "CLIP min: given nan; allowed: a number other", InvalidArgument),
    (tvmdml.ElementWiseThreshold.of(X, min=math.nan), "6.4", "THRESHOLD min: given nan", InvalidArgument),
    (tvmdml.ElementWiseClipGrad.of(X, X, min=0, max=math.nan), "6.4", "CLIP_GRAD max: given nan", InvalidArgument),
    (clip1(X, 0, math.nan), "6.4", "CLIP1 max: given nan; allowed: a number other than NaN", InvalidArgument),
    (clip1(I8, -129, 5), "6.4", "CLIP1 min: given -129; allowed: an integer from -128 to 127, for int8", InvalidArgument),
    (clip1(I8, 0, 1.5), "6.4", "CLIP1 max: given 1.5; allowed: an integer from -128 to 127", InvalidArgument),
    (clip1(X, 0, 10**400), "6.4", "CLIP1 max: given .*allowed: a number in the range of a float", InvalidArgument),
    (
        clip1(X, 0, 1, min_max_data_type=TensorDataType.INT8),
        "6.4",
        "CLIP1 min_max_data_type: given int8; allowed: float32, the tensors' type",
        InvalidArgument,
    ),
    (tvmdml.ElementWiseClipGrad1.of(I8, I8, min=0, max=300), "6.4", "CLIP_GRAD1 max: given 300", InvalidArgument),
    (add1(tvmdml.ElementWiseClip.fused(min=0, max=1)), "6.4", "ADD1 fused_activation: given ELEMENT_WISE_CLIP", Unsupported),
    (add1(tvmdml.ActivationHardSwish.fused()), "6.4", "ADD1 fused_activation: given ACTIVATION_HARD_SWISH", Unsupported),
    (add1(RELU), "1.0", "ADD1 feature_level: given 1.0; allowed: 2.0 and above", Unsupported),
    (add1(None, I8), "6.4", "ADD1 a_tensor: given int8 of rank 4; allowed: float32, float16", Unsupported),
    (add1(tvmdml.ActivationRelu.of(X)), "6.4", "ADD1 fused_activation.input_tensor: given .*; allowed: None", InvalidArgument),
]  # fmt: skip


@pytest.mark.parametrize(("desc", "level", "said", "error"), CASES, ids=lambda value: value if isinstance(value, str) else "")
def test_what_is_refused_is_named(desc: Operator, level: str, said: str, error: type[TvmdmlError]) -> None:
    with pytest.raises(error, match=said):
        desc.validate(FeatureLevel.of(level))


def test_activations_that_came_with_level_1_0_are_fused_from_level_2_0() -> None:
    for level in ("2.0", "6.4"):
        add1(RELU).validate(FeatureLevel.of(level))


@pytest.mark.parametrize("value", ["1", None, True, [1]], ids=repr)
def test_limits_of_a_call_are_numbers(value: object) -> None:
    with pytest.raises(InvalidArgument, match=r"tvmdml\.clip: max: given .*; allowed: a number"):
        tvmdml.clip(np.zeros(3, np.float32), min=0, max=value)


def test_bools_are_not_numbers_for_arithmetic() -> None:
    flags = np.array([True, False])
    for function in (tvmdml.add, tvmdml.bit_shift_left):
        with pytest.raises(InvalidArgument, match=f"tvmdml.{function.__name__}: a: given data type bool"):
            function(flags, flags)
    with pytest.raises(InvalidArgument, match=r"tvmdml\.bit_not: input: given data type bool"):
        tvmdml.bit_not(flags)
    for function in (tvmdml.bit_and, tvmdml.logical_xor, tvmdml.equals):
        assert function(flags, flags).dtype == np.uint8


def test_an_input_is_named_as_the_function_names_it() -> None:
    x, y = np.zeros((2, 3), np.float32), np.zeros(3, np.float64)
    flags = np.array([True, False, True])
    for said, call in {
        "add: a: given int; allowed: a NumPy array": lambda: tvmdml.add(1, 2),
        "add: b: given list; allowed: a NumPy array": lambda: tvmdml.add(x, [1, 2, 3]),
        "add: b: given data type bool": lambda: tvmdml.add(x, flags),
        "add: b.data_type: given float64; allowed: float32, as in a.": lambda: tvmdml.add(x, y),
        "where: a: given int; allowed: a NumPy array": lambda: tvmdml.where(flags, 1, 0),
        "where: condition: given bool; allowed: a NumPy array": lambda: tvmdml.where(True, x, x),
        "clip_grad: input_gradient: given str": lambda: tvmdml.clip_grad(x, "1", min=0, max=1),
        "pow: exponent: given list": lambda: tvmdml.pow(np.ones(2, np.int32), [1, 2]),
        "quantize_linear: scale: given list": lambda: tvmdml.quantize_linear(x, [0.5], np.uint8(3)),
        "quantize: quantization_parameters[0]: given float": lambda: tvmdml.quantize(x, [0.5]),
        "quantize: quantization_tensors[0].sizes: given (3,); allowed: 2 sizes, as in input.": lambda: tvmdml.quantize(
            x, [np.ones(3, np.float32)]
        ),
        "add: fused_activation: given 'relu'; allowed: operator descriptor, such as tvmdml.Activation": lambda: tvmdml.add(
            x, x, fused_activation="relu"
        ),
    }.items():
        with pytest.raises(InvalidArgument, match=f"^tvmdml.{re.escape(said)}"):
            call()


@pytest.mark.parametrize(
    ("function", "said"),
    [
        ("add", "rules; one of them may be a Python number, which takes the type of the arrays."),
        ("where", "rules; ``a`` or ``b`` may be a Python number, which takes the type of the other."),
        ("quantize_linear", "Inputs are broadcast by NumPy's rules."),
    ],
)
def test_help_says_where_a_number_may_stand(function: str, said: str) -> None:
    assert said in getattr(tvmdml, function).__doc__


def test_an_integer_array_takes_no_fraction() -> None:
    with pytest.raises(InvalidArgument, match=r"tvmdml\.multiply: b: given 1\.5; allowed: a number that int32"):
        tvmdml.multiply(np.zeros(3, np.int32), 1.5)
    assert tvmdml.multiply(3, np.ones(2, np.int32)).tolist() == [3, 3]
    assert tvmdml.subtract(np.ones(2, np.float32), 1.5).tolist() == [-0.5, -0.5]
