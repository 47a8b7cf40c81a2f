"""The threads that parallel kernels run on: one pool for the process, in place of TVM's.

A compiled kernel starts its parallel loop through a C function pointer; here that pointer leads back into Python, to a pool
of ordinary threads. It works from any number of calling threads, sleeps when idle, and starts afresh in a forked child.
Handing work over costs about 20 microseconds, so a schedule goes parallel only where it saves more than that.
"""

from __future__ import annotations

import _thread
import ctypes
import functools
import itertools
import operator
import os
import queue
import threading
from collections.abc import Callable
from typing import Any

from tvmdml import _imports
from tvmdml.errors import InvalidArgument, message

_SYMBOL = b"__TVMBackendParallelLaunch"


class _Group(ctypes.Structure):
    """``TVMParallelGroupEnv``: what a task learns about the others."""

    _fields_ = (("sync_handle", ctypes.c_void_p), ("num_task", ctypes.c_int32))


_TASK = ctypes.CFUNCTYPE(ctypes.c_int, ctypes.c_int, ctypes.POINTER(_Group), ctypes.c_void_p)
_LAUNCH = ctypes.CFUNCTYPE(ctypes.c_int, ctypes.c_void_p, ctypes.c_void_p, ctypes.c_int)


def thread_count() -> int:
    """How many threads a kernel may use: ``TVMDML_NUM_THREADS``, or the processors this process may run on.

    Raises:
        InvalidArgument: the variable is not a number from 1 to 1024.
    """
    text = os.environ.get("TVMDML_NUM_THREADS", "").strip()
    if not text:
        return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    if not (text.isdecimal() and 1 <= int(text) <= 1024):
        raise InvalidArgument(message("TVMDML_NUM_THREADS", repr(text), "a number from 1 to 1024"))
    return int(text)


class _Job:
    """One parallel loop: task 0 is the caller's, the others are claimed by whichever worker comes first."""

    def __init__(self, address: int, data: int, count: int) -> None:
        self._task = _TASK(address)
        self._group = ctypes.pointer(_Group(None, count))
        self._data = data
        self._count = count
        self._claims = itertools.count(1)
        self._ended = itertools.count(1)
        self._finished = threading.Lock()
        self._finished.acquire()
        self.status = 0

    def work(self) -> None:
        """Run tasks until none is left to claim: what a worker does."""
        while (task := next(self._claims)) < self._count:
            self.status |= self._task(task, self._group, self._data)
            if next(self._ended) == self._count - 1:
                self._finished.release()

    def run_alone(self) -> None:
        """Run every task here, in order."""
        for task in range(self._count):
            self.status |= self._task(task, self._group, self._data)

    def run_first_and_wait(self, hand_over: Callable[[], None]) -> None:
        """Run task 0 here, and return when all are done: what the caller does.

        A signal handler may raise in the caller after any line, and the tasks use the caller's memory. So whatever comes, each
        step is taken exactly once and all are waited for; an interrupt is passed on after that. A step and the note that it was
        taken are one call into C (a list extended by a map), with no line of Python between them for a signal to come in at.
        """
        steps = (hand_over, functools.partial(self._task, 0, self._group, self._data), self._finished.acquire)
        results: list[Any] = []
        interrupted = False
        while len(results) < len(steps):
            try:
                results.extend(map(_call, steps[len(results) :]))
            except KeyboardInterrupt:
                interrupted = True
        self.status |= results[1]
        if interrupted:
            _thread.interrupt_main()


_call = operator.methodcaller("__call__")


class _Pool:
    """Threads that wait for jobs."""

    def __init__(self) -> None:
        self._jobs: queue.SimpleQueue[_Job] = queue.SimpleQueue()
        self._started = 0
        self._lock = threading.Lock()
        self._inside = threading.local()

    def launch(self, address: int, data: int, count: int) -> int:
        """``TVMBackendParallelLaunch``: run a kernel's tasks; 0 means as many as there are threads."""
        count = count if count > 0 else thread_count()
        job = _Job(address, data, count)
        if count == 1 or getattr(self._inside, "worker", False):
            job.run_alone()
        else:
            job.run_first_and_wait(functools.partial(self._hand_over, job, count - 1))
        return job.status

    def _hand_over(self, job: _Job, workers: int) -> None:
        if self._started < workers:
            self._start(workers)
        for _ in range(workers):
            self._jobs.put(job)  # a worker takes tasks until none is left, so handing over twice does no harm

    def _start(self, count: int) -> None:
        with self._lock:
            for _ in range(count - self._started):
                threading.Thread(target=self._run, name="tvmdml", daemon=True).start()
                self._started += 1

    def _run(self) -> None:
        self._inside.worker = True
        while True:
            self._jobs.get().work()


_pool = _Pool()


def _renew() -> None:
    """A forked child has none of its parent's threads."""
    global _pool
    _pool = _Pool()


os.register_at_fork(after_in_child=_renew)


def _launch(address: int, data: int, count: int) -> int:
    try:
        return _pool.launch(address, data, count)
    except BaseException:  # nothing may unwind into the kernel's frames
        return -1


_pointer = _LAUNCH(_launch)


def attach(library: ctypes.CDLL) -> None:
    """Give a loaded kernel library this pool; a library without a parallel loop has no place for it."""
    try:
        slot = ctypes.c_void_p.in_dll(library, _SYMBOL.decode())
    except ValueError:
        return
    slot.value = ctypes.cast(_pointer, ctypes.c_void_p).value


class everywhere:  # noqa: N801 - reads as a phrase: with threads.everywhere()
    """While this is entered, libraries that the runtime loads get this pool: for those that have no file to attach to."""

    def __enter__(self) -> None:
        """Register the pool with the runtime."""
        self._register(ctypes.cast(_pointer, ctypes.c_void_p))

    def __exit__(self, *exception: object) -> None:
        """Give the place back to TVM's own pool, which TVM's own users expect there."""
        library = ctypes.CDLL(None)
        theirs = getattr(library, "TVMBackendParallelLaunch", None)
        if theirs is not None:
            self._register(ctypes.cast(theirs, ctypes.c_void_p))

    def _register(self, function: Any) -> None:
        _imports.tvm_ffi().LIB.TVMFFIEnvModRegisterContextSymbol(ctypes.c_char_p(_SYMBOL), function)
