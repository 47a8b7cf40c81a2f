"""DML_OPERATOR_DYNAMIC_QUANTIZE_LINEAR: integers of 8 bits, with the scale and the zero point that the tensor's range asks for."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

from tvmdml.kernels import tensorir_values as T
from tvmdml.kernels.quantization import quantized
from tvmdml.kernels.reduction import LARGEST, SMALLEST, Walk
from tvmdml.operators._accuracy import Expected
from tvmdml.operators._contract import Input, NumpyArray, Operator, Output
from tvmdml.operators._onnx import OnnxNode
from tvmdml.operators._reduction import Reduction
from tvmdml.operators._support import support
from tvmdml.operators.quantization import quantized_numpy
from tvmdml.tensors import TensorDataType, TensorDesc


class DynamicQuantizeLinear(Reduction):
    """A float tensor as integers of 8 bits, with one scale and one zero point (``DML_DYNAMIC_QUANTIZE_LINEAR_OPERATOR_DESC``).

    The range of the integers is that of the elements, and 0. A NaN makes the scale NaN, and an infinity makes it infinite: the zero
    point is then the least integer, and so are all elements. A tensor of zeros has the scale 1.
    """

    FUNCTION = "dynamic_quantize_linear"
    DTYPES = {"output_dtype": "output_tensor"}  # noqa: RUF012 - as in the base class
    RESULTS = ("output", "scale", "zero_point")
    ONNX = ("DynamicQuantizeLinear",)
    SUPPORT = support(
        input_tensor="4.0 F r8",
        output_tensor="4.0 bytes r8",
        output_scale_tensor="4.0 f32 r8",
        output_zero_point_tensor="4.0 bytes r8",
    )
    EACH = ("output_tensor",)

    input_tensor: Input
    output_tensor: Output
    output_scale_tensor: Output
    output_zero_point_tensor: Output

    @classmethod
    def of(cls, *inputs: Any, **given: Any) -> Any:
        """The zero point has the output's type, which is UINT8 unless it is given."""
        kind = given.get("output_tensor")
        if isinstance(kind, (str, TensorDataType)):
            given.setdefault("output_zero_point_tensor", kind)
        return super().of(*inputs, **given)

    def modules(self) -> tuple[str, ...]:
        """Elements are quantised as by QUANTIZE."""
        return (*super().modules(), "quantization")

    def reduced(self) -> tuple[int, ...]:
        return tuple(range(self.input_tensor.rank))

    def infer(self) -> Mapping[str, TensorDesc]:
        """The output has the input's sizes; the scale and the zero point have one element."""
        x = self.input_tensor
        return {
            "output_tensor": x.with_sizes(x.sizes, TensorDataType.UINT8),
            "output_scale_tensor": x.with_sizes([1] * x.rank, TensorDataType.FLOAT32),
            "output_zero_point_tensor": x.with_sizes([1] * x.rank, TensorDataType.UINT8),
        }

    def check(self) -> None:
        """The sizes are the input's, or 1; output and zero point have one type."""
        self.require_elements()
        self.require_same("sizes", "output_tensor", "input_tensor")
        self.require_same("data_type", "output_zero_point_tensor", "output_tensor")
        self.require_reduced("output_scale_tensor", "output_zero_point_tensor")

    def walks(self) -> tuple[Walk, ...]:
        limits = np.iinfo(self.output_tensor.data_type.tvm)

        def scale_and_zero(low: Any, high: Any, _: Any) -> Any:
            low, high = T.minimum(low, T.like(low, 0)), T.maximum(high, T.like(high, 0))
            scale = T.hold((high - low) / T.like(low, float(limits.max - limits.min)))
            scale = T.hold(T.select(scale == T.like(scale, 0), 1, scale))
            zero = T.round_even(T.like(low, float(limits.min)) - T.hold(low / scale))
            usual = T.absolute(scale) < T.like(scale, np.inf)  # neither infinite nor NaN
            zero = T.select(usual, zero, float(limits.min))
            zero = T.select(zero < T.like(zero, float(limits.min)), float(limits.min), zero)
            return scale, T.select(zero > T.like(zero, float(limits.max)), float(limits.max), zero)

        return (Walk((SMALLEST, LARGEST), lambda x: (x, x), scale_and_zero),)

    def slice_results(self, scale: Any, zero: Any, _: Any) -> Any:
        return scale, zero

    def element(self, x: Any, scale: Any, zero: Any) -> Any:
        return quantized(x, scale, zero, self.output_tensor.data_type)

    def reference(self, *inputs: NumpyArray | None) -> tuple[Expected, ...]:
        """The formula in NumPy: each step is exact, or is rounded once."""
        (given,) = inputs
        assert given is not None
        x, data_type = given.astype(np.float32), self.output_tensor.data_type
        limits, one = np.iinfo(data_type.tvm), np.float32(1)
        with np.errstate(all="ignore"):
            low, high = np.minimum(np.min(x), 0 * one), np.maximum(np.max(x), 0 * one)
            scale = (high - low) / np.float32(limits.max - limits.min)
            scale = one if scale == 0 else scale
            zero = np.rint(np.float32(limits.min) - low / scale) if np.isfinite(scale) else limits.min
            zero = np.array(np.clip(zero, limits.min, limits.max)).astype(data_type.numpy)
            sizes = self.output_scale_tensor.sizes
            q = quantized_numpy(x, np.asarray(scale), zero, data_type)
            return q, np.full(sizes, scale, np.float32), np.full(sizes, zero, data_type.numpy)

    @classmethod
    def from_onnx(cls, node: OnnxNode) -> Operator:
        """The scale and the zero point have no dimensions in ONNX."""
        return cls.of(node.tensor())
