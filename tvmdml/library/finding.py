"""Finding a compiled kernel: in memory, in the cache on disk, in the library of kernels if one is installed; else it is compiled.

Only that last step imports TVM's compiler.
"""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Sequence
from typing import TYPE_CHECKING

from tvmdml.errors import CompileError, reason
from tvmdml.kernels import plans
from tvmdml.library import installed
from tvmdml.system import apart, installing, whole
from tvmdml.system.disk import stores
from tvmdml.system.logger import LOGGER, timed
from tvmdml.targets import Launcher, Target

if TYPE_CHECKING:
    from tvmdml.kernels.kernel import Kernel

MAX_KERNELS = 1024
"""The most kernels kept in memory. Beyond that, all are dropped, and those that nobody uses are unloaded."""

_memory: dict[tuple[object, ...], Launcher] = {}
_locks: dict[tuple[object, ...], threading.RLock] = {}
_stored_lock = threading.RLock()
_locks_guard = threading.RLock()  # all are reentrant: a signal handler may run anywhere and call a kernel
compiled_count = 0
"""The number of kernels that this process has compiled."""


def find(kernel: Kernel, target: Target) -> Launcher:
    """The compiled kernel: from memory, from disk, from the library, or newly compiled.

    Raises:
        CompileError: it does not compile, or compiling is disabled (``TVMDML_DISABLE_JIT=1``).
    """
    identity = (target.name, target.code, *kernel.identity)
    if (launcher := _memory.get(identity)) is not None:
        return launcher
    with _locks_guard:
        lock = _locks.setdefault(identity, threading.RLock())

    def find_elsewhere() -> Launcher:
        launcher = _find_on_disk_or_build(kernel, target)
        _remember(identity, launcher)
        return launcher

    try:
        with lock:
            if (launcher := _memory.get(identity)) is None:
                launcher = apart(find_elsewhere)
    finally:
        _locks.pop(identity, None)
    return launcher


def _remember(identity: tuple[object, ...], launcher: Launcher) -> None:
    """Keep a kernel in memory. Their number is limited: each is a shared library with its own memory."""
    if len(_memory) >= MAX_KERNELS:
        _memory.clear()
        plans.forget()  # plans hold kernels too
    _memory[identity] = launcher


def _renew_locks() -> None:
    """Replace the locks in a forked child, where the threads that held them do not exist."""
    global _locks, _locks_guard, _stored_lock
    _locks, _locks_guard, _stored_lock = {}, threading.RLock(), threading.RLock()


os.register_at_fork(after_in_child=_renew_locks)


def _find_on_disk_or_build(kernel: Kernel, target: Target) -> Launcher:
    with whole():
        name, manifest = _named(kernel, target)
        store = stores.DiskStore()
        if (launcher := _stored(store, name, target) or installed.find(kernel, target)) is not None:
            LOGGER.debug("%s/%s for %s: from the cache", manifest["operator"], manifest["kernel"], target.kind)
            return launcher
    if os.environ.get("TVMDML_DISABLE_JIT", "0") not in ("", "0"):
        raise KernelMissing(f"it is not in {store.root}, and TVMDML_DISABLE_JIT forbids compiling it")
    with store.lock(name), whole():
        if (launcher := _stored(store, name, target)) is not None:  # another process built it meanwhile
            return launcher
        return _build(kernel, target, store, name, manifest)


def _named(kernel: Kernel, target: Target) -> tuple[str, dict[str, object]]:
    """The disk store's name of a kernel, and what it is computed from."""
    from tvmdml.library import stamps  # it is there if a schedule was asked; a plan of the cache asks none

    manifest = stamps.manifest(kernel, target)
    return stamps.digest(manifest), manifest


def _stored(store: stores.DiskStore, name: str, target: Target) -> Launcher | None:
    """A stored kernel, if it can be loaded. That may fail even if its checksum is right."""
    artifact = store.find(name, target.suffixes)
    try:
        return None if artifact is None else target.load(artifact)
    except CompileError as error:
        stores.warn_once(f"{store.root} {name}", f"tvmdml: {error} It is compiled again.")
        return None


def _build(kernel: Kernel, target: Target, store: stores.DiskStore, name: str, manifest: dict[str, object]) -> Launcher:
    global compiled_count
    begun = time.perf_counter()
    build = target.build(kernel.written(target))
    timed(time.perf_counter() - begun, "%s/%s for %s: compiled", manifest["operator"], manifest["kernel"], target.kind)
    with _locks_guard:
        compiled_count += 1
    try:
        with store.staging(name) as folder:
            written = build.write(folder)
            if written is None:
                stores.warn_once(
                    "linker",
                    "tvmdml: no linker was found, so every process compiles its kernels again. "
                    f"Install one (Debian: binutils) or {installing.command('orcjit')}.",
                )
            else:
                return target.load(store.add(name, manifest, written))
    except CompileError:
        raise
    except stores.Untrusted:
        pass  # a warning was given already
    except Exception as error:  # a kernel that cannot be stored still runs
        stores.warn_once(
            str(store.root),
            f"tvmdml: kernels cannot be stored in {store.root} ({reason(error)}); they are kept in memory only. "
            "Set TVMDML_CACHE_DIR to another folder.",
        )
    return build.launcher()


class KernelMissing(CompileError):
    """A kernel is not stored anywhere, and compiling is disabled."""


def absent(kernels: Sequence[Kernel], target: Target) -> list[Kernel]:
    """Those that are not loaded, nor in the store or the library."""
    return [one for one in kernels if not _is_here(one, target)]


def _is_here(kernel: Kernel, target: Target) -> bool:
    if (target.name, target.code, *kernel.identity) in _memory:
        return True
    if stores.DiskStore().find(_named(kernel, target)[0], target.suffixes) is not None:
        return True
    return installed.has(kernel, target)


# -- Without the schedule that chose it ---------------------------------------------------------------------------

_DIGEST = 40
"""The length of a digest."""
_MOST_STORED = 4096
"""The most of these kernels kept in memory, as ``MAX_KERNELS``."""
_stored_before: dict[tuple[str, ...], Launcher] = {}


def name_of(kernel: Kernel, target: Target) -> str:
    """What ``stored`` finds a kernel by, in this process or another: its digest in the cache, and its place in the library."""
    return _named(kernel, target)[0] + installed.place(kernel, target)


def stored(store: stores.DiskStore, name: str, target: Target) -> Launcher | None:
    """The kernel, loaded once in a process; ``None`` if neither the cache nor the library has it, or it cannot be loaded."""
    key = (str(store.root), target.name, target.code, name)
    with _stored_lock:
        if (known := _stored_before.get(key)) is not None:
            return known
        found = _stored(store, name[:_DIGEST], target) or installed.at(name[_DIGEST:], target)
        if found is not None:
            if len(_stored_before) >= _MOST_STORED:
                _stored_before.clear()
            _stored_before[key] = found
        return found
