"""Candidates in the fleet: compiled here, tried on a server, and given to another server if that fails."""

from __future__ import annotations

import statistics
import threading
import time
from collections import deque
from collections.abc import Sequence
from multiprocessing.connection import Pipe
from pathlib import Path
from typing import Any

from tvmdml.errors import CompileError
from tvmdml.library.log_terms import Outcome
from tvmdml.system.workers import Failure, Workers
from tvmdml.tuning import parcels
from tvmdml.tuning.lanes import Address
from tvmdml.tuning.parcels import CandidateLibrary

_SUSPECT = 4.0
"""An idle server also gets a trial that takes this many times as long as others, and at least this many seconds."""
_LEAST_SUSPECT = 2.0


class CompiledTrial:
    """A compiled candidate."""

    def __init__(self, batch: CandidateBatch, index: int, library: CandidateLibrary) -> None:
        self.batch, self.index, self.library = batch, index, library
        self.complaints: list[tuple[Address, Outcome]] = []
        self.lanes = 0
        """The number of servers that work on it."""
        self.since = 0.0
        self.over = False


class CandidateBatch:
    """Candidates in progress."""

    def __init__(self, work: Path, workers: Workers, calls: Sequence[tuple[Any, ...]], thorough: bool) -> None:
        self.work, self.thorough = work, thorough
        self.unfinished = len(calls)
        self.finished: deque[tuple[int, Outcome]] = deque()
        self.seconds: list[float] = []
        """The durations of trials."""
        self._trials: list[CompiledTrial] = []
        self._waiting: deque[CompiledTrial] = deque()
        self.compiling = Compiling(workers, calls)

    def hear(self) -> None:
        """Receive the candidates that were compiled."""
        found = self.compiling.receive()
        if found is None:
            return
        index, library = found
        if library.problem:
            self._add(index, Outcome(problem=library.problem))
        else:
            trial = CompiledTrial(self, index, library)
            self._trials.append(trial)
            self._waiting.append(trial)

    def next_for(self, place: Address, servers: int) -> CompiledTrial | None:
        """The trial that an idle server should do next."""
        for trial in self._waiting:  # a second opinion should come from another server, if there is one
            if servers == 1 or all(place != other for other, _ in trial.complaints):
                self._waiting.remove(trial)
                return trial
        usual = statistics.median(self.seconds) if self.seconds else _LEAST_SUSPECT
        late = time.monotonic() - max(_LEAST_SUSPECT, _SUSPECT * usual)
        return next((trial for trial in self._trials if not trial.over and trial.lanes == 1 and trial.since < late), None)

    def again(self, trial: CompiledTrial) -> None:
        """Have another server try it, unless a server is already working on it."""
        trial.since = 0.0
        if not trial.lanes and trial not in self._waiting:
            self._waiting.appendleft(trial)

    def finish(self, trial: CompiledTrial, outcome: Outcome) -> None:
        """Record the outcome of a trial."""
        trial.over = True
        self._trials.remove(trial)
        self._add(trial.index, outcome)

    def _add(self, index: int, outcome: Outcome) -> None:
        self.unfinished -= 1
        self.finished.append((index, outcome))


class Compiling:
    """A thread that has candidates compiled, and passes on the results."""

    def __init__(self, workers: Workers, calls: Sequence[tuple[Any, ...]]) -> None:
        self.connection, self._theirs = Pipe(duplex=False)
        self.running = True
        self._stopped = False
        self._thread = threading.Thread(target=self._run, args=(workers, calls), name="tvmdml compiling", daemon=True)
        self._thread.start()

    def receive(self) -> tuple[int, CandidateLibrary] | None:
        """The next result; ``None`` after the last one."""
        index, found = self.connection.recv()
        if index is None:
            self.running = False
            if found:
                raise CompileError(found)
            return None
        return index, CandidateLibrary(problem=found.problem) if isinstance(found, Failure) else found

    def stop(self) -> None:
        """Cancel the remaining candidates."""
        self._stopped = True
        self.connection.close()

    def join(self) -> None:
        """Wait until the compiling processes are free for other work."""
        self._thread.join()

    def _run(self, workers: Workers, calls: Sequence[tuple[Any, ...]]) -> None:
        problem = ""
        try:
            for index, found in workers.map(parcels.build_library, calls):
                if self._stopped:
                    return
                self._theirs.send((index, found))
        except Exception as error:  # workers that do not start, or a cancelled batch
            problem = f"compiling candidates failed: {error}"
        if not self._stopped:
            self._theirs.send((None, problem))
