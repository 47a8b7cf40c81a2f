"""A session on a server of TVM's RPC: what the machine is, and how fast kernels are there."""

from __future__ import annotations

import functools
import math
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from tvmdml import _imports
from tvmdml.errors import CompileError
from tvmdml.targets.cpu import bundle, host
from tvmdml.tuning import parcels
from tvmdml.tuning.parcels import Array, Library, Sample, Work
from tvmdml.tuning.terms import Machine, Outcome

_ROOM = 1 << 18
"""Bytes of a machine's description that are looked at."""
_IDLE = 600
"""Seconds after which a session that is asked for nothing ends: its client is gone."""
_LIFE = 3600.0
"""Seconds that a server gives a session; then it kills it, if nothing else has."""
_MOST_THREADS = 1 << 16
"""Threads that a machine may say it has."""
_NOISE = 2e-3
"""Seconds by which two clocks may differ."""
_GLANCE = 5e-4
"""Seconds of calls that tell how many there are in a second."""
_LEAST_ROUNDS = 3
_OVERTIME = 10
"""How many times as long as asked for a trial may take for the sake of more rounds."""
_TOO_SLOW = 2.0
"""How many times the defaults' time a candidate takes that is not timed with care."""


class Lie(Exception):
    """What a server answered cannot be."""


class Care(NamedTuple):
    """How closely to look."""

    seconds: float
    """To spend on the calls of a trial, if they are short."""
    rounds: int
    """How often the default and the candidate take turns."""
    repeats: int = 3
    """Samples in a turn."""


QUICK = Care(0.04, 4)
THOROUGH = Care(0.6, 15)


class Session:
    """A server's process, for as long as it is ours.

    Args:
        place: the server's host and port.
        match: what the tracker gave to be let in with.
        timeout: seconds that a trial may take.

    Raises:
        Exception: the server cannot be reached, or is no such server.
    """

    def __init__(self, place: tuple[str, int], match: str, timeout: float) -> None:
        tvm = _imports.tvm()
        self._empty: Callable[..., Any] = tvm.runtime.empty
        self._remote = rpc().connect(*place, match, _LIFE)
        self._device = self._remote.cpu(0)
        self._end = time.monotonic() + _LIFE
        self._uploads = 0
        self._timeout = timeout
        self._path: Path | None = None
        self._kind, self._guard = self._load_guard()
        self._limit(1)

    def machine(self) -> Machine:
        """What kind of machine it is, as it says."""
        room = self._empty((_ROOM,), "uint8", self._device)
        size = self._guard["describe"](room, _ROOM)
        threads, quota, cpuinfo = room.numpy()[:size].tobytes().decode(errors="replace").split("\n", 2)
        count = _granted(int(threads), quota)
        if count > _MOST_THREADS:
            raise Lie(f"it says that it has {count} threads")
        return Machine(f"cpu:{host.read(cpuinfo, self._kind).name}", host.processor_name(cpuinfo), count)

    def prepare(self, path: Path, threads: int) -> str:
        """Get everything there for a job, unless it is there.

        Args:
            path: a file with the job's ``Work``.
            threads: how many kernels may use.

        Returns:
            What is wrong with what the defaults compute there, which is the server's fault.
        """
        if path == self._path:
            return ""
        self._path = None
        self._limit(3)
        self._guard["limit"](threads)
        work = self._work = parcels.load(path)
        self._inputs = [[self._array(array) for array in sample.inputs] for sample in work.samples]
        self._junk = [self._array(array) for array in work.outputs()]
        self._outputs = [self._empty(array.shape, str(array.dtype), self._device) for array in self._junk]
        self._default = _Contender(self, work.default)
        for place, sample in enumerate(work.samples):
            if problem := self._check(work, self._default, place, sample):
                return problem
        self._numbers = [self._default.calls(self._arguments(work, place)) for place in range(len(work.samples))]
        self._path = path
        return ""

    def measure(self, library: Library, care: Care) -> Outcome:
        """Check a candidate and time it beside the defaults."""
        work = self._work
        self._limit(1 if care == QUICK else 3)
        candidate = _Contender(self, library)
        for place, sample in enumerate(work.samples):
            if problem := self._check(work, candidate, place, sample):
                return Outcome(problem=f"wrong result{' on ' + sample.name if sample.name else ''}: {problem}")
        share = Care(care.seconds / len(work.samples), care.rounds, care.repeats)
        found = [
            self._race(candidate, self._arguments(work, place), self._numbers[place], share) for place in range(len(work.samples))
        ]
        return _summary(found)

    def rest(self) -> None:
        """There is nothing to do for a while."""
        self._guard["arm"](_IDLE)

    def old(self) -> bool:
        """Whether the server is going to end it soon."""
        return time.monotonic() > self._end - 6 * self._timeout

    def alive(self) -> bool:
        """Whether the server still answers."""
        try:
            self.rest()
        except Exception:
            return False
        return True

    def load(self, content: bytes) -> Any:
        """Load a library there."""
        self._uploads += 1
        name = f"{self._uploads}.so"
        self._remote.upload(bytearray(content), target=name)
        module = self._remote.load_module(name)
        self._remote.remove(name)
        return module

    def _load_guard(self) -> tuple[str, Any]:
        """Its first library, which tells what it is for, too: only the right one loads."""
        own = host.host().machine
        for machine in (own, *({"x86_64", "aarch64"} - {own})):
            try:
                return machine, self.load(bundle.guard(machine))
            except CompileError:
                raise
            except Exception as error:
                failed = error
        raise failed

    def _limit(self, times: int) -> None:
        """From now on it may take so many times the timeout, on its own machine; whatever runs longer there is ended there."""
        self._guard["arm"](math.ceil(times * self._timeout))

    def _array(self, array: Array) -> Any:
        return self._empty(array.shape, str(array.dtype), self._device).copyfrom(array)

    def _arguments(self, work: Work, place: int) -> list[Any]:
        return self._outputs if work.in_place else [*self._inputs[place], *self._outputs]

    def _check(self, work: Work, contender: _Contender, place: int, sample: Sample) -> str:
        for before, output in zip(self._inputs[place] if work.in_place else self._junk, self._outputs, strict=True):
            before.copyto(output)
        contender.run(self._arguments(work, place))
        return work.mismatch(sample, tuple(output.numpy() for output in self._outputs))

    def _race(self, candidate: _Contender, arguments: list[Any], calls: float, care: Care) -> tuple[list[float], list[float]]:
        """The times of both, taken by turns."""
        theirs = candidate.calls(arguments)
        slower = min(calls, theirs)
        rounds = care.rounds if theirs * _TOO_SLOW > calls else 2
        rounds = min(rounds, max(_LEAST_ROUNDS, int(_OVERTIME * care.seconds * slower / 2)))
        share = care.seconds / (2 * rounds)
        repeats = care.repeats if slower * share > care.repeats else 1
        pairs = ((self._default, calls), (candidate, theirs))
        timers = [contender.timer(max(1, round(number * share / repeats)), repeats) for contender, number in pairs]
        times: tuple[list[float], list[float]] = ([], [])
        for turn in range(rounds):
            for which in (0, 1) if turn % 2 else (1, 0):
                times[which].extend(timers[which](arguments))
        return times


