"""Pointwise operators of one input, whose output has the input's type."""

from __future__ import annotations

from typing import Any

import numpy as np

from tvmdml.enums import FeatureLevel
from tvmdml.kernels import tensorir_values as T
from tvmdml.operators._broadcast import common_sizes, repeated
from tvmdml.operators._contract import Float, NumpyArray, Operator, Scalar
from tvmdml.operators._gradients import gradients
from tvmdml.operators._onnx import NotConvertible, OnnxNode, transposed
from tvmdml.operators._pointwise import Unary, unchanged
from tvmdml.operators._pointwise_forms import Limited, Scaled, check_union, exact_limits
from tvmdml.operators._support import support
from tvmdml.tensors import TensorDataType, TensorDesc


class ElementWiseIdentity(Scaled):
    """Each element unchanged, bit by bit, or scaled (``DML_ELEMENT_WISE_IDENTITY_OPERATOR_DESC``): a copy to other strides."""

    ONNX = ("Identity", "Affine", "Expand", "Flatten", "Reshape", "Squeeze", "Transpose", "Unsqueeze")
    SUPPORT = support("1.0 F r45 · 2.1 +IU · 3.0 r8 · 4.1 +DLW")
    KERNEL = NUMPY = unchanged
    BITS = True
    GRADIENT = gradients(input="gradient")

    @classmethod
    def from_onnx(cls, node: OnnxNode) -> ElementWiseIdentity:
        """Also of operators that copy: the output is packed, and the input has the strides."""
        x = node.tensor(boolean=node.kind != "Affine")
        if node.kind == "Affine":
            return cls.of(x, scale_bias=(node.attributes.get("alpha", 1.0), node.attributes.get("beta", 0.0)))
        if node.kind == "Transpose":
            x = transposed(x, node.attributes.get("perm"))
        if node.kind == "Expand":
            shape = node.constants("shape", 1)
            x = repeated(x, common_sizes({"input": x, "shape": TensorDesc(x.data_type, shape or (1,))}))
        return cls.of(x)


class ElementWiseAbs(Scaled):
    """The absolute value of each element (``DML_ELEMENT_WISE_ABS_OPERATOR_DESC``). The least integer stays itself."""

    ONNX = ("Abs",)
    SUPPORT = support("1.0 F r4 · 2.1 +I · 3.0 r8 · 4.1 +L · ext +DUW")
    KERNEL = T.absolute
    NUMPY = np.abs
    NARROW = True
    GRADIENT = gradients(input="multiply(gradient, sign(input))")


class ElementWiseNegate(Unary):
    """Each element with the other sign (``DML_ELEMENT_WISE_NEGATE_OPERATOR_DESC``). The least integer stays itself."""

    ONNX = ("Neg",)
    SUPPORT = support("5.0 FIL r8 · ext +D")
    KERNEL = T.negative
    NUMPY = np.negative
    NARROW = True
    GRADIENT = gradients(input="negate(gradient)")


class ElementWiseSign(Unary):
    """-1, 0 or 1: the sign of each element (``DML_ELEMENT_WISE_SIGN_OPERATOR_DESC``). That of NaN is 0, as of both zeros."""

    ONNX = ("Sign",)
    SUPPORT = support("2.0 F r4 · 2.1 +IU · 3.0 r8 · 4.1 +LW · ext +D")
    GRADIENT = gradients(input="zeros(gradient)")

    def value(self, x: Any) -> Any:
        zero = T.like(x, 0)
        return T.select(x > zero, T.like(x, 1), T.select(x < zero, T.like(x, -1), zero))

    def numpy(self, x: NumpyArray) -> NumpyArray:
        return ((x > 0).astype(np.int8) - (x < 0)).astype(x.dtype)


class ElementWiseCeil(Scaled):
    """The least integral value that is not less than the element (``DML_ELEMENT_WISE_CEIL_OPERATOR_DESC``). -0.5 gives -0."""

    ONNX = ("Ceil",)
    GRADIENT = gradients(input="zeros(gradient)")

    def value(self, x: Any) -> Any:
        return T.ceil(x)

    def numpy(self, x: NumpyArray) -> NumpyArray:
        return np.ceil(x)


