"""Pointwise operators and others' word for them: NumPy, Python's integers, and the contracts' examples.

A line of a table is an operator. What is compared with itself elsewhere (every kernel with the operator's reference) is not
repeated here: kernels run on every target for every float16 and for all pairs of special values, and on the CPU for other types.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

import numpy as np
import pytest
from support import ALL, Array, assert_same_bits, random_bits, seeded, special_values, with_subnormals

import tvmdml
from tvmdml import TensorDataType, operators
from tvmdml.operators._pointwise import Pointwise
from tvmdml.targets import Target

f32 = np.float32
Draw = Callable[..., list[Any]]


class Row(NamedTuple):
    """What a function gives, in others' words."""

    numpy: Callable[..., Any]
    """Of arrays; a float16 is given as float32."""
    attributes: Mapping[str, Any] = {}


def exactly(rule: Callable[[int, int], int]) -> Callable[[Array, Array], Array]:
    """A rule of Python's integers, which do not overflow, modulo the width of the arrays' type."""

    def of(a: Array, b: Array) -> Array:
        mask = 2 ** (8 * a.itemsize) - 1
        whole = [rule(int(one), int(other)) & mask for one, other in zip(a.flat, b.flat, strict=True)]
        return np.array(whole, f"u{a.itemsize}").view(a.dtype).reshape(a.shape)

    return of


def either(floats: Callable[..., Any], integers: Callable[..., Any]) -> Callable[..., Any]:
    """One rule for floats, another for integers."""
    return lambda a, b: (floats if a.dtype.kind == "f" else integers)(a, b)


def toward_zero(a: int, b: int) -> int:
    """The quotient, and 0 for a divisor of 0."""
    return 0 if b == 0 else abs(a) // abs(b) * (1 if (a < 0) == (b < 0) else -1)


def _hard_sigmoid(x: Array, alpha: float, beta: float) -> Array:
    return np.clip(x.dtype.type(f32(alpha)) * x + x.dtype.type(f32(beta)), x.dtype.type(0), x.dtype.type(1))


UNARY: Mapping[str, Row] = {
    "abs": Row(np.abs),
    "activation_hard_sigmoid": Row(lambda x: _hard_sigmoid(x, 0.2, 0.5)),
    "activation_hard_swish": Row(lambda x: x * _hard_sigmoid(x, 0.166667, 0.5)),
    "activation_identity": Row(np.copy),
    "activation_leaky_relu": Row(lambda x: np.where(x >= 0, x, x.dtype.type(f32(0.01)) * x)),
    "activation_linear": Row(lambda x: x.dtype.type(f32(0.3)) * x + x.dtype.type(f32(-1.7)), {"alpha": 0.3, "beta": -1.7}),
    "activation_relu": Row(lambda x: np.where(np.less(x, 0), x.dtype.type(0), x)),
    "activation_shrink": Row(lambda x: np.where(x > 0.5, x, np.where(x < -0.5, x, x.dtype.type(0)))),
    "activation_softsign": Row(lambda x: x / (x.dtype.type(1) + np.abs(x))),
    "activation_thresholded_relu": Row(lambda x: np.where(x > 1, x, x.dtype.type(0))),
    "bit_not": Row(np.invert),
    "ceil": Row(np.ceil),
    "clip": Row(lambda x: np.clip(x, x.dtype.type(1), x.dtype.type(100)), {"min": 1, "max": 100}),
    "floor": Row(np.floor),
    "identity": Row(np.copy),
    "is_infinity": Row(np.isinf),
    "is_nan": Row(np.isnan),
    "logical_not": Row(np.logical_not),
    "negate": Row(np.negative),
    "recip": Row(lambda x: x.dtype.type(1) / x),
    "sign": Row(lambda x: np.nan_to_num(np.sign(x)) + x.dtype.type(0)),
    "sqrt": Row(np.sqrt),
    "threshold": Row(lambda x: np.maximum(x, x.dtype.type(2)), {"min": 2}),
}
"""All exact functions of one array but ROUND (plain.py), CAST and BIT_COUNT; test_mathematics.py has the others."""

