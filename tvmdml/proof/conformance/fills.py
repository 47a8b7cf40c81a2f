"""The contents of a case's inputs."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

import numpy as np

from tvmdml.operators._contract import NumpyArray
from tvmdml.operators._trial import any_values, special_bits
from tvmdml.proof.bench import inputs
from tvmdml.tensors import TensorDataType

Sizes = tuple[int, ...]
Fill = Callable[[np.random.Generator, TensorDataType, Sizes], NumpyArray]


def _bits(rng: np.random.Generator, data_type: TensorDataType, sizes: Sizes) -> NumpyArray:
    """Random bits: all patterns are equally likely."""
    count = int(np.prod(sizes))
    return np.frombuffer(rng.bytes(count * data_type.itemsize), data_type.numpy).reshape(sizes)


def _every(rng: np.random.Generator, data_type: TensorDataType, sizes: Sizes) -> NumpyArray:
    """All bit patterns in ascending order, as many as there are elements."""
    count = int(np.prod(sizes))
    return np.arange(count).astype(f"u{data_type.itemsize}").view(data_type.numpy).reshape(sizes)


def _special(rng: np.random.Generator, data_type: TensorDataType, sizes: Sizes) -> NumpyArray:
    """A few difficult values, repeated: infinities, NaN, subnormals, limits."""
    return rng.choice(special_bits(data_type), sizes).view(data_type.numpy)


def _halves(rng: np.random.Generator, data_type: TensorDataType, sizes: Sizes) -> NumpyArray:
    """For floats: numbers halfway between two integers, their neighbours, and integers, of all magnitudes and both signs."""
    dtype = data_type.numpy
    info = np.finfo(dtype)  # type: ignore[type-var]
    powers = np.ldexp(dtype.type(1), np.arange(-2, info.nmant + 3)).astype(dtype)
    halves = np.concatenate([powers, powers + dtype.type(0.5), powers - dtype.type(0.5), np.arange(64, dtype=dtype) / 4])
    near = np.concatenate([halves, np.nextafter(halves, dtype.type(np.inf)), np.nextafter(halves, dtype.type(-np.inf))])
    return rng.choice(np.concatenate([near, -near]), sizes)


def _zeros(rng: np.random.Generator, data_type: TensorDataType, sizes: Sizes) -> NumpyArray:
    """For floats: zeros of both signs."""
    return rng.choice(np.array([0.0, -0.0]), sizes).astype(data_type.numpy)


def _all_nan(rng: np.random.Generator, data_type: TensorDataType, sizes: Sizes) -> NumpyArray:
    """For floats: NaN with several payloads and both signs. For integers: the largest."""
    dtype = data_type.numpy
    if not data_type.is_float:
        return np.full(sizes, np.iinfo(dtype).max, dtype)  # type: ignore[type-var]
    patterns = special_bits(data_type)
    return rng.choice(patterns[np.isnan(patterns.view(dtype))], sizes).view(dtype)


def _patterns(rng: np.random.Generator, data_type: TensorDataType, sizes: Sizes) -> NumpyArray:
    """Patterns of bits from all over the type in order: of 65,536, every float16, and every upper half of a float32."""
    count, bits = int(np.prod(sizes)), 8 * data_type.itemsize
    number = np.arange(count, dtype=np.uint64)
    step = max(1, (1 << bits) // count)
    found: NumpyArray = (number * np.uint64(step) + number * np.uint64(40503) % np.uint64(step)).astype(f"u{data_type.itemsize}")
    return found.view(data_type.numpy).reshape(sizes)


def _block(rng: np.random.Generator, data_type: TensorDataType, sizes: Sizes) -> NumpyArray:
    """Numbers of all kinds, but one part holds nothing except large values; for floats, half of the time NaN."""
    found = any_values(rng, data_type, sizes)
    first = sizes[-1] // 3
    largest = np.nan if data_type.is_float and rng.random() < 0.5 else _largest(data_type)
    found[..., first : first + sizes[-1] // 8 + 1] = largest
    return found


def _mostly_nan(rng: np.random.Generator, data_type: TensorDataType, sizes: Sizes) -> NumpyArray:
    """Nine of ten are NaN; for integers, the largest."""
    return np.where(rng.random(sizes) < 0.9, _all_nan(rng, data_type, sizes), any_values(rng, data_type, sizes))


def _factors(rng: np.random.Generator, data_type: TensorDataType, sizes: Sizes) -> NumpyArray:
    """For floats: numbers of both signs near 1, of which products stay in range. For integers: odd numbers, with full products."""
    if not data_type.is_float:
        return _bits(rng, data_type, sizes) | data_type.numpy.type(1)
    found: NumpyArray = np.exp2(rng.uniform(-0.25, 0.25, sizes)) * rng.choice(np.array([-1.0, 1.0]), sizes)
    return found.astype(data_type.numpy)


def _largest(data_type: TensorDataType) -> Any:
    return np.inf if data_type.is_float else np.iinfo(data_type.numpy).max  # type: ignore[type-var]


def _measured(fill: inputs.Fill, rng: np.random.Generator, data_type: TensorDataType, sizes: Sizes) -> NumpyArray:
    return fill(rng, sizes, data_type.numpy)


FILLS: dict[str, Fill] = {
    "mixed": any_values,
    "bits": _bits,
    "every": _every,
    "special": _special,
    "halves": _halves,
    "zeros": _zeros,
    "all NaN": _all_nan,
    "patterns": _patterns,
    "block": _block,
    "mostly NaN": _mostly_nan,
    "factors": _factors,
    **{
        name: functools.partial(_measured, inputs.FILLS[name])
        for name in ("normal", "weights", "ascending", "descending", "constant", *inputs.DENSITIES)
    },
}
"""By their names in reports."""
