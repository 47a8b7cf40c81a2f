"""The file that a pack is: written, and read without believing it.

A pack is, with all numbers little-endian::

    header      64 bytes: magic, format version, 0, bytes of the index, bytes of the parts, SHA-256 of the index
    index       head    u32 bytes, then JSON: who made the pack, of which schedules, with which knobs and logs
                parts   u32 count, then 96 bytes each: offset, stored bytes, bytes, SHA-256, SHA-256 of what is stored, suffix
                table   u32 count, then 28 bytes each, by key: key, offset and bytes of a record, a kernel's part (else 2^32 - 1)
                records JSON objects: kernels, and the operations that they are for
    parts       the native code, each compressed by zlib, one after the other
    signatures  128 bytes each: Ed25519 public key, its signature of the header, SHA-256 of both

The header stands for the whole: it has the index's checksum, and the index has those of the parts. Nothing is parsed or unpacked
before its checksum was found right. A record's key is the first 16 bytes of a hash of what the record is about, so that a record
cannot stand for another; a kernel's symbol is made of its key.

A reader refuses a format that it does not know, and passes over members of JSON objects that it does not know.
"""

from __future__ import annotations

import contextlib
import hashlib
import os
import re
import secrets
import stat
import struct
import weakref
import zlib
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from tvmdml.errors import InvalidArgument, PackError, message, naming, reason, safe_repr
from tvmdml.packs import records
from tvmdml.packs.records import Kernel, Operation

FORMAT = 1
"""The version of the file: raised when a reader of the one before would misunderstand it."""
MAGIC = b"\x89TVMDML\n"
MAX_PART_BYTES = 256 << 20
"""The most that a part may unpack to."""
MAX_INDEX_BYTES = 64 << 20
MAX_SIGNATURES = 64
_HEADER = struct.Struct("<8sIIQQ32s")
_COUNT = struct.Struct("<I")
_PART = struct.Struct("<QQQ32s32s8s")
_ROW = struct.Struct("<16sIII")
records.NO_PART = 0xFFFFFFFF
SIGNATURE_BYTES = 128
_SUFFIX = re.compile(r"\.[a-z0-9_]{1,7}")


class Part(NamedTuple):
    """One piece of native code: a library of kernels, or a device's program."""

    suffix: str
    content: bytes


class Contents(NamedTuple):
    """What a pack is made of, and what becomes of one that is read whole."""

    head: dict[str, Any]
    """``producer`` (versions), ``targets`` (their names, by what records call them), ``sources`` (a stamp of the schedules' source,
    by target kind and operator), ``knobs`` (by operator), ``logs`` (records of tuning, as lines of a log have them)."""
    parts: Sequence[Part]
    kernels: Sequence[Kernel]
    operations: Sequence[Operation]


# -- Writing ------------------------------------------------------------------------------------------------------


def write(path: str | os.PathLike[str], contents: Contents) -> None:
    """Write a pack, whole or not at all. The same contents are the same bytes.

    Raises:
        OSError: it cannot be written.
        PackError: no reader would take it.
    """
    stored = [zlib.compress(part.content, 9) for part in contents.parts]
    rows, at = [], 0
    for part, compressed in zip(contents.parts, stored, strict=True):
        checksums = [hashlib.sha256(one).digest() for one in (part.content, compressed)]
        if not _SUFFIX.fullmatch(part.suffix) or len(part.content) > MAX_PART_BYTES:
            given = f"{len(part.content)} bytes, suffix {part.suffix!r}"
            raise PackError(message(f"{path}: a part", given, f"up to {MAX_PART_BYTES} bytes, a suffix such as '.so'"))
        rows.append(_PART.pack(at, len(compressed), len(part.content), *checksums, part.suffix.encode()))
        at += len(compressed)
    try:
        index = _index(contents, rows)
    except records.NOT_WRITTEN as error:
        raise PackError(f"{path}: this pack could not be read again: {error}.") from error
    header = _HEADER.pack(MAGIC, FORMAT, 0, len(index), at, hashlib.sha256(index).digest())
    replace(path, [header, index, *stored])


