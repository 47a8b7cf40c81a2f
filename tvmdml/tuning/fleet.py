"""``Fleet``: tries candidates in parallel on all machines that are registered with TVM's RPC tracker.

Machines and networks fail. A trial that a server did not finish is given to another server, and a fault that one server reports
must be confirmed by a second one. A server that returns impossible results is left out, and so is one whose machine differs from
the others.
"""

from __future__ import annotations

import json
import os
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from multiprocessing.connection import Connection, wait
from pathlib import Path
from typing import Any

from tvmdml.errors import CompileError, DeviceError, InvalidArgument, Unsupported, message, safe_repr
from tvmdml.library.log_terms import Job, Knobs, Machine, Outcome
from tvmdml.system.workers import Failure, Workers
from tvmdml.targets import Target
from tvmdml.targets.cpu import CpuTarget, host
from tvmdml.tuning import lanes, parcels
from tvmdml.tuning.batches import CandidateBatch, CompiledTrial, Compiling
from tvmdml.tuning.lanes import Address, LaneRequest, LaneStarter

_COMPILE_TIMEOUT = 120.0
_WITNESSES = 2
"""The number of sessions that must confirm a candidate's fault."""
_STRIKES = 3
"""The number of consecutive failures of a server before it is left out."""
_ASKING = 16
"""The maximum number of lanes that ask the tracker for a server at the same time."""
_PAUSE = 0.5
"""The seconds before the next attempt, after a server did not open a session."""
_GATHERING = 3.0
"""The seconds to wait for more servers, after the first one is available."""
_TICK = 0.25
_MOST_TIMES = 12
"""A lane that is busy for this many times the limit of one trial, with everything that belongs to it, is considered stuck."""
_KEPT_JOBS = 2
"""The number of jobs whose inputs are kept on disk."""


def _ignore(text: str) -> None:
    """Discard the text."""


