"""DML_OPERATOR_MATRIX_MULTIPLY_INTEGER, MATRIX_MULTIPLY_INTEGER_TO_FLOAT and QUANTIZED_LINEAR_MATRIX_MULTIPLY.

Each element is an integer less the zero point of its tensor, its row or its column. Products of 8 bits are summed in 32 bits, which
wrap; wider integers are differences that are exact, rounded to float32, and summed in float32.
"""

from __future__ import annotations

from typing import Any, ClassVar

import numpy as np

from tvmdml.kernels import tensorir_values as T
from tvmdml.kernels.quantization import quantized
from tvmdml.operators._accuracy import Expected, Near
from tvmdml.operators._contract import Input, NumpyArray, Operator, OptionalInput, Output, defaults
from tvmdml.operators._matrix import BoundedSums
from tvmdml.operators._matrix_product import Product, exact_product
from tvmdml.operators._onnx import OnnxNode
from tvmdml.operators._support import support
from tvmdml.tensors import TensorDataType, TensorDesc


class _Integers(Product):
    """Products of integers with zero points.

    Args:
        a_zero_point_tensor: of its type, 0 by default: one for all elements, or one for each row.
        b_zero_point_tensor: of its type, 0 by default: one for all elements, or one for each column.
    """

    A_SMALL: ClassVar[tuple[str, ...]] = ("a_zero_point_tensor",)
    B_SMALL: ClassVar[tuple[str, ...]] = ("b_zero_point_tensor",)

    def modules(self) -> tuple[str, ...]:
        """With the file that quantizes."""
        return (*super().modules(), "quantization")

    def check(self) -> None:
        """Zero points have the types of their tensors."""
        super().check()
        self.check_zero_points(a_zero_point_tensor="a_tensor", b_zero_point_tensor="b_tensor")

    @classmethod
    def from_onnx(cls, node: OnnxNode) -> Operator:
        """Inputs in this operator's order; in ONNX both matrices may be first."""
        order = cls.ONNX_INPUTS or range(8)
        return cls.of(*(node.tensor(i) if node.has(i) else None for i in order))

    def summed_in(self) -> str:
        """The type of products and sums: integers of 8 bits have exact ones."""
        narrow = all(one.data_type.itemsize == 1 for one in (self.a_tensor, self.b_tensor))
        return "int32" if narrow else "float32"

    def bounds(self, name: str) -> tuple[int, int] | None:
        """Scales that are small numbers."""
        return (1, 4) if "scale" in name else None

    def totals(self, *inputs: NumpyArray | None) -> NumpyArray:
        """The sums in 32 bits."""
        x, y = self.differences(*inputs)  # type: ignore[arg-type]
        return exact_product(x, y).astype(np.int32)


class MatrixMultiplyInteger(_Integers):
    """Products of matrices of integers (``DML_MATRIX_MULTIPLY_INTEGER_OPERATOR_DESC``).

    The result is ``(a - a_zero_point) @ (b - b_zero_point)``, an int32, which wraps. The last two
    dimensions are a matrix, those before them a batch. Factors with one dimension are vectors, and
    batches are broadcast as by ``numpy.matmul``.

    Args:
        a_tensor: the first factor: int8 or uint8.
        b_tensor: the second factor: int8 or uint8.
    """

    FUNCTION = "matrix_multiply_integer"
    SUPPORT = support(
        a_tensor="2.1 bytes r4 · 4.0 r2-4 · ext r2-8",
        a_zero_point_tensor="2.1 bytes r4 · 4.0 r1-4 · ext r8",
        b_tensor="2.1 bytes r4 · 4.0 r2-4 · ext r2-8",
        b_zero_point_tensor="2.1 bytes r4 · 4.0 r2-4 · 5.2 r1-4 · ext r8",
        output_tensor="2.1 i r4 · 4.0 r2-4 · ext r2-8",
    )
    ONNX = ("MatMulInteger",)
    ONNX_INPUTS = (0, 2, 1, 3)

    a_tensor: Input
    a_zero_point_tensor: OptionalInput = None
    b_tensor: Input
    b_zero_point_tensor: OptionalInput = None
    output_tensor: Output

    def result_type(self) -> TensorDataType:
        return TensorDataType.INT32

    def finish(self, total: Any, *values: Any) -> Any:
        return total

    def reference(self, *inputs: NumpyArray | None) -> tuple[Expected, ...]:
        """``numpy.matmul``, modulo 2^32."""
        a, a_zero, b, b_zero = inputs
        return (self.totals(a, b, a_zero, b_zero),)


