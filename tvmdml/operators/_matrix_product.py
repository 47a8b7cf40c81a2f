"""Products of matrices: the last two dimensions are a matrix, those before them a batch."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, ClassVar

import numpy as np

from tvmdml import symbols
from tvmdml.errors import InvalidArgument, message
from tvmdml.kernels.contraction import Contraction, Operand
from tvmdml.kernels.movement import Linear
from tvmdml.operators._broadcast import common_sizes, repeated
from tvmdml.operators._contract import Array, Operator, Role
from tvmdml.operators._matrix import Matrix, linear, plain
from tvmdml.tensors import ArrayTensorDesc, TensorDataType, TensorDesc


class Product(Matrix):
    """Base class of products of two matrices, ``a_tensor`` and ``b_tensor``."""

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
        found: TensorDataType = self.a_tensor.data_type
        return found

    def check(self) -> None:
        """Matrices fit, and batches are the same; scales and zero points are for all elements, for each row or each column."""
        names = ["a_tensor", "b_tensor", *(("c_tensor",) if hasattr(self, "c_tensor") else ()), "output_tensor"]
        for name in names[1:]:
            if getattr(self, name) is not None:
                self.require_same("rank", name, "a_tensor")
        left, right = self.turned("a_tensor"), self.turned("b_tensor")
        a, b = self.transposed()
        self.require(
            right[-2] == left[-1],
            f"b_tensor.sizes[{-1 if b else -2}]",
            right[-2],
            f"{left[-1]}, as {self.named('a_tensor')}.sizes[{-2 if a else -1}]: products are summed over both",
        )
        self.require(right[:-2] == left[:-2], "b_tensor.sizes", self.b_tensor.sizes, f"{left[:-2]} before the last two")
        given, wanted = self.output_tensor.sizes, (*left[:-1], right[-1])
        self.require(given == wanted, "output_tensor.sizes", given, f"{wanted}: rows of the first factor, columns of the second")
        for names, dimension, size, word in (
            (self.A_SMALL, 0, left[-2], "row"),
            (self.B_SMALL, 1, right[-1], "column"),
            (self.OUTPUT_SMALL, 0, left[-2], "row"),
        ):
            for name in names:
                if getattr(self, name) is not None:
                    self._check_small(name, dimension, size, word)

    def _check_small(self, name: str, dimension: int, size: int, word: str) -> None:
        tensor = getattr(self, name)
        each = small_sizes(tensor.rank, dimension, size)
        single = (1,) * tensor.rank
        self.require(
            tensor.sizes in (single, each), f"{name}.sizes", tensor.sizes, f"{single}: one for all, or {each}: one for each {word}"
        )

    def check_zero_points(self, **tensors: str) -> None:
        """Zero points have the types of their tensors."""
        for name, other in tensors.items():
            if getattr(self, name) is not None:
                self.require_same("data_type", name, other)

    # -- Functions

    @classmethod
    def of_call(cls, *inputs: Any, **given: Any) -> Operator:
        """Vectors are matrices of one row or column, and batches are broadcast, as by ``numpy.matmul``."""
        return cls.of(*cls._spread(inputs, given), **given)

    @classmethod
    def result_sizes(cls, *inputs: Any, **given: Any) -> tuple[int, ...] | None:
        """Of a vector, without the row or the column that it is."""
        fields = [field.name for field in cls.fields() if field.role is Role.INPUT]
        a, b = (inputs[fields.index(name)] for name in ("a_tensor", "b_tensor"))
        if a.rank > 1 and b.rank > 1:
            return None
        sizes = cls.of_call(*inputs, **given).outputs()[0].sizes
        return (*sizes[:-2], *sizes[-2:-1] * (a.rank > 1), *sizes[-1:] * (b.rank > 1))

    @classmethod
    def _spread(cls, inputs: Sequence[Any], given: Mapping[str, Any]) -> list[Any]:
        fields = [field.name for field in cls.fields() if field.role is Role.INPUT]
        tensors = dict(zip(fields, (*inputs, *[None] * (len(fields) - len(inputs))), strict=True))
        own = cls._draft(tensors, given).transposed()
        a, b = tensors["a_tensor"], tensors["b_tensor"]
        for name, tensor in (("a_tensor", a), ("b_tensor", b)):
            if tensor.zero_dimensional:
                raise InvalidArgument(message(cls.where(name), "an array without dimensions", "1 or more dimensions"))
        vectors = a.rank == 1, b.rank == 1
        a = matrix(a, row=not own[0]) if vectors[0] else a
        b = matrix(b, row=own[1]) if vectors[1] else b
        added = [name for name in ("c_tensor", "bias_tensor") if tensors.get(name) is not None]
        for name in added:
            tensors[name] = cls._row_or_column(tensors[name], *vectors)
        outer = {cls.where(name): outside(one) for name, one in (("a_tensor", a), ("b_tensor", b))}
        outer |= {cls.where(name): outside(tensors[name]) for name in added}
        batch = common_sizes(outer)[:-1]
        tensors["a_tensor"], tensors["b_tensor"] = (repeated(one, (*batch, *one.sizes[-2:])) for one in (a, b))
        sizes = (*batch, a.sizes[-1 if own[0] else -2], b.sizes[-2 if own[1] else -1])
        for name in added:
            tensor = tensors[name]
            common = common_sizes({"output": tensor.with_sizes(sizes), cls.where(name): tensor})
            if common != sizes:
                raise InvalidArgument(message(cls.where(name), f"sizes {tensor.sizes}", f"sizes that can be repeated to {sizes}"))
            tensors[name] = repeated(tensor, sizes)
        return list(tensors.values())

    @classmethod
    def _draft(cls, tensors: Mapping[str, Any], given: Mapping[str, Any]) -> Any:
        from tvmdml.operators._inference import fields_of

        return cls(**fields_of(cls, tuple(tensors.values()), given))

    @staticmethod
    def _row_or_column(tensor: Any, of_row: bool, of_column: bool) -> Any:
        """What is added, with the dimensions that the result of a vector does not have."""
        sizes, steps = list(tensor.sizes), list(tensor.layout)
        if tensor.zero_dimensional:
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

    def spread_small(self, name: str, array: Array | None) -> Array:
        """A scale or a zero point, as NumPy repeats it to matrices; a zero point that is absent is 0."""
        if array is None:
            return np.zeros((), np.int64)
        if array.size == 1:
            return array.reshape(())
        return array.reshape(1, -1) if name in self.B_SMALL else array.reshape(-1, 1)

    def differences(self, a: Array, b: Array, a_zero: Array | None, b_zero: Array | None) -> tuple[Array, Array]:
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


def exact_product(x: Array, y: Array, width: int = 0) -> Array:
    """The product of matrices of integers: in float64 where that is exact, modulo 2 to the width otherwise."""
    depth = x.shape[-1]
    most = int(np.max(np.abs(x), initial=0)) * int(np.max(np.abs(y), initial=0)) * max(depth, 1)
    if most < 1 << 53:
        return np.matmul(x.astype(np.float64), y.astype(np.float64)).astype(np.int64)
    return np.matmul(x, y)
