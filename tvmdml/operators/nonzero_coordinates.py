"""DML_OPERATOR_NONZERO_COORDINATES: the coordinates and the number of nonzero elements."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np

from tvmdml.enums import FeatureLevel
from tvmdml.kernels import tensorir as T
from tvmdml.operators._contract import Input, NumpyArray, Operator, Output, Shared
from tvmdml.operators._onnx import OnnxNode
from tvmdml.operators._support import support
from tvmdml.tensors import TensorDataType, TensorDesc


class NonzeroCoordinates(Operator):
    """The coordinates of all nonzero elements, in row-major order (``DML_NONZERO_COORDINATES_OPERATOR_DESC``).

    -0 counts as zero; NaN counts as nonzero. The count tensor has one element. The coordinates have sizes {1, …, 1, M, N}: M is
    the number of elements of the input, N is between the input's effective rank (at least 1) and its rank, and a row contains the
    last N coordinates. Rows from the count on are 0.
    """

    ONNX = ("NonZero",)
    TAKES_BOOL = True
    SUPPORT = support(
        input_tensor="3.0 FIU r45 · 4.0 r8 · ext all",
        output_count_tensor="3.0 u r45 · 4.0 r8",
        output_coordinates_tensor="3.0 u r45 · 4.0 r2-8 · ext uW",
    )

    input_tensor: Input
    output_count_tensor: Output
    output_coordinates_tensor: Output

    def infer(self) -> Mapping[str, TensorDesc]:
        """One count, and a row with the input's rank of coordinates for every element; with as many dimensions as the input."""
        x = self.input_tensor
        leading = (1,) * (x.rank - 2)
        return {
            "output_count_tensor": x.with_sizes((1,) * x.rank, TensorDataType.UINT32),
            "output_coordinates_tensor": x.with_sizes((*leading, x.element_count, x.rank), TensorDataType.UINT32),
        }

    @classmethod
    def rows_of(cls, x: TensorDesc, data_type: TensorDataType) -> NonzeroCoordinates:
        """The descriptor with a matrix of coordinates of this type: without dimensions before it, which old levels need."""
        count = x.with_sizes((1,), TensorDataType.UINT32)
        return cls.of(x, output_count_tensor=count, output_coordinates_tensor=x.with_sizes((x.element_count, x.rank), data_type))

    @classmethod
    def from_onnx(cls, node: OnnxNode) -> NonzeroCoordinates:
        """The coordinates are ONNX's INT64."""
        return cls.rows_of(node.tensor(boolean=True), TensorDataType.UINT64)

    def check_level(self, level: FeatureLevel) -> None:
        """Before level 4.0 the three tensors have the same number of dimensions."""
        if level < FeatureLevel.LEVEL_4_0:
            for name in ("output_count_tensor", "output_coordinates_tensor"):
                self.require_same("rank", name, "input_tensor")

    def check(self) -> None:
        """One count, and a row of coordinates for every element."""
        count, coordinates = self.output_count_tensor.sizes, self.output_coordinates_tensor.sizes
        self.require(set(count) == {1}, "output_count_tensor.sizes", count, "all sizes 1")
        elements = self.input_tensor.element_count
        low, high = max(self.input_tensor.effective_rank, 1), self.input_tensor.rank
        fits = set(coordinates[:-2]) <= {1} and coordinates[-2] == elements and low <= coordinates[-1] <= high
        allowed = f"(1, …, 1, {elements}, n) with n from {low} to {high}: a row for each element of the input"
        self.require(fits, "output_coordinates_tensor.sizes", coordinates, allowed)

    def shape_class(self) -> dict[str, int | str]:
        """Includes the number of coordinates in a row, which determines how much is written."""
        return {
            "elements": self.input_tensor.element_count,
            "length": self.input_tensor.sizes[-1],
            "columns": str(self.output_coordinates_tensor.sizes[-1]),
            "layout": self.layout(),
        }

    def samples(self) -> tuple[str, ...]:
        """The percentages of nonzero elements."""
        return "10 %", "0.1 %", "50 %", "100 %"

    CONSTANT_SHAPES = "the number of coordinates of an element is a number of stores"

    def computation(self, each: T.Each, shared: Shared = ()) -> T.PrimFunc:
        """A single item, because the position of a row depends on all elements before it."""
        source, result = self.input_tensor, self.output_coordinates_tensor
        columns = result.sizes[-1]
        with T.function() as f:
            tensors = f.tensors(self)
            with each(1):
                count = T.Variable(T.type_of(T.index(0)), T.index(0))
                with T.loop(T.index(source.element_count)) as element:
                    at = T.unravel(element, source.sizes)
                    value = tensors["input_tensor"][T.dot(at, source.layout)]
                    nonzero = value != T.const(0, source.data_type.tvm)
                    if source.data_type.is_float:
                        nonzero = nonzero | T.isnan(value)  # TVM treats every comparison with NaN as false, != too
                    with T.when(nonzero):
                        for column, coordinate in enumerate(at[source.rank - columns :]):
                            place = T.dot([count.value, column], result.layout[-2:])
                            T.store(tensors["output_coordinates_tensor"], place, T.cast(coordinate, result.data_type.tvm))
                        count.set(count.value + 1)
                T.store(tensors["output_count_tensor"], 0, T.cast(count.value, "uint32"))
                with T.loop(T.index(source.element_count) - count.value) as rest:
                    for column in range(columns):
                        place = T.dot([count.value + rest, T.index(column)], [T.index(step) for step in result.layout[-2:]])
                        T.store(tensors["output_coordinates_tensor"], place, T.const(0, result.data_type.tvm))
        return f.result()

    def reference(self, *inputs: NumpyArray | None) -> tuple[NumpyArray, ...]:
        """The operator in NumPy; rows after the count are zero."""
        (x,) = inputs
        assert x is not None
        sizes = self.output_coordinates_tensor.sizes
        found = np.argwhere(x)[:, x.ndim - sizes[-1] :]
        rows = np.zeros((sizes[-2], sizes[-1]), self.output_coordinates_tensor.data_type.numpy)
        rows[: len(found)] = found
        return np.full(self.output_count_tensor.sizes, len(found), np.uint32), rows.reshape(sizes)
