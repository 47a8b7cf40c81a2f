"""Which of several register tiles computes least for nothing, and how work is divided: choices that follow from sizes alone.

They stand apart from the schedules that ask them: a plan of the cache asks them for a size that is new, and imports no schedule.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import TypeVar

from tvmdml.tensors.sizes import choice

Pair = tuple[int, int]
Triple = tuple[int, int, int]
_Tile = TypeVar("_Tile")

_OF_PRODUCTS = {
    16: ((6, 4), (8, 3), (12, 2)),
    8: ((6, 2), (4, 3)),
    4: ((4, 2),),
    0: ((8, 3), (6, 4)),
}
"""Rows and vectors by the lanes of float32, the usual ones first; without x86 there are 32 registers, and sums may be in 24."""
_FEW_ROWS = (1, 2, 4)
"""With so few rows, a tile has no more."""
_MANY_COLUMNS = 256
"""Of so many columns that are another number in each call, the rest does not choose the tile."""
_ALIKE = 103
"""Percent of the least cost up to which a tile is as fast as any: each tile is a kernel of its own."""


@choice
def of_product(
    rows: int, columns: int, lanes: int, wanted: str, x86: bool, short: bool, fixed: tuple[bool, bool] = (False, False)
) -> Triple:
    """The tile that computes least for nothing; the usual one if that is about as good.

    Sizes that change choose no tile, unless they are small: so a kernel serves all of them. What a tile leaves of the rows has a
    smaller one in the same kernel.

    Args:
        rows: of the result.
        columns: the same.
        lanes: of a register.
        wanted: a tile's name, or ``auto``.
        x86: whether registers are those of x86.
        short: whether the last vector of a tile may begin within the one before, where there are fewer columns than a tile has.
        fixed: whether the numbers of rows and of columns belong to a factor that never changes.

    Returns:
        Rows, vectors, and lanes.
    """
    while lanes > max(1, columns):
        lanes //= 2
    known: tuple[Pair, ...] = _OF_PRODUCTS.get(lanes if x86 else 0, _OF_PRODUCTS[4] if x86 else _OF_PRODUCTS[0])
    if lanes < 16 and lanes * 2 > columns:
        known = ((12, 1), (6, 1), (4, 1), (2, 1)) if x86 else known
    if wanted != "auto":
        mr, vectors = map(int, wanted.split("x"))
        known = ((mr, vectors),)
    most = max(1, -(-columns // lanes) if short and columns >= lanes else columns // lanes)
    fitting = [tile for tile in known if tile[1] <= most] or [(mr, most) for mr, _ in known]
    few = rows <= _FEW_ROWS[-1]
    if few:
        fitting += [(size, vectors) for mr, vectors in fitting for size in _FEW_ROWS if rows <= size < mr]
    many = columns >= _MANY_COLUMNS and not fixed[1]
    if many:
        fitting.reverse()  # the least panels of columns first
    unit = math.lcm(*(8 * mr * vectors for mr, vectors in fitting))

    def cost(tile: Pair) -> int:
        """The products that are computed, of one row or of all, and what each costs beside, in whole numbers."""
        mr, vectors = tile
        nr = vectors * lanes
        down = _covering(rows, mr) * mr if few else _with_parts(rows, mr) if fixed[0] else 1
        across = columns if many else _covering(columns, nr) * nr
        return down * across * (unit + (8 + mr + vectors) * unit // (8 * mr * vectors))

    mr, vectors = _usual(fitting, cost)
    return mr, vectors, lanes


def part_of_rows(rows: int) -> int:
    """Rows of the smaller tile that computes what is left of the rows; 0 if there is none."""
    return next((part for part in (4, 3, 2) if rows % part == 0 and rows > part), 0)


def _with_parts(rows: int, mr: int) -> int:
    """For how many rows tiles compute, the last ones with smaller tiles, which take a quarter longer."""
    whole, rest = divmod(rows, mr)
    part = part_of_rows(mr)
    return whole * mr + (0 if not rest else -(-5 * _covering(rest, part) * part // 4) if part and rest <= mr - part else mr)


def _usual(several: Sequence[_Tile], cost: Callable[[_Tile], int], alike: int = _ALIKE) -> _Tile:
    """The first that is about as fast as any."""
    most = min(map(cost, several)) * alike // 100
    return next(tile for tile in several if cost(tile) <= most)


PACKED, READ = 24, 4
"""What a line of a factor costs a task, in products of each of its places: where it is packed, or comes from another processor; and
where it is packed already and small, so that each task may read all of it. A network's kernels then divide places alike, and most
of what a task reads was written by the same processor."""


@choice
def parts_of_product(batch: int, rows: int, columns: int, widths: Pair, tasks: int, weights: Pair = (PACKED, PACKED)) -> Pair:
    """Into how many parts rows and columns are divided, so that all tasks are busy and little is packed twice."""
    if tasks <= 1 or batch >= 4 * tasks or batch % tasks == 0:
        return 1, 1

    def lines(size: int, width: int) -> list[int]:
        """How many a part has, for each number of parts."""
        most = min(max(1, size // width), 2 * tasks)
        return [size, *(_covering(_covering(size, width), count) * width for count in range(2, most + 1))]

    down, across = (lines(size, width) for size, width in zip((rows, columns), widths, strict=True))
    of_rows, of_columns = weights
    costs = {
        (r, c): -(-batch * r * c // tasks) * (high * wide + of_rows * high + of_columns * wide)
        for c, wide in enumerate(across, 1)
        for r, high in enumerate(down[: 4 * tasks // c], 1)
    }
    # Kernels of a network divide places alike, and read what the same processor wrote.
    return _usual(list(costs), costs.__getitem__, 101)


def _covering(size: int, width: int) -> int:
    """How many of a width cover a size."""
    return -(-size // width)


_UNIT = 20
"""Cycles are compared in twentieths, which are whole numbers."""


@choice
def of_places(
    rows: int,
    columns: int,
    filters: int,
    most_vectors: int,
    tiles: tuple[Pair, ...],
    lanes: int,
    cycles: tuple[float, float, float],
    wanted: Triple,
) -> Triple:
    """The tile of places by vectors of filters that is fastest, about.

    Args:
        rows: of places.
        columns: the same.
        filters: their number.
        most_vectors: of filters in a tile.
        tiles: the most places, and vectors, that registers have room for.
        lanes: of a vector.
        cycles: of a step besides those of its sums: at its begin, for each vector of filters, and for each row but the first.
        wanted: about what it should be; 0 for what does not matter.

    Returns:
        Neighbours of a row, rows, and vectors.
    """
    begin, read, line = cycles
    several = [
        (run, lines, vectors)
        for places, most in tiles
        for vectors in sorted({most, min(most, 2)})
        if vectors <= most_vectors and (vectors == 1 or (vectors - 1) * lanes < filters)
        for run in range(1, min(places, columns) + 1)
        for lines in range(1, min(places // run, rows) + 1)
    ]

    def cost(run: int, lines: int, vectors: int) -> int:
        number = -(-columns // run) * -(-rows // lines) * -(-filters // (vectors * lanes))
        sums, reads = run * lines * vectors, run * lines + vectors
        besides = begin + read * vectors + line * (lines - 1)
        return number * round(_UNIT * (max(sums / 2, reads / 2 + 1, 4) + besides))

    def far(tile: Triple) -> Pair:
        """How far from what is wanted, and the cost."""
        return sum(abs(a - b) for a, b in zip(wanted, tile, strict=True) if a), cost(*tile)

    return min(several, key=far)


@choice
def of_following_places(
    places: int,
    filters: int,
    tiles: tuple[Pair, ...],
    lanes: int,
    whole: bool,
    cycles: tuple[float, float],
    wanted: Pair,
) -> Pair:
    """The tile of places that follow each other by vectors of filters: the first that is about as fast as any.

    Args:
        places: of an image.
        filters: their number.
        tiles: places and vectors, the usual ones first; the last ones fit every image.
        lanes: of a vector.
        whole: with filters for all of a tile's vectors.
        cycles: of a step besides those of its sums: at its begin, and for each vector of filters.
        wanted: about what it should be; 0 for what does not matter.
    """
    begin, read = cycles

    def cost(tile: Pair) -> int:
        own, vectors = tile
        number = _covering(places, own) * _covering(filters, vectors * lanes)
        return number * round(_UNIT * (max(own * vectors / 2, (own + vectors) / 2 + 1, 4) + begin + read * vectors))

    def far(tile: Pair) -> int:
        return sum(abs(a - b) for a, b in zip(wanted, tile, strict=True) if a)

    fitting = [
        (own, vectors)
        for own, vectors in tiles
        if own <= max(places, 1) and (vectors == 1 or (vectors - 1 + whole) * lanes < filters + whole)
    ]
    least = min(map(far, fitting))
    near = [tile for tile in fitting if far(tile) == least]
    return _usual(near, cost)


@choice
def wastes_columns(columns: int, width: int) -> bool:
    """Whether vectors of a width would compute more than 3 % of the columns for nothing."""
    return 100 * _covering(columns, width) * width > 103 * columns


@choice
def places_together(columns: int, counts: tuple[int, ...]) -> int:
    """How many neighbours of a row are computed together: the first count that is about as fast as any."""
    fitting = [count for count in counts if count <= max(columns, 1)]
    return _usual(fitting, lambda count: 20 * _covering(columns, count) * (count + 1))


@choice
def rows_together(rows: int, heights: tuple[int, ...], taps: int) -> int:
    """How many rows are computed together, of filters with so many taps: the first height that is about as fast as any."""
    fitting = [height for height in heights if height <= max(rows, 1)]
    return _usual(fitting, lambda height: 20 * _covering(rows, height) * (height * taps + 4))
