"""``OpenedPack``: a pack file whose kernels are loaded when they are asked for. It knows neither operators nor schedules."""

from __future__ import annotations

import contextlib
import os
import threading
from typing import TYPE_CHECKING, Any

from tvmdml.errors import CompileError, PackError
from tvmdml.library import stamps

if TYPE_CHECKING:
    from tvmdml.kernels.kernel import Kernel
    from tvmdml.library.format import Pack
    from tvmdml.targets import Launcher, Target

_libraries: dict[tuple[str, bytes], Any] = {}
"""Loaded libraries by checksum, or the error of one that could not be loaded."""


class OpenedPack:
    """A pack file, and those of its kernels that are loaded."""

    def __init__(self, path: str | os.PathLike[str], *, own: bool = False) -> None:
        """
        Args:
            path: the file.
            own: this process has just built it: it needs no signature.

        Raises:
            InvalidArgument: ``TVMDML_TRUSTED_KEYS`` is set and names no key, or a key that cannot be read.
            PackError: the pack cannot be read, is damaged, or is not trusted.
        """
        from tvmdml.library import signing
        from tvmdml.library.format import Pack

        self.pack: Pack = Pack(path, None if own else signing.check)
        """The file."""
        self.codes = frozenset(self.pack.head["targets"])
        """``Target.code`` of each target that it has kernels for."""
        self._opened: dict[tuple[str, bytes], Any] = {}
        self._launchers: dict[tuple[str, bytes], Launcher] = {}
        self._found: dict[tuple[object, ...], Launcher | None] = {}
        self.renew_lock()

    def find(self, kernel: Kernel, target: Target) -> Launcher | None:
        """A kernel, loaded; ``None`` if the pack does not have it, or has it from other schedules than those installed.

        Raises:
            PackError: the kernel is damaged.
        """
        identity = (target.name, target.code, *kernel.identity)
        if (launcher := self._found.get(identity)) is None and (key := self.key(kernel, target)) is not None:
            launcher = self._found[identity] = self.launcher(key, target)
        return launcher

    def key(self, kernel: Kernel, target: Target) -> bytes | None:
        """The key of a kernel that ``find`` would load."""
        from tvmdml.library.records import kernel_key

        key = kernel_key(target.code, kernel.module, kernel.name, kernel.parameters)
        return key if self.pack.find(key) is not None and self.fits(kernel, target) else None

    def launcher(self, key: bytes, target: Target) -> Launcher | None:
        """The kernel with this key, loaded for a target that runs it; ``None`` if the pack does not have it.

        Raises:
            PackError: the kernel is damaged.
        """
        from tvmdml.library.records import symbol_of

        identity = (target.name, key)
        if (launcher := self._launchers.get(identity)) is not None:
            return launcher
        if (number := self.pack.find(key)) is None:
            return None
        with self._guard:
            try:
                launcher = self._launchers[identity] = target.entry(self._part(number, target), symbol_of(key))
            except CompileError as error:
                raise PackError(f"{self.pack.shown}: part {number}: {error}") from None
        return launcher

    def fits(self, kernel: Kernel, target: Target) -> bool:
        """Whether the pack's kernels were built from the installed schedules: those of others may take other arguments."""
        return all(self.source(module, target) == stamp for module, stamp in stamps.sources(kernel, target).items())

    def differs(self, kernel: Kernel, target: Target) -> bool:
        """Whether it has kernels of the operator that were built from other schedules."""
        return any(self.source(module, target) not in (None, stamp) for module, stamp in stamps.sources(kernel, target).items())

    def source(self, module: str, target: Target) -> str | None:
        """The stamp of the schedules that its kernels of an operator and kind were built from; ``None`` if it has none."""
        return self.pack.head["sources"].get(f"{target.kind} {module}")

    def renew_lock(self) -> None:
        """Called in a forked child: the thread that may have held the lock does not exist there."""
        self._guard = threading.RLock()

    def _part(self, number: int, target: Target) -> Any:
        """A part, loaded. A library is loaded once in a process, whichever pack it comes from, and stays loaded."""
        part = self.pack.part(number)
        key = ("", part.sha256) if target.joins else (target.name, part.sha256)
        opened = _libraries if target.joins else self._opened
        if key not in opened:
            try:
                opened[key] = self._open(number, target)
            except CompileError as error:
                opened[key] = error  # another try would fail in the same way
        if isinstance(opened[key], CompileError):
            raise opened[key]
        return opened[key]

    def _open(self, number: int, target: Target) -> Any:
        from tvmdml.system.disk.stores import Artifact

        suffix = self.pack.part(number).suffix
        if suffix not in target.suffixes:
            raise self.pack.damaged(f"a kernel for {target.kind} is in a part of type {suffix!r}")
        return target.open(self._unpacked(number, target) if target.joins else Artifact(suffix, self.pack.content(number)))

    def _unpacked(self, number: int, target: Target) -> Any:
        """A library. If it is compressed, the cache on disk keeps it under the hash of its content."""
        from tvmdml.system.disk.stores import Artifact, DiskStore

        part = self.pack.part(number)
        if part.stored >= part.size:
            return Artifact(part.suffix, self.pack.content(number))
        store, digest = DiskStore(), part.sha256.hex()[:40]
        if (artifact := store.find(digest, (part.suffix,), part.sha256.hex())) is not None:
            return artifact
        content = self.pack.content(number)
        manifest: dict[str, object] = {"operator": "pack", "kernel": "part of a pack", "target": target.code}
        with contextlib.suppress(OSError), store.staging(digest) as folder:
            built = folder / f"part{part.suffix}"
            built.write_bytes(content)
            return store.add(digest, manifest, built)
        return Artifact(part.suffix, content)
