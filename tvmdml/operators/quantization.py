"""Quantisation: floats as integers of few bits, with a scale and a zero point, and back."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

from tvmdml.enums import FeatureLevel, QuantizationType
from tvmdml.kernels import tensorir_values as T
from tvmdml.kernels.quantization import dequantized, limits, quantized
from tvmdml.operators._contract import Input, NumpyArray, Operator, OptionalInput, Output, Role, defaults
from tvmdml.operators._inference import dimension
from tvmdml.operators._onnx import NotConvertible, OnnxNode
from tvmdml.operators._pointwise import Pointwise
from tvmdml.operators._pointwise_blocks import Blocks
from tvmdml.operators._support import support
from tvmdml.tensors import ArrayTensorDesc, TensorDataType, TensorDesc

# -- The formulas in NumPy ----------------------------------------------------------------------------------------


def quantized_numpy(x: NumpyArray, scale: NumpyArray, zero_point: NumpyArray | None, data_type: TensorDataType) -> NumpyArray:
    """``x / scale``, rounded, halves to even, 0 for NaN; plus the zero point, saturated to the type."""
    rounded = np.nan_to_num(np.rint(x / scale), nan=0, posinf=1e9, neginf=-1e9)
    whole = np.clip(rounded, -1e9, 1e9).astype(np.int64) + (0 if zero_point is None else zero_point.astype(np.int64))
    return np.clip(whole, *limits(data_type)).astype(data_type.unpacked.numpy)


def dequantized_numpy(x: NumpyArray, scale: NumpyArray, zero_point: NumpyArray | None = None) -> NumpyArray:
    """``(x - zero_point) * scale``."""
    difference = x.astype(np.int64) - (0 if zero_point is None else zero_point.astype(np.int64))
    return difference.astype(scale.dtype) * scale


# -- A scale and a zero point for each element, repeated by strides of 0 ------------------------------------------


class _Linear(Pointwise):
    """Base class of both."""

    input_tensor: Input
    scale_tensor: Input
    zero_point_tensor: OptionalInput = None
    output_tensor: Output

    def check_level(self, level: FeatureLevel) -> None:
        given = self.zero_point_tensor is not None or level >= FeatureLevel.of("6.2")
        self.require(given, "zero_point_tensor", "None", f"a TensorDesc, at feature level {level}", "It is optional from 6.2.")


class ElementWiseQuantizeLinear(_Linear):
    """Quantize elements with a scale and a zero point (``DML_ELEMENT_WISE_QUANTIZE_LINEAR_OPERATOR_DESC``).

    The result is ``input / scale``, rounded, halves to even, plus ``zero_point``, saturated. NaN becomes the zero point. The result
    has the zero point's type; without a zero point, which then is 0, it is uint8.

    Args:
        scale: of the input's type; float32 for integers.
    """

    FUSED = True
    NUMBERS = defaults(scale_tensor="float32", zero_point_tensor="uint8")
    ONNX = ("QuantizeLinear",)
    DTYPES = defaults(output_dtype="output_tensor")
    SUPPORT = support(
        input_tensor="1.0 f32 r4 · 2.1 +i · 3.0 r8 · 6.0 +F · ext +DIL",
        scale_tensor="1.0 f32 r4 · 3.0 r8 · 6.0 +F · ext +D",
        zero_point_tensor="1.0 u8 r4 · 2.1 bytes · 3.0 r8",
        output_tensor="1.0 u8 r4 · 2.1 bytes · 3.0 r8",
    )

    def infer(self) -> Mapping[str, TensorDesc]:
        """The output has the zero point's type, or else UINT8."""
        kind = TensorDataType.UINT8 if self.zero_point_tensor is None else self.zero_point_tensor.data_type
        return {"output_tensor": self.input_tensor.with_sizes(self.input_tensor.sizes, kind)}

    @classmethod
    def from_onnx(cls, node: OnnxNode) -> Operator:
        """With blocks it is QUANTIZE."""
        return _of_onnx(cls, Quantize, node, node.result_type("output_dtype"))

    def check(self) -> None:
        """The scale has the input's type, and the zero point the output's."""
        super().check()
        kind, scale = self.input_tensor.data_type, self.scale_tensor.data_type
        wanted = kind if kind.is_float else TensorDataType.FLOAT32
        self.require(scale is wanted, "scale_tensor.data_type", scale.tvm, f"{wanted.tvm}, for an input of {kind.tvm}")
        if self.zero_point_tensor is not None:
            self.require_same("data_type", "zero_point_tensor", "output_tensor")

    def value(self, x: Any, scale: Any, zero_point: Any = None) -> Any:
        return quantized(T.to(x, T.scalar_type(scale)), scale, zero_point, self.output_tensor.data_type)

    def numpy(self, x: NumpyArray, scale: NumpyArray, zero_point: NumpyArray | None = None) -> NumpyArray:
        return quantized_numpy(x.astype(scale.dtype), scale, zero_point, self.output_tensor.data_type)


