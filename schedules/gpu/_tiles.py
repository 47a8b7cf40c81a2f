"""Elements that are neighbours in one dimension where they come from and in another where they go, moved by way of shared memory.

A group reads a square along the one and writes it along the other: threads side by side always touch elements side by side.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from tvmdml import tensorir as T
from tvmdml.schedules.gpu import Numbers, strided
from tvmdml.schedules.gpu._words import unravel

SIDE = 32
"""Elements along a side."""
ROWS = 8
"""Rows of a square that a group moves at once."""
THREADS = SIDE * ROWS
LEAST = 8
"""Elements that a dimension has at least, for tiles to pay."""
_PITCH = SIDE + 1  # threads that read a column meet no bank of the memory twice


def crossing(sizes: Sequence[int], steps_in: Sequence[int], steps_out: Sequence[int]) -> int | None:
    """The dimension whose elements are neighbours in the input, where those of the last are so in the output alone."""
    if steps_out[-1] != 1 or steps_in[-1] == 1 or sizes[-1] < LEAST:
        return None
    return next((i for i, size in enumerate(sizes[:-1]) if steps_in[i] == 1 and size >= LEAST), None)


def count(sizes: Sequence[int]) -> int:
    """How many squares there are; the last two dimensions are cut."""
    total = 1
    for size in (*sizes[:-2], -(-sizes[-2] // SIDE), -(-sizes[-1] // SIDE)):
        total *= size
    return total


def move(
    groups: Any,
    numbers: Numbers,
    sizes: Sequence[Any],
    dtypes: Sequence[str],
    read: Callable[[list[Any]], Sequence[Any]],
    write: Callable[[list[Any], Sequence[Any]], None],
) -> None:
    """The launch. ``read`` gives what an element becomes, by its coordinates, in as many parts as ``dtypes``; ``write`` gets them.

    Elements are read side by side along the last dimension but one, and written side by side along the last.
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
