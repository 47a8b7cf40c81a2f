"""``tvmdml.cast``."""

from __future__ import annotations

import sys
from contextlib import suppress
from typing import TYPE_CHECKING, Any

import numpy as np

from tvmdml.doors._made import described, door
from tvmdml.functions import AnyArray, Described, call, describes
from tvmdml.operators.cast import Cast
from tvmdml.operators.element_wise_logical import ElementWiseLogicalEquals
from tvmdml.tensors import ArrayTensorDesc, TensorDataType, arrays
from tvmdml.tensors.arrays.numbers import Takes

if TYPE_CHECKING:
    from tvmdml.typing import DType

__all__ = ["cast"]


@door(Cast)
def cast(
    input: AnyArray,  # noqa: A002
    dtype: DType,
    *,
    out: AnyArray | None = None,
    device: str | None = None,
) -> AnyArray:
    """Convert elements to another data type (DML_OPERATOR_CAST).

    A float becomes an integer toward zero, saturating, and 0 for NaN. An integer becomes another one by its low bits. Everything
    else is rounded once, halves to even. Of the same type it is a copy, bit by bit.

    A number becomes a bool by not being 0; NaN is true. DirectML has no such type: it is two comparisons with 0
    (ELEMENT_WISE_LOGICAL_EQUALS).

    Args:
        input: any of the eleven data types, or bool; any shape of up to eight dimensions.
        dtype: the type of the result, such as ``"int8"``, ``np.float16`` or ``bool``.
        out: an array for the result.
        device: where to run, such as ``"cpu"``, ``"cuda:0"`` or ``"vulkan:0"``; by default the device of ``input``.
    """
    if _is_bool(dtype):
        return _to_bool(input, out, device)
    return call(_describe, (input,), (dtype,), out, device, boolean=True)[0]


@describes("tvmdml.cast")
def _describe(input: ArrayTensorDesc, dtype: Any) -> Described:  # noqa: A002
    return described(Cast.of(input, output_tensor=TensorDataType.of(dtype, Cast.where("dtype"))), (input,))


# -- bool ---------------------------------------------------------------------------------------------------------


@describes("tvmdml.cast")
def _describe_zero(input: ArrayTensorDesc, zero: ArrayTensorDesc) -> Described:  # noqa: A002
    return described(ElementWiseLogicalEquals.of(input, zero), (input, zero))


_describe_zero.scalars = (Takes((1,)), Takes((0,)))  # type: ignore[attr-defined] # the number takes the type of the array


def _is_bool(dtype: Any) -> bool:
    if str(dtype) == "torch.bool":
        return True
    with suppress(TypeError):
        return dtype is not None and np.dtype(dtype) == np.bool_
    return False


def _to_bool(given: Any, out: Any, device: Any) -> Any:
    (is_zero,) = call(_describe_zero, (given, 0), (), None, device, boolean=True)
    place = None if out is None else _seen_as(out, "uint8")
    (found,) = call(_describe_zero, (is_zero, 0), (), place, device, boolean=True)
    return _seen_as(found, "bool") if out is None else out


def _seen_as(array: Any, dtype: str) -> Any:
    """The bytes of an array of bool or uint8 as the other type; other arrays as they are, which are refused."""
    if getattr(array, "dtype", None) is None or str(array.dtype).removeprefix("torch.") not in ("bool", "uint8"):
        return array
    return array.view(getattr(sys.modules["torch"], dtype) if arrays.is_torch(array) else dtype)
