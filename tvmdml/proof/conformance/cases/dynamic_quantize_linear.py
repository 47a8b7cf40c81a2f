"""The operator of ``operators/dynamic_quantize_linear.py``."""

from __future__ import annotations

from collections.abc import Callable, Iterator

from tvmdml.operators import Operator
from tvmdml.operators.dynamic_quantize_linear import DynamicQuantizeLinear
from tvmdml.proof.conformance.cases._common import Broken, Case, change, tensor
from tvmdml.proof.conformance.cases._reduction import cases
from tvmdml.tensors import TensorDataType
from tvmdml.tensors import TensorDesc as T

_BYTES = (TensorDataType.UINT8, TensorDataType.INT8)


def quantized(x: T, axes: tuple[int, ...] = (), way: int = 0, layout: str = "packed") -> DynamicQuantizeLinear:
    """To one of the two types."""
    ones = (1,) * x.rank
    return DynamicQuantizeLinear(
        input_tensor=x,
        output_tensor=tensor(_BYTES[way % 2], x.sizes, layout),
        output_scale_tensor=T("float32", ones),
        output_zero_point_tensor=T(_BYTES[way % 2], ones),
    )


DESCRIBED: dict[type[Operator], Callable[[T], Operator]] = {DynamicQuantizeLinear: quantized}

_GOOD = quantized(T("float32", (2, 3)))
_NAME = "DYNAMIC_QUANTIZE_LINEAR"

BROKEN: dict[str, Broken] = {
    f"{_NAME} to other sizes": Broken(
        change(_GOOD, output_tensor=T("uint8", (3, 2))), f"{_NAME} output_tensor.sizes", "(3, 2)", "(2, 3), as in input_tensor"
    ),
    f"{_NAME} to two types": Broken(
        change(_GOOD, output_zero_point_tensor=T("int8", (1, 1))),
        *(f"{_NAME} output_zero_point_tensor.data_type", "int8", "uint8, as in output_tensor"),
    ),
    f"{_NAME} with two scales": Broken(
        change(_GOOD, output_scale_tensor=T("float32", (2, 1))),
        *(f"{_NAME} output_scale_tensor.sizes", "(2, 1)", "(1, 1): 1 along the axes (0, 1)"),
    ),
}


def reference(cls: type[Operator]) -> Iterator[Case]:
    """Both types; ranges with and without zero, infinities and NaN."""
    types = (TensorDataType.FLOAT32, TensorDataType.FLOAT16)
    yield from cases(
        quantized, types, ("normal", "factors", "mixed", "special", "zeros", "constant"), lambda rank: tuple(range(rank))
    )
