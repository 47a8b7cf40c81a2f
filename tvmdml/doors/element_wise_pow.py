"""``tvmdml.pow``."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from tvmdml.doors._made import as_tuple, described, door
from tvmdml.functions import AnyArray, Described, Operand, call, describes
from tvmdml.operators.element_wise_pow import ElementWiseConstantPow, ElementWisePow
from tvmdml.tensors import ArrayTensorDesc

__all__ = ["pow"]


@door(ElementWisePow)
def pow(  # noqa: A001
    input: AnyArray,  # noqa: A002
    exponent: Operand,
    *,
    scale_bias: Sequence[float] | None = None,
    out: AnyArray | None = None,
    device: str | None = None,
) -> AnyArray:
    """Powers (DML_OPERATOR_ELEMENT_WISE_POW; ELEMENT_WISE_CONSTANT_POW for a number).

    Powers of floats are as in C, with the exponent in float32, or in float64 for float64. Integral powers of integers wrap. Of a
    negative exponent it is the true value cut toward zero: 0 unless the input is 1 or -1. 0 to the power of 0 is 1, and 0 to a
    negative one is 0. Other powers of integers are computed in float32, and then cut toward zero. Inputs are broadcast by NumPy's
    rules.

    Args:
        input: float16 to float64, int8 to int64, uint8 to uint64; a shape of up to 8 dimensions.
        exponent: an array of one of these types, which may be another one, or a number in single precision.
        scale_bias: ``(scale, bias)``: the input is multiplied by the one, and the other is added; none by default.
        out: an array for the result.

    Returns:
        An array of the kind of the inputs, of the type of ``input``.
    """
    scaled = as_tuple(scale_bias)
    if isinstance(exponent, (int, float, np.number)):
        return call(_describe_constant, (input,), (exponent, scaled), out, device)[0]
    return call(_describe, (input, exponent), (scaled,), out, device)[0]


@describes("tvmdml.pow", "input", "exponent")
def _describe(input: ArrayTensorDesc, exponent: ArrayTensorDesc, scale_bias: Any) -> Described:  # noqa: A002
    return described(ElementWisePow.of(input, exponent, scale_bias=scale_bias), (input, exponent))


@describes("tvmdml.pow")
def _describe_constant(input: ArrayTensorDesc, exponent: Any, scale_bias: Any) -> Described:  # noqa: A002
    return described(ElementWiseConstantPow.of(input, exponent=exponent, scale_bias=scale_bias), (input,))
