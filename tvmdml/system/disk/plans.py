"""``PlanStore``: what is made of models and graphs, on disk beside the kernels: plans, which are small, and data, which are mapped.

A file is a header of 256 bytes (magic, format, bytes, checksum) and the content. It is written beside its place and renamed, so it
is there whole or not at all; one that is damaged counts as absent, and so does one that another user may have written (``_trust``).
Two processes that write the same file write the same bytes.
"""

from __future__ import annotations

import hashlib
import os
import struct
import threading
from collections.abc import Iterable, Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any
from weakref import WeakValueDictionary

import numpy as np

from tvmdml.system.disk import _trust, stores

NumpyArray = np.ndarray[Any, np.dtype[Any]]

FOLDER = "plans"
ALIGNMENT = 256
"""The content begins at this byte of the file, and so at a multiple of it, or of ``mapping.ALIGNMENT``."""
_MAGIC = b"TVMDMLP\n"
_FORMAT = 2
_HEADER = struct.Struct("<8sIIQ32s")
_ROW = 4096
_PIECE = 4 << 20
"""Bytes that are summed up at once: they are still in the processor's cache for the second sum."""
PLAN, DATA = ".plan", ".data"

_mapped: WeakValueDictionary[tuple[str, ...], Any] = WeakValueDictionary()
"""Data that this process uses: each file is mapped and checked once."""


def is_off() -> bool:
    """Whether ``TVMDML_DISABLE_PLANS=1`` says that none are read or written."""
    return os.environ.get("TVMDML_DISABLE_PLANS", "0") not in ("", "0")


class PlanStore:
    """The folder of plans in a cache. A file that cannot be read counts as absent, and one that cannot be written is left out."""

    def __init__(self) -> None:
        self._kernels = stores.DiskStore()
        self.cache = self._kernels.cache

    def find(self, name: str, suffix: str = PLAN) -> NumpyArray | None:
        """The content of a file, of data mapped; ``None`` if it is not there, or not whole."""
        try:
            with stores.opened(self.cache, FOLDER, name[:2]) as folder:
                content = _content(folder.content(name + suffix, map_it=suffix == DATA))
                if content is None:
                    folder.remove(name + suffix)
                    return None
                with suppress(OSError):  # a read-only store works too, but does not record uses
                    folder.touch(name + suffix)
                return content
        except (OSError, ValueError):
            return None

    def data(self, name: str) -> NumpyArray | None:
        """As ``find`` for data: it is one array for as long as somebody in this process uses it."""
        key = (str(self.cache), name)
        if (known := _mapped.get(key)) is None:
            if (known := self.find(name, DATA)) is None:
                return None
            _mapped[key] = known
        return known

    def room_for(self, nbytes: int) -> bool:
        """Whether the cache's limit, and the disk, leave room for a file."""
        if 2 * nbytes > self._kernels.limit:
            return False
        try:
            place = next(one for one in (self.cache, *self.cache.parents) if one.exists())
            free = os.statvfs(place)
        except (OSError, StopIteration):
            return False
        return 2 * nbytes < free.f_bavail * free.f_frsize

    def add(self, name: str, pieces: Iterable[Any], suffix: str = PLAN) -> bool:
        """Write a file; returns whether that could be done. The pieces are bytes, or arrays of bytes."""
        try:
            folder = stores.room(self.cache, FOLDER, name[:2])
            size = _replace(folder / f"{name}{suffix}", pieces)
        except (OSError, ValueError, MemoryError):  # a full or read-only disk; or another user may write there, of which was warned
            return False
        self._kernels.keep_in_bounds(size)
        return True


def _replace(path: Path, pieces: Iterable[Any]) -> int:
    """Write a whole file; returns its size."""
    beside = path.with_name(f".{path.name}.{os.getpid()}-{threading.get_ident()}")
    try:
        with open(beside, "x+b", opener=_trust.create) as stream:
            stream.write(bytes(ALIGNMENT))
            stream.writelines(pieces)
            stream.flush()
            size = stream.tell()
            stream.seek(ALIGNMENT)
            piece = np.empty(min(size, _PIECE), np.uint8)  # memory that is new for each costs more than the sums
            checksum = _checksum(piece[:count] for count in iter(lambda: stream.readinto(piece.data), 0))
            stream.seek(0)
            stream.write(_HEADER.pack(_MAGIC, _FORMAT, 0, size, checksum))
        os.replace(beside, path)
    finally:
        beside.unlink(missing_ok=True)
    return size


def _content(whole: NumpyArray) -> NumpyArray | None:
    """The content of a file; ``None`` if it is damaged."""
    if whole.nbytes < ALIGNMENT:
        return None
    magic, version, _, size, checksum = _HEADER.unpack_from(whole.data)
    if magic != _MAGIC or version != _FORMAT or size != whole.nbytes or _checksum(_pieces(whole[ALIGNMENT:])) != checksum:
        return None
    return whole[ALIGNMENT:]


def _pieces(content: NumpyArray) -> Iterator[NumpyArray]:
    return (content[at : at + _PIECE] for at in range(0, content.nbytes, _PIECE))


def _checksum(pieces: Iterable[NumpyArray]) -> bytes:
    """Finds what disks and cut-off copies do to a file, at the speed of memory: a hash of two sums over the rows of each piece.

    In the first one each row has a weight, so that rows cannot change places: no product of a word and the difference of two
    weights is a multiple of 2^64. All pieces but the last have the same whole number of rows.
    """
    digest = hashlib.sha256()
    for piece in pieces:
        count = piece.nbytes // _ROW
        rows = piece[: count * _ROW]
        words, weights = rows.view(np.uint32).reshape(count, _ROW // 4), np.arange(1, count + 1, dtype=np.uint64)
        digest.update(np.einsum("i,ij->j", weights, words, dtype=np.uint64).tobytes())
        digest.update(np.bitwise_xor.reduce(rows.view(np.uint64).reshape(count, _ROW // 8), axis=0).tobytes())
        digest.update(piece[count * _ROW :].tobytes())
    return digest.digest()
