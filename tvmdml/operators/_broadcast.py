"""NumPy's rules of broadcasting, for tensors of operators that DirectML defines for tensors of the same sizes only."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from typing import Any, TypeVar

from tvmdml.errors import InvalidArgument, message
from tvmdml.tensors import ArrayTensorDesc, TensorDesc
from tvmdml.tensors.sizes import are_equal, is_open, symbols

D = TypeVar("D", bound=TensorDesc)


def common_sizes(tensors: Mapping[str, TensorDesc]) -> tuple[Any, ...]:
    """The sizes that all tensors can be repeated to. A symbol counts as a size other than 1.

    Args:
        tensors: the tensors, by their names in errors.

    Raises:
        InvalidArgument: there are no such sizes.
    """
    rank = max(tensor.rank for tensor in tensors.values())
    sizes: list[Any] = [1] * rank
    for name, tensor in tensors.items():
        for i, size in enumerate(tensor.sizes, rank - tensor.rank):
            if _is_like(sizes[i], size) or _is_plain_one(size):
                continue
            if _is_plain_one(sizes[i]):
                sizes[i] = size
                continue
            if _is_one(size):
                continue
            if not _is_one(sizes[i]) and not symbols.holds(sizes[i] == size):
                given, others = f"sizes {tuple(tensor.sizes)}", tuple(sizes)
                raise InvalidArgument(message(name, given, f"sizes that can be broadcast to those of the other inputs, {others}"))
            if not symbols.is_symbol(size) or _is_one(sizes[i]):  # a number says more than a symbol
                sizes[i] = size
    return tuple(sizes)


def repeated(tensor: D, sizes: tuple[Any, ...]) -> D:
    """The tensor, repeated to these sizes by strides of 0."""
    if tensor.rank == len(sizes) and all(
        _is_like(a, b) or not _is_one(a) or _is_one(b) for a, b in zip(tensor.sizes, sizes, strict=True)
    ):
        return tensor
    missing = len(sizes) - tensor.rank
    every = zip(tensor.sizes, sizes[missing:], tensor.layout, strict=True)
    steps = (0 if not (is_open(size) and _is_like(size, wanted)) and _is_one(size) else step for size, wanted, step in every)
    changes: dict[str, Any] = {"zero_dimensional": False} if isinstance(tensor, ArrayTensorDesc) else {}
    return dataclasses.replace(tensor, sizes=sizes, strides=(*[0] * missing, *steps), **changes)


def _is_like(size: Any, other: Any) -> bool:
    """Whether both are one size, in all cases."""
    return size is other or (not (symbols.is_symbol(size) or symbols.is_symbol(other)) and are_equal(size, other))


def _is_plain_one(size: Any) -> bool:
    return type(size) is int and size == 1


def _is_one(size: Any) -> bool:
    return not symbols.is_symbol(size) and size == 1
