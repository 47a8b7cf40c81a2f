"""``Workers``: processes that candidates run in, and that outlive whatever a candidate does.

Each process has a pipe of its own, so that one which dies in the middle of a word spoils nobody else's, and one call at a time, so
that its death is that call's affair. Who asked looks at the clock: code that hangs may never let the process look at its own.
(``concurrent.futures`` breaks as a whole when one process dies; TVM's pool has the process watch the time.)
"""

from __future__ import annotations

import contextlib
import fcntl
import os
import pickle
import select
import signal
import subprocess
import sys
import tempfile
import threading
import time
from collections import deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from multiprocessing.connection import Connection, Pipe, wait
from typing import Any, NamedTuple, TypeVar, cast

from tvmdml import _children
from tvmdml.errors import InvalidArgument, TvmdmlError, message

START = 60.0
"""Seconds that a process may take until it can be called: on a busy machine with a slow disk, imports take a while."""
MOST_FAILED_STARTS = 3
"""Processes in a row that do not come up, before nobody believes that the next one will."""
_SHOWN = 500
"""Characters of a problem that are kept: an exception may quote a whole kernel."""
_FIRST = -1

T = TypeVar("T")


class Failure(NamedTuple):
    """What came of a call that gave no answer."""

    problem: str
    """``crashed: signal 11 (SIGSEGV)``, ``hung: no answer in 20 s``, ``raised ValueError: …``."""


class _Call(NamedTuple):
    function: Callable[..., Any]
    arguments: tuple[Any, ...]
    seconds: float


class Workers:
    """A number of processes, started at once. Close it, or use it as a context manager: what still runs is killed then.

    A process stays until it dies or hangs, with all that its modules remember. ``Ctrl-C`` does not reach it, what it prints goes
    nowhere, and when this process is gone, however that came, so is it.

    Args:
        count: how many.
        environment: variables that they have beside this process's own.
        timeout: seconds that a call may take, where nobody says otherwise.

    Raises:
        InvalidArgument: there would be none.
    """

    def __init__(self, count: int, environment: Mapping[str, str], timeout: float) -> None:
        if count < 1:
            raise InvalidArgument(message("Workers count", count, "1 or more"))
        self._environment = {**os.environ, **environment}
        self._timeout = timeout
        self._first = _Call(_nothing, (), 0.0)
        self._failed_starts = 0
        self._interrupted = False
        self._changing = threading.Lock()
        """Held by whoever starts processes, or kills them from another thread."""
        self._workers: list[_Worker] = []
        try:
            for _ in range(count):
                self._workers.append(_Worker(self._environment, self._first))
        except BaseException:
            self.close()
            raise

    def __enter__(self) -> Workers:
        """Itself."""
        return self

    def __exit__(self, *_: object) -> None:
        """Close it."""
        self.close()

    def close(self) -> None:
        """Kill all processes."""
        for worker in self._workers:
            worker.kill()

    def interrupt(self) -> None:
        """Kill the processes, for good: calls fail, those too that another thread is waiting for."""
        with self._changing:
            self._interrupted = True
            for worker in self._workers:
                worker.interrupt()

    def everywhere(self, function: Callable[..., T], *arguments: Any, timeout: float | None = None) -> list[T | Failure]:
        """Have every process make a call, those that come in place of dead ones too, before they are given anything else.

        Returns:
            What came of it in each. Where any failed, those that come later are not bothered with it.

        Raises:
            TvmdmlError: processes do not start.
        """
        self._settle()
        call = _Call(function, arguments, self._timeout if timeout is None else timeout)
        for worker in self._workers:
            worker.begin(_FIRST, call)
        answers: list[T | Failure] = []
        while busy := self._busy():
            answers += [worker.answer() for worker in _answering(busy)]
        failed = any(isinstance(answer, Failure) for answer in answers)
        self._first = _Call(_nothing, (), 0.0) if failed else call
        return answers

    def map(
        self,
        function: Callable[..., T],
        calls: Sequence[tuple[Any, ...]],
        timeout: float | None = None,
        spoils: Callable[[T], bool] = lambda answer: False,
    ) -> Iterator[tuple[int, T | Failure]]:
        """Make calls, each in one of the processes.

        Args:
            function: what to call; it lies in a module.
            calls: the arguments of each call.
            timeout: seconds that a call may take.
            spoils: whether a process that gave an answer is not to be trusted with another call.

        Yields:
            The number of a call and what came of it, as they come. Whoever stops asking has the calls that run killed.

        Raises:
            TvmdmlError: processes do not start.
        """
        seconds = self._timeout if timeout is None else timeout
        waiting = deque(enumerate(calls))
        self._settle()
        try:
            while waiting or self._busy():
                for worker in self._workers:
                    if waiting and worker.index is None:
                        index, arguments = waiting.popleft()
                        worker.begin(index, _Call(function, arguments, seconds))
                for worker in _answering(self._busy()):
                    given = worker.index
                    answer = worker.answer()
                    if given == _FIRST:
                        self._started(answer)
                    elif given is not None:
                        if not isinstance(answer, Failure) and spoils(answer):
                            worker.kill()
                        yield given, answer
                    self._replace_dead()
        finally:
            for worker in self._busy():
                if worker.index != _FIRST:
                    worker.kill()

    def _busy(self) -> list[_Worker]:
        return [worker for worker in self._workers if worker.index is not None]

    def _settle(self) -> None:
        """Have every process alive, and at rest."""
        self._replace_dead()
        while busy := self._busy():
            for worker in _answering(busy):
                self._started(worker.answer())
            self._replace_dead()

    def _replace_dead(self) -> None:
        for i, worker in enumerate(self._workers):
            if worker.dead:
                with self._changing:
                    if self._interrupted:
                        raise TvmdmlError("the processes were interrupted")
                    self._workers[i] = _Worker(self._environment, self._first)

    def _started(self, answer: object) -> None:
        self._failed_starts = self._failed_starts + 1 if isinstance(answer, Failure) else 0
        if isinstance(answer, Failure) and self._failed_starts >= MOST_FAILED_STARTS:
            raise TvmdmlError(f"{self._failed_starts} processes in a row did not start; the last one {answer.problem}")


