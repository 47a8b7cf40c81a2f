"""``DiskStore``: compiled kernels on disk, shared by processes and by versions of tvmdml.

An entry is two files. The artifact carries its own content's hash in its name and is never overwritten, because the system's
loader remembers libraries by path. The manifest names the artifact; it is written last, so an entry is whole or absent.
Anything that does not check out counts as absent and is built again.
"""

from __future__ import annotations

import hashlib
import json
import os
import re
import stat
import sys
import time
import warnings
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path
from typing import NamedTuple

from tvmdml.errors import InvalidArgument, message
from tvmdml.locks import locked

DEFAULT_SIZE = 1 << 30
LOCK_TIMEOUT = 300.0
"""Seconds to wait for another process that builds the same kernel before building it here as well."""
STALE = 3600.0
"""Seconds after which a half-written file counts as left behind."""
_LARGEST = 256 << 20
"""Bytes of an artifact or a manifest, at most."""
_UNITS = {"": 1, "K": 1 << 10, "M": 1 << 20, "G": 1 << 30, "T": 1 << 40}

BESIDE = {
    "tuning": "sessions of `tvmdml tune`, and the kernels of candidates",
    "vulkan": "what drivers of Vulkan made of kernels",
}
"""Other folders of the cache, and what is in them; what is gone is made anew."""
_NOT_WHOLE = (OSError, ValueError, KeyError, TypeError, RecursionError)
"""What reading an entry may raise that is no manifest, or has no artifact."""

_added_since_prune: dict[Path, int] = {}


class Artifact(NamedTuple):
    """A compiled kernel as bytes. What was checked is what is loaded, whatever becomes of the file."""

    suffix: str
    """What kind of file it is: ``.so``."""
    content: bytes


class Entry(NamedTuple):
    """One stored kernel."""

    path: Path
    manifest: dict[str, object]
    size: int
    """Bytes, artifact and manifest together."""
    used: float
    """When it was last loaded, in seconds since the epoch; 0 where that is still to come, for then a clock was wrong."""


