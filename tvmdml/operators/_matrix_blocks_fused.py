"""A product whose second matrix has few bits, in blocks with scales of their own: DEQUANTIZE and GEMM as one operator.

It is no operator of DirectML, and has no function: ``graph/passes/blockwise.py`` makes it. The matrix is never in memory as floats.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

from tvmdml.kernels import tensorir_values as T
from tvmdml.kernels.contraction import Contraction, Operand, multiply_add, place
from tvmdml.kernels.movement import Linear
from tvmdml.operators._accuracy import Expected
from tvmdml.operators._contract import Bool, Input, NumpyArray, OptionalInput, Output, Shared, Uint, defaults
from tvmdml.operators._matrix import BoundedSums, Matrix, counted, linear, plain, wide
from tvmdml.operators._support import support
from tvmdml.tensors import TensorDesc

BITS = (2, 4, 8)
LARGEST = 127
"""The largest magnitude of a rounded element."""
LEAST = 2.0**-100
"""Blocks of smaller elements may be rounded to 0."""


class BlockwiseGemm(Matrix):
    """``a @ w.T``, where an element of ``w`` is ``(q - zero) * scale``: ``q`` has few bits, and a block of a row has one scale.

    A sum has as many products as ``a`` has columns. In which order they are added, and whether a scale multiplies each product or
    a sum of them, is up to the kernel; all are added in float32.

    Args:
        a_tensor: the first factor, {…, rows, places}.
        b_tensor: the second one's rows as bytes, {columns, bytes}. Elements in low bits come first; what a row has behind its last
            place is not read as an element.
        scale_tensor: {columns, blocks}, of the first factor's type.
        zero_point_tensor: floats as scales, or bytes as ``b_tensor``, {columns, bytes}; without it 0 of signed elements, and the
            middle of the range of others.
        bits: those of an element: 2, 4 or 8.
        block_size: the places of a block. The last block of a row may have fewer.
        is_signed: whether elements and zero points are numbers in two's complement.
        is_across: whether bytes hold neighbouring columns, not places: then ``b_tensor`` is {places, bytes}, scales are {blocks,
            columns}, and zero points {blocks, columns} or {blocks, bytes}.
        may_round: whether the first factor's elements may be rounded, in blocks as the second one's, to integers of up to 127 times
            a 127th of the largest magnitude of the block. It depends on the kernel whether they are.
    """

    NAME = "FUSED_BLOCKWISE_GEMM"
    SCHEDULE = "gemm"
    FUNCTION = ""
    DEFAULTS = defaults(may_round=False, is_across=False)
    SUPPORT = support(
        a_tensor="1.0 F r2-8",
        b_tensor="1.0 u8 r2",
        scale_tensor="1.0 F r2",
        zero_point_tensor="1.0 F +u8 r2",
        output_tensor="1.0 F r2-8",
    )

    a_tensor: Input
    b_tensor: Input
    scale_tensor: Input
    zero_point_tensor: OptionalInput = None
    output_tensor: Output
    bits: Uint
    block_size: Uint
    is_signed: Bool
    may_round: Bool
    is_across: Bool

    def modules(self) -> tuple[str, ...]:
        """The file of the product of floats."""
        return (self.SCHEDULE,)

    # -- Rules

    def infer(self) -> Mapping[str, TensorDesc]:
        """The output has the rows of the first factor."""
        return {"output_tensor": self.a_tensor.with_sizes((*self.a_tensor.sizes[:-1], self._columns))}

    @property
    def _columns(self) -> int:
        return int(self.scale_tensor.sizes[1] if self.is_across else self.b_tensor.sizes[0])

    def check(self) -> None:
        """Bits, and sizes that are enough for all places."""
        self.require(self.bits in BITS, "bits", self.bits, "2, 4 or 8")
        self.require(self.block_size > 0, "block_size", self.block_size, "1 or more")
        places, columns = self.a_tensor.sizes[-1], self._columns
        self.require_same("data_type", "scale_tensor", "a_tensor")
        self.require_same("data_type", "output_tensor", "a_tensor")
        blocks, zero = self.blocks, self.zero_point_tensor
        rows, beside = (blocks, columns) if self.is_across else (columns, blocks)
        self._check_parameter("b_tensor", *((places, columns) if self.is_across else (columns, places)), self.bits)
        self._check_parameter("scale_tensor", rows, beside)
        if zero is not None and self.zeros_are_floats:
            self.require_same("data_type", "zero_point_tensor", "scale_tensor")
        if zero is not None:
            self._check_parameter("zero_point_tensor", rows, beside, 8 if self.zeros_are_floats else self.bits)
        wanted = (*self.a_tensor.sizes[:-1], columns)
        self.require(
            self.output_tensor.sizes == wanted,
            "output_tensor.sizes",
            self.output_tensor.sizes,
            f"{wanted}: rows of the first factor, those of the second as columns",
        )

    def _check_parameter(self, name: str, rows: int, beside: int, bits: int = 8) -> None:
        given, wanted = getattr(self, name).sizes, (rows, -(-beside * bits // 8))
        fits = given[0] == wanted[0] and given[1] >= wanted[1]
        self.require(fits, f"{name}.sizes", given, f"{wanted}, or more in the last dimension")

    @property
    def blocks(self) -> int:
        """The blocks of a row."""
        return int(-(-self.a_tensor.sizes[-1] // self.block_size))

    @property
    def zeros_are_floats(self) -> bool:
        """Whether there are zero points that are floats."""
        return self.zero_point_tensor is not None and self.zero_point_tensor.data_type.is_float

    def steps_of(self, name: str) -> tuple[int, int]:
        """The steps of a tensor's rows, and of their elements; 0 between rows if there is one, which a batch may have become."""
        tensor = getattr(self, name)
        return (tensor.layout[0] if tensor.sizes[0] > 1 else 0, tensor.layout[1])

    @property
    def middle(self) -> int:
        """The middle of the range, and what has the sign of signed elements."""
        return 1 << (self.bits - 1)

    # -- What is computed

    def contraction(self) -> Contraction:
        """The second factor's place is a row's first byte."""
        a, rank = self.a_tensor, self.a_tensor.rank
        sizes, outer = self.output_tensor.sizes, (0,) * (rank - 1)
        row = self.b_tensor.layout[0]
        return Contraction(
            tuple(sizes[:-2]),
            (sizes[-2],),
            (sizes[-1],),
            (a.sizes[-1],),
            Operand("a_tensor", linear(a, *range(rank - 1), None, rank - 1)),
            Operand("b_tensor", Linear(0, (*outer, *((0, row) if self.is_across else (row, 0))))),
            plain("output_tensor", self.output_tensor),
            tuple(plain(name, tensor) for name, tensor in self.addends()),
            None,
            None,
            self.computed,
        )

    def computation(self, each: T.Each, shared: Shared = ()) -> T.PrimFunc:
        """One item for each element: blocks one after the other."""
        contraction = self.simplified()
        column_at = len(contraction.batch) + len(contraction.rows)
        with T.function() as f:
            tensors = f.tensors(self)
            with T.elements(each, contraction.outer) as outer:
                at = counted(contraction, outer)
                kind, zero = T.type_of(at[0]), T.const(0, "float32")
                column, depth = at[column_at], T.const(contraction.depth, kind)

                def number(value: int) -> Any:
                    return T.const(value, kind)

                def stored(name: str, index: Any) -> Any:
                    """An element of few bits of the column."""
                    row, step = self.steps_of(name)
                    line, beside = (index, column) if self.is_across else (column, index)
                    byte = tensors[name][line * number(row) + T.truncdiv(beside * number(self.bits), number(8)) * number(step)]
                    shift = T.cast(T.truncmod(beside * number(self.bits), number(8)), "int32")
                    value = T.hold((T.cast(byte, "int32") >> shift) & T.const((1 << self.bits) - 1, "int32"))
                    middle = T.const(self.middle if self.is_signed else 0, "int32")
                    return T.cast((value ^ middle) - middle, "float32")

                def floats(name: str, index: Any) -> Any:
                    row, step = self.steps_of(name)[:: -1 if self.is_across else 1]
                    return T.cast(T.wide(tensors[name][column * number(row) + index * number(step)]), "float32")

                total = T.Variable("float32", zero)
                with T.loop(number(self.blocks)) as block:
                    own = T.Variable("float32", zero)
                    less = self._zero_point(tensors, block, stored, floats)
                    with T.loop(number(self.block_size)) as i:
                        index = T.let(block * number(self.block_size) + i)
                        with T.when(index < depth):
                            offset = place(contraction.a, [*at, *counted(contraction, [index])])[0]
                            x = T.cast(T.wide(tensors["a_tensor"][offset]), "float32")
                            own.set(multiply_add(x, stored("b_tensor", index) - less, own.value))
                    total.set(multiply_add(own.value, floats("scale_tensor", block), total.value))
                values = [T.hold(tensors[operand.name][place(operand, at)[0]]) for operand in contraction.addends]
                element = T.hold(self.element(T.hold(total.value), values))
                T.store(tensors[contraction.result.name], place(contraction.result, at)[0], element)
        return f.result()

    def _zero_point(self, tensors: dict[str, Any], block: Any, stored: Any, floats: Any) -> Any:
        if self.zero_point_tensor is None:
            return T.const(0.0 if self.is_signed else float(self.middle), "float32")
        return T.hold((floats if self.zeros_are_floats else stored)("zero_point_tensor", block))

    # -- The reference

    def reference(self, *inputs: NumpyArray | None) -> tuple[Expected, ...]:
        """``numpy.matmul`` with the matrix of floats in higher precision."""
        a, b, scale, zero = inputs
        assert a is not None
        assert b is not None
        assert scale is not None
        places, blocks = a.shape[-1], self.blocks
        spread = np.arange(places) // self.block_size

        def of_columns(stored: NumpyArray, count: int, has_bits: bool) -> NumpyArray:
            """A row for each column."""
            beside = self._columns if self.is_across else count
            rows = self.unpacked(stored, beside) if has_bits else wide(stored)[:, :beside]
            return rows[:count].T if self.is_across else rows

        q, s = of_columns(b, places, True).astype(np.float64), of_columns(scale, blocks, False)[:, spread]
        if zero is None:
            less = np.full((len(q), blocks), 0 if self.is_signed else self.middle)
        else:
            less = of_columns(zero, blocks, not self.zeros_are_floats)
        with np.errstate(all="ignore"):
            matrix, x = q - wide(less)[:, spread], wide(a)
            values = np.matmul(x, (matrix * s).T)
            finite = [np.where(np.isfinite(array), np.abs(array), 0) for array in (x, matrix, s)]
            magnitudes = np.matmul(finite[0], (finite[1] * finite[2]).T)
            # A sum of a block is multiplied by its scale afterwards.
            unscaled = np.matmul(finite[0], np.maximum(finite[1], finite[1] * finite[2]).T)
        near: Any = self.near(BoundedSums(values, magnitudes, places), 1.0, 0.0)
        far = (unscaled >= 2.0**127) | ~np.isfinite(s).all(axis=1)
        return (near._replace(error=np.where(far, np.nan, near.error + self._rounding(a, finite[1] * finite[2]))),)

    def _rounding(self, a: NumpyArray, matrix: NumpyArray) -> Any:
        """How far off results may be because elements of the first factor are rounded."""
        if not self.may_round:
            return 0.0
        size, blocks = self.block_size, self.blocks
        padded = np.zeros((*a.shape[:-1], blocks * size))
        padded[..., : a.shape[-1]] = np.abs(a)
        peak = padded.reshape(*a.shape[:-1], blocks, size).max(axis=-1)
        wide_matrix = np.zeros((len(matrix), blocks * size))
        wide_matrix[:, : a.shape[-1]] = matrix
        of_block = wide_matrix.reshape(len(matrix), blocks, size).sum(axis=-1)
        return np.matmul(peak * (0.5001 / LARGEST) + LEAST, of_block.T)

    def unpacked(self, stored: NumpyArray, count: int) -> NumpyArray:
        """The first elements of each row of bytes, as int64."""
        parts = [(stored >> at) & ((1 << self.bits) - 1) for at in range(0, 8, self.bits)]
        elements = np.stack(parts, -1).reshape(len(stored), -1)[:, :count].astype(np.int64)
        return (elements ^ self.middle) - self.middle if self.is_signed else elements


def packed(elements: NumpyArray, bits: int) -> NumpyArray:
    """Rows of elements as rows of bytes, in whole words: behind a row's last element are zeros."""
    count, (rows, columns) = 8 // bits, elements.shape
    wide = np.zeros((rows, -(-columns * bits // 32) * 4 * count), np.uint8)
    wide[:, :columns] = elements
    wide &= (1 << bits) - 1
    found = wide[:, ::count].copy()
    for i in range(1, count):
        found |= wide[:, i::count] << (i * bits)
    return found
