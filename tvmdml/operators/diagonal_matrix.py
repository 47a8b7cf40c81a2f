"""DML_OPERATOR_DIAGONAL_MATRIX and DIAGONAL_MATRIX1: a band of a matrix filled with a value."""

from __future__ import annotations

import math
from collections.abc import Mapping

import numpy as np

from tvmdml.kernels import tensorir as T
from tvmdml.operators._contract import (
    Float,
    Int,
    NumpyArray,
    Operator,
    OptionalInput,
    Output,
    Scalar,
    Shared,
    defaults,
)
from tvmdml.operators._gradients import gradients
from tvmdml.operators._onnx import OnnxNode
from tvmdml.operators._scalars import element, require_number
from tvmdml.operators._support import support
from tvmdml.tensors import TensorDataType, TensorDesc

_INT_MIN, _INT_MAX = -(2**31), 2**31 - 1


class DiagonalMatrix1(Operator):
    """Fills a band of diagonals with a value; other elements are the input's, or 0 (``DML_DIAGONAL_MATRIX1_OPERATOR_DESC``).

    The last two dimensions are a matrix, the dimensions before them a batch. With ``d`` the column minus the row, elements with
    ``begin <= d < end`` become the value; if begin is greater than end, those with ``d < end`` or ``d >= begin``. INT32_MIN and
    INT32_MAX mean "no bound".
    """

    DEFAULTS = defaults(value=1, diagonal_fill_begin=0, diagonal_fill_end=1)
    ONNX = ("EyeLike", "Trilu")
    SUPPORT = support("5.1 all r2-4 · ext r2-8")
    GRADIENT = gradients(
        input="diagonal_matrix(gradient, value=0, diagonal_fill_begin=diagonal_fill_begin, diagonal_fill_end=diagonal_fill_end)"
    )

    input_tensor: OptionalInput = None
    output_tensor: Output
    value_data_type: TensorDataType
    value: Scalar
    diagonal_fill_begin: Int
    diagonal_fill_end: Int

    def infer(self) -> Mapping[str, TensorDesc]:
        """The output has the input's type and sizes; without an input it must be given."""
        return {} if self.input_tensor is None else {"output_tensor": self.input_tensor.with_sizes(self.input_tensor.sizes)}

    @classmethod
    def from_onnx(cls, node: OnnxNode) -> DiagonalMatrix1:
        """EyeLike uses only its input's sizes, and perhaps its type; Trilu copies one part of its input."""
        x = node.tensor(boolean=True)
        if node.kind == "EyeLike":
            k = node.integer("k", 0)
            result = x.with_sizes(x.sizes, node.result_type() or node.tensor().data_type)
            return cls.of(output_tensor=result, diagonal_fill_begin=_int(k), diagonal_fill_end=_int(k + 1))
        k = node.constant("k") if node.has(1) else 0
        begin, end = (_INT_MIN, _int(k)) if node.integer("upper", 1) else (_int(k + 1), _INT_MAX)
        return cls.of(x, value=0, diagonal_fill_begin=begin, diagonal_fill_end=end)

    def check(self) -> None:
        """The input, the output and the value have the same type, and the tensors the same sizes."""
        if self.input_tensor is not None:
            self.require_same("data_type", "output_tensor", "input_tensor")
            self.require_same("sizes", "output_tensor", "input_tensor")
        data_type = self.output_tensor.data_type
        given = self.value_data_type.tvm
        self.require(self.value_data_type is data_type, "value_data_type", given, f"{data_type.tvm}, the output's type")
        require_number(self, "value", data_type)

    def element(self) -> NumpyArray:
        """The value in the output's type, as a 0-d array."""
        return element(self.value, self.output_tensor.data_type)

    def shape_class(self) -> dict[str, int | str]:
        """The rows, the columns, and the average width of the band in a row."""
        height, width = self.output_tensor.sizes[-2:]
        return {
            "rows": height,
            "width": width,
            "matrices": math.prod(self.output_tensor.sizes[:-2]),
            "band": -(-self._filled() // height) if height else 0,
            "input": "no" if self.input_tensor is None else "yes",
            "layout": self.layout(),
        }

    def _filled(self) -> int:
        """The number of elements of a matrix that become the value."""
        height, width = self.output_tensor.sizes[-2:]
        begin, end = (_below(bound, height, width) for bound in (self.diagonal_fill_begin, self.diagonal_fill_end))
        return end - begin + (0 if self.diagonal_fill_begin <= self.diagonal_fill_end else height * width)

    def computation(self, each: T.Each, shared: Shared = ()) -> T.PrimFunc:
        """One item for each element."""
        source, result = self.input_tensor, self.output_tensor
        begin, end = self.diagonal_fill_begin, self.diagonal_fill_end
        unsigned = f"uint{8 * result.data_type.itemsize}"
        value = T.word(bits(self.element()), 8 * result.data_type.itemsize)
        with T.function() as f:
            # Elements are copied as plain bits: the code is then the same for all types of a size, and a NaN is unchanged.
            tensors = f.tensors(self, dtype=unsigned)
            with T.elements(each, result.sizes) as at:
                diagonal = T.let(at[-1] - at[-2])
                above, below = diagonal >= T.index(begin), diagonal < T.index(end)
                filled = (above & below) if begin <= end else (above | below)
                rest = T.word(0, 8 * result.data_type.itemsize)
                if source is not None:
                    rest = tensors["input_tensor"][T.dot(at, source.layout)]
                T.store(tensors["output_tensor"], T.dot(at, result.layout), T.Select(filled, value, rest))
        return f.result()

    def reference(self, *inputs: NumpyArray | None) -> tuple[NumpyArray, ...]:
        """The operator in NumPy, with the formula from DirectML's documentation."""
        (x,) = inputs
        sizes, dtype = self.output_tensor.sizes, self.output_tensor.data_type.numpy
        diagonal = np.arange(sizes[-1])[None, :] - np.arange(sizes[-2])[:, None]
        begin, end = self.diagonal_fill_begin, self.diagonal_fill_end
        filled = np.bool_(end >= begin) ^ (diagonal >= begin) ^ (diagonal < end)
        rest = np.zeros(sizes, dtype) if x is None else x
        return (np.where(filled, self.element(), rest),)


class DiagonalMatrix(Operator):
    """A matrix with a value on one diagonal and zeros elsewhere (``DML_DIAGONAL_MATRIX_OPERATOR_DESC``).

    For integer outputs the value is truncated toward zero.
    """

    DEFAULTS = defaults(offset=0, value=1.0)
    SUPPORT = support("2.0 F r4 · 2.1 +IU")

    output_tensor: Output
    offset: Int
    value: Float

    def infer(self) -> Mapping[str, TensorDesc]:
        """The output must be given: there are no inputs."""
        return {}

    def check(self) -> None:
        """The value fits the type, and the diagonal after the filled one is an INT too."""
        require_number(self, "value", self.output_tensor.data_type, truncate=True)
        width = self.output_tensor.sizes[-1]
        self.require(self.offset < _INT_MAX or width <= _INT_MAX, "offset", self.offset, f"below {_INT_MAX} for {width} columns")

    def canonical(self) -> DiagonalMatrix1:
        """DIAGONAL_MATRIX1 with a band of one diagonal."""
        data_type = self.output_tensor.data_type
        return DiagonalMatrix1(
            output_tensor=self.output_tensor,
            value_data_type=data_type,
            value=self.value if data_type.is_float else math.trunc(self.value),
            diagonal_fill_begin=self.offset,
            diagonal_fill_end=min(self.offset + 1, _INT_MAX),
        )

    def shape_class(self) -> dict[str, int | str]:
        """DIAGONAL_MATRIX1's."""
        return self.canonical().shape_class()

    def computation(self, each: T.Each, shared: Shared = ()) -> T.PrimFunc:
        """DIAGONAL_MATRIX1's."""
        return self.canonical().computation(each)

    def reference(self, *inputs: NumpyArray | None) -> tuple[NumpyArray, ...]:
        """DIAGONAL_MATRIX1's, with no input."""
        return self.canonical().reference(None)


def _int(diagonal: int) -> int:
    """The diagonal as DirectML's INT. ONNX's are INT64 and may exceed it, but no matrix has diagonals beyond that range."""
    return min(max(diagonal, _INT_MIN), _INT_MAX)


def _below(bound: int, height: int, width: int) -> int:
    """The number of elements of a matrix with a diagonal below the bound: in row ``r``, the first ``bound + r`` elements."""
    first, whole = (
        max(0, min(height, row)) for row in (-bound, width - bound)
    )  # rows before ``first`` have none, rows from ``whole`` on have all
    return (whole - first) * (2 * bound + first + whole - 1) // 2 + (height - whole) * width


def bits(element: NumpyArray) -> int:
    """The bits of an element as an unsigned number."""
    return int(element.view(f"u{element.itemsize}"))