_Timer = Callable[[list[Any]], Sequence[float]]


class _Contender:
    """A kernel that is loaded there."""

    def __init__(self, session: Session, library: Library) -> None:
        self._library, self._session = library, session
        self._module = session.load(library.content)
        self._rest = [session._empty((max(1, count),), dtype, session._device) for dtype, count in library.temporaries]
        self._rest += library.scalars

    def run(self, arguments: list[Any]) -> None:
        self._module[self._library.symbol](*arguments, *self._rest)

    def calls(self, arguments: list[Any]) -> float:
        """How many calls take a second."""
        seconds = min(self.timer(1, 2)(arguments))
        if seconds < _GLANCE / 2:
            seconds = min(self.timer(round(_GLANCE / seconds), 2)(arguments))
        return 1 / seconds

    def timer(self, number: int, repeat: int) -> _Timer:
        """Gives so many times of a call, each the mean of a number of calls in a row."""
        evaluate = self._module.time_evaluator(self._library.symbol, self._session._device, number=number, repeat=repeat)

        def time_calls(arguments: list[Any]) -> Sequence[float]:
            start = time.perf_counter()
            times: Sequence[float] = evaluate(*arguments, *self._rest).results
            wall = time.perf_counter() - start
            if len(times) != repeat or not all(0 < one < math.inf for one in times):
                raise Lie(f"it gave {times} as the times of {repeat} runs")
            if sum(times) * number > wall * 1.01 + _NOISE:
                raise Lie(f"it says that it took {sum(times) * number:.4g} s for what was back after {wall:.4g} s")
            return times

        return time_calls


def _summary(found: Sequence[tuple[list[float], list[float]]]) -> Outcome:
    """Of the times on each input: of the defaults, and of the candidate."""
    defaults, candidates = ([float(np.median(times)) for times in column] for column in zip(*found, strict=True))
    spreads = [float(np.subtract(*np.percentile(times, (90, 10)))) / 2 / float(np.median(times)) for _, times in found]
    worst = min(default / candidate for default, candidate in zip(defaults, candidates, strict=True))
    return Outcome(_mean(candidates), _mean(defaults), max(spreads), worst)


def _mean(values: Sequence[float]) -> float:
    return math.exp(sum(map(math.log, values)) / len(values))


def _granted(threads: int, quota: str) -> int:
    """Threads, or as many as the group's share of time comes to (``cpu.max``: microseconds, of how many)."""
    words = quota.split()
    if len(words) == 2 and all(word.isdecimal() for word in words) and int(words[1]):
        threads = min(threads, math.ceil(int(words[0]) / int(words[1])))
    return max(1, threads)


@functools.cache
def rpc() -> Any:
    """TVM's RPC."""
    _imports.tvm()
    import tvm.rpc

    return tvm.rpc
