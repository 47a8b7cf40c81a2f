"""``stored``: a kernel of the cache by its digest alone, without the schedule that chose it."""

from __future__ import annotations

import os
import threading

from tvmdml.disk import stores
from tvmdml.errors import CompileError
from tvmdml.targets import Launcher, Target

_MOST = 4096
"""The most kernels kept in memory. Beyond that, all are dropped, and those that nobody uses are unloaded."""
_memory: dict[tuple[str, ...], Launcher] = {}
_lock = threading.RLock()


def _renew_lock() -> None:
    global _lock
    _lock = threading.RLock()


os.register_at_fork(after_in_child=_renew_lock)  # the thread that held the lock does not exist in the child


def stored(store: stores.DiskStore, digest: str, target: Target) -> Launcher | None:
    """The kernel, loaded once in a process; ``None`` if the cache does not have it, or it cannot be loaded."""
    key = (str(store.root), target.name, target.code, digest)
    with _lock:
        if (known := _memory.get(key)) is not None:
            return known
        artifact = store.find(digest, target.suffixes)
        try:
            found = None if artifact is None else target.load(artifact)
        except CompileError:  # it is compiled again, on the usual way
            return None
        if found is not None:
            if len(_memory) >= _MOST:
                _memory.clear()
            _memory[key] = found
        return found
