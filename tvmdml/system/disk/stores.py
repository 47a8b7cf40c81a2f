"""``DiskStore``: compiled kernels on disk, shared by processes and by versions of tvmdml.

An entry is two files. The artifact's name contains the hash of its content, and it is never overwritten, because the system's
loader caches libraries by path. The manifest names the artifact; it is written last, so an entry is complete or absent. Entries
that fail a check count as absent and are built again. So do files that another user may have written (``_trust``).
"""

from __future__ import annotations

import hashlib
import json
import os
import re
import sys
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path
from typing import NamedTuple

from tvmdml.errors import InvalidArgument, message
from tvmdml.system import logger
from tvmdml.system.disk import _cache_files, _trust
from tvmdml.system.disk._trust import Untrusted as Untrusted
from tvmdml.system.disk.locks import locked
from tvmdml.system.disk.places import user_folder

DEFAULT_SIZE = 4 << 30
LOCK_TIMEOUT = 300.0
"""Seconds to wait for another process that builds the same kernel, before building it here too."""
STALE = 3600.0
"""Seconds after which an incomplete file counts as abandoned."""
_LARGEST = 256 << 20
"""The most bytes of an artifact or a manifest."""
_UNITS = {"": 1, "K": 1 << 10, "M": 1 << 20, "G": 1 << 30, "T": 1 << 40}

BESIDE = {
    "plans": "compiled models and their weights",
    "tuning": "sessions of `tvmdml tune`, and the kernels of candidates",
    "vulkan": "kernels compiled by Vulkan drivers",
}
"""Other folders of the cache, and their contents. What is removed is created again when it is needed."""
_NOT_WHOLE = (OSError, ValueError, KeyError, TypeError, RecursionError)
"""The exceptions of reading a damaged or incomplete entry."""

_added_since_prune: dict[Path, int] = {}


class Artifact(NamedTuple):
    """A compiled kernel as bytes: the same bytes are checked and loaded, even if the file changes meanwhile."""

    suffix: str
    """The kind of file: ``.so``."""
    content: bytes


class StoredKernel(NamedTuple):
    """One stored kernel."""

    path: Path
    manifest: dict[str, object]
    size: int
    """The bytes of the artifact and the manifest together."""
    used: float
    """The time of its last use, in seconds since the epoch; 0 if that is in the future, because a clock was wrong."""


