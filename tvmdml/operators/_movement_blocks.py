"""``ToDepth`` and ``ToSpace``: the base classes of SPACE_TO_DEPTH and DEPTH_TO_SPACE in both versions."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from tvmdml.enums import DepthSpaceOrder
from tvmdml.operators._contract import Input, NumpyArray, Output, Uint
from tvmdml.operators._movement import Coordinate, Movement, SourceCoordinates
from tvmdml.operators._onnx import OnnxNode
from tvmdml.tensors import TensorDesc

DEPTH_COLUMN_ROW = DepthSpaceOrder.DEPTH_COLUMN_ROW


class DepthBlocks(Movement):
    """Base class: a depth is made of a channel, and of a row and a column in a block, in one of two orders.

    Args:
        block_size: the height and the width of a block.
        order: ``"depth_column_row"`` for channels that vary fastest, ``"column_row_depth"`` for the columns of a block.
    """

    input_tensor: Input
    output_tensor: Output
    block_size: Uint

    def order_of_depth(self) -> DepthSpaceOrder:
        """The order; the older operators have only one."""
        return getattr(self, "order", DEPTH_COLUMN_ROW)

    @classmethod
    def from_onnx(cls, node: OnnxNode) -> Any:
        """ONNX names the orders by their letters."""
        by_depth = node.attributes.get("mode", b"DCR") == b"DCR"
        order = DEPTH_COLUMN_ROW if by_depth else DepthSpaceOrder.COLUMN_ROW_DEPTH
        return cls.of(node.tensor(boolean=True), block_size=node.integer("blocksize", 0), order=order)

    def sizes(self) -> tuple[int, ...]:
        """The output's sizes."""
        raise NotImplementedError(self.NAME)

    def infer(self) -> Mapping[str, TensorDesc]:
        """The sizes follow from the block's."""
        if self.input_tensor.rank != 4:  # the support table refuses it
            return {"output_tensor": self.input_tensor}
        self.check_blocks()
        return {"output_tensor": self.input_tensor.with_sizes(self.sizes())}

    def check_blocks(self) -> None:
        """The input has whole blocks."""
        raise NotImplementedError(self.NAME)

    def check(self) -> None:
        """The sizes follow from the block's."""
        self.require_same("data_type", "output_tensor", "input_tensor")
        self.check_blocks()
        self.require_sizes("output_tensor", self.sizes())

    def require_block(self) -> None:
        """A block has elements."""
        self.require(self.block_size >= 1, "block_size", self.block_size, "1 or more")


class ToDepth(DepthBlocks):
    """Base class: blocks become channels."""

    def check_blocks(self) -> None:
        self.require_block()
        for i, n in enumerate(self.input_tensor.sizes[2:], 2):
            self.require(
                n % self.block_size == 0, f"input_tensor.sizes[{i}]", n, f"a multiple of {self.block_size}, the block_size"
            )

    def sizes(self) -> tuple[int, ...]:
        n, c, h, w = self.input_tensor.sizes
        b = self.block_size
        return (n, c * b * b, h // b, w // b)

    def source(self, *at: Coordinate) -> SourceCoordinates:
        n, d, y, x = at
        b, channels = self.block_size, self.input_tensor.sizes[1]
        if self.order_of_depth() is DEPTH_COLUMN_ROW:
            row, column, c = d.digits(b, b, channels)
        else:
            c, row, column = d.digits(channels, b, b)
        return n, c, y * b + row, x * b + column

    def numpy(self, x: NumpyArray) -> NumpyArray:
        b, (n, c, h, w) = self.block_size, x.shape
        order = (0, 3, 5, 1, 2, 4) if self.order_of_depth() is DEPTH_COLUMN_ROW else (0, 1, 3, 5, 2, 4)
        return x.reshape(n, c, h // b, b, w // b, b).transpose(order).reshape(self.sizes())


class ToSpace(DepthBlocks):
    """Base class: channels become blocks."""

    def check_blocks(self) -> None:
        self.require_block()
        n, b = self.input_tensor.sizes[1], self.block_size
        self.require(n % (b * b) == 0, "input_tensor.sizes[1]", n, f"a multiple of {b * b}, the elements of a block")

    def sizes(self) -> tuple[int, ...]:
        n, c, h, w = self.input_tensor.sizes
        b = self.block_size
        return (n, c // (b * b), h * b, w * b)

    def source(self, *at: Coordinate) -> SourceCoordinates:
        n, c, y, x = at
        b, channels = self.block_size, self.output_tensor.sizes[1]
        (y, row), (x, column) = divmod(y, b), divmod(x, b)
        if self.order_of_depth() is DEPTH_COLUMN_ROW:
            return n, (row * b + column) * channels + c, y, x
        return n, (c * b + row) * b + column, y, x

    def numpy(self, x: NumpyArray) -> NumpyArray:
        b, (n, c, h, w) = self.block_size, x.shape
        if self.order_of_depth() is DEPTH_COLUMN_ROW:
            return x.reshape(n, b, b, c // (b * b), h, w).transpose(0, 3, 4, 1, 5, 2).reshape(self.sizes())
        return x.reshape(n, c // (b * b), b, b, h, w).transpose(0, 1, 4, 2, 5, 3).reshape(self.sizes())
