"""Activations that are made of exp, tanh and erf: their results are within a number of steps.

They may also be parts of other operators (``FUSES``), so they take their types from the values, not from tensors.
"""

from __future__ import annotations

import math
from typing import Any

import numpy as np

from tvmdml.enums import FeatureLevel
from tvmdml.kernels import mathematics
from tvmdml.kernels import tensorir_values as T
from tvmdml.operators._contract import Float, NumpyArray, defaults
from tvmdml.operators._gradients import gradients
from tvmdml.operators._onnx import NotConvertible, OnnxNode
from tvmdml.operators._pointwise import precise
from tvmdml.operators._pointwise_forms import Activation
from tvmdml.operators._support import support


class ActivationSigmoid(Activation):
    """1 / (1 + exp(-x)) of each element (``DML_ACTIVATION_SIGMOID_OPERATOR_DESC``)."""

    ONNX = ("Sigmoid",)
    STEPS = 5
    KERNEL = mathematics.sigmoid
    GRADIENT = gradients(input="multiply(gradient, multiply(result, subtract(1, result)))")

    def numpy(self, x: NumpyArray) -> Any:
        return 1 / (1 + np.exp(-precise(x)))


class ActivationTanh(Activation):
    """The hyperbolic tangent of each element (``DML_ACTIVATION_TANH_OPERATOR_DESC``)."""

    ONNX = ("Tanh",)
    STEPS = 3
    KERNEL = mathematics.tanh
    NUMPY = np.tanh
    GRADIENT = gradients(input="multiply(gradient, subtract(1, multiply(result, result)))")


class ActivationScaledTanh(Activation):
    """``alpha`` times the hyperbolic tangent of ``beta`` times each element (``DML_ACTIVATION_SCALED_TANH_OPERATOR_DESC``)."""

    DEFAULTS = defaults(alpha=1.0, beta=0.5)
    STEPS = 6
    GRADIENT = gradients(input="multiply(multiply(gradient, beta), subtract(alpha, divide(multiply(result, result), alpha)))")

    alpha: Float
    beta: Float

    def value(self, x: Any) -> Any:
        return mathematics.tanh(T.rounded(x * T.like(x, self.beta))) * T.like(x, self.alpha)

    def numpy(self, x: NumpyArray) -> Any:
        return np.tanh(precise(x * x.dtype.type(self.beta))) * self.alpha


class ActivationElu(Activation):
    """Each element, negative ones as ``alpha * (exp(x) - 1)`` (``DML_ACTIVATION_ELU_OPERATOR_DESC``)."""

    DEFAULTS = defaults(alpha=1.0)
    ONNX = ("Elu",)
    STEPS = 4
    GRADIENT = gradients(input="where(greater_than(input, 0), gradient, multiply(gradient, add(result, alpha)))")

    alpha: Float

    def value(self, x: Any) -> Any:
        return T.select(x >= T.like(x, 0), x, mathematics.expm1(x) * T.like(x, self.alpha))

    def numpy(self, x: NumpyArray) -> Any:
        return np.where(x >= 0, x, np.expm1(precise(x)) * self.alpha)


class ActivationScaledElu(Activation):
    """``gamma`` times: an element, a negative one as ``alpha * (exp(x) - 1)`` (``DML_ACTIVATION_SCALED_ELU_OPERATOR_DESC``)."""

    DEFAULTS = defaults(alpha=1.67326319217681884765625, gamma=1.05070102214813232421875)
    ONNX = ("Selu",)
    STEPS = 5
    GRADIENT = gradients(
        input="where(greater_than(input, 0), multiply(gradient, gamma), multiply(gradient, add(result, alpha * gamma)))"
    )

    alpha: Float
    gamma: Float

    def value(self, x: Any) -> Any:
        return T.select(
            x > T.like(x, 0),
            x * T.like(x, self.gamma),
            mathematics.expm1(x) * T.rounded(T.like(x, self.gamma) * T.like(x, self.alpha)),
        )

    def numpy(self, x: NumpyArray) -> Any:
        return np.where(x > 0, precise(x) * self.gamma, np.expm1(precise(x)) * self.gamma * self.alpha)


class ActivationCelu(Activation):
    """Each element, negative ones as ``alpha * (exp(x / alpha) - 1)`` (``DML_ACTIVATION_CELU_OPERATOR_DESC``)."""

    DEFAULTS = defaults(alpha=1.0)
    ONNX = ("Celu",)
    SUPPORT = support("3.0 F r8 · ext +D")
    STEPS = 4
    GRADIENT = gradients(input="where(greater_than(input, 0), gradient, multiply(gradient, add(divide(result, alpha), 1)))")

    alpha: Float

    def check_attributes(self, level: FeatureLevel) -> None:
        self.require(self.alpha != 0, "alpha", self.alpha, "a number other than 0: x is divided by it")

    def value(self, x: Any) -> Any:
        alpha = T.like(x, self.alpha)
        exponent, scales = T.rounded(x / alpha), []
        # With a negative alpha the power may overflow although its product with alpha does not: a factor is taken out before.
        for limit, less in ((142, 62), (80, 62)) if T.bits_of(x) == 32 else ((600, 500),):
            above = exponent > T.like(x, limit)
            exponent = T.select(above, exponent - T.like(x, less), exponent)
            scales.append(T.select(above, T.like(x, math.exp(less)), 1))
        product = mathematics.expm1(exponent) * alpha
        for scale in scales:
            product = product * scale
        return T.select(x >= T.like(x, 0), x, product)

    def numpy(self, x: NumpyArray) -> Any:
        return np.where(x >= 0, x, np.expm1(precise(x / x.dtype.type(self.alpha))) * self.alpha)


