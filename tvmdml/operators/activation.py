"""Activations: pointwise operators of one input, and PARAMETERIZED_RELU, whose slopes are a second one.

They may also be parts of other operators (``FUSES``), so they take their types from the values, not from tensors.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from tvmdml.kernels import tensorir_values as T
from tvmdml.operators._contract import Float, Input, NumpyArray, Output, defaults
from tvmdml.operators._gradients import gradients
from tvmdml.operators._onnx import NotConvertible, OnnxNode
from tvmdml.operators._pointwise import Pointwise, unchanged
from tvmdml.operators._pointwise_forms import Activation
from tvmdml.operators._support import support


class ActivationIdentity(Activation):
    """Each element unchanged, bit by bit (``DML_ACTIVATION_IDENTITY_OPERATOR_DESC``)."""

    ONNX = ("Dropout",)
    KERNEL = NUMPY = unchanged
    BITS = True
    GRADIENT = gradients(input="gradient")

    @classmethod
    def from_onnx(cls, node: OnnxNode) -> ActivationIdentity:
        """Dropout does nothing where a model is not trained."""
        if node.has(2) or node.results > 1:
            raise NotConvertible("it may be in training, or gives its mask")
        return cls.of(node.tensor())


class ActivationRelu(Activation):
    """Each element, negative ones as 0 (``DML_ACTIVATION_RELU_OPERATOR_DESC``). NaN and -0 stay."""

    ONNX = ("Relu",)
    SUPPORT = support("1.0 F r4 · 2.0 r45 · 3.0 r8 · 5.1 +I · ext +DL")
    GRADIENT = gradients(input="activation_relu_grad(input, gradient)")

    def value(self, x: Any) -> Any:
        return T.select(x < T.like(x, 0), 0, x)

    def numpy(self, x: NumpyArray) -> NumpyArray:
        return np.where(x < 0, x.dtype.type(0), x)


class ActivationLeakyRelu(Activation):
    """Each element, negative ones times ``alpha`` (``DML_ACTIVATION_LEAKY_RELU_OPERATOR_DESC``)."""

    DEFAULTS = defaults(alpha=0.01)
    ONNX = ("LeakyRelu",)
    GRADIENT = gradients(input="where(greater_than(input, 0), gradient, multiply(gradient, alpha))")

    alpha: Float

    def value(self, x: Any) -> Any:
        return T.select(x >= T.like(x, 0), x, x * T.like(x, self.alpha))

    def numpy(self, x: NumpyArray) -> NumpyArray:
        return np.where(x >= 0, x, x * x.dtype.type(self.alpha))


class ActivationParameterizedRelu(Pointwise):
    """Each element, negative ones times an element of ``slope`` (``DML_ACTIVATION_PARAMETERIZED_RELU_OPERATOR_DESC``).

    Integers wrap.
    """

    ONNX = ("PRelu",)
    SUPPORT = support("1.0 F r4 · 2.0 r45 · 3.0 r8 · 5.1 +I · ext +DL")
    SHARES = (("input_tensor", "output_tensor"),)
    GRADIENT = gradients(
        input="where(greater_than(input, 0), gradient, multiply(gradient, slope))",
        slope="where(greater_than(input, 0), 0, multiply(gradient, input))",
    )

    input_tensor: Input
    slope_tensor: Input
    output_tensor: Output

    def value(self, x: Any, slope: Any) -> Any:
        return T.select(x >= T.like(x, 0), x, slope * x)

    def numpy(self, x: NumpyArray, slope: NumpyArray) -> NumpyArray:
        return np.where(x >= 0, x, slope * x)


class ActivationThresholdedRelu(Activation):
    """Each element that is greater than ``alpha``, otherwise 0 (``DML_ACTIVATION_THRESHOLDED_RELU_OPERATOR_DESC``). NaN gives 0."""

    DEFAULTS = defaults(alpha=1.0)
    ONNX = ("ThresholdedRelu",)
    GRADIENT = gradients(input="where(greater_than(input, alpha), gradient, 0)")

    alpha: Float

    def value(self, x: Any) -> Any:
        return T.select(x > T.like(x, self.alpha), x, 0)

    def numpy(self, x: NumpyArray) -> NumpyArray:
        return np.where(x > x.dtype.type(self.alpha), x, x.dtype.type(0))


class ActivationShrink(Activation):
    """``bias`` less above ``threshold``, ``bias`` more below ``-threshold``, otherwise 0 (``DML_ACTIVATION_SHRINK_OPERATOR_DESC``).

    NaN gives 0. For integers the attributes are cut toward zero to 64 bits; comparisons are exact, and results wrap.
    """

    DEFAULTS = defaults(bias=0.0, threshold=0.5)
    ONNX = ("Shrink",)
    SUPPORT = support("2.0 F r45 · 3.0 r8 · 5.1 +IU · ext +DLW")
    GRADIENT = gradients(input="where(greater_than(abs(input), threshold), gradient, 0)")

    bias: Float
    threshold: Float

    @classmethod
    def from_onnx(cls, node: OnnxNode) -> ActivationShrink:
        threshold = node.attributes.get("lambd", 0.5)
        if threshold < 0:  # ONNX looks below -lambd first, DirectML above it: an element may be both
            raise NotConvertible(f"its lambd is {threshold:g}, and DirectML's operator differs below 0")
        return cls.of(node.tensor(), bias=node.attributes.get("bias", 0.0), threshold=threshold)

    def value(self, x: Any) -> Any:
        if T.is_float(x):
            bias, threshold = T.like(x, self.bias), T.like(x, self.threshold)
            return T.select(x > threshold, x - bias, T.select(x < T.like(x, -self.threshold), x + bias, 0))
        bias, limit = T.hidden(x, self._bias(T.scalar_type(x))), T.saturated(self.threshold, "int64")
        return T.select(T.greater(x, limit), x - bias, T.select(T.less(x, -limit), x + bias, 0))

    def numpy(self, x: NumpyArray) -> Any:
        is_float = x.dtype.kind == "f"
        bias = x.dtype.type(self.bias if is_float else self._bias(x.dtype.name))
        limit = self.threshold if is_float else T.saturated(self.threshold, "int64")
        return np.where(x > limit, x - bias, np.where(x < -limit, x + bias, x.dtype.type(0)))

    def _bias(self, dtype: str) -> int:
        """The low bits of the bias as an integer of 64 bits."""
        return int(np.array(T.saturated(self.bias, "int64")).astype(dtype))


class ActivationLinear(Activation):
    """``alpha`` times each element, plus ``beta``: two roundings (``DML_ACTIVATION_LINEAR_OPERATOR_DESC``)."""

    GRADIENT = gradients(input="multiply(gradient, alpha)")

    alpha: Float
    beta: Float

    def value(self, x: Any) -> Any:
        return T.rounded(T.like(x, self.alpha) * x) + T.like(x, self.beta)

    def numpy(self, x: NumpyArray) -> Any:
        return x.dtype.type(self.alpha) * x + x.dtype.type(self.beta)


class ActivationHardSigmoid(ActivationLinear):
    """``alpha`` times each element, plus ``beta``, limited to 0 and 1 (``DML_ACTIVATION_HARD_SIGMOID_OPERATOR_DESC``).

    NaN stays NaN.
    """

    DEFAULTS = defaults(alpha=0.2, beta=0.5)
    ONNX = ("HardSigmoid",)
    GRADIENT = gradients(input="clip_grad(result, multiply(gradient, alpha), min=0, max=1)")

    def value(self, x: Any) -> Any:
        linear = T.hold(super().value(x))
        most = T.select(linear > T.like(x, 1), 1, linear)
        return T.select(most < T.like(x, 0), 0, most)

    def numpy(self, x: NumpyArray) -> Any:
        linear, zero, one = super().numpy(x), x.dtype.type(0), x.dtype.type(1)
        return np.where(linear > 1, one, np.where(linear < 0, zero, linear))


class ActivationHardSwish(ActivationHardSigmoid):
    """Each element times its HARD_SIGMOID (``DML_ACTIVATION_HARD_SWISH_OPERATOR_DESC``). -infinity gives NaN."""

    DEFAULTS = defaults(alpha=0.166667, beta=0.5)
    ONNX = ("HardSwish",)
    SUPPORT = support("6.2 F r8 · ext +D")
    GRADIENT = gradients(
        input="add(multiply(gradient, activation_hard_sigmoid(input, alpha=alpha, beta=beta)),"
        " clip_grad(activation_linear(input, alpha=alpha, beta=beta), multiply(multiply(gradient, input), alpha), min=0, max=1))"
    )

    @classmethod
    def from_onnx(cls, node: OnnxNode) -> ActivationHardSwish:
        return cls.of(node.tensor(), alpha=1 / 6)

    def value(self, x: Any) -> Any:
        return x * super().value(x)

    def numpy(self, x: NumpyArray) -> NumpyArray:
        return x * super().numpy(x)


class ActivationSoftsign(Activation):
    """Each element divided by 1 plus its absolute value (``DML_ACTIVATION_SOFTSIGN_OPERATOR_DESC``). An infinity gives NaN."""

    ONNX = ("Softsign",)
    GRADIENT = gradients(input="divide(divide(gradient, add(abs(input), 1)), add(abs(input), 1))")

    def value(self, x: Any) -> Any:
        return x / (T.like(x, 1) + T.abs(x))

    def numpy(self, x: NumpyArray) -> Any:
        return x / (x.dtype.type(1) + np.abs(x))
