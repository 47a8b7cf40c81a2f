"""DML_OPERATOR_FILL_VALUE_CONSTANT and FILL_VALUE_SEQUENCE: tensors of numbers, without an input."""

from __future__ import annotations

import dataclasses
import math
from typing import Any

import numpy as np

from tvmdml.kernels import tensorir_values as T
from tvmdml.operators._contract import NumpyArray, Scalar
from tvmdml.operators._onnx import NotConvertible, OnnxNode
from tvmdml.operators._onnx_messages import elements
from tvmdml.operators._pointwise_fill import FillOperator
from tvmdml.operators._support import support
from tvmdml.tensors import MAX_ELEMENTS, ArrayTensorDesc, TensorDataType


class FillValueConstant(FillOperator):
    """One number in every element (``DML_FILL_VALUE_CONSTANT_OPERATOR_DESC``)."""

    FUNCTION = ""
    ONNX = ("ConstantOfShape",)
    SUPPORT = support("2.1 FIU r4 · 4.0 r8 · 4.1 +DLW")
    BITS = True

    value: Scalar = dataclasses.field()  # type: ignore[assignment] # DirectML's field, instead of the method

    @classmethod
    def from_onnx(cls, node: OnnxNode) -> FillValueConstant:
        given = node.attributes.get("value")
        number = np.zeros(1, np.float32) if given is None else elements(given)
        sizes = node.constants("shape", 0)
        result = ArrayTensorDesc(TensorDataType.of(number.dtype, "value"), sizes or (1,), zero_dimensional=not sizes)
        return cls.of(output_tensor=result, value=number.item())

    def expression(self, number: Any) -> Any:
        return T.like(T.cast(number, f"uint{8 * self.output_tensor.data_type.itemsize}"), self.bits(self.value))

    def numpy(self, number: NumpyArray) -> NumpyArray:
        return np.full(number.shape, self.element(self.value)).view(f"u{self.output_tensor.data_type.itemsize}")


class FillValueSequence(FillOperator):
    """Evenly spaced numbers (``DML_FILL_VALUE_SEQUENCE_OPERATOR_DESC``): the k-th element is ``value_start + k * value_delta``.

    Elements count in row-major order. Integers wrap; the product and the sum of floats are rounded.
    """

    FUNCTION = ""
    ONNX = ("Range",)
    SUPPORT = support("2.1 FIU r4 · 4.0 r8 · 5.0 +LW · ext +D")
    COUNTED = True

    value_start: Scalar
    value_delta: Scalar

    @classmethod
    def from_onnx(cls, node: OnnxNode) -> FillValueSequence:
        start, limit, delta = (node.constant(name, i) for i, name in enumerate(("start", "limit", "delta")))
        result = ArrayTensorDesc(node.tensor().data_type, (length(start, limit, delta),))
        return cls.of(output_tensor=result, value_start=start, value_delta=delta)

    def value(self, number: Any) -> Any:
        data_type = self.output_tensor.data_type
        if data_type.is_float:
            x = T.to(number, "float64" if data_type is TensorDataType.FLOAT64 else "float32")
            start, delta = (T.like(x, float(self.element(one))) for one in (self.value_start, self.value_delta))
            return T.rounded(x * delta) + start
        x = T.cast(number, f"uint{8 * data_type.itemsize}")
        start, delta = (self.bits(one) for one in (self.value_start, self.value_delta))
        found = T.wrapped(x * T.hidden(x, delta)) + T.hidden(x, start) if delta else T.like(x, start)
        return T.reinterpret(found, data_type.tvm)

    def numpy(self, number: NumpyArray) -> NumpyArray:
        start, delta = self.element(self.value_start), self.element(self.value_delta)
        kind = np.float32 if start.dtype == np.float16 else start.dtype
        return number.astype(kind) * delta.astype(kind) + start.astype(kind)


def length(start: float, limit: float, delta: float) -> int:
    """How many elements ONNX's Range has.

    Raises:
        Refused: there is no such number.
    """
    count = (limit - start) / delta if delta else math.nan
    if not math.isfinite(count):
        raise NotConvertible(f"it goes from {start} to {limit} by {delta}: the delta may not be 0, and all must be finite")
    if count > MAX_ELEMENTS:
        raise NotConvertible(f"it goes from {start} to {limit} by {delta}: a tensor has at most 2^32 - 1 elements")
    return max(math.ceil(count), 0)