def require_place(path: str | os.PathLike[str]) -> Path:
    """Where a file is to be written, links followed; refused before there is work to lose.

    Raises:
        InvalidArgument: its folder is not there, or cannot be written to; or what is there is no file.
    """
    try:
        place = Path(os.path.realpath(path))
        if os.path.lexists(place) and not place.is_file():
            raise InvalidArgument(message("output", f"{path}, which is there and no file", "the path of a file"))
        folder = place.parent
        if not folder.is_dir() or not os.access(folder, os.W_OK):
            raise InvalidArgument(message("output", str(path), "a file in a folder that is there and can be written to"))
    except (OSError, ValueError, TypeError) as error:
        if isinstance(error, InvalidArgument):
            raise
        raise InvalidArgument(message("output", safe_repr(path), f"the path of a file ({error})")) from None
    return place


def replace(path: str | os.PathLike[str], pieces: Sequence[bytes]) -> None:
    """Put a file in a place at once: beside it first, then renamed. Who may read what was there may read it still.

    Raises:
        InvalidArgument: as ``require_place``.
        OSError: it cannot be written.
    """
    path = require_place(path)
    staged = path.parent / f".tvmdml-{secrets.token_hex(8)}"
    handle = os.open(staged, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o666)
    try:
        with naming(path), os.fdopen(handle, "wb") as stream:
            with contextlib.suppress(OSError):
                os.fchmod(handle, stat.S_IMODE(os.stat(path).st_mode))
            stream.writelines(pieces)
        os.replace(staged, path)
    except BaseException:
        with contextlib.suppress(OSError):
            os.unlink(staged)
        raise


def signature(key: bytes, signed: bytes) -> bytes:
    """A signature as it stands in the file: a public key of 32 bytes, and what it makes of the header, 64 bytes."""
    both = key + signed
    return both + hashlib.sha256(both).digest()


def _index(contents: Contents, parts: list[bytes]) -> bytes:
    every: list[Kernel | Operation] = [*contents.kernels, *contents.operations]
    found = {record.key: record for record in every}
    written = {key: records.write(found[key]) for key in sorted(found)}
    table, at = [], 0
    for key, content in written.items():
        record = found[key]
        part = record.part if isinstance(record, Kernel) else records.NO_PART
        records.read(content, part, len(parts))
        table.append(_ROW.pack(key, at, len(content), part))
        at += len(content)
    head = records.write_head(contents.head)
    records.read_head(head)
    index = b"".join(
        [
            *(_COUNT.pack(len(head)), head),
            *(_COUNT.pack(len(parts)), *parts),
            *(_COUNT.pack(len(table)), *table),
            *written.values(),
        ]
    )
    if len(index) > MAX_INDEX_BYTES:
        raise ValueError(f"an index of {len(index)} bytes, of which up to {MAX_INDEX_BYTES} are read")
    return index


# -- Reading ------------------------------------------------------------------------------------------------------


class _PartRow(NamedTuple):
    offset: int
    stored: int
    size: int
    sha256: bytes
    stored_sha256: bytes
    suffix: str


