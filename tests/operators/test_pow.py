"""Powers of integers, and Python's word for them, whose integers do not overflow; powers of floats, and NumPy's word for them."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from support import Array, assert_same_bits, random_bits, reference, run, seeded, special_values, with_subnormals

import tvmdml
from tvmdml import InvalidArgument, TensorDataType, TensorDesc, TvmdmlError, targets
from tvmdml.operators._accuracy import as_array
from tvmdml.targets import Target

INTEGERS = [one for one in TensorDataType if not one.is_float and not one.is_nibble]
SOME = [("int8", "int64"), ("uint8", "uint8"), ("int32", "int32"), ("uint32", "int8"), ("int64", "uint64")]


def pythons(x: Array, exponents: Any) -> Array:
    """The true values: cut toward zero, and then modulo 2 to the width of the type."""
    modulus = 1 << 8 * x.itemsize

    def one(base: int, exponent: int) -> int:
        if exponent >= 0:
            return pow(base, exponent, modulus)
        return (base if exponent % 2 else 1) % modulus if base in (1, -1) else 0

    found = [one(base, exponent) for base, exponent in zip(x.tolist(), exponents, strict=True)]
    return np.array(found, f"u{x.itemsize}").view(x.dtype)


def values(data_type: TensorDataType) -> Array:
    small = np.array([0, 1, 2, 3, 5, 7, 8, 16, 31, 32, 33, 63, 64, 65], data_type.numpy)
    return np.unique(np.concatenate([special_values(data_type), small, -small]))


def pairs(base: TensorDataType, exponent: TensorDataType) -> tuple[Array, Array]:
    x, y = (np.ascontiguousarray(each).reshape(-1) for each in np.meshgrid(values(base), values(exponent)))
    more = [random_bits(seeded(base, exponent), one, (300,)) for one in (base, exponent)]
    return np.concatenate([x, more[0]]), np.concatenate([y, more[1]])


@pytest.mark.full(first=1)
@pytest.mark.some(6)
@pytest.mark.parametrize("base", INTEGERS, ids=str)
def test_powers_are_pythons(base: TensorDataType, target: Target, draw: Callable[..., list[Any]]) -> None:
    for exponent in draw(INTEGERS, 3) if target.kind == "cpu" else INTEGERS:
        if target.kind == "cpu" or (base.tvm, exponent.tvm) in SOME:
            x, y = pairs(base, exponent)
            assert_same_bits(tvmdml.pow(x, y, device=target.name), pythons(x, y.tolist()))


@pytest.mark.full
@pytest.mark.some(6)
@pytest.mark.parametrize("base", INTEGERS, ids=str)
def test_constant_powers_are_pythons(base: TensorDataType, target: Target, draw: Callable[..., list[Any]]) -> None:
    x = np.concatenate([values(base), random_bits(seeded(base), base, (300,))])
    for exponent in draw((0, 1, 2, 7, 65, -1, -2, 2.0**31 + 256, 2.0**63 + 2.0**40, 1e30, -1e30), 4):
        expected = pythons(x, [int(np.float32(exponent))] * x.size)
        assert_same_bits(tvmdml.pow(x, exponent, device=target.name), expected)
        cls, single = tvmdml.ElementWiseConstantPow, TensorDesc(base, x.shape)
        assert_same_bits(cls.of(single, exponent=exponent).reference(x)[0], expected)  # type: ignore[arg-type]


@pytest.mark.full
def test_powers_of_a_scaled_input(target: Target) -> None:
    x = np.arange(-4, 5, dtype=np.int16)
    expected = (x * 2 - 3).astype(np.int16)
    assert_same_bits(tvmdml.pow(x, 3, scale_bias=[2, -3], device=target.name), expected**3)
    assert_same_bits(tvmdml.pow(x, np.full(9, 2, np.uint8), scale_bias=(2, -3), device=target.name), expected**2)


@pytest.mark.full(first=1)
def test_inputs_are_broadcast_and_the_result_may_take_the_place_of_the_first(target: Target) -> None:
    x, y = np.arange(6, dtype=np.int32).reshape(2, 3), np.array([0, 1, 2], np.uint8)
    assert tvmdml.pow(x, y, device=target.name).tolist() == [[1, 1, 4], [1, 4, 25]]
    assert tvmdml.pow(np.int32(3), np.int64(-1)).shape == ()
    tvmdml.pow(x, y, out=x, device=target.name)
    assert x.tolist() == [[1, 1, 4], [1, 4, 25]]


FLOATS = ("float32", "float16", "float64")


def float_pairs(dtype: str, count: int) -> tuple[Array, Array]:
    """All pairs of special values; bit patterns; powers of all sizes; numbers near 1; negative numbers to integral powers."""
    info, rng, data_type = np.finfo(dtype), seeded("powers", dtype), TensorDataType.of(dtype, "")
    more = np.array([2, 3, -3, 0.5, -0.5, 1.5, -2.5, 10, 2.0**info.nmant + 1, -(2.0 ** (info.nmant + 1)) + 1], dtype)
    special = np.unique(np.concatenate([special_values(data_type), more]))
    special = np.concatenate([special, np.array([-0.0, np.nan], dtype)])
    logs = rng.uniform(info.minexp, info.maxexp, (2, count))
    with np.errstate(all="ignore"):
        near = np.array(
            [np.exp2(logs[0] / info.maxexp * 3), 1 + logs[1] / info.maxexp * 2.0 ** rng.uniform(-info.nmant, -1, count)]
        )
        near = np.abs(near.astype(dtype)).astype(np.float64)
        y = [np.broadcast_to(special, (special.size, special.size)).ravel(), random_bits(rng, data_type, (count,))]
        y += [(row / np.log2(one)).astype(dtype) for row, one in zip(logs, near, strict=True)]
        y += [rng.integers(-60, 60, count).astype(dtype)]
    x = [special.repeat(special.size), random_bits(rng, data_type, (count,)), *near.astype(dtype), -near[0].astype(dtype)]
    return np.concatenate(x), np.concatenate(y)


@pytest.mark.full(first=1)
@pytest.mark.parametrize("dtype", FLOATS)
def test_powers_of_floats(dtype: str, target: Target) -> None:
    """Within the bound; zeros, infinities and NaN are NumPy's, which are C's; and the processor's bits."""
    if dtype == "float64" and target.kind != "cpu":
        return
    with_subnormals(target, [dtype])
    x, y = float_pairs(dtype, 1 << (14 if target.kind == "cpu" else 10))
    desc = tvmdml.ElementWisePow.of(*2 * [TensorDesc(dtype, x.shape)])  # type: ignore[arg-type]
    (actual,), expected = run(desc, target, x, y), reference(desc, x, y)
    assert desc.mismatch((actual,), expected) == ""
    wanted = as_array(expected[0])
    plain = (wanted == 0) | np.isinf(wanted)
    assert np.array_equal(np.signbit(actual[plain]), np.signbit(wanted[plain]))
    assert_same_bits(np.nan_to_num(actual), np.nan_to_num(run(desc, targets.resolve("cpu:x86-64"), x, y)[0]))


