"""Work that is done whole: no fork, no signal and no end of the process cuts it in two.

Imports and TVM's compiler do not get over that. A child forked while another thread imports a module waits for that thread for
ever. What a signal's handler raises inside of an import leaves half a module behind, and inside of the compiler becomes an error of
the compiler's. And a daemon thread that Python ends while C++ has called it takes the process with it.
"""

from __future__ import annotations

import _thread
import atexit
import logging  # noqa: F401 - before the hooks below: the one registered last is called first, and logging's holds a lock from then on
import os
import threading
import time
import weakref
from collections.abc import Callable, Iterator
from contextlib import contextmanager, nullcontext
from typing import Generic, TypeVar

T = TypeVar("T")

PATIENCE = 30.0
"""Seconds that a fork, or the end of the process, waits for work to be whole: nothing that is done here takes so long."""
_LOOK = 0.1
"""Seconds after which a thread that waits for another one looks whether there still is one."""

_gate = threading.RLock()
"""Who begins such work goes through here. Who forks stands in it meanwhile, and the end of the process does for good."""
_under_way: dict[object, int] = {}
"""The thread of each piece of work."""
_ended = False


@contextmanager
def whole(*, begun: bool = False) -> Iterator[None]:
    """Nothing forks meanwhile, and the process does not end. What may have to wait for another process does not belong in here.

    Args:
        begun: it is a part of what another thread is in the middle of, and waits for.
    """
    thread, piece = threading.get_ident(), object()
    nested = begun or thread in list(_under_way.values())
    try:
        with nullcontext() if nested else _gate:
            _under_way[piece] = thread
        yield
    finally:
        _under_way.pop(piece, None)


def _wait_for_others() -> None:
    """Until nobody else is in the middle of something."""
    me, end = threading.get_ident(), time.monotonic() + PATIENCE
    while set(_under_way.values()) - {me} and time.monotonic() < end:
        time.sleep(0.001)


def _forget_others() -> None:
    """None of the other threads is in a forked child."""
    me = threading.get_ident()
    for piece in [piece for piece, thread in _under_way.items() if thread != me]:
        del _under_way[piece]


def _end() -> None:
    """From here on daemon threads begin nothing new; they are ended where they wait."""
    global _ended
    _gate.acquire()
    _ended = True
    _wait_for_others()


os.register_at_fork(before=_wait_for_others, after_in_child=_forget_others)
# Functions in C, that nothing comes into: with the gate left shut, nobody would ever begin anything again.
os.register_at_fork(before=_gate.acquire, after_in_parent=_gate.release, after_in_child=_gate.release)
atexit.register(_end)


def apart(work: Callable[[], T]) -> T:
    """Do work where no signal's handler comes in: Python runs those in the main thread, so that one has another thread do it.

    What a handler raises ends the wait alone. The work goes on, and is there for whoever asks next. Where there is no thread to be
    had, it is done here.
    """
    here = threading.get_ident()
    if here != threading.main_thread().ident or _ended:
        return work()
    import contextvars

    begun, process = here in list(_under_way.values()), os.getpid()
    try:
        answer: _Answer[T] = _Answer()
        thread = _Alive()
        alive = weakref.ref(thread)
        _thread.start_new_thread(contextvars.copy_context().run, (answer.give, work, begun, thread))
    except (RuntimeError, MemoryError):  # the system gives no more threads, or locks
        return work()
    del thread
    while not answer.given.acquire(timeout=_LOOK):
        # It went before it could begin, for want of memory; or a handler forked, and this is the child.
        gone = alive() is None or process != os.getpid()
        if gone and not answer.given.acquire(blocking=False):
            return work()
    return answer.take()


class _Alive:
    """Is there for as long as the thread that has it."""


class _Answer(Generic[T]):
    """What a thread's work came to. ``threading.Thread`` and ``Future`` wait for ever for a thread that had no memory to begin."""

    def __init__(self) -> None:
        self.given = _thread.allocate_lock()
        self.given.acquire()
        self._result: T
        self._error: BaseException | None = None

    def give(self, work: Callable[[], T], begun: bool, _alive: _Alive) -> None:
        try:
            with whole(begun=True) if begun else nullcontext():
                self._result = work()
        except BaseException as error:  # it belongs to whoever waits
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
            del error  # which has this frame