class Pack:
    """A pack's file, opened: its index checked, its parts read and checked one by one when they are wanted.

    Raises:
        PackError: it cannot be read, is damaged, or is of a format that this version does not know.
    """

    def __init__(self, path: str | os.PathLike[str]) -> None:
        try:
            self.path = Path(path)
            # Parts are read later, and what was opened is what is read. A pipe's other end, say, is not waited for.
            self._file = os.open(self.path, os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK | os.O_NOCTTY)
        except (OSError, ValueError, TypeError) as error:
            shown = path if isinstance(path, (str, Path)) else safe_repr(path)
            raise PackError(f"{shown}: cannot be read: {reason(error)}. Give the path of a pack.") from None
        self._closing = weakref.finalize(self, os.close, self._file)
        self._open()

    def _open(self) -> None:
        status = os.fstat(self._file)
        if not stat.S_ISREG(status.st_mode):
            raise self.error("something that is no regular file", "a pack, as `tvmdml pack build` writes it")
        size = status.st_size
        self.header = self._read(0, min(_HEADER.size, size))
        if not self.header.startswith(MAGIC):
            raise self.error("a file that begins as no pack does", "a pack, as `tvmdml pack build` writes it")
        if len(self.header) < _HEADER.size:
            raise self.damaged("it ends within its header")
        _, version, zero, index_bytes, parts_bytes, checksum = _HEADER.unpack(self.header)
        if version != FORMAT:
            advice = "Use a newer tvmdml." if version > FORMAT else "Build it anew."
            raise self.error(f"format {version}", f"format {FORMAT}, which this tvmdml reads", advice)
        end = _HEADER.size + index_bytes + parts_bytes
        if zero or end > size or (size - end) % SIGNATURE_BYTES:
            raise self.damaged(f"it has {size} bytes, and its header speaks of {end}")
        if index_bytes > MAX_INDEX_BYTES:
            raise self.error(f"an index of {index_bytes} bytes", f"up to {MAX_INDEX_BYTES}")
        if size - end > MAX_SIGNATURES * SIGNATURE_BYTES:
            raise self.error(f"{(size - end) // SIGNATURE_BYTES} signatures", f"up to {MAX_SIGNATURES}")
        index = self._read(_HEADER.size, index_bytes)
        if hashlib.sha256(index).digest() != checksum:
            raise self.damaged("its index is not what its checksum says")
        self.checksum = hashlib.sha256(self.header).hexdigest()
        """Of the header, and so of the whole pack but its signatures."""
        self._parts_at, self._parts_bytes = _HEADER.size + index_bytes, parts_bytes
        self._index, self._end, self._size = index, end, size
        try:
            self._read_index()
        except records.NOT_WRITTEN as error:
            raise self.damaged(f"its index makes no sense ({type(error).__name__}: {error})") from None
        self.signatures = self._read_signatures()

    def _read_index(self) -> None:
        at = _COUNT.size
        (head_bytes,) = _COUNT.unpack_from(self._index)
        self.head: dict[str, Any] = records.read_head(self._index[at : at + head_bytes])
        """As ``Contents.head``."""
        at += head_bytes
        (self.part_count,) = _COUNT.unpack_from(self._index, at)
        self._part_rows = at + _COUNT.size
        at = self._part_rows + self.part_count * _PART.size
        offset, stored, *_ = _PART.unpack_from(self._index, at - _PART.size) if self.part_count else (0, 0)
        if offset + stored != self._parts_bytes:
            raise ValueError("its parts do not end where the header says")
        (self.count,) = _COUNT.unpack_from(self._index, at)
        at += _COUNT.size
        table = memoryview(self._index)[at : at + self.count * _ROW.size]
        self._records_at = at + len(table)
        self._rows = {row[0]: row for row in _ROW.iter_unpack(table)}
        keys = list(self._rows)  # fewer than they are said to be, too, where the table is cut short
        if len(keys) != self.count or keys != sorted(keys):
            raise ValueError("its table is not in order, or has a key twice")

    def _read_signatures(self) -> tuple[tuple[bytes, bytes], ...]:
        found = []
        for at in range(self._end, self._size, SIGNATURE_BYTES):
            one = self._read(at, SIGNATURE_BYTES)
            if hashlib.sha256(one[:96]).digest() != one[96:]:
                raise self.damaged("a signature is not what its checksum says")
            found.append((one[:32], one[32:96]))
        if len(dict(found)) != len(found):
            raise self.damaged("a key has signed it twice")
        return tuple(found)

    # -- Records --------------------------------------------------------------------------------------------------

    def find(self, key: bytes) -> int | None:
        """The part that has the kernel of a key: all that it takes to run it, for its symbol is made of the key."""
        row = self._rows.get(key)
        return None if row is None or row[3] == records.NO_PART else row[3]

    def kernel(self, key: bytes) -> Kernel | None:
        """The kernel of a key.

        Raises:
            PackError: what stands there is no kernel of this key.
        """
        found = self._record(key)
        return found if isinstance(found, Kernel) else None

    def operation(self, key: bytes) -> Operation | None:
        """The operation of a key.

        Raises:
            PackError: what stands there is no operation of this key.
        """
        found = self._record(key)
        return found if isinstance(found, Operation) else None

    def records(self) -> Iterator[Kernel | Operation]:
        """Every record, in the order of the keys.

        Raises:
            PackError: one is wrong.
        """
        for key in self._rows:
            found = self._record(key)
            assert found is not None  # the key is of the table
            yield found

    def kernels(self) -> list[Kernel]:
        """All kernels."""
        return [record for record in self.records() if isinstance(record, Kernel)]

    def operations(self) -> list[Operation]:
        """All operations."""
        return [record for record in self.records() if isinstance(record, Operation)]

    def contents(self) -> Contents:
        """The pack as a whole, every part unpacked and checked.

        Raises:
            PackError: something in it is wrong.
        """
        parts = [Part(self.part(number).suffix, self.content(number)) for number in range(self.part_count)]
        return Contents(self.head, parts, self.kernels(), self.operations())

    def _record(self, key: bytes) -> Kernel | Operation | None:
        row = self._rows.get(key)
        if row is None:
            return None
        _, offset, size, part = row
        start = self._records_at + offset
        try:
            if start + size > len(self._index):
                raise ValueError("it reaches past the index")
            record = records.read(self._index[start : start + size], part, self.part_count)
            mine = record.key
        except records.NOT_WRITTEN as error:
            raise self.damaged(f"a record makes no sense ({type(error).__name__}: {error})") from None
        if mine != key:
            raise self.damaged(f"a record is not what its key says: {_shown(record)}")
        return record

    # -- Parts ----------------------------------------------------------------------------------------------------

    def part(self, number: int) -> _PartRow:
        """Where a part lies, and what it is.

        Raises:
            PackError: there is no such part, or not all of it is in the file.
        """
        if not 0 <= number < self.part_count:
            raise self.damaged(f"there is no part {number}")
        *numbers, suffix = _PART.unpack_from(self._index, self._part_rows + number * _PART.size)
        part = _PartRow._make([*numbers, suffix.rstrip(b"\0").decode("ascii", "backslashreplace")])
        before, stored, *_ = _PART.unpack_from(self._index, self._part_rows + (number - 1) * _PART.size) if number else (0, 0)
        if part.offset != before + stored or part.offset + part.stored > self._parts_bytes:
            raise self.damaged(f"part {number} does not begin where the one before it ends, or reaches past the end")
        if part.size > MAX_PART_BYTES:
            raise self.error(f"a part of {part.size} bytes", f"up to {MAX_PART_BYTES}")
        if part.stored > part.size + (part.size >> 8) + 64:  # zlib never makes it that much larger
            raise self.damaged(f"part {number} has {part.stored} bytes for {part.size}")
        if not _SUFFIX.fullmatch(part.suffix):
            raise self.damaged(f"part {number} has the suffix {part.suffix!r}")
        return part

    def content(self, number: int) -> bytes:
        """A part, unpacked.

        Raises:
            PackError: it is not what its checksum says.
        """
        part = self.part(number)
        stored = self._read(self._parts_at + part.offset, part.stored)
        if hashlib.sha256(stored).digest() != part.stored_sha256:
            raise self.damaged(f"part {number} is not what its checksum says")
        unpack = zlib.decompressobj()
        try:
            content = unpack.decompress(stored, part.size + 1)
        except zlib.error as error:
            raise self.damaged(f"part {number} cannot be unpacked: {error}") from None
        if not unpack.eof or unpack.unused_data or len(content) != part.size or hashlib.sha256(content).digest() != part.sha256:
            raise self.damaged(f"part {number} unpacks to something else than it is said to be")
        return content

    # -- The file -------------------------------------------------------------------------------------------------

    def unsigned(self) -> bytes:
        """The whole file but for its signatures."""
        return self._read(0, self._end)

    def close(self) -> None:
        """Close the file: parts that were not read cannot be, from then on. It is closed when the pack is dropped, too."""
        self._file = -1
        self._closing()

    def error(self, given: str, allowed: str, advice: str = "") -> PackError:
        """What to raise for something about the pack."""
        return PackError(message(str(self.path), given, allowed, advice))

    def damaged(self, how: str) -> PackError:
        """What to raise where the pack is not what was written."""
        return PackError(f"{self.path}: this pack is damaged: {how}. Copy or build it anew.")

    def _read(self, at: int, size: int) -> bytes:
        pieces = []
        while size:
            try:
                piece = os.pread(self._file, min(size, 1 << 30), at)
            except (OSError, ValueError) as error:
                raise PackError(f"{self.path}: cannot be read: {reason(error)}.") from None
            if not piece:
                raise self.damaged("it was cut short while it was open")
            pieces.append(piece)
            at, size = at + len(piece), size - len(piece)
        return b"".join(pieces)


def _shown(record: Kernel | Operation) -> str:
    return f"{record.operator}/{record.kernel}" if isinstance(record, Kernel) else str(record.line.get("operator"))
