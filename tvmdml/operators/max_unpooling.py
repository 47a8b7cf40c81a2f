"""DML_OPERATOR_MAX_UNPOOLING: elements at the places that a max pooling took them from."""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType
from typing import Any

import numpy as np

from tvmdml.kernels import tensorir as T
from tvmdml.kernels.launched import with_fields
from tvmdml.kernels.layout import collapse
from tvmdml.kernels.loops import nested
from tvmdml.operators._accuracy import Expected, Near
from tvmdml.operators._contract import Input, NumpyArray, Operator, Output, Shared, Uints
from tvmdml.operators._onnx import NotConvertible, OnnxNode
from tvmdml.operators._support import support
from tvmdml.tensors import ArrayTensorDesc, TensorDataType, TensorDesc


class MaxUnpooling(Operator):
    """Zeros, except for elements at the places of indices (``DML_MAX_UNPOOLING_OPERATOR_DESC``).

    An index counts all elements of the result, with batch and channels. One that is out of range has no effect; where several are
    equal, the result is one of their elements.

    Args:
        indices_tensor: uint32, uint64; of the input's sizes, such as the second result of ``max_pooling``.
        output_sizes: the sizes of the result, any four.
    """

    FUNCTION = "max_unpooling"
    FAMILY = "window"
    SUPPORT = support("2.0 F r4 · 5.0 F +IU +LW · ext +D", indices_tensor="2.0 u r4 · 5.0 +W")
    ARGUMENTS = MappingProxyType({"output_sizes": Uints})
    ONNX = ("MaxUnpool",)

    input_tensor: Input
    indices_tensor: Input
    output_tensor: Output

    @classmethod
    def of_call(cls, *inputs: Any, **given: Any) -> Operator:
        """With the sizes of the result."""
        return cls.of(*inputs, output_tensor=inputs[0].with_sizes(given.pop("output_sizes")), **given)

    @classmethod
    def from_onnx(cls, node: OnnxNode) -> Operator:
        """Indices are ONNX's INT64; the sizes follow from the windows, which an input must agree with."""
        x, places = node.tensor(), node.tensor(1)
        if x.rank != 4 or places.data_type is not TensorDataType.INT64:
            raise NotConvertible(f"its input has {x.rank} dimensions, not 4")
        window = node.attributes.get("kernel_shape", [])
        strides, pads = node.attributes.get("strides", [1, 1]), node.attributes.get("pads", [0] * 4)
        if len(window) != 2 or len(strides) != 2 or len(pads) != 4:
            raise NotConvertible("its windows do not have two dimensions")
        own = ((n - 1) * strides[i] + window[i] - pads[i] - pads[i + 2] for i, n in enumerate(x.sizes[2:]))
        sizes = [*x.sizes[:2], *own]
        if node.has(2) and node.constants("output_shape", 2) != sizes:
            raise NotConvertible(f"its output_shape is not {sizes}, the sizes that its windows say, and that its indices count")
        if any(n < 1 for n in sizes):
            raise NotConvertible(f"its output has the sizes {sizes}")
        return cls.of(x, ArrayTensorDesc(TensorDataType.UINT64, places.sizes, places.layout), output_tensor=x.with_sizes(sizes))

    def infer(self) -> Mapping[str, TensorDesc]:
        """The output must be given."""
        return {}

    def check(self) -> None:
        """An index for each element."""
        self.require_same("data_type", "output_tensor", "input_tensor")
        self.require_same("sizes", "indices_tensor", "input_tensor")

    def bounds(self, name: str) -> tuple[int, int] | None:
        """Indices of elements."""
        return (0, self.output_tensor.element_count - 1) if name == "indices_tensor" else None

    def computation(self, each: T.Each, shared: Shared = ()) -> T.PrimFunc:
        """One item for each element of the output, then one for each of the input: on the CPU one for all, in their order."""
        with T.function() as f:
            self.write(each, f.tensors(self))
        return f.result()

    def write(self, each: T.Each, tensors: dict[str, Any]) -> None:
        """The computation, on tensors that are declared."""
        x, y = self.input_tensor, self.output_tensor
        with T.elements(each, y.sizes, y.layout) as at:
            T.store(tensors["output_tensor"], T.dot(at, y.layout), T.const(0, y.data_type.tvm))
        if T.is_on_device():
            with T.elements(each, x.sizes, x.layout) as at:
                self._put(tensors, at)
        else:
            with each(1) as first, nested([T.loop(T.let(first * 0 + T.index(n))) for n in x.sizes]) as at:
                self._put(tensors, at)

    def _put(self, tensors: dict[str, Any], at: list[Any]) -> None:
        y, places = self.output_tensor, self.indices_tensor
        place = T.let(tensors["indices_tensor"][T.dot(at, places.layout)])
        with T.when(place < T.cast(T.index(1) * y.element_count, T.type_of(place))):
            number = T.cast(place, T.type_of(T.index(0)))
            value = T.hold(tensors["input_tensor"][T.dot(at, self.input_tensor.layout)])
            if T.is_on_device():
                T.store(tensors["output_tensor"], T.dot(T.unravel(number, y.sizes), y.layout), value)
                return
            packed, step = T.const(True, "bool"), T.index(1)
            for size, own in zip(reversed(y.sizes), reversed(y.layout), strict=True):
                packed = packed & (T.index(own) == step)
                step = step * T.index(size)
            with T.when(packed):  # without divisions
                T.store(tensors["output_tensor"], number, value)
            with T.when(~packed):
                T.store(tensors["output_tensor"], T.dot(T.unravel(number, y.sizes), y.layout), value)

    def flat(self) -> MaxUnpooling:
        """The same with as few dimensions as possible: places count the result's elements in their order."""
        x, places, y = self.input_tensor, self.indices_tensor, self.output_tensor
        sizes, steps = collapse(x.sizes, x.layout, places.layout, reorder=True)
        own, (layout,) = collapse(y.sizes, y.layout)
        tensors = (x.data_type, sizes, steps[0]), (places.data_type, sizes, steps[1]), (y.data_type, own, layout)
        found = (ArrayTensorDesc(kind, size or (1,), step or (1,)) for kind, size, step in tensors)
        return with_fields(self, **dict(zip(("input_tensor", "indices_tensor", "output_tensor"), found, strict=True)))

    def reference(self, *inputs: NumpyArray | None) -> tuple[Expected, ...]:
        """The operator in NumPy: the last one of equal indices; elements that several name may be anything."""
        x, places = (one for one in inputs if one is not None)
        sizes = self.output_tensor.sizes
        result, times = np.zeros(int(np.prod(sizes)), x.dtype), np.zeros(int(np.prod(sizes)), np.int64)
        fits = places < result.size
        index = places[fits].astype(np.int64)
        result[index] = x[fits]
        np.add.at(times, index, 1)
        several = times.reshape(sizes) > 1
        found = result.reshape(sizes)
        if not several.any():
            return (found,)
        if x.dtype.kind == "f":
            return (Near(found.astype(np.longdouble), x.dtype, 0, np.where(several, np.nan, 0)),)
        return (Near(found.astype(np.longdouble), x.dtype, 0, np.where(several, np.inf, 0)),)
