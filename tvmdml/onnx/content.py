"""``Content``: what a model's files contain, as a hash. The file stays open, so that the same one can be read later."""

from __future__ import annotations

import hashlib
import os
import stat
import threading
import time
import weakref
from collections.abc import Callable, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any, BinaryIO, NamedTuple

from tvmdml.system import inside

_PIECE = 8 << 20
"""Bytes that one thread hashes at a time. The hash is that of the hashes of the pieces."""
_BUFFER = 1 << 20
_MOST_THREADS = 8
_SETTLED = 2.0
"""Seconds after which a change of a file has another time than an earlier one, on any file system."""


class _Looked(NamedTuple):
    """A file that was hashed."""

    digest: str
    state: tuple[int, ...]
    """Its identity, size and times before that."""
    settled: bool
    """Whether a later change shows in its times."""


class Content:
    """A model that is given as a path or as bytes.

    Raises:
        OSError, ValueError: it cannot be read; ``reading.ReadModel`` says why.
    """

    def __init__(self, given: Any) -> None:
        self.folder: Path | None = None
        """Where files with weights may be."""
        self.home: Path | None = None
        """Where they may really be, if they are links."""
        self._file: BinaryIO | None = None
        self._looked: dict[str, _Looked] = {}
        if isinstance(given, bytes):
            pieces = (memoryview(given)[at : at + _PIECE] for at in range(0, len(given), _PIECE))
            self.digest = _joined([hashlib.sha256(piece).digest() for piece in pieces], len(given))
            return
        path = Path(os.path.abspath(os.fspath(given)))
        descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK)
        self._file = os.fdopen(descriptor, "rb")
        self._closing = weakref.finalize(self, self._file.close)
        if not stat.S_ISREG(os.fstat(descriptor).st_mode):
            raise ValueError("not a regular file")
        self.folder, self.home = path.parent, path.resolve().parent
        self.digest = self._look("", self._file)
        """Of the model's own file."""

    def others(self, names: Sequence[str]) -> str | None:
        """The hash of the files with weights that a model names; ``None`` if one cannot be read."""
        found = []
        for name in names:
            if self.folder is None:
                return None
            try:
                with inside.open_to_read(self.folder, name, self.home) as file:
                    found.append(self._look(name, file))
            except (inside.NotOpened, OSError, ValueError):
                return None
        return hashlib.sha256("".join(found).encode()).hexdigest() if found else ""

    def opened(self) -> BinaryIO | None:
        """The model's file, from its beginning; ``None`` for bytes."""
        if self._file is None:
            return None
        found = os.fdopen(os.dup(self._file.fileno()), "rb")
        found.seek(0)
        return found

    def is_unchanged(self) -> bool:
        """Whether everything that was hashed is as it was then."""
        if self._file is None:
            return True
        for name, looked in list(self._looked.items()):
            with suppress(inside.NotOpened, OSError, ValueError):
                if not name:
                    same = self._is_same(name, looked, self._file)
                else:
                    assert self.folder is not None
                    with inside.open_to_read(self.folder, name, self.home) as file:
                        same = self._is_same(name, looked, file)
                if same:
                    continue
            return False
        return True

    def _is_same(self, name: str, looked: _Looked, file: BinaryIO) -> bool:
        if looked.settled and _state(file) == looked.state:
            return True
        return self._look(name, file) == looked.digest

    def _look(self, name: str, file: BinaryIO) -> str:
        state = _state(file)
        settled = time.time() - max(state[-2:]) * 1e-9 > _SETTLED
        digest = hashed(file.fileno(), state[2])
        self._looked[name] = _Looked(digest, state, settled)
        return digest


def _state(file: BinaryIO) -> tuple[int, ...]:
    about = os.fstat(file.fileno())
    return about.st_dev, about.st_ino, about.st_size, about.st_mtime_ns, about.st_ctime_ns


def hashed(descriptor: int, size: int) -> str:
    """The hash of a file. Its pieces are hashed by several threads, into memory that is used again: nothing is mapped.

    Raises:
        OSError: it cannot be read, or became shorter.
    """
    starts = range(0, size, _PIECE)
    digests = [b""] * len(starts)
    errors: list[OSError] = []
    rest = iter(list(enumerate(starts)))

    def work() -> None:
        buffer = memoryview(bytearray(_BUFFER))
        try:
            for i, start in rest:
                digests[i] = _piece(descriptor, start, min(start + _PIECE, size), buffer)
        except OSError as error:
            errors.append(error)

    _together(work, min(len(starts), _MOST_THREADS, _processors()))
    if errors:
        raise errors[0]
    return _joined(digests, size)


def _joined(digests: Sequence[bytes], size: int) -> str:
    """The hash of a content, from those of its pieces."""
    return hashlib.sha256(b"".join(digests) + size.to_bytes(8, "little")).hexdigest()


def _piece(descriptor: int, start: int, end: int, buffer: memoryview) -> bytes:
    digest = hashlib.sha256()
    while start < end:
        count = os.preadv(descriptor, [buffer[: min(_BUFFER, end - start)]], start)
        if not count:
            raise OSError("the file became shorter")
        digest.update(buffer[:count])
        start += count
    return digest.digest()


def _together(work: Callable[[], None], count: int) -> None:
    """Do work on several threads, of which this is one."""
    others = [threading.Thread(target=work, daemon=True) for _ in range(count - 1)]
    started = []
    for one in others:
        with suppress(RuntimeError, MemoryError):  # the system provides no more: the others do the work
            one.start()
            started.append(one)
    work()
    for one in started:
        one.join()


def _processors() -> int:
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
