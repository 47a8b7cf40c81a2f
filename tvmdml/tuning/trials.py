"""Trials: a candidate is compiled, checked bit for bit on every kind of input, and timed in turns with the defaults.

This runs in the processes of ``workers``. Every fault of a candidate becomes its outcome's problem. Only a crash or a hang, which
the process cannot report itself, is left to the process that started it.
"""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable, Sequence
from typing import NamedTuple

import numpy as np

from tvmdml import operators, targets
from tvmdml.kernels.kernel import Kernel
from tvmdml.library import finding, knobs
from tvmdml.library.log_terms import Job, Knobs, Outcome
from tvmdml.library.scheduling import kernel_for
from tvmdml.operators import Operator, _shared
from tvmdml.operators._contract import Shared
from tvmdml.proof.bench.measure import Contender
from tvmdml.system import not_collected
from tvmdml.targets import Launcher, Target
from tvmdml.tensors.arrays.device_array import bound
from tvmdml.tuning.noise import noise_of
from tvmdml.tuning.stand import JobSample, Stand, described

CUT = 3.0
"""A candidate that takes this many times as long as the defaults in the first round gets no second round."""
SLOW_CALL = 0.02
"""For calls of at least so many seconds, the check is also the timing: further calls would take too long."""
HOPELESS = 20.0
"""A candidate this many times slower than the defaults is not tried on other inputs: some algorithms take quadratic time."""
WRONG, NOT_RUN = "wrong result", "does not run"
"""The first words of problems after which a process is not trusted: a kernel with wrong results may have written anywhere, and a
device may be lost for good."""
_LOOKS = 2
"""The number of additional samples of a candidate that seems so slow: something else may have disturbed the first."""
_TICK = 1e-9
_SHOWN = 300


class TrialPace(NamedTuple):
    """How much time to take. A machine's disturbances come in bursts, so many short samples say more than a few long ones."""

    rounds: int
    """The maximum number of samples of each contender on each input."""
    least_rounds: int
    """The minimum number of rounds, however long they take."""
    seconds: float
    """The minimum duration of a sample on the host's clock; a device's clock has its own."""
    budget: float
    """The seconds, divided among the inputs, after which no further round starts."""


TRIAL = TrialPace(rounds=81, least_rounds=3, seconds=0.00005, budget=0.03)
"""Good enough to find the candidates that are worth a closer look."""
FINAL = TrialPace(rounds=3000, least_rounds=11, seconds=0.0001, budget=3.0)
"""For a reliable choice of the winner."""


# -- Functions called in a process ----------------------------------------------------------------------------------


def compile_candidate(job: Job, values: Knobs) -> str:
    """Compile a candidate's kernel into the disk store, where the measuring process finds it.

    The defaults are also a candidate, with no values.

    Returns:
        What is wrong, if it cannot be compiled; otherwise an empty text.
    """
    try:
        _ready(described(job), _shared.read(described(job), job.in_place, "the job"), targets.resolve(job.target), values)
    except Exception as error:  # a schedule may fail in any way with untested values
        return f"does not compile: {_said(error)}"
    return ""


def prepare(job: Job) -> str:
    """Make a job's inputs and references, and check its defaults. Otherwise the first ``measure`` of a job does this.

    Returns:
        Why nothing can be compared with the defaults, if so; otherwise an empty text.
    """
    return _defaults(job).problem


def measure(job: Job, values: Knobs, pace: TrialPace = TRIAL) -> Outcome:
    """Check a candidate, and time it beside the defaults."""
    return confirm(job, [values], pace)[0]


def confirm(job: Job, candidates: Sequence[Knobs], pace: TrialPace = FINAL) -> list[Outcome]:
    """Check candidates, and time all of them beside each other and the defaults."""
    default = _defaults(job)
    if default.problem:
        return [Outcome(problem=default.problem) for _ in candidates]
    entrants = [_Entrant(default.stand, values, default) for values in candidates]
    if any(is_spoiled(Outcome(problem=entrant.problem)) for entrant in entrants):
        _forget()
    others = [entrant for entrant in entrants if not entrant.problem and entrant.identity != default.identity]
    _Race(default, others, pace).run()
    return [entrant.outcome(default) for entrant in entrants]


def is_spoiled(outcome: Outcome) -> bool:
    """Whether a process is not to be trusted after this outcome: for ``Workers.map``."""
    return outcome.problem.startswith((WRONG, NOT_RUN))


# -- Contenders -----------------------------------------------------------------------------------------------------


