"""The library of kernels: the packs of the package ``tvmdml_kernels``, if that is installed. It is searched after the cache.

A pack of the library is for one target, whose name the file's name is: ``cpu-x86-64-v4.tvmdml``. A kernel is found by its module,
name and parameters, whichever operator asks for it. The stamps of the sources that made it are compared with those installed: where
they differ, the kernel is compiled.
"""

from __future__ import annotations

import functools
import importlib.util
import os
import re
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

from tvmdml.errors import InvalidArgument, PackError
from tvmdml.system import at_hand
from tvmdml.system.disk.stores import warn_once

if TYPE_CHECKING:
    from tvmdml.kernels.kernel import Kernel
    from tvmdml.library.opened import OpenedPack
    from tvmdml.targets import Launcher, Target

PACKAGE = "tvmdml_kernels"
SUFFIX = ".tvmdml"
BUILD = "Build it from the installed sources (`tvmdml pack wheel`) and install it again."
"""What to do about one of other sources."""
_PLACE = re.compile(r"([0-9a-f]{16})([0-9a-f]{32})")
"""The checksum of a pack, and the key of a kernel."""

_opened: dict[tuple[Path, str | None], OpenedPack | None] = {}
_lock = threading.RLock()


def _renew_lock() -> None:
    global _lock
    _lock = threading.RLock()
    for pack in _opened.values():
        if pack is not None:
            pack.renew_lock()


os.register_at_fork(after_in_child=_renew_lock)  # the thread that held the lock does not exist in the child


@functools.cache
def folder() -> Path | None:
    """The folder of the installed package; ``None`` if there is none."""
    try:
        spec = importlib.util.find_spec(PACKAGE)
    except (ImportError, ValueError):
        return None
    return Path(spec.origin).parent if spec is not None and spec.origin else None


@functools.cache
def files() -> tuple[tuple[str, Path], ...]:
    """The packs with the names of their targets: those of more features first, which are longer."""
    where = folder()
    try:
        paths = [] if where is None else sorted(where.glob(f"*{SUFFIX}"))
    except OSError:
        return ()
    named = [(path.name.removesuffix(SUFFIX).replace("-", ":", 1), path) for path in paths]
    return tuple(sorted(named, key=lambda one: len(one[0]), reverse=True))


def file_name(target: str) -> str:
    """The name of the pack for a target, given by its name in packs."""
    return f"{target.replace(':', '-', 1)}{SUFFIX}"


def opened(path: Path) -> OpenedPack | None:
    """A pack, opened once; ``None`` if it cannot be used, of which a warning says why."""
    key = path, os.environ.get("TVMDML_TRUSTED_KEYS")
    with _lock:
        if key not in _opened:
            at_hand("tvmdml.library.opened")
            from tvmdml.library.opened import OpenedPack

            try:
                _opened[key] = OpenedPack(path)
            except (InvalidArgument, PackError) as error:
                _opened[key] = None
                warn_once(f"library {path}", f"tvmdml: {PACKAGE} is not used: {error}")
        return _opened[key]


def _packs(target: Target) -> Iterator[tuple[OpenedPack, Target]]:
    """The packs for a target, each with a target that its kernels are for, the best first."""
    for name, path in files():
        if target.takes(name) and (pack := opened(path)) is not None:
            for relative in target.relatives(pack.codes):
                yield pack, relative


def _places(kernel: Kernel, target: Target) -> Iterator[tuple[OpenedPack, Target, bytes]]:
    """Where a kernel is: at most one place matters."""
    for pack, relative in _packs(target):
        if (key := pack.key(kernel, relative)) is not None:
            yield pack, relative, key
        elif pack.differs(kernel, relative):
            about = f"{PACKAGE}: kernels such as those of {kernel.module} were built from other sources than those installed"
            warn_once(f"library {folder()}", f"tvmdml: {about}, and are not used. {BUILD}")


def has(kernel: Kernel, target: Target) -> bool:
    """Whether the library has a kernel for a target."""
    return next(_places(kernel, target), None) is not None


def find(kernel: Kernel, target: Target) -> Launcher | None:
    """A kernel, loaded; ``None`` if the library does not have it from the installed sources."""
    return next((launcher for pack, own, key in _places(kernel, target) if (launcher := _loaded(pack, key, own)) is not None), None)


def place(kernel: Kernel, target: Target) -> str:
    """Where ``at`` finds a kernel: 48 hexadecimal digits; empty if the library does not have it."""
    return next((pack.pack.checksum[:16] + key.hex() for pack, _, key in _places(kernel, target)), "")


def at(place: str, target: Target) -> Launcher | None:
    """The kernel at a place, loaded without a schedule; ``None`` if the library there was is here no more."""
    if (said := _PLACE.fullmatch(place)) is None:
        return None
    key = bytes.fromhex(said[2])
    for pack, own in _packs(target):
        if pack.pack.checksum.startswith(said[1]) and (record := pack.pack.kernel(key)) is not None and record.target == own.code:
            return _loaded(pack, key, own)
    return None


def _loaded(pack: OpenedPack, key: bytes, target: Target) -> Launcher | None:
    try:
        return pack.launcher(key, target)
    except PackError as error:
        warn_once(f"library {pack.pack.path}", f"tvmdml: a kernel of {PACKAGE} is compiled instead: {error}")
        return None
