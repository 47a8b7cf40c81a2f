"""The place where candidates are tried: this machine, in separate processes. (``fleet.Fleet`` is the other place.)"""

from __future__ import annotations

import os
import time
from collections.abc import Iterator, Sequence
from types import TracebackType
from typing import Protocol

from tvmdml.library.log_terms import Job, Knobs, Machine, Outcome
from tvmdml.system.workers import Failure, Workers
from tvmdml.targets import Target
from tvmdml.tuning import session, trials

_COMPILE_TIMEOUT = 120.0
_PREPARE_TIMEOUT = 600.0
_MEASURE_TIMEOUT = 30.0
_CONFIRM_TIMEOUT = 300.0
"""In seconds. A job is prepared once: its inputs are made, and NumPy's reference is computed for each."""
_LEAST_TIMEOUT = 4.0
_PATIENCE = 20
"""A candidate may take this many times as long as the slowest good trial: algorithms differ by more than any patience."""
_CANDIDATE_BYTES = "512M"
"""The maximum disk space for candidates' kernels."""


class Lab(Protocol):
    """A place where candidates are tried."""

    @property
    def batch(self) -> int:
        """The number of candidates in a batch."""

    def __enter__(self) -> Lab:
        """Prepare it."""

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        """Stop everything that runs."""

    def target(self, target: Target) -> Target:
        """The target that schedules decide for: the processor or device that is really used."""

    def machine(self, target: Target) -> Machine:
        """The kind of machine that winners are valid for."""

    def measure(self, job: Job, candidates: Sequence[Knobs], thorough: bool = False) -> Iterator[tuple[int, Outcome]]:
        """Compile, check and time candidates; yields each one's index and outcome when it is available."""


class LocalLab:
    """This machine. Candidates are compiled on all processors, and then timed one by one, with nothing else running."""

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
        """End the processes."""
        self._compilers.__exit__(kind, error, trace)
        self._stand.__exit__(kind, error, trace)

    def target(self, target: Target) -> Target:
        """The same target."""
        return target

    def machine(self, target: Target) -> Machine:
        """This machine, for the target."""
        return target.machine()

    def measure(self, job: Job, candidates: Sequence[Knobs], thorough: bool = False) -> Iterator[tuple[int, Outcome]]:
        """Compile all candidates, then time them one by one, or with ``thorough`` all in turn."""
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
        """Prepare the job in the measuring process; returns why that failed, if it did."""
        if self._prepared is None or self._prepared[0] != job:
            # The defaults are compiled first, so the measuring process finds them on disk and need not load a compiler.
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
        else:  # one of them may be the cause
            for i in fine:
                yield from self._confirm(job, candidates, [i])


def _processors() -> int:
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
