"""``Case``: a piece of work with its goal. The files of ``rows`` have the cases.

A goal is how many times as fast as the best peer tvmdml must be. Cases with a baseline compare with other work of tvmdml itself:
there 0.33 means "within three times". Another kind of goal is a share of what the machine allows. A group of cases may have a goal
of its own, for the geometric mean of its cases.
"""

from __future__ import annotations

import dataclasses
from typing import NamedTuple

from tvmdml.proof.bench.work import Work

K, M = 1 << 10, 1 << 20

WITHIN_3 = 0.33
"""The goal for cases that may take up to three times as long as their baseline."""
MOVES = 0.9
"""Goal on a device: the share of the rate at which it copies or writes memory."""
LAUNCH = 1 / 1.2
"""Goal on a device: within 1.2 times the launch of an empty kernel."""


class Group(NamedTuple):
    """Cases whose geometric mean is reported."""

    name: str
    goal: float | None = None
    """What the geometric mean must be; cases of such a group need no goals of their own."""


@dataclasses.dataclass(frozen=True)
class Case:
    """A row of the table."""

    row: str
    """The row of the goals that the case belongs to."""
    point: str
    """Which of the row's figures it is."""
    work: Work
    goal: float | None = None
    """How many times as fast as the best peer, or as the baseline, tvmdml must be."""
    quick: bool = False
    """Whether the case is in the quick set."""
    rivals: tuple[str, ...] = ()
    """Names of the peers that the goal applies to; empty for all."""
    baseline: Work | None = None
    """The baseline to compare with instead of peers."""
    threads: int | None = None
    """The most threads that every library may use; ``None`` for all."""
    share: float | None = None
    """Another kind of goal: the share of what the machine allows."""
    group: Group | None = None
    """The group that the case is counted in, if it is compared with peers."""

    @property
    def name(self) -> str:
        """The name that results are stored under."""
        return f"{self.row}: {self.point}"

    def at_most(self, size: int) -> Case:
        """The same case with dimensions limited to a size."""
        baseline = self.baseline and self.baseline.at_most(size)
        return dataclasses.replace(self, work=self.work.at_most(size), baseline=baseline)


def strided(point: str, work: Work, layout: str, goal: float = WITHIN_3, quick: bool = False) -> Case:
    """A case in which the first tensor has gaps, or its dimensions in another order in memory, against the same work packed."""
    return Case("strided", point, work.with_first(layout=layout), goal, quick or layout == "padded", baseline=work)
