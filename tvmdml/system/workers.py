"""``Workers``: processes that run candidates. A candidate that crashes or hangs ends only its own process.

Each process has its own pipe, so a process that dies in the middle of a message cannot disturb the others. It runs one call at a
time, so its death concerns only that call. The calling process watches the time, since code that hangs may not return to the
worker's own Python. (In ``concurrent.futures`` the whole pool breaks when one process dies; TVM's pool watches time in the worker.)
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

from tvmdml.errors import InvalidArgument, TvmdmlError, message
from tvmdml.system import children

START = 60.0
"""Seconds that a process may need before it can be called: on a busy machine with a slow disk, imports are slow."""
MOST_FAILED_STARTS = 3
"""After this many consecutive processes have failed to start, no more are started."""
_SHOWN = 500
"""The most characters of a problem that are kept: an exception may quote a whole kernel."""
_FIRST = -1

T = TypeVar("T")


class Failure(NamedTuple):
    """The result of a call that did not return."""

    problem: str
    """``crashed: signal 11 (SIGSEGV)``, ``hung: no answer in 20 s``, ``raised ValueError: …``."""


class _Call(NamedTuple):
    function: Callable[..., Any]
    arguments: tuple[Any, ...]
    seconds: float


class Workers:
    """Some processes, started immediately. Close it, or use it as a context manager; then running processes are killed.

    A process keeps running, with the state of its modules, until it dies or hangs. It ignores ``Ctrl-C``, its output is
    discarded, and it ends when this process ends, in whichever way.

    Args:
        count: the number of processes.
        environment: variables to add to this process's environment.
        timeout: the default limit of a call, in seconds.

    Raises:
        InvalidArgument: the count is below 1.
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
        """Held while processes are started, or killed from another thread."""
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
        """Kill the processes permanently: all calls fail, including those that another thread is waiting for."""
        with self._changing:
            self._interrupted = True
            for worker in self._workers:
                worker.interrupt()

    def everywhere(self, function: Callable[..., T], *arguments: Any, timeout: float | None = None) -> list[T | Failure]:
        """Run a call in every process, and in every later replacement of a dead process before its other calls.

        Returns:
            The results of the processes. If any failed, replacements do not run the call.

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
        """Run calls, each in one of the processes.

        Args:
            function: a function of a module.
            calls: the arguments of each call.
            timeout: the limit of each call, in seconds.
            spoils: decides from a result whether its process must not run another call.

        Yields:
            The number of a call and its result, as calls finish. If the caller stops iterating, the running calls are killed.

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
        """Wait until every process is alive and idle."""
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
            raise TvmdmlError(f"{self._failed_starts} consecutive processes did not start; the last one {answer.problem}")


def _answering(workers: Sequence[_Worker]) -> list[_Worker]:
    """Wait until some of the workers have answered, died, or reached their time limit; returns those."""
    ready = wait([worker.connection for worker in workers], max(0.0, min(worker.end for worker in workers) - time.monotonic()))
    return [worker for worker in workers if worker.connection in ready or time.monotonic() >= worker.end]


class _Worker:
    """A process, and the call that it runs."""

    def __init__(self, environment: Mapping[str, str], first: _Call) -> None:
        self.connection, theirs = Pipe()
        self._log = tempfile.TemporaryFile("w+b")  # noqa: SIM115 - as long as the process
        fcntl.fcntl(self._log, fcntl.F_SETFL, fcntl.fcntl(self._log, fcntl.F_GETFL) | os.O_APPEND)  # writes follow a truncation
        with theirs:
            self._process = subprocess.Popen(
                children.command(f"from tvmdml.system.workers import serve; serve({theirs.fileno()})"),
                env=environment,
                pass_fds=[theirs.fileno()],
                stdin=subprocess.PIPE,  # nothing is ever written to it: see _end_with_parent
                stdout=self._log,
                stderr=self._log,
                start_new_session=True,  # it gets no Ctrl-C, and its own child processes can be killed with it
            )
        self.dead = False
        self.index: int | None = None
        """The number of its call; ``None`` when it is idle."""
        self.end = 0.0
        """The time limit of its call."""
        self._seconds = 0.0
        self.begin(_FIRST, first._replace(seconds=START + first.seconds))

    def begin(self, index: int, call: _Call) -> None:
        """Start a call."""
        self.index, self._seconds, self.end = index, call.seconds, time.monotonic() + call.seconds
        os.ftruncate(self._log.fileno(), 0)
        with contextlib.suppress(BrokenPipeError, ConnectionResetError):  # the process is dead, which its answer will report
            self.connection.send((call.function, call.arguments))

    def answer(self) -> Any:
        """The result of its call; afterwards the process is idle, or dead.

        A process is idle only once its answer was taken: an interrupt before that must not leave the answer to the next call.
        """
        if not self.connection.poll():
            self.kill()
            return Failure(f"hung: no answer in {self._seconds:g} s")
        try:
            answer = self.connection.recv()
        except (EOFError, OSError, pickle.UnpicklingError):
            return Failure(self._crash())
        self.index = None
        return answer

    def _crash(self) -> str:
        """How it died, with the first line of its error output."""
        with contextlib.suppress(subprocess.TimeoutExpired):
            self._process.wait(1.0)
        status = self._process.returncode
        self._log.seek(0)
        said = self._log.read(1 << 16).decode(errors="replace").splitlines()
        first = next((text for line in said if (text := line.strip(" !-"))), "")
        self.kill()
        if status is None:
            how = "it sent an invalid answer"
        elif status < 0:
            how = f"signal {-status} ({_signal_name(-status)})"
        else:
            how = f"exit status {status}"
        return f"crashed: {how}" + (f": {first[:_SHOWN]}" if first else "")

    def interrupt(self) -> None:
        """Kill the process and its child processes."""
        if not self.dead:
            with contextlib.suppress(ProcessLookupError, PermissionError):
                os.killpg(self._process.pid, signal.SIGKILL)
            self._process.kill()

    def kill(self) -> None:
        """Kill it, and record that it is dead."""
        if self.dead:
            return
        self.interrupt()
        self.dead, self.index = True, None
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
    """Run the calls that come through a pipe, one after the other, and send back their results."""
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
        except BaseException as error:  # a candidate may even call sys.exit
            answer = pickle.dumps(Failure(f"raised {type(error).__name__}: {error}"[:_SHOWN]))
        connection.send_bytes(answer)


def _end_with_parent() -> None:
    """Make the system kill this process, whatever it is doing, when the other end of its standard input is closed."""
    fcntl.fcntl(0, fcntl.F_SETOWN, os.getpid())
    fcntl.fcntl(0, cast(Any, fcntl).F_SETSIG, signal.SIGKILL)
    fcntl.fcntl(0, fcntl.F_SETFL, fcntl.fcntl(0, fcntl.F_GETFL) | os.O_ASYNC)
    if select.select([0], [], [], 0)[0]:  # it was closed before the signal was set up
        sys.exit(0)


def _nothing() -> None:
    """The first call of processes that need none."""
