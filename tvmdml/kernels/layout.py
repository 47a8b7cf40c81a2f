"""The common iteration space of several tensors, in its simplest equivalent form."""

from __future__ import annotations

Strides = tuple[int, ...]


def collapse(sizes: tuple[int, ...], *tensors: Strides, reorder: bool = False) -> tuple[tuple[int, ...], tuple[Strides, ...]]:
    """Drop dimensions of size 1, and merge adjacent dimensions that every tensor can step over as one.

    Args:
        sizes: the common sizes.
        tensors: the strides of each tensor, in elements.
        reorder: also sort the dimensions by the last tensor's strides, largest first: for operators that treat every element alike,
            so that a transposed pair becomes a packed one.

    Returns:
        The new sizes and each tensor's strides for them. They are empty if there is only one element.
    """
    dims = [(n, tuple(t[i] for t in tensors)) for i, n in enumerate(sizes) if n != 1]
    if reorder:
        dims.sort(key=lambda dim: tuple(reversed(dim[1])), reverse=True)
    merged: list[tuple[int, Strides]] = []
    for size, steps in dims:
        if merged and all(outer == size * inner for outer, inner in zip(merged[-1][1], steps, strict=True)):
            merged[-1] = (merged[-1][0] * size, steps)
        else:
            merged.append((size, steps))
    return tuple(n for n, _ in merged), tuple(tuple(steps[t] for _, steps in merged) for t in range(len(tensors)))


def without(axis: int, values: tuple[int, ...]) -> tuple[int, ...]:
    """Sizes or strides but for those of one dimension."""
    return values[:axis] + values[axis + 1 :]
