"""``tvmdml.kernels.mathematics`` as pointwise operators: exp, log, sin … Their results are within a number of steps."""

from __future__ import annotations

import math
from typing import Any

import numpy as np

from tvmdml.kernels import mathematics
from tvmdml.operators._gradients import gradients
from tvmdml.operators._pointwise import Binary
from tvmdml.operators._pointwise_forms import Scaled
from tvmdml.operators._support import support


def _erf(x: Any) -> Any:
    """Python's, in float64: it is off by less than a step."""
    return np.asarray(np.frompyfunc(math.erf, 1, 1)(x.astype(np.float64))).astype(x.dtype)


class ElementWiseAcos(Scaled):
    """The inverse cosine of each element (``DML_ELEMENT_WISE_ACOS_OPERATOR_DESC``). Beyond 1 it is NaN."""

    ONNX = ("Acos",)
    STEPS = 4
    KERNEL = mathematics.acos
    NUMPY = np.arccos
    GRADIENT = gradients(input="divide(negate(gradient), sqrt(subtract(1, multiply(input, input))))")


class ElementWiseAcosh(Scaled):
    """The inverse hyperbolic cosine of each element (``DML_ELEMENT_WISE_ACOSH_OPERATOR_DESC``). Below 1 it is NaN."""

    ONNX = ("Acosh",)
    SUPPORT = support("2.0 F r4 · 3.0 r8 · ext +D")
    STEPS = 4
    KERNEL = mathematics.acosh
    NARROW = True
    NUMPY = np.arccosh
    GRADIENT = gradients(input="divide(gradient, sqrt(subtract(multiply(input, input), 1)))")


class ElementWiseAsin(Scaled):
    """The inverse sine of each element (``DML_ELEMENT_WISE_ASIN_OPERATOR_DESC``). Beyond 1 it is NaN."""

    ONNX = ("Asin",)
    STEPS = 4
    KERNEL = mathematics.asin
    NUMPY = np.arcsin
    GRADIENT = gradients(input="divide(gradient, sqrt(subtract(1, multiply(input, input))))")


class ElementWiseAsinh(Scaled):
    """The inverse hyperbolic sine of each element (``DML_ELEMENT_WISE_ASINH_OPERATOR_DESC``)."""

    ONNX = ("Asinh",)
    SUPPORT = support("2.0 F r4 · 3.0 r8 · ext +D")
    STEPS = 4
    KERNEL = mathematics.asinh
    NARROW = True
    NUMPY = np.arcsinh
    GRADIENT = gradients(input="divide(gradient, sqrt(add(multiply(input, input), 1)))")


class ElementWiseAtan(Scaled):
    """The inverse tangent of each element (``DML_ELEMENT_WISE_ATAN_OPERATOR_DESC``)."""

    ONNX = ("Atan",)
    STEPS = 3
    KERNEL = mathematics.atan
    NUMPY = np.arctan
    GRADIENT = gradients(input="divide(gradient, add(multiply(input, input), 1))")


class ElementWiseAtanh(Scaled):
    """The inverse hyperbolic tangent of each element (``DML_ELEMENT_WISE_ATANH_OPERATOR_DESC``). Of 1 it is infinity, above NaN."""

    ONNX = ("Atanh",)
    SUPPORT = support("2.0 F r4 · 3.0 r8 · ext +D")
    STEPS = 4
    KERNEL = mathematics.atanh
    NARROW = True
    NUMPY = np.arctanh
    GRADIENT = gradients(input="divide(gradient, subtract(1, multiply(input, input)))")


class ElementWiseCosh(Scaled):
    """The hyperbolic cosine of each element (``DML_ELEMENT_WISE_COSH_OPERATOR_DESC``)."""

    ONNX = ("Cosh",)
    SUPPORT = support("2.0 F r4 · 3.0 r8 · ext +D")
    STEPS = 3
    KERNEL = mathematics.cosh
    NUMPY = np.cosh
    GRADIENT = gradients(input="multiply(gradient, sinh(input))")


