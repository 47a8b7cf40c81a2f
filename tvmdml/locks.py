"""``locked``: a lock on a file, which keeps other processes and other threads out.

It is the system's own (``flock``): the end of its process frees it, however that came, so nothing stale is left. The file stays,
and says nothing. A fork in the middle of it leaves the lock with the parent: the child holds nothing, and waits like anybody else.
"""

from __future__ import annotations

import fcntl
import os
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from tvmdml._whole import whole

_LONGEST_PAUSE = 0.05
"""Seconds between two tries, at most."""
_FLAGS = os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW | os.O_NONBLOCK


class _Hold:
    """A thread that has, or tries to lock, a file."""

    def __init__(self, path: Path) -> None:
        self.thread = threading.get_ident()
        self.path = path


_held: dict[int, _Hold] = {}
"""By the file's descriptor."""


class Busy(TimeoutError):
    """Somebody else has the lock, and kept it for as long as was waited."""


@contextmanager
def locked(path: Path, timeout: float, *, again: bool = False) -> Iterator[None]:
    """Hold a file's lock.

    Args:
        path: the file; it is made, and stays. Its folder is there.
        timeout: seconds to wait for whoever has it.
        again: a thread that has it already does not wait for itself: a signal's handler may call what it has interrupted.

    Raises:
        Busy: somebody else still has it.
        OSError: the file cannot be made, is a link, or lies where files have no locks.
    """
    mine = _Hold(path)
    if again and any(other.thread == mine.thread and other.path == path for other in list(_held.values())):
        yield
        return
    try:
        _acquire(mine, timeout)
        yield
    finally:
        _release(mine)


def _acquire(mine: _Hold, timeout: float) -> None:
    end, pause = time.monotonic() + timeout, 0.001
    while not _try(mine):
        _release(mine)
        if time.monotonic() >= end:
            raise Busy(f"{mine.path} is locked by another process or thread")
        time.sleep(pause)
        pause = min(2 * pause, _LONGEST_PAUSE)


def _try(mine: _Hold) -> bool:
    """Whether the file is locked now, and still has its name: one that was removed meanwhile keeps nobody out."""
    with whole():  # no fork comes between: a child closes every descriptor that is written down
        descriptor = os.open(mine.path, _FLAGS, 0o600)
        _held[descriptor] = mine
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    return os.fstat(descriptor).st_nlink > 0


def _release(mine: _Hold) -> None:
    """Give a lock back. In a child that was forked meanwhile there is nothing to give back."""
    for descriptor in [descriptor for descriptor, who in list(_held.items()) if who is mine]:
        with suppress(OSError):
            fcntl.flock(descriptor, fcntl.LOCK_UN)  # at once, even if a program that is being started has the file, too
        del _held[descriptor]
        os.close(descriptor)


def _leave_to_parent() -> None:
    """In a forked child: close what the parent holds. That frees no lock, and the child keeps none when the parent ends."""
    for descriptor in list(_held):
        with suppress(OSError):
            os.close(descriptor)
    _held.clear()


os.register_at_fork(after_in_child=_leave_to_parent)
