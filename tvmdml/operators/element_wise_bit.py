"""Pointwise operators on the bits of elements, whatever their type. Only shifts are defined for unsigned integers alone."""

from __future__ import annotations

import operator

import numpy as np

from tvmdml.kernels import tensorir_values as T
from tvmdml.operators._contract import NumpyArray, Operator, defaults
from tvmdml.operators._onnx import OnnxNode
from tvmdml.operators._pointwise import Binary, Unary
from tvmdml.operators._pointwise_forms import Bitwise
from tvmdml.operators._support import support


class ElementWiseBitNot(Unary):
    """Each element with all its bits inverted (``DML_ELEMENT_WISE_BIT_NOT_OPERATOR_DESC``)."""

    ONNX = ("BitwiseNot",)
    SUPPORT = support("3.0 U r8 · 4.1 all")
    KERNEL = NUMPY = operator.invert
    BITS = True


class ElementWiseBitAnd(Bitwise):
    """The bits that are set in both elements (``DML_ELEMENT_WISE_BIT_AND_OPERATOR_DESC``)."""

    ONNX = ("BitwiseAnd",)
    INFIX = operator.and_


class ElementWiseBitOr(Bitwise):
    """The bits that are set in one or both of two elements (``DML_ELEMENT_WISE_BIT_OR_OPERATOR_DESC``)."""

    ONNX = ("BitwiseOr",)
    INFIX = operator.or_


class ElementWiseBitXor(Bitwise):
    """The bits that are set in exactly one of two elements (``DML_ELEMENT_WISE_BIT_XOR_OPERATOR_DESC``)."""

    ONNX = ("BitwiseXor",)
    INFIX = operator.xor


class ElementWiseBitCount(Unary):
    """The number of set bits of each element (``DML_ELEMENT_WISE_BIT_COUNT_OPERATOR_DESC``)."""

    DTYPES = defaults(output_dtype="output_tensor")
    SUPPORT = support("3.0 U r8 · 4.1 all", output_tensor="3.0 B r8")
    KERNEL = T.bit_count
    SHARES = ()
    BITS = True

    def numpy(self, x: NumpyArray) -> NumpyArray:
        return np.bitwise_count(x).astype(self.output_tensor.data_type.numpy)


class ElementWiseBitShiftLeft(Binary):
    """The bits of ``a``, moved up ``b`` places (``DML_ELEMENT_WISE_BIT_SHIFT_LEFT_OPERATOR_DESC``).

    Beyond the width of the type the result is 0.
    """

    ONNX = ("BitShift",)
    SUPPORT = support("2.1 U r4 · 3.0 r8 · 4.1 +W")
    KERNEL = T.shift_left

    @classmethod
    def from_onnx(cls, node: OnnxNode) -> Operator:
        return (cls if node.attributes.get("direction") == b"LEFT" else ElementWiseBitShiftRight).of(*node.tensors())

    def numpy(self, a: NumpyArray, b: NumpyArray) -> NumpyArray:
        return np.where(b < 8 * a.itemsize, np.left_shift(a, b), a.dtype.type(0))


class ElementWiseBitShiftRight(Binary):
    """The bits of ``a``, moved down ``b`` places (``DML_ELEMENT_WISE_BIT_SHIFT_RIGHT_OPERATOR_DESC``).

    Beyond the width of the type the result is 0.
    """

    SUPPORT = support("2.1 U r4 · 3.0 r8 · 4.1 +W")
    KERNEL = T.shift_right

    def numpy(self, a: NumpyArray, b: NumpyArray) -> NumpyArray:
        return np.where(b < 8 * a.itemsize, np.right_shift(a, b), a.dtype.type(0))
