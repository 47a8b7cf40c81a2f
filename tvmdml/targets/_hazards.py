"""Which steps of a sequence must wait for those before them; the others may run at the same time, where the device can."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import NamedTuple

_MOST = 64
"""The most accesses that a step is compared with: after so many, it waits."""


class Access(NamedTuple):
    """What a step does to a range of bytes."""

    memory: int
    """The identity of the memory."""
    begin: int
    end: int
    written: bool

    def meets(self, other: Access) -> bool:
        """Whether the order of the two matters."""
        return self.memory == other.memory and self.begin < other.end and other.begin < self.end and (self.written or other.written)


def waiting(steps: Iterable[tuple[Sequence[Access], int]]) -> list[bool]:
    """For each launch of each step, whether it must wait for all launches before it.

    Args:
        steps: what each step accesses, and of how many launches it consists. Those of one step wait for each other.
    """
    found: list[bool] = []
    since: list[Access] = []  # the accesses that the next launch may run at the same time as
    for accesses, launches in steps:
        if not launches:
            continue
        waits = len(since) + len(accesses) > _MOST or any(one.meets(other) for one in accesses for other in since)
        found += [waits] + [True] * (launches - 1)
        if waits or launches > 1:
            since = []
        since += accesses
    return found
