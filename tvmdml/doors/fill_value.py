"""``tvmdml.fill_value_constant`` and ``tvmdml.fill_value_sequence``."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from tvmdml.doors._made import door
from tvmdml.doors._sizes import hashable
from tvmdml.functions import AnyArray, Described, call, describes
from tvmdml.operators._contract import Operator
from tvmdml.operators.fill_value import FillValueConstant, FillValueSequence
from tvmdml.tensors import ArrayTensorDesc, TensorDataType

if TYPE_CHECKING:
    from tvmdml.typing import DType

__all__ = ["fill_value_constant", "fill_value_sequence"]


@door(FillValueConstant)
def fill_value_constant(
    sizes: Sequence[int],
    value: int | float,
    *,
    dtype: DType | None = None,
    out: AnyArray | None = None,
    device: str | None = None,
) -> AnyArray:
    """Make an array of one number (DML_OPERATOR_FILL_VALUE_CONSTANT).

    Args:
        sizes: the result's sizes: up to eight dimensions.
        value: the number; its type must have it.
        dtype: the result's type; float32 by default.
        out: an array for the result.
        device: where to run, such as ``"cpu"``, ``"cuda:0"`` or ``"vulkan:0"``; by default the CPU, or the device of ``out``.

    Returns:
        A NumPy array.
    """
    return call(_describe_constant, (), (_sizes("constant", sizes), dtype, value), out, device)[0]


@door(FillValueSequence)
def fill_value_sequence(
    sizes: Sequence[int],
    value_start: int | float,
    value_delta: int | float,
    *,
    dtype: DType | None = None,
    out: AnyArray | None = None,
    device: str | None = None,
) -> AnyArray:
    """Make an array of evenly spaced numbers (DML_OPERATOR_FILL_VALUE_SEQUENCE).

    The k-th element, in row-major order, is ``value_start + k * value_delta``. Integers wrap; the product and the sum of floats are
    rounded.

    Args:
        sizes: the result's sizes: up to eight dimensions.
        value_start: the first number; its type must have it.
        value_delta: the difference of two neighbours; its type must have it.
        dtype: the result's type; float32 by default.
        out: an array for the result.
        device: where to run, such as ``"cpu"``, ``"cuda:0"`` or ``"vulkan:0"``; by default the CPU, or the device of ``out``.

    Returns:
        A NumPy array.
    """
    attributes = (_sizes("sequence", sizes), dtype, value_start, value_delta)
    return call(_describe_sequence, (), attributes, out, device)[0]


def _sizes(name: str, sizes: Any) -> tuple[int, ...]:
    return hashable(sizes, f"tvmdml.fill_value_{name}: sizes")


def _described(cls: type[Operator], sizes: tuple[int, ...], dtype: Any, **numbers: Any) -> Described:
    kind = TensorDataType.of(np.float32 if dtype is None else dtype, cls.where("dtype"))
    result = ArrayTensorDesc(kind, sizes or (1,), zero_dimensional=not sizes)
    return Described(cls.of(output_tensor=result, **numbers), shapes=() if sizes else ((),))


@describes("tvmdml.fill_value_constant")
def _describe_constant(sizes: tuple[int, ...], dtype: Any, value: Any) -> Described:
    return _described(FillValueConstant, sizes, dtype, value=value)


@describes("tvmdml.fill_value_sequence")
def _describe_sequence(sizes: tuple[int, ...], dtype: Any, start: Any, delta: Any) -> Described:
    return _described(FillValueSequence, sizes, dtype, value_start=start, value_delta=delta)
