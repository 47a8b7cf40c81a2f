"""``Indexed``: the base class of operators with an index tensor, and what their references have in common."""

from __future__ import annotations

import dataclasses
from typing import Any, ClassVar

import numpy as np

from tvmdml.operators._contract import NumpyArray, Role
from tvmdml.operators._movement import Movement
from tvmdml.operators._roles import coerce
from tvmdml.tensors import MAX_RANK, ArrayTensorDesc, TensorDesc


class Indexed(Movement):
    """Base class of gathers and scatters.

    Args:
        axis: the dimension of the input that the indices count. A negative number counts from the last dimension.
        input_dimension_count: how many of the input's last dimensions count; by default all.
        indices_dimension_count: the same for the indices.
    """

    INDICES: ClassVar[tuple[str, ...]] = ("indices_tensor",)
    CHECKS_INDICES = True

    # -- Descriptors of calls: tensors of any rank

    @classmethod
    def rank_of(cls, tensor: TensorDesc) -> int:
        """The rank; 0 for an array without dimensions."""
        return 0 if isinstance(tensor, ArrayTensorDesc) and tensor.zero_dimensional else tensor.rank

    @classmethod
    def ranked(cls, tensor: Any, rank: int) -> Any:
        """The tensor with leading dimensions of size 1."""
        missing = rank - tensor.rank
        strides = (0,) * missing + tuple(tensor.layout)
        packed = tensor.strides is None
        return dataclasses.replace(tensor, sizes=(1,) * missing + tuple(tensor.sizes), strides=None if packed else strides)

    @classmethod
    def window(cls, x: Any, indices: Any, axis: Any) -> Any:
        """The part of a tensor that indices can mean: their sizes, but for the axis."""
        if not isinstance(axis, int) or x.rank != indices.rank or not -x.rank <= axis < x.rank:
            return x
        own = [n if i == axis % x.rank else min(n, m) for i, (n, m) in enumerate(zip(x.sizes, indices.sizes, strict=True))]
        return x if tuple(own) == tuple(x.sizes) else dataclasses.replace(x, sizes=tuple(own), strides=x.layout)

    # -- Rules

    def check_tensors(self) -> None:
        """Refuse tensors of another type or rank than the input."""
        names = [name for name, _ in self.tensors()]
        for name in ("updates_tensor", "output_tensor"):
            if name in names:
                self.require_same("data_type", name, "input_tensor")
        for name in ("indices_tensor", "updates_tensor"):
            if name in names:
                self.require_same("rank", name, "input_tensor")

    def aligned(self, sizes: tuple[int, ...], rank: int) -> tuple[int, ...]:
        """Sizes brought to a rank at their beginning: more of size 1, or fewer."""
        return (1,) * (rank - len(sizes)) + sizes[max(len(sizes) - rank, 0) :]

    def require_ones(self, name: str, count: int) -> None:
        """Refuse a tensor whose first sizes are not 1."""
        sizes = getattr(self, name).sizes
        self.require(all(n == 1 for n in sizes[:count]), f"{name}.sizes", sizes, f"{count} first sizes of 1")

    def require_like_input(self, name: str) -> None:
        """Refuse a tensor that has not the input's sizes, except along the axis."""
        whole, given, axis = self.input_tensor.sizes, getattr(self, name).sizes, self.axis  # type: ignore[attr-defined]
        same = (*given[:axis], *given[axis + 1 :]) == (*whole[:axis], *whole[axis + 1 :])
        self.require(same, f"{name}.sizes", given, f"those of {self.named('input_tensor')}, {whole}, but for dimension {axis}")

    # -- Indices

    def limits(self) -> NumpyArray:
        """The size that each index counts, in a form that broadcasts to the index tensor's."""
        sizes = [rule.size for move in self.moves() for rule in move.rules if rule.look is not None]
        tuples = getattr(self, "indices_dimension_count", 0)
        return np.array(sizes if tuples else sizes[:1])

    def first_bad(self, indices: NumpyArray) -> tuple[tuple[int, ...], int, int] | None:
        """The position, the value and the size of the first index that is out of range; ``None`` if there is none."""
        limits = np.broadcast_to(self.limits(), indices.shape)
        low = -limits if indices.dtype.kind == "i" else np.zeros_like(limits)
        bad = (indices > limits - 1) | (indices < low) if indices.dtype != np.uint64 else indices > (limits - 1).astype(np.uint64)
        if not bad.any():
            return None
        at = tuple(int(i) for i in np.unravel_index(int(bad.argmax()), bad.shape))
        return at, int(indices[at]), int(limits[at])


