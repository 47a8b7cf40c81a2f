"""DML_OPERATOR_ONE_HOT: one value where an index says, another one elsewhere."""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType
from typing import Any

import numpy as np

from tvmdml.kernels.movement import Linear, Transfer
from tvmdml.operators._contract import Axis, Input, NumpyArray, Output, Uint
from tvmdml.operators._movement import Coordinate, SourceCoordinates, equal
from tvmdml.operators._movement_indices import Indexed, normal
from tvmdml.operators._onnx import OnnxNode
from tvmdml.operators._support import support
from tvmdml.tensors import ArrayTensorDesc, TensorDesc, packed_strides


class OneHot(Indexed):
    """One value at the place that an index says, and another elsewhere (``DML_ONE_HOT_OPERATOR_DESC``).

    A negative index counts from the end; one that is out of range gives no such place.

    Args:
        indices_tensor: int32, int64, uint32, uint64; a shape of up to 8 dimensions, with the size 1 along the axis.
        values_tensor: the value elsewhere, and the one at the place, of any of the eleven data types or bool.
        axis: the dimension of the result that the indices count. A negative number counts from the last dimension.
        output_length: the result's size in this dimension.
    """

    FUNCTION = "one_hot"
    SUPPORT = support("2.0 F r4 · 2.1 FIU · 3.0 r8 · 4.1 all", indices_tensor="2.0 u r4 · 3.0 iuLW r8")
    ARGUMENTS = MappingProxyType({"output_length": Uint})
    ONNX = ("OneHot",)

    indices_tensor: Input
    values_tensor: Input
    output_tensor: Output
    axis: Axis

    @classmethod
    def of_call(cls, *inputs: Any, **given: Any) -> OneHot:
        """With the length of the result; values of a lower rank get leading dimensions of size 1."""
        indices, values = inputs
        values = cls.ranked(values, indices.rank) if values.rank < indices.rank else values
        draft = cls.of(indices, values, output_tensor=indices, axis=given["axis"])
        draft.require_axis()
        sizes = (*indices.sizes[: draft.axis], given["output_length"], *indices.sizes[draft.axis + 1 :])
        return cls.of(indices, values, output_tensor=values.with_sizes(sizes), axis=given["axis"])

    @classmethod
    def from_onnx(cls, node: OnnxNode) -> OneHot:
        """Indices without the axis."""
        indices, values = node.tensor(), node.tensor(2, boolean=True)
        axis = node.integer("axis", -1) % (indices.rank + 1)
        sizes = (*indices.sizes[:axis], 1, *indices.sizes[axis:])
        with_axis = ArrayTensorDesc(indices.data_type, sizes)
        return cls.of_call(with_axis, values, axis=axis, output_length=int(node.constant("depth")))

    def infer(self) -> Mapping[str, TensorDesc]:
        """The output must be given: its length does not follow from the inputs."""
        return {}

    def check(self) -> None:
        """One index for each sequence, and two values."""
        self.require_same("data_type", "output_tensor", "values_tensor")
        self.require_same("rank", "values_tensor", "indices_tensor")
        self.require_same("rank", "output_tensor", "indices_tensor")
        self.require_axis()
        self.require_one_each("indices_tensor", self.output_tensor.sizes)
        count = self.values_tensor.element_count
        self.require(count >= 2, "values_tensor.sizes", self.values_tensor.sizes, "at least two elements")

    def source(self, *at: Coordinate) -> SourceCoordinates:
        found = equal(at[self.axis], self.one_each("indices_tensor", at), self.output_tensor.sizes[self.axis])
        return [found, *[Coordinate({})] * (self.values_tensor.rank - 1)]

    def transfer(self) -> Transfer:
        """From the second value; the first one is the fill."""
        found = super().transfer()
        (move,) = found.moves
        steps = zip(packed_strides(self.values_tensor.sizes), self.values_tensor.sizes, self.values_tensor.layout, strict=True)
        second = next(step for before, n, step in reversed(list(steps)) if n > 1 and before == 1)
        read = Linear(move.read.base + second, move.read.steps)
        return found._replace(moves=(move._replace(read=read),), filled_from=(move.source, 0))

    def numpy(self, indices: NumpyArray, values: NumpyArray) -> NumpyArray:
        off, on = values.reshape(-1)[:2]
        size = self.output_tensor.sizes[self.axis]
        found, inside = normal(indices, size)
        place = np.arange(size).reshape(-1, *(1 for _ in indices.shape[self.axis + 1 :]))
        return np.where(inside & (place == found), on, off)
