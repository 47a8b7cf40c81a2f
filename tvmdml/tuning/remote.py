"""A session on a server of TVM's RPC: identifies the machine, and measures kernels on it."""

from __future__ import annotations

import functools
import math
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from tvmdml.errors import CompileError
from tvmdml.library.log_terms import Machine, Outcome
from tvmdml.system import imports
from tvmdml.targets.cpu import bundle, host
from tvmdml.tuning import parcels
from tvmdml.tuning.noise import noise_of
from tvmdml.tuning.parcels import CandidateLibrary, JobParcel, NumpyArray, SentSample

_ROOM = 1 << 18
"""The maximum bytes of a machine's description that are read."""
_IDLE = 600
"""The seconds after which an idle session ends, because its client must be gone."""
_LIFE = 3600.0
"""The seconds after which a server kills a session, if it has not ended before."""
_MOST_THREADS = 1 << 16
"""The maximum number of threads that a machine may report."""
_NOISE = 2e-3
"""The seconds by which two clocks may differ."""
_GLANCE = 5e-4
"""The seconds of calls used to estimate the number of calls per second."""
_LEAST_ROUNDS = 3
_OVERTIME = 10
"""The maximum factor by which a trial may exceed the requested time, for the sake of more rounds."""
_TOO_SLOW = 2.0
"""A candidate slower than the defaults by this factor is not timed further."""


class Lie(Exception):
    """A server's answer is impossible."""


class Care(NamedTuple):
    """How thoroughly to measure."""

    seconds: float
    """The time for the calls of a trial, if they are short."""
    rounds: int
    """The number of turns of the default and the candidate."""
    repeats: int = 3
    """The number of samples in a turn."""


QUICK = Care(0.04, 4)
THOROUGH = Care(0.6, 15)


