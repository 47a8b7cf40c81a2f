"""Rows of operators of the movement family whose outputs or attributes do not follow from the first tensor.

Those that are not here have the rows of ``_every.py``, and these belong to the same group.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import partial
from typing import Any

from tvmdml.bench.cases import Case, Group, K
from tvmdml.bench.work import Operand, Work

EVERY = "all operators"
GROUP = Group(EVERY)
SIDES = (("64K", 256), ("16M", 4 * K))
Make = Callable[[int], Work]


def _split(side: int) -> Work:
    """Two parts of short rows."""
    rows = side * side // 8
    parts = tuple(Operand((rows, columns), data="") for columns in (3, 5))
    return Work.on("SPLIT", Operand((rows, 8)), axis=1, output_tensors=parts)


def _join(side: int) -> Work:
    """Two matrices, side by side."""
    return Work.on("JOIN", (Operand((side, side)), Operand((side, side))), axis=1)


def _gather(side: int) -> Work:
    """Rows of a matrix."""
    return Work.on("GATHER", Operand((side, side)), Operand((1, side), "int64"), axis=0, index_dimensions=1)


def _one_hot(side: int) -> Work:
    """Eight classes."""
    given = Operand((1, 1, side * side, 1), "int64"), Operand((1, 1, 1, 2), data="ascending")
    return Work.on("ONE_HOT", *given, axis=3, output_tensor=Operand((1, 1, side * side, 8), data=""))


def _fold(side: int) -> Work:
    """Windows of four elements in rows that are as long as there are windows."""
    numbers: dict[str, Any] = {"window_sizes": (4,), "strides": (1,), "dilations": (1,), "start_padding": (0,), "end_padding": (3,)}
    return Work.on("FOLD", Operand((side, 4, side // 4)), output_tensor=Operand((side, 1, side // 4), data=""), **numbers)


def _to_depth(operator: str, side: int) -> Work:
    """Small images of many channels."""
    order: dict[str, Any] = {"order": "depth_column_row"} if operator[-1] == "1" else {}
    return Work.on(operator, Operand((1, side * side // 64, 8, 8)), block_size=2, **order)


def _cases() -> Iterator[Case]:
    works: tuple[tuple[str, Make], ...] = (
        ("join float32", _join),
        ("split float32", _split),
        ("gather rows float32", _gather),
        ("one hot int64", _one_hot),
        ("fold float32", _fold),
        ("space to depth float32", partial(_to_depth, "SPACE_TO_DEPTH")),
        ("space to depth 1 float32", partial(_to_depth, "SPACE_TO_DEPTH1")),
    )
    for name, make in works:
        for point, side in SIDES:
            yield Case(EVERY, f"{name}: {point}", make(side), group=GROUP)


CASES = tuple(_cases())
