"""Store a driver's compiled pipelines on disk between processes. A failure here only costs time later."""

from __future__ import annotations

import hashlib
import struct
from contextlib import suppress
from pathlib import Path

from tvmdml.system.disk import _cache_files, _trust, stores
from tvmdml.targets.vulkan.physical import Identity

LIMIT = 64 << 20
"""The maximum size in bytes; a larger cache is not stored, so that the next process starts with an empty one."""
_MARK = b"tvmdml pipelines\n"
HEADER = struct.Struct("<IIII16s")
"""Its size and version, vendor, device, and UUID (VkPipelineCacheHeaderVersionOne)."""


def path(identity: Identity) -> Path:
    """The file for a device with its driver."""
    name = hashlib.sha256(repr(tuple(identity)).encode()).hexdigest()[:40]
    return stores.DiskStore(limit=0).cache / "vulkan" / f"{name}.bin"


def read(file: Path, identity: Identity) -> bytes:
    """The stored cache; empty if it is incomplete, or another driver's or user's: a driver trusts its cache, and may crash."""
    with suppress(OSError):
        kept = stores.read(file.parent.parent, file.parent.name, file.name, most=LIMIT + 1024)
        mark, digest, data = kept[: len(_MARK)], kept[len(_MARK) :][:32], kept[len(_MARK) + 32 :]
        if mark == _MARK and hashlib.sha256(data).digest() == digest and len(data) >= HEADER.size:
            size, version, vendor, device, uuid = HEADER.unpack_from(data)
            found = (vendor, device, uuid) == (identity.vendor, identity.device, identity.cache_uuid)
            if found and version == 1 and HEADER.size <= size <= len(data):
                return data
    return b""


def write(file: Path, data: bytes) -> None:
    """Store the driver's cache; remove the file if the cache is too large."""
    with suppress(OSError):
        stores.room(file.parent.parent, file.parent.name)
        with stores.opened(file.parent.parent, file.parent.name) as folder:
            for name in _cache_files.named(_cache_files.BESIDE, folder.names()):  # of processes that were killed
                with suppress(OSError):
                    if stores.is_stale(folder.about(name)):
                        folder.remove(name)
            if len(data) > LIMIT:
                folder.remove(file.name)
                return
            _trust.replace(Path(folder.path, file.name), _MARK + hashlib.sha256(data).digest() + data)
