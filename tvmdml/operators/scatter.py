"""DML_OPERATOR_SCATTER and SCATTER_ND: a tensor with some elements replaced, at the places that an index tensor says."""

from __future__ import annotations

from typing import Any

import numpy as np

from tvmdml.kernels.layout import without
from tvmdml.kernels.movement import Index, Linear, Updates
from tvmdml.operators._contract import Axis, Input, NumpyArray, Output, Uint, defaults
from tvmdml.operators._movement_indices import Tuples, normal
from tvmdml.operators._movement_scatter import Scattered
from tvmdml.operators._onnx import NotConvertible, OnnxNode
from tvmdml.operators._support import support


class Scatter(Scattered):
    """A tensor whose elements at the places of indices along an axis are replaced (``DML_SCATTER_OPERATOR_DESC``).

    A negative index counts from the end, and one that is out of range replaces nothing. Where indices meet, the last one counts.

    Args:
        indices_tensor: int32, int64, uint32, uint64; any size along the axis, and otherwise at most the input's.
        updates_tensor: the new elements, one for each index.
    """

    FUNCTION = "scatter_elements"
    ALIASES = ("scatter",)
    SUPPORT = support("2.0 F r4 · 2.1 FIU · 3.0 r8 · 4.1 all", indices_tensor="2.0 u r4 · 3.0 iuLW r8")
    ONNX = ("ScatterElements",)

    input_tensor: Input
    indices_tensor: Input
    updates_tensor: Input
    output_tensor: Output
    axis: Axis

    @classmethod
    def from_onnx(cls, node: OnnxNode) -> Scatter:
        if node.attributes.get("reduction", b"none") != b"none":
            raise NotConvertible("it reduces: DirectML's scatter replaces")
        x, indices, updates = node.tensor(boolean=True), node.tensor(1), node.tensor(2, boolean=True)
        return cls.of(x, indices, updates, axis=node.integer("axis", 0))

    def check(self) -> None:
        """An index and an update for each place."""
        self.check_tensors()
        self.require_axis()
        self.require_like_input("indices_tensor")
        self.require_sizes("updates_tensor", self.indices_tensor.sizes)

    def limits(self) -> Any:
        return np.array([self.output_tensor.sizes[self.axis]])

    def updates(self) -> Updates:
        """In columns along the axis."""

        def column_first(steps: tuple[int, ...]) -> Linear:
            return Linear(0, (*without(self.axis, steps), steps[self.axis]))

        x, indices, result = self.input_tensor.layout, self.indices_tensor, self.output_tensor.layout
        along = Index(column_first(indices.layout), self.input_tensor.sizes[self.axis], x[self.axis], result[self.axis])
        return Updates(
            without(self.axis, indices.sizes),
            (indices.sizes[self.axis],),
            column_first(self.updates_tensor.layout),
            Linear(0, without(self.axis, x)),
            Linear(0, without(self.axis, result)),
            (along,),
        )

    def numpy(self, x: Any, indices: Any, updates: Any) -> NumpyArray:
        found: NumpyArray = x.copy()
        places, inside = normal(indices, x.shape[self.axis])
        at: Any = np.indices(indices.shape)
        at[self.axis] = np.where(inside, places, 0)
        found[tuple(one[inside] for one in at)] = updates[inside]
        return found


class ScatterNd(Scattered, Tuples):
    """A tensor whose slices at the places of tuples of indices are replaced (``DML_SCATTER_ND_OPERATOR_DESC``).

    The last dimension of the indices has tuples: one index for each of the input's first dimensions. A negative index counts from
    the end; a tuple with an index out of range replaces nothing. Where tuples meet, the last one counts.

    Args:
        updates_tensor: the new slices, one for each tuple.
    """

    FUNCTION = "scatter_nd"
    SUPPORT = support("2.1 FIU r4 · 3.0 r8 · 4.1 all", indices_tensor="2.1 u r4 · 3.0 iuLW r8")
    DEFAULTS = defaults(input_dimension_count=None, indices_dimension_count=None)
    ONNX = ("ScatterND",)

    input_tensor: Input
    indices_tensor: Input
    updates_tensor: Input
    output_tensor: Output
    input_dimension_count: Uint
    indices_dimension_count: Uint

    @classmethod
    def result_sizes(cls, *inputs: Any, **given: Any) -> tuple[int, ...] | None:
        """The input's sizes."""
        return tuple(inputs[0].sizes)

    @classmethod
    def from_onnx(cls, node: OnnxNode) -> ScatterNd:
        if node.attributes.get("reduction", b"none") != b"none":
            raise NotConvertible("it reduces: DirectML's scatter replaces")
        x, indices, updates = node.tensor(boolean=True), node.tensor(1), node.tensor(2, boolean=True)
        return cls.of_call(x, indices, updates, input_dimension_count=None, indices_dimension_count=None)

    def check(self) -> None:
        """Tuples that are not longer than the input has dimensions, and a slice for each."""
        self.check_tensors()
        self.check_tuples(0)
        whole, rank = self._updated(), self.input_tensor.rank
        self.require(len(whole) <= rank, "updates_tensor.sizes", whole, f"up to {rank} dimensions")
        self.require_sizes("updates_tensor", self.aligned(whole, rank))

    def _updated(self) -> tuple[int, ...]:
        x, indices = self.own("input_tensor", "input_dimension_count"), self.own("indices_tensor", "indices_dimension_count")
        return (*indices[:-1], *x[self.tuple_size() :])

    def limits(self) -> Any:
        return np.array(self.own("input_tensor", "input_dimension_count")[: self.tuple_size()])

    def updates(self) -> Updates:
        """A slice has an element of each column."""
        tuples, first = self.indices_dimension_count - 1, self.input_tensor.rank - self.input_dimension_count
        behind = first + self.tuple_size()
        x, result = self.input_tensor, self.output_tensor
        indices, given = self.indices_tensor, self.updates_tensor.layout
        order, rest = indices.sizes[indices.rank - 1 - tuples : -1], result.sizes[behind:]
        steps = indices.layout[indices.rank - 1 - tuples : -1]
        given = given[len(given) - len(rest) - tuples :]
        none = (0,) * len(rest)
        return Updates(
            rest,
            order,
            Linear(0, (*given[tuples:], *given[:tuples])),
            Linear(0, x.layout[behind:]),
            Linear(0, result.layout[behind:]),
            tuple(
                Index(Linear(j * indices.layout[-1], (*none, *steps)), x.sizes[i], x.layout[i], result.layout[i])
                for j, i in enumerate(range(first, behind))
            ),
        )

    def numpy(self, x: Any, indices: Any, updates: Any) -> NumpyArray:
        found: NumpyArray = x.copy().reshape(self.own("input_tensor", "input_dimension_count"))
        places, slices = self.placed(found.shape, indices, updates)
        found[places] = slices
        return found.reshape(x.shape)

    def placed(self, sizes: tuple[int, ...], indices: Any, updates: Any) -> tuple[tuple[NumpyArray, ...], NumpyArray]:
        """For a reference: the places of the tuples in range, and their slices."""
        tuples = indices.reshape(-1, self.tuple_size())
        some = [normal(tuples[:, j], sizes[j]) for j in range(self.tuple_size())]
        inside = np.logical_and.reduce([one for _, one in some])
        slices: NumpyArray = updates.reshape(len(tuples), *sizes[self.tuple_size() :])
        return tuple(place[inside] for place, _ in some), slices[inside]
