"""Slices of a table of few bits in blocks, as floats: DEQUANTIZE and GATHER as one operator. Other slices are not read.

It is no operator of DirectML, and has no function: ``graph/passes/blockwise.py`` makes it, and ONNX Runtime's
GatherBlockQuantized.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from tvmdml.kernels import movement
from tvmdml.kernels import tensorir_values as T
from tvmdml.kernels.quantization import dequantized
from tvmdml.operators._contract import Axis, Input, Inputs, NumpyArray, Operator, Output, Shared, Uint, Uints
from tvmdml.operators._support import support
from tvmdml.operators.gather import Gather
from tvmdml.operators.quantization import dequantized_numpy
from tvmdml.tensors import TensorDataType, TensorDesc


class BlockwiseGather(Operator):
    """Slices along an axis, by their indices, each element as ``(q - zero) * scale`` of its block.

    A negative index counts from the end, and one that is out of range is clamped.

    Args:
        input_tensor: the table ``q``.
        indices_tensor: as of GATHER.
        quantization_tensors: scales, and perhaps zero points, one for each block of the table. Without zero points they are 0 of
            signed elements, and the middle of the range of others.
        axis: the dimension that indices count.
        index_dimensions: how many of the indices' last dimensions replace it.
        block_sizes: the elements of a block in each dimension. The last block may have fewer.
    """

    NAME = "FUSED_BLOCKWISE_GATHER"
    SCHEDULE = "gather"
    FUNCTION = ""
    SUPPORT = support(
        input_tensor="1.0 N +bytes r8",
        indices_tensor="1.0 iuLW r8",
        quantization_tensors="1.0 F +D +bytes +N r8",
        output_tensor="1.0 F +D r8",
    )

    input_tensor: Input
    indices_tensor: Input
    quantization_tensors: Inputs
    output_tensor: Output
    axis: Axis
    index_dimensions: Uint
    block_sizes: Uints

    @classmethod
    def of_table(
        cls, gather: Gather, table: TensorDesc, parameters: Sequence[TensorDesc], blocks: Sequence[int]
    ) -> BlockwiseGather:
        """GATHER of a table of floats, of those of few bits, which may have fewer dimensions."""
        missing = gather.input_tensor.rank - table.rank
        x, *others = (Gather.ranked(one, gather.input_tensor.rank) for one in (table, *parameters))
        return cls(
            input_tensor=x,
            indices_tensor=gather.indices_tensor,
            quantization_tensors=tuple(others),
            output_tensor=gather.output_tensor,
            axis=gather.axis,
            index_dimensions=gather.index_dimensions,
            block_sizes=(*[1] * missing, *blocks),
        )

    def modules(self) -> tuple[str, ...]:
        """GATHER's file."""
        return (self.SCHEDULE,)

    def infer(self) -> Mapping[str, TensorDesc]:
        """The output has GATHER's sizes, and the scales' type."""
        sizes = self._head(self.input_tensor).infer()["output_tensor"].sizes
        return {"output_tensor": self.input_tensor.with_sizes(sizes, self.quantization_tensors[0].data_type)}

    def check(self) -> None:
        """GATHER's rules, and a scale and a zero point for each block."""
        self._head(self.output_tensor).check()
        sizes, blocks, kinds = (
            self.input_tensor.sizes,
            self.block_sizes,
            (self.output_tensor.data_type, self.input_tensor.data_type),
        )
        fits = len(blocks) == len(sizes) and all(n > 0 for n in blocks)
        self.require(fits, "block_sizes", blocks, f"{len(sizes)} numbers of 1 or more")
        given = len(self.quantization_tensors)
        self.require(given in (1, 2), "quantization_tensors", given, "1 or 2: scales, and perhaps zero points")
        wanted = tuple(-(-n // block) for n, block in zip(sizes, blocks, strict=True))
        for i, (tensor, kind) in enumerate(zip(self.quantization_tensors, kinds, strict=False)):
            fits = (tensor.data_type, tensor.sizes) == (kind, wanted)
            self.require(fits, f"quantization_tensors[{i}]", tensor, f"{kind.tvm}{list(wanted)}")

    def _head(self, output: TensorDesc) -> Gather:
        """GATHER of floats."""
        table = self.input_tensor.with_sizes(self.input_tensor.sizes, output.data_type.unpacked)
        result = self.output_tensor.with_sizes(self.output_tensor.sizes, output.data_type.unpacked)
        options = {"axis": self.axis, "index_dimensions": self.index_dimensions}
        return Gather(input_tensor=table, indices_tensor=self.indices_tensor, output_tensor=result, **options)

    def middle(self) -> int:
        """The zero point if there is none."""
        kind: TensorDataType = self.input_tensor.data_type
        return 0 if kind.is_signed else 1 << (kind.bits - 1)

    def computation(self, each: T.Each, shared: Shared = ()) -> T.PrimFunc:
        """One item for each element."""
        x, parameters, result = self.input_tensor, self.quantization_tensors, self.output_tensor
        count, missing = self.index_dimensions, self.index_dimensions - 1
        with T.function() as f:
            tensors = f.tensors(self)
            with T.elements(each, result.sizes) as at:
                nothing = T.const(0, T.type_of(at[0]))
                whole = [*[nothing] * missing, *at[max(-missing, 0) :]]
                place = [*[nothing] * (len(at) - count), *whole[self.axis : self.axis + count]]
                index = T.let(tensors["indices_tensor"][T.dot(place, self.indices_tensor.layout)])
                size = T.cast(T.index(x.sizes[self.axis]), T.type_of(at[0]))
                index = T.let(T.max(nothing, T.min(movement.normalized(index, size), size - 1)))
                source = [*whole[: self.axis], index, *whole[self.axis + count :]]
                block = [
                    one if n == 1 else T.let(T.truncdiv(one, T.const(n, T.type_of(one))))
                    for one, n in zip(source, self.block_sizes, strict=True)
                ]
                q = T.let(T.wide(T.load(x, tensors["input_tensor"], T.let(T.dot(source, x.layout)))))
                scale, *zero = (
                    T.let(T.wide(T.load(one, tensors[f"quantization_tensors[{i}]"], T.let(T.dot(block, one.layout)))))
                    for i, one in enumerate(parameters)
                )
                value = dequantized(q, scale, *(zero or [T.like(q, self.middle())]))
                T.store(tensors["output_tensor"], T.dot(at, result.layout), T.to(value, result.data_type.tvm))
        return f.result()

    def reference(self, *inputs: NumpyArray | None) -> tuple[NumpyArray, ...]:
        """NumPy's ``take`` of the table of floats."""
        x, indices, *parameters = inputs
        assert x is not None
        assert indices is not None
        table, scale, *zero = (
            one.unpack(array)
            for one, array in zip((self.input_tensor, *self.quantization_tensors), (x, *parameters), strict=True)
            if array is not None
        )
        spread = [self._repeated(one) for one in (scale, *zero)]
        floats = dequantized_numpy(table, *spread, *([] if zero else [np.array(self.middle())]))
        return (self._head(self.output_tensor).numpy(floats, indices),)

    def _repeated(self, parameter: Any) -> NumpyArray:
        for axis, (n, block) in enumerate(zip(self.input_tensor.sizes, self.block_sizes, strict=True)):
            parameter = np.repeat(parameter, block, axis).take(range(n), axis)
        return parameter
