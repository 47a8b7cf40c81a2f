"""The thread pool in Python, used if the C extension was not built.

A kernel's parallel loop calls a C function pointer. Here that pointer leads back into Python, to a pool of ordinary threads.
Any number of threads may call it; it sleeps when idle, and starts again in a forked child. Handing work to it takes about 100
microseconds.
"""

from __future__ import annotations

import ctypes
import itertools
import operator
import os
import queue
import threading
from typing import Any

from tvmdml.errors import DeviceError
from tvmdml.targets._terms import Launcher
from tvmdml.targets.cpu.thread_count import thread_count


class _Group(ctypes.Structure):
    """``TVMParallelGroupEnv``: what a task is told about the group of tasks."""

    _fields_ = (("sync_handle", ctypes.c_void_p), ("num_task", ctypes.c_int32))


_TASK = ctypes.CFUNCTYPE(ctypes.c_int, ctypes.c_int, ctypes.POINTER(_Group), ctypes.c_void_p)
_LAUNCH = ctypes.CFUNCTYPE(ctypes.c_int, ctypes.c_void_p, ctypes.c_void_p, ctypes.c_int)


class _Job:
    """One parallel loop: tasks 0 to count - 1. Each is claimed by the first free thread; the caller's thread takes part."""

    def __init__(self, address: int, data: int, count: int) -> None:
        self._task = _TASK(address)
        self._group = ctypes.pointer(_Group(None, count))
        self._data = data
        self._count = count
        self._claims = itertools.count()
        self._ended = itertools.count(1)
        self.failed = False
        self.finished = threading.Lock()
        self.finished.acquire()

    def work(self) -> None:
        """Run tasks until all are claimed."""
        while (task := next(self._claims)) < self._count:
            if self._task(task, self._group, self._data) != 0:
                self.failed = True
            if next(self._ended) == self._count:
                self.finished.release()


class _Call:
    """A kernel's launch that a worker runs for the main thread."""

    def __init__(self, launcher: Launcher, arguments: tuple[Any, ...]) -> None:
        self._launcher = launcher
        self._arguments = arguments
        self._limit = getattr(_own, "limit", 0)
        self._claims = itertools.count()
        self._error: BaseException | None = None
        self.finished = threading.Lock()
        self.finished.acquire()

    def work(self) -> None:
        """Run it once, even if it was queued several times."""
        if next(self._claims) == 0:
            _own.limit = self._limit
            try:
                self._launcher(*self._arguments)
            except BaseException as error:  # the waiting thread raises it
                self._error = error
            self._arguments = ()  # a worker knows its last call, whose arrays may be resized or go
            self.finished.release()

    def result(self) -> None:
        """Raise what the launch raised."""
        if self._error is not None:
            raise self._error


class _Pool:
    """Threads that wait for work."""

    def __init__(self) -> None:
        self._work: queue.SimpleQueue[_Job | _Call] = queue.SimpleQueue()
        self._started = 0
        self._lock = threading.Lock()
        self._inside = threading.local()

    def launch(self, address: int, data: int, count: int) -> None:
        """Run a kernel's tasks; a count of 0 means one task per thread."""
        threads = thread_count()
        if count <= 0:  # one round needs no threads; the first of the values that a loop uses is the number of its rounds
            count = 1 if data and ctypes.c_int64.from_address(data).value == 1 else threads
        job = _Job(address, data, count)
        helped = min(count, threads, getattr(_own, "limit", 0) or count)
        nested = getattr(self._inside, "tasks", False)
        if helped > 1 and not nested:
            self._start(helped)  # not helped - 1: the caller may itself be a worker that runs a call for the main thread
            for _ in range(helped - 1):
                self._work.put(job)
        self._inside.tasks = True
        try:
            job.work()
        finally:
            self._inside.tasks = nested
        job.finished.acquire()
        if job.failed:
            raise DeviceError("cpu: a part of a kernel failed on a thread, so its outputs are incomplete. Is memory short?")

    def call(self, call: _Call) -> None:
        """Have a worker run a call, and wait for it. An exception that arrives meanwhile is raised after the call."""
        if not self._start(1):  # the system could not start a thread
            call.work()
            return call.result()
        waited: list[bool] = []
        interrupt: BaseException | None = None
        while not waited:
            try:
                self._work.put(call)
                # `extend` and `map` are one step for the interpreter: no exception can come between the wait and the record of it.
                waited.extend(map(_acquire, (call.finished,)))
            except BaseException as error:  # a signal handler may raise any exception
                interrupt = error
        if interrupt is not None:
            raise interrupt
        return call.result()

    def _start(self, count: int) -> int:
        """Start threads until there are this many workers, if the system allows; returns how many there are."""
        if self._started < count:
            with self._lock:
                try:
                    for _ in range(count - self._started):
                        threading.Thread(target=self._run, name="tvmdml", daemon=True).start()
                        self._started += 1
                except RuntimeError:  # no more threads: the existing workers or the caller do the work
                    pass
        return self._started

    def _run(self) -> None:
        while True:
            work = self._work.get()
            self._inside.tasks = isinstance(work, _Job)  # a loop inside a task runs on its own thread; a call may use the pool
            work.work()


_acquire = operator.methodcaller("acquire")
_pool = _Pool()


def _renew() -> None:
    """Replace the pool in a forked child, which has none of its parent's threads."""
    global _pool
    _pool = _Pool()


os.register_at_fork(after_in_child=_renew)


_failures = threading.local()
_own = threading.local()
"""``limit``: how many threads launches of a thread may use; 0 for as many as others."""


def limit_thread(threads: int) -> int:
    """Set how many threads launches of this thread may use; returns what it was."""
    before: int = getattr(_own, "limit", 0)
    _own.limit = threads
    return before


def _launch(address: int, data: int, count: int) -> int:
    """``TVMBackendParallelLaunch``. No exception may cross the kernel's frames: it is stored, and raised after the kernel."""
    try:
        _pool.launch(address, data, count)
    except BaseException as error:
        _failures.error = error
    return 0


_pointer = _LAUNCH(_launch)
ADDRESS = ctypes.cast(_pointer, ctypes.c_void_p).value or 0
"""The address of ``TVMBackendParallelLaunch``."""


def shielded(launcher: Launcher) -> Launcher:
    """Protect a parallel kernel's launcher from exceptions of signal handlers.

    Python runs signal handlers in the main thread after any line, so also inside the pool while a kernel waits for it. An
    exception there could not be raised. Therefore a worker makes the main thread's call, and the main thread only waits.
    """

    def launch(*arguments: Any) -> None:
        _failures.error = None
        launcher(*arguments)
        if _failures.error is not None:
            raise _failures.error

    def run(*arguments: Any) -> None:
        if threading.current_thread() is threading.main_thread():
            _pool.call(_Call(launch, arguments))
        else:
            launch(*arguments)

    return run
