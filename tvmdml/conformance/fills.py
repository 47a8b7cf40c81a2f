"""The contents of a case's inputs."""

from __future__ import annotations

import functools
from collections.abc import Callable

import numpy as np

from tvmdml.bench import inputs
from tvmdml.operators._contract import Array
from tvmdml.tensors import TensorDataType
from tvmdml.trial import any_values, special_bits

Sizes = tuple[int, ...]
Fill = Callable[[np.random.Generator, TensorDataType, Sizes], Array]


def _bits(rng: np.random.Generator, data_type: TensorDataType, sizes: Sizes) -> Array:
    """Random bits: all patterns are equally likely."""
    count = int(np.prod(sizes))
    found: Array = np.frombuffer(rng.bytes(count * data_type.itemsize), data_type.numpy).reshape(sizes)
    return found


def _special(rng: np.random.Generator, data_type: TensorDataType, sizes: Sizes) -> Array:
    """A few difficult values, repeated: infinities, NaN, subnormals, limits."""
    found: Array = rng.choice(special_bits(data_type), sizes).view(data_type.numpy)
    return found


def _halves(rng: np.random.Generator, data_type: TensorDataType, sizes: Sizes) -> Array:
    """For floats: numbers halfway between two integers, their neighbours, and integers, of all magnitudes and both signs."""
    dtype = data_type.numpy
    info = np.finfo(dtype)  # type: ignore[type-var]
    powers = np.ldexp(dtype.type(1), np.arange(-2, info.nmant + 3)).astype(dtype)
    halves = np.concatenate([powers, powers + dtype.type(0.5), powers - dtype.type(0.5), np.arange(64, dtype=dtype) / 4])
    near = np.concatenate([halves, np.nextafter(halves, dtype.type(np.inf)), np.nextafter(halves, dtype.type(-np.inf))])
    found: Array = rng.choice(np.concatenate([near, -near]), sizes)
    return found


def _zeros(rng: np.random.Generator, data_type: TensorDataType, sizes: Sizes) -> Array:
    """For floats: zeros of both signs."""
    found: Array = rng.choice(np.array([0.0, -0.0]), sizes).astype(data_type.numpy)
    return found


def _all_nan(rng: np.random.Generator, data_type: TensorDataType, sizes: Sizes) -> Array:
    """For floats: NaN with several payloads and both signs. For integers: the largest."""
    dtype = data_type.numpy
    if not data_type.is_float:
        return np.full(sizes, np.iinfo(dtype).max, dtype)  # type: ignore[type-var]
    patterns = special_bits(data_type)
    found: Array = rng.choice(patterns[np.isnan(patterns.view(dtype))], sizes).view(dtype)
    return found


def _measured(fill: inputs.Fill, rng: np.random.Generator, data_type: TensorDataType, sizes: Sizes) -> Array:
    return fill(rng, sizes, data_type.numpy)


FILLS: dict[str, Fill] = {
    "mixed": any_values,
    "bits": _bits,
    "special": _special,
    "halves": _halves,
    "zeros": _zeros,
    "all NaN": _all_nan,
    **{
        name: functools.partial(_measured, inputs.FILLS[name])
        for name in ("normal", "ascending", "descending", "constant", *inputs.DENSITIES)
    },
}
"""By their names in reports."""
