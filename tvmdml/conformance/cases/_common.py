"""What the tables of all operators are made of."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from typing import Any, NamedTuple

from tvmdml.errors import InvalidArgument, TvmdmlError
from tvmdml.operators import Operator
from tvmdml.tensors import TensorDataType, TensorDesc, packed_strides

Sizes = tuple[int, ...]

ALL = tuple(TensorDataType)
FLOATING = (TensorDataType.FLOAT32, TensorDataType.FLOAT16, TensorDataType.FLOAT64)
KINDS = tuple(TensorDataType[name] for name in ("FLOAT64", "FLOAT32", "FLOAT16", "INT64", "UINT32", "INT16", "UINT8"))
"""One type of each width and kind, where a kernel for every type would take too long to compile."""
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
"""A shape for each rank: odd sizes, and sizes of 1 in every place."""


# -- Rules --------------------------------------------------------------------------------------------------------


class Broken(NamedTuple):
    """A descriptor that breaks one rule, and what the message must say."""

    build: Callable[[], Operator]
    where: str
    given: str
    allowed: str
    error: type[TvmdmlError] = InvalidArgument
    level: str = "6.4"
    advice: str = ""


def change(desc: Operator, **fields: Any) -> Callable[[], Operator]:
    """The descriptor with some fields changed, made when it is wanted."""
    return lambda: dataclasses.replace(desc, **fields)  # type: ignore[type-var]


# What messages say of types and tensors.
INT_32_NAMES = "float32, float16, uint32, uint16, uint8, int32, int16, int8"
NAMES = f"{INT_32_NAMES}, uint64, int64"
TENSOR = "input tensor: a TensorDesc"
DISTINCT = "strides that give each element its own address"
EXTENSION = "tvmdml's functions support it as an extension."


# -- Reference cases ----------------------------------------------------------------------------------------------


class Case(NamedTuple):
    """Something to run beside the reference."""

    desc: Operator
    fill: str = "mixed"
    """What the inputs hold: one of ``fills.FILLS``."""
    in_place: bool = False
    """The output takes the input's place."""


def _padded(sizes: Sizes) -> Sizes:
    """A gap after every row, plane …."""
    strides = [1]
    for i, size in enumerate(reversed(sizes[1:])):
        strides.append(strides[-1] * size + 1 + 2 * i)
    return tuple(reversed(strides))


LAYOUTS: dict[str, Callable[[Sizes], Sizes | None]] = {
    "packed": lambda sizes: None,
    "padded": _padded,
    "transposed": lambda sizes: tuple(reversed(packed_strides(tuple(reversed(sizes))))),  # the first dimension varies fastest
    "spread": lambda sizes: tuple(3 * stride for stride in packed_strides(sizes)),
    # For inputs alone: the first dimension repeats, or the last one.
    "outer repeated": lambda sizes: (0, *packed_strides(sizes)[1:]),
    "inner repeated": lambda sizes: (*packed_strides(sizes)[:-1], 0),
}
"""How a tensor lies in memory: its strides."""

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
"""How an input and an output lie in memory that are not both packed."""


def tensor(data_type: TensorDataType | str, sizes: Sizes, layout: str = "packed") -> TensorDesc:
    """A tensor of one of ``LAYOUTS``."""
    return TensorDesc(data_type, sizes, LAYOUTS[layout](sizes))