class ServerSession:
    """A process on a server, for the duration of a session.

    Args:
        place: the server's host and port.
        match: the key that the tracker gave for access.
        timeout: the time limit of a trial in seconds.

    Raises:
        Exception: the server cannot be reached, or is not such a server.
    """

    def __init__(self, place: tuple[str, int], match: str, timeout: float) -> None:
        tvm = imports.tvm()
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
        """The kind of machine, as reported by the server."""
        room = self._empty((_ROOM,), "uint8", self._device)
        size = self._guard["describe"](room, _ROOM)
        threads, quota, cpuinfo = room.numpy()[:size].tobytes().decode(errors="replace").split("\n", 2)
        count = _granted(int(threads), quota)
        if count > _MOST_THREADS:
            raise Lie(f"it reports {count} threads")
        return Machine(f"cpu:{host.read(cpuinfo, self._kind).name}", host.processor_name(cpuinfo), count)

    def prepare(self, path: Path, threads: int) -> str:
        """Send everything that a job needs, unless the server has it already.

        Args:
            path: a file with the job's ``JobParcel``.
            threads: the number of threads that kernels may use.

        Returns:
            What is wrong with the defaults' results there, which is the server's fault; empty if nothing is wrong.
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

    def measure(self, library: CandidateLibrary, care: Care) -> Outcome:
        """Check a candidate, and time it beside the defaults."""
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
        """Expect no work for a while."""
        self._guard["arm"](_IDLE)

    def old(self) -> bool:
        """Whether the server will end it soon."""
        return time.monotonic() > self._end - 6 * self._timeout

    def alive(self) -> bool:
        """Whether the server still responds."""
        try:
            self.rest()
        except Exception:
            return False
        return True

    def load(self, content: bytes) -> Any:
        """Load a library on the server."""
        self._uploads += 1
        name = f"{self._uploads}.so"
        self._remote.upload(bytearray(content), target=name)
        module = self._remote.load_module(name)
        self._remote.remove(name)
        return module

    def _load_guard(self) -> tuple[str, Any]:
        """Load the first library, which also reveals the machine's architecture: only the right one loads."""
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
        """Allow so many times the timeout from now on; the server itself ends whatever runs longer."""
        self._guard["arm"](math.ceil(times * self._timeout))

    def _array(self, array: NumpyArray) -> Any:
        return self._empty(array.shape, str(array.dtype), self._device).copyfrom(array)

    def _arguments(self, work: JobParcel, place: int) -> list[Any]:
        same = dict(work.desc.positions(work.shared))
        return [*(array for i, array in enumerate(self._inputs[place]) if i not in same), *self._outputs]

    def _check(self, work: JobParcel, contender: _Contender, place: int, sample: SentSample) -> str:
        same = {output: source for source, output in work.desc.positions(work.shared)}
        for i, (junk, output) in enumerate(zip(self._junk, self._outputs, strict=True)):
            (self._inputs[place][same[i]] if i in same else junk).copyto(output)
        contender.run(self._arguments(work, place))
        return work.mismatch(sample, tuple(output.numpy() for output in self._outputs))

    def _race(self, candidate: _Contender, arguments: list[Any], calls: float, care: Care) -> tuple[list[float], list[float]]:
        """The times of both, measured in turns."""
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
    """A kernel that is loaded on the server."""

    def __init__(self, session: ServerSession, library: CandidateLibrary) -> None:
        self._library, self._session = library, session
        self._module = session.load(library.content)
        self._rest = [session._empty((max(1, count),), dtype, session._device) for dtype, count in library.temporaries]
        self._rest += library.scalars

    def run(self, arguments: list[Any]) -> None:
        self._module[self._library.symbol](*arguments, *self._rest)

    def calls(self, arguments: list[Any]) -> float:
        """The number of calls per second."""
        seconds = min(self.timer(1, 2)(arguments))
        if seconds < _GLANCE / 2:
            seconds = min(self.timer(round(_GLANCE / seconds), 2)(arguments))
        return 1 / seconds

    def timer(self, number: int, repeat: int) -> _Timer:
        """A function that returns so many times of a call, each the mean of a number of calls in a row."""
        evaluate = self._module.time_evaluator(self._library.symbol, self._session._device, number=number, repeat=repeat)

        def time_calls(arguments: list[Any]) -> Sequence[float]:
            start = time.perf_counter()
            times: Sequence[float] = evaluate(*arguments, *self._rest).results
            wall = time.perf_counter() - start
            if len(times) != repeat or not all(0 < one < math.inf for one in times):
                raise Lie(f"it reported {times} as the times of {repeat} runs")
            if sum(times) * number > wall * 1.01 + _NOISE:
                raise Lie(f"it reported {sum(times) * number:.4g} s for work that was finished after {wall:.4g} s")
            return times

        return time_calls


def _summary(found: Sequence[tuple[list[float], list[float]]]) -> Outcome:
    """The outcome, from the times of the defaults and of the candidate on each input."""
    defaults, candidates = ([float(np.median(times)) for times in column] for column in zip(*found, strict=True))
    spreads = [float(np.subtract(*np.percentile(times, (90, 10)))) / 2 / float(np.median(times)) for _, times in found]
    worst = min(default / candidate for default, candidate in zip(defaults, candidates, strict=True))
    return Outcome(_mean(candidates), _mean(defaults), max(spreads), worst, noise=noise_of(found))


def _mean(values: Sequence[float]) -> float:
    return math.exp(sum(map(math.log, values)) / len(values))


def _granted(threads: int, quota: str) -> int:
    """The number of threads, or fewer if the group's time limit is lower (``cpu.max``: microseconds per period)."""
    words = quota.split()
    if len(words) == 2 and all(word.isdecimal() for word in words) and int(words[1]):
        threads = min(threads, math.ceil(int(words[0]) / int(words[1])))
    return max(1, threads)


@functools.cache
def rpc() -> Any:
    """TVM's RPC."""
    imports.tvm()
    import tvm.rpc

    return tvm.rpc