class ElementWiseDequantizeLinear(_Linear):
    """Numbers from quantized elements: ``(input - zero_point) * scale`` (``DML_ELEMENT_WISE_DEQUANTIZE_LINEAR_OPERATOR_DESC``).

    The difference is exact. The result has the scale's type. A zero point that is absent is 0.
    """

    NUMBERS = defaults(scale_tensor="float32")
    ONNX = ("DequantizeLinear",)
    SUPPORT = support(
        input_tensor="1.0 u8 r4 · 2.1 IU · 3.0 r8",
        scale_tensor="1.0 f32 r4 · 3.0 r8 · 6.0 +F · ext +D",
        zero_point_tensor="1.0 u8 r4 · 2.1 IU · 3.0 r8",
        output_tensor="1.0 f32 r4 · 3.0 r8 · 6.0 +F · ext +D",
    )
    KERNEL, NUMPY = dequantized, dequantized_numpy

    def infer(self) -> Mapping[str, TensorDesc]:
        """The output has the scale's type."""
        return {"output_tensor": self.input_tensor.with_sizes(self.input_tensor.sizes, self.scale_tensor.data_type)}

    @classmethod
    def from_onnx(cls, node: OnnxNode) -> Operator:
        """With blocks it is DEQUANTIZE."""
        return _of_onnx(cls, Dequantize, node, None)

    def check(self) -> None:
        """The zero point has the input's type, and the output the scale's."""
        super().check()
        self.require_same("data_type", "output_tensor", "scale_tensor")
        if self.zero_point_tensor is not None:
            self.require_same("data_type", "zero_point_tensor", "input_tensor")


def _of_onnx(cls: type[Operator], blocked: type[Blocks], node: OnnxNode, wanted: TensorDataType | None) -> Operator:
    """A node with parameters for the whole tensor, for each slice of an axis, or for blocks along it."""
    if node.integer("precision", 0) > 1:
        raise NotConvertible("its precision is not float32")
    x, parameters = node.tensor(), [node.tensor(i) for i in (1, 2) if node.has(i)]
    axis, block = dimension(node.integer("axis", 1), x.rank, "axis") if x.rank > 1 else 0, node.integer("block_size", 0)
    output = {} if wanted is None else {"output_tensor": wanted}
    if not block and not any(one.data_type.is_nibble for one in (x, *parameters)):
        return cls.of(x, *(_along(parameter, x, axis) for parameter in parameters), **output)
    if not block:  # only QUANTIZE and DEQUANTIZE have 4-bit types
        each = [_along(one, x, axis).layout for one in parameters]
        sizes = [[n if step else 1 for n, step in zip(x.sizes, steps, strict=True)] for steps in each]
        parameters = [one.with_sizes(own) for one, own in zip(parameters, sizes, strict=True)]
    kind = QuantizationType(len(parameters))
    found = blocked.of(x, parameters, quantization_type=kind, **output)
    assert isinstance(found, Blocks)
    if kind is QuantizationType.SCALE and found.middle():
        raise NotConvertible("it has no zero point, which is 0 in ONNX, and the middle of the range in DirectML")
    found.check()
    if block and found.blocks()[axis] != block:
        raise NotConvertible(f"its blocks have {block} elements; DirectML's would have {found.blocks()[axis]}")
    return found


def _along(parameter: ArrayTensorDesc, x: ArrayTensorDesc, axis: int) -> ArrayTensorDesc:
    """A scale or zero point, repeated to the input's sizes: one for all, or one for each slice of an axis."""
    each = parameter.element_count != 1
    if each and parameter.sizes != (x.sizes[axis],):
        raise NotConvertible(f"a parameter has the shape {parameter.sizes}, for {x.sizes[axis]} slices")
    strides = [int(each and i == axis) for i in range(x.rank)]
    return ArrayTensorDesc(parameter.data_type, x.sizes, strides)


# -- One scale and zero point for each tensor ---------------------------------------------------------------------

_BYTES, _SCALE = "4.0 bytes r8", "4.0 f32 r8"


