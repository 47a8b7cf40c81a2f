"""Many launches by one call: the words, and the way that every target can use."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import numpy as np

from tvmdml.targets._terms import Launch


class Step(NamedTuple):
    """One launch of a sequence."""

    launch: Launch
    places: tuple[tuple[int, int], ...]
    """For each array of the launch: its slot, and the byte where it begins."""


class PlainSequence:
    """Launches one by one."""

    def __init__(self, steps: Sequence[Step], slots: int) -> None:
        self._steps, self._slots = steps, slots

    def __call__(self, arrays: Sequence[Any]) -> None:
        """Run on these arrays, one for each slot."""
        for step in self._steps:
            step.launch(*(_at(arrays[slot], offset) for slot, offset in step.places))

    def timed(self, arrays: Sequence[Any]) -> tuple[int, ...]:
        """Run, and return the nanoseconds of each step."""
        found = []
        for step in self._steps:
            given = [_at(arrays[slot], offset) for slot, offset in step.places]
            start = time.perf_counter_ns()
            step.launch(*given)
            found.append(time.perf_counter_ns() - start)
        return tuple(found)

    def bind(self, arrays: Sequence[Any]) -> Callable[[], None]:
        """A function that runs on these arrays."""
        return lambda: self(arrays)


def _at(array: Any, offset: int) -> Any:
    if isinstance(array, np.ndarray):
        return np.lib.stride_tricks.as_strided(array, (1,), (1,)) if not offset else array.reshape(-1).view(np.uint8)[offset:]
    return type(array)(array.target, array.memory, array.offset + offset, (1,), np.dtype(np.uint8))
