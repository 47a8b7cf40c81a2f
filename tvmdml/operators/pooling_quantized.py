"""DML_OPERATOR_QUANTIZED_LINEAR_AVERAGE_POOLING."""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType
from typing import Any

import numpy as np

from tvmdml.kernels import tensorir_values as T
from tvmdml.operators import _window_reference as windows
from tvmdml.operators._accuracy import Expected, Near
from tvmdml.operators._contract import Bool, Input, NumpyArray, Operator, OptionalInput, Output, Shared, Uints, defaults
from tvmdml.operators._onnx import NotConvertible, OnnxNode
from tvmdml.operators._support import support
from tvmdml.operators._window import ABSENT, Window
from tvmdml.operators._window_onnx import everywhere, image, pooled
from tvmdml.operators._window_sums import Seen
from tvmdml.tensors import TensorDataType, TensorDesc

_BYTES, _SCALE, _ZERO = "6.2 bytes r45", "6.2 f32 r1-5", "6.2 bytes r1-5"
_NARROW = 1 << 23
"""The most elements whose sum is computed in 32 bits."""


class QuantizedLinearAveragePooling(Window):
    """The average of each window of a quantized image, quantized (``DML_QUANTIZED_LINEAR_AVERAGE_POOLING_OPERATOR_DESC``).

    Elements are ``(input - input_zero_point) * input_scale``; padding is 0. The average divided by ``output_scale`` is rounded,
    halves to even, plus ``output_zero_point``, saturated. The result has the type of ``output_zero_point``, or else of the input.
    Scales and zero points are one for all, or one for each channel with the shape (1, channels, 1, 1).

    Args:
        include_padding: whether padding counts; it does not by default.
        output_sizes: the sizes of the result, by default as many windows as fit.
    """

    FUNCTION = "quantized_linear_average_pooling"
    SUPPORT = support(
        input_tensor=_BYTES,
        input_scale_tensor=_SCALE,
        input_zero_point_tensor=_ZERO,
        output_scale_tensor=_SCALE,
        output_zero_point_tensor=_ZERO,
        output_tensor=_BYTES,
    )
    DEFAULTS = defaults(**dict.fromkeys(ABSENT), include_padding=False, output_sizes=None)
    ARGUMENTS = MappingProxyType({"output_sizes": Uints})
    DTYPES = defaults(output_dtype="output_tensor")
    OF_CHANNELS = ("input_scale_tensor", "input_zero_point_tensor", "output_scale_tensor", "output_zero_point_tensor")
    NUMBERS = defaults(input_scale_tensor="float32", output_scale_tensor="float32")
    ONNX = ("com.microsoft.QLinearAveragePool", "com.microsoft.QLinearGlobalAveragePool")

    input_tensor: Input
    input_scale_tensor: Input
    input_zero_point_tensor: OptionalInput = None
    output_scale_tensor: Input
    output_zero_point_tensor: OptionalInput = None
    output_tensor: Output
    strides: Uints
    window_size: Uints
    start_padding: Uints
    end_padding: Uints
    dilations: Uints
    include_padding: Bool

    @classmethod
    def from_onnx(cls, node: OnnxNode) -> Operator:
        """Windows, or one over the whole image."""
        if node.integer("channels_last", 0):
            raise NotConvertible("its channels are last")
        x = image(node)
        given = [node.tensor(i) if node.has(i) else None for i in range(1, 5)]
        numbers = everywhere(x) if "Global" in node.kind else pooled(node, x)
        numbers.setdefault("dilations", [1] * (x.rank - 2))
        kind = cls.result_type(x, *given)
        numbers["output_tensor"] = x.with_sizes(numbers["output_tensor"].sizes, kind)
        return cls.of(x, *given, include_padding=bool(node.integer("count_include_pad", 0)), **numbers)

    @classmethod
    def result_type(cls, *tensors: Any) -> TensorDataType:
        """That of the output's zero point, or else the input's."""
        return (tensors[4] or tensors[0]).data_type

    def infer(self) -> Mapping[str, TensorDesc]:
        """The output has the type of its zero point, or else the input's."""
        found = super().infer()["output_tensor"]
        kind = self.result_type(self.input_tensor, *[None] * 3, self.output_zero_point_tensor)
        return {"output_tensor": found.with_sizes(found.sizes, kind)}

    def check(self) -> None:
        """Zero points have the types of their tensors; one number for all, or one for each channel."""
        for name in ("input", "output"):
            zero = f"{name}_zero_point_tensor"
            if getattr(self, zero) is not None:
                self.require_same("data_type", zero, f"{name}_tensor")
            for one in (f"{name}_scale_tensor", zero):
                tensor = getattr(self, one)
                if tensor is None or tensor.element_count == 1:
                    continue
                x = self.input_tensor
                each = (1, x.sizes[1], *[1] * (x.rank - 2))
                self.require(tensor.sizes == each, f"{one}.sizes", tensor.sizes, f"one element, or {each}: one for each channel")
        self.check_pooled()

    def bounds(self, name: str) -> tuple[int, int] | None:
        """Scales that are no larger than a small integer."""
        return (1, 4) if "scale" in name else None

    def computation(self, each: T.Each, shared: Shared = ()) -> T.PrimFunc:
        """One item for each window."""
        with T.function() as f:
            self.write(each, f.tensors(self, shared))
        return f.result()

    def write(self, each: T.Each, tensors: dict[str, Any]) -> None:
        """The computation, on tensors that are declared."""
        x, y = self.input_tensor, self.output_tensor
        dtype = "int32" if self.taps() <= _NARROW else "int64"
        with T.elements(each, y.sizes, y.layout, self.several()) as at:
            reaches = self.reaches(at)
            seen = Seen(self, tensors, at, reaches)
            zero = seen.of_channel("input_zero_point_tensor")
            zero = T.const(0, dtype) if zero is None else T.hold(T.cast(zero, dtype))
            total = T.Variable(dtype, T.const(0, dtype))
            with self.inside(at, reaches) as place:
                total.set(total.value + (T.cast(tensors["input_tensor"][T.dot(place, x.layout)], dtype) - zero))
            real = T.cast(total.value, "float32") * seen.of_channel("input_scale_tensor")
            average = T.rounded(T.rounded(real) / seen.number(self.include_padding, "float32"))
            found = T.hold(T.round_even(average / seen.of_channel("output_scale_tensor")))
            found = T.select(T.is_nan(found), 0, found)
            offset = seen.of_channel("output_zero_point_tensor")
            if offset is not None:
                found = found + T.cast(offset, "float32")  # exact, unless it saturates anyway
            T.store(tensors["output_tensor"], T.dot(at, y.layout), T.to(found, y.data_type.tvm))

    def reference(self, *inputs: NumpyArray | None) -> tuple[Expected, ...]:
        """The operator in NumPy: exact sums, and the quotient in higher precision."""
        given: list[Any] = [one if one is None or one.size > 1 else one.reshape(-1)[0] for one in inputs[1:]]
        scale, zero, out_scale, out_zero = given
        x = np.asarray(inputs[0])
        found = windows.tables(self)
        limits = np.iinfo(self.output_tensor.data_type.numpy)  # type: ignore[type-var]
        number = windows.product(found, lambda one: one.counted, x.ndim) if self.include_padding else windows.inside(found, x.ndim)
        with np.errstate(all="ignore"):
            total = windows.combined(x.astype(np.int64) - (0 if zero is None else zero.astype(np.int64)), found, np.sum, 0)
            real = total * np.asarray(scale, np.longdouble)
            average = real / np.maximum(number, 1)
            quotient = average / np.asarray(out_scale, np.longdouble)
            whole = np.clip(np.nan_to_num(np.rint(quotient), nan=0, posinf=1e9, neginf=-1e9), -1e9, 1e9)
            result = np.clip(whole + (0 if out_zero is None else out_zero.astype(np.int64)), limits.min, limits.max)
            half = np.abs(np.abs(quotient - np.trunc(quotient)) - 0.5)
            near = np.where(half <= 8 * 2.0**-23 * np.abs(quotient), 1, 0)
            steps = [np.abs(one) for one in (real, average, np.broadcast_to(scale, real.shape))]
            far = np.logical_or.reduce([((one > 2.0**127) & np.isfinite(one)) | ((one < 2.0**-126) & (one > 0)) for one in steps])
            tiny = np.broadcast_to((np.abs(out_scale) < 2.0**-126) & (out_scale != 0), far.shape)
        error = np.where(far | tiny, np.inf, near).astype(np.float64)
        return (Near(np.broadcast_to(result, far.shape).copy(), np.dtype(self.output_tensor.data_type.numpy), 0, error),)
