"""Gradients of pointwise operators: the incoming gradient where the operator passes its input on, otherwise 0."""

from __future__ import annotations

from typing import Any

from tvmdml.kernels import tensorir_values as T
from tvmdml.operators._contract import Float, NumpyArray, Operator, Scalar
from tvmdml.operators._gradients import gradients
from tvmdml.operators._pointwise_forms import BitwiseGradient, LimitedGradient, check_union, exact_limits
from tvmdml.operators._support import support
from tvmdml.tensors import TensorDataType


class ElementWiseClipGrad(LimitedGradient):
    """The gradient of CLIP: that of the output for elements between the limits (``DML_ELEMENT_WISE_CLIP_GRAD_OPERATOR_DESC``).

    On a limit and beyond it is +0, for NaN that of the output.

    Args:
        min: the lower limit, rounded to the type of the elements; for integers it is cut toward zero, and saturated.
        max: the upper limit, likewise.
    """

    SUPPORT = support("3.1 FIU r8 · 5.0 +LW · ext +D")
    GRADIENT = gradients(input="zeros(gradient)", input_gradient="clip_grad(input, gradient, min=min, max=max)")

    min: Float
    max: Float

    @classmethod
    def of_call(cls, *inputs: Any, **given: Any) -> Operator:
        """CLIP_GRAD1, whose limits are not rounded to single precision first."""
        return ElementWiseClipGrad1.of(*inputs, **exact_limits(cls, inputs[0].data_type, given))


class ElementWiseClipGrad1(LimitedGradient):
    """The gradient of CLIP1, whose limits have the type of the elements (``DML_ELEMENT_WISE_CLIP_GRAD1_OPERATOR_DESC``)."""

    FUNCTION = ""
    SUPPORT = support("5.0 FIULW r8 · ext +D")

    min_max_data_type: TensorDataType
    min: Scalar
    max: Scalar

    def check(self) -> None:
        """The limits and the tensors have the same type."""
        super().check()
        check_union(self, "min", "max")


class ActivationReluGrad(BitwiseGradient):
    """The gradient of RELU: that of the output for elements greater than 0 (``DML_ACTIVATION_RELU_GRAD_OPERATOR_DESC``).

    For all others, NaN included, it is +0.
    """

    SUPPORT = support("3.0 F r8 · 5.1 +I · ext +DL")
    GRADIENT = gradients(input="zeros(gradient)", input_gradient="activation_relu_grad(input, gradient)")

    def passes(self, x: Any) -> Any:
        return x > T.like(x, 0)

    def passes_numpy(self, x: NumpyArray) -> NumpyArray:
        return x > 0
