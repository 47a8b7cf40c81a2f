"""Schedules for GPUs, written once for all of them: what differs is read from the target.

A kernel is a function of one or more launches, each of groups of threads. Sizes, strides and counts are given to it at launch, so
that one kernel serves a class of shapes, in 32 bits wherever they fit.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from contextlib import contextmanager
from types import SimpleNamespace
from typing import Any

from tvmdml import tensorir as T
from tvmdml.targets._device import DeviceTarget

_NARROW = 1 << 30
"""Offsets below this are counted in 32 bits: adding a whole grid's step to one does not overflow."""
_PUSH_BYTES = 128
"""What every Vulkan device has for the integers of a launch."""
VECTOR_BYTES = 16
"""What a thread loads and stores at once."""


class Numbers:
    """A kernel's integers by name, single or in rows: passed at launch, or, where they are too many for that, part of the code.

    ``span`` is the largest offset or count that is computed from them.
    """

    def __init__(self, span: int, **values: int | tuple[int, ...]) -> None:
        self.dtype = "int32" if span < _NARROW else "int64"
        """The type that they have, and all that is computed from them."""
        self._values = values
        count = sum(len(value) if isinstance(value, tuple) else 1 for value in values.values())
        self._passed = count * (4 if self.dtype == "int32" else 8) <= _PUSH_BYTES
        self.parameters: tuple[tuple[str, Any], ...] = (("counted in", self.dtype),)
        if not self._passed:
            self.parameters += tuple(values.items())
        self.scalars = tuple(self._flat()) if self._passed else ()
        """What is passed at launch."""

    def declare(self, f: T.Function) -> Any:
        """The integers as TensorIR, by name; declares the function's last parameters."""
        found = SimpleNamespace()
        for name, value in self._values.items():
            if isinstance(value, tuple):
                own: Any = [self._one(f, f"{name}{i}", one) for i, one in enumerate(value)]
            else:
                own = self._one(f, name, value)
            setattr(found, name, own)
        return found

    def const(self, value: int) -> Any:
        """A constant of their type."""
        return T.const(value, self.dtype)

    def _one(self, f: T.Function, name: str, value: int) -> Any:
        return f.scalar(name, self.dtype) if self._passed else self.const(value)

    def _flat(self) -> Iterator[int]:
        for value in self._values.values():
            yield from value if isinstance(value, tuple) else (value,)


def groups_for(items: int, threads: int, target: DeviceTarget, most: int | None = None) -> int:
    """How many groups to launch for so many threads' work: no more than keep the device busy, for each strides over the rest."""
    return max(1, min(math.ceil(items / threads), target.max_groups, target.tasks() if most is None else most))


def position(group: Any, thread: Any, threads: int, dtype: str) -> Any:
    """The number of a thread among those of all groups."""
    return T.let(T.cast(group, dtype) * T.const(threads, dtype) + T.cast(thread, dtype))


@contextmanager
def strided(first: Any, total: Any, step: Any) -> Iterator[Any]:
    """The statements run for ``first``, ``first + step`` … below ``total``."""
    at = T.Variable(T.type_of(first), first)
    with T.loop_while(at.value < total):
        index = T.let(at.value)
        yield index
        at.set(index + step)