BINARY: Mapping[str, Row] = {
    "activation_parameterized_relu": Row(lambda a, b: np.where(a >= 0, a, b * a)),
    "activation_relu_grad": Row(lambda a, b: np.where(a > 0, b, b.dtype.type(0))),
    "add": Row(np.add),
    "bit_and": Row(np.bitwise_and),
    "bit_or": Row(np.bitwise_or),
    "bit_shift_left": Row(exactly(lambda a, b: a << min(b, 64))),
    "bit_shift_right": Row(exactly(lambda a, b: a >> min(b, 64))),
    "bit_xor": Row(np.bitwise_xor),
    "clip_grad": Row(lambda a, b: np.where((a <= 2) | (a >= 100), b.dtype.type(0), b), {"min": 2, "max": 100}),
    "difference_square": Row(either(lambda a, b: np.square(a - b), exactly(lambda a, b: (a - b) ** 2))),
    "divide": Row(either(np.divide, exactly(toward_zero))),
    "equals": Row(np.equal),
    "greater_than": Row(np.greater),
    "greater_than_or_equal": Row(np.greater_equal),
    "less_than": Row(np.less),
    "less_than_or_equal": Row(np.less_equal),
    "logical_and": Row(np.logical_and),
    "logical_or": Row(np.logical_or),
    "logical_xor": Row(np.logical_xor),
    "max": Row(lambda a, b: np.where(a == b, b, np.maximum(a, b))),
    "mean": Row(either(lambda a, b: (a + b) / a.dtype.type(2), exactly(lambda a, b: toward_zero(a + b, 2)))),
    "min": Row(lambda a, b: np.where(a == b, b, np.minimum(a, b))),
    "modulus_floor": Row(either(np.mod, exactly(lambda a, b: 0 if b == 0 else a % b))),
    "modulus_truncate": Row(either(lambda a, b: np.fmod(a, b), exactly(lambda a, b: a - b * toward_zero(a, b) if b else 0))),
    "multiply": Row(np.multiply),
    "subtract": Row(np.subtract),
}
"""All functions of two arrays."""


def test_the_tables_have_every_function_of_one_and_of_two_arrays() -> None:
    found = {
        cls.FUNCTION: sum(1 for _ in cls.SUPPORT[0].tensors) - 1
        for cls in operators.all_operators().values()
        if issubclass(cls, Pointwise) and cls.FUNCTION and not cls.STEPS
    }
    assert {name for name, inputs in found.items() if inputs == 1} - {"cast", "round", "bit_count", "value_scale_2d"} == set(UNARY)
    assert {name for name, inputs in found.items() if inputs == 2} == set(BINARY)


def types_of(name: str) -> list[TensorDataType]:
    """The types that a function takes."""
    rows = getattr(tvmdml, name).operator.SUPPORT
    first = {one for row in rows for one in next(iter(row.tensors.values())).types}
    if name == "add":  # ADD1 without an activation is ADD
        first |= {one for row in tvmdml.ElementWiseAdd.SUPPORT for one in next(iter(row.tensors.values())).types}
    return [one for one in TensorDataType if one in first]


def unkind(data_type: TensorDataType) -> Array:
    """Special values, small integers and their halves."""
    numbers = np.array([0, 1, 2, 3, 5, 6, 7, 8, 31, 32, 33, 63, 64, 100], data_type.numpy)
    found = [special_values(data_type), numbers]
    if data_type.is_float or data_type.tvm.startswith("int"):
        found.append(-numbers)
    if data_type.is_float:
        found.append(np.array([-2.5, 0.1, 0.5, 1.5, -0.5], data_type.numpy))
    return np.concatenate(found)


def pairs(data_type: TensorDataType) -> tuple[Array, Array]:
    """All pairs of unkind values, and random bits."""
    values = unkind(data_type)
    a, b = (np.ascontiguousarray(each).reshape(-1) for each in np.meshgrid(values, values))
    rng = seeded("pairs", data_type)
    more = [random_bits(rng, data_type, (500,)) for _ in "ab"]
    return np.concatenate([a, more[0]]), np.concatenate([b, more[1]])