class DiskStore:
    """A folder of compiled kernels.

    Args:
        root: the folder; ``None`` uses ``TVMDML_CACHE_DIR``, else the platform's cache folder.
        limit: the most bytes to keep, the least recently used are removed first; ``None`` uses ``TVMDML_CACHE_SIZE``, else 4 GiB.
    """

    def __init__(self, root: Path | None = None, limit: int | None = None) -> None:
        self.cache = root or _default_root()
        self.root = self.cache / "kernels"
        self.limit = default_limit() if limit is None else limit

    def find(self, digest: str, suffixes: tuple[str, ...], sha256: str = "") -> Artifact | None:
        """The artifact stored under a digest, if it is complete, of a loadable kind, and has this checksum (if given)."""
        manifest = f"{digest}.json"
        try:
            with opened(self.cache, "kernels", digest[:2]) as folder:
                stored = json.loads(folder.read(manifest, _LARGEST))
                name = _artifact(stored, manifest)
                suffix = Path(name).suffix
                if suffix not in suffixes:
                    return None
                content = folder.read(name, _LARGEST)
                if hashlib.sha256(content).hexdigest() != (sha256 or stored.get("sha256")):
                    return None
                with suppress(OSError):  # a read-only store works too, but does not record uses
                    folder.touch(manifest)
        except _NOT_WHOLE:
            return None
        return Artifact(suffix, content)

    def add(self, digest: str, manifest: dict[str, object], built: Path) -> Artifact:
        """Move a built artifact into the store, from the folder that ``staging`` returned.

        Raises:
            OSError: the disk is full, or the folder cannot be written.
        """
        content = built.read_bytes()
        sha256 = hashlib.sha256(content).hexdigest()
        folder = built.parent.parent  # ``staging`` has checked it
        artifact = folder / f"{digest}-{sha256[:12]}{built.suffix}"
        os.chmod(built, 0o644)  # the linker and the umask may have set another mode
        os.replace(built, artifact)
        staged = built.with_suffix(".json")
        staged.write_text(json.dumps({**manifest, "artifact": artifact.name, "sha256": sha256}, indent=1, sort_keys=True))
        os.chmod(staged, 0o644)
        os.replace(staged, folder / f"{digest}.json")
        self.keep_in_bounds(len(content))
        return Artifact(built.suffix, content)

    @contextmanager
    def staging(self, digest: str) -> Iterator[Path]:
        """A temporary folder to build one artifact in.

        Raises:
            Untrusted: another user may write there.
            OSError: it cannot be created.
        """
        import shutil
        import tempfile

        folder = Path(tempfile.mkdtemp(prefix=".building-", dir=room(self.cache, "kernels", digest[:2])))
        try:
            yield folder
        finally:
            shutil.rmtree(folder, ignore_errors=True)

    @contextmanager
    def lock(self, digest: str) -> Iterator[None]:
        """Hold a kernel's lock against other processes. If locking is impossible, go on without it; work may then be done twice."""
        with ExitStack() as stack:
            with suppress(OSError):  # the folder is read-only or has no locks, or another process holds the lock too long
                path = room(self.cache, "kernels", digest[:2]) / f"{digest}.lock"
                stack.enter_context(locked(path, LOCK_TIMEOUT, again=True))
            yield

    def entries(self) -> list[StoredKernel]:
        """All complete entries, the least recently used first."""
        return self._entries(checked=True)

    def damaged(self, most: int) -> list[Path]:
        """Manifests without an artifact, or with an artifact that has another checksum. They are never loaded.

        Args:
            most: the most bytes to read, beginning with the most recently used artifacts.
        """
        entries = self.entries()
        known = {entry.path.name for entry in entries}
        found = [self._manifest(name[:40]) for folder in self._folders(True) for name in _manifests(folder) if name not in known]
        for entry in reversed(entries):
            most -= entry.size
            if most < 0:
                break
            with suppress(OSError):  # it was just removed
                content = read(self.cache, "kernels", entry.path.parent.name, str(entry.manifest["artifact"]))
                if hashlib.sha256(content).hexdigest() != entry.manifest.get("sha256"):
                    found.append(entry.path)
        return found

    def beside(self) -> dict[str, int]:
        """The bytes in the cache's other folders, by folder. Those of plans count against the limit, as kernels do."""
        found = {}
        for name in BESIDE:
            with suppress(OSError), opened(self.cache, name, checked=False) as folder:
                found[name] = _cache_files.size(folder, _cache_files.TREES[name])
        return found

    def clear_beside(self) -> list[Path]:
        """Remove the cache's other folders.

        Returns:
            The folders that remain, because they contain files that tvmdml did not write.
        """
        left = []
        for name in BESIDE:
            with suppress(OSError), opened(self.cache, checked=False) as cache:
                with cache.enter(name) as folder:
                    others = _cache_files.remove(folder, _cache_files.TREES[name])
                if others:
                    left.append(self.cache / name)
                else:
                    os.rmdir(name, dir_fd=cache.handle)
        return left

    def prune(self, limit: int | None = None) -> int:
        """Remove the least recently used entries until at most ``limit`` bytes are left, and files left by killed processes.

        Plans and weights go first as long as they take more than half of it: they are made again much sooner than kernels. Only
        files with tvmdml's file names are removed, whoever wrote them, and links are not followed.

        Returns:
            The number of kernels that were removed.
        """
        limit = self.limit if limit is None else limit
        self._sweep()
        entries = self._entries(checked=False)
        plans = self._plans()
        taken = sum(one.size for one in plans)
        total = sum(entry.size for entry in entries) + taken
        gone = 0
        while total > limit and (entries or plans):
            if plans and (2 * taken > limit or not entries or plans[0].used < entries[0].used):
                plan = plans.pop(0)
                self._remove_plan(plan.path)
                total, taken = total - plan.size, taken - plan.size
            else:
                entry = entries.pop(0)
                self._remove(entry)
                total -= entry.size
                gone += 1
        return gone

    def clear(self) -> int:
        """Remove every entry, of all versions; returns their number."""
        return self.prune(limit=-1)

    def keep_in_bounds(self, added: int) -> None:
        """Prune only from time to time: scanning a large store takes longer than building a kernel. At first, sizes decide."""
        before = _added_since_prune.get(self.root)
        if before is None:
            before = self.limit if self._taken() > self.limit else 0
        _added_since_prune[self.root] = before + added
        if _added_since_prune[self.root] > self.limit // 32:
            _added_since_prune[self.root] = 0
            with suppress(OSError):  # the process has no descriptors left, or the disk fails: what was called still runs
                self.prune()

    def _taken(self) -> int:
        """The bytes of all files of kernels and plans, of which none is opened."""
        total = 0
        for kind in ("kernels", "plans"):
            with suppress(OSError), os.scandir(self.cache / kind) as places:
                for place in places:
                    if place.is_dir(follow_symlinks=False):
                        with os.scandir(place.path) as files:
                            total += sum(file.stat(follow_symlinks=False).st_size for file in files)
        return total

    def _folders(self, checked: bool, kind: str = "kernels") -> Iterator[_trust.Folder]:
        """The folders of kernels or plans, one after the other; none if the store cannot be read."""
        with suppress(OSError, ValueError):
            with opened(self.cache, kind, checked=checked) as root:
                places = _cache_files.named(_cache_files.PLACE, root.names())
            for place in places:
                with suppress(OSError), opened(self.cache, kind, place, checked=checked) as folder:
                    yield folder

    def _entries(self, checked: bool) -> list[StoredKernel]:
        """As ``entries``. Without ``checked``, for removal, it includes other users' entries."""
        found = []
        latest = time.time() + STALE
        for folder in self._folders(checked):
            for name in _manifests(folder):
                try:
                    manifest = json.loads(folder.read(name, _LARGEST))
                    about, artifact = folder.about(name), folder.about(_artifact(manifest, name))
                except Untrusted as error:
                    _refuse(self.cache, error)
                    continue
                except _NOT_WHOLE:
                    continue
                used = about.st_mtime if 0 <= about.st_mtime < latest else 0.0
                found.append(StoredKernel(self._manifest(name[:40]), manifest, about.st_size + artifact.st_size, used))
        return sorted(found, key=lambda entry: entry.used)

    def _plans(self) -> list[StoredKernel]:
        """The files of plans, the least recently used first. Those that killed processes left are removed."""
        found = []
        latest = time.time() + STALE
        for folder in self._folders(checked=False, kind="plans"):
            for name in folder.names():
                with suppress(OSError):  # it was just removed
                    about = folder.about(name)
                    if re.fullmatch(_cache_files.PLAN, name):
                        used = about.st_mtime if 0 <= about.st_mtime < latest else 0.0
                        found.append(StoredKernel(Path(folder.path, name), {}, about.st_size, used))
                    elif re.fullmatch(_cache_files.BESIDE, name) and is_stale(about):
                        folder.remove(name)
        return sorted(found, key=lambda entry: entry.used)

    def _remove_plan(self, path: Path) -> None:
        with suppress(OSError), opened(self.cache, "plans", path.parent.name, checked=False) as folder:
            folder.remove(path.name)

    def _manifest(self, digest: str) -> Path:
        return self.root / digest[:2] / f"{digest}.json"

    def _remove(self, entry: StoredKernel) -> None:
        with suppress(OSError), opened(self.cache, "kernels", entry.path.parent.name, checked=False) as folder:
            artifact, lock = str(entry.manifest["artifact"]), entry.path.with_suffix(".lock").name
            for name in (entry.path.name, artifact, lock):
                with suppress(OSError):
                    folder.remove(name)

    def _sweep(self) -> None:
        """Remove building folders, locks and artifacts without a manifest that no running process can still need."""
        for folder in self._folders(checked=False):
            names = set(folder.names())
            for name in names:
                entry = re.fullmatch(_cache_files.ENTRY, name)
                wanted = entry and f"{entry[1]}.json" in names and not name.endswith(".lock")
                if not wanted and (entry or re.fullmatch(_cache_files.BUILDING, name)):
                    with suppress(OSError):
                        if is_stale(folder.about(name)):
                            _cache_files.remove(folder, _cache_files.only(name))


