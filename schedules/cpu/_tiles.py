"""Transposing a tile in registers, so that both the reads and the writes are contiguous."""

from __future__ import annotations

from typing import Any

from tvmdml.kernels import tensorir as T

SIDE = 16
"""Rows and columns of a tile: a cache line of 32-bit elements."""


def transposed(rows: list[Any]) -> list[Any]:
    """The columns of a tile, given its rows: ``SIDE`` vectors of ``SIDE``.

    Each round swaps squares of elements above the diagonal with those below: first single elements, then squares of two by two …
    """
    width = 1
    while width < SIDE:
        upper = [lane if not lane & width else SIDE + lane - width for lane in range(SIDE)]
        lower = [lane + width if not lane & width else SIDE + lane for lane in range(SIDE)]
        after = list(rows)
        for i in range(SIDE):
            if not i & width:
                pair = [rows[i], rows[i + width]]
                after[i], after[i + width] = T.hold(T.Shuffle(pair, upper)), T.hold(T.Shuffle(pair, lower))
        rows, width = after, 2 * width
    return rows


def tiles(extent: Any) -> Any:
    """How many tiles cover an extent of at least ``SIDE``."""
    return T.truncdiv(extent + (SIDE - 1), T.i64(SIDE))


def corner(tile: Any, extent: Any) -> Any:
    """Where a tile begins. The last tile is moved back to end with the extent, so some elements are computed twice."""
    return T.hold(T.min(tile * SIDE, extent - SIDE))