class MatrixMultiplyIntegerToFloat(_Integers):
    """Products of matrices of integers, scaled (``DML_MATRIX_MULTIPLY_INTEGER_TO_FLOAT_OPERATOR_DESC``).

    The result is ``((a - a_zero_point) @ (b - b_zero_point)) * (a_scale * b_scale) + bias``. Sums of 8-bit integers are exact, and
    wrap in 32 bits; others are sums in float32. The last two dimensions are a matrix, those before them a batch. Factors with one
    dimension are vectors, batches are broadcast as by ``numpy.matmul``, and the bias is broadcast to the result.

    Args:
        a_tensor: the first factor, of integers of up to 32 bits.
        a_scale_tensor: its scale: one for all elements, or one for each row; float16 or float32, as the result.
        b_tensor: the second factor, of integers of up to 32 bits.
        b_scale_tensor: its scale: one for all elements, or one for each column.
        bias_tensor: what is added; none by default.
    """

    FUNCTION = "matrix_multiply_integer_to_float"
    NUMBERS = defaults(a_scale_tensor="float32", b_scale_tensor="float32")
    SUPPORT = support(
        a_tensor="6.2 IU r2-4 · ext r2-8",
        a_scale_tensor="6.2 F r1-4 · ext r8",
        a_zero_point_tensor="6.2 IU r1-4 · ext r8",
        b_tensor="6.2 IU r2-4 · ext r2-8",
        b_scale_tensor="6.2 F r1-4 · ext r8",
        b_zero_point_tensor="6.2 IU r1-4 · ext r8",
        bias_tensor="6.2 F r2-4 · ext r2-8",
        output_tensor="6.2 F r2-4 · ext r2-8",
    )
    A_SMALL = ("a_scale_tensor", "a_zero_point_tensor")
    B_SMALL = ("b_scale_tensor", "b_zero_point_tensor")
    ONNX = ("com.microsoft.MatMulIntegerToFloat",)
    ONNX_INPUTS = (0, 2, 4, 1, 3, 5, 6)

    a_tensor: Input
    a_scale_tensor: Input
    a_zero_point_tensor: OptionalInput = None
    b_tensor: Input
    b_scale_tensor: Input
    b_zero_point_tensor: OptionalInput = None
    bias_tensor: OptionalInput = None
    output_tensor: Output

    def result_type(self) -> TensorDataType:
        return self.a_scale_tensor.data_type

    def check(self) -> None:
        """Scales, the bias and the output have one type; the bias has the output's sizes."""
        super().check()
        for name in ("b_scale_tensor", "bias_tensor", "output_tensor"):
            if getattr(self, name) is not None:
                self.require_same("data_type", name, "a_scale_tensor")
        self.check_small_ranks("a_scale_tensor", "a_zero_point_tensor", "b_scale_tensor", "b_zero_point_tensor")
        if self.bias_tensor is not None:
            self.require_same("sizes", "bias_tensor", "output_tensor")

    def addends(self) -> tuple[tuple[str, TensorDesc], ...]:
        """The scales, and the bias."""
        return (*self.small("a_scale_tensor", "b_scale_tensor"), *self.repeated("bias_tensor"))

    def finish(self, total: Any, *values: Any) -> Any:
        a_scale, b_scale, *bias = values
        found = T.cast(T.wrapped(total), "float32") * T.rounded(a_scale * b_scale)
        return T.rounded(found) + bias[0] if bias else found

    def reference(self, *inputs: NumpyArray | None) -> tuple[Expected, ...]:
        """Exact integers in NumPy, and the rest in higher precision."""
        a, a_scale, a_zero, b, b_scale, b_zero, bias = inputs
        x, y = self.differences(a, b, a_zero, b_zero)  # type: ignore[arg-type]
        exact = self.summed_in() == "int32"
        if exact:
            total = exact_product(x, y).astype(np.int32).astype(np.float64)
            sums = BoundedSums(total, np.abs(total), 0)  # nothing is rounded
        else:
            first, second = x.astype(np.float64), y.astype(np.float64)
            sums = BoundedSums(np.matmul(first, second), np.matmul(np.abs(first), np.abs(second)), x.shape[-1])
        small = (("a_scale_tensor", a_scale), ("b_scale_tensor", b_scale))
        first_scale, second_scale = (self.spread_small(name, one).astype(np.float64) for name, one in small)
        return (_scaled(sums, first_scale, second_scale, bias, self.output_tensor.data_type.numpy),)