def _manifests(folder: _trust.Folder) -> list[str]:
    return [name for name in _cache_files.named(_cache_files.ENTRY, folder.names()) if name.endswith(".json")]


def _artifact(manifest: dict[str, object], name: str) -> str:
    """The name of the artifact of a manifest with this name."""
    entry = re.fullmatch(_cache_files.ENTRY, str(manifest["artifact"]))
    if entry is None or entry[2] is None or entry[1] != name[:40]:
        raise ValueError("it does not name its artifact")
    return entry[0]


def is_stale(about: os.stat_result) -> bool:
    """Whether an incomplete file is abandoned. Times in the future count too, so that a wrong clock cannot keep it forever."""
    return abs(time.time() - about.st_mtime) >= STALE


# -- The files of a cache, of all kinds -----------------------------------------------------------------------------


@contextmanager
def opened(cache: Path, *names: str, checked: bool = True) -> Iterator[_trust.Folder]:
    """A folder of a cache, as from ``_trust.opened``. If another user may have written it, a warning says so, once for each cache.

    Raises:
        Untrusted: another user may have written it.
        OSError: it does not exist, or cannot be opened.
    """
    try:
        with _trust.opened(cache, *names, checked=checked) as folder:
            yield folder
    except Untrusted as error:
        _refuse(cache, error)
        raise


