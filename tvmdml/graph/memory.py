"""A place for each intermediate result in one piece of memory, so that results that are alive at the same time do not meet."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

from tvmdml.tensors.sizes import hint

ALIGNMENT = 256
"""Places start at multiples of this many bytes: of every device's alignment, and of cache lines."""


class Lifetime(NamedTuple):
    """How long a piece of memory is needed."""

    size: int
    """Bytes."""
    first: int
    """The step that writes it."""
    last: int
    """The last step that reads it."""


def supports(lifetimes: Sequence[Lifetime], offsets: Sequence[int]) -> list[tuple[int, list[int]]]:
    """Each piece, in an order in which it comes after those that it lies on: those below that are alive at the same time.

    Pieces of other sizes, each behind all that it lies on, do not meet either.
    """
    order = sorted(range(len(lifetimes)), key=lambda i: offsets[i])
    found = []
    for k, i in enumerate(order):
        own = lifetimes[i]
        found.append((i, [j for j in order[:k] if lifetimes[j].first <= own.last and lifetimes[j].last >= own.first]))
    return found


def stacked(order: Sequence[tuple[int, Sequence[int]]], sizes: Sequence[int]) -> tuple[list[int], int]:
    """The places of pieces of these sizes, and the bytes in all, by what each lies on (``supports``)."""
    offsets, ends, most = [0] * len(sizes), [0] * len(sizes), 0
    for i, below in order:
        at = offsets[i] = max((ends[j] for j in below), default=0)
        end = ends[i] = at + -(-sizes[i] // ALIGNMENT) * ALIGNMENT
        most = max(most, end)
    return offsets, most


class ArenaPlaces(NamedTuple):
    """The plan."""

    offsets: tuple[int, ...]
    """The place of each piece."""
    size: int
    """The bytes in all."""
    bound: int
    """No plan needs fewer bytes: the most that are alive at one step."""


def planned(lifetimes: Sequence[Lifetime]) -> ArenaPlaces:
    """Places for all, the largest first, each in the tightest gap among those that are alive at the same time."""
    count = len(lifetimes)
    sizes = np.array([-(-hint(one.size) // ALIGNMENT) * ALIGNMENT for one in lifetimes], np.int64)
    first = np.array([one.first for one in lifetimes], np.int64)
    last = np.array([one.last for one in lifetimes], np.int64)
    offsets = np.zeros(count, np.int64)
    order = sorted(range(count), key=lambda i: (-int(sizes[i]), int(first[i])))
    placed = np.zeros(count, np.int64)  # those that have a place, in the order of their places
    for k, i in enumerate(order):
        before = placed[:k]
        meets = before[(first[before] <= last[i]) & (last[before] >= first[i])]
        offsets[i] = _gap(offsets[meets], sizes[meets], int(sizes[i]))
        at = int(np.searchsorted(offsets[before], offsets[i], side="right"))
        placed[at + 1 : k + 1] = placed[at:k].copy()
        placed[at] = i
    ends = offsets + sizes
    return ArenaPlaces(tuple(map(int, offsets)), int(ends.max(initial=0)), int(bytes_alive(lifetimes).max(initial=0)))


def _gap(starts: np.ndarray, sizes: np.ndarray, size: int) -> int:
    """The place of the smallest gap of at least a size, between pieces in the order of their places."""
    if not len(starts):
        return 0
    ends = np.maximum.accumulate(starts + sizes)
    gaps = starts - np.concatenate(([0], ends[:-1]))
    fits = np.flatnonzero(gaps >= size)
    if not len(fits):
        return int(ends[-1])
    best = int(fits[np.argmin(gaps[fits])])
    return int(ends[best - 1]) if best else 0


def bytes_alive(lifetimes: Sequence[Lifetime]) -> np.ndarray:
    """The bytes that are needed at each step, until the last one that needs any."""
    sizes = np.array([-(-hint(one.size) // ALIGNMENT) * ALIGNMENT for one in lifetimes], np.int64)
    change = np.zeros(max((one.last for one in lifetimes), default=-2) + 2, np.int64)
    np.add.at(change, [one.first for one in lifetimes], sizes)
    np.add.at(change, [one.last + 1 for one in lifetimes], -sizes)
    return change.cumsum()[:-1]
