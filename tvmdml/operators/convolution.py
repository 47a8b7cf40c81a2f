"""DML_OPERATOR_CONVOLUTION, CONVOLUTION_INTEGER and QUANTIZED_LINEAR_CONVOLUTION."""

from __future__ import annotations

from types import MappingProxyType
from typing import Any

import numpy as np

from tvmdml.enums import ConvolutionDirection, ConvolutionMode
from tvmdml.kernels import tensorir_values as T
from tvmdml.operators import _matrix_convolution_reference as sums
from tvmdml.operators._accuracy import Expected, Near
from tvmdml.operators._contract import (
    Input,
    NumpyArray,
    Operator,
    OptionalInput,
    OptionalOperator,
    Output,
    Uint,
    Uints,
    defaults,
)
from tvmdml.operators._fused import OF_CONVOLUTION
from tvmdml.operators._gradients import gradients
from tvmdml.operators._matrix_convolution import ABSENT, Convolving, of_channels, requantised
from tvmdml.operators._matrix_convolution_onnx import backward, forward
from tvmdml.operators._onnx import OnnxNode
from tvmdml.operators._reduction_activated import activated, activated_near
from tvmdml.operators._support import support
from tvmdml.operators.matrix_multiply_integer import requantized
from tvmdml.tensors import TensorDataType, TensorDesc

_SIZES = MappingProxyType({"output_sizes": Uints})
_ABSENT = {**dict.fromkeys(ABSENT), "output_sizes": None, "group_count": 1}
_INTEGER = {name: value for name, value in _ABSENT.items() if name != "output_padding"}
_BYTES, _SMALL, _SCALE = "2.1 bytes r4 · 4.0 r34", "2.1 bytes r4 · 4.0 r1-4", "2.1 f32 r4 · 4.0 r1-4"
_LEFT = "mode, direction, strides, dilations, start_padding"


class Convolution(Convolving):
    """What filters see in an image, or the way back (``DML_CONVOLUTION_OPERATOR_DESC``).

    Forward, an element of the output is the sum of the elements that a filter meets at its place, each times the filter's.
    Backward, each element of the input adds the filter, times itself, to the output. An image has a batch, channels and one to
    three spatial dimensions. The channels are in groups; a filter has the channels of its group. Forward, the filter's shape is
    (filters, channels of a group, ...), and backward (channels, filters of a group, ...). The bias has the shape
    (1, filters, 1, ...), or that of a vector.

    Args:
        mode: CROSS_CORRELATION by default; CONVOLUTION turns filters round.
        direction: FORWARD by default.
        start_padding: how many zeros are before each spatial dimension; 0 by default. Backward, they are left out of the output.
        output_padding: how many zeros are put behind the result, before the bias and the activation; 0 by default. PyTorch's and
            ONNX's is something else: they compute the elements there. For that give ``output_sizes``.
        fused_activation: such as ``tvmdml.ActivationRelu.fused()``; none by default.
        output_sizes: the sizes of the result. Backward, up to the larger one of a stride and a dilation, less one, may be added to
            the usual size.
    """

    FUNCTION = "convolution"
    SUPPORT = support("1.0 F r45 · 4.0 r3-5 · ext +D")
    DEFAULTS = defaults(
        **_ABSENT,
        mode=ConvolutionMode.CROSS_CORRELATION,
        direction=ConvolutionDirection.FORWARD,
        fused_activation=None,
    )
    ARGUMENTS = _SIZES
    FUSES = MappingProxyType(OF_CONVOLUTION)
    NUMBERED = (*Convolving.NUMBERED, "output_padding")
    ANY_NAN = True
    ONNX = ("Conv", "ConvTranspose")
    GRADIENT = gradients(
        input=f"input_gradient(gradient, input_sizes, filter, {_LEFT}, end_padding, output_padding, group_count)",
        filter=f"filter_gradient(gradient, input, filter_sizes, {_LEFT}, output_padding, group_count)",
        bias="bias_gradient(gradient, bias_sizes)",
    )

    input_tensor: Input
    filter_tensor: Input
    bias_tensor: OptionalInput = None
    output_tensor: Output
    mode: ConvolutionMode
    direction: ConvolutionDirection
    strides: Uints
    dilations: Uints
    start_padding: Uints
    end_padding: Uints
    output_padding: Uints
    group_count: Uint
    fused_activation: OptionalOperator = None

    @classmethod
    def from_onnx(cls, node: OnnxNode) -> Operator:
        """Both operators; a bias is a vector there."""
        x, w = node.tensor(0), node.tensor(1)
        given: dict[str, Any] = {"output_padding": [0] * max(x.rank - 2, 0)}
        if node.kind == "ConvTranspose":
            own, sizes = backward(node, x, w)
            given |= {"direction": ConvolutionDirection.BACKWARD, **own}
            given["output_tensor"] = x.with_sizes((x.sizes[0], w.sizes[1] * given["group_count"], *sizes))
        else:
            given |= forward(node, x, w)
        return cls.of(x, w, of_channels(node.tensor(2), x.rank) if node.has(2) else None, **given)

    def check(self) -> None:
        """All tensors have one type; the sizes are those that the numbers say."""
        for name in ("filter_tensor", "bias_tensor", "output_tensor"):
            if getattr(self, name) is not None:
                self.require_same("data_type", name, "input_tensor")
        super().check()
        self.require_channels("bias_tensor")

    def addends(self) -> tuple[tuple[str, TensorDesc], ...]:
        return self.of_channels("bias_tensor")

    def finish(self, total: Any, *values: Any) -> Any:
        return activated(self.fused_activation, total + values[0] if values else total)

    def finished_by(self) -> tuple[tuple[str, str], ...]:
        names = [field.name for field in self.fields() if field.name != "fused_activation"]
        return self.attributes_exactly(names)

    def reference(self, *inputs: NumpyArray | None) -> tuple[Expected, ...]:
        """The sums in higher precision, and what any order of additions may be off."""
        x, w, bias = inputs
        assert x is not None
        assert w is not None
        kind = np.float64 if x.dtype == np.float64 else np.float32
        with np.errstate(all="ignore"):
            a, b = sums.wide(x), sums.wide(w)
            total, magnitude = sums.convolved(self, a, b), sums.convolved(self, sums.magnitudes(a), sums.magnitudes(b))
            if bias is not None:
                total, magnitude = total + sums.wide(bias), magnitude + sums.magnitudes(sums.wide(bias))
            k, unit, limits = self.products(), np.finfo(kind).eps / 2, np.finfo(kind)
            error = ((1.01 * k + 4) * unit * magnitude + k * float(limits.tiny)).astype(np.float64)
            overflow = (magnitude > float(limits.max) * 0.499) & ~np.isnan(total)
            error = np.where(overflow | sums.meeting(self, x, w), np.nan, error)
            y, error = activated_near(self.fused_activation, total, error, x.dtype)
            return (Near(y, np.dtype(x.dtype), 0, error.astype(np.float64)),)


