"""DML_OPERATOR_GATHER, GATHER_ELEMENTS, GATHER_ND and GATHER_ND1: elements at the places that an index tensor says."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

from tvmdml.operators._contract import Axis, Input, NumpyArray, Output, Uint, defaults
from tvmdml.operators._movement import Coordinate, IndexElement, SourceCoordinates, picked
from tvmdml.operators._movement_indices import Indexed, Tuples, clamped
from tvmdml.operators._onnx import OnnxNode
from tvmdml.operators._support import support
from tvmdml.tensors import TensorDesc


class Gather(Indexed):
    """Slices of a tensor along an axis, by their indices (``DML_GATHER_OPERATOR_DESC``).

    A negative index counts from the end, and one that is out of range is clamped.

    Args:
        index_dimensions: how many of the indices' last dimensions replace the axis; the dimensions before them must be 1, and the
            result has as many dimensions as the input. By default all of them do, and the result has as many as it needs.
    """

    FUNCTION = "gather"
    SUPPORT = support("1.0 F r4 · 2.1 FIU · 3.0 r8 · 4.1 all", indices_tensor="1.0 u r4 · 3.0 iuLW r8")
    DEFAULTS = defaults(index_dimensions=None)
    ONNX = ("Gather",)

    input_tensor: Input
    indices_tensor: Input
    output_tensor: Output
    axis: Axis
    index_dimensions: Uint

    @classmethod
    def of_call(cls, *inputs: Any, **given: Any) -> Gather:
        """With index dimensions of any number; tensors get leading dimensions of size 1."""
        x, indices = inputs
        if given["index_dimensions"] is not None and x.rank == indices.rank:
            return cls.of(x, indices, **given)
        count = given["index_dimensions"]
        count = cls.rank_of(indices) if count is None else count
        axis = cls.of(x, x, output_tensor=x, axis=given["axis"], index_dimensions=0).axis
        rank = max(x.rank, indices.rank, x.rank + count - 1)
        if rank <= 8:
            x, indices, axis = cls.ranked(x, rank), cls.ranked(indices, rank), axis + rank - x.rank
        return cls.of(x, indices, axis=axis, index_dimensions=count)

    @classmethod
    def result_sizes(cls, *inputs: Any, **given: Any) -> tuple[int, ...] | None:
        """The sizes without those that were added."""
        x, indices = inputs
        count = cls.rank_of(indices) if given["index_dimensions"] is None else given["index_dimensions"]
        if given["index_dimensions"] is not None and x.rank == indices.rank:
            return None
        axis = given["axis"] % x.rank
        return (*x.sizes[:axis], *indices.sizes[indices.rank - count :], *x.sizes[axis + 1 :])

    @classmethod
    def from_onnx(cls, node: OnnxNode) -> Gather:
        return cls.of_call(node.tensor(boolean=True), node.tensor(1), axis=node.integer("axis", 0), index_dimensions=None)

    def whole(self) -> tuple[int, ...]:
        """The result's sizes before they are brought to the input's rank."""
        x, indices = self.input_tensor.sizes, self.indices_tensor.sizes
        return (*x[: self.axis], *indices[len(indices) - self.index_dimensions :], *x[self.axis + 1 :])

    def infer(self) -> Mapping[str, TensorDesc]:
        """The axis is replaced by the indices' dimensions."""
        self.require_axis()
        return {"output_tensor": self.input_tensor.with_sizes(self.aligned(self.whole(), self.input_tensor.rank))}

    def check(self) -> None:
        """All ranks are equal; what does not fit is 1."""
        rank = self.input_tensor.rank
        self.check_tensors()
        self.require_axis()
        count = self.index_dimensions
        self.require(count <= rank, "index_dimensions", count, f"0 to {rank}, the number of dimensions")
        self.require_ones("indices_tensor", rank - count)
        whole = self.whole()
        over = whole[: max(len(whole) - rank, 0)]
        self.require(all(n == 1 for n in over), "index_dimensions", count, f"fewer: the result would have the sizes {whole}")
        self.require_sizes("output_tensor", self.aligned(whole, rank))
        self.require_elements("input_tensor")

    def source(self, *at: Coordinate) -> SourceCoordinates:
        axis, count, rank = self.axis, self.index_dimensions, len(at)
        missing = rank - 1 + count - rank
        own = [*[Coordinate({})] * missing, *at[max(-missing, 0) :]]
        place = [*[Coordinate({})] * (rank - count), *own[axis : axis + count]]
        return [*own[:axis], picked(IndexElement("indices_tensor", place)), *own[axis + count :]]

    def numpy(self, x: NumpyArray, indices: NumpyArray) -> NumpyArray:
        own = indices.reshape(indices.shape[indices.ndim - self.index_dimensions :])
        return np.take(x, clamped(own, x.shape[self.axis]), self.axis).reshape(self.output_tensor.sizes)