class Tuples(Indexed):
    """Base class of those whose indices are tuples: one index for each of the input's first dimensions."""

    @classmethod
    def of_call(cls, *inputs: Any, **given: Any) -> Any:
        """Tensors of any rank: they get leading dimensions of size 1."""
        return cls.of(*cls.of_tuples(inputs, given), **given)

    @classmethod
    def of_tuples(cls, inputs: tuple[Any, ...], given: dict[str, Any]) -> tuple[Any, ...]:
        """The inputs with equal ranks; counts of dimensions that are not given are those of the inputs."""
        x, indices, *others = inputs
        for field in cls.fields():
            if field.role is Role.UINT and given.get(field.name) is not None:
                given[field.name] = coerce(cls.where(field.name), field, given[field.name])
        counts = given.get("input_dimension_count"), given.get("indices_dimension_count")
        own = [tensor.rank if count is None else count for tensor, count in zip((x, indices), counts, strict=True)]
        given["input_dimension_count"], given["indices_dimension_count"] = own
        size = indices.sizes[-1]
        result = own[1] - 1 + own[0] - given.get("batch_dimension_count", 0) - (size if isinstance(size, int) else 0)
        rank = min(max(x.rank, indices.rank, *(one.rank for one in others), *([] if others else [result])), MAX_RANK)
        return tuple(cls.ranked(one, rank) for one in inputs)

    def own(self, name: str, count: str) -> tuple[int, ...]:
        """The last sizes of a tensor, as many as a field says."""
        sizes: tuple[int, ...] = getattr(self, name).sizes
        return sizes[max(len(sizes) - getattr(self, count), 0) :]

    def tuple_size(self) -> int:
        """The number of indices in a tuple."""
        return int(self.own("indices_tensor", "indices_dimension_count")[-1])

    def check_tuples(self, batch: int) -> None:
        """Refuse counts of dimensions, and tuples, that do not fit the tensors."""
        rank = self.input_tensor.rank  # type: ignore[attr-defined] # a field of the subclasses
        for name in ("input", "indices"):
            count = getattr(self, f"{name}_dimension_count")
            self.require(1 <= count <= rank, f"{name}_dimension_count", count, f"1 to {rank}, the number of dimensions")
            self.require_ones(f"{name}_tensor", rank - count)
            self.require(batch < count, "batch_dimension_count", batch, f"below {count}, the {name}_dimension_count")
        x, indices = self.own("input_tensor", "input_dimension_count"), self.own("indices_tensor", "indices_dimension_count")
        self.require(x[:batch] == indices[:batch], "indices_tensor.sizes", indices, f"{x[:batch]} first, as in the input")
        most = len(x) - batch
        self.require(1 <= indices[-1] <= most, "indices_tensor.sizes", indices, f"1 to {most} last: one index for each dimension")


def normal(indices: NumpyArray, size: int) -> tuple[NumpyArray, NumpyArray]:
    """For a reference: indices with negative ones counted from the end, and where they are in range, after that."""
    if indices.dtype.kind == "u":
        inside = indices < size if indices.dtype != np.uint64 else indices < np.uint64(size)
        return np.where(inside, indices, size).astype(np.int64), inside
    wide = indices.astype(np.int64)
    found = np.where(wide < 0, np.maximum(wide, -size - 1) + size, np.minimum(wide, size))
    return found, (found >= 0) & (found < size)


def clamped(indices: NumpyArray, size: int) -> NumpyArray:
    """For a reference: indices, in range after clamping."""
    return np.clip(normal(indices, size)[0], 0, size - 1)
