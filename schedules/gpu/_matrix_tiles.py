"""The tiles of matrix products on a GPU: what a group of threads computes, and which tile suits a result and a device."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from tvmdml.schedules.gpu._matrix_forms import Leaf, MatrixTile
from tvmdml.targets._device import DeviceTarget

PAD = 4
"""Elements after each row in shared memory: rows begin in other banks, and stay aligned for vectors."""
_BYTES = 48 << 10
_SINGLE_BYTES = 32 << 10
"""Most bytes of shared memory that groups take, and of those that do not take more to load meanwhile."""
_REGISTERS = 64
"""Most registers of a thread's sums."""
_SLOTS, _MOST_SLOTS = 8, 16
"""Elements or vectors that a thread moves at once, as each has its place in registers; and the most, where steps are shortest."""
_CPU_SUMS, _LEAST_THREADS = 4, 16
"""A driver for the CPU keeps in memory what does not fit into registers, which costs less than to read the factors more often: its
threads have so many times as many sums, but groups keep as many threads."""


TILES = {
    str(tile): tile
    for tile in (
        MatrixTile(128, 128, 8, 8, 64, 32),
        MatrixTile(128, 64, 8, 4, 64, 32),
        MatrixTile(64, 128, 4, 8, 32, 64),
        MatrixTile(64, 64, 4, 4, 32, 32),
        MatrixTile(32, 128, 4, 8, 16, 64),
        MatrixTile(128, 32, 8, 4, 64, 16),
        MatrixTile(32, 64, 4, 4, 16, 32),
        MatrixTile(64, 32, 4, 4, 32, 16),
        MatrixTile(32, 32, 4, 4, 16, 16),
        MatrixTile(16, 128, 4, 4, 16, 32),
        MatrixTile(128, 16, 4, 4, 32, 16),
        MatrixTile(16, 64, 2, 4, 16, 16),
        MatrixTile(64, 16, 4, 2, 16, 16),
        MatrixTile(16, 16, 2, 2, 16, 16),
    )
}
"""From large to small: a large one reads each factor less often, and small ones are many."""


def busy_groups(knobs: Any, target: DeviceTarget) -> int:
    """How many groups are enough.

    For a device with few tasks a quarter of them is: with smaller tiles, each product would cost nearly twice as many loads.
    """
    return int(min(knobs.busy, target.tasks() // 4))


def chosen(
    knobs: Any,
    target: DeviceTarget,
    sizes: Sequence[int],
    leaf_of: Callable[[MatrixTile, int, int], Leaf],
    slots: Callable[[Leaf], int],
    stages: int,
) -> Leaf:
    """The leaf that suits a product of these sizes: of the batch, rows, columns, and products of a sum.

    ``leaf_of`` has a tile, how many products of a float32 are in shared memory at once, and how often there is such memory.
    ``slots`` says how many elements or vectors of a factor each thread moves at once.
    """
    batch, rows, columns, depth = sizes
    wide = _CPU_SUMS if target.is_cpu else 1
    most = min(target.max_shared_bytes, _SINGLE_BYTES if stages == 1 else _BYTES)

    def fitted(tile: MatrixTile) -> Leaf:
        step, times = min(knobs.depth, 1 << (depth - 1).bit_length()), stages
        leaf = leaf_of(tile, step, times)
        while wide > 1 and tile.threads > _LEAST_THREADS and 2 * leaf.sum_registers <= wide * _REGISTERS:
            leaf = leaf_of(tile := tile.wider(), step, times)
        while (many := slots(leaf) > wide * _SLOTS) or leaf.bytes > most:
            if times > 2 and not many:
                times -= 1
            elif step > 8:
                step //= 2
            else:
                break
            leaf = leaf_of(tile, step, times)
        return leaf

    def fits(leaf: Leaf) -> bool:
        has_room = leaf.bytes <= target.max_shared_bytes and leaf.threads <= target.max_threads
        return has_room and leaf.sum_registers <= wide * _REGISTERS and slots(leaf) <= wide * _MOST_SLOTS

    leaves = {name: leaf for name, tile in TILES.items() if fits(leaf := fitted(tile))}
    if knobs.tile in leaves:
        return leaves[knobs.tile]

    def wasted(tile: MatrixTile) -> bool:
        return bool((tile.rows >= 2 * rows and tile.rows > 16) or (tile.columns >= 2 * columns and tile.columns > 16))

    fitting = [leaf for leaf in leaves.values() if not wasted(leaf.tile)] or [*leaves.values()][-1:]
    busy = busy_groups(knobs, target)
    return next((leaf for leaf in fitting if batch * leaf.tile.groups(rows, columns) >= busy), fitting[-1])
