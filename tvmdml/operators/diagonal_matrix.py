"""DML_OPERATOR_DIAGONAL_MATRIX and DIAGONAL_MATRIX1: a band of a matrix filled with a value."""

from __future__ import annotations

import itertools
import math
import operator
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from tvmdml import tensorir as T
from tvmdml.errors import InvalidArgument, message, safe_repr
from tvmdml.functions import AnyArray, call, describes
from tvmdml.operators._contract import (
    Array,
    Float,
    Int,
    Operator,
    OptionalInput,
    Output,
    Scalar,
)
from tvmdml.operators._support import support
from tvmdml.tensors import ArrayTensorDesc, TensorDataType

if TYPE_CHECKING:
    from tvm.tirx import PrimFunc

__all__ = ["DiagonalMatrix", "DiagonalMatrix1", "diagonal_matrix"]


_INT_MIN, _INT_MAX = -(2**31), 2**31 - 1


class DiagonalMatrix1(Operator):
    """Fills a band of diagonals with a value; other elements are the input's, or 0 (``DML_DIAGONAL_MATRIX1_OPERATOR_DESC``).

    The last two dimensions are a matrix, the dimensions before them a batch. With ``d`` the column minus the row, elements with
    ``begin <= d < end`` become the value; if begin is greater than end, those with ``d < end`` or ``d >= begin``. INT32_MIN and
    INT32_MAX mean "no bound".
    """

    NAME = "DIAGONAL_MATRIX1"
    SUPPORT = support("5.1 all r2-4 · ext r2-8")

    input_tensor: OptionalInput = None
    output_tensor: Output
    value_data_type: TensorDataType
    value: Scalar
    diagonal_fill_begin: Int
    diagonal_fill_end: Int

    def check(self) -> None:
        """The input, the output and the value have the same type, and the tensors the same sizes."""
        if self.input_tensor is not None:
            self.require_same("data_type", "output_tensor", "input_tensor")
            self.require_same("sizes", "output_tensor", "input_tensor")
        data_type = self.output_tensor.data_type
        given = self.value_data_type.tvm
        self.require(self.value_data_type is data_type, "value_data_type", given, f"{data_type.tvm}, the output's type")
        _check_value(self, data_type)

    def element(self) -> Array:
        """The value in the output's type, as a 0-d array."""
        return _element(self.value, self.output_tensor.data_type)

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

    def computation(self, each: T.Each, in_place: bool = False) -> PrimFunc:
        """One item for each element."""
        source, result = self.input_tensor, self.output_tensor
        begin, end = self.diagonal_fill_begin, self.diagonal_fill_end
        unsigned = f"uint{8 * result.data_type.itemsize}"
        value = T.word(bits(self.element()), 8 * result.data_type.itemsize)
        with T.function() as f:
            # Elements are copied as plain bits: the code is then the same for all types of a size, and a NaN is unchanged.
            tensors = {name: f.buffer(name, unsigned) for name, desc in self.tensors() if desc is not None}
            with each(result.element_count) as element:
                at = T.unravel(element, result.sizes)
                diagonal = T.let(at[-1] - at[-2])
                above, below = diagonal >= T.index(begin), diagonal < T.index(end)
                filled = (above & below) if begin <= end else (above | below)
                rest = T.word(0, 8 * result.data_type.itemsize)
                if source is not None:
                    rest = tensors["input_tensor"][T.dot(at, source.layout)]
                T.store(tensors["output_tensor"], T.dot(at, result.layout), T.Select(filled, value, rest))
        return f.result()

    def reference(self, *inputs: Array | None) -> tuple[Array, ...]:
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

    NAME = "DIAGONAL_MATRIX"
    SUPPORT = support("2.0 F r4 · 2.1 +IU")

    output_tensor: Output
    offset: Int
    value: Float

    def check(self) -> None:
        """The value fits the type, and the diagonal after the filled one is an INT too."""
        _check_value(self, self.output_tensor.data_type, truncate=True)
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

    def computation(self, each: T.Each, in_place: bool = False) -> PrimFunc:
        """DIAGONAL_MATRIX1's."""
        return self.canonical().computation(each)

    def reference(self, *inputs: Array | None) -> tuple[Array, ...]:
        """DIAGONAL_MATRIX1's, with no input."""
        return self.canonical().reference(None)


def _below(bound: int, height: int, width: int) -> int:
    """The number of elements of a matrix with a diagonal below the bound: in row ``r``, the first ``bound + r`` elements."""
    first, whole = (
        max(0, min(height, row)) for row in (-bound, width - bound)
    )  # rows before ``first`` have none, rows from ``whole`` on have all
    return (whole - first) * (2 * bound + first + whole - 1) // 2 + (height - whole) * width


