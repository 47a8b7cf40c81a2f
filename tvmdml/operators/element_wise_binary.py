"""Pointwise operators of two inputs and an output of one type, and IF, which chooses between two inputs."""

from __future__ import annotations

import operator
from types import MappingProxyType
from typing import Any

import numpy as np

from tvmdml.kernels import tensorir_values as T
from tvmdml.operators._contract import Input, NumpyArray, Operator, OptionalOperator, Output
from tvmdml.operators._fused import ACTIVATIONS
from tvmdml.operators._gradients import gradients
from tvmdml.operators._onnx import NotConvertible, OnnxNode
from tvmdml.operators._pointwise import Binary, Pointwise
from tvmdml.operators._pointwise_forms import Infix
from tvmdml.operators._support import support


class ElementWiseAdd(Infix):
    """The sums of elements (``DML_ELEMENT_WISE_ADD_OPERATOR_DESC``). Integers wrap."""

    FUNCTION = ""
    ONNX = ("Add", "Sum")
    SUPPORT = support("1.0 F r45 · 2.1 +iu · 3.0 r8 · 4.1 +LW · 5.1 +IU · ext +D")
    INFIX = operator.add

    @classmethod
    def from_onnx(cls, node: OnnxNode) -> Operator:
        tensors = node.tensors()
        if len(tensors) != 2:
            raise NotConvertible(f"it has {len(tensors)} inputs: DirectML adds two at a time")
        return cls.of(*tensors)


class ElementWiseAdd1(Infix):
    """The sums of elements (``DML_ELEMENT_WISE_ADD1_OPERATOR_DESC``), passed through an activation if there is one.

    Integers wrap; with an activation elements are floats, and the sum is not rounded to float16 before it.

    Args:
        a_tensor: the elements, of any of the eleven data types; a shape of up to 8 dimensions.
        b_tensor: the same.
        fused_activation: such as ``tvmdml.ActivationLeakyRelu.fused(alpha=0.1)``; none by default.
    """

    FUNCTION = "add"
    SUPPORT = support("2.0 F r45 · 3.0 r8 · ext +D")
    FUSES = MappingProxyType({name: max(level, "2.0") for name, level in ACTIVATIONS.items()})
    INFIX = operator.add
    GRADIENT = gradients(a="gradient", b="gradient")

    fused_activation: OptionalOperator = None

    @classmethod
    def of_call(cls, *inputs: Any, **given: Any) -> Operator:
        """Without an activation ADD, which has integers, too."""
        return ElementWiseAdd.of(*inputs) if given["fused_activation"] is None else cls.of(*inputs, **given)

    def value(self, a: Any, b: Any) -> Any:
        return a + b if self.fused_activation is None else _pointwise(self.fused_activation).value(a + b)

    def numpy(self, a: NumpyArray, b: NumpyArray) -> Any:
        return a + b if self.fused_activation is None else _pointwise(self.fused_activation).numpy(a + b)

    def steps(self) -> int:
        return 0 if self.fused_activation is None else _pointwise(self.fused_activation).steps()

    def error(self, a: NumpyArray, b: NumpyArray) -> Any:
        return 0.0 if self.fused_activation is None else _pointwise(self.fused_activation).error(a + b)


class ElementWiseSubtract(Infix):
    """The differences of elements (``DML_ELEMENT_WISE_SUBTRACT_OPERATOR_DESC``). Integers wrap."""

    ONNX = ("Sub",)
    SUPPORT = support("1.0 F r4 · 2.1 +iu · 3.0 r8 · 4.1 +LW · 5.1 +IU · ext +D")
    INFIX = operator.sub
    GRADIENT = gradients(a="gradient", b="negate(gradient)")


class ElementWiseMultiply(Infix):
    """The products of elements (``DML_ELEMENT_WISE_MULTIPLY_OPERATOR_DESC``). Integers wrap."""

    ONNX = ("Mul",)
    SUPPORT = support("1.0 F r45 · 2.1 +iu · 3.0 r8 · 4.1 +LW · 5.1 +IU · ext +D")
    INFIX = operator.mul
    GRADIENT = gradients(a="multiply(gradient, b)", b="multiply(gradient, a)")


class ElementWiseDivide(Binary):
    """The quotients of elements; of integers toward zero (``DML_ELEMENT_WISE_DIVIDE_OPERATOR_DESC``).

    An integer divided by 0 is 0, and the least integer divided by -1 is itself.
    """

    ONNX = ("Div",)
    SUPPORT = support("1.0 F r4 · 2.1 +iu · 3.0 r8 · 5.1 +IU · 6.0 +LW · ext +D")
    GRADIENT = gradients(a="divide(gradient, b)", b="multiply(negate(gradient), divide(result, b))")

    def value(self, a: Any, b: Any) -> Any:
        return a / b if T.is_float(a) else T.quotient(a, b)

    def numpy(self, a: NumpyArray, b: NumpyArray) -> Any:
        return quotient(a, b)


def quotient(a: NumpyArray, b: NumpyArray) -> Any:
    """What DIVIDE makes of elements, in NumPy."""
    if a.dtype.kind == "f":
        return np.divide(a, b)
    down = a // b
    inexact = (b != 0) & (down * b != a)
    return down + (inexact & ((a < 0) != (b < 0)))


