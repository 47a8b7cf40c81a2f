"""Work that must not be interrupted by a fork, a signal or the end of the process.

Imports and TVM's compiler cannot survive such an interruption. If a process forks while another thread imports a module, the child
waits for that thread forever. An exception that a signal handler raises during an import leaves a half-initialised module; inside
the compiler it becomes a compiler error. If Python ends a daemon thread during a call from C++, the whole process crashes.

Every import of a module of this package is such work, wherever it is written.
"""

from __future__ import annotations

import _thread
import atexit
import gc
import logging  # noqa: F401 - registers its hook before those below: hooks run in reverse order, and logging's hook takes a lock
import os
import sys
import threading
import time
import weakref
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, nullcontext, suppress
from typing import Any, Generic, TypeVar

T = TypeVar("T")

BEGAN = time.time()
"""When this package was imported: its first module notes it."""
PATIENCE = 30.0
"""Seconds that a fork, or the end of the process, waits for such work to finish. No work here takes that long."""
_PACKAGE = __name__.partition(".")[0]
_LOOK = 0.1
"""Seconds after which a waiting thread checks whether the thread it waits for still exists."""

_STATEMENTS = 257
"""What Python's C interface calls statements, ``Py_file_input``."""

_gate = threading.RLock()
"""Held for a moment when such work begins, during a fork, and from the end of the process on."""
_under_way: dict[object, int] = {}
"""The thread of each piece of work."""
_ended = False
_left = False
"""Whether an interrupt has ended the wait for work that goes on."""


@contextmanager
def whole(*, begun: bool = False) -> Iterator[None]:
    """A context manager: forks and the end of the process wait for the work inside. Do not wait for another process inside.

    Args:
        begun: this work is part of work that another thread has begun and is waiting for.
    """
    thread, piece = threading.get_ident(), object()
    nested = begun or thread in _working()
    try:
        with nullcontext() if nested else _gate:
            _under_way[piece] = thread
        yield
    finally:
        _under_way.pop(piece, None)


def _working() -> set[int]:
    """The threads that do such work."""
    return {*_under_way.values(), *_importing()}


def _importing() -> set[int]:
    """The threads that import modules of this package: they hold locks of importlib's."""
    found = set()
    for name, lock in list(getattr(sys.modules.get("_frozen_importlib"), "_module_locks", {}).items()):
        owner = getattr(lock(), "owner", None)
        if owner is not None and (name == _PACKAGE or name.startswith(f"{_PACKAGE}.")):
            found.add(owner)
    return found


def _wait_for_others() -> None:
    """Wait until no other thread is doing such work."""
    me, end = threading.get_ident(), time.monotonic() + PATIENCE
    while _working() - {me} and time.monotonic() < end:
        time.sleep(0.001)


def _forget_others() -> None:
    """Remove the other threads' work: they do not exist in a forked child."""
    me = threading.get_ident()
    for piece in [piece for piece, thread in _under_way.items() if thread != me]:
        del _under_way[piece]


def _end() -> None:
    """Block daemon threads from beginning new work; Python ends them while they wait."""
    global _ended
    _gate.acquire()
    _ended = True
    goes_on = _left or bool(_working() - {threading.get_ident()})
    _wait_for_others()
    if goes_on and getattr(sys, "last_type", None) is KeyboardInterrupt and not hasattr(sys, "ps1"):
        _end_as_interrupted()


def _end_as_interrupted() -> None:
    """Have Python end by SIGINT, for which shells show 130, because nobody caught KeyboardInterrupt.

    It would by itself, but forgets this if another thread then executes text, as every NamedTuple does that is imported meanwhile.
    There is no other way to tell it than to execute text that raises the exception.
    """
    with suppress(BaseException):  # the exception itself, or Python has no such function
        import ctypes

        kind = ctypes.PYFUNCTYPE(ctypes.py_object, ctypes.c_char_p, ctypes.c_int, ctypes.py_object, ctypes.py_object)
        kind(("PyRun_String", ctypes.pythonapi))(b"raise KeyboardInterrupt", _STATEMENTS, {}, {})


os.register_at_fork(before=_wait_for_others, after_in_child=_forget_others)
# These are C functions, which no signal handler can interrupt. If the gate stayed locked, no thread could ever begin work again.
os.register_at_fork(before=_gate.acquire, after_in_parent=_gate.release, after_in_child=_gate.release)
atexit.register(_end)