class ElementWiseErf(Scaled):
    """The error function of each element (``DML_ELEMENT_WISE_ERF_OPERATOR_DESC``)."""

    ONNX = ("Erf",)
    SUPPORT = support("2.0 F r4 · 3.0 r8 · ext +D")
    STEPS = 3
    KERNEL = mathematics.erf
    NUMPY = _erf
    GRADIENT = gradients(input="multiply(gradient, multiply(exp(negate(multiply(input, input))), 1.1283791670955126))")


class ElementWiseExp(Scaled):
    """e to the power of each element (``DML_ELEMENT_WISE_EXP_OPERATOR_DESC``)."""

    ONNX = ("Exp",)
    STEPS = 2
    KERNEL = mathematics.exp
    NUMPY = np.exp
    GRADIENT = gradients(input="multiply(gradient, result)")


class ElementWiseLog(Scaled):
    """The natural logarithm of each element (``DML_ELEMENT_WISE_LOG_OPERATOR_DESC``). Of 0 it is -infinity, below NaN."""

    ONNX = ("Log",)
    STEPS = 2
    KERNEL = mathematics.log
    NARROW = True
    NUMPY = np.log
    GRADIENT = gradients(input="divide(gradient, input)")


class ElementWiseSinh(Scaled):
    """The hyperbolic sine of each element (``DML_ELEMENT_WISE_SINH_OPERATOR_DESC``)."""

    ONNX = ("Sinh",)
    SUPPORT = support("2.0 F r4 · 3.0 r8 · ext +D")
    STEPS = 4
    KERNEL = mathematics.sinh
    NUMPY = np.sinh
    GRADIENT = gradients(input="multiply(gradient, cosh(input))")


class ElementWiseTanh(Scaled):
    """The hyperbolic tangent of each element (``DML_ELEMENT_WISE_TANH_OPERATOR_DESC``)."""

    ONNX = ("Tanh",)
    SUPPORT = support("2.0 F r4 · 3.0 r8 · ext +D")
    STEPS = 3
    KERNEL = mathematics.tanh
    NUMPY = np.tanh
    GRADIENT = gradients(input="multiply(gradient, subtract(1, multiply(result, result)))")


class ElementWiseCos(Scaled):
    """The cosine of each element, an angle of any size (``DML_ELEMENT_WISE_COS_OPERATOR_DESC``)."""

    ONNX = ("Cos",)
    STEPS = 3
    KERNEL = mathematics.cos
    NARROW = True
    NUMPY = np.cos
    GRADIENT = gradients(input="multiply(negate(gradient), sin(input))")


class ElementWiseSin(Scaled):
    """The sine of each element, an angle of any size (``DML_ELEMENT_WISE_SIN_OPERATOR_DESC``)."""

    ONNX = ("Sin",)
    STEPS = 3
    KERNEL = mathematics.sin
    NARROW = True
    NUMPY = np.sin
    GRADIENT = gradients(input="multiply(gradient, cos(input))")


class ElementWiseTan(Scaled):
    """The tangent of each element, an angle of any size (``DML_ELEMENT_WISE_TAN_OPERATOR_DESC``)."""

    ONNX = ("Tan",)
    STEPS = 4
    KERNEL = mathematics.tan
    NARROW = True
    NUMPY = np.tan
    GRADIENT = gradients(input="multiply(gradient, add(multiply(result, result), 1))")


class ElementWiseAtanYx(Binary):
    """The angle of each point, of which ``a`` has y, and ``b`` has x (``DML_ELEMENT_WISE_ATAN_YX_OPERATOR_DESC``).

    It is from -pi to pi, as in C: the signs of zeros count, and infinities have angles, too.
    """

    SUPPORT = support("3.1 F r8 · ext +D")
    STEPS = 4
    KERNEL = mathematics.atan2
    NUMPY = np.arctan2
    GRADIENT = gradients(
        a="divide(multiply(gradient, b), add(multiply(a, a), multiply(b, b)))",
        b="divide(multiply(gradient, negate(a)), add(multiply(a, a), multiply(b, b)))",
    )