def _answering(workers: Sequence[_Worker]) -> list[_Worker]:
    """Those that have answered, died, or had their time, when there are any."""
    ready = wait([worker.connection for worker in workers], max(0.0, min(worker.end for worker in workers) - time.monotonic()))
    return [worker for worker in workers if worker.connection in ready or time.monotonic() >= worker.end]


class _Worker:
    """A process, and the call that it is at."""

    def __init__(self, environment: Mapping[str, str], first: _Call) -> None:
        self.connection, theirs = Pipe()
        self._log = tempfile.TemporaryFile("a+b")  # noqa: SIM115 - as long as the process
        with theirs:
            self._process = subprocess.Popen(
                _children.command(f"from tvmdml.tuning.workers import serve; serve({theirs.fileno()})"),
                env=environment,
                pass_fds=[theirs.fileno()],
                stdin=subprocess.PIPE,  # nothing is ever written there: see _end_with_parent
                stdout=self._log,
                stderr=self._log,
                start_new_session=True,  # out of reach of Ctrl-C; and what it starts can be killed with it
            )
        self.dead = False
        self.index: int | None = None
        """The number of its call; ``None`` when it is at rest."""
        self.end = 0.0
        """By when it has to answer."""
        self._seconds = 0.0
        self.begin(_FIRST, first._replace(seconds=START + first.seconds))

    def begin(self, index: int, call: _Call) -> None:
        """Have it make a call."""
        self.index, self._seconds, self.end = index, call.seconds, time.monotonic() + call.seconds
        os.ftruncate(self._log.fileno(), 0)
        with contextlib.suppress(BrokenPipeError, ConnectionResetError):  # it is dead, as its answer will say
            self.connection.send((call.function, call.arguments))

    def answer(self) -> Any:
        """What came of its call; afterwards it is at rest, or dead."""
        self.index = None
        if not self.connection.poll():
            self.kill()
            return Failure(f"hung: no answer in {self._seconds:g} s")
        try:
            return self.connection.recv()
        except (EOFError, OSError, pickle.UnpicklingError):
            return Failure(self._crash())

    def _crash(self) -> str:
        """How it died, with the first that it said about it."""
        with contextlib.suppress(subprocess.TimeoutExpired):
            self._process.wait(1.0)
        status = self._process.returncode
        self._log.seek(0)
        said = self._log.read(1 << 16).decode(errors="replace").splitlines()
        first = next((text for line in said if (text := line.strip(" !-"))), "")
        self.kill()
        if status is None:
            how = "it answered with what is no answer"
        elif status < 0:
            how = f"signal {-status} ({_signal_name(-status)})"
        else:
            how = f"exit status {status}"
        return f"crashed: {how}" + (f": {first[:_SHOWN]}" if first else "")

    def interrupt(self) -> None:
        """Kill the process, and what it started."""
        if not self.dead:
            with contextlib.suppress(ProcessLookupError, PermissionError):
                os.killpg(self._process.pid, signal.SIGKILL)
            self._process.kill()

    def kill(self) -> None:
        """Kill it, and take its end into account."""
        self.index = None
        if self.dead:
            return
        self.interrupt()
        self.dead = True
        self._process.wait()
        assert self._process.stdin is not None
        self._process.stdin.close()
        self.connection.close()
        self._log.close()


def _signal_name(number: int) -> str:
    with contextlib.suppress(ValueError):
        return signal.Signals(number).name
    return "of no name"


# -- In the process -----------------------------------------------------------------------------------------------


def serve(descriptor: int) -> None:
    """Make the calls that come through a pipe, one after the other, and send back what comes of them."""
    _end_with_parent()
    connection: Connection[bytes, bytes] = Connection(descriptor)
    while True:
        try:
            asked = connection.recv_bytes()
        except (EOFError, ConnectionResetError):
            return
        try:
            function, arguments = pickle.loads(asked)  # noqa: S301 - by whoever started this process
            answer = pickle.dumps(function(*arguments))
        except BaseException as error:  # a candidate may even ask Python to leave
            answer = pickle.dumps(Failure(f"raised {type(error).__name__}: {error}"[:_SHOWN]))
        connection.send_bytes(answer)


def _end_with_parent() -> None:
    """Have the system kill this process, whatever it does by then, when the other end of its standard input is gone."""
    fcntl.fcntl(0, fcntl.F_SETOWN, os.getpid())
    fcntl.fcntl(0, cast(Any, fcntl).F_SETSIG, signal.SIGKILL)
    fcntl.fcntl(0, fcntl.F_SETFL, fcntl.fcntl(0, fcntl.F_GETFL) | os.O_ASYNC)
    if select.select([0], [], [], 0)[0]:  # it was too late for a signal
        sys.exit(0)


def _nothing() -> None:
    """For a process with nothing to do first."""
