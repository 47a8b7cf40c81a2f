"""DML_OPERATOR_ELEMENT_WISE_ROUND: rounds each element to an integral value."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from types import MappingProxyType
from typing import TYPE_CHECKING, Any

import numpy as np

from tvmdml import tensorir as T
from tvmdml.enums import RoundingMode
from tvmdml.functions import AnyArray, Described, call, describes
from tvmdml.layout import collapse
from tvmdml.operators._contract import Array, Input, Operator, Output
from tvmdml.operators._support import support
from tvmdml.tensors import ArrayTensorDesc, TensorDataType

if TYPE_CHECKING:
    from tvm.tirx import PrimFunc

__all__ = ["ElementWiseRound", "round"]


class ElementWiseRound(Operator):
    """Rounds each element to an integral value (``DML_ELEMENT_WISE_ROUND_OPERATOR_DESC``).

    Infinities and NaN are unchanged, the sign of zero is kept, and the result is exact: 0.49999997 rounds to 0 in every mode.
    The input and output have the same type and sizes; strides may differ. It can run in place.
    """

    NAME = "ELEMENT_WISE_ROUND"
    IN_PLACE = True
    ANY_NAN = True
    SUPPORT = support("2.1 F r4 · 3.0 r8 · ext D")

    input_tensor: Input
    output_tensor: Output
    rounding_mode: RoundingMode

    def check(self) -> None:
        """The input and output have the same type and sizes."""
        self.require_same("data_type", "output_tensor", "input_tensor")
        self.require_same("sizes", "output_tensor", "input_tensor")

    def shape_class(self) -> dict[str, int | str]:
        """Includes the mode, because each mode uses different instructions."""
        return {
            "elements": self.output_tensor.element_count,
            "rounding_mode": self.rounding_mode.name.lower(),
            "layout": self.layout(),
        }

    def layout(self) -> str:
        """All elements are treated alike, so tensors that are transposed in the same way count as packed."""
        _, steps = collapse(self.output_tensor.sizes, self.input_tensor.layout, self.output_tensor.layout, reorder=True)
        return "packed" if set(steps) <= {(), (1,)} else "strided"

    def computation(self, each: T.Each, in_place: bool = False) -> PrimFunc:
        """One item for each element."""
        source, result = self.input_tensor, self.output_tensor
        with T.function() as f:
            tensors = f.tensors(self, in_place)
            with each(result.element_count) as element:
                at = T.unravel(element, result.sizes)
                value = tensors["input_tensor"][T.dot(at, source.layout)]
                rounded = rounding(self.rounding_mode, value, source.data_type)
                T.store(tensors["output_tensor"], T.dot(at, result.layout), rounded)
        return f.result()

    def reference(self, *inputs: Array | None) -> tuple[Array, ...]:
        """The operator in NumPy."""
        (x,) = inputs
        assert x is not None
        if self.rounding_mode is RoundingMode.HALVES_TO_NEAREST_EVEN:
            return (np.rint(x),)
        whole = np.trunc(x)
        if self.rounding_mode is RoundingMode.TOWARD_INFINITY:
            with np.errstate(invalid="ignore"):
                away = np.abs(x - whole) >= 0.5  # exact: the fraction of a float is a float
            whole = np.copysign(np.where(away, whole + np.copysign(x.dtype.type(1), x), whole), x)
        return (whole,)


# The bits of the largest float below one half, by type. Adding it and truncating rounds halves away from zero exactly; adding one
# half itself would round 0.49999997 to 1. Float16 is rounded as float32, which can represent every float16.
_BELOW_HALF = {"float32": 0x3EFFFFFF, "float64": 0x3FDFFFFFFFFFFFFF}


def rounding(
    mode: RoundingMode,
    value: Any,
    data_type: TensorDataType,
    own: Mapping[RoundingMode, Callable[[Any], Any]] = MappingProxyType({}),
) -> Any:
    """The rounded value, as a TensorIR expression of the same type, scalar or vector.

    Args:
        mode: the rounding mode.
        value: float16, float32 or float64.
        data_type: the value's data type.
        own: a schedule's own expressions for float32 and float64, by mode; they replace those here.
    """
    lanes = T.lanes(value)
    of_lanes = f"x{lanes}" if lanes > 1 else ""
    narrow = data_type is TensorDataType.FLOAT16
    wide = T.cast(value, "float32" + of_lanes) if narrow else value
    if mode in own:
        result = own[mode](wide)
    elif mode is RoundingMode.HALVES_TO_NEAREST_EVEN:
        result = T.nearbyint(wide)
    elif mode is RoundingMode.TOWARD_ZERO:
        result = T.trunc(wide)
    else:
        dtype = "float32" if narrow else data_type.tvm
        bits = "int" + dtype[5:]
        sign = T.reinterpret(bits + of_lanes, wide) & T.const(np.iinfo(bits).min, bits)
        result = T.trunc(wide + T.reinterpret(dtype + of_lanes, sign | T.const(_BELOW_HALF[dtype], bits)))
    return T.cast(result, "float16" + of_lanes) if narrow else result


def round(  # noqa: A001 - DirectMLX's name
    input: AnyArray,  # noqa: A002
    *,
    rounding_mode: RoundingMode | str = RoundingMode.HALVES_TO_NEAREST_EVEN,
    out: AnyArray | None = None,
    device: str | None = None,
) -> AnyArray:
    """Round each element to an integral value (DML_OPERATOR_ELEMENT_WISE_ROUND).

    Args:
        input: float16, float32 or float64; any shape of up to eight dimensions.
        rounding_mode: ``"halves_to_nearest_even"``, ``"toward_zero"``, or ``"toward_infinity"``: halves away from zero.
        out: an array for the result; may be ``input`` itself.
        device: where to run, such as ``"cpu"``, ``"cuda:0"`` or ``"vulkan:0"``; by default the device of ``input``.

    Returns:
        An array of the input's kind, type and shape.

    Raises:
        InvalidArgument, Unsupported: the mode, type or shape is not supported.
    """
    return call(_describe, (input,), (rounding_mode,), out, device)[0]


@describes("tvmdml.round")
def _describe(input: ArrayTensorDesc, rounding_mode: RoundingMode | str) -> Described:  # noqa: A002
    output = input.with_sizes(input.sizes)
    desc = ElementWiseRound(input_tensor=input, output_tensor=output, rounding_mode=rounding_mode)  # type: ignore[arg-type]
    return Described(desc, shapes=((),) if input.zero_dimensional else ())
