"""Python's own numbers as inputs of functions. They have no data type: as in NumPy, they take that of the arrays beside them."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import numpy as np

from tvmdml.errors import InvalidArgument, message
from tvmdml.tensors import TensorDataType, arrays, native
from tvmdml.tensors.arrays import NumpyArray
from tvmdml.tensors.sizes import is_open

PYTHON = frozenset((int, float, bool))
"""Their types."""


class Takes(NamedTuple):
    """Which type a number takes in the place of an input: of these, the first that there is."""

    like: tuple[int, ...]
    """That of an array at one of these positions, which support the same types."""
    choice: tuple[int, str] | None = None
    """That which an attribute names: its place, counted from the last, and its name in errors."""
    near: tuple[tuple[int, frozenset[np.dtype[Any]]], ...] = ()
    """That of an array at one of these positions, if it is one of these types."""
    usual: str | None = None
    """This one."""


def as_arrays(
    inputs: tuple[Any, ...], attributes: tuple[Any, ...], takes: Sequence[Takes], name: Callable[[int], str]
) -> tuple[Any, ...]:
    """The inputs, with Python numbers as arrays without dimensions. A number whose type is open stays as it is, and so does a size.

    Args:
        inputs: arrays, numbers, and ``None``.
        attributes: the call's attributes.
        takes: for each input, the type of a number.
        name: the name of an input, for errors.

    Raises:
        InvalidArgument: a number does not fit its type.
    """
    types = [None if one is None or type(one) in PYTHON or is_open(one) else _dtype(one, name(i)) for i, one in enumerate(inputs)]
    found = list(inputs)
    for i, number in enumerate(inputs):
        if type(number) in PYTHON:
            dtype, whose = _type(takes[i], types, attributes)
            if dtype is not None:
                found[i] = _as_array_of(number, dtype, whose, name(i))
    return tuple(found)


def _dtype(array: Any, where: str) -> np.dtype[Any]:
    return array.dtype if issubclass(type(array), arrays.Traced) else arrays.view(array, where).dtype


def _type(takes: Takes, types: Sequence[Any], attributes: tuple[Any, ...]) -> tuple[Any, str]:
    """The type, and where it is from."""
    for j in takes.like:
        if types[j] is not None:
            return types[j], "the type of the arrays"
    if takes.choice is not None and (named := attributes[-takes.choice[0]]) is not None:
        return TensorDataType.of(named, takes.choice[1]).numpy, "the type of the result"
    for j, near in takes.near:
        if types[j] in near:
            return types[j], "the type of the arrays"
    return (None, "") if takes.usual is None else (np.dtype(takes.usual), "its type unless another is chosen")


def _as_array_of(number: Any, dtype: np.dtype[Any], whose: str, where: str) -> NumpyArray:
    allowed = f"a number that {dtype}, {whose}, can hold"
    if type(number) is float and dtype.kind != "f":
        raise InvalidArgument(message(where, number, allowed, "Convert the array, or pass an integer."))
    try:
        with np.errstate(over="ignore"):  # a large number is infinite in a narrow float type
            return np.array(number, native(dtype))
    except OverflowError:
        raise InvalidArgument(message(where, number, allowed)) from None
