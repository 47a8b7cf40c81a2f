"""Shared by the cases of all operators."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterator
from typing import Any, NamedTuple

from tvmdml.errors import InvalidArgument, TvmdmlError
from tvmdml.operators import Operator
from tvmdml.operators._contract import Shared
from tvmdml.operators._shared import ways
from tvmdml.tensors import BYTE_TYPES, TensorDataType, TensorDesc, packed_strides

Sizes = tuple[int, ...]

ALL = BYTE_TYPES
FLOATING = (TensorDataType.FLOAT32, TensorDataType.FLOAT16, TensorDataType.FLOAT64)
KINDS = tuple(TensorDataType[name] for name in ("FLOAT64", "FLOAT32", "FLOAT16", "INT64", "UINT32", "INT16", "UINT8"))
"""One type of each width and kind, for cases in which compiling a kernel for every type would take too long."""
INT_MIN, INT_MAX = -(2**31), 2**31 - 1

ODD: dict[int, Sizes] = {
    1: (131,),
    2: (7, 19),
    3: (3, 5, 13),
    4: (2, 3, 5, 7),
    5: (3, 1, 2, 5, 3),
    6: (1, 2, 3, 1, 5, 3),
    7: (2, 1, 2, 3, 1, 2, 5),
    8: (2, 1, 2, 2, 3, 1, 2, 1),
}
"""A shape for each rank: odd sizes, and sizes of 1 at every position."""


LENGTHS = (*range(1, 36), 63, 64, 65, 127, 128, 129, 255, 256, 257, 511, 513, 1023, 1025, 2047, 2049)
"""Around the lengths of vectors, cache lines, words of bits, groups of threads and their multiples."""


# -- Rules --------------------------------------------------------------------------------------------------------


class Broken(NamedTuple):
    """A descriptor that breaks one rule, and the expected parts of the message."""

    build: Callable[[], Operator]
    where: str
    given: str
    allowed: str
    error: type[TvmdmlError] = InvalidArgument
    level: str = "6.4"
    advice: str = ""


def change(desc: Operator, **fields: Any) -> Callable[[], Operator]:
    """A function that makes the descriptor with some fields changed."""
    return lambda: dataclasses.replace(desc, **fields)  # type: ignore[type-var]


# Texts in messages about types and tensors.
INT_32_NAMES = "float32, float16, uint32, uint16, uint8, int32, int16, int8"
NAMES = f"{INT_32_NAMES}, uint64, int64"
TENSOR = "input tensor: a TensorDesc"
DISTINCT = "strides that give each element its own address"
EXTENSION = "tvmdml's functions support it as an extension."


# -- Reference cases ----------------------------------------------------------------------------------------------


class Case(NamedTuple):
    """A case to compare with the reference."""

    desc: Operator
    fill: str = "mixed"
    """The contents of the inputs: one of ``fills.FILLS``."""
    shared: Shared = ()
    """The pairs (input, output) in the same memory."""


def in_place(desc: Operator, fill: str = "mixed") -> Iterator[Case]:
    """A case for each way in which tensors may share memory."""
    return (Case(desc, fill, shared) for shared in ways(desc) if shared)


def _padded(sizes: Sizes) -> Sizes:
    """Strides with a gap after every row, plane and so on."""
    strides = [1]
    for i, size in enumerate(reversed(sizes[1:])):
        strides.append(strides[-1] * size + 1 + 2 * i)
    return tuple(reversed(strides))


LAYOUTS: dict[str, Callable[[Sizes], Sizes | None]] = {
    "packed": lambda sizes: None,
    "padded": _padded,
    "transposed": lambda sizes: tuple(reversed(packed_strides(tuple(reversed(sizes))))),  # the first dimension varies fastest
    "spread": lambda sizes: tuple(3 * stride for stride in packed_strides(sizes)),
    # Only for inputs: the first or the last dimension repeats.
    "outer repeated": lambda sizes: (0, *packed_strides(sizes)[1:]),
    "inner repeated": lambda sizes: (*packed_strides(sizes)[:-1], 0),
}
"""The strides of a tensor, by layout."""

PAIRS = (
    ("padded", "packed"),
    ("packed", "padded"),
    ("transposed", "packed"),
    ("packed", "transposed"),
    ("transposed", "transposed"),
    ("spread", "padded"),
    ("outer repeated", "packed"),
    ("inner repeated", "spread"),
)
"""Layouts of an input and an output, not both packed."""


def tensor(data_type: TensorDataType | str, sizes: Sizes, layout: str = "packed") -> TensorDesc:
    """A tensor with one of ``LAYOUTS``."""
    return TensorDesc(data_type, sizes, LAYOUTS[layout](sizes))
