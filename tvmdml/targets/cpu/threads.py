"""The threads that parallel kernels run on: one pool for the process, in place of TVM's.

A compiled kernel starts its parallel loop through a C function pointer; here that pointer leads back into Python, to a pool
of ordinary threads. It works from any number of calling threads, sleeps when idle, and starts afresh in a forked child.
Handing work over costs about 100 microseconds, so a schedule goes parallel only where it saves more than that.
"""

from __future__ import annotations

import ctypes
import itertools
import operator
import os
import queue
import threading
from typing import Any

from tvmdml import _imports
from tvmdml.errors import InvalidArgument, message
from tvmdml.targets import Launcher

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
    """One parallel loop: tasks 0 to count - 1, each claimed by whichever thread comes first, the caller's among them."""

    def __init__(self, address: int, data: int, count: int) -> None:
        self._task = _TASK(address)
        self._group = ctypes.pointer(_Group(None, count))
        self._data = data
        self._count = count
        self._claims = itertools.count()
        self._ended = itertools.count(1)
        self.finished = threading.Lock()
        self.finished.acquire()

    def work(self) -> None:
        """Run tasks until none is left to claim."""
        while (task := next(self._claims)) < self._count:
            self._task(task, self._group, self._data)
            if next(self._ended) == self._count:
                self.finished.release()


class _Call:
    """A kernel's launch on behalf of the main thread."""

    def __init__(self, launcher: Launcher, arguments: tuple[Any, ...]) -> None:
        self._launcher = launcher
        self._arguments = arguments
        self._claims = itertools.count()
        self._error: BaseException | None = None
        self.finished = threading.Lock()
        self.finished.acquire()

    def work(self) -> None:
        """Run it, once, however often it was handed over."""
        if next(self._claims) == 0:
            try:
                self._launcher(*self._arguments)
            except BaseException as error:  # it belongs to the thread that waits
                self._error = error
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
        """Run a kernel's tasks; 0 means as many as there are threads."""
        count = count if count > 0 else thread_count()
        job = _Job(address, data, count)
        if count > 1 and not getattr(self._inside, "tasks", False):
            self._start(
                count
            )  # one more than are handed the job: the caller may be a worker itself, with a call of the main thread's
            for _ in range(count - 1):
                self._work.put(job)
        job.work()
        job.finished.acquire()

    def call(self, call: _Call) -> None:
        """Have a worker make a call, and wait for it. Whatever is raised meanwhile is raised when the call is over."""
        if not self._start(1):  # the system gives no more threads
            call.work()
            return call.result()
        waited: list[bool] = []
        interrupt: BaseException | None = None
        while not waited:
            try:
                self._work.put(call)
                # One step for the interpreter: there is no moment at which the call was waited for and nobody knows.
                waited.extend(map(_acquire, (call.finished,)))
            except BaseException as error:  # a signal's handler may raise what it likes
                interrupt = error
        if interrupt is not None:
            raise interrupt
        return call.result()

    def _start(self, count: int) -> int:
        """Have at least this many workers, if the system gives them; returns how many there are."""
        if self._started < count:
            with self._lock:
                try:
                    for _ in range(count - self._started):
                        threading.Thread(target=self._run, name="tvmdml", daemon=True).start()
                        self._started += 1
                except RuntimeError:  # it gives no more: those there are do the work, or the caller does
                    pass
        return self._started

    def _run(self) -> None:
        while True:
            work = self._work.get()
            self._inside.tasks = isinstance(work, _Job)  # a task runs a loop of its own alone; a call may hand one over
            work.work()


_acquire = operator.methodcaller("acquire")
_pool = _Pool()


def _renew() -> None:
    """A forked child has none of its parent's threads."""
    global _pool
    _pool = _Pool()


os.register_at_fork(after_in_child=_renew)


_failures = threading.local()


def _launch(address: int, data: int, count: int) -> int:
    """``TVMBackendParallelLaunch``. Nothing may unwind into the kernel: what is raised here is raised when the kernel is over."""
    try:
        _pool.launch(address, data, count)
    except BaseException as error:
        _failures.error = error
    return 0


_pointer = _LAUNCH(_launch)


def is_parallel(content: bytes) -> bool:
    """Whether an object or library has a parallel loop."""
    return _SYMBOL in content


def shielded(launcher: Launcher) -> Launcher:
    """A launcher of a parallel kernel that a signal cannot hurt.

    Python runs signal handlers in the main thread, after any line, so also in the pool's own lines while a kernel waits on them: an
    exception from there has nowhere to go. The main thread has another make the call, and is the one that waits.
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


def attach(library: ctypes.CDLL) -> None:
    """Give a loaded kernel library this pool."""
    slot = ctypes.c_void_p.in_dll(library, _SYMBOL.decode())
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
