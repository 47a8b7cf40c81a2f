"""DML_OPERATOR_TILE, UPSAMPLE_2D and REVERSE_SUBSEQUENCES: elements of a tensor, repeated or in another order."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np

from tvmdml.operators._contract import Axis, Input, NumpyArray, Output, Uints
from tvmdml.operators._movement import Coordinate, Movement, SourceCoordinates, turned
from tvmdml.operators._onnx import NotConvertible, OnnxNode
from tvmdml.operators._support import support
from tvmdml.tensors import ArrayTensorDesc, TensorDesc


class Tile(Movement):
    """The tensor, repeated in each dimension (``DML_TILE_OPERATOR_DESC``).

    Args:
        repeats: how often in each dimension; at least 1.
    """

    FUNCTION = "tile"
    SUPPORT = support("1.0 F r4 · 2.1 FIU · 3.1 r8 · 4.1 +LW · ext +D")
    ONNX = ("Tile",)

    input_tensor: Input
    output_tensor: Output
    repeats: Uints

    def infer(self) -> Mapping[str, TensorDesc]:
        """Sizes times repeats."""
        self.require_count("repeats")
        return {"output_tensor": self.input_tensor.with_sizes(self._sizes())}

    @classmethod
    def from_onnx(cls, node: OnnxNode) -> Tile:
        return cls.of(node.tensor(boolean=True), repeats=node.constants("repeats", 1))

    def check(self) -> None:
        """Sizes times repeats."""
        self.require_same("data_type", "output_tensor", "input_tensor")
        self.require_same("rank", "output_tensor", "input_tensor")
        self.require_count("repeats")
        for i, times in enumerate(self.repeats):
            self.require(times >= 1, f"repeats[{i}]", times, "1 or more")
        self.require_sizes("output_tensor", self._sizes())

    def _sizes(self) -> tuple[int, ...]:
        return tuple(n * times for n, times in zip(self.input_tensor.sizes, self.repeats, strict=True))

    def source(self, *at: Coordinate) -> SourceCoordinates:
        return [x % n for x, n in zip(at, self.input_tensor.sizes, strict=True)]

    def numpy(self, x: NumpyArray) -> NumpyArray:
        return np.tile(x, self.repeats)


class ReverseSubsequences(Movement):
    """The first elements along an axis in reverse order (``DML_REVERSE_SUBSEQUENCES_OPERATOR_DESC``), the others as they are.

    Args:
        input_tensor: of any of the eleven data types, or bool; a shape of up to 8 dimensions.
        sequence_lengths_tensor: how many elements are reversed, for each sequence: an integer array with the input's sizes, except
            for the axis, where it has the size 1. A length above the axis' size counts as that, a negative one as 0.
    """

    FUNCTION = "reverse_subsequences"
    SUPPORT = support(
        "2.1 FIU r4 · 3.0 r45 · 4.0 r8 · 5.0 all", sequence_lengths_tensor="2.1 u r4 · 3.0 r45 · 4.0 r8 · 5.0 +W · ext +iL"
    )
    INDICES = ("sequence_lengths_tensor",)
    ONNX = ("ReverseSequence",)

    input_tensor: Input
    sequence_lengths_tensor: Input
    output_tensor: Output
    axis: Axis

    def infer(self) -> Mapping[str, TensorDesc]:
        """The output is like the input."""
        return {"output_tensor": self.input_tensor.with_sizes(self.input_tensor.sizes)}

    @classmethod
    def from_onnx(cls, node: OnnxNode) -> ReverseSubsequences:
        """The lengths lie along the batch axis."""
        x, lengths = node.tensor(boolean=True), node.tensor(1)
        axis, batch = node.integer("time_axis", 0), node.integer("batch_axis", 1)
        if {axis, batch} != {0, 1}:
            raise NotConvertible(f"its axes are {axis} and {batch}")
        sizes = [1 if i == axis else n for i, n in enumerate(x.sizes)]
        along = ArrayTensorDesc(lengths.data_type, sizes, [lengths.layout[0] if i == batch else 0 for i in range(x.rank)])
        return cls.of(x, along, axis=axis)

    def check(self) -> None:
        """One length for each sequence."""
        self.require_same("data_type", "output_tensor", "input_tensor")
        self.require_same("sizes", "output_tensor", "input_tensor")
        self.require_axis()
        self.require_one_each("sequence_lengths_tensor", self.input_tensor.sizes)

    def source(self, *at: Coordinate) -> SourceCoordinates:
        length = self.one_each("sequence_lengths_tensor", at)
        return [turned(x, length) if i == self.axis else x for i, x in enumerate(at)]

    def numpy(self, x: NumpyArray, lengths: NumpyArray) -> NumpyArray:
        size = x.shape[self.axis]
        place = np.arange(size).reshape(-1, *(1 for _ in x.shape[self.axis + 1 :]))
        count = np.clip(lengths, 0, None)
        count = np.where(count > size, size, count).astype(np.int64)
        return np.take_along_axis(x, np.where(place < count, count - 1 - place, place), self.axis)