EXPONENTS = (0.0, -0.0, 1.0, 2.0, 3.0, -1.0, 0.5, -0.5, 2.5, -3.0, 1e30, np.inf, -np.inf, np.nan)


@pytest.mark.full(first=1)
@pytest.mark.parametrize("dtype", FLOATS)
def test_constant_powers_of_floats(dtype: str, target: Target) -> None:
    if dtype == "float64" and target.kind != "cpu":
        return
    with_subnormals(target, [dtype])
    x = np.concatenate(
        [special_values(TensorDataType.of(dtype, "")), random_bits(seeded(dtype), TensorDataType.of(dtype, ""), (500,))]
    )
    for exponent in EXPONENTS:
        desc = tvmdml.ElementWiseConstantPow.of(TensorDesc(dtype, x.shape), exponent=exponent)  # type: ignore[arg-type]
        assert desc.mismatch(run(desc, target, x), reference(desc, x)) == "", exponent


@pytest.mark.full
@pytest.mark.some(6)
@pytest.mark.parametrize("base", INTEGERS, ids=str)
def test_integers_to_powers_of_floats(base: TensorDataType, target: Target) -> None:
    """Integral ones are exact, others those of float32, cut toward zero."""
    if target.kind != "cpu" and base.tvm not in ("int8", "uint32", "int64"):
        return
    for dtype in FLOATS if target.kind == "cpu" else with_subnormals(target, ["float32"]):
        x, y = pairs(base, TensorDataType.of(dtype, ""))
        small = seeded(base, dtype).uniform(-4, 4, 400)
        x = np.concatenate([x, *2 * [np.resize(values(base), 400)]])
        y = np.concatenate([y, small.astype(dtype), small.round().astype(dtype)])
        desc = tvmdml.ElementWisePow.of(TensorDesc(base, x.shape), TensorDesc(dtype, y.shape))  # type: ignore[arg-type]
        actual = run(desc, target, x, y)
        assert desc.mismatch(actual, reference(desc, x, y)) == ""
        whole = np.isfinite(y) & (np.rint(np.nan_to_num(y)) == y)
        assert_same_bits(actual[0][whole], pythons(x[whole], [int(one) for one in y[whole]]))
    for exponent in (0.5, np.nan, np.inf):
        assert tvmdml.pow(np.arange(5, dtype=base.numpy), exponent, device=target.name).shape == (5,)


WRONG: list[tuple[Any, Any, type[TvmdmlError], str]] = [
    (np.ones(3, np.int32), True, InvalidArgument, "exponent: given True; allowed: a number"),
    (np.ones(3, np.int32), np.ones(2, np.int32), InvalidArgument, "exponent"),
]


@pytest.mark.parametrize(("x", "exponent", "error", "said"), WRONG, ids=lambda value: value if isinstance(value, str) else "")
def test_what_is_refused_is_named(x: Any, exponent: Any, error: type[TvmdmlError], said: str) -> None:
    with pytest.raises(error, match=said):
        tvmdml.pow(x, exponent)
