"""Means and variances of slices: the walks that find them, and what they may be off."""

from __future__ import annotations

from typing import Any

import numpy as np

from tvmdml.kernels import tensorir_values as T
from tvmdml.kernels.reduction import SUM, Walk
from tvmdml.operators._accuracy import NumpyArray
from tvmdml.operators._reduction import additions, spacing


def mean_walks(of_mean: bool, epsilon: float | None) -> tuple[Walk, ...]:
    """The walks that find the mean; the mean of the squared differences from it, and one over the root of that and epsilon.

    Without an epsilon there is no second walk.
    """
    mean = Walk((SUM,), lambda x, *_: x, lambda total, *rest: total / rest[-1])

    def squared(x: Any, *rest: Any) -> Any:
        d = x - rest[-1] if of_mean else x
        return T.rounded(d * d)

    def inverse(total: Any, *rest: Any) -> Any:
        assert epsilon is not None
        variance = T.hold(total / rest[-1])
        return variance, T.like(variance, 1.0) / T.sqrt(variance + T.like(variance, epsilon))

    return (mean,) * of_mean + (Walk((SUM,), squared, inverse, finds=2),) * (epsilon is not None)


def mean_errors(x: NumpyArray, m: NumpyArray, v: NumpyArray, of_mean: bool, dtype: Any) -> tuple[NumpyArray, NumpyArray]:
    """What the mean and the variance of slices may be off."""
    n, e = x.shape[-1], spacing(dtype)
    size = mean(np.abs(np.where(np.isfinite(x), x, 0)))
    e_m = additions(n, dtype) * size + e * np.abs(m) if of_mean else np.zeros_like(m)
    return e_m, (additions(n, dtype) + 8 * e) * v + 2 * e_m**2


def normalized_error(
    x: NumpyArray,
    m: NumpyArray,
    v: NumpyArray,
    s: NumpyArray,
    b: NumpyArray,
    e_m: NumpyArray,
    e_v: NumpyArray,
    epsilon: float | None,
    e: float,
) -> NumpyArray:
    """What ``s * (x - m) / sqrt(v + epsilon) + b`` may be off; without an epsilon, ``s * (x - m) + b``."""
    if epsilon is None:
        return np.abs(s) * (e_m + e * np.abs(x - m)) + 2 * e * np.abs(b)
    w = v + epsilon
    error = np.abs(s) / np.sqrt(w) * e_m + np.abs(s * (x - m) / np.sqrt(w)) * (e_v / w + 12 * e) + 2 * e * np.abs(b)
    return np.where((e_v <= w / 4) | np.isnan(v), error, np.nan)


def mean(x: NumpyArray) -> NumpyArray:
    """The mean along the last axis: NaN of no elements, without a warning."""
    with np.errstate(all="ignore"):
        return x.sum(-1, keepdims=True) / x.shape[-1]


def anything_past_range(error: NumpyArray, x: NumpyArray, dtype: Any, squared: bool) -> NumpyArray:
    """Where a sum, or one of squares, may leave the range of the type that is computed in, results may be anything."""
    limits = np.finfo(np.float64 if np.dtype(dtype) == np.float64 else np.float32)
    top = np.max(np.abs(np.where(np.isfinite(x), x, 0)), axis=-1, keepdims=True, initial=0)
    n = max(x.shape[-1], 1)
    most = 2.0 ** ((limits.maxexp - 4) / 2) / np.sqrt(n) if squared else 2.0 ** (limits.maxexp - 2) / n
    return np.where(top >= most, np.nan, error)


def of_first(before: Any, inputs: int) -> Any:
    """A formula of the first input's element, among all inputs' and what was found."""
    return lambda *values: before(values[0], *values[inputs:])
