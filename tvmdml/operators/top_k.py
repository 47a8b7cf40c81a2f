"""DML_OPERATOR_TOP_K and TOP_K1: the K largest or smallest elements along an axis, in order, with their positions."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

import numpy as np

from tvmdml.enums import AxisDirection
from tvmdml.kernels import tensorir as T
from tvmdml.operators._contract import Axis, Input, NumpyArray, Operator, Output, Shared, Uint, defaults
from tvmdml.operators._gradients import gradients
from tvmdml.operators._onnx import OnnxNode
from tvmdml.operators._support import support
from tvmdml.tensors import TensorDataType, TensorDesc

_INDICES = "2.1 u r4 · 3.1 r8 · 5.0 +W"


class TopK1(Operator):
    """The K largest or smallest elements of each sequence along an axis, with positions (``DML_TOP_K1_OPERATOR_DESC``).

    ``DECREASING`` gives the largest first. The results are sorted; equal elements are in ascending order of their positions, in
    both directions. -0 equals +0; NaN ranks above +infinity, and all NaN are equal. A value is a copy of the input's element, so a
    NaN's payload and a zero's sign are kept. The outputs have the input's sizes, except K along the axis.
    """

    DEFAULTS = defaults(axis=-1, axis_direction=AxisDirection.DECREASING)
    ONNX = ("TopK",)
    SUPPORT = support("2.1 FIU r4 · 3.1 r8 · 5.0 +LW · ext D", output_index_tensor=_INDICES)
    GRADIENT = gradients(input="scattered(input_sizes, axis, indices, gradient)")

    input_tensor: Input
    output_value_tensor: Output
    output_index_tensor: Output
    axis: Axis
    k: Uint
    axis_direction: AxisDirection

    def infer(self) -> Mapping[str, TensorDesc]:
        """The outputs have the input's sizes, except K along the axis; positions are UINT32."""
        return _infer(self)

    @classmethod
    def from_onnx(cls, node: OnnxNode) -> TopK1:
        """The positions are ONNX's INT64. K is an attribute in the first version, and later a constant."""
        return cls.of(
            node.tensor(),
            output_index_tensor=TensorDataType.UINT64,
            axis=node.integer("axis", -1),
            k=node.constant("k") if node.has(1) else node.integer("k", 0),
            axis_direction=AxisDirection.DECREASING if node.integer("largest", 1) else AxisDirection.INCREASING,
        )

    def check(self) -> None:
        """The axis exists, K is at most its size, and the outputs have the right sizes."""
        _check(self)

    def shape_class(self) -> dict[str, int | str]:
        """The length and number of rows along the axis, and the distance in elements between neighbours in a row."""
        sizes = self.input_tensor.sizes
        return {
            "length": sizes[self.axis],
            "k": self.k,
            "rows": math.prod(sizes[: self.axis]) * math.prod(sizes[self.axis + 1 :]),
            "inner": math.prod(sizes[self.axis + 1 :]),
            "layout": self.layout(),
        }

    def samples(self) -> tuple[str, ...]:
        """Easy and hard inputs for selection."""
        nan = ("all NaN",) if self.input_tensor.data_type.is_float else ()
        return "normal", "ascending", "descending", "constant", *nan, "dense block"

    def computation(self, each: T.Each, shared: Shared = ()) -> T.PrimFunc:
        """One item for each element: its rank is the number of elements before it. If the rank is below K, it is the position."""
        source, values, indices = self.input_tensor, self.output_value_tensor, self.output_index_tensor
        with T.function() as f:
            tensors = f.tensors(self)
            with T.elements(each, source.sizes) as at:
                mine = T.let(tensors["input_tensor"][T.dot(at, source.layout)])
                rank = T.Variable(T.type_of(T.index(0)), T.index(0))
                with T.loop(T.index(source.sizes[self.axis])) as i:
                    other = tensors["input_tensor"][T.dot([*at[: self.axis], i, *at[self.axis + 1 :]], source.layout)]
                    before = self._precedes(other, mine) | (~self._precedes(mine, other) & (i < at[self.axis]))
                    rank.set(rank.value + T.cast(before, T.type_of(rank.value)))
                with T.when(rank.value < T.index(self.k)):
                    place = [*at[: self.axis], rank.value, *at[self.axis + 1 :]]
                    T.store(tensors["output_value_tensor"], T.dot(place, values.layout), mine)
                    position = T.cast(at[self.axis], indices.data_type.tvm)
                    T.store(tensors["output_index_tensor"], T.dot(place, indices.layout), position)
        return f.result()

    def _precedes(self, a: Any, b: Any) -> Any:
        """Whether ``a`` comes before ``b`` by value alone."""
        low, high = (a, b) if self.axis_direction is AxisDirection.INCREASING else (b, a)
        if not self.input_tensor.data_type.is_float:
            return low < high
        # NaN ranks above all numbers. Every comparison with it is false, so it needs a separate test.
        return (low < high) | (~T.isnan(low) & T.isnan(high))

    def reference(self, *inputs: NumpyArray | None) -> tuple[NumpyArray, ...]:
        """The operator in NumPy: a stable sort by value, with a separate key for NaN."""
        (x,) = inputs
        assert x is not None
        order = _order(x, self.axis, self.axis_direction).take(range(self.k), axis=self.axis)
        return np.take_along_axis(x, order, self.axis), order.astype(self.output_index_tensor.data_type.numpy)


