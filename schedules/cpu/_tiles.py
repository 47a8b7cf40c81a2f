"""Transposing a tile in registers, so that both the reads and the writes are contiguous."""

from __future__ import annotations

from typing import Any

from tvmdml.kernels import tensorir as T

SIDE = 16
"""Rows and columns of a tile: a cache line of 32-bit elements."""


def transposed(rows: list[Any]) -> list[Any]:
    """The columns of a tile, given its rows: ``SIDE`` vectors of ``SIDE``.

    Four rows are transposed within each four neighbouring lanes, in two rounds. Two more rounds collect the parts of a column. None
    needs a vector that says which lanes to take, as that would be in a register, also in the loops around.
    """

    def both(a: Any, b: Any, masks: tuple[list[int], ...]) -> list[Any]:
        return [T.hold(T.Shuffle([a, b], mask)) for mask in masks]

    parts: list[list[Any]] = []
    for i in range(0, SIDE, 4):
        low, high = both(rows[i], rows[i + 1], _PAIRS), both(rows[i + 2], rows[i + 3], _PAIRS)
        parts.append([one for a, b in zip(low, high, strict=True) for one in both(a, b, _HALVES)])
    found: list[Any] = [None] * SIDE
    for i, (a, b, c, d) in enumerate(zip(*parts, strict=True)):
        for half, (first, second) in enumerate(zip(both(a, b, _FOURS), both(c, d, _FOURS), strict=True)):
            found[4 * half + i], found[4 * half + i + 8] = both(first, second, _FOURS)
    return found


_PAIRS = tuple(
    [block + lane for block in range(0, SIDE, 4) for lane in own] for own in ((0, SIDE, 1, SIDE + 1), (2, SIDE + 2, 3, SIDE + 3))
)
"""Within four lanes: the first two of both vectors, in turns, and the last two."""
_HALVES = tuple(
    [block + lane for block in range(0, SIDE, 4) for lane in own] for own in ((0, 1, SIDE, SIDE + 1), (2, 3, SIDE + 2, SIDE + 3))
)
"""The same of pairs."""
_FOURS = tuple([4 * block + lane for block in own for lane in range(4)] for own in ((0, 2, 4, 6), (1, 3, 5, 7)))
"""Every second four lanes of both vectors: from the first on, and from the second on."""


def tiles(extent: Any) -> Any:
    """How many tiles cover an extent of at least ``SIDE``."""
    return T.truncdiv(extent + (SIDE - 1), T.i64(SIDE))


def corner(tile: Any, extent: Any) -> Any:
    """Where a tile begins. The last tile is moved back to end with the extent, so some elements are computed twice."""
    return T.hold(T.min(tile * SIDE, extent - SIDE))
