"""Products of matrices: the last two dimensions are a matrix, those before them a batch."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, ClassVar

import numpy as np

from tvmdml.errors import InvalidArgument, message
from tvmdml.kernels.contraction import Contraction, Operand
from tvmdml.kernels.movement import Linear
from tvmdml.operators._broadcast import common_sizes, repeated
from tvmdml.operators._contract import NumpyArray, Role
from tvmdml.operators._matrix import Matrix, linear, plain
from tvmdml.tensors import ArrayTensorDesc, TensorDataType, TensorDesc


class Product(Matrix):
    """Base class of products of two matrices, ``a_tensor`` and ``b_tensor``."""

    BROADCAST = True
    A_SMALL: ClassVar[tuple[str, ...]] = ()
    """Scales and zero points of the first factor: one element, or one for each row."""
    B_SMALL: ClassVar[tuple[str, ...]] = ()
    """Those of the second factor: one element, or one for each column."""
    OUTPUT_SMALL: ClassVar[tuple[str, ...]] = ()
    """Those of the result: one element, or one for each row."""

    if TYPE_CHECKING:  # each operator's own fields
        a_tensor: Any
        b_tensor: Any

    def transposed(self) -> tuple[bool, bool]:
        """Whether the matrices of each factor are transposed."""
        return False, False

    def turned(self, name: str) -> tuple[Any, ...]:
        """The sizes of a factor, after it was transposed."""
        sizes = getattr(self, name).sizes
        return (*sizes[:-2], sizes[-1], sizes[-2]) if self.transposed()[name == "b_tensor"] else tuple(sizes)

    # -- Rules

    def infer(self) -> Mapping[str, TensorDesc]:
        """The output has the rows of the first factor, and the columns of the second."""
        a, b = self.a_tensor, self.b_tensor
        if a.rank < 2 or b.rank < 2:  # the support table refuses it
            return {"output_tensor": a.with_sizes(a.sizes, self.result_type())}
        left, right = self.turned("a_tensor"), self.turned("b_tensor")
        return {"output_tensor": a.with_sizes((*left[:-1], right[-1]), self.result_type())}

    def result_type(self) -> TensorDataType:
        """The type of the output, unless another one is asked for."""
        return self.a_tensor.data_type

    def check(self) -> None:
        """Matrices fit, and batches are the same; scales and zero points are for all elements, for each row or each column."""
        for name in ("b_tensor", "c_tensor", "bias_tensor", "output_tensor"):
            if getattr(self, name, None) is not None:
                self.require_same("rank", name, "a_tensor")
        left, right = self.turned("a_tensor"), self.turned("b_tensor")
        self._check_depth(left[-1], right[-2])
        self.require(right[:-2] == left[:-2], "b_tensor.sizes", self.b_tensor.sizes, f"{left[:-2]} before the last two")
        given, wanted = self.output_tensor.sizes, (*left[:-1], right[-1])
        self.require(given == wanted, "output_tensor.sizes", given, f"{wanted}: rows of the first factor, columns of the second")
        for name in (*self.A_SMALL, *self.OUTPUT_SMALL):
            self._check_small(name, 0, left[-2], "row")
        for name in self.B_SMALL:
            self._check_small(name, 1, right[-1], "column")

    def _check_small(self, name: str, dimension: int, size: int, word: str) -> None:
        tensor = getattr(self, name)
        if tensor is None:
            return
        single, each = (1,) * tensor.rank, small_sizes(tensor.rank, dimension, size)
        allowed = f"{single}: one for all, or {each}: one for each {word}"
        self.require(tensor.sizes in (single, each), f"{name}.sizes", tensor.sizes, allowed)

    def check_small_ranks(self, *names: str) -> None:
        """Scales and zero points have one rank."""
        first, *others = (name for name in names if getattr(self, name) is not None)
        for name in others:
            self.require_same("rank", name, first)

    def check_zero_points(self, **tensors: str) -> None:
        """Zero points have the types of their tensors."""
        for name, other in tensors.items():
            if getattr(self, name) is not None:
                self.require_same("data_type", name, other)

    def _check_depth(self, of_a: Any, of_b: Any) -> None:
        a, b = self.transposed()
        allowed = f"{of_a}, as {self.named('a_tensor')}.sizes[{-2 if a else -1}]: products are summed over both"
        self.require(of_b == of_a, f"b_tensor.sizes[{-1 if b else -2}]", of_b, allowed)

    # -- Functions

    @classmethod
    def result_sizes(cls, *inputs: Any, **given: Any) -> tuple[int, ...] | None:
        """Of a vector, without the row or the column that it is."""
        fields = [field.name for field in cls.fields() if field.role is Role.INPUT]
        a, b = (inputs[fields.index(name)] for name in ("a_tensor", "b_tensor"))
        if a.rank > 1 and b.rank > 1:
            return None
        sizes = cls.of_call(*inputs, **given).outputs()[0].sizes
        return (*sizes[:-2], *sizes[-2:-1] * (a.rank > 1), *sizes[-1:] * (b.rank > 1))

    def broadcast(self, *names: str) -> tuple[tuple[int, ...], dict[str, TensorDesc]]:
        """Vectors are matrices of one row or column, and batches are repeated; so is what is added, to the result's sizes."""
        a, b, turned = self.a_tensor, self.b_tensor, self.transposed()
        for name, tensor in (("a_tensor", a), ("b_tensor", b)):
            if getattr(tensor, "zero_dimensional", False):
                raise InvalidArgument(message(self.where(name), "an array without dimensions", "1 or more dimensions"))
        vectors = a.rank == 1, b.rank == 1
        a = matrix(a, row=not turned[0]) if vectors[0] else a
        b = matrix(b, row=turned[1]) if vectors[1] else b
        added = {name: getattr(self, name, None) for name in ("c_tensor", "bias_tensor")}
        found = {name: self._row_or_column(one, *vectors) for name, one in added.items() if one is not None}
        factors = {"a_tensor": a, "b_tensor": b}
        if found:  # what is wrong with the factors is said of them, and not of what is added
            self._check_depth(a.sizes[-2 if turned[0] else -1], b.sizes[-1 if turned[1] else -2])
            common_sizes({self.where(name): outside(one) for name, one in factors.items()})
        outer = {self.where(name): outside(one) for name, one in (*factors.items(), *found.items())}
        batch = common_sizes(outer)[:-1]
        sizes = (*batch, a.sizes[-1 if turned[0] else -2], b.sizes[-2 if turned[1] else -1])
        for name, tensor in found.items():
            allowed = f"sizes that can be repeated to those of the result, {sizes}"
            if tensor.rank > len(sizes) or common_sizes({"result": tensor.with_sizes(sizes), self.where(name): tensor}) != sizes:
                raise InvalidArgument(message(self.where(name), f"sizes {tensor.sizes}", allowed))
            found[name] = repeated(tensor, sizes)
        return sizes, found | {name: repeated(one, (*batch, *one.sizes[-2:])) for name, one in factors.items()}

    @staticmethod
    def _row_or_column(tensor: Any, of_row: bool, of_column: bool) -> Any:
        """What is added, with the dimensions that the result of a vector does not have."""
        sizes, steps = list(tensor.sizes), list(tensor.layout)
        if getattr(tensor, "zero_dimensional", False):
            sizes, steps = [1], [0]
            of_row = of_column = False
        if of_column:
            sizes, steps = [*sizes, 1], [*steps, 0]
        if of_row:
            sizes, steps = [*sizes[:-1], 1, *sizes[-1:]], [*steps[:-1], 0, *steps[-1:]]
        return ArrayTensorDesc(tensor.data_type, sizes, steps)

    # -- What is computed

    def contraction(self) -> Contraction:
        """Coordinates are those of the batch, and one row, column and inner one."""
        rank = self.a_tensor.rank
        batch = tuple(range(rank - 2))
        row, column = rank - 2, rank - 1
        a, b = (self._factor(name, which) for which, name in enumerate(("a_tensor", "b_tensor")))
        sizes = self.output_tensor.sizes
        zeros = [self._zero(name, dimension) for dimension, name in enumerate(("a_zero_point_tensor", "b_zero_point_tensor"))]
        return Contraction(
            tuple(sizes[i] for i in batch),
            (sizes[row],),
            (sizes[column],),
            (self.turned("a_tensor")[-1],),
            a,
            b,
            plain("output_tensor", self.output_tensor),
            tuple(plain(name, tensor) for name, tensor in self.addends()),
            zeros[0],
            zeros[1],
            self.summed_in(),
        )

    def _factor(self, name: str, which: int) -> Operand:
        tensor = getattr(self, name)
        rank, turned = tensor.rank, self.transposed()[which]
        first, second = (rank - 1, rank - 2) if turned else (rank - 2, rank - 1)
        own = (first, None, second) if which == 0 else (None, second, first)
        return Operand(name, linear(tensor, *range(rank - 2), *own))

    def _zero(self, name: str, dimension: int) -> Operand | None:
        tensor = getattr(self, name, None)
        if tensor is None:
            return None
        steps = small_steps(tensor, dimension)
        return Operand(name, Linear(0, (*(0,) * (self.a_tensor.rank - 2), *steps, 0)))

    def summed_in(self) -> str:
        """The type of products and sums."""
        return self.computed

    def small(self, *names: str) -> tuple[tuple[str, TensorDesc], ...]:
        """Scales and zero points that are present, repeated to the output's sizes."""
        sizes = self.output_tensor.sizes
        found = []
        for name in names:
            tensor = getattr(self, name)
            if tensor is not None:
                steps = (*(0,) * (len(sizes) - 2), *small_steps(tensor, int(name in self.B_SMALL)))
                found.append((name, TensorDesc(tensor.data_type, sizes, steps)))
        return tuple(found)

    # -- The reference

    def spread_small(self, name: str, array: NumpyArray | None) -> NumpyArray:
        """A scale or a zero point, as NumPy repeats it to matrices; a zero point that is absent is 0."""
        if array is None:
            return np.zeros((), np.int64)
        if array.size == 1:
            return array.reshape(())
        return array.reshape(1, -1) if name in self.B_SMALL else array.reshape(-1, 1)

    def differences(
        self, a: NumpyArray, b: NumpyArray, a_zero: NumpyArray | None, b_zero: NumpyArray | None
    ) -> tuple[NumpyArray, NumpyArray]:
        """The factors less their zero points, as exact integers."""
        zeros = (self.spread_small(name, one) for name, one in (("a_zero_point_tensor", a_zero), ("b_zero_point_tensor", b_zero)))
        x, y = (one.astype(np.int64) - zero.astype(np.int64) for one, zero in zip((a, b), zeros, strict=True))
        return x, y


