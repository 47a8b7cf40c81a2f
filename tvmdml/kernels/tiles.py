"""Which of several register tiles computes least for nothing, and how work is divided: choices that follow from sizes alone.

They stand apart from the schedules that ask them: a plan of the cache asks them for a size that is new, and imports no schedule.
"""

from __future__ import annotations

import math

from tvmdml.sizes import choice

Pair = tuple[int, int]
Triple = tuple[int, int, int]

_OF_PRODUCTS = {
    16: ((12, 2), (8, 3), (6, 4), (13, 2), (10, 2), (7, 3), (7, 2)),
    8: ((6, 2), (4, 3)),
    4: ((4, 2),),
    0: ((8, 3), (6, 4)),
}
"""Rows and vectors by the lanes of float32, the usual ones first; without x86 there are 32 registers, and sums may be in 24."""


@choice
def of_product(rows: int, columns: int, lanes: int, wanted: str, x86: bool, short: bool) -> Triple:
    """The tile that leaves the fewest rows and columns for nothing; the usual one if that is about as good.

    Args:
        rows: of the result.
        columns: the same.
        lanes: of a register.
        wanted: a tile's name, or ``auto``.
        x86: whether registers are those of x86.
        short: whether the last vector of a tile may begin within the one before, where there are fewer columns than a tile has.

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
    fitting = [(mr, min(vectors, most)) for mr, vectors in known]
    smaller = [(size, vectors) for mr, vectors in fitting for size in (1, 2, 4, 6, 8) if size < mr and size >= rows]
    unit = math.lcm(*(8 * mr * vectors for mr, vectors in (*fitting, *smaller)))

    def cost(tile: Pair) -> int:
        """The products that are computed, and what each costs beside, in whole numbers."""
        mr, vectors = tile
        nr = vectors * lanes
        done = -(-rows // mr) * mr * -(-columns // nr) * nr
        return done * (unit + (8 + mr + vectors) * unit // (8 * mr * vectors))

    mr, vectors = min((*fitting, *smaller), key=cost)
    return mr, vectors, lanes


PACKED, READ = 24, 4
"""What a line of a factor costs a task, in products of each of its places: where it is packed, or comes from another processor; and
where it is packed already and small, so that each task may read all of it. A network's kernels then divide places alike, and most
of what a task reads was written by the same processor."""


@choice
def parts_of_product(batch: int, rows: int, columns: int, widths: Pair, tasks: int, weights: Pair = (PACKED, PACKED)) -> Pair:
    """Into how many parts rows and columns are divided, so that all tasks are busy and little is packed twice."""
    if tasks <= 1 or batch >= 4 * tasks or batch % tasks == 0:
        return 1, 1
    sizes = rows, columns
    most = [max(1, size // width) for size, width in zip(sizes, widths, strict=True)]

    def cost(parts: Pair) -> int:
        units = batch * parts[0] * parts[1]
        rounds = -(-units // tasks)
        own = [
            size if count == 1 else _covering(_covering(size, width), count) * width
            for size, width, count in zip(sizes, widths, parts, strict=True)
        ]
        return rounds * (own[0] * own[1] + sum(weight * lines for weight, lines in zip(weights, own, strict=True)))

    some = [
        (r, c) for r in range(1, min(most[0], 2 * tasks) + 1) for c in range(1, min(most[1], 2 * tasks) + 1) if r * c <= 4 * tasks
    ]
    return min(some, key=cost)


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
    whole: bool,
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
        whole: with filters for all of a tile's vectors.
        cycles: of a step besides those of its sums: at its begin, for each vector of filters, and for each row but the first.
        wanted: about what it should be; 0 for what does not matter.

    Returns:
        Neighbours of a row, rows, and vectors.
    """
    begin, read, line = cycles
    several = [
        (run, lines, vectors)
        for places, most in tiles
        for vectors in {most, min(most, 2)}
        if vectors <= most_vectors and (vectors == 1 or (vectors - 1 + whole) * lanes < filters + whole)
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
def wastes_columns(columns: int, width: int) -> bool:
    """Whether vectors of a width would compute more than 3 % of the columns for nothing."""
    return 100 * _covering(columns, width) * width > 103 * columns


@choice
def run_of_places(columns: int, few: int, most: int) -> int:
    """How many neighbours of a row are computed together, of some: so many that the fewest are for nothing."""
    fitting = range(min(few, columns), min(most, columns) + 1)
    return min(fitting, key=lambda count: (-(-columns // count) * count, -count))
