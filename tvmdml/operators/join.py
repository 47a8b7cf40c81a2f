"""DML_OPERATOR_JOIN and SPLIT: tensors one after the other along an axis, and the parts of a tensor."""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType
from typing import Any

import numpy as np

from tvmdml.kernels.movement import Move
from tvmdml.operators._contract import Axis, Input, Inputs, NumpyArray, Output, Outputs, Uints
from tvmdml.operators._movement_parts import Parts, same
from tvmdml.operators._onnx import OnnxNode
from tvmdml.operators._support import support
from tvmdml.tensors import ArrayTensorDesc, TensorDesc


class Join(Parts):
    """Tensors one after the other along an axis (``DML_JOIN_OPERATOR_DESC``).

    Args:
        axis: the dimension in which their sizes may differ. A negative number counts from the last dimension.
    """

    FUNCTION = "join"
    SUPPORT = support("1.0 FH r4 · 2.1 FIU · 3.0 r45 · 3.1 r8 · 4.1 all")
    ONNX = ("Concat",)

    input_tensors: Inputs
    output_tensor: Output
    axis: Axis

    def infer(self) -> Mapping[str, TensorDesc]:
        """Sizes along the axis are added."""
        self.require(len(self.input_tensors) >= 1, "input_tensors", "none", "1 or more tensors")
        self.require_axis()
        first = self.input_tensors[0]
        for i, one in enumerate(self.input_tensors):
            self.require(one.rank == first.rank, f"input_tensors[{i}].rank", one.rank, f"{first.rank}, as in input_tensors[0]")
        total = sum(one.sizes[self.axis] for one in self.input_tensors)
        return {"output_tensor": first.with_sizes((*first.sizes[: self.axis], total, *first.sizes[self.axis + 1 :]))}

    @classmethod
    def from_onnx(cls, node: OnnxNode) -> Join:
        return cls.of([one for one in node.tensors(boolean=True) if one is not None], axis=node.integer("axis", 0))

    def check(self) -> None:
        """The whole, and its parts."""
        self.check_parts("output_tensor", "input_tensors")

    def moves(self) -> tuple[Move, ...]:
        begins = enumerate(self.begins(self.input_tensors))
        return tuple(self.move(f"input_tensors[{i}]", "output_tensor", same, self.shifted(begin)) for i, begin in begins)

    def numpy(self, *arrays: NumpyArray) -> NumpyArray:
        return np.concatenate(arrays, self.axis)


class Split(Parts):
    """The parts of a tensor along an axis (``DML_SPLIT_OPERATOR_DESC``), one after the other.

    Args:
        axis: the dimension that is divided. A negative number counts from the last dimension.
        output_axis_sizes: the parts' sizes in this dimension; their sum is the tensor's.
    """

    FUNCTION = "split"
    SUPPORT = support("1.0 FH r4 · 2.1 FIU · 3.0 r8 · 4.1 all")
    ARGUMENTS = MappingProxyType({"output_axis_sizes": Uints})
    ONNX = ("Split",)

    input_tensor: Input
    output_tensors: Outputs
    axis: Axis

    def infer(self) -> Mapping[str, TensorDesc]:
        """The outputs must be given."""
        return {}

    @classmethod
    def of_call(cls, *inputs: Any, **given: Any) -> Split:
        """With the sizes of the parts."""
        whole, axis, sizes = inputs[0], given["axis"], given["output_axis_sizes"]
        draft = cls.of(whole, output_tensors=[], axis=axis)
        draft.require_axis()
        draft.require(isinstance(sizes, tuple), "output_axis_sizes", sizes, "a sequence of integers")
        before, after = whole.sizes[: draft.axis], whole.sizes[draft.axis + 1 :]
        return cls.of(whole, output_tensors=[whole.with_sizes((*before, n, *after)) for n in sizes], axis=axis)

    @classmethod
    def from_onnx(cls, node: OnnxNode) -> Split:
        """Sizes as an input, or a number of parts, of which the last may be smaller."""
        whole: ArrayTensorDesc = node.tensor(boolean=True)
        axis = node.integer("axis", 0) % whole.rank
        count, n = node.results, whole.sizes[axis]
        most = -(-n // count)
        sizes = node.constants("split", 1) if node.has(1) else [max(0, min(most, n - i * most)) for i in range(count)]
        return cls.of_call(whole, axis=axis, output_axis_sizes=tuple(node.attributes.get("split", sizes)))

    def check(self) -> None:
        """The whole, and its parts."""
        self.check_parts("input_tensor", "output_tensors")

    def moves(self) -> tuple[Move, ...]:
        begins = enumerate(self.begins(self.output_tensors))
        return tuple(self.move("input_tensor", f"output_tensors[{i}]", self.shifted(begin)) for i, begin in begins)

    def numpy(self, x: NumpyArray) -> tuple[NumpyArray, ...]:
        return tuple(np.split(x, self.begins(self.output_tensors)[1:], self.axis))