def small_sizes(rank: int, dimension: int, size: int) -> tuple[int, ...]:
    """The sizes of a tensor with an element for each row (0) or column (1)."""
    if rank == 1:
        return (size,)
    return (*(1,) * (rank - 2), *((size, 1) if dimension == 0 else (1, size)))


def small_steps(tensor: Any, dimension: int) -> tuple[int, int]:
    """How far apart its elements are along rows and columns."""
    if tensor.element_count == 1:
        return 0, 0
    step = tensor.layout[-1] if tensor.rank == 1 or dimension == 1 else tensor.layout[-2]
    return (step, 0) if dimension == 0 else (0, step)


def matrix(tensor: Any, row: bool) -> Any:
    """A vector as a row or a column."""
    (size,), (step,) = tensor.sizes, tensor.layout
    return dataclasses.replace(tensor, sizes=(1, size) if row else (size, 1), strides=(step, step), total_tensor_size_in_bytes=None)


def outside(tensor: Any) -> Any:
    """The dimensions before a matrix, with one of size 1 behind them: a tensor has at least one."""
    return ArrayTensorDesc(tensor.data_type, (*tensor.sizes[:-2], 1))


def exact_product(x: NumpyArray, y: NumpyArray) -> NumpyArray:
    """The product of matrices of integers modulo 2^64: in float64 where that is exact, as NumPy is slow with integers."""
    depth = x.shape[-1]
    most = int(np.max(np.abs(x), initial=0)) * int(np.max(np.abs(y), initial=0)) * max(depth, 1)
    if most < 1 << 53:
        return np.matmul(x.astype(np.float64), y.astype(np.float64)).astype(np.int64)
    return np.matmul(x, y)
