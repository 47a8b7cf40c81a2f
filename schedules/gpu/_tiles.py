"""Transposed copies through shared memory: elements are neighbours in one dimension of the input and in another of the output.

A group reads a square tile along one dimension and writes it along the other, so memory accesses are coalesced on both sides.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import Any

from tvmdml.kernels import tensorir as T
from tvmdml.schedules.gpu import Numbers, strided
from tvmdml.schedules.gpu._words import unravel

SIDE = 32
"""The side of a tile, in elements."""
ROWS = 8
"""The rows of a tile that a group moves at once."""
THREADS = SIDE * ROWS
LEAST = 8
"""The minimum size of a dimension for which tiles pay off."""
_PITCH = SIDE + 1  # threads that read a column have no bank conflicts


def crossing(sizes: Sequence[int], steps_in: Sequence[int], steps_out: Sequence[int]) -> int | None:
    """The dimension that is contiguous in the input, if the last dimension is contiguous in the output only."""
    if steps_out[-1] != 1 or steps_in[-1] == 1 or sizes[-1] < LEAST:
        return None
    return next((i for i, size in enumerate(sizes[:-1]) if steps_in[i] == 1 and size >= LEAST), None)


def count(sizes: Sequence[int]) -> int:
    """The number of tiles; the last two dimensions are tiled."""
    total = 1
    for size in (*sizes[:-2], -(-sizes[-2] // SIDE), -(-sizes[-1] // SIDE)):
        total *= size
    return total


def bytes_of(itemsizes: Iterable[int]) -> int:
    """The shared memory that tiles of these elements take."""
    return sum(SIDE * _PITCH * itemsize for itemsize in itemsizes)


def move(
    groups: Any,
    numbers: Numbers,
    sizes: Sequence[Any],
    dtypes: Sequence[str],
    read: Callable[[list[Any]], Sequence[Any]],
    write: Callable[[list[Any], Sequence[Any]], None],
) -> None:
    """The launch. ``read`` computes an element by its coordinates, in as many parts as ``dtypes``; ``write`` stores the parts.

    Neighbouring threads read along the second to last dimension, and write along the last.
    """
    dtype = numbers.dtype

    def squares(size: Any) -> Any:
        return T.truncdiv(size + (SIDE - 1), numbers.const(SIDE))

    with T.launch(groups, THREADS) as (group, thread):
        kept = [T.shared(part, SIDE * _PITCH) for part in dtypes]
        outer = [*sizes[:-2], squares(sizes[-2]), squares(sizes[-1])]
        total = outer[0]
        for size in outer[1:]:
            total = total * size
        along, across = T.let(thread & (SIDE - 1)), T.let(thread >> (SIDE.bit_length() - 1))
        with strided(T.cast(group, dtype), T.let(total), groups) as square:
            *at, above, left = [T.let(T.cast(c, dtype)) for c in unravel(square, outer)]
            with T.loop(T.const(SIDE // ROWS, "int32")) as turn:
                x = T.let(turn * ROWS + across)
                place = [*at, T.let(above * SIDE + T.cast(along, dtype)), T.let(left * SIDE + T.cast(x, dtype))]
                with T.when((place[-2] < sizes[-2]) & (place[-1] < sizes[-1])):
                    for buffer, value in zip(kept, read(place), strict=True):
                        T.store(buffer, x * _PITCH + along, value)
            T.barrier()
            with T.loop(T.const(SIDE // ROWS, "int32")) as turn:
                y = T.let(turn * ROWS + across)
                place = [*at, T.let(above * SIDE + T.cast(y, dtype)), T.let(left * SIDE + T.cast(along, dtype))]
                with T.when((place[-2] < sizes[-2]) & (place[-1] < sizes[-1])):
                    write(place, [buffer[along * _PITCH + y] for buffer in kept])
            T.barrier()