def told(row: Row, dtype: Any, *arrays: Array) -> Array:
    """What NumPy says, in a type: floats are computed in float32 at least, and rounded once."""
    with np.errstate(all="ignore"):
        found = row.numpy(*(x.astype(f32) if x.dtype == np.float16 else x for x in arrays))
        return np.asarray(found).astype(dtype)


def assert_told(name: str, row: Row, device: str, *arrays: Array) -> None:
    """A function gives what NumPy says."""
    actual = getattr(tvmdml, name)(*arrays, device=device, **row.attributes)
    if name.startswith("bit_"):
        actual, *arrays = (x.view(f"u{x.itemsize}") for x in (actual, *arrays))  # type: ignore[assignment]
    assert_same_bits(actual, told(row, actual.dtype, *arrays), any_nan=True)


# -- NumPy --------------------------------------------------------------------------------------------------------


@pytest.mark.full(first=1)
@pytest.mark.some(40)
@pytest.mark.parametrize("name", [name for name in UNARY if TensorDataType.FLOAT16 in types_of(name)])
def test_every_float16_gives_what_numpy_gives(name: str, target: Target) -> None:
    assert_told(name, UNARY[name], target.name, np.arange(1 << 16, dtype=np.uint16).view(np.float16))


@pytest.mark.full(first=1)
@pytest.mark.parametrize("name", UNARY)
def test_unkind_values_give_what_numpy_gives(name: str, draw: Draw) -> None:
    for data_type in draw(types_of(name), 2):
        assert_told(name, UNARY[name], "cpu", np.concatenate([unkind(data_type), random_bits(seeded(name), data_type, (500,))]))


@pytest.mark.full(first=1)
@pytest.mark.parametrize("name", BINARY)
def test_all_pairs_of_unkind_values_give_what_numpy_gives(name: str, target: Target, draw: Draw) -> None:
    """Of drawn types: code for the CPU is proven at each of its levels in test_levels.py, too."""
    for data_type in draw(with_subnormals(target, types_of(name)), 2 if target.kind == "cpu" else 1):
        assert_told(name, BINARY[name], target.name, *pairs(data_type))


@pytest.mark.full
def test_bits_are_counted_as_python_counts_them(target: Target) -> None:
    for data_type in (TensorDataType.UINT8, TensorDataType.FLOAT16, TensorDataType.INT32, TensorDataType.FLOAT64):
        x = np.concatenate([unkind(data_type), random_bits(seeded("count"), data_type, (200,))])
        expected = np.array([int(bits).bit_count() for bits in x.view(f"u{x.itemsize}")])
        for dtype in ("uint8", "uint32"):
            assert_same_bits(tvmdml.bit_count(x, output_dtype=dtype, device=target.name), expected.astype(dtype))


@pytest.mark.full(first=1)
@pytest.mark.parametrize("data_type", ALL, ids=str)
def test_where_is_numpys_and_keeps_every_bit(data_type: TensorDataType, target: Target) -> None:
    a, b = pairs(data_type)
    condition = random_bits(seeded("where"), TensorDataType.UINT8, a.shape) % 3
    for given in (condition, condition == 1):
        actual = tvmdml.where(given, a, b, device=target.name)
        assert_same_bits(*(x.view(f"u{x.itemsize}") for x in (actual, np.where(given, a, b))))


# -- The contracts' examples --------------------------------------------------------------------------------------

