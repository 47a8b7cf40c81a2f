"""Transposing a tile in registers, so that both the reads and the writes are contiguous."""

from __future__ import annotations

from typing import Any

from tvmdml.kernels import tensorir as T

SIDE = 16
"""Rows and columns of a tile: a cache line of 32-bit elements."""


def transposed(rows: list[Any]) -> list[Any]:
    """The columns of a tile, given its rows: as many vectors as a vector has elements, 4, 8 or ``SIDE``.

    Four rows are transposed within each four neighbouring lanes, in two rounds. More rounds collect the parts of a column. None
    needs a vector that says which lanes to take, as that would be in a register, also in the loops around.
    """
    side = len(rows)
    pairs, halves = (
        tuple([block + lane for block in range(0, side, 4) for lane in own] for own in some)
        for some in (((0, side, 1, side + 1), (2, side + 2, 3, side + 3)), ((0, 1, side, side + 1), (2, 3, side + 2, side + 3)))
    )
    fours = tuple([block + lane for block in range(first, 2 * side, 8) for lane in range(4)] for first in (0, 4))

    def both(a: Any, b: Any, masks: tuple[list[int], ...]) -> list[Any]:
        return [T.hold(T.Shuffle([a, b], mask)) for mask in masks]

    parts: list[list[Any]] = []
    for i in range(0, side, 4):
        low, high = both(rows[i], rows[i + 1], pairs), both(rows[i + 2], rows[i + 3], pairs)
        parts.append([one for a, b in zip(low, high, strict=True) for one in both(a, b, halves)])
    columns = list(rows)
    for i, some in enumerate(zip(*parts, strict=True)):
        if side < SIDE:
            columns[i::4] = some if side == 4 else both(some[0], some[1], fours)
            continue
        a, b, c, d = some
        for half, (first, second) in enumerate(zip(both(a, b, fours), both(c, d, fours), strict=True)):
            columns[4 * half + i], columns[4 * half + i + 8] = both(first, second, fours)
    return columns


def tiles(extent: Any) -> Any:
    """How many tiles cover an extent of at least ``SIDE``."""
    return T.truncdiv(extent + (SIDE - 1), T.i64(SIDE))


def corner(tile: Any, extent: Any) -> Any:
    """Where a tile begins. The last tile is moved back to end with the extent, so some elements are computed twice."""
    return T.hold(T.min(tile * SIDE, extent - SIDE))