class ElementWiseFloor(Scaled):
    """The greatest integral value that is not greater than the element (``DML_ELEMENT_WISE_FLOOR_OPERATOR_DESC``)."""

    ONNX = ("Floor",)
    GRADIENT = gradients(input="zeros(gradient)")

    def value(self, x: Any) -> Any:
        return T.floor(x)

    def numpy(self, x: NumpyArray) -> NumpyArray:
        return np.floor(x)


class ElementWiseSqrt(Scaled):
    """The square root of each element, correctly rounded (``DML_ELEMENT_WISE_SQRT_OPERATOR_DESC``). Below zero it is NaN."""

    ONNX = ("Sqrt",)
    GRADIENT = gradients(input="divide(gradient, multiply(result, 2))")

    def value(self, x: Any) -> Any:
        return T.sqrt(x)

    def numpy(self, x: NumpyArray) -> NumpyArray:
        return np.sqrt(x)


class ElementWiseRecip(Scaled):
    """1 divided by each element, correctly rounded (``DML_ELEMENT_WISE_RECIP_OPERATOR_DESC``). A zero gives an infinity."""

    ONNX = ("Reciprocal",)
    GRADIENT = gradients(input="multiply(negate(gradient), multiply(result, result))")

    def value(self, x: Any) -> Any:
        return T.like(x, 1) / x

    def numpy(self, x: NumpyArray) -> Any:
        return x.dtype.type(1) / x


class ElementWiseClip(Limited):
    """Each element, limited to a range (``DML_ELEMENT_WISE_CLIP_OPERATOR_DESC``). NaN stays NaN; ``min`` wins over ``max``.

    Args:
        min: the lower limit, rounded to the type of the elements; for integers it is cut toward zero, and saturated.
        max: the upper limit, likewise.
    """

    SUPPORT = support("1.0 F r4 · 2.1 +IU · 3.0 r8 · 5.0 +LW · ext +D")
    GRADIENT = gradients(input="clip_grad(input, gradient, min=min, max=max)")

    min: Float
    max: Float

    @classmethod
    def of_call(cls, *inputs: Any, **given: Any) -> Operator:
        """CLIP1, whose limits are not rounded to single precision first."""
        return ElementWiseClip1.of(*inputs, **exact_limits(cls, inputs[0].data_type, given))


class ElementWiseClip1(Limited):
    """Each element, limited to a range (``DML_ELEMENT_WISE_CLIP1_OPERATOR_DESC``), whose limits have the type of the elements.

    NaN stays NaN; ``min`` wins over ``max``.
    """

    FUNCTION = ""
    ONNX = ("Clip",)
    SUPPORT = support("5.0 FIULW r8 · ext +D")

    min_max_data_type: TensorDataType
    min: Scalar
    max: Scalar

    @classmethod
    def from_onnx(cls, node: OnnxNode) -> ElementWiseClip1:
        x = node.tensor()
        limits = (-np.inf, np.inf) if x.data_type.is_float else (T.saturated(n, x.data_type.tvm) for n in (-np.inf, np.inf))
        low, high = (
            node.constant(name, i) if node.has(i) else node.attributes.get(name, limit)
            for i, (name, limit) in enumerate(zip(("min", "max"), limits, strict=True), 1)
        )
        if low > high:
            raise NotConvertible("its min is greater than its max: ONNX then gives the max, and DirectML the min")
        return cls.of(x, min=low, max=high)

    def check(self) -> None:
        """The limits and the tensors have the same type."""
        super().check()
        check_union(self, "min", "max")


class ElementWiseThreshold(Scaled):
    """Each element, or ``min`` in place of a smaller one (``DML_ELEMENT_WISE_THRESHOLD_OPERATOR_DESC``). NaN stays NaN.

    Args:
        min: the limit, a number in single precision; for integers it is cut toward zero, and for float16 it is rounded.
    """

    SUPPORT = support("1.0 F r4 · 2.1 +IU · 3.0 r8 · ext +DLW")
    GRADIENT = gradients(input="where(less_than(input, min), 0, gradient)")

    min: Float

    def check_attributes(self, level: FeatureLevel) -> None:
        self.require_numbers("min")

    def value(self, x: Any) -> Any:
        low = T.like(x, self.number(self.min))
        return T.select(x < low, low, x)

    def numpy(self, x: NumpyArray) -> NumpyArray:
        low = self.array(self.min, x.dtype)
        return np.where(x < low, low, x)
