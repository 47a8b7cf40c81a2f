"""DML_OPERATOR_PADDING and PADDING1: elements around a tensor."""

from __future__ import annotations

from tvmdml.enums import PaddingMode
from tvmdml.kernels import tensorir_values as T
from tvmdml.operators._contract import Float, Input, Output, Scalar, Uints, defaults
from tvmdml.operators._movement_padding import Padded
from tvmdml.operators._onnx import NotConvertible, OnnxNode
from tvmdml.operators._scalars import require_number
from tvmdml.operators._support import support
from tvmdml.tensors import TensorDataType

_ONNX = {"constant": PaddingMode.CONSTANT, "edge": PaddingMode.EDGE, "reflect": PaddingMode.REFLECTION, "wrap": PaddingMode.WRAP}


class Padding(Padded):
    """Elements around a tensor (``DML_PADDING_OPERATOR_DESC``).

    The padding value is rounded to float16, cut and saturated for integers; NaN is 0 there.
    """

    SUPPORT = support("1.0 F r45 · 2.1 FIU · 3.1 r8 · 5.0 all")

    input_tensor: Input
    output_tensor: Output
    padding_mode: PaddingMode
    padding_value: Float
    start_padding: Uints
    end_padding: Uints

    def number(self) -> int | float:
        data_type = self.input_tensor.data_type
        return self.padding_value if data_type.is_float else T.saturated(self.padding_value, data_type.tvm)


class Padding1(Padded):
    """Elements around a tensor (``DML_PADDING1_OPERATOR_DESC``): a number, or elements of the tensor.

    The modes repeat for padding of any length: ``"reflection"`` mirrors without the edge, ``"symmetric"`` with it, and ``"wrap"``
    begins again on the other side.

    Args:
        padding_mode: ``"constant"``, ``"edge"``, ``"reflection"``, ``"symmetric"`` or ``"wrap"``.
        padding_value: the number for ``"constant"``; the input's type must have it.
        start_padding: the number of new elements before each dimension.
        end_padding: that behind each dimension.
    """

    FUNCTION = "padding"
    SUPPORT = support("5.0 all r8")
    DEFAULTS = defaults(padding_mode=PaddingMode.CONSTANT, padding_value=0)
    ONNX = ("Pad",)

    input_tensor: Input
    output_tensor: Output
    padding_mode: PaddingMode
    padding_value_data_type: TensorDataType
    padding_value: Scalar
    start_padding: Uints
    end_padding: Uints

    @classmethod
    def from_onnx(cls, node: OnnxNode) -> Padding1:
        """Paddings of all dimensions, or of some axes."""
        x = node.tensor(boolean=True)
        pads = node.constants("pads", 1)
        axes = node.constants("axes", 3) if node.has(3) else range(x.rank)
        mode = node.attributes.get("mode", b"constant").decode()
        if mode not in _ONNX or min(pads) < 0:
            raise NotConvertible(f"its mode is {mode}" if mode not in _ONNX else "its pads are negative")
        starts, ends = [0] * x.rank, [0] * x.rank
        for axis, start, end in zip(axes, pads, pads[len(pads) // 2 :], strict=False):
            starts[axis], ends[axis] = start, end
        value = node.constant("constant_value", 2) if node.has(2) else 0
        return cls.of(x, padding_mode=_ONNX[mode], padding_value=value, start_padding=starts, end_padding=ends)

    def check(self) -> None:
        """The number has the tensors' type."""
        super().check()
        stated, own = self.padding_value_data_type, self.input_tensor.data_type
        self.require(stated is own, "padding_value_data_type", stated.tvm, f"{own.tvm}, the input's type")
        require_number(self, "padding_value", own)

    def number(self) -> int | float:
        return self.padding_value
