"""The tiles of matrix products on a GPU: what a group of threads computes, and which tile suits a result and a device."""

from __future__ import annotations

from typing import Any, NamedTuple

from tvmdml.targets._device import DeviceTarget

PAD = 4
"""Elements after each row in shared memory: rows begin in other banks, and stay aligned for vectors."""
BUSY = 128
"""Groups that keep a large device busy with large tiles."""


class Tile(NamedTuple):
    """The rows and columns of a group's part of a result, and of a thread's."""

    rows: int
    columns: int
    own_rows: int
    own_columns: int

    @property
    def threads(self) -> int:
        """The threads of a group."""
        return (self.rows // self.own_rows) * (self.columns // self.own_columns)

    def groups(self, rows: int, columns: int) -> int:
        """How many tiles a result has."""
        return -(-rows // self.rows) * -(-columns // self.columns)

    def __str__(self) -> str:
        """Its name, as a knob's value."""
        return f"{self.rows}x{self.columns}"


TILES = {
    str(tile): tile
    for tile in (
        Tile(128, 128, 8, 8),
        Tile(128, 64, 8, 4),
        Tile(64, 128, 4, 8),
        Tile(64, 64, 4, 4),
        Tile(32, 64, 4, 4),
        Tile(64, 32, 4, 4),
        Tile(32, 32, 4, 4),
        Tile(16, 64, 2, 4),
        Tile(64, 16, 4, 2),
        Tile(16, 16, 2, 2),
    )
}
"""From large to small: a large one reads each factor less often, and small ones are many."""


def chosen(knobs: Any, target: DeviceTarget, batch: int, rows: int, columns: int, depth: int, width: int) -> tuple[Tile, int]:
    """A tile, and how many products of each sum are in shared memory at once."""

    def step_of(tile: Tile) -> int:
        # With fewer products the compiler is told of fewer registers than a large tile needs.
        least = 16 if tile.own_rows * tile.own_columns > 32 else 8
        step = max(least, min(knobs.depth if width == 4 else 8, 1 << (depth - 1).bit_length()))
        while step > 8 and step * (tile.rows + tile.columns + 2 * PAD) * width > min(target.max_shared_bytes, 32 << 10):
            step //= 2
        return int(step)

    def fits(tile: Tile) -> bool:
        step = step_of(tile)
        slab = tile.rows // tile.own_rows * tile.columns
        shared = (step * (tile.rows + PAD) + max(step * (tile.columns + PAD), slab)) * width
        # An element of 64 bits has two registers: 8 x 8 of them would not fit.
        registers = tile.own_rows * tile.own_columns * width // 4
        return tile.threads <= target.max_threads and shared <= target.max_shared_bytes and registers <= 64

    tiles = [tile for tile in TILES.values() if fits(tile)]
    wanted = TILES.get(knobs.tile)
    if wanted is not None and wanted in tiles:
        return wanted, step_of(wanted)

    def wasted(tile: Tile) -> bool:
        return (tile.rows >= 2 * rows and tile.rows > 16) or (tile.columns >= 2 * columns and tile.columns > 16)

    fitting = [tile for tile in tiles if not wasted(tile)] or tiles[-1:]
    found = next((tile for tile in fitting if batch * tile.groups(rows, columns) >= BUSY), fitting[-1])
    return found, step_of(found)
