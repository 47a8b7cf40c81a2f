"""Pointwise operators whose result is a truth value: 1 or 0."""

from __future__ import annotations

import operator
from typing import Any

import numpy as np

from tvmdml.enums import IsInfinityMode
from tvmdml.kernels import tensorir_values as T
from tvmdml.operators._contract import NumpyArray, defaults
from tvmdml.operators._onnx import NotConvertible, OnnxNode
from tvmdml.operators._pointwise import Unary
from tvmdml.operators._pointwise_forms import Comparison, Logical
from tvmdml.operators._support import support


class ElementWiseIsNan(Unary):
    """Whether each element is NaN, quiet or signalling (``DML_ELEMENT_WISE_IS_NAN_OPERATOR_DESC``): 1 or 0."""

    DTYPES = defaults(output_dtype="output_tensor")
    ONNX = ("IsNaN",)
    SUPPORT = support("2.0 F r4 · 3.0 r8 · ext +D", output_tensor="2.0 B r4 · 3.0 r8")
    KERNEL = T.is_nan
    NUMPY = np.isnan
    SHARES = ()


class ElementWiseIsInfinity(Unary):
    """Whether each element is an infinity (``DML_ELEMENT_WISE_IS_INFINITY_OPERATOR_DESC``): 1 or 0.

    Args:
        infinity_mode: ``"positive"`` or ``"negative"`` for one of the infinities only, or ``"either"``.
    """

    DEFAULTS = defaults(infinity_mode=IsInfinityMode.EITHER)
    DTYPES = defaults(output_dtype="output_tensor")
    ONNX = ("IsInf",)
    SUPPORT = support("2.1 F r4 · 3.0 r8 · ext +D", output_tensor="2.1 u8 r4 · 3.0 r8")
    SHARES = ()

    infinity_mode: IsInfinityMode

    @classmethod
    def from_onnx(cls, node: OnnxNode) -> ElementWiseIsInfinity:
        detected = node.integer("detect_positive", 1), node.integer("detect_negative", 1)
        modes = {(1, 1): IsInfinityMode.EITHER, (1, 0): IsInfinityMode.POSITIVE, (0, 1): IsInfinityMode.NEGATIVE}
        if detected not in modes:
            raise NotConvertible("it detects no infinity")
        return cls.of(node.tensor(), infinity_mode=modes[detected])

    def value(self, x: Any) -> Any:
        if self.infinity_mode is IsInfinityMode.EITHER:
            return T.expression(T.is_infinite(x))
        return T.expression(x == T.like(x, np.inf if self.infinity_mode is IsInfinityMode.POSITIVE else -np.inf))

    def numpy(self, x: NumpyArray) -> Any:
        return getattr(np, {"EITHER": "isinf", "POSITIVE": "isposinf", "NEGATIVE": "isneginf"}[self.infinity_mode.name])(x)


class ElementWiseLogicalNot(Unary):
    """Whether each element is 0 (``DML_ELEMENT_WISE_LOGICAL_NOT_OPERATOR_DESC``): 1 or 0."""

    ONNX = ("Not",)
    SUPPORT = support("1.0 u r4 · 2.0 B · 3.0 r8")
    TAKES_BOOL = True

    def value(self, x: Any) -> Any:
        return T.expression(x == T.like(x, 0))

    def numpy(self, x: NumpyArray) -> NumpyArray:
        return np.logical_not(x)


class ElementWiseLogicalAnd(Logical):
    """Whether both elements are not 0 (``DML_ELEMENT_WISE_LOGICAL_AND_OPERATOR_DESC``): 1 or 0."""

    ONNX = ("And",)
    INFIX = operator.and_


class ElementWiseLogicalOr(Logical):
    """Whether one or both of two elements are not 0 (``DML_ELEMENT_WISE_LOGICAL_OR_OPERATOR_DESC``): 1 or 0."""

    ONNX = ("Or",)
    INFIX = operator.or_


class ElementWiseLogicalXor(Logical):
    """Whether exactly one of two elements is not 0 (``DML_ELEMENT_WISE_LOGICAL_XOR_OPERATOR_DESC``): 1 or 0."""

    ONNX = ("Xor",)
    INFIX = operator.xor


class ElementWiseLogicalEquals(Comparison):
    """Whether two elements are equal (``DML_ELEMENT_WISE_LOGICAL_EQUALS_OPERATOR_DESC``): 1 or 0. NaN equals nothing."""

    FUNCTION = "equals"
    ONNX = ("Equal",)
    INFIX = operator.eq


class ElementWiseLogicalGreaterThan(Comparison):
    """Whether ``a`` is greater than ``b`` (``DML_ELEMENT_WISE_LOGICAL_GREATER_THAN_OPERATOR_DESC``): 1 or 0. NaN is not."""

    FUNCTION = "greater_than"
    ONNX = ("Greater",)
    INFIX = operator.gt


class ElementWiseLogicalLessThan(Comparison):
    """Whether ``a`` is less than ``b`` (``DML_ELEMENT_WISE_LOGICAL_LESS_THAN_OPERATOR_DESC``): 1 or 0. NaN is not."""

    FUNCTION = "less_than"
    ONNX = ("Less",)
    INFIX = operator.lt


class ElementWiseLogicalGreaterThanOrEqual(Comparison):
    """Whether ``a`` is not less than ``b`` (``DML_ELEMENT_WISE_LOGICAL_GREATER_THAN_OR_EQUAL_OPERATOR_DESC``): 1 or 0.

    It is 0 if one of them is NaN.
    """

    FUNCTION = "greater_than_or_equal"
    ONNX = ("GreaterOrEqual",)
    SUPPORT = support("3.0 FIU r8 · 4.1 +LW · ext +D", output_tensor="3.0 B r8")
    INFIX = operator.ge


class ElementWiseLogicalLessThanOrEqual(Comparison):
    """Whether ``a`` is not greater than ``b`` (``DML_ELEMENT_WISE_LOGICAL_LESS_THAN_OR_EQUAL_OPERATOR_DESC``): 1 or 0.

    It is 0 if one of them is NaN.
    """

    FUNCTION = "less_than_or_equal"
    ONNX = ("LessOrEqual",)
    SUPPORT = support("3.0 FIU r8 · 4.1 +LW · ext +D", output_tensor="3.0 B r8")
    INFIX = operator.le
