"""The types that all of tuning shares. Nothing here imports the compiler, or NumPy."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any, NamedTuple

from tvmdml.targets import Machine as Machine
from tvmdml.targets._terms import Value

Knobs = Mapping[str, Value]
"""Values of an operator's knobs, by name; knobs that are not named have their defaults."""
ShapeClass = Mapping[str, "int | str"]
"""A class of shapes that the same knobs suit: sizes as the nearest power of two, and words."""


class Job(NamedTuple):
    """An operation to tune on a target."""

    line: Mapping[str, Any]
    """The descriptor, as written by ``tvmdml.library.lines``."""
    in_place: bool | str
    """The pairs of tensors in the same memory, in the form of ``operators._shared``."""
    target: str
    """The target's name."""


class Outcome(NamedTuple):
    """The measurement of a candidate. Seconds are medians of a call, and the geometric mean over the inputs of a job."""

    seconds: float = math.inf
    default: float = math.inf
    """The defaults' time, measured in turns with the candidate's."""
    spread: float = 0.0
    """Half of the distance between the 10th and 90th percentiles, as a fraction of the median."""
    worst: float = 0.0
    """The smallest of the inputs' ratios (default over candidate): the candidate's worst case."""
    problem: str = ""
    """Why there is no time: the candidate does not compile, gives a wrong result, crashed, or hung."""
    noise: float = 0.0
    """By how much ``ratio`` differs from one part of the measurement to the next (``noise_of``): less is no gain."""

    @property
    def ratio(self) -> float:
        """How many times as fast as the defaults; 0 if there is no time."""
        return 0.0 if self.problem or not math.isfinite(self.seconds) else self.default / self.seconds


class Trial(NamedTuple):
    """A candidate, and its outcome."""

    knobs: Knobs
    outcome: Outcome


class Record(NamedTuple):
    """A line of a log: the winner for a shape class on a kind of machine."""

    operator: str
    """The operator's module; its schedules and knobs have the same name: ``top_k``."""
    machine: Machine
    types: Mapping[str, str]
    """The data types of the tensors that are present, by DirectML's field name."""
    shape_class: ShapeClass
    knobs: Knobs
    """The winning knobs; empty if nothing was faster than the defaults."""
    seconds: float
    """The winner's median time of a call, and its spread (see ``Outcome``)."""
    spread: float
    default_seconds: float
    """The defaults' time in the same run."""
    trials: int
    """The number of candidates that were measured."""
    versions: Mapping[str, str]
    """The versions of tvmdml and TVM, and the stamp of the schedules (``schedules``)."""
    date: str
    """The time of the record, in UTC: ``2026-11-22T03:14:15+00:00``."""
    measured: Mapping[str, Any]
    """The operation that was measured: a line as in ``tvmdml.library.lines``, ``in_place`` included."""

    @property
    def ratio(self) -> float:
        """How many times as fast as the defaults."""
        return self.default_seconds / self.seconds


class Tuned(NamedTuple):
    """The result of a job."""

    job: Job
    machine: Machine
    record: Record
    trials: tuple[Trial, ...]
    """All measured trials, in order; those of earlier, interrupted runs first."""