class ElementWiseQuantizedLinearAdd(Pointwise):
    """The sum of two quantized arrays, quantized (``DML_ELEMENT_WISE_QUANTIZED_LINEAR_ADD_OPERATOR_DESC``).

    Each array has one scale and one zero point, arrays of one element; a zero point that is absent is 0. The result has the type of
    ``output_zero_point``, or else of ``a``.
    """

    FUSED = True
    ONNX = ("com.microsoft.QLinearAdd",)
    DTYPES = defaults(output_dtype="output_tensor")
    SINGLE = (
        *("a_scale_tensor", "a_zero_point_tensor", "b_scale_tensor", "b_zero_point_tensor"),
        *("output_scale_tensor", "output_zero_point_tensor"),
    )
    NUMBERS = defaults(**{name: "float32" for name in SINGLE if "scale" in name})
    SUPPORT = support(
        **{name: _SCALE if "scale" in name else _BYTES for name in ("a_tensor", "b_tensor", "output_tensor", *SINGLE)}
    )

    a_tensor: Input
    a_scale_tensor: Input
    a_zero_point_tensor: OptionalInput = None
    b_tensor: Input
    b_scale_tensor: Input
    b_zero_point_tensor: OptionalInput = None
    output_scale_tensor: Input
    output_zero_point_tensor: OptionalInput = None
    output_tensor: Output

    def infer(self) -> Mapping[str, TensorDesc]:
        """The output has the type of its zero point, or else of A."""
        kind = (self.a_tensor if self.output_zero_point_tensor is None else self.output_zero_point_tensor).data_type
        return {"output_tensor": self.a_tensor.with_sizes(self.a_tensor.sizes, kind)}

    def check(self) -> None:
        """Each zero point has the type of its tensor."""
        super().check()
        for name in ("a", "b", "output"):
            if getattr(self, f"{name}_zero_point_tensor") is not None:
                self.require_same("data_type", f"{name}_zero_point_tensor", f"{name}_tensor")

    def value(self, *values: Any) -> Any:
        given = self._by_name(values)
        a, b = (T.rounded(dequantized(given[n], given[f"{n}_scale"], given.get(f"{n}_zero_point"))) for n in ("a", "b"))
        return quantized(a + b, given["output_scale"], given.get("output_zero_point"), self.output_tensor.data_type)

    def numpy(self, *arrays: NumpyArray) -> NumpyArray:
        given = self._by_name(arrays)
        a, b = (dequantized_numpy(given[n], given[f"{n}_scale"], given.get(f"{n}_zero_point")) for n in ("a", "b"))
        return quantized_numpy(a + b, given["output_scale"], given.get("output_zero_point"), self.output_tensor.data_type)

    def _by_name(self, values: tuple[Any, ...]) -> dict[str, Any]:
        names = (name.removesuffix("_tensor") for name, tensor in self.tensors(Role.INPUT) if tensor is not None)
        return dict(zip(names, values, strict=True))


# -- Scales and zero points for blocks ----------------------------------------------------------------------------

_SIDES = {"floats": "6.3 F r8 · ext +D", "quantized": "6.3 N +bytes r8"}
_EITHER = "6.3 F +bytes +N r8 · ext +D"


class Quantize(Blocks):
    """Quantize elements with a scale, and perhaps a zero point, for each block of elements (``DML_QUANTIZE_OPERATOR_DESC``).

    The result is ``input / scale``, rounded, halves to even, plus the zero point, saturated. NaN becomes the zero point. Without a
    zero point it is 0 for signed types, and the middle of the range for unsigned ones.
    """

    FUSED = True
    FUNCTION = ""
    SUPPORT = support(
        input_tensor=_SIDES["floats"],
        quantization_tensors=_EITHER,
        output_tensor=_SIDES["quantized"],
    )

    def sides(self) -> tuple[str, str]:
        """The input has floats."""
        return "input_tensor", "output_tensor"

    def infer(self) -> Mapping[str, TensorDesc]:
        """The output has the zero point's type, or else UINT8."""
        kind = self.quantization_tensors[1].data_type if len(self.quantization_tensors) > 1 else TensorDataType.UINT8
        return {"output_tensor": self.input_tensor.with_sizes(self.input_tensor.sizes, kind)}

    def value(self, x: Any, scale: Any, zero_point: Any = None) -> Any:
        zero_point = T.like(x, self.middle()) if zero_point is None else zero_point
        return quantized(x, scale, zero_point, self.output_tensor.data_type)

    def numpy(self, x: NumpyArray, scale: NumpyArray, zero_point: NumpyArray | None = None) -> NumpyArray:
        zero_point = np.array(self.middle()) if zero_point is None else self.repeated(zero_point)
        return quantized_numpy(x, self.repeated(scale), zero_point, self.output_tensor.data_type)


class Dequantize(Blocks):
    """Numbers from quantized elements, with a scale, and perhaps a zero point, for each block (``DML_DEQUANTIZE_OPERATOR_DESC``).

    The result is ``(input - zero_point) * scale``. Without a zero point it is 0 for signed types, and the middle of the range for
    unsigned ones.
    """

    FUNCTION = ""
    SUPPORT = support(
        input_tensor=_SIDES["quantized"],
        quantization_tensors=_EITHER,
        output_tensor=_SIDES["floats"],
    )

    def sides(self) -> tuple[str, str]:
        """The output has floats."""
        return "output_tensor", "input_tensor"

    def infer(self) -> Mapping[str, TensorDesc]:
        """The output has the scale's type."""
        self.require(len(self.quantization_tensors) > 0, "quantization_tensors", "no tensor", "a scale, and perhaps a zero point")
        return {"output_tensor": self.input_tensor.with_sizes(self.input_tensor.sizes, self.quantization_tensors[0].data_type)}

    def value(self, x: Any, scale: Any, zero_point: Any = None) -> Any:
        return dequantized(x, scale, T.like(x, self.middle()) if zero_point is None else zero_point)

    def numpy(self, x: NumpyArray, scale: NumpyArray, zero_point: NumpyArray | None = None) -> NumpyArray:
        zero_point = np.array(self.middle()) if zero_point is None else self.repeated(zero_point)
        return dequantized_numpy(x, self.repeated(scale), zero_point)