def read(cache: Path, *names: str, most: int = _LARGEST) -> bytes:
    """The content of a file of a cache that this user or root wrote.

    Raises:
        Untrusted: another user may have written it; a warning says so.
        OSError: it cannot be read.
    """
    with opened(cache, *names[:-1]) as folder:
        return folder.read(names[-1], most)


def room(cache: Path, *names: str) -> Path:
    """A folder of a cache to write to, which only this user and root can change. It is created if needed.

    Raises:
        Untrusted: another user may write to it; a warning says so.
        OSError: it cannot be created.
    """
    try:
        with _trust.opened(cache, create=True) as root:
            _cache_files.mark(root)
        with _trust.opened(cache, *names, create=True) as folder:
            return Path(folder.path)
    except Untrusted as error:
        _refuse(cache, error)
        raise


def _refuse(cache: Path, error: Untrusted) -> None:
    """Warn that something in a cache is not used, and say what to do about it."""
    warn_once(
        f"untrusted {cache}",
        f"tvmdml: {error.problem}, so it is not used: another user may have put code there. "
        f"Kernels are compiled again, and kept in memory if they cannot be stored. {error.advice}",
    )


_warned: set[str] = set()


def warn_once(cause: str, text: str) -> None:
    """Issue a ``RuntimeWarning``, once for each cause in a process."""
    if cause not in _warned:
        _warned.add(cause)
        logger.warn(text, RuntimeWarning, stacklevel=2)


def _default_root() -> Path:
    if chosen := os.environ.get("TVMDML_CACHE_DIR"):
        with suppress(RuntimeError):  # ~ without such a user is an ordinary name
            return Path(chosen).expanduser()
        return Path(chosen)
    return user_folder("cache") or Path(sys.prefix) / "var" / "cache" / "tvmdml"


def default_limit() -> int:
    """The limit in bytes from ``TVMDML_CACHE_SIZE``, or 4 GiB.

    Raises:
        InvalidArgument: the variable is not a size.
    """
    text = os.environ.get("TVMDML_CACHE_SIZE", "").strip()
    return parse_size(text, "TVMDML_CACHE_SIZE") if text else DEFAULT_SIZE


def parse_size(text: str, where: str) -> int:
    """The number of bytes in ``"512M"``, ``"1.5 GiB"`` or a plain number.

    Raises:
        InvalidArgument: it has another form.
    """
    match = re.fullmatch(r"(\d+(?:\.\d+)?)\s*([KMGT]?)(?:I?B)?", text.strip().upper())
    if not match or len(text) > 32:
        raise InvalidArgument(message(where, repr(text), 'a size such as "512M" or "2GiB"'))
    return int(float(match[1]) * _UNITS[match[2]])