def _scaled(sums: BoundedSums, a_scale: NumpyArray, b_scale: NumpyArray, bias: NumpyArray | None, dtype: Any) -> Expected:
    """Results near to sums times both scales, plus a bias."""
    addend = np.zeros(()) if bias is None else bias.astype(np.float64)
    unit, tiny, most = 2.0**-24, 2.0**-126, float(np.finfo(np.float32).max)
    with np.errstate(all="ignore"):
        scale = a_scale * b_scale
        values = sums.values * scale + addend
        size, own = (np.where(np.isfinite(one), np.abs(one), 0) for one in (scale, addend))
        whole = sums.magnitudes * size + own
        error = (1.01 * sums.depth + (8 if sums.depth else 6)) * unit * whole + tiny * (1 + sums.magnitudes + size)
        far = np.maximum(np.maximum(whole, sums.magnitudes), np.broadcast_to(size, whole.shape)) * (1 + 2.0**-10) >= most
    values = np.broadcast_to(values, whole.shape)
    return Near(np.array(values), np.dtype(dtype), 0, np.where(far, np.nan, error))


class QuantizedLinearMatrixMultiply(_Integers):
    """Products of quantized matrices, quantized (``DML_QUANTIZED_LINEAR_MATRIX_MULTIPLY_OPERATOR_DESC``).

    The result is ``(a - a_zero_point) @ (b - b_zero_point) * (a_scale * b_scale) / output_scale``, rounded, halves to even, plus
    ``output_zero_point``, saturated. Sums are exact, and wrap in 32 bits. The result has the type of ``output_zero_point``, or else
    of ``a``. The last two dimensions are a matrix, those before them a batch. Factors with one dimension are vectors, and batches
    are broadcast as by ``numpy.matmul``.

    Args:
        a_tensor: the first factor: int8 or uint8.
        a_scale_tensor: its scale, float32: one for all elements, or one for each row.
        b_tensor: the second factor: int8 or uint8.
        b_scale_tensor: its scale: one for all elements, or one for each column.
        output_scale_tensor: the result's scale: one for all elements, or one for each row.
        output_zero_point_tensor: of the result's type, 0 by default: one for all elements, or one for each row.
    """

    FUNCTION = "quantized_linear_matrix_multiply"
    NUMBERS = defaults(a_scale_tensor="float32", b_scale_tensor="float32", output_scale_tensor="float32")
    DTYPES = defaults(output_dtype="output_tensor")
    SUPPORT = support(
        **dict.fromkeys(("a_tensor", "b_tensor", "output_tensor"), "2.1 bytes r4 · 4.0 r2-4 · ext r2-8"),
        **dict.fromkeys(("a_scale_tensor", "b_scale_tensor", "output_scale_tensor"), "2.1 f32 r4 · 4.0 r1-4 · ext F r8"),
        **dict.fromkeys(
            ("a_zero_point_tensor", "b_zero_point_tensor", "output_zero_point_tensor"), "2.1 bytes r4 · 4.0 r1-4 · ext r8"
        ),
    )
    A_SMALL = ("a_scale_tensor", "a_zero_point_tensor")
    B_SMALL = ("b_scale_tensor", "b_zero_point_tensor")
    OUTPUT_SMALL = ("output_scale_tensor", "output_zero_point_tensor")
    ONNX = ("QLinearMatMul",)

    a_tensor: Input
    a_scale_tensor: Input
    a_zero_point_tensor: OptionalInput = None
    b_tensor: Input
    b_scale_tensor: Input
    b_zero_point_tensor: OptionalInput = None
    output_scale_tensor: Input
    output_zero_point_tensor: OptionalInput = None
    output_tensor: Output

    def result_type(self) -> TensorDataType:
        zero = self.output_zero_point_tensor
        return self.a_tensor.data_type if zero is None else zero.data_type

    def check(self) -> None:
        """The output's zero point has its type; scales and zero points have one rank."""
        super().check()
        self.check_zero_points(output_zero_point_tensor="output_tensor")
        self.check_small_ranks(*self.A_SMALL, *self.B_SMALL, *self.OUTPUT_SMALL)

    def addends(self) -> tuple[tuple[str, TensorDesc], ...]:
        """The scales, and the output's zero point."""
        return self.small("a_scale_tensor", "b_scale_tensor", *self.OUTPUT_SMALL)

    def finish(self, total: Any, *values: Any) -> Any:
        a_scale, b_scale, scale, *zero = values
        found = T.rounded(T.cast(T.wrapped(total), "float32") * T.rounded(a_scale * b_scale))
        return quantized(found, scale, zero[0] if zero else None, self.output_tensor.data_type)

    def reference(self, *inputs: NumpyArray | None) -> tuple[Expected, ...]:
        """Exact sums, and the quotient in higher precision."""
        a, a_scale, a_zero, b, b_scale, b_zero, out_scale, out_zero = inputs
        total = self.totals(a, b, a_zero, b_zero).astype(np.float64)
        small = {"a_scale_tensor": a_scale, "b_scale_tensor": b_scale, "output_scale_tensor": out_scale}
        scales = [self.spread_small(name, one).astype(np.float64) for name, one in small.items()]
        zero = self.spread_small("output_zero_point_tensor", out_zero).astype(np.int64)
        return (requantized(total, scales, zero, self.output_tensor.data_type.numpy),)


