"""The walk over a tensor's elements in order, which packs 32 elements at a time into the bits of a word."""

from __future__ import annotations

from typing import NamedTuple

from tvmdml.kernels.layout import collapse
from tvmdml.tensors import TensorDesc, packed_strides

WORD = 32
"""Elements per word."""
LEAST_PIECE = 4
"""The minimum number of elements that a thread reads at once."""
LEAST_NEAR = 8
"""The minimum number of contiguous elements for which gathering words pays off."""


class WordWalk(NamedTuple):
    """How words are made from the input's elements."""

    words: int
    piece: int
    """The number of elements that a thread reads at once."""
    rank: int
    numbers: dict[str, int | tuple[int, ...]]
    """Sizes and steps of what is walked: pieces, if each is in one row; otherwise elements, or rows to gather words from."""
    pieced: bool = False
    vector: bool = False
    """Pieces are whole, aligned vectors."""
    gathered: bool = False
    gaps: bool = False
    """A row's last word may have fewer elements, so that it does not extend beyond the row's end."""


def walk_of(source: TensorDesc, piece: int, gather: bool) -> WordWalk:
    """The walk over an input, in pieces of so many elements if they are in one row; ``gather``: words may be gathered."""
    sizes, (steps,) = collapse(source.sizes, source.layout)
    sizes, steps = sizes or (1,), steps or (1,)
    width, inner = sizes[-1], steps[-1]
    numbers: dict[str, int | tuple[int, ...]] = {"inner": inner}
    near = _near(sizes, steps) if gather else None
    if near is not None:
        # Rows are walked in their memory order, and have numbers of their own.
        rows, words_a_row = source.element_count // width, -(-width // WORD)
        order = [*range(near), *range(near + 1, len(sizes) - 1), near]
        numbers |= {"width": width, "rows": rows, "words_a_row": words_a_row}
        for name, values in (("walk_sizes", sizes), ("walk_steps", steps), ("row_numbers", packed_strides(sizes[:-1]))):
            numbers[name] = tuple(values[i] for i in order)
        return WordWalk(rows * words_a_row, piece, len(order), numbers, gathered=True, gaps=width % WORD != 0)
    pieced = len(sizes) == 1 or width % piece == 0
    vector = pieced and inner == 1 and all(step % piece == 0 for step in steps[:-1])
    if pieced:
        sizes, steps = (*sizes[:-1], -(-width // piece)), (*steps[:-1], piece * inner)
    numbers |= {"walk_sizes": sizes, "walk_steps": steps}
    return WordWalk(-(-source.element_count // WORD), piece, len(sizes), numbers, pieced, vector)


def _near(sizes: tuple[int, ...], steps: tuple[int, ...]) -> int | None:
    """The dimension that is contiguous in the input, if it is not the last one, whose elements form the words."""
    if steps[-1] == 1 or sizes[-1] < WORD:
        return None
    return next((i for i, step in enumerate(steps) if step == 1 and sizes[i] >= LEAST_NEAR), None)