class ConvolutionInteger(Convolving):
    """The convolution of integers, exact (``DML_CONVOLUTION_INTEGER_OPERATOR_DESC``).

    Zero points are subtracted first: one of the input, and one of the filter or one for each of its channels. Padding contributes
    nothing. Sums are int32, modulo 2^32.
    """

    FUNCTION = "convolution_integer"
    SUPPORT = support(
        input_tensor=_BYTES,
        input_zero_point_tensor=_SMALL,
        filter_tensor=_BYTES,
        filter_zero_point_tensor=_SMALL,
        output_tensor="2.1 i r4 · 4.0 r34",
    )
    DEFAULTS = defaults(**_INTEGER)
    ARGUMENTS = _SIZES
    ONNX = ("ConvInteger",)
    ONNX_INPUTS = (0, 2, 1, 3)

    input_tensor: Input
    input_zero_point_tensor: OptionalInput = None
    filter_tensor: Input
    filter_zero_point_tensor: OptionalInput = None
    output_tensor: Output
    strides: Uints
    dilations: Uints
    start_padding: Uints
    end_padding: Uints
    group_count: Uint

    @classmethod
    def from_onnx(cls, node: OnnxNode) -> Operator:
        x, w = node.tensor(0), node.tensor(1)
        zeros = [node.tensor(i) if node.has(i) else None for i in (2, 3)]
        return cls.of(x, zeros[0], w, zeros[1], **forward(node, x, w))

    @classmethod
    def result_type(cls, *tensors: Any) -> TensorDataType:
        return TensorDataType.INT32

    def check(self) -> None:
        """Zero points have the types of their tensors, and one dimension count."""
        self._check_zeros()
        super().check()
        self.require_scale("input_zero_point_tensor", False)
        self.require_scale("filter_zero_point_tensor", True)

    def _check_zeros(self) -> None:
        for name in ("input", "filter"):
            if getattr(self, f"{name}_zero_point_tensor") is not None:
                self.require_same("data_type", f"{name}_zero_point_tensor", f"{name}_tensor")
        if self.input_zero_point_tensor is not None and self.filter_zero_point_tensor is not None:
            self.require_same("rank", "filter_zero_point_tensor", "input_zero_point_tensor")

    @property
    def computed(self) -> str:
        return "int32"

    def zero_points(self) -> Any:
        return _zeros(self)

    def finish(self, total: Any, *values: Any) -> Any:
        return total

    def finished_by(self) -> tuple[tuple[str, str], ...]:
        return ()

    def reference(self, *inputs: NumpyArray | None) -> tuple[Expected, ...]:
        """The sums in NumPy, exact."""
        x, x_zero, w, w_zero = inputs
        return (sums.wrapped(sums.of_integers(self, x, w, x_zero, w_zero)),)


