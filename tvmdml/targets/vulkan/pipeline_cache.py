"""Store a driver's compiled pipelines on disk between processes. A failure here only costs time later."""

from __future__ import annotations

import hashlib
import os
import struct
import threading
from contextlib import suppress
from pathlib import Path

from tvmdml.stores import DiskStore, is_stale
from tvmdml.targets.vulkan.physical import Identity

LIMIT = 64 << 20
"""The maximum size in bytes; a larger cache is not stored, so that the next process starts with an empty one."""
_MARK = b"tvmdml pipelines\n"
_HEADER = struct.Struct("<IIII16s")


def path(identity: Identity) -> Path:
    """The file for a device with its driver."""
    name = hashlib.sha256(repr(tuple(identity)).encode()).hexdigest()[:40]
    return DiskStore(limit=0).root.parent / "vulkan" / f"{name}.bin"


def read(file: Path, identity: Identity) -> bytes:
    """The stored cache; empty if it is incomplete or another driver's: a driver trusts its cache, and a wrong one may crash it."""
    with suppress(OSError):
        if file.stat().st_size > LIMIT + 1024:
            return b""
        kept = file.read_bytes()
        mark, digest, data = kept[: len(_MARK)], kept[len(_MARK) :][:32], kept[len(_MARK) + 32 :]
        if mark == _MARK and hashlib.sha256(data).digest() == digest and len(data) >= _HEADER.size:
            size, version, vendor, device, uuid = _HEADER.unpack_from(data)
            found = (vendor, device, uuid) == (identity.vendor, identity.device, identity.cache_uuid)
            if found and version == 1 and _HEADER.size <= size <= len(data):
                return data
    return b""


def write(file: Path, data: bytes) -> None:
    """Store the driver's cache; remove the file if the cache is too large."""
    with suppress(OSError):
        if len(data) > LIMIT:
            file.unlink(missing_ok=True)
            return
        file.parent.mkdir(parents=True, exist_ok=True)
        for path in file.parent.glob(".*"):  # left by processes that were killed
            with suppress(OSError):
                if is_stale(path):
                    path.unlink()
        beside = file.with_name(f".{file.name}.{os.getpid()}-{threading.get_ident()}")
        try:
            with open(beside, "xb") as stream:  # never write to an existing file or link
                stream.write(_MARK + hashlib.sha256(data).digest() + data)
            os.replace(beside, file)
        finally:
            beside.unlink(missing_ok=True)
