"""The words that all of tuning shares. Nothing here imports the compiler, or NumPy."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any, NamedTuple

from tvmdml.knobs import Value

Knobs = Mapping[str, Value]
"""Values of an operator's knobs, by name; what is not named has its default."""
ShapeClass = Mapping[str, "int | str"]
"""What shapes have in common that the same knobs suit: sizes, as the power of two that each is nearest to, and words."""


class Machine(NamedTuple):
    """A kind of machine: what winners hold for."""

    target: str
    """What kernels are compiled for, written out: ``cpu:x86-64-v4+gfni``, ``cuda:sm_90``, ``vulkan``."""
    processor: str
    """Whose it is: the maker, family and model of a processor, or the name of a device."""
    threads: int
    """Threads of a processor that take part; 0 for a device."""


class Job(NamedTuple):
    """What is tuned: an operation on a target."""

    line: Mapping[str, Any]
    """The descriptor, as ``tvmdml.packs.lines`` writes it."""
    in_place: bool
    target: str
    """The target's name."""


class Outcome(NamedTuple):
    """What came of measuring a candidate. Seconds are medians of a call, and the geometric mean over the inputs of a job."""

    seconds: float = math.inf
    default: float = math.inf
    """The defaults' time, taken turn by turn with the candidate's."""
    spread: float = 0.0
    """Half of what lies between the 10th and 90th percentile, as a share of the median."""
    worst: float = 0.0
    """The least of the inputs' ratios (default over candidate): how it does where it does worst."""
    problem: str = ""
    """Why there is no time: it does not compile, gives a wrong result, crashed, hung."""

    @property
    def ratio(self) -> float:
        """How many times as fast as the defaults; 0 where there is no time."""
        return 0.0 if self.problem or not math.isfinite(self.seconds) else self.default / self.seconds


class Trial(NamedTuple):
    """A candidate, and what came of it."""

    knobs: Knobs
    outcome: Outcome


class Record(NamedTuple):
    """A line of a log: what won for a shape class on a kind of machine."""

    operator: str
    """The operator's module, whose name its schedules and knobs share: ``top_k``."""
    machine: Machine
    types: Mapping[str, str]
    """Data types of the tensors that are there, by DirectML's name of the field."""
    shape_class: ShapeClass
    knobs: Knobs
    """What won; empty where nothing was faster than the defaults."""
    seconds: float
    """The winner's median time of a call, and its spread (see ``Outcome``)."""
    spread: float
    default_seconds: float
    """The defaults' time on the same run."""
    trials: int
    """How many candidates were measured."""
    versions: Mapping[str, str]
    """Of tvmdml, TVM, and the stamp of the schedules (``schedules``)."""
    date: str
    """When, in UTC: ``2026-11-22T03:14:15+00:00``."""
    measured: Mapping[str, Any]
    """The operation that was measured: a line as ``tvmdml.packs.lines`` has it, ``in_place`` included."""

    @property
    def ratio(self) -> float:
        """How many times as fast as the defaults."""
        return self.default_seconds / self.seconds


class Tuned(NamedTuple):
    """What came of a job."""

    job: Job
    machine: Machine
    record: Record
    trials: tuple[Trial, ...]
    """All that were measured, in order; those of earlier, interrupted runs first."""
