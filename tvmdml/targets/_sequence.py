"""Sequences: many launches that run in turn by one call, on arrays whose places are known beforehand.

The words, and the way through Python that every target with the host's memory can take.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple, Protocol

from tvmdml.errors import InvalidArgument, message
from tvmdml.targets._terms import Launch

if TYPE_CHECKING:
    from tvmdml.tensors.arrays import NumpyArray

SlotOffset = tuple[int, int]
"""Where an array begins: the number of a slot, and the offset in bytes from its start."""


class SequenceStep(NamedTuple):
    """One launch of a sequence."""

    launch: Launch
    """What the target's ``launch`` made."""
    places: tuple[SlotOffset, ...]
    """Where each of the launch's arrays begins, in order; then where each condition is, if there are any."""
    sizes: tuple[int, ...] = ()
    """The bytes of each of them. A device needs them where a place is not aligned: there it works on copies."""
    wanted: tuple[bool, ...] = ()
    """For each condition, whether its byte must be another one than 0. They are read in turn, before the launch: if one does not
    hold, the step is left out. Devices have no conditions.
    """

    def short(self) -> tuple[Any, ...]:
        """Without conditions, if there are none: so far as that, a C extension that is older takes it, too."""
        return self if self.wanted else self[:3]


class ReadySequence(Protocol):
    """A sequence that is ready to run. Any number of threads may call it at once, each with arrays of its own to write to.

    It is called with one array for each slot: an arena, constants, weights, inputs, outputs. Their types and shapes do not matter:
    each step finds its arrays by their places. The arrays are NumPy's, or the device's own. All else was checked before: that each
    launch has as many places as it takes arrays, that they are large and aligned enough, and do not overlap where they must not.

    Raises:
        ValueError: there are more or fewer arrays than slots, or one ends before the last place in it.
    """

    def __call__(self, arrays: Sequence[Any]) -> None:
        """Run all steps in order. A step that fails raises its error, and those after it do not run."""

    def timed(self, arrays: Sequence[Any]) -> tuple[int, ...]:
        """Run all steps, and return how many nanoseconds each of them took; -1 for those that were left out."""

    def bind(self, arrays: Sequence[Any]) -> Callable[[], None]:
        """Prepare repeated runs on these arrays: everything that can be done once is done now."""


def checked(steps: Sequence[SequenceStep], slots: int) -> tuple[SequenceStep, ...]:
    """The steps, all of whose places exist.

    Raises:
        InvalidArgument: a slot or an offset is impossible.
    """
    if slots < 0:
        raise InvalidArgument(message("slots of a sequence", slots, "0 or more"))
    for number, step in enumerate(steps):
        if len(step.wanted) > len(step.places):
            given, allowed = f"{len(step.wanted)} conditions", f"at most {len(step.places)}, one for each place"
            raise InvalidArgument(message(f"steps[{number}] of a sequence", given, allowed))
        if step.sizes and len(step.sizes) != len(step.places):
            given = f"{len(step.sizes)} sizes"
            raise InvalidArgument(
                message(f"steps[{number}] of a sequence", given, f"none, or {len(step.places)}, one for each place")
            )
        for slot, offset in step.places:
            if not 0 <= slot < slots or offset < 0:
                allowed = f"a slot below {slots}, and an offset of 0 or more"
                raise InvalidArgument(message(f"steps[{number}] of a sequence", f"the place {(slot, offset)}", allowed))
    return tuple(steps)


def farthest(steps: Sequence[SequenceStep], slots: int) -> tuple[int, ...]:
    """The largest offset in each slot."""
    found = [0] * slots
    for step in steps:
        for slot, offset in step.places:
            found[slot] = max(found[slot], offset)
    return tuple(found)


def check_arrays(arrays: Sequence[Any], most: Sequence[int]) -> None:
    """Refuse arrays that are too many, too few, or too short for the largest offset in each.

    Raises:
        InvalidArgument: they are.
    """
    if len(arrays) != len(most):
        raise InvalidArgument(message("arrays of a sequence", len(arrays), f"{len(most)}, one for each slot"))
    for number, (array, offset) in enumerate(zip(arrays, most, strict=True)):
        if offset and offset > _reach(array):
            given = f"an array that ends before byte {offset}"
            raise InvalidArgument(message(f"arrays[{number}] of a sequence", given, "a larger one"))


def _reach(array: Any) -> int:
    """The distance in bytes from an array's first byte to the beginning of its last element."""
    if 0 in array.shape:
        return 0
    return sum((n - 1) * max(stride, 0) for n, stride in zip(array.shape, array.strides, strict=True))


class InTurn:
    """A sequence whose launches Python calls one by one, on bytes in the host's memory."""

    def __init__(self, steps: Sequence[SequenceStep], slots: int) -> None:
        self._steps = checked(steps, slots)
        self._farthest = farthest(self._steps, slots)

    def __call__(self, arrays: Sequence[NumpyArray]) -> None:
        """Run all steps in order."""
        check_arrays(arrays, self._farthest)
        for step in self._steps:
            parts, holds = _found(step, arrays)
            if holds():
                step.launch(*parts)

    def timed(self, arrays: Sequence[NumpyArray]) -> tuple[int, ...]:
        """Run all steps, and return how many nanoseconds each of them took; -1 for those that were left out."""
        check_arrays(arrays, self._farthest)
        times = []
        for step in self._steps:
            parts, holds = _found(step, arrays)
            begin = time.perf_counter_ns()
            if runs := holds():
                step.launch(*parts)
            times.append(time.perf_counter_ns() - begin if runs else -1)
        return tuple(times)

    def bind(self, arrays: Sequence[NumpyArray]) -> Callable[[], None]:
        """A run on these arrays: the launches are bound to their places."""
        check_arrays(arrays, self._farthest)
        found = [(step.launch, *_found(step, arrays)) for step in self._steps]
        bound = [(launch.bind(*parts), holds) for launch, parts, holds in found]

        def run() -> None:
            for launch, holds in bound:
                if holds():
                    launch()

        return run


def _found(step: SequenceStep, arrays: Sequence[NumpyArray]) -> tuple[list[NumpyArray], Callable[[], bool]]:
    """The arrays of a launch, and whether its conditions hold."""
    parts = [_bytes_at(arrays[slot], offset) for slot, offset in step.places]
    count = len(parts) - len(step.wanted)
    pairs = list(zip(parts[count:], step.wanted, strict=True))
    return parts[:count], lambda: all(bool(part[0]) is wanted for part, wanted in pairs)


class _Bytes:
    """The bytes from a place in an array to its end, in the form that NumPy makes an array of. It keeps the array alive."""

    def __init__(self, array: NumpyArray, offset: int) -> None:
        size = max(_reach(array) + array.itemsize - offset, 1)
        address = array.__array_interface__["data"][0] + offset
        self._array = array
        self.__array_interface__ = {"data": (address, False), "shape": (size,), "typestr": "|u1", "version": 3}


def _bytes_at(array: NumpyArray, offset: int) -> NumpyArray:
    """An array of bytes that begins at a place. It counts as writable: inputs may be read-only, and kernels only read them."""
    import numpy as np

    return np.asarray(_Bytes(array, offset))