def requantized(total: NumpyArray, scales: list[NumpyArray], zero: NumpyArray, dtype: Any) -> Expected:
    """Sums times the first scales by the last one, rounded, plus a zero point, saturated.

    A neighbour is right where the quotient is nearly a half. What floats of 32 bits cannot hold may be anything.
    """
    limits = np.iinfo(dtype)
    *factors, divisor = scales
    with np.errstate(all="ignore"):
        scale = factors[0] * factors[1]
        product = total * scale
        quotient = product / divisor
        whole = np.clip(np.nan_to_num(np.rint(quotient), nan=0, posinf=1e9, neginf=-1e9), -1e9, 1e9)
        result = np.clip(whole + zero, limits.min, limits.max)
        half = np.abs(np.abs(quotient - np.trunc(quotient)) - 0.5)
        error = np.where(half <= 2.0**-21 * np.abs(quotient), 1.0, 0.0)
        steps = [np.broadcast_to(np.abs(one), total.shape) for one in (*factors, divisor, scale, product)]
        far = np.logical_or.reduce([(one >= 2.0**127) | ((one < 2.0**-126) & (one > 0)) | np.isnan(one) for one in steps])
        far |= np.logical_or.reduce([one == 0 for one in steps[:3]])
    return Near(np.array(result), np.dtype(dtype), 0, np.where(far, np.inf, error))
