"""``tvmdml.quantize`` and ``tvmdml.dequantize``."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from tvmdml.doors._made import described, door
from tvmdml.enums import QuantizationType
from tvmdml.errors import InvalidArgument, message
from tvmdml.functions import AnyArray, Described, call, describes
from tvmdml.operators.quantization import Dequantize, Quantize
from tvmdml.tensors import ArrayTensorDesc, TensorDataType

if TYPE_CHECKING:
    from tvmdml.typing import DType

__all__ = ["dequantize", "quantize"]


@door(Quantize)
def quantize(
    input: AnyArray,  # noqa: A002
    quantization_parameters: Sequence[AnyArray],
    *,
    quantization_type: QuantizationType | str | None = None,
    output_dtype: DType | None = None,
    out: AnyArray | None = None,
    device: str | None = None,
) -> AnyArray:
    """Quantize elements with a scale, and perhaps a zero point, for each block of elements (DML_OPERATOR_QUANTIZE).

    The result is ``input / scale``, rounded, halves to even, plus the zero point, saturated. NaN becomes the zero point. Without a
    zero point it is 0 for int8, and 128 for uint8.

    Args:
        input: float16, float32, float64; a shape of up to 8 dimensions.
        quantization_parameters: a scale of the input's type, and perhaps a zero point of the result's; of the same shape. In a
            dimension of ``n`` elements with ``s`` scales, a block has ``ceil(n / s)`` elements.
        quantization_type: ``"scale"`` or ``"scale_zero_point"``; by default what the parameters are.
        output_dtype: ``"int8"`` or ``"uint8"``; by default the zero point's type, or uint8.
        out: an array for the result.

    Returns:
        An array of the kind of the inputs.
    """
    inputs = (input, *_parameters("quantize", quantization_parameters))
    return call(_describe_quantize, inputs, (quantization_type, output_dtype), out, device)[0]


@door(Dequantize)
def dequantize(
    input: AnyArray,  # noqa: A002
    quantization_parameters: Sequence[AnyArray],
    *,
    quantization_type: QuantizationType | str | None = None,
    out: AnyArray | None = None,
    device: str | None = None,
) -> AnyArray:
    """Numbers from quantized elements, with a scale, and perhaps a zero point, for each block (DML_OPERATOR_DEQUANTIZE).

    The result is ``(input - zero_point) * scale``. Without a zero point it is 0 for int8, and 128 for uint8.

    Args:
        input: int8 or uint8; a shape of up to 8 dimensions.
        quantization_parameters: a scale: float16, float32 or float64, and perhaps a zero point of the input's type; of the same
            shape. In a dimension of ``n`` elements with ``s`` scales, a block has ``ceil(n / s)`` elements.
        quantization_type: ``"scale"`` or ``"scale_zero_point"``; by default what the parameters are.
        out: an array for the result.

    Returns:
        An array of the kind of the inputs, of the scale's type.
    """
    inputs = (input, *_parameters("dequantize", quantization_parameters))
    return call(_describe_dequantize, inputs, (quantization_type,), out, device)[0]


def _parameters(name: str, given: Any) -> Sequence[AnyArray]:
    if not isinstance(given, (tuple, list)) or not 1 <= len(given) <= 2:
        shown = f"{len(given)} arrays" if isinstance(given, (tuple, list)) else type(given).__name__
        where = f"tvmdml.{name}: quantization_parameters"
        raise InvalidArgument(message(where, shown, "a list of a scale, and perhaps a zero point"))
    return given


def _kind(given: Any, parameters: Sequence[ArrayTensorDesc]) -> Any:
    usual = QuantizationType.SCALE if len(parameters) == 1 else QuantizationType.SCALE_ZERO_POINT
    return usual if given is None else given


@describes("tvmdml.quantize", "input", "quantization_parameters[0]", "quantization_parameters[1]")
def _describe_quantize(input: ArrayTensorDesc, *given: Any) -> Described:  # noqa: A002
    *parameters, kind, dtype = given
    wanted = {} if dtype is None else {"output_tensor": TensorDataType.of(dtype, Quantize.where("output_dtype"))}
    desc = Quantize.of(input, parameters, quantization_type=_kind(kind, parameters), **wanted)
    return described(desc, (input, *parameters))


@describes("tvmdml.dequantize", "input", "quantization_parameters[0]", "quantization_parameters[1]")
def _describe_dequantize(input: ArrayTensorDesc, *given: Any) -> Described:  # noqa: A002
    *parameters, kind = given
    desc = Dequantize.of(input, parameters, quantization_type=_kind(kind, parameters))
    return described(desc, (input, *parameters))