class DiskStore:
    """A folder of compiled kernels.

    Args:
        root: where it lies; ``None`` asks ``TVMDML_CACHE_DIR``, then the platform's cache folder.
        limit: bytes it may hold, oldest use going first; ``None`` asks ``TVMDML_CACHE_SIZE``, then takes 1 GiB.
    """

    def __init__(self, root: Path | None = None, limit: int | None = None) -> None:
        self.root = (root or _default_root()) / "kernels"
        self.limit = default_limit() if limit is None else limit

    def find(self, digest: str, suffixes: tuple[str, ...], sha256: str = "") -> Artifact | None:
        """The artifact stored under a digest, if it is whole, of a kind that can be loaded, and of this checksum (if given)."""
        manifest = self._manifest(digest)
        try:
            stored = json.loads(_content(manifest))
            path = manifest.parent / str(stored["artifact"])
            if path.suffix not in suffixes or path.name != stored["artifact"]:
                return None
            content = _content(path)
        except _NOT_WHOLE:
            return None
        if hashlib.sha256(content).hexdigest() != (sha256 or stored.get("sha256")):
            return None
        self._warn_of_others()
        with suppress(OSError):  # a read-only store works too, it just forgets what was used
            os.utime(manifest)
        return Artifact(path.suffix, content)

    def add(self, digest: str, manifest: dict[str, object], built: Path) -> Artifact:
        """Move a built artifact in.

        Raises:
            OSError: the disk is full, or the folder cannot be written.
        """
        content = built.read_bytes()
        sha256 = hashlib.sha256(content).hexdigest()
        artifact = self._manifest(digest).with_name(f"{digest}-{sha256[:12]}{built.suffix}")
        os.replace(built, artifact)
        staged = built.with_suffix(".json")
        staged.write_text(json.dumps({**manifest, "artifact": artifact.name, "sha256": sha256}, indent=1, sort_keys=True))
        os.replace(staged, self._manifest(digest))
        self._keep_in_bounds(len(content))
        return Artifact(built.suffix, content)

    @contextmanager
    def staging(self, digest: str) -> Iterator[Path]:
        """A folder to build one artifact in, removed afterwards.

        Raises:
            OSError: it cannot be made.
        """
        import shutil
        import tempfile

        parent = self._manifest(digest).parent
        parent.mkdir(parents=True, exist_ok=True)
        folder = Path(tempfile.mkdtemp(prefix=".building-", dir=parent))
        try:
            yield folder
        finally:
            shutil.rmtree(folder, ignore_errors=True)

    @contextmanager
    def lock(self, digest: str) -> Iterator[None]:
        """Hold a kernel's lock against other processes. Where locking is impossible, go on without: work is done twice at worst."""
        path = self._manifest(digest).with_suffix(".lock")
        with ExitStack() as stack:
            with suppress(OSError):  # the folder is read-only, or has no locks; or another process holds this one for too long
                path.parent.mkdir(parents=True, exist_ok=True)
                stack.enter_context(locked(path, LOCK_TIMEOUT, again=True))
            yield

    def entries(self) -> list[Entry]:
        """All whole entries, the one not used for longest first."""
        found = []
        latest = time.time() + STALE
        for path in self._files("*.json"):
            try:
                manifest = json.loads(_content(path))
                artifact = path.with_name(str(manifest["artifact"]))
                size, used = path.stat().st_size + artifact.stat().st_size, path.stat().st_mtime
            except _NOT_WHOLE:
                continue
            found.append(Entry(path, manifest, size, used if 0 <= used < latest else 0.0))
        return sorted(found, key=lambda entry: entry.used)

    def damaged(self, most: int) -> list[Path]:
        """Manifests without an artifact, or whose artifact has another checksum. Nothing of it is ever loaded.

        Args:
            most: bytes to read, at most: artifacts that were used last are looked at first.
        """
        entries = self.entries()
        found = sorted(set(self._files("*.json")) - {entry.path for entry in entries})
        for entry in reversed(entries):
            most -= entry.size
            if most < 0:
                break
            with suppress(OSError):  # it was removed a moment ago
                content = _content(entry.path.with_name(str(entry.manifest["artifact"])))
                if hashlib.sha256(content).hexdigest() != entry.manifest.get("sha256"):
                    found.append(entry.path)
        return found

    def beside(self) -> dict[str, int]:
        """Bytes that lie beside the kernels, in the same cache, by folder: they have no limit in common with these."""
        folders = {name: self.root.parent / name for name in BESIDE}
        return {name: _size(folder) for name, folder in folders.items() if folder.is_dir()}

    def clear_beside(self) -> None:
        """Remove what lies beside the kernels."""
        import shutil

        for name in BESIDE:
            shutil.rmtree(self.root.parent / name, ignore_errors=True)

    def prune(self, limit: int | None = None) -> int:
        """Remove what was not used for longest until at most ``limit`` bytes are left, and what a killed process left behind.

        Returns:
            How many entries went.
        """
        limit = self.limit if limit is None else limit
        self._sweep()
        entries = self.entries()
        total = sum(entry.size for entry in entries)
        gone = 0
        for entry in entries:
            if total <= limit:
                break
            self._remove(entry)
            total -= entry.size
            gone += 1
        return gone

    def clear(self) -> int:
        """Remove every entry, of all versions; returns how many."""
        return self.prune(limit=-1)

    def _keep_in_bounds(self, added: int) -> None:
        """Prune now and then: looking through a large store takes longer than building a kernel."""
        _added_since_prune[self.root] = _added_since_prune.get(self.root, self.limit) + added
        if _added_since_prune[self.root] > self.limit // 32:
            _added_since_prune[self.root] = 0
            self.prune()

    def _warn_of_others(self) -> None:
        """Say so once where somebody else may put code into the store: it is run."""
        if who := self.others():
            warn_once(
                f"others {self.root}",
                f"tvmdml: {who} can write to {self.root}, and what lies there is run. "
                "`chmod o-w` it, or have TVMDML_CACHE_DIR name a folder of your own.",
            )

    def others(self) -> str:
        """Who else may put code into the store; empty where nobody may, or it is not there."""
        if not hasattr(os, "geteuid"):
            return ""  # no such users and modes
        with suppress(OSError):
            above, folder = self.root.parent.stat(), self.root.stat()
            removable = above.st_mode & stat.S_IWOTH and not above.st_mode & stat.S_ISVTX  # in /tmp, nobody moves another's folder
            owners = {found.st_uid for found in (above, folder)} - {0, os.geteuid()}
            if removable or folder.st_mode & stat.S_IWOTH or owners:
                return f"user {min(owners)}, whose it is," if owners else "everybody"
        return ""

    def _files(self, pattern: str) -> list[Path]:
        """The store's files; none where it cannot be looked into, or nothing can be called as it is."""
        try:
            return list(self.root.glob(f"??/{pattern}"))
        except OSError:
            return []

    def _manifest(self, digest: str) -> Path:
        return self.root / digest[:2] / f"{digest}.json"

    def _remove(self, entry: Entry) -> None:
        artifact, lock = entry.path.with_name(str(entry.manifest["artifact"])), entry.path.with_suffix(".lock")
        for path in (entry.path, artifact, lock):
            with suppress(OSError):
                path.unlink()

    def _sweep(self) -> None:
        """Remove building folders, locks and artifacts without a manifest that no living process can still want."""
        import shutil

        for path in self._files("*"):
            with suppress(OSError):
                if not is_stale(path):
                    continue
                if path.name.startswith(".building-"):
                    shutil.rmtree(path, ignore_errors=True)
                elif path.suffix == ".lock" or (path.suffix != ".json" and not self._manifest(path.name[:40]).exists()):
                    path.unlink()