class Fleet:
    """A tracker's machines under one key. A context manager: servers are held inside, and released at its end.

    Args:
        tracker: ``host:port`` of the tracker.
        key: the name under which servers are registered with it.
        target: the processor level to compile for, which the servers must have. By default, or if it is this machine's own, the
            servers' level is used.
        cache: a folder where the compiling processes store their data.
        timeout: the time limit of a trial in seconds.
        patience: the seconds to wait for a server when none is left.
        jobs: the number of compiling processes; by default the number of this process's processors.
        note: a function that receives messages about servers.

    Raises:
        InvalidArgument: the tracker's address is malformed.
        Unsupported: the target is not a processor.
    """

    def __init__(
        self,
        tracker: str,
        key: str,
        target: Target | None = None,
        *,
        cache: Path,
        timeout: float = 20.0,
        patience: float = 60.0,
        jobs: int | None = None,
        note: Callable[[str], None] = _ignore,
    ) -> None:
        if target is not None and not isinstance(target, CpuTarget):
            given = f"a fleet for {target.name}"
            raise Unsupported(message("tune", given, "cpu", "A fleet tunes processors; tune a device on the machine it is in."))
        name, _, port = tracker.rpartition(":")
        if not name or not port.isdecimal() or not 0 < int(port) < 1 << 16:
            raise InvalidArgument(message("tracker", safe_repr(tracker), "host:port, such as 10.0.0.1:9190"))
        if not key:
            raise InvalidArgument(message("key", safe_repr(key), "the name that servers were started with (--key)"))
        self._tracker, self._key, self._wanted = (name.strip("[]"), int(port)), key, target
        self._cache, self._timeout, self._patience, self._note = cache, timeout, patience, note
        self._jobs = jobs or len(os.sched_getaffinity(0))
        self._kind: Machine | None = None
        self._lanes: list[_Lane] = []
        self._free = 0
        self._not_before = 0.0
        self._avoided: set[Address] = set()
        self._strikes: dict[Address, int] = {}
        self._trouble = ""
        self._works: dict[str, Path] = {}
        self._batch: CandidateBatch | None = None
        self._compiling: Compiling | None = None

    def __enter__(self) -> Fleet:
        """Connect to the servers.

        Raises:
            DeviceError: there are none.
            CompileError: a package that is needed is not installed.
            Unsupported: the servers cannot run code for the target.
        """
        environment = {"TVMDML_CACHE_DIR": str(self._cache), "TVMDML_PACKS": ""}
        self._folder = tempfile.TemporaryDirectory(prefix="tvmdml-")
        self._starter = LaneStarter(environment)
        try:
            self._workers = Workers(self._jobs, environment, _COMPILE_TIMEOUT)
            end = time.monotonic() + self._patience
            while not self.servers:
                self._step()
                self._lose_patience(end)
            end = time.monotonic() + _GATHERING
            while time.monotonic() < end and (self._free or any(lane.place != _NOWHERE and not lane.open for lane in self._lanes)):
                self._step()
        except BaseException:
            self.__exit__()
            raise
        return self

    def __exit__(self, *_: object) -> None:
        """Release the servers, and end all processes."""
        self._starter.close()
        for lane in self._lanes:
            lane.connection.close()
        self._lanes.clear()
        if hasattr(self, "_workers"):
            self._workers.close()
        self._folder.cleanup()

    @property
    def servers(self) -> int:
        """The number of servers in use."""
        return sum(lane.open for lane in self._lanes)

    @property
    def batch(self) -> int:
        """The number of candidates in a batch, chosen so that no server idles for long."""
        return max(8, 4 * self.servers)

    def target(self, target: Target) -> CpuTarget:
        """The target that schedules decide for: the servers' processor, with its number of threads."""
        return self._target

    def machine(self, target: Target) -> Machine:
        """The servers' kind of machine: all are of the same kind."""
        return self._machine

    def measure(self, job: Job, candidates: Sequence[Knobs], thorough: bool = False) -> Iterator[tuple[int, Outcome]]:
        """Compile candidates here, check them on the servers, and time each beside the defaults.

        Args:
            job: the job.
            candidates: knob values.
            thorough: take more and longer samples.

        Yields:
            A candidate's index and outcome, in the order of completion.

        Raises:
            CompileError: the defaults do not compile, or a package that is needed is not installed.
            DeviceError: no server is left.
        """
        if not candidates:
            return
        if self._compiling is not None:
            self._compiling.join()
        work = self._prepared(job)
        calls = [(job, knobs, self._machine.threads) for knobs in candidates]
        batch = self._batch = CandidateBatch(work, self._workers, calls, thorough)
        self._compiling = batch.compiling
        try:
            end = time.monotonic() + self._patience
            while batch.unfinished:
                self._assign(batch)
                self._step(batch)
                while batch.finished:
                    yield batch.finished.popleft()
                if self.servers:
                    end = time.monotonic() + self._patience
                elif batch.unfinished:
                    self._lose_patience(end)
        finally:
            self._batch = None
            batch.compiling.stop()

    # -- Jobs -------------------------------------------------------------------------------------------------------

    def _prepared(self, job: Job) -> Path:
        """The file with a job's work."""
        name = json.dumps(job)
        if name not in self._works:
            path = Path(self._folder.name) / f"{time.monotonic_ns()}"
            _, problem = next(self._workers.map(parcels.prepare, [(job, self._machine.threads, path)]))
            if isinstance(problem, Failure):
                problem = problem.problem
            if problem:
                raise CompileError(f"{job.line.get('operator')}: the defaults cannot be measured: {problem}")
            self._works[name] = path
            for old in list(self._works)[:-_KEPT_JOBS]:
                self._works.pop(old).unlink(missing_ok=True)
        return self._works[name]

    # -- Trials -----------------------------------------------------------------------------------------------------

    def _assign(self, batch: CandidateBatch) -> None:
        """Give each idle server a candidate."""
        for lane in self._lanes:
            if lane.open and lane.trial is None and (trial := batch.next_for(lane.place, self.servers)) is not None:
                order = LaneRequest(batch.work, self._machine.threads, trial.library, batch.thorough)
                lane.give(trial)
                try:
                    lane.connection.send(order)
                except OSError:  # the lane has ended: its last message or the closed connection will tell
                    continue

    def _done(self, lane: _Lane, outcome: Outcome) -> None:
        trial, lane.trial = lane.trial, None
        assert trial is not None
        trial.lanes -= 1
        if trial.over or self._batch is None or trial.batch is not self._batch:  # another server was faster
            return
        if outcome.problem:
            trial.complaints.append((lane.place, outcome))
            if len(trial.complaints) < _WITNESSES:
                self._batch.again(trial)
                return
        else:
            self._strikes.pop(lane.place, None)
            for place, complaint in trial.complaints:
                self._strike(place, f"{complaint.problem} (a candidate that works on other servers)")
        self._batch.finish(trial, outcome)
        self._batch.seconds.append(time.monotonic() - lane.since)

    def _lost(self, lane: _Lane, problem: str, to_blame: bool) -> None:
        """Handle the end of a session."""
        lane.connection.close()
        self._lanes.remove(lane)
        if not lane.open:
            self._not_before = time.monotonic() + _PAUSE
        trial = lane.trial
        if trial is not None and lane.trying and not to_blame:
            seconds = time.monotonic() - lane.trying
            limit = self._timeout * (3 if trial.batch.thorough else 1)
            what = f"hung: no result in {limit:g} s" if seconds > 0.95 * limit else "crashed: the session on the server ended"
            self._done(lane, Outcome(problem=what))
            return
        if trial is not None:
            trial.lanes -= 1
            if trial.batch is self._batch and not trial.over:
                trial.batch.again(trial)
        if to_blame:
            self._leave_out(lane.place, problem)
        elif problem and lane.place != _NOWHERE:
            self._strike(lane.place, problem)

    # -- Servers ----------------------------------------------------------------------------------------------------

    def _step(self, batch: CandidateBatch | None = None) -> None:
        """Start missing lanes, and process all messages."""
        asking = sum(lane.place == _NOWHERE for lane in self._lanes)
        while time.monotonic() >= self._not_before and asking < max(1, min(self._free, _ASKING)):
            self._lanes.append(_Lane(self._starter.start(self._tracker, self._key, self._avoided, self._timeout)))
            asking += 1
        connections: list[Connection[Any, Any]] = [lane.connection for lane in self._lanes]
        if batch is not None and batch.compiling.running:
            connections.append(batch.compiling.connection)
        ready = wait(connections, _TICK)
        if batch is not None and batch.compiling.connection in ready:
            batch.hear()
        for lane in [lane for lane in self._lanes if lane.connection in ready]:
            if lane not in self._lanes:  # another lane's message has already ended it
                continue
            try:
                self._hear(lane, lane.connection.recv())
            except (EOFError, OSError):
                self._lost(lane, "it does not respond", False)
        late = time.monotonic() - _MOST_TIMES * self._timeout
        for lane in [lane for lane in self._lanes if lane.trial is not None and lane.since < late]:
            self._lost(lane, "it does not respond", False)

    def _hear(self, lane: _Lane, said: Any) -> None:
        match said:
            case lanes.ServerWait(free):
                self._free, self._trouble = free, ""
            case lanes.Trouble(problem):
                if problem != self._trouble:
                    self._note(f"no tracker responds at {_written(self._tracker)}: {problem}")
                self._trouble = problem
            case lanes.Granted(place):
                lane.place = place
                self._free = max(0, self._free - 1)
            case lanes.Opened(machine):
                self._opened(lane, machine)
            case lanes.Trying():
                lane.trying = time.monotonic()
            case lanes.Done(outcome):
                self._done(lane, outcome)
            case lanes.Lost(problem, to_blame):
                self._lost(lane, problem, to_blame)
            case lanes.Cannot(problem):
                raise CompileError(problem)

    def _opened(self, lane: _Lane, machine: Machine) -> None:
        if self._kind is None:
            self._kind = machine
            self._target = _target(machine, self._wanted)
            self._machine = machine._replace(target=self._target.name)
        if machine != self._kind:
            lane.connection.close()
            self._lanes.remove(lane)
            self._leave_out(lane.place, f"another kind of machine: {_shown(machine)}, where the first is {_shown(self._kind)}")
            return
        lane.open = True

    def _strike(self, place: Address, problem: str) -> None:
        self._strikes[place] = self._strikes.get(place, 0) + 1
        if self._strikes[place] >= _STRIKES:
            self._leave_out(place, problem)
        else:
            self._note(f"server {_written(place)}: {problem}")

    def _leave_out(self, place: Address, problem: str) -> None:
        """Exclude a server: use it no more, and do not request it again."""
        if place not in self._avoided:
            self._note(f"server {_written(place)} is left out: {problem}")
        self._avoided.add(place)
        for lane in [lane for lane in self._lanes if lane.place == place]:
            self._lost(lane, "", False)
        for lane in [lane for lane in self._lanes if lane.place == _NOWHERE]:  # these lanes might still get it
            lane.connection.close()
            self._lanes.remove(lane)

    def _lose_patience(self, end: float) -> None:
        if time.monotonic() <= end:
            return
        at = f"{_written(self._tracker)} under {self._key}"
        why = f"the tracker does not respond: {self._trouble}" if self._trouble else "no usable server is free"
        left = f"; left out: {', '.join(map(_written, sorted(self._avoided)))}" if self._avoided else ""
        advice = f"python -m tvm.exec.rpc_server --tracker={_written(self._tracker)} --key={self._key} starts one."
        raise DeviceError(f"no server of the tracker at {at} for {self._patience:g} s ({why}{left}). {advice}")


