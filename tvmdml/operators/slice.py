"""DML_OPERATOR_SLICE, SLICE1 and SLICE_GRAD: windows of a tensor."""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType
from typing import Any

import numpy as np

from tvmdml.operators._contract import Input, Ints, NumpyArray, Output, Uints
from tvmdml.operators._gradients import gradients
from tvmdml.operators._movement import Coordinate, Movement, SourceCoordinates, divided
from tvmdml.operators._movement_window import NO_ZERO, MovedWindow
from tvmdml.operators._onnx import NotConvertible, OnnxNode
from tvmdml.operators._support import support
from tvmdml.tensors import TensorDesc

_WINDOW = (
    "input_window_offsets=input_window_offsets, input_window_sizes=input_window_sizes, input_window_strides=input_window_strides"
)


class Slice(Movement):
    """Elements of a window (``DML_SLICE_OPERATOR_DESC``): those at ``offsets + strides * coordinates``."""

    SUPPORT = support("1.0 FH r45 · 2.1 FIU · 3.0 r8 · 4.1 all")

    input_tensor: Input
    output_tensor: Output
    offsets: Uints
    sizes: Uints
    strides: Uints

    def infer(self) -> Mapping[str, TensorDesc]:
        """The output has the sizes that are given."""
        return {"output_tensor": self.input_tensor.with_sizes(self.sizes)}

    def check(self) -> None:
        """A number for each dimension, and the last element inside of the input."""
        self.require_same("data_type", "output_tensor", "input_tensor")
        self.require_same("rank", "output_tensor", "input_tensor")
        self.require_count("offsets", "sizes", "strides")
        self.require_sizes("output_tensor", self.sizes)
        for i, n in enumerate(self.input_tensor.sizes):
            offset, size, step = self.offsets[i], self.sizes[i], self.strides[i]
            self.require(step >= 1, f"strides[{i}]", step, "1 or more", NO_ZERO)
            self.require(size >= 1, f"sizes[{i}]", size, "1 or more")
            last = offset + step * (size - 1)
            self.require(last < n, f"sizes[{i}]", f"{size}, with the last element at {last}", f"elements up to {n - 1}")

    def source(self, *at: Coordinate) -> SourceCoordinates:
        return [offset + step * x for offset, step, x in zip(self.offsets, self.strides, at, strict=True)]

    def numpy(self, x: NumpyArray) -> NumpyArray:
        return x[tuple(np.s_[o : o + n * s : s] for o, n, s in zip(self.offsets, self.sizes, self.strides, strict=True))]


class Slice1(MovedWindow):
    """Elements of a window (``DML_SLICE1_OPERATOR_DESC``), in steps that may be negative: these begin at the window's end.

    Args:
        input_window_offsets: where the window begins in each dimension.
        input_window_sizes: its sizes.
        input_window_strides: the steps; not 0. The result has every element that they meet.
    """

    FUNCTION = "slice"
    SUPPORT = support("2.1 FIU r45 · 3.0 r8 · 4.1 all")
    ONNX = ("Slice",)
    GRADIENT = gradients(input=f"slice_grad(gradient, output_gradient_sizes=input_sizes, {_WINDOW})")

    input_tensor: Input
    output_tensor: Output
    input_window_offsets: Uints
    input_window_sizes: Uints
    input_window_strides: Ints

    def infer(self) -> Mapping[str, TensorDesc]:
        """As many elements as the window has."""
        self.require_count("input_window_offsets", "input_window_sizes", "input_window_strides")
        sizes = [1 + (size - 1) // max(abs(step), 1) if size else 1 for _, size, step in self.window()]
        return {"output_tensor": self.input_tensor.with_sizes(sizes)}

    @classmethod
    def from_onnx(cls, node: OnnxNode) -> Slice1:
        """Starts and ends that may be negative, or too large."""
        x = node.tensor(boolean=True)
        starts, ends = node.constants("starts", 1), node.constants("ends", 2)
        axes = node.constants("axes", 3) if node.has(3) else list(range(len(starts)))
        steps = node.constants("steps", 4) if node.has(4) else [1] * len(starts)
        window = [(0, n, 1) for n in x.sizes]
        for axis, start, end, step in zip(axes, starts, ends, steps, strict=True):
            begin = start if step > 0 else max(start, -x.sizes[axis])  # ONNX begins inside
            first, last, _ = slice(begin, end, step).indices(x.sizes[axis])
            offset, size = (first, last - first) if step > 0 else (last + 1, first - last)
            if size < 1:
                raise NotConvertible("its result has no elements")
            window[axis] = offset, size, step
        offsets, sizes, strides = zip(*window, strict=True)
        limit = 2**31 - 1
        strides = tuple(max(min(step, limit), -limit) for step in strides)
        return cls.of(x, input_window_offsets=offsets, input_window_sizes=sizes, input_window_strides=strides)

    def whole(self) -> TensorDesc:
        return self.input_tensor

    def part(self) -> TensorDesc:
        return self.output_tensor

    def source(self, *at: Coordinate) -> SourceCoordinates:
        return [start + step * x for (start, step), x in zip(self.starts(), at, strict=True)]

    def numpy(self, x: NumpyArray) -> NumpyArray:
        parts = (
            range(start, start + n * step, step) for (start, step), n in zip(self.starts(), self.output_tensor.sizes, strict=True)
        )
        return x[np.ix_(*parts)]


class SliceGrad(MovedWindow):
    """The gradient of ``slice`` (``DML_SLICE_GRAD_OPERATOR_DESC``): zeros, except for the elements that were taken.

    Args:
        output_gradient_sizes: the sizes of the tensor that was sliced.
        input_window_offsets: where the window begins in each dimension.
        input_window_sizes: its sizes.
        input_window_strides: the steps; not 0. A negative one begins at the window's end.
    """

    FUNCTION = "slice_grad"
    SUPPORT = support("3.0 FIU r45 · 3.1 r8 · 4.1 all")
    ARGUMENTS = MappingProxyType({"output_gradient_sizes": Uints})
    GRADIENT = gradients(input=f"slice(gradient, {_WINDOW})")

    input_gradient_tensor: Input
    output_gradient_tensor: Output
    input_window_offsets: Uints
    input_window_sizes: Uints
    input_window_strides: Ints

    @classmethod
    def of_call(cls, *inputs: Any, **given: Any) -> SliceGrad:
        """With the sizes of the result."""
        (gradient,) = inputs
        sizes = given.pop("output_gradient_sizes")
        return cls.of(gradient, output_gradient_tensor=gradient.with_sizes(sizes), **given)

    def infer(self) -> Mapping[str, TensorDesc]:
        """The output must be given."""
        return {}

    def whole(self) -> TensorDesc:
        return self.output_gradient_tensor

    def part(self) -> TensorDesc:
        return self.input_gradient_tensor

    def source(self, *at: Coordinate) -> SourceCoordinates:
        found = []
        for x, (start, step) in zip(at, self.starts(), strict=True):
            found.append(divided(x - start if step > 0 else start - x, abs(step)))
        return found

    def numpy(self, gradient: NumpyArray) -> NumpyArray:
        found = np.zeros(self.output_gradient_tensor.sizes, gradient.dtype)
        parts = (range(start, start + n * step, step) for (start, step), n in zip(self.starts(), gradient.shape, strict=True))
        found[np.ix_(*parts)] = gradient
        return found