class ActivationSoftplus(Activation):
    """``log(1 + exp(steepness * x)) / steepness`` of each element, without overflow (``DML_ACTIVATION_SOFTPLUS_OPERATOR_DESC``)."""

    DEFAULTS = defaults(steepness=1.0)
    ONNX = ("Softplus",)
    STEPS = 6
    GRADIENT = gradients(input="multiply(gradient, activation_sigmoid(multiply(input, steepness)))")

    steepness: Float

    def check_attributes(self, level: FeatureLevel) -> None:
        given = self.steepness
        if level < FeatureLevel.LEVEL_6_4:
            self.require(given >= 1, "steepness", given, f"1 or more at feature level {level}", "Level 6.4 takes any but 0.")
        self.require(math.isfinite(given) and given != 0, "steepness", given, "a finite number other than 0")

    def value(self, x: Any) -> Any:
        steep = T.like(x, self.steepness)
        return mathematics.softplus(T.rounded(x * steep), lambda one: one / steep)

    def numpy(self, x: NumpyArray) -> Any:
        return np.logaddexp(0, precise(x * x.dtype.type(self.steepness))) / self.steepness


class ActivationParametricSoftplus(Activation):
    """``alpha * log(1 + exp(beta * x))``, without overflow (``DML_ACTIVATION_PARAMETRIC_SOFTPLUS_OPERATOR_DESC``)."""

    STEPS = 6
    GRADIENT = gradients(input="multiply(multiply(gradient, alpha * beta), activation_sigmoid(multiply(input, beta)))")

    alpha: Float
    beta: Float

    def value(self, x: Any) -> Any:
        return mathematics.softplus(T.rounded(x * T.like(x, self.beta)), lambda one: one * T.like(x, self.alpha))

    def numpy(self, x: NumpyArray) -> Any:
        return np.logaddexp(0, precise(x * x.dtype.type(self.beta))) * self.alpha


class ActivationGelu(Activation):
    """``x / 2 * (1 + erf(x / sqrt(2)))`` of each element (``DML_ACTIVATION_GELU_OPERATOR_DESC``)."""

    ONNX = ("Gelu", "com.microsoft.Gelu")
    SUPPORT = support("5.1 F r8 · ext +D")
    SHARES = ()
    STEPS = 4
    GRADIENT = gradients(
        input="multiply(gradient, add(multiply(add(erf(multiply(input, 0.7071067811865476)), 1), 0.5), "
        "multiply(multiply(input, 0.3989422804014327), exp(multiply(multiply(input, input), -0.5)))))"
    )

    @classmethod
    def from_onnx(cls, node: OnnxNode) -> ActivationGelu:
        if node.attributes.get("approximate", b"none") not in (b"none", "none"):
            raise NotConvertible("its approximate is not none: DirectML has GELU by erf only")
        return cls.of(node.tensor())

    def value(self, x: Any) -> Any:
        scaled = T.let(T.rounded(x * T.like(x, math.sqrt(0.5))))
        return T.rounded(x * T.like(x, 0.5)) * (T.like(x, 1) + mathematics.erf(scaled))

    def numpy(self, x: NumpyArray) -> Any:
        tail = np.asarray(np.frompyfunc(math.erfc, 1, 1)(-x.astype(np.float64) * math.sqrt(0.5))).astype(precise(x).dtype)
        return precise(x) / 2 * tail

    def error(self, x: NumpyArray) -> Any:
        return float(np.finfo(x.dtype).eps) * np.abs(precise(x))


class ActivationSwish(Activation):
    """Each element times the sigmoid of ``sigmoid_input_scale`` times it (``DML_ACTIVATION_SWISH_OPERATOR_DESC``)."""

    DEFAULTS = defaults(sigmoid_input_scale=1.0)
    ONNX = ("Swish",)
    SUPPORT = support("6.2 F r8 · ext +D")
    STEPS = 6
    GRADIENT = gradients(
        input="multiply(gradient, add(activation_sigmoid(multiply(input, sigmoid_input_scale)), multiply(multiply(result, "
        "sigmoid_input_scale), subtract(1, activation_sigmoid(multiply(input, sigmoid_input_scale))))))"
    )

    sigmoid_input_scale: Float

    @classmethod
    def from_onnx(cls, node: OnnxNode) -> ActivationSwish:
        return cls.of(node.tensor(), sigmoid_input_scale=node.attributes.get("alpha", 1.0))

    def value(self, x: Any) -> Any:
        return mathematics.swish(x, T.rounded(x * T.like(x, self.sigmoid_input_scale)))

    def numpy(self, x: NumpyArray) -> Any:
        return precise(x) / (1 + np.exp(-precise(x * x.dtype.type(self.sigmoid_input_scale))))
