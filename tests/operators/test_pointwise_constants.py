"""Integers and constants: what compilers know of an attribute, and assume of arithmetic that overflows, changes no result."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from support import Array, assert_same_bits

import tvmdml
from tvmdml.kernels.tensorir_values import saturated
from tvmdml.targets import Target

SIGNED = ["int8", "int16", "int32", "int64"]


def _numbers(dtype: str) -> Array:
    limits = np.iinfo(dtype)
    edges = [0, 1, 5, 100, limits.max, limits.max - 1, limits.min, limits.max // 2, limits.max // 2 + 1, limits.max // 3]
    return np.tile(np.array(edges, dtype), 4)


@pytest.mark.full
@pytest.mark.parametrize("dtype", SIGNED)
def test_sequences_of_negative_numbers(dtype: str, target: Target) -> None:
    short = ((0, 0, 3), (-1, 1, 1), (0, -1, 1), (7, -1, 7), (-5, -2, 5))
    for start, delta, count in ((-1, 1, 70), (-3, -2, 70), (13, -1, 21), (-4, 0, 21), *short):
        found = tvmdml.fill_value_sequence((count,), start, delta, dtype=dtype, device=target.name)
        assert_same_bits(found, (start + np.arange(count) * delta).astype(dtype))


@pytest.mark.full
@pytest.mark.parametrize("dtype", SIGNED)
def test_a_gradient_passes_between_negative_limits(dtype: str, target: Target) -> None:
    x = np.tile(np.array([np.iinfo(dtype).min, -100, -7, -2, -1, 0, 5, np.iinfo(dtype).max], dtype), 4)
    for low, high in ((-(2.0**31), -1.0), (-100.0, 0.0), (-3.0, 3.0)):
        found = tvmdml.clip_grad(x, x, min=low, max=high, device=target.name)
        a, b = (saturated(limit, dtype) for limit in (low, high))
        assert_same_bits(found, np.where((x <= a) | (x >= b), np.array(0, dtype), x))


@pytest.mark.full
@pytest.mark.parametrize("dtype", ["int32", "int64", "uint32", "uint64"])
def test_a_scale_and_a_bias_wrap_before_anything_is_compared(dtype: str, target: Target, draw: Callable[..., list[Any]]) -> None:
    x = _numbers(dtype)
    functions: dict[str, tuple[Any, dict[str, float]]] = {
        "abs": (np.abs, {}),
        "threshold": (lambda y: np.maximum(y, 5), {"min": 5.0}),
        "clip": (lambda y: np.minimum(np.maximum(y, 1), saturated(2.0**62, dtype)), {"min": 1.0, "max": 2.0**62}),
    }
    pairs = ((3.0, -(2.0**63)), (3.0, 2.0**63), (1.0, 2.0**31), (2.0**31, 7.0), (0.0, 0.0), (0.5, -3.0), (-1.0, 2.0))
    for scale, bias in draw(pairs, 3):
        with np.errstate(over="ignore"):
            y = x * x.dtype.type(saturated(scale, dtype)) + x.dtype.type(saturated(bias, dtype))
        for name, (expected, attributes) in functions.items():
            found = getattr(tvmdml, name)(x, scale_bias=(scale, bias), device=target.name, **attributes)
            with np.errstate(over="ignore"):
                assert_same_bits(found, expected(y).astype(dtype))


@pytest.mark.full
@pytest.mark.parametrize("base", ["int32", "int64", "uint32", "uint64"])
def test_powers_of_a_bias_alone(base: str, target: Target) -> None:
    x, exponents = np.arange(9).astype(base), np.arange(9).astype(np.uint8)
    for bias in (0, 3, -1, -3):
        kept = max(bias, 0) if base.startswith("u") else bias
        found = tvmdml.pow(x, exponents, scale_bias=(0.0, bias), device=target.name)
        assert_same_bits(found, np.array([kept ** int(n) for n in exponents]).astype(base))
        assert_same_bits(tvmdml.pow(x, 3, scale_bias=(0.0, bias), device=target.name), np.full(9, kept**3).astype(base))


@pytest.mark.full
@pytest.mark.parametrize("dtype", ["int32", "uint32", "uint64"])
def test_shrinking_wraps(dtype: str, target: Target) -> None:
    x, bits = _numbers(dtype), np.iinfo(dtype).bits
    for bias in (-1.0, 2.0**31, -(2.0**31)):
        shrunk = [(int(n) - int(bias) if n > 4 else int(n) + int(bias) if n < -4 else 0) % 2**bits for n in x.tolist()]
        expected = np.array(shrunk, np.uint64).astype(dtype)
        assert_same_bits(tvmdml.activation_shrink(x, bias=bias, threshold=4.0, device=target.name), expected)
