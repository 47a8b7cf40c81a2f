"""``locked``: a file lock between processes and threads.

It uses the system's ``flock``: when the process ends, for any reason, the system releases the lock, so no stale lock remains. The
file remains, and is empty. After a fork the parent keeps the lock: the child holds nothing, and waits like any other process.
"""

from __future__ import annotations

import fcntl
import os
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from tvmdml.system import whole

_LONGEST_PAUSE = 0.05
"""The most seconds between two attempts."""
_FLAGS = os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW | os.O_NONBLOCK


class _Hold:
    """A thread that holds a file's lock, or is trying to take it."""

    def __init__(self, path: Path) -> None:
        self.thread = threading.get_ident()
        self.path = path


_held: dict[int, _Hold] = {}
"""By the file's descriptor."""


class Busy(TimeoutError):
    """Another process or thread held the lock for the whole timeout."""


@contextmanager
def locked(path: Path, timeout: float, *, again: bool = False) -> Iterator[None]:
    """Hold a file's lock.

    Args:
        path: the file; it is created if needed, and not removed. Its folder must exist.
        timeout: seconds to wait for the lock.
        again: a thread that already holds the lock may enter again: a signal handler may call the function that it interrupted.

    Raises:
        Busy: another process or thread still holds it.
        OSError: the file cannot be created, is a link, or is on a file system without locks.
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
    """Try to lock the file. Fails if the file was removed meanwhile: others could then lock a new file of the same name."""
    with whole():  # no fork between these lines: a child closes only the recorded descriptors
        descriptor = os.open(mine.path, _FLAGS, 0o600)
        _held[descriptor] = mine
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    return os.fstat(descriptor).st_nlink > 0


def _release(mine: _Hold) -> None:
    """Release a lock. In a child that was forked meanwhile there is nothing to release."""
    for descriptor in [descriptor for descriptor, who in list(_held.items()) if who is mine]:
        with suppress(OSError):
            fcntl.flock(
                descriptor, fcntl.LOCK_UN
            )  # immediately, even if a program that is just being started has the file open too
        del _held[descriptor]
        os.close(descriptor)


def _leave_to_parent() -> None:
    """In a forked child: close the parent's descriptors. This releases no lock, and the child keeps none after the parent ends."""
    for descriptor in list(_held):
        with suppress(OSError):
            os.close(descriptor)
    _held.clear()


os.register_at_fork(after_in_child=_leave_to_parent)