def bits(element: Array) -> int:
    """The bits of an element as an unsigned number."""
    return int(element.view(f"u{element.itemsize}"))


def _element(value: int | float, data_type: TensorDataType) -> Array:
    with np.errstate(all="ignore"):  # a value past the range of a float type is infinite or zero, and a signaling NaN a quiet one
        return np.array(value).astype(data_type.numpy) if isinstance(value, float) else np.array(value, data_type.numpy)


def _check_value(desc: DiagonalMatrix | DiagonalMatrix1, data_type: TensorDataType, truncate: bool = False) -> None:
    if data_type.is_float:
        try:
            float(desc.value)
        except OverflowError:
            desc.require(False, "value", desc.value, "a number that a float can hold")
        return
    limits = np.iinfo(data_type.tvm)
    finite = isinstance(desc.value, int) or math.isfinite(desc.value)
    whole = finite and (truncate or desc.value == math.trunc(desc.value))
    fits = whole and limits.min <= math.trunc(desc.value) <= limits.max
    desc.require(fits, "value", desc.value, f"an integer from {limits.min} to {limits.max}, to fill {data_type.tvm}")


def diagonal_matrix(
    input: AnyArray | None = None,  # noqa: A002
    *,
    sizes: Sequence[int] | None = None,
    dtype: Any = None,
    value: int | float = 1,
    diagonal_fill_begin: int | None = 0,
    diagonal_fill_end: int | None = 1,
    out: AnyArray | None = None,
    device: str | None = None,
) -> AnyArray:
    """Fill a band of diagonals of a matrix, or of each matrix of a batch (DML_OPERATOR_DIAGONAL_MATRIX1).

    With ``d`` the column minus the row, elements with ``begin <= d < end`` become ``value``; if begin is greater than end, those
    with ``d < end`` or ``d >= begin``. The other elements are the input's, or zero without an input.

    Args:
        input: the elements outside the band; any of the eleven types, two to eight dimensions.
        sizes: the result's sizes, if there is no input.
        dtype: the result's type, if there is no input; float32 by default.
        value: the value to fill the band with; an integer for integer types.
        diagonal_fill_begin: the first diagonal to fill; ``None`` for no bound: all diagonals below ``diagonal_fill_end``.
        diagonal_fill_end: the diagonal after the last to fill; ``None`` for no bound: all from ``diagonal_fill_begin`` on.
        out: an array for the result; may be ``input`` itself.
        device: where to run, such as ``"cpu"``, ``"cuda:0"`` or ``"vulkan:0"``; by default where ``input`` is, or the CPU.

    Returns:
        An array of the input's kind, type and sizes; a NumPy array if there is no input.

    Raises:
        InvalidArgument, Unsupported: an argument breaks a rule above.
    """
    form = None if sizes is None else _hashable(sizes)
    attributes = (form, dtype, value, diagonal_fill_begin, diagonal_fill_end)
    return call(_describe, (input,), attributes, out, device, optional=True)[0]


@describes("tvmdml.diagonal_matrix")
def _describe(
    input: ArrayTensorDesc | None,  # noqa: A002
    sizes: Any,
    dtype: Any,
    value: Any,
    begin: int | None,
    end: int | None,
) -> DiagonalMatrix1:
    where = DiagonalMatrix1.where
    if input is None:
        if sizes is None:
            raise InvalidArgument(message(where("sizes"), "neither an input nor sizes", "one of the two"))
        result = ArrayTensorDesc(TensorDataType.of("float32" if dtype is None else dtype, where("dtype")), sizes)
    else:
        result = input.with_sizes(input.sizes)
        for name, given, own in (("sizes", sizes, input.sizes), ("dtype", dtype, input.data_type)):
            if given is not None and (TensorDataType.of(given, where("dtype")) if name == "dtype" else given) != own:
                shown = own.tvm if isinstance(own, TensorDataType) else own
                raise InvalidArgument(message(where(name), given, f"{shown}, the input's", "Leave it out."))
    return DiagonalMatrix1(
        input_tensor=input,
        output_tensor=result,
        value_data_type=result.data_type,
        value=value,
        diagonal_fill_begin=_INT_MIN if begin is None else begin,
        diagonal_fill_end=_INT_MAX if end is None else end,
    )


def _hashable(sizes: Any) -> Any:
    try:
        some = tuple(itertools.islice(sizes, 65))  # an endless iterator must not cause a hang, and 65 sizes are too many anyway
        if not any(isinstance(size, (bool, np.bool_)) for size in some):
            return tuple(operator.index(size) for size in some)
    except (TypeError, RuntimeError):  # PyTorch raises RuntimeError for a tensor that is too large
        pass
    raise InvalidArgument(message("tvmdml.diagonal_matrix: sizes", safe_repr(sizes), "a sequence of integers"))