_NOWHERE: Address = ("", 0)


class _Lane:
    """A process with a session, as the fleet sees it."""

    def __init__(self, connection: Connection[Any, Any]) -> None:
        self.connection = connection
        self.place = _NOWHERE
        self.open = False
        self.trial: CompiledTrial | None = None
        self.since = self.trying = 0.0
        """The time when it got its trial, and the time when the trial started."""

    def give(self, trial: CompiledTrial) -> None:
        """Record its current trial."""
        self.trial, self.since, self.trying = trial, time.monotonic(), 0.0
        trial.lanes += 1
        trial.since = trial.since or self.since


def _target(machine: Machine, wanted: CpuTarget | None) -> CpuTarget:
    """The target to compile for, for a kind of machine."""
    own = host.known(machine.target.removeprefix("cpu:"))
    assert own is not None, machine
    if wanted is None or wanted.processor == host.host():
        return CpuTarget(own, machine.threads)
    if not own.runs(wanted.processor):
        raise Unsupported(message("tune target", wanted.name, f"{machine.target}, which the fleet's machines have"))
    return CpuTarget(wanted.processor, machine.threads)


def _written(place: Address) -> str:
    return f"{place[0]}:{place[1]}"


def _shown(machine: Machine) -> str:
    return f"{machine.processor}, {machine.target}, {machine.threads} threads"