class _Entrant:
    """A candidate: its kernel, bound to every input, and checked on each.

    Attributes:
        problem: why it is not worth timing; empty if it is.
        calls: its call, by sample.
        first: the duration of a call during the check in seconds, by sample.
        times: the durations of calls in seconds, by sample.
    """

    def __init__(self, stand: Stand, values: Knobs, beside: _Entrant | None = None) -> None:
        self.stand, self.problem = stand, ""
        self.calls: list[Callable[[], object]] = []
        self.first: list[float] = []
        self.times: list[list[float]] = [[] for _ in stand.samples]
        try:
            kernel, launcher = _ready(stand.desc, stand.shared, stand.target, values)
        except Exception as error:  # as in compile_candidate
            self.problem = f"does not compile: {_said(error)}"
            return
        self.identity = (kernel.identity, tuple(kernel.scalars), tuple(kernel.temporaries))
        try:
            launch = stand.target.launch(launcher, kernel.scalars, kernel.temporaries)
            for sample in stand.samples:
                self._enter(sample, bound(launch.bind(*sample.arrays), sample.arrays))
                if beside is not None and not self.problem:
                    self.problem = self._hopeless(beside)
                if self.problem:
                    return
        except Exception as error:  # a driver that rejects it, or loses its device
            self.problem = f"{NOT_RUN}: {_said(error)}"

    def _enter(self, sample: JobSample, call: Callable[[], object]) -> None:
        problem, seconds = sample.problem(call)
        if not problem and seconds >= SLOW_CALL:  # the first call includes one-time work
            problem, again = sample.problem(call)
            seconds = min(seconds, again)
        if problem:
            self.problem = f"{WRONG}{f' on input that is {sample.fill}' if sample.fill else ''}: {problem}"
        self.calls.append(call)
        self.first.append(seconds)

    def _hopeless(self, beside: _Entrant) -> str:
        """Whether it is far slower on the last input than another entrant, as text."""
        mine, other = self.first[-1], beside.first[len(self.first) - 1]
        return f"too slow: {mine:.2g} s, where the defaults take {other:.2g} s" if mine > max(SLOW_CALL, HOPELESS * other) else ""

    def contender(self, i: int, pace: TrialPace) -> Contender:
        """This candidate on one of the inputs, in the form that clocks take."""
        return Contender("ours", "tvmdml", "a candidate", 0, self.calls[i], sample=pace.seconds)

    def outcome(self, default: _Entrant) -> Outcome:
        """The outcome. Inputs on which it was cut off, or that were not reached, give no time."""
        if self.problem:
            return Outcome(problem=self.problem)
        mine = default.times if self.identity == default.identity else self.times
        timings = [(_Timing.of(own), _Timing.of(theirs)) for own, theirs in zip(mine, default.times, strict=True) if own]
        return Outcome(
            seconds=statistics.geometric_mean(own.median for own, _ in timings),
            default=statistics.geometric_mean(other.median for _, other in timings),
            spread=statistics.fmean(own.spread for own, _ in timings),
            worst=min(other.median / own.median for own, other in timings),
            noise=noise_of([(theirs, own) for own, theirs in zip(mine, default.times, strict=True) if own]),
        )


class _Timing(NamedTuple):
    median: float
    spread: float

    @classmethod
    def of(cls, seconds: Sequence[float]) -> _Timing:
        low, median, high = (max(float(q), _TICK) for q in np.quantile(seconds, (0.1, 0.5, 0.9)))
        return cls(median, (high - low) / 2 / median)


class _Race:
    """The defaults and candidates, timed in turns."""

    def __init__(self, default: _Entrant, others: Sequence[_Entrant], pace: TrialPace) -> None:
        self._default, self._others, self._pace = default, list(others), pace
        self._counts = [self._count(i) for i in range(len(default.calls))]

    def _count(self, i: int) -> int:
        """The number of the defaults' calls in a sample. It is the same for all, so that a sample's overhead is too."""
        default = self._default
        slow = default.first[i] >= max(SLOW_CALL, self._pace.seconds)
        return 1 if slow else default.stand.clock.calls(default.contender(i, self._pace))

    def run(self) -> None:
        """Time them on every input, as long as a candidate is left to compare."""
        for entrant in (self._default, *self._others):
            entrant.times = [[] for _ in entrant.calls]
        share = self._pace.budget / len(self._default.calls)
        with not_collected():
            for i in range(len(self._default.calls)):
                end = time.monotonic() + share
                for turn in range(self._pace.rounds):
                    if turn >= self._pace.least_rounds and time.monotonic() >= end:
                        break
                    self._round(i, backwards=turn % 2 == 1)
                    if turn == 0 and self._others and not self._cut(i):
                        return

    def _round(self, i: int, backwards: bool) -> None:
        everybody = [self._default, *self._others]
        for entrant in reversed(everybody) if backwards else everybody:
            entrant.times[i].append(self._sample(entrant, i))

    def _sample(self, entrant: _Entrant, i: int) -> float:
        if entrant.first[i] >= max(SLOW_CALL, 2 * CUT * self._default.first[i]):
            return entrant.first[i]  # it need not be called again
        return entrant.stand.clock.sample(entrant.contender(i, self._pace), self._counts[i]).seconds

    def _cut(self, i: int) -> bool:
        """Drop candidates that are far behind; returns whether any is left."""
        limit = CUT * self._default.times[i][0]
        for entrant in self._others:
            for _ in range(_LOOKS):
                if entrant.times[i][0] > limit:
                    entrant.times[i][0] = min(entrant.times[i][0], self._sample(entrant, i))
        self._others = [entrant for entrant in self._others if entrant.times[i][0] <= limit]
        return bool(self._others)


# -- Kernels --------------------------------------------------------------------------------------------------------


def _ready(desc: Operator, shared: Shared, target: Target, values: Knobs) -> tuple[Kernel, Launcher]:
    """A candidate's kernel. Earlier tuning and packs are not used, so the defaults are the schedule's own."""
    with knobs.untuned(), knobs.using(**{operators.tuned_as(type(desc)): values}):
        kernel = kernel_for(desc, target, shared)
        return kernel, finding.find(kernel, target)


_last: tuple[Job, _Entrant] | None = None
"""This process's last job, and its defaults: the data prepared for a job serves all its candidates."""


def _defaults(job: Job) -> _Entrant:
    global _last
    if _last is None or _last[0] != job:
        _last = None  # free large arrays before new ones are made
        default = _Entrant(Stand(job), {})
        default.problem = default.problem and f"the defaults' own kernel: {default.problem}"
        _last = (job, default)
    return _last[1]


def _forget() -> None:
    global _last
    _last = None


def _said(error: Exception) -> str:
    return f"{type(error).__name__}: {' '.join(str(error).split())}"[:_SHOWN]
