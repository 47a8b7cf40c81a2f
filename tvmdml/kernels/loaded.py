"""``stored``: a kernel of the cache or the library by a name alone, without the schedule that chose it."""

from __future__ import annotations

import os
import threading
from typing import TYPE_CHECKING

from tvmdml._whole import at_hand
from tvmdml.disk import stores
from tvmdml.errors import CompileError
from tvmdml.packs import library
from tvmdml.targets import Launcher, Target

if TYPE_CHECKING:
    from tvmdml.kernels.kernel import Kernel

_DIGEST = 40
"""The length of a digest."""
_MOST = 4096
"""The most kernels kept in memory. Beyond that, all are dropped, and those that nobody uses are unloaded."""
_memory: dict[tuple[str, ...], Launcher] = {}
_lock = threading.RLock()


def _renew_lock() -> None:
    global _lock
    _lock = threading.RLock()


os.register_at_fork(after_in_child=_renew_lock)  # the thread that held the lock does not exist in the child


def name_of(kernel: Kernel, target: Target) -> str:
    """What ``stored`` finds a kernel by, in this process or another: its digest in the cache, and its place in the library."""
    at_hand("tvmdml.kernels.kernel")
    from tvmdml.kernels.kernel import digest

    return digest(kernel.manifest(target)) + library.place(kernel, target)


def stored(store: stores.DiskStore, name: str, target: Target) -> Launcher | None:
    """The kernel, loaded once in a process; ``None`` if neither the cache nor the library has it, or it cannot be loaded."""
    key = (str(store.root), target.name, target.code, name)
    with _lock:
        if (known := _memory.get(key)) is not None:
            return known
        artifact = store.find(name[:_DIGEST], target.suffixes)
        try:
            found = None if artifact is None else target.load(artifact)
        except CompileError:  # it is compiled again, on the usual way
            found = None
        if found is None:
            found = library.at(name[_DIGEST:], target)
        if found is not None:
            if len(_memory) >= _MOST:
                _memory.clear()
            _memory[key] = found
        return found
