"""Fused activations: applied to a value before it is rounded to the output's type."""

from __future__ import annotations

from typing import Any

import numpy as np

from tvmdml.kernels import tensorir_values as T
from tvmdml.kernels.launched import with_fields
from tvmdml.operators._accuracy import NumpyArray
from tvmdml.operators._contract import Operator
from tvmdml.operators._pointwise import Pointwise
from tvmdml.tensors import TensorDesc


def pointwise(activation: Operator, dtype: str = "float32") -> Pointwise:
    """The activation as a pointwise operator on values of a type, as all that are fused into values are."""
    assert isinstance(activation, Pointwise), f"{activation.NAME} is no activation"
    return with_fields(activation, input_tensor=TensorDesc(dtype, (1,)))


def activated(activation: Operator | None, value: Any) -> Any:
    """The activation of a value, in TensorIR; the value itself without an activation."""
    return value if activation is None else pointwise(activation, T.scalar_type(value)).of_value(value)


def activated_near(activation: Operator | None, values: NumpyArray, error: NumpyArray, dtype: Any) -> tuple[NumpyArray, NumpyArray]:
    """The same of values in NumPy that may be off by an error, and what the results may be off."""
    if activation is None:
        return values, error
    single = np.float64 if np.dtype(dtype) == np.float64 else np.float32
    own, wide = pointwise(activation, np.dtype(single).name), values.dtype

    def compute(x: NumpyArray) -> NumpyArray:
        return np.asarray(own.numpy(own.scaled_numpy(x))).astype(wide)

    found = compute(values)
    with np.errstate(all="ignore"):
        reach = [np.abs(compute((values + way * error).astype(wide)) - found) for way in (-1, 1)]
        spread = np.fmax(*reach)
        steps = (own.steps() + 2) * np.finfo(single).eps
        size = np.where(np.isfinite(found), np.abs(found), 0)
        extra = np.broadcast_to(own.error(values.astype(single)), found.shape)
        return found, np.where(np.isnan(error), np.nan, np.where(np.isnan(spread), 0, spread) + steps * size + extra)