def is_stale(path: Path) -> bool:
    """Whether something half-written was left behind. Not even a clock that was wrong makes it stay for ever.

    Raises:
        OSError: it is not there any more.
    """
    return abs(time.time() - path.stat().st_mtime) >= STALE


def _size(folder: Path) -> int:
    """Bytes of all files in a folder."""
    total = 0
    for path in folder.rglob("*"):
        with suppress(OSError):  # it was removed a moment ago
            total += path.lstat().st_size if path.is_file() else 0
    return total


def _content(path: Path) -> bytes:
    """The bytes of a file of a kernel's size: what else may stand in its place need not have an end.

    Raises:
        OSError: it cannot be read, or is something else.
    """
    handle = os.open(path, os.O_RDONLY | os.O_CLOEXEC | getattr(os, "O_NONBLOCK", 0))  # nobody is waited for
    with open(handle, "rb") as file:
        about = os.fstat(handle)
        if not stat.S_ISREG(about.st_mode) or about.st_size > _LARGEST:
            raise OSError(f"{path} is no file of at most {_LARGEST} bytes")
        return file.read()


_warned: set[str] = set()


def warn_once(cause: str, text: str) -> None:
    """A ``RuntimeWarning``, the first time this process has this cause for it."""
    if cause not in _warned:
        _warned.add(cause)
        warnings.warn(text, RuntimeWarning, stacklevel=2)


def _default_root() -> Path:
    if chosen := os.environ.get("TVMDML_CACHE_DIR"):
        with suppress(RuntimeError):  # a ~ for nobody's home is a name like any other
            return Path(chosen).expanduser()
        return Path(chosen)
    import platformdirs

    try:
        return Path(platformdirs.user_cache_dir("tvmdml", appauthor=False))
    except (OSError, RuntimeError, KeyError):  # no home
        return Path(sys.prefix) / "var" / "cache" / "tvmdml"


def default_limit() -> int:
    """Bytes that ``TVMDML_CACHE_SIZE`` grants, or 1 GiB.

    Raises:
        InvalidArgument: the variable is no size.
    """
    text = os.environ.get("TVMDML_CACHE_SIZE", "").strip()
    return parse_size(text, "TVMDML_CACHE_SIZE") if text else DEFAULT_SIZE


def parse_size(text: str, where: str) -> int:
    """Bytes from ``"512M"``, ``"1.5 GiB"`` or a plain number.

    Raises:
        InvalidArgument: it is none of those.
    """
    match = re.fullmatch(r"(\d+(?:\.\d+)?)\s*([KMGT]?)(?:I?B)?", text.strip().upper())
    if not match or len(text) > 32:
        raise InvalidArgument(message(where, repr(text), 'a size such as "512M" or "2GiB"'))
    return int(float(match[1]) * _UNITS[match[2]])
