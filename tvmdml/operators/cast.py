"""DML_OPERATOR_CAST: elements in another data type."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

from tvmdml.operators._contract import Input, NumpyArray, Output
from tvmdml.operators._gradients import gradients
from tvmdml.operators._onnx import NotConvertible, OnnxNode
from tvmdml.operators._onnx_messages import numpy_type
from tvmdml.operators._pointwise import Pointwise, unchanged
from tvmdml.operators._support import support
from tvmdml.tensors import TensorDataType, TensorDesc

_TYPES = "1.0 FIU r4 · 3.0 +LW · 3.1 r8 · 4.1 +D"


class Cast(Pointwise):
    """Each element in another data type (``DML_CAST_OPERATOR_DESC``).

    A float becomes an integer toward zero, saturating, and 0 for NaN. An integer becomes another one by its low bits. Everything
    else is rounded once, halves to even. Of the same type it is a copy, bit by bit.
    """

    FUNCTION = ""
    ONNX = ("Cast", "CastLike")
    SUPPORT = support(input_tensor=_TYPES, output_tensor=_TYPES)
    KERNEL = unchanged
    TAKES_BOOL = True
    GRADIENT = gradients(input="gradient")

    input_tensor: Input
    output_tensor: Output

    def infer(self) -> Mapping[str, TensorDesc]:
        """The output has the input's sizes; its type must be asked for, or is the input's."""
        return {"output_tensor": self.input_tensor.with_sizes(self.input_tensor.sizes)}

    @classmethod
    def from_onnx(cls, node: OnnxNode) -> Cast:
        """From bool, elements are 0 or 1; to bool there is no descriptor."""
        if node.kind == "CastLike":
            return cls.of(node.tensor(boolean=True), output_tensor=node.tensor(1).data_type)
        wanted = numpy_type(node.integer("to", 0))
        if wanted is None or np.dtype(wanted).kind == "b":
            raise NotConvertible("the type of its output is not one of DirectML's")
        return cls.of(node.tensor(boolean=True), output_tensor=TensorDataType.of(wanted, "to"))

    def numpy(self, x: NumpyArray) -> NumpyArray:
        return x if self._in_bits() else converted(x, self.output_tensor.data_type.numpy)

    def _in_bits(self) -> bool:
        return self.input_tensor.data_type is self.output_tensor.data_type


def converted(x: NumpyArray, dtype: Any) -> NumpyArray:
    """What the operator makes of elements, in NumPy; bool counts as an integer here."""
    dtype = np.dtype(dtype)
    if x.dtype.kind != "f" or dtype.kind not in "iu":
        return x.astype(dtype)
    limits = np.iinfo(dtype)
    wide = x.astype(np.float64)
    inside: NumpyArray = np.where((wide > limits.min) & (wide < limits.max), wide, 0).astype(dtype)
    return np.where(wide >= limits.max, limits.max, np.where(wide <= limits.min, limits.min, inside)).astype(dtype)
