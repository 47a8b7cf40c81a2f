"""``Blocks``: the base class of QUANTIZE and DEQUANTIZE, whose scales and zero points are for blocks of elements."""

from __future__ import annotations

import dataclasses
from typing import Any

import numpy as np

from tvmdml.enums import QuantizationType
from tvmdml.kernels import tensorir_values as T
from tvmdml.kernels.layout import collapse
from tvmdml.operators._broadcast import repeated
from tvmdml.operators._contract import Input, Inputs, NumpyArray, Output, Role, Shared
from tvmdml.operators._pointwise import Pointwise
from tvmdml.tensors import MAX_RANK, TensorDataType, TensorDesc

_NAMES = {QuantizationType.SCALE: ("scale",), QuantizationType.SCALE_ZERO_POINT: ("scale", "zero_point")}


class Blocks(Pointwise):
    """Base class of operators with a scale, and perhaps a zero point, for each block of elements.

    In a dimension of ``n`` elements with ``s`` scales, a block has ``ceil(n / s)`` elements; the last one may have fewer.
    """

    BROADCAST = False
    CONSTANT_SHAPES = "the blocks follow from the sizes"

    input_tensor: Input
    quantization_type: QuantizationType
    quantization_tensors: Inputs
    output_tensor: Output

    def sides(self) -> tuple[str, str]:
        """The names of the tensor of floats and of the quantized tensor."""
        raise NotImplementedError(self.NAME)

    def check(self) -> None:
        """The number of tensors, their types, and sizes that make blocks."""
        names = _NAMES.get(self.quantization_type)
        allowed = ", ".join(repr(kind.name.lower()) for kind in _NAMES)
        self.require(names is not None, "quantization_type", self.quantization_type.name.lower(), allowed)
        assert names is not None
        given = f"{len(self.quantization_tensors)} tensor{'s' * (len(self.quantization_tensors) != 1)}"
        wanted = f"{len(names)}: {', '.join(names)}"
        self.require(len(self.quantization_tensors) == len(names), "quantization_tensors", given, wanted)
        self.require_same("sizes", "output_tensor", "input_tensor")
        sizes = self.input_tensor.sizes
        for i, (tensor, side) in enumerate(zip(self.quantization_tensors, self.sides(), strict=False)):
            where, own = f"quantization_tensors[{i}]", getattr(self, side).data_type
            allowed = f"{own.tvm}, as in {self.named(side)}"
            self.require(tensor.data_type is own, f"{where}.data_type", tensor.data_type.tvm, allowed)
            first = self.quantization_tensors[0].sizes
            if i:
                self.require(tensor.sizes == first, f"{where}.sizes", tensor.sizes, f"{first}, as in quantization_tensors[0]")
                continue
            self.require(
                tensor.rank == len(sizes), f"{where}.sizes", tensor.sizes, f"{len(sizes)} sizes, as in {self.named('input_tensor')}"
            )
            fits = all(n == s == 0 or (1 <= s <= n and -(-n // -(-n // s)) == s) for n, s in zip(sizes, tensor.sizes, strict=True))
            advice = (
                "In each dimension, blocks of ceil(input size / scale size) elements must give as many blocks as there are scales."
            )
            self.require(fits, f"{where}.sizes", tensor.sizes, f"numbers of equal blocks of {sizes}", advice)

    def blocks(self) -> tuple[int, ...]:
        """The number of elements of a block in each dimension."""
        scales = self.quantization_tensors[0].sizes
        return tuple(-(-n // s) if s else 1 for n, s in zip(self.input_tensor.sizes, scales, strict=True))

    # -- The places of scales

    def is_strided(self) -> bool:
        """Whether elements are whole bytes, all blocks are whole, so that they are a dimension of their own, and ranks suffice."""
        if self._has_nibbles():
            return False
        sizes, scales = self.input_tensor.sizes, self.quantization_tensors[0].sizes
        whole = all(n == s * b or s == 1 for n, s, b in zip(sizes, scales, self.blocks(), strict=True))
        return whole and len(self._collapsed()[0]) <= MAX_RANK

    def operands(self) -> tuple[TensorDesc, ...]:
        """Every dimension in two: the blocks, and the elements of a block, in which the scale has the stride 0.

        If no dimension has several blocks of several elements, the dimensions stay as they are.
        """
        tensors = (self.input_tensor, *self.quantization_tensors, self.output_tensor)
        if all(1 in pair for pair in zip(self.quantization_tensors[0].sizes, self.blocks(), strict=True)):
            return tuple(repeated(tensor, self.input_tensor.sizes) for tensor in tensors)
        sizes, layouts = self._collapsed()
        found = zip(tensors, layouts, strict=True)
        return tuple(dataclasses.replace(one, sizes=sizes, strides=steps, total_tensor_size_in_bytes=None) for one, steps in found)

    def _collapsed(self) -> tuple[tuple[int, ...], tuple[tuple[int, ...], ...]]:
        blocks, scales = self.blocks(), self.quantization_tensors[0].sizes
        sizes = [size for pair in zip(scales, blocks, strict=True) for size in pair]

        def plain(tensor: TensorDesc) -> tuple[int, ...]:
            return tuple(step for one, b in zip(tensor.layout, blocks, strict=True) for step in (one * b, one))

        def of_blocks(tensor: TensorDesc) -> tuple[int, ...]:
            return tuple(step for one in tensor.layout for step in (one, 0))

        layouts = (plain(self.input_tensor), *map(of_blocks, self.quantization_tensors), plain(self.output_tensor))
        found, steps = collapse(tuple(sizes), *layouts)
        return found or (1,), tuple(own or (1,) for own in steps)

    def place(self, name: str, tensor: Any, at: list[Any]) -> Any:
        """Of a scale or zero point, that of the element's block."""
        if name.startswith("quantization_tensors"):
            at = [one if b == 1 else T.truncdiv(one, T.index(b)) for one, b in zip(at, self.blocks(), strict=True)]
        return super().place(name, tensor, at)

    # -- 4-bit elements

    def _has_nibbles(self) -> bool:
        return getattr(self, self.sides()[1]).data_type.is_nibble

    def computation(self, each: T.Each, shared: Shared = ()) -> T.PrimFunc:
        """One item for each element, or for each byte of two."""
        if not self._has_nibbles():
            return super().computation(each, shared)
        with T.function() as f:
            buffers = f.tensors(self)
            inputs = {name: tensor for name, tensor in self.tensors(Role.INPUT) if tensor is not None}

            def value(at: list[Any]) -> Any:
                read = (T.load(tensor, buffers[name], self.place(name, tensor, at)) for name, tensor in inputs.items())
                return T.to(self.value(*map(T.wide, read)), self.output_tensor.data_type.unpacked.tvm)

            T.store_each(each, self.output_tensor, buffers["output_tensor"], value)
        return f.result()

    def reference(self, *inputs: NumpyArray | None) -> tuple[NumpyArray, ...]:
        """The operator in NumPy; 4-bit elements are unpacked first."""
        tensors = (self.input_tensor, *self.quantization_tensors)
        (found,) = super().reference(*(None if x is None else tensor.unpack(x) for tensor, x in zip(tensors, inputs, strict=True)))
        return (self.output_tensor.pack(found),)

    # -- Zero points

    def repeated(self, parameter: NumpyArray) -> NumpyArray:
        """A scale or zero point for each element."""
        for axis, (n, b) in enumerate(zip(self.input_tensor.sizes, self.blocks(), strict=True)):
            parameter = np.repeat(parameter, b, axis).take(range(n), axis)
        return parameter

    def middle(self) -> int:
        """The zero point if there is none: the middle of the range of an unsigned type, and 0 for a signed one."""
        kind: TensorDataType = getattr(self, self.sides()[1]).data_type
        return 0 if kind.is_signed else 1 << (kind.bits - 1)