def apart(work: Callable[[], T]) -> T:
    """Do work where no signal handler can interrupt it. Python runs handlers on the main thread, so another thread does the work.

    An exception that a handler raises only ends the wait. The work goes on, and its effect is available to the next caller. If no
    thread can be started, the work is done on the calling thread.
    """
    here = threading.get_ident()
    if here != threading.main_thread().ident or _ended:
        return work()
    import contextvars

    begun, process = here in _working(), os.getpid()
    try:
        answer: _Answer[T] = _Answer()
        thread = _Alive()
        alive = weakref.ref(thread)
        _thread.start_new_thread(contextvars.copy_context().run, (answer.give, work, begun, thread))
    except (RuntimeError, MemoryError):  # the system provides no more threads or locks
        return work()
    del thread
    while not _given(answer):
        # The thread ended before it began, because memory ran out; or a handler forked, and this is the child.
        gone = alive() is None or process != os.getpid()
        if gone and not answer.given.acquire(blocking=False):
            return work()
    return answer.take()


def _given(answer: _Answer[Any]) -> bool:
    """Wait for a moment."""
    global _left
    try:
        return answer.given.acquire(timeout=_LOOK)
    except KeyboardInterrupt:
        _left = True
        raise


@contextmanager
def not_collected(*, lasting: bool = False) -> Iterator[None]:
    """No garbage is collected inside: what is imported, or part of a graph, is none, and to look at all of it takes long.

    Args:
        lasting: what is made inside stays as long as the process, so it counts as old at the end: nobody looks at it soon after.
    """
    enabled = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if enabled:
            if lasting and not gc.get_freeze_count():  # a program's own frozen objects stay so
                gc.freeze()
                gc.unfreeze()
            gc.enable()


def imported(load: Callable[[], T]) -> T:
    """Import something when it is first needed: forks wait for it, and signal handlers, which may need it too, do not interrupt it.

    A module that is being imported itself imports on its own thread: others would wait for it.
    """

    def work() -> T:
        with whole(), not_collected(lasting=True):
            return load()

    return work() if threading.get_ident() in _importing() else apart(work)


def at_hand(*modules: str) -> None:
    """Import modules as ``imported`` does, before a statement in a function takes names from them: then it only looks them up."""
    found = [sys.modules.get(name) for name in modules]  # None: not there, or its import is forbidden
    if all(one is not None and not getattr(getattr(one, "__spec__", None), "_initializing", False) for one in found):
        return

    def load() -> None:
        import importlib

        for name in modules:
            importlib.import_module(name)

    imported(load)


def on_first_use(
    package: str, modules: Mapping[str, Sequence[str]]
) -> tuple[Callable[[str], Any], Callable[[], list[str]], list[str]]:
    """``__getattr__``, ``__dir__``, ``__all__`` of a package whose modules, and the names in them, are imported on first use.

    Args:
        package: its ``__name__``.
        modules: the public names that each module defines; a point before its name is for each package that is left, as in imports.
    """
    homes = {name: module for module, names in modules.items() for name in names}

    def attribute(name: str) -> Any:
        if name not in homes and name not in modules:
            raise AttributeError(f"module {package!r} has no attribute {name!r}")
        import importlib

        module = imported(lambda: importlib.import_module(f".{homes.get(name, name)}", package))
        value = getattr(module, name) if name in homes else module
        setattr(sys.modules[package], name, value)
        return value

    return attribute, lambda: sorted({*vars(sys.modules[package]), *homes}), sorted(homes)


class _Alive:
    """An object that lives as long as the thread that holds it."""


class _Answer(Generic[T]):
    """The result of a thread's work. ``threading.Thread`` and ``Future`` wait forever for a thread that had no memory to begin."""

    def __init__(self) -> None:
        self.given = _thread.allocate_lock()
        self.given.acquire()
        self._result: T
        self._error: BaseException | None = None

    def give(self, work: Callable[[], T], begun: bool, _alive: _Alive) -> None:
        try:
            with whole(begun=True) if begun else nullcontext():
                self._result = work()
        except BaseException as error:  # raised again in the waiting thread
            self._error = error
        finally:
            self.given.release()

    def take(self) -> T:
        error, self._error = self._error, None
        try:
            if error is not None:
                raise error
            return self._result
        finally:
            del error  # its traceback refers to this frame