class TopK(Operator):
    """The K largest elements of each sequence along an axis (``DML_TOP_K_OPERATOR_DESC``): ``TopK1``, always decreasing."""

    DEFAULTS = defaults(axis=-1)
    SUPPORT = support("1.0 F r4 · 2.1 +IU · 3.1 r8 · 5.0 +LW · ext D", output_index_tensor=f"1.0 u r4 · {_INDICES}")

    input_tensor: Input
    output_value_tensor: Output
    output_index_tensor: Output
    axis: Axis
    k: Uint

    def infer(self) -> Mapping[str, TensorDesc]:
        """As for TOP_K1."""
        return _infer(self)

    def check(self) -> None:
        """As for TOP_K1."""
        _check(self)

    def canonical(self) -> TopK1:
        """TOP_K1, decreasing."""
        return TopK1(
            input_tensor=self.input_tensor,
            output_value_tensor=self.output_value_tensor,
            output_index_tensor=self.output_index_tensor,
            axis=self.axis,
            k=self.k,
            axis_direction=AxisDirection.DECREASING,
        )

    def shape_class(self) -> dict[str, int | str]:
        """TOP_K1's."""
        return self.canonical().shape_class()

    def samples(self) -> tuple[str, ...]:
        """TOP_K1's."""
        return self.canonical().samples()

    def computation(self, each: T.Each, shared: Shared = ()) -> T.PrimFunc:
        """TOP_K1's."""
        return self.canonical().computation(each)

    def reference(self, *inputs: NumpyArray | None) -> tuple[NumpyArray, ...]:
        """TOP_K1's."""
        return self.canonical().reference(*inputs)


def _infer(desc: TopK | TopK1) -> Mapping[str, TensorDesc]:
    _check_k(desc)
    x, axis = desc.input_tensor, desc.axis
    sizes = (*x.sizes[:axis], desc.k, *x.sizes[axis + 1 :])
    return {"output_value_tensor": x.with_sizes(sizes), "output_index_tensor": x.with_sizes(sizes, TensorDataType.UINT32)}


def _check_k(desc: TopK | TopK1) -> None:
    sizes = desc.input_tensor.sizes
    desc.require(desc.axis < len(sizes), "axis", desc.axis, f"0 to {len(sizes) - 1}", "The input has no such dimension.")
    # DirectML has no tensors without elements, and therefore no K of 0. Arrays may be empty.
    least, length = desc.input_tensor.SMALLEST_SIZE, sizes[desc.axis]
    for holds in (least <= desc.k, desc.k <= length):
        desc.require(holds, "k", desc.k, f"{least} to {length}, the input's size along axis {desc.axis}")


def _check(desc: TopK | TopK1) -> None:
    _check_k(desc)
    sizes = desc.input_tensor.sizes
    desc.require_same("data_type", "output_value_tensor", "input_tensor")
    wanted = (*sizes[: desc.axis], desc.k, *sizes[desc.axis + 1 :])
    for name in ("output_value_tensor", "output_index_tensor"):
        given = getattr(desc, name).sizes
        desc.require(given == wanted, f"{name}.sizes", given, f"{wanted}: the input's, except k along the axis")


def _order(x: NumpyArray, axis: int, direction: AxisDirection) -> NumpyArray:
    """The positions along an axis, sorted in the operator's order."""
    if x.dtype.kind != "f":
        # The complement reverses the order without overflow, for signed and unsigned integers.
        return np.argsort(x if direction is AxisDirection.INCREASING else ~x, axis=axis, kind="stable")
    nan = np.isnan(x)
    numbers = np.where(nan, x.dtype.type(0), x)
    if direction is AxisDirection.INCREASING:
        return np.lexsort((numbers, nan), axis=axis)
    return np.lexsort((-numbers, ~nan), axis=axis)