class QuantizedLinearConvolution(Convolving):
    """The convolution of quantized numbers, quantized (``DML_QUANTIZED_LINEAR_CONVOLUTION_OPERATOR_DESC``).

    Numbers are ``(input - input_zero_point) * input_scale``, and those of the filter likewise; padding is 0. The bias is added to
    the sum of int32. That, times the scales of input and filter, over ``output_scale``, is rounded, halves to even, plus
    ``output_zero_point``, saturated. The result has the type of ``output_zero_point``, or else of the input. Scales and zero points
    are one for all; those of the filter may be one for each of its channels.
    """

    FUNCTION = "quantized_linear_convolution"
    SUPPORT = support(
        input_tensor=_BYTES,
        input_scale_tensor=_SCALE,
        input_zero_point_tensor=_SMALL,
        filter_tensor=_BYTES,
        filter_scale_tensor="2.1 f32 r4 · 4.0 r34 · 5.2 r1-4",
        filter_zero_point_tensor=_SMALL,
        bias_tensor="2.1 i r4 · 4.0 r34",
        output_scale_tensor=_SCALE,
        output_zero_point_tensor=_SMALL,
        output_tensor=_BYTES,
    )
    DEFAULTS = defaults(**_INTEGER)
    ARGUMENTS = _SIZES
    DTYPES = defaults(output_dtype="output_tensor")
    NUMBERS = defaults(input_scale_tensor="float32", filter_scale_tensor="float32", output_scale_tensor="float32")
    ONNX = ("QLinearConv",)
    ONNX_INPUTS = (0, 1, 2, 3, 4, 5, 8, 6, 7)

    input_tensor: Input
    input_scale_tensor: Input
    input_zero_point_tensor: OptionalInput = None
    filter_tensor: Input
    filter_scale_tensor: Input
    filter_zero_point_tensor: OptionalInput = None
    bias_tensor: OptionalInput = None
    output_scale_tensor: Input
    output_zero_point_tensor: OptionalInput = None
    output_tensor: Output
    strides: Uints
    dilations: Uints
    start_padding: Uints
    end_padding: Uints
    group_count: Uint

    @classmethod
    def from_onnx(cls, node: OnnxNode) -> Operator:
        """The bias comes last there, as a vector."""
        x, w = node.tensor(0), node.tensor(3)
        bias = of_channels(node.tensor(8), x.rank) if node.has(8) else None
        given = [*(node.tensor(i) for i in range(6)), bias, node.tensor(6), node.tensor(7)]
        return cls.of(*given, **forward(node, x, w))

    @classmethod
    def result_type(cls, *tensors: Any) -> TensorDataType:
        """That of the output's zero point, or else the input's."""
        zero = tensors[8] if len(tensors) > 8 else None
        return (tensors[0] if zero is None else zero).data_type

    def check(self) -> None:
        """Zero points have the types of their tensors; one number for all, or of the filter one for each channel."""
        for name in ("input", "filter", "output"):
            zero = f"{name}_zero_point_tensor"
            if getattr(self, zero) is not None:
                self.require_same("data_type", zero, f"{name}_tensor")
        super().check()
        for name in ("input", "filter", "output"):
            for kind in ("scale", "zero_point"):
                self.require_scale(f"{name}_{kind}_tensor", name == "filter")
        if self.bias_tensor is not None:
            self.require_same("rank", "bias_tensor", "input_tensor")
        self.require_channels("bias_tensor")

    def bounds(self, name: str) -> tuple[int, int] | None:
        """Scales that are no larger than a small integer."""
        return (1, 4) if "scale" in name else None

    @property
    def computed(self) -> str:
        return "int32"

    def zero_points(self) -> Any:
        return _zeros(self)

    def addends(self) -> tuple[tuple[str, TensorDesc], ...]:
        names = ("input_scale_tensor", "filter_scale_tensor", "output_scale_tensor", "bias_tensor", "output_zero_point_tensor")
        return self.of_channels(*names)

    def finish(self, total: Any, *values: Any) -> Any:
        scales, rest = values[:3], list(values[3:])
        if self.bias_tensor is not None:
            total = T.wrapped(total + rest.pop(0))
        return requantised(total, scales[0], scales[1], scales[2], rest[0] if rest else None)

    def finished_by(self) -> tuple[tuple[str, str], ...]:
        return ()

    def reference(self, *inputs: NumpyArray | None) -> tuple[Expected, ...]:
        """The operator in NumPy: exact sums, and the quotient in higher precision."""
        x, x_scale, x_zero, w, w_scale, w_zero, bias, y_scale, y_zero = inputs
        total = sums.of_integers(self, x, w, x_zero, w_zero)
        total = sums.wrapped(total if bias is None else total + bias.astype(np.int64))
        channels = (1, -1, *[1] * (self.input_tensor.rank - 2))
        given = ((x_scale, -1), (w_scale, channels), (y_scale, -1))
        scales = [np.asarray(one).reshape(shape).astype(np.longdouble) for one, shape in given]
        zero = np.zeros(1) if y_zero is None else y_zero.reshape(-1).astype(np.int64)
        return (requantized(total, scales, zero, self.output_tensor.data_type.numpy),)


def _zeros(desc: Any) -> Any:
    """The zero points of filter and image, with their fields."""
    names = ("filter_zero_point_tensor", "input_zero_point_tensor")
    return tuple(None if getattr(desc, name) is None else (name, getattr(desc, name)) for name in names)
