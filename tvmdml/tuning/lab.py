"""Where candidates are tried: here, in processes of their own. (``fleet.Fleet`` is the other place.)"""

from __future__ import annotations

import os
import time
from collections.abc import Iterator, Sequence
from types import TracebackType
from typing import Protocol

from tvmdml.targets import Target
from tvmdml.tuning import session, trials
from tvmdml.tuning.terms import Job, Knobs, Machine, Outcome
from tvmdml.tuning.workers import Failure, Workers

_COMPILE_TIMEOUT = 120.0
_PREPARE_TIMEOUT = 600.0
_MEASURE_TIMEOUT = 30.0
_CONFIRM_TIMEOUT = 300.0
"""Seconds. A job is prepared once: its inputs are made, and NumPy's reference is worked out for each."""
_LEAST_TIMEOUT = 4.0
_PATIENCE = 20
"""How many times as long as the slowest good trial another may take: algorithms differ by more than any patience."""
_CANDIDATE_BYTES = "512M"
"""What kernels of candidates may take on disk."""


class Lab(Protocol):
    """A place to try candidates."""

    @property
    def batch(self) -> int:
        """How many to give it at once."""

    def __enter__(self) -> Lab:
        """Make it ready."""

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        """Leave nothing running."""

    def target(self, target: Target) -> Target:
        """The target that schedules are to decide for: that which is there."""

    def machine(self, target: Target) -> Machine:
        """What winners will hold for."""

    def measure(self, job: Job, candidates: Sequence[Knobs], thorough: bool = False) -> Iterator[tuple[int, Outcome]]:
        """Compile, check and time candidates; each one's place and outcome, as they are there."""


class LocalLab:
    """This machine. Candidates compile on all processors, and are then timed one by one, with nothing beside them."""

    batch = 8

    def __init__(self) -> None:
        environment = {"TVMDML_CACHE_DIR": str(session.folder()), "TVMDML_CACHE_SIZE": _CANDIDATE_BYTES, "TVMDML_PACKS": ""}
        self._compilers = Workers(_processors(), environment, _COMPILE_TIMEOUT)
        self._stand = Workers(1, environment, _MEASURE_TIMEOUT)
        self._prepared: tuple[Job, str] | None = None
        self._longest = 0.0

    def __enter__(self) -> LocalLab:
        """Start the processes."""
        self._compilers.__enter__()
        self._stand.__enter__()
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        """End them."""
        self._compilers.__exit__(kind, error, trace)
        self._stand.__exit__(kind, error, trace)

    def target(self, target: Target) -> Target:
        """The same."""
        return target

    def machine(self, target: Target) -> Machine:
        """This machine, as the target's."""
        return target.machine()

    def measure(self, job: Job, candidates: Sequence[Knobs], thorough: bool = False) -> Iterator[tuple[int, Outcome]]:
        """Compile them all, then time one after the other; or, to be thorough, all in turn."""
        if problem := self._prepare(job):
            yield from ((i, Outcome(problem=problem)) for i in range(len(candidates)))
            return
        fine = []
        for i, found in self._compilers.map(trials.compile_candidate, [(job, knobs) for knobs in candidates]):
            if problem := found.problem if isinstance(found, Failure) else found:
                yield i, Outcome(problem=problem)
            else:
                fine.append(i)
        fine.sort()
        if thorough:
            yield from self._confirm(job, candidates, fine)
            return
        for i in fine:
            yield i, self._measure(job, candidates[i])

    def _measure(self, job: Job, knobs: Knobs) -> Outcome:
        timeout = max(_LEAST_TIMEOUT, _PATIENCE * self._longest) if self._longest else _MEASURE_TIMEOUT
        start = time.monotonic()
        ((_, found),) = self._stand.map(trials.measure, [(job, knobs, trials.TRIAL)], timeout, trials.is_spoiled)
        if isinstance(found, Failure):
            return Outcome(problem=found.problem)
        if found.ratio > 1 / trials.CUT:
            self._longest = max(self._longest, time.monotonic() - start)
        return found

    def _prepare(self, job: Job) -> str:
        """Have the job ready wherever it is measured; says why it cannot be."""
        if self._prepared is None or self._prepared[0] != job:
            # Compiled beforehand, the defaults are found on disk, and who measures need not load a compiler.
            answers = [found for _, found in self._compilers.map(trials.compile_candidate, [(job, {})])]
            if not any(answers):
                answers = self._stand.everywhere(trials.prepare, job, timeout=_PREPARE_TIMEOUT)
            problems = [one.problem if isinstance(one, Failure) else one for one in answers]
            self._prepared, self._longest = (job, next(filter(None, problems), "")), 0.0
        return self._prepared[1]

    def _confirm(self, job: Job, candidates: Sequence[Knobs], fine: list[int]) -> Iterator[tuple[int, Outcome]]:
        if not fine:
            return
        call = (job, [candidates[i] for i in fine], trials.FINAL)
        ((_, found),) = self._stand.map(trials.confirm, [call], _CONFIRM_TIMEOUT, lambda found: any(map(trials.is_spoiled, found)))
        if not isinstance(found, Failure):
            yield from zip(fine, found, strict=True)
        elif len(fine) == 1:
            yield fine[0], Outcome(problem=found.problem)
        else:  # one of them may be to blame
            for i in fine:
                yield from self._confirm(job, candidates, [i])


def _processors() -> int:
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