NAN, INF = math.nan, math.inf
LEAST, MOST = -(2**31), 2**31 - 1
EXAMPLES: list[tuple[str, str, tuple[Any, ...], Any, dict[str, Any]]] = [
    ("max", "float32", ([NAN, 1, -0.0, 0.0], [1, NAN, 0.0, -0.0]), [NAN, NAN, 0.0, -0.0], {}),
    ("min", "float32", ([NAN, 1, -0.0, 0.0], [1, NAN, 0.0, -0.0]), [NAN, NAN, 0.0, -0.0], {}),
    ("clip", "float32", ([0, 5],), [3, 3], {"min": 3, "max": 1}),
    ("clip", "float32", ([-0.0, NAN],), [-0.0, NAN], {"min": 0, "max": 1}),
    ("clip", "int64", ([2**53 + 1, -(2**63)],), [2**53 + 1, 2**53 - 1], {"min": 2**53 - 1, "max": 2**53 + 1}),
    ("clip", "uint8", ([0, 255],), [0, 255], {"min": -5.5, "max": 1e9}),
    ("sign", "float32", ([NAN, -0.0, -INF],), [0.0, 0.0, -1], {}),
    ("divide", "int32", ([7, -7, LEAST], [0, 2, -1]), [0, -3, LEAST], {}),
    ("modulus_truncate", "int32", ([-7, 5, LEAST], [5, 0, -1]), [-2, 0, 0], {}),
    ("modulus_truncate", "float32", ([-6, 5, INF, 5, 3e38], [3, INF, 3, 0, 7]), [-0.0, 5, NAN, NAN, math.fmod(f32(3e38), 7)], {}),
    ("modulus_floor", "int32", ([-7, 7], [5, -5]), [3, -3], {}),
    ("modulus_floor", "float32", ([-6, 6, -5], [3, -3, INF]), [0.0, -0.0, INF], {}),
    ("mean", "int32", ([MOST, -3, LEAST], [MOST, 0, LEAST]), [MOST, -1, LEAST], {}),
    ("mean", "float32", ([3e38], [3e38]), [INF], {}),
    ("bit_shift_left", "uint8", ([5, 5], [7, 8]), [128, 0], {}),
    ("bit_shift_right", "uint8", ([160, 160], [7, 8]), [1, 0], {}),
    ("abs", "int8", ([-128],), [-128], {}),
    ("multiply", "uint8", ([200], [2]), [144], {}),
    ("identity", "int32", ([7],), [1], {"scale_bias": (0.5, 1.9)}),
    ("activation_shrink", "float32", ([NAN],), [0.0], {}),
    ("activation_shrink", "uint8", ([3, 200, 5], ), [253, 194, 255], {"bias": 6.9, "threshold": 0.9}),
    ("activation_thresholded_relu", "float32", ([NAN],), [0.0], {}),
    ("activation_relu", "float32", ([-0.0, NAN],), [-0.0, NAN], {}),
    ("activation_softsign", "float32", ([INF],), [NAN], {}),
    ("activation_hard_swish", "float32", ([-INF],), [NAN], {}),
    ("activation_relu_grad", "float32", ([NAN, -0.0, 2], [7, 7, NAN]), [0.0, 0.0, NAN], {}),
    ("clip_grad", "float32", ([NAN, 1, 3, 2], [7, 7, 7, -0.0]), [7, 0.0, 0.0, -0.0], {"min": 1, "max": 3}),
    ("is_infinity", "float32", ([INF, -INF, NAN],), [0, 1, 0], {"infinity_mode": "negative"}),
    ("add", "float16", ([60000, 60000], [60000, -60000]), [INF, 0.0], {}),
    ("add", "float16", ([60000], [60000]), [60000], {"fused_activation": ("ActivationLinear", {"alpha": 0.5, "beta": 0})}),
]  # fmt: skip


@pytest.mark.full(first=1)
@pytest.mark.parametrize(
    ("name", "dtype", "inputs", "expected", "attributes"), EXAMPLES, ids=lambda v: v if isinstance(v, str) else ""
)
def test_examples_of_the_contracts(
    name: str, dtype: str, inputs: Any, expected: Any, attributes: dict[str, Any], target: Target
) -> None:
    if "fused_activation" in attributes:
        kind, own = attributes["fused_activation"]
        attributes = {"fused_activation": getattr(tvmdml, kind).fused(**own)}
    actual = getattr(tvmdml, name)(*(np.array(x, dtype) for x in inputs), device=target.name, **attributes)
    assert_same_bits(actual, np.array(expected, actual.dtype), any_nan=True)
