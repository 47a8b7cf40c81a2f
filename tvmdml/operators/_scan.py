"""The scan family: each element of the output combines the elements up to its place along an axis.

Results do not depend on threads, devices or layouts, because the order in which floats are combined is fixed. Elements stand in
groups of ``GROUP``. In a group, each half combines the last of the half before with each of its own, from pairs upwards. Groups
stand in blocks, and blocks in tiles, of ``GROUP`` each. A group's base is that of its block, then what the groups before it in the
block come to, one after the other; so are the bases of blocks in a tile, and of tiles in a row. An element is its group's base
combined with what it is in its group.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any, ClassVar

import numpy as np

from tvmdml.enums import AxisDirection
from tvmdml.kernels import tensorir_values as T
from tvmdml.operators._accuracy import Expected, Near
from tvmdml.operators._contract import Axis, Input, NumpyArray, Operator, Output, Shared
from tvmdml.operators._onnx import OnnxNode
from tvmdml.tensors import TensorDataType, TensorDesc

GROUP = 16
"""Elements of a group, groups of a block, and blocks of a tile."""
BLOCK = GROUP * GROUP
TILE = GROUP * BLOCK


class Scan(Operator):
    """Base class of scans."""

    FAMILY: ClassVar[str] = "scan"
    SHARES: ClassVar[Shared] = (("input_tensor", "output_tensor"),)
    ANY_NAN = True
    IDENTITY: ClassVar[float]
    """What combined with any other number, zeros included, is that number."""
    FIRST: ClassVar[int]
    """The first element of an exclusive scan."""
    EXCLUSIVE: ClassVar[str]
    """The name of the field that leaves an element out of its own result."""

    input_tensor: Input
    output_tensor: Output
    axis: Axis
    axis_direction: AxisDirection

    def combine(self, a: Any, b: Any) -> Any:
        """Two elements, or two arrays of them, combined."""
        raise NotImplementedError(self.NAME)

    def accumulated(self, x: NumpyArray, axis: int) -> tuple[NumpyArray, NumpyArray, NumpyArray]:
        """Inclusive results along an axis, in NumPy; for floats in higher precision, with two more arrays.

        They are what an error is relative to, and whether a result may be anything, since it depends on the order.
        """
        raise NotImplementedError(self.NAME)

    @property
    def exclusive(self) -> bool:
        """Whether an element is left out of its own result."""
        return bool(getattr(self, self.EXCLUSIVE))

    @property
    def decreasing(self) -> bool:
        """Whether the last element of a row comes first."""
        return self.axis_direction is AxisDirection.DECREASING

    @property
    def computed(self) -> str:
        """The type in which elements are combined: a float16 is rounded only when it is stored."""
        data_type = self.input_tensor.data_type
        return "float32" if data_type is TensorDataType.FLOAT16 else data_type.tvm

    def infer(self) -> Mapping[str, TensorDesc]:
        """The output has the input's type and sizes."""
        return {"output_tensor": self.input_tensor.with_sizes(self.input_tensor.sizes)}

    @classmethod
    def from_onnx(cls, node: OnnxNode) -> Operator:
        """The axis is a constant input; the other attributes have names of their own."""
        direction = AxisDirection.DECREASING if node.integer("reverse", 0) else AxisDirection.INCREASING
        exclusive = {cls.EXCLUSIVE: bool(node.integer("exclusive", 0))}
        return cls.of(node.tensor(), axis=node.constant("axis"), axis_direction=direction, **exclusive)

    def check(self) -> None:
        """The axis exists, and both tensors have the same type and sizes."""
        rank = self.input_tensor.rank
        self.require(self.axis < rank, "axis", self.axis, f"0 to {rank - 1}", "The input has no such dimension.")
        self.require_same("data_type", "output_tensor", "input_tensor")
        self.require_same("sizes", "output_tensor", "input_tensor")

    def shape_class(self) -> dict[str, int | str]:
        """The length and number of rows along the axis, and the distance in elements between neighbours in a row."""
        sizes = self.input_tensor.sizes
        inner = math.prod(sizes[self.axis + 1 :])
        return {
            "length": sizes[self.axis],
            "rows": math.prod(sizes[: self.axis]) * inner,
            "inner": inner,
            "layout": self.layout(),
        }

    # -- Values of kernels

    def identity(self, like: Any) -> Any:
        """``IDENTITY`` with the type and lanes of a value; of a float, one that TVM does not see."""
        return T.like(like, self.IDENTITY if T.is_float(like) else int(self.IDENTITY))

    def first(self, like: Any) -> Any:
        """The base of a row."""
        return T.like(like, self.FIRST) if self.exclusive else self.identity(like)

    def computation(self, each: T.Each, shared: Shared = ()) -> T.PrimFunc:
        """One item for each row, from one end to the other."""
        source, result, axis = self.input_tensor, self.output_tensor, self.axis
        dtype = self.computed
        with T.function() as f:
            tensors = f.tensors(self, shared)
            others = (*source.sizes[:axis], *source.sizes[axis + 1 :])
            with T.elements(each, others) as at:
                length = T.index(source.sizes[axis])
                total = T.Variable(dtype, self.first(T.const(0, dtype)))
                with T.loop(length) as i:
                    place = length - 1 - i if self.decreasing else i
                    here = [*at[:axis], place, *at[axis:]]
                    x = T.hold(T.to(tensors["input_tensor"][T.dot(here, source.layout)], dtype))
                    before = T.hold(total.value)
                    total.set(self.combine(before, x))
                    found = before if self.exclusive else total.value
                    T.store(tensors["output_tensor"], T.dot(here, result.layout), T.to(found, result.data_type.tvm))
        return f.result()

    # -- The reference

    def reference(self, *inputs: NumpyArray | None) -> tuple[Expected, ...]:
        """The operator in NumPy, in higher precision: float64, or NumPy's longest float for float64."""
        (x,) = inputs
        assert x is not None
        flipped = np.flip(x, self.axis) if self.decreasing else x
        with np.errstate(all="ignore"):
            found, scale, free = (self._ordered(one, fill) for one, fill in zip(
                self.accumulated(flipped, self.axis), (self.FIRST, 0, False), strict=True
            ))  # fmt: skip
        if x.dtype.kind != "f":
            return (found,)
        count = np.arange(x.shape[self.axis]) + (not self.exclusive)
        count = (count[::-1] if self.decreasing else count).reshape([-1 if i == self.axis else 1 for i in range(x.ndim)])
        unit = 2.0**-53 if x.dtype == np.float64 else 2.0**-24
        with np.errstate(all="ignore"):
            error = np.where(free, np.nan, (1.01 * unit * count * scale).astype(np.float64))
        return (Near(found, x.dtype, 0, error),)

    def _ordered(self, array: NumpyArray, first: Any) -> NumpyArray:
        """Inclusive results in DirectML's order; of an exclusive scan, those of the elements before."""
        if self.exclusive:
            array = np.roll(array, 1, self.axis)
            array[tuple(slice(0, 1) if i == self.axis else slice(None) for i in range(array.ndim))] = first
        return np.ascontiguousarray(np.flip(array, self.axis) if self.decreasing else array)