class ElementWiseMean(Binary):
    """The mean of two elements; of integers the exact one, toward zero (``DML_ELEMENT_WISE_MEAN_OPERATOR_DESC``).

    The sum of two floats may overflow; that of integers does not.
    """

    ONNX = ("Mean",)
    SUPPORT = support("1.0 F r4 · 2.1 +iu · 3.0 r8 · ext +DIULW")
    GRADIENT = gradients(a="multiply(gradient, 0.5)", b="multiply(gradient, 0.5)")

    def value(self, a: Any, b: Any) -> Any:
        return (a + b) / T.like(a, 2) if T.is_float(a) else T.mean(a, b)

    def numpy(self, a: NumpyArray, b: NumpyArray) -> Any:
        if a.dtype.kind == "f":
            return (a + b) / a.dtype.type(2)
        down = (a >> 1) + (b >> 1) + (a & b & 1)
        return down + ((down < 0) & ((a ^ b) & 1 != 0))


class ElementWiseDifferenceSquare(Binary):
    """The squares of differences (``DML_ELEMENT_WISE_DIFFERENCE_SQUARE_OPERATOR_DESC``). Integers wrap."""

    SUPPORT = support("3.1 Fiu r8 · ext +DIULW")
    GRADIENT = gradients(a="multiply(multiply(gradient, 2), subtract(a, b))", b="multiply(multiply(gradient, 2), subtract(b, a))")

    def value(self, a: Any, b: Any) -> Any:
        difference = T.wrapped(a - b)
        return difference * difference

    def numpy(self, a: NumpyArray, b: NumpyArray) -> Any:
        return np.square(a - b)


class ElementWiseMax(Binary):
    """The greater of two elements (``DML_ELEMENT_WISE_MAX_OPERATOR_DESC``): NaN if one is NaN, and ``b`` if they are equal."""

    ONNX = ("Max",)
    SUPPORT = support("1.0 F r4 · 2.1 +IU · 3.0 r8 · 5.0 +LW · ext +D")
    KERNEL = T.maximum
    GRADIENT = gradients(a="where(greater_than(a, b), gradient, 0)", b="where(greater_than(a, b), 0, gradient)")

    def numpy(self, a: NumpyArray, b: NumpyArray) -> NumpyArray:
        return greater(a, b)


def greater(a: NumpyArray, b: NumpyArray) -> NumpyArray:
    """What MAX makes of elements, in NumPy."""
    return np.where((a > b) | np.isnan(a), a, b)


class ElementWiseMin(Binary):
    """The less of two elements (``DML_ELEMENT_WISE_MIN_OPERATOR_DESC``): NaN if one is NaN, and ``b`` if they are equal."""

    ONNX = ("Min",)
    SUPPORT = support("1.0 F r4 · 2.1 +IU · 3.0 r8 · 5.0 +LW · ext +D")
    KERNEL = T.minimum
    GRADIENT = gradients(a="where(less_than(a, b), gradient, 0)", b="where(less_than(a, b), 0, gradient)")

    def numpy(self, a: NumpyArray, b: NumpyArray) -> NumpyArray:
        return less(a, b)


def less(a: NumpyArray, b: NumpyArray) -> NumpyArray:
    """What MIN makes of elements, in NumPy."""
    return np.where((a < b) | np.isnan(a), a, b)


class ElementWiseModulusTruncate(Binary):
    """The remainder of the quotient toward zero, with the sign of ``a`` (``DML_ELEMENT_WISE_MODULUS_TRUNCATE_OPERATOR_DESC``).

    It is exact: C's fmod, for integers C's %, but 0 for integers and a divisor of 0.
    """

    SUPPORT = support("2.1 FIU r4 · 3.0 r8 · 6.0 +LW · ext +D")
    FUSED = True
    KERNEL = T.remainder
    NUMPY = np.fmod
    GRADIENT = gradients(a="gradient", b="multiply(negate(gradient), round(divide(a, b), rounding_mode='toward_zero'))")


class ElementWiseModulusFloor(Binary):
    """The remainder of the quotient rounded down, with the sign of ``b`` (``DML_ELEMENT_WISE_MODULUS_FLOOR_OPERATOR_DESC``).

    It is Python's %, but 0 for integers and a divisor of 0.
    """

    ONNX = ("Mod",)
    SUPPORT = support("2.1 FIU r4 · 3.0 r8 · 6.0 +LW · ext +D")
    FUSED = True
    KERNEL = T.floor_remainder
    NUMPY = np.mod
    GRADIENT = gradients(a="gradient", b="multiply(negate(gradient), floor(divide(a, b)))")

    @classmethod
    def from_onnx(cls, node: OnnxNode) -> Operator:
        return (ElementWiseModulusTruncate if node.integer("fmod", 0) else cls).of(*node.tensors())


class ElementWiseIf(Pointwise):
    """Elements of ``a`` where the condition is not 0, otherwise of ``b`` (``DML_ELEMENT_WISE_IF_OPERATOR_DESC``), bit by bit."""

    FUNCTION = "where"
    ONNX = ("Where",)
    SUPPORT = support("2.0 f16 r4 · 2.1 FIU · 3.0 r8 · 5.0 all", condition_tensor="2.0 u8 r4 · 3.0 r8")
    BITS = True
    TAKES_BOOL = True
    GRADIENT = gradients(a="where(condition, gradient, 0)", b="where(condition, 0, gradient)")

    condition_tensor: Input
    a_tensor: Input
    b_tensor: Input
    output_tensor: Output

    def value(self, condition: Any, a: Any, b: Any) -> Any:
        return T.select(T.to(condition, "bool"), a, b)

    def numpy(self, condition: NumpyArray, a: NumpyArray, b: NumpyArray) -> NumpyArray:
        return np.where(condition != 0, a, b)


def _pointwise(activation: Operator) -> Pointwise:
    assert isinstance(activation, Pointwise), f"{activation.NAME} is no activation"
    return activation