class GatherElements(Indexed):
    """For each index the element at that place along an axis (``DML_GATHER_ELEMENTS_OPERATOR_DESC``).

    A negative index counts from the end, and one that is out of range is clamped.

    Args:
        indices_tensor: int32, int64, uint32, uint64; of the result's shape: any size along the axis, and otherwise at most the
            input's.
    """

    FUNCTION = "gather_elements"
    SUPPORT = support("2.1 FIU r4 · 3.0 r8 · 4.1 all", indices_tensor="2.1 u r4 · 3.0 iuLW r8")
    ONNX = ("GatherElements",)

    input_tensor: Input
    indices_tensor: Input
    output_tensor: Output
    axis: Axis

    @classmethod
    def of_call(cls, *inputs: Any, **given: Any) -> GatherElements:
        """Only a part of the input may be needed."""
        x, indices = inputs
        return cls.of(cls.window(x, indices, given["axis"]), indices, **given)

    @classmethod
    def from_onnx(cls, node: OnnxNode) -> GatherElements:
        return cls.of_call(node.tensor(boolean=True), node.tensor(1), axis=node.integer("axis", 0))

    def infer(self) -> Mapping[str, TensorDesc]:
        """The sizes of the indices."""
        return {"output_tensor": self.input_tensor.with_sizes(self.indices_tensor.sizes)}

    def check(self) -> None:
        """Indices of the input's sizes, but for the axis."""
        self.check_tensors()
        self.require_axis()
        self.require_like_input("indices_tensor")
        self.require_sizes("output_tensor", self.indices_tensor.sizes)
        self.require_elements("input_tensor")

    def source(self, *at: Coordinate) -> SourceCoordinates:
        return [picked(IndexElement("indices_tensor", at)) if i == self.axis else x for i, x in enumerate(at)]

    def numpy(self, x: NumpyArray, indices: NumpyArray) -> NumpyArray:
        return np.take_along_axis(x, clamped(indices, x.shape[self.axis]), self.axis)


class GatherNd(Tuples):
    """Slices of a tensor by tuples of indices (``DML_GATHER_ND_OPERATOR_DESC``)."""

    SUPPORT = support("2.1 FIU r4 · 3.0 r8 · 4.1 all", indices_tensor="2.1 u r4 · 3.0 iuLW r8")

    input_tensor: Input
    indices_tensor: Input
    output_tensor: Output
    input_dimension_count: Uint
    indices_dimension_count: Uint

    def batch(self) -> int:
        """How many dimensions the input and the indices have in common."""
        return 0

    def whole(self) -> tuple[int, ...]:
        """The result's sizes without leading dimensions."""
        x, indices = self.own("input_tensor", "input_dimension_count"), self.own("indices_tensor", "indices_dimension_count")
        return (*indices[:-1], *x[self.batch() + (indices[-1] if indices else 0) :])

    def infer(self) -> Mapping[str, TensorDesc]:
        """The tuples are replaced by what they choose."""
        return {"output_tensor": self.input_tensor.with_sizes(self.aligned(self.whole(), self.input_tensor.rank))}

    def check(self) -> None:
        """Tuples that are not longer than the input has dimensions."""
        self.check_tensors()
        self.check_tuples(self.batch())
        whole, rank = self.whole(), self.input_tensor.rank
        self.require(len(whole) <= rank, "output_tensor.sizes", whole, f"up to {rank} dimensions")
        self.require_sizes("output_tensor", self.aligned(whole, rank))
        self.require_elements("input_tensor")

    def source(self, *at: Coordinate) -> SourceCoordinates:
        rank, batch, count = len(at), self.batch(), self.indices_dimension_count
        own = at[rank - len(self.whole()) :]
        before = [*[Coordinate({})] * (rank - count), *own[: count - 1]]
        places = [picked(IndexElement("indices_tensor", [*before, Coordinate({}, j)])) for j in range(self.tuple_size())]
        return [*[Coordinate({})] * (rank - self.input_dimension_count), *own[:batch], *places, *own[count - 1 :]]

    def numpy(self, x: Any, indices: Any) -> NumpyArray:
        x = x.reshape(self.own("input_tensor", "input_dimension_count"))
        indices, batch = indices.reshape(self.own("indices_tensor", "indices_dimension_count")), self.batch()
        places = [clamped(indices[..., j], x.shape[batch + j]) for j in range(indices.shape[-1])]
        common = np.ix_(*(np.arange(n) for n in x.shape[:batch])) if batch else ()
        some = [one.reshape(one.shape + (1,) * (indices.ndim - 1 - batch)) for one in common]
        at = (*some, *places)
        found: NumpyArray = x[at]
        return found.reshape(self.output_tensor.sizes)


class GatherNd1(GatherNd):
    """Slices of a tensor by tuples of indices (``DML_GATHER_ND1_OPERATOR_DESC``).

    The last dimension of the indices has tuples: one index for each of the input's first dimensions behind the batch. A negative
    index counts from the end, and one that is out of range is clamped.

    Args:
        batch_dimension_count: how many first dimensions the input and the indices have in common.
    """

    FUNCTION = "gather_nd"
    SUPPORT = support("3.0 FIU r8 · 4.1 all", indices_tensor="3.0 iuLW r8")
    DEFAULTS = defaults(input_dimension_count=None, indices_dimension_count=None, batch_dimension_count=0)
    ONNX = ("GatherND",)

    batch_dimension_count: Uint

    @classmethod
    def result_sizes(cls, *inputs: Any, **given: Any) -> tuple[int, ...] | None:
        """The sizes without those that were added."""
        x, indices = inputs
        if x.rank == indices.rank and None not in (given["input_dimension_count"], given["indices_dimension_count"]):
            return None
        return cls.of_call(*inputs, **given).whole()

    @classmethod
    def from_onnx(cls, node: OnnxNode) -> GatherNd1:
        counts = {"input_dimension_count": None, "indices_dimension_count": None}
        return cls.of_call(node.tensor(boolean=True), node.tensor(1), batch_dimension_count=node.integer("batch_dims", 0), **counts)

    def batch(self) -> int:
        return self.batch_dimension_count
