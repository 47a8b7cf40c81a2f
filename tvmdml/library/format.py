"""The file format of packs: writing it, and reading it without trusting it.

A pack is, with all numbers little-endian::

    header      64 bytes: magic, format version, 0, bytes of the index, bytes of the parts, SHA-256 of the index
    index       head    u32 bytes, then JSON: versions of the producer, targets, stamps of the schedules, knobs, tuning logs
                parts   u32 count, then 96 bytes each: offset, stored bytes, bytes, SHA-256, SHA-256 of what is stored, suffix
                table   u32 count, then 28 bytes each, sorted by key: key, offset and bytes of a record, and the part of a
                        kernel's code (2^32 - 1 for an operation)
                records JSON objects, without gaps, in the order of the table: kernels and operations
    parts       the native code, each part compressed with zlib, without gaps; and constants of graphs (suffix .data), as they are:
                each after so many zero bytes, which belong to what is stored, that it begins at a multiple of 64 bytes of the file
    signatures  128 bytes each: Ed25519 public key, its signature of the header, SHA-256 of both

The header identifies the whole pack: it has the checksum of the index, and the index has the checksums of the parts. The index is
parsed, and a part is decompressed, only after its checksum was found right. A record's key is the first 16 bytes of a hash of what
the record describes, so one record cannot be passed off as another. A kernel's symbol is derived from its key.

Memory: an open pack holds its index as bytes and no object for each record. Parts are read, copied and written in pieces.

A reader refuses an unknown format version, and ignores unknown members of JSON objects.
"""

from __future__ import annotations

import bisect
import hashlib
import io
import os
import re
import stat
import struct
import weakref
import zlib
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any, BinaryIO, NamedTuple

import numpy as np

from tvmdml.errors import PackError, message, reason, safe_repr
from tvmdml.library import files, records
from tvmdml.library.records import GraphRecord, KernelRecord, OperationRecord
from tvmdml.system.disk import _trust, mapping
from tvmdml.tensors.arrays import NumpyArray

FORMAT = 1
"""The format version. It is raised when an older reader would misunderstand a newer file."""
MAGIC = files.MAGIC
MAX_PART_BYTES = 256 << 20
"""The limit of a part's decompressed size."""
# A pack may be anyone's: what has more is refused before memory for it is taken.
MAX_INDEX_BYTES = 64 << 20
MAX_RECORDS = 1 << 18
MAX_SIGNATURES = 64
_HEADER = struct.Struct("<8sIIQQ32s")
_COUNT = struct.Struct("<I")
_PART = struct.Struct("<QQQ32s32s8s")
_ROW = struct.Struct("<16sIII")
SIGNATURE_BYTES = 128
DATA = ".data"
"""The suffix of parts that are not compressed, so that a reader maps them."""
FILE = ".file"
"""The suffix of files that are about a pack's graphs."""
_DATA_ALIGNMENT = 64
_SUFFIX = re.compile(r"\.[a-z0-9_]{1,7}")
_PIECE_BYTES = 1 << 20
"""Parts are read, compressed and decompressed in pieces of this size."""


class Part(NamedTuple):
    """One piece of native code: a library of kernels, or a device's program; or a graph, or one of its constants."""

    suffix: str
    content: bytes | memoryview
    level: int = 9
    """How much it is compressed; 0: it is stored as it is, for a file that is compressed itself."""


class StoredPart(NamedTuple):
    """A part of an open pack. Its compressed bytes are copied as they are."""

    pack: Pack
    number: int


class Contents(NamedTuple):
    """The contents of a pack, in memory."""

    head: dict[str, Any]
    """``producer`` (versions), ``targets`` (names, by the codes that records use), ``sources`` (stamps of the schedules' source
    code, by target kind and operator), ``knobs`` (by operator), ``logs`` (tuning records, in the form of a log's lines), and
    if there are any, ``graphs`` and ``files`` (their parts, by names)."""
    parts: Sequence[Part | StoredPart]
    """``write`` iterates over it once: a sequence may make each part when it is asked for it."""
    kernels: Sequence[KernelRecord]
    operations: Sequence[OperationRecord]


# -- Writing ------------------------------------------------------------------------------------------------------


def write(path: str | os.PathLike[str], contents: Contents) -> None:
    """Write a pack atomically. The same contents give the same bytes.

    Raises:
        OSError: it cannot be written.
        PackError: no reader would accept it.
    """
    every: list[KernelRecord | OperationRecord] = [*contents.kernels, *contents.operations]
    try:
        found = {record.key: record for record in every}
    except records.NOT_WRITTEN as error:
        raise _unreadable(path, error) from error
    compose(path, contents.head, contents.parts, sorted(found), found.__getitem__)


def compose(
    path: str | os.PathLike[str],
    head: dict[str, Any],
    parts: Sequence[Part | StoredPart],
    keys: Sequence[bytes],
    record: Callable[[bytes], KernelRecord | OperationRecord],
) -> None:
    """Write a pack atomically, one record and one part at a time.

    Args:
        path: the file to write.
        head: as ``Contents.head``.
        parts: the parts, iterated over once.
        keys: the keys of the records, sorted.
        record: called once with each key, and returns its record.

    Raises:
        OSError: it cannot be written.
        PackError: no reader would accept it, or a part or record of another pack is damaged.
    """
    table, written = bytearray(), bytearray()
    try:
        head_json = records.write_head(head)
        records.read_head(head_json)
        for key in keys:
            found = record(key)
            part = found.part if isinstance(found, KernelRecord) else records.NO_PART
            content = records.write(found)
            records.read(content, part, len(parts))
            table += _ROW.pack(key, len(written), len(content), part)
            written += content
        if len(keys) > MAX_RECORDS:
            raise ValueError(f"{len(keys)} records; at most {MAX_RECORDS} are read")
        size = 3 * _COUNT.size + len(head_json) + len(parts) * _PART.size + len(table) + len(written)
        if size > MAX_INDEX_BYTES:
            raise ValueError(f"an index of {size} bytes; at most {MAX_INDEX_BYTES} are read")
    except PackError:  # a record of another pack, which is a ``ValueError`` too
        raise
    except records.NOT_WRITTEN as error:
        raise _unreadable(path, error) from error
    with files.replacing(path) as stream:
        stream.seek(_HEADER.size + size)  # the parts come first: the index has their checksums
        rows, at = bytearray(), 0
        for part_of in parts:
            row = _store(path, part_of, stream, at)
            rows += _PART.pack(*row[:-1], row.suffix.encode())
            at += row.stored
        pieces = (_COUNT.pack(len(head_json)), head_json, _COUNT.pack(len(parts)), rows, _COUNT.pack(len(keys)), table, written)
        digest = hashlib.sha256()
        for piece in pieces:
            digest.update(piece)
        stream.seek(0)
        stream.writelines((_HEADER.pack(MAGIC, FORMAT, 0, size, at, digest.digest()), *pieces))


def _unreadable(path: str | os.PathLike[str], error: Exception) -> PackError:
    return PackError(f"{path}: this pack could not be read again: {error}.")


def _store(path: str | os.PathLike[str], part: Part | StoredPart, stream: BinaryIO, at: int) -> _PartRow:
    """Write a part to the file. The result is its row of the index; ``at`` is its offset."""
    if isinstance(part, StoredPart):
        row = part.pack.part(part.number)
        if row.suffix != DATA:
            part.pack.copy(part.number, stream)
            return row._replace(offset=at)
        part = Part(DATA, part.pack.mapped(part.number).data)
    if part.suffix == DATA:
        pad = b"\0" * (-stream.tell() % _DATA_ALIGNMENT)
        digest = hashlib.sha256(pad)
        digest.update(part.content)
        stored = stream.write(pad) + stream.write(part.content)
        return _PartRow(at, stored, stored - len(pad), hashlib.sha256(part.content).digest(), digest.digest(), DATA)
    if not _SUFFIX.fullmatch(part.suffix) or len(part.content) > MAX_PART_BYTES:
        given = f"{len(part.content)} bytes, suffix {part.suffix!r}"
        raise PackError(message(f"{path}: a part", given, f"up to {MAX_PART_BYTES} bytes, a suffix such as '.so'"))
    digest, stored = hashlib.sha256(), 0
    for piece in _compressed(part.content, part.level):
        digest.update(piece)
        stored += stream.write(piece)
    return _PartRow(at, stored, len(part.content), hashlib.sha256(part.content).digest(), digest.digest(), part.suffix)


def _compressed(content: bytes | memoryview, level: int) -> Iterator[bytes]:
    compressor = zlib.compressobj(level)
    with memoryview(content) as view:
        for at in range(0, len(content), _PIECE_BYTES):
            yield compressor.compress(view[at : at + _PIECE_BYTES])
    yield compressor.flush()


def signature(key: bytes, signed: bytes) -> bytes:
    """A signature in the form of the file: a public key of 32 bytes, its signature of the header (64 bytes), and their checksum."""
    both = key + signed
    return both + hashlib.sha256(both).digest()


# -- Reading ------------------------------------------------------------------------------------------------------


class _PartRow(NamedTuple):
    offset: int
    stored: int
    size: int
    sha256: bytes
    stored_sha256: bytes
    suffix: str


class Pack:
    """An open pack file. Its index is checked when it is opened; each part is checked when it is read.

    Args:
        path: the file.
        check: called with the pack when its header and signatures are known, and before its index is read; it may raise.
            ``signing.check`` refuses here a pack that is not trusted.

    Raises:
        PackError: it cannot be read, is damaged, or has a format version that this reader does not know.
    """

    def __init__(self, path: str | os.PathLike[str], check: Callable[[Pack], object] | None = None) -> None:
        try:
            self.path = Path(path)
            # The file stays open: parts are read later, from the same file even if the path is replaced. O_NONBLOCK: a pipe must
            # not make us wait for its other end.
            self._file = os.open(self.path, os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK | os.O_NOCTTY)
        except (OSError, ValueError, TypeError) as error:
            shown = _named(path) if isinstance(path, (str, Path)) else safe_repr(path)
            raise PackError(f"{shown}: cannot be read: {reason(error)}. Give the path of a pack.") from None
        self._closing = weakref.finalize(self, os.close, self._file)
        self._map: NumpyArray | None = None
        self._data: weakref.WeakValueDictionary[int, NumpyArray] = weakref.WeakValueDictionary()
        try:
            self._open(check)
        except BaseException:
            self.close()
            raise

    def _open(self, check: Callable[[Pack], object] | None) -> None:
        status = os.fstat(self._file)
        if not stat.S_ISREG(status.st_mode):
            raise self.error("something that is not a regular file", "a pack, as `tvmdml pack build` writes it")
        size = status.st_size
        self.header = self._read(0, min(_HEADER.size, size))
        if not self.header.startswith(MAGIC):
            raise self.error("a file that does not begin like a pack", "a pack, as `tvmdml pack build` writes it")
        if len(self.header) < _HEADER.size:
            raise self.damaged("it ends within its header")
        _, version, zero, index_bytes, parts_bytes, checksum = _HEADER.unpack(self.header)
        if version != FORMAT:
            advice = "Use a newer tvmdml." if version > FORMAT else "Build it again."
            raise self.error(f"format {version}", f"format {FORMAT}, which this tvmdml reads", advice)
        end = _HEADER.size + index_bytes + parts_bytes
        if zero or end > size or (size - end) % SIGNATURE_BYTES:
            raise self.damaged(f"it has {size} bytes, and its header says {end}")
        if index_bytes > MAX_INDEX_BYTES:
            raise self.error(f"an index of {index_bytes} bytes", f"up to {MAX_INDEX_BYTES}")
        if size - end > MAX_SIGNATURES * SIGNATURE_BYTES:
            raise self.error(f"{(size - end) // SIGNATURE_BYTES} signatures", f"up to {MAX_SIGNATURES}")
        self.checksum = hashlib.sha256(self.header).hexdigest()
        """Of the header, and so of the whole pack without its signatures."""
        self._parts_at, self._parts_bytes, self._end = _HEADER.size + index_bytes, parts_bytes, end
        self.signatures = self._read_signatures(size)
        """Public keys and their signatures. They are not verified here: see ``signing``."""
        if check is not None:
            check(self)
        self._index = self._read(_HEADER.size, index_bytes)
        if hashlib.sha256(self._index).digest() != checksum:
            raise self.damaged("the checksum of its index does not match")
        try:
            self._read_index()
        except records.NOT_WRITTEN as error:
            raise self.damaged(f"its index is invalid ({type(error).__name__}: {error})") from None

    def _read_index(self) -> None:
        at = _COUNT.size
        (head_bytes,) = _COUNT.unpack_from(self._index)
        self.head: dict[str, Any] = records.read_head(memoryview(self._index)[at : at + head_bytes])
        """As ``Contents.head``."""
        at += head_bytes
        (self.part_count,) = _COUNT.unpack_from(self._index, at)
        self._part_rows = at + _COUNT.size
        at = self._part_rows + self.part_count * _PART.size
        offset, stored, *_ = _PART.unpack_from(self._index, at - _PART.size) if self.part_count else (0, 0)
        if offset + stored != self._parts_bytes:
            raise ValueError("its parts do not end where the header says")
        (self.count,) = _COUNT.unpack_from(self._index, at)
        if self.count > MAX_RECORDS:
            raise ValueError(f"{self.count} records; at most {MAX_RECORDS} are read")
        self._table = at + _COUNT.size
        self._records_at = self._table + self.count * _ROW.size
        before, end = b"", 0
        for key, offset, size, _ in _ROW.iter_unpack(memoryview(self._index)[self._table : self._records_at]):
            if key <= before:
                raise ValueError("its table is not in order, or has a key twice")
            if offset != end:
                raise ValueError("its records do not follow one another")
            before, end = key, offset + size
        if self._records_at + end != len(self._index):
            raise ValueError("its records do not end where the index does")

    def _read_signatures(self, size: int) -> tuple[tuple[bytes, bytes], ...]:
        found = []
        for at in range(self._end, size, SIGNATURE_BYTES):
            one = self._read(at, SIGNATURE_BYTES)
            if hashlib.sha256(one[:96]).digest() != one[96:]:
                raise self.damaged("the checksum of a signature does not match")
            found.append((one[:32], one[32:96]))
        if len(dict(found)) != len(found):
            raise self.damaged("a key has signed it twice")
        return tuple(found)

    # -- Records --------------------------------------------------------------------------------------------------

    def keys(self) -> Iterator[bytes]:
        """The keys of all records, sorted."""
        return map(self._key, range(self.count))

    def find(self, key: bytes) -> int | None:
        """The part that has the code of the kernel with this key. No more is needed to run it: its symbol derives from the key."""
        row = self._row(key)
        return None if row is None or row[3] == records.NO_PART else int(row[3])

    def record(self, key: bytes) -> KernelRecord | OperationRecord | None:
        """The record with this key.

        Raises:
            PackError: the record is not valid, or does not match its key.
        """
        row = self._row(key)
        if row is None:
            return None
        _, offset, size, part = row
        start = self._records_at + offset
        try:
            record = records.read(memoryview(self._index)[start : start + size], part, self.part_count)
            actual = record.key
        except records.NOT_WRITTEN as error:
            raise self.damaged(f"a record is invalid ({type(error).__name__}: {error})") from None
        if actual != key:
            raise self.damaged(f"a record does not match its key: {_shown(record)}")
        return record

    def kernel(self, key: bytes) -> KernelRecord | None:
        """The kernel with this key.

        Raises:
            PackError: as ``record``.
        """
        found = self.record(key)
        return found if isinstance(found, KernelRecord) else None

    def operation(self, key: bytes) -> OperationRecord | None:
        """The operation with this key.

        Raises:
            PackError: as ``record``.
        """
        found = self.record(key)
        return found if isinstance(found, OperationRecord) else None

    def records(self) -> Iterator[KernelRecord | OperationRecord]:
        """Every record, sorted by key, parsed one at a time.

        Raises:
            PackError: as ``record``.
        """
        for key in self.keys():
            found = self.record(key)
            assert found is not None  # the key is in the table
            yield found

    def kernels(self) -> list[KernelRecord]:
        """All kernels."""
        return [record for record in self.records() if isinstance(record, KernelRecord)]

    def operations(self) -> list[OperationRecord]:
        """All operations."""
        return [record for record in self.records() if isinstance(record, OperationRecord)]

    def contents(self) -> Contents:
        """The whole pack in memory, every part decompressed and checked.

        Raises:
            PackError: something in it is wrong.
        """
        parts = [Part(self.part(number).suffix, self.content(number)) for number in range(self.part_count)]
        return Contents(self.head, parts, self.kernels(), self.operations())

    def graphs(self) -> list[GraphRecord]:
        """The compiled graphs."""
        return [GraphRecord(**one) for one in self.head.get("graphs", ())]

    @property
    def files(self) -> tuple[str, ...]:
        """The names of files about its graphs."""
        return tuple(self.head.get("files", ()))

    def file(self, name: str) -> bytes:
        """A file about its graphs.

        Raises:
            PackError: there is none with this name, or it is damaged.
        """
        number = self.head.get("files", {}).get(name)
        if number is None:
            raise self.error(f"no file {safe_repr(name)}", ", ".join(self.files) or "packs of language models")
        if self.part(number).suffix != FILE:
            raise self.damaged(f"part {number} is no file")
        return self.content(number)

    def _key(self, number: int) -> bytes:
        at = self._table + number * _ROW.size
        return self._index[at : at + records.KEY_BYTES]

    def _row(self, key: bytes) -> tuple[Any, ...] | None:
        number = bisect.bisect_left(range(self.count), key, key=self._key)
        if number == self.count or self._key(number) != key:
            return None
        return _ROW.unpack_from(self._index, self._table + number * _ROW.size)

    # -- Parts ----------------------------------------------------------------------------------------------------

    def part(self, number: int) -> _PartRow:
        """The index's row of a part.

        Raises:
            PackError: there is no such part, or its row is not valid.
        """
        if not 0 <= number < self.part_count:
            raise self.damaged(f"there is no part {number}")
        *numbers, suffix = _PART.unpack_from(self._index, self._part_rows + number * _PART.size)
        part = _PartRow._make([*numbers, suffix.rstrip(b"\0").decode("ascii", "backslashreplace")])
        before, stored, *_ = _PART.unpack_from(self._index, self._part_rows + (number - 1) * _PART.size) if number else (0, 0)
        if part.offset != before + stored or part.offset + part.stored > self._parts_bytes:
            raise self.damaged(f"part {number} does not begin where the one before it ends, or reaches past the end")
        if part.suffix == DATA:
            if not 0 <= part.stored - part.size < _DATA_ALIGNMENT:
                raise self.damaged(f"part {number} has {part.stored} bytes for {part.size}")
            return part
        if part.size > MAX_PART_BYTES:
            raise self.error(f"a part of {part.size} bytes", f"up to {MAX_PART_BYTES}")
        if part.stored > part.size + (part.size >> 8) + 64:  # zlib never expands data by more
            raise self.damaged(f"part {number} has {part.stored} bytes for {part.size}")
        if not _SUFFIX.fullmatch(part.suffix):
            raise self.damaged(f"part {number} has the suffix {part.suffix!r}")
        return part

    def content(self, number: int) -> bytes:
        """A part, decompressed, in memory.

        Raises:
            PackError: as ``unpacked``.
        """
        found = io.BytesIO()
        found.writelines(self.unpacked(number))
        return found.getvalue()

    def copy(self, number: int, stream: BinaryIO) -> None:
        """Write a part to a file as it is stored, compressed. It is decompressed as well, piece by piece, to check it.

        Raises:
            PackError: as ``unpacked``.
        """
        for _ in self.unpacked(number, stream):
            pass

    def mapped(self, number: int) -> NumpyArray:
        """The bytes of a part that is not compressed; they stay readable when the pack is closed. While they are used, they are one
        array, which is checked once.

        They are those of the file itself, unless the pack is signed and another user could change them after this check.

        Raises:
            PackError: the part is another one, or its checksum does not match.
        """
        if (known := self._data.get(number)) is None:
            known = self._data[number] = self._mapped(number)
        return known

    def _mapped(self, number: int) -> NumpyArray:
        part = self.part(number)
        if part.suffix != DATA:
            raise self.damaged(f"part {number} is no constant")
        if not part.stored:
            return np.empty(0, np.uint8)
        start = self._parts_at + part.offset
        try:
            if self.signatures and not _trust.is_own(os.fstat(self._file)):
                before = start % _DATA_ALIGNMENT
                stored = mapping.copied_from(self._file, start - before, before + part.stored)[before:]
            else:
                if self._map is None:
                    self._map = mapping.mapped(self._file, self._end)
                stored = self._map[start : start + part.stored]
        except OSError as error:
            raise PackError(f"{self.shown}: cannot be mapped: {reason(error)}.") from None
        pad = part.stored - part.size
        if hashlib.sha256(stored.data).digest() != part.stored_sha256 or stored[:pad].any():
            raise self.damaged(f"the checksum of part {number} does not match")
        # A view's base is the first array without one of its own kind as base: so arrays of another type or shape keep this one.
        return np.asarray(stored[pad:].data)

    def unpacked(self, number: int, copy: BinaryIO | None = None) -> Iterator[bytes]:
        """The pieces of a part, decompressed; with ``copy``, the compressed bytes are written there meanwhile.

        Only the end of the iteration says that the part is right: nothing may be run before. No more is decompressed than the size
        that the index declares, and nothing before the checksum of the compressed bytes was found right.

        Raises:
            PackError: a checksum does not match, or the part does not have the size that the index declares.
        """
        part = self.part(number)
        wrong = f"part {number} does not unpack to what its index says"
        if part.suffix == DATA:
            content = self.mapped(number)
            if hashlib.sha256(content.data).digest() != part.sha256:
                raise self.damaged(wrong)
            yield from (content[at : at + _PIECE_BYTES].tobytes() for at in range(0, part.size, _PIECE_BYTES))
            return
        for _ in self._stored(number, part):
            pass
        unpack, digest, size = zlib.decompressobj(), hashlib.sha256(), 0
        for stored in self._stored(number, part):
            if copy is not None:
                copy.write(stored)
            piece = b""
            while stored or len(piece) == _PIECE_BYTES:  # a full piece: the decompressor may hold more output
                try:
                    piece = unpack.decompress(stored, _PIECE_BYTES)
                except zlib.error as error:
                    raise self.damaged(f"part {number} cannot be unpacked: {error}") from None
                stored = unpack.unconsumed_tail
                size += len(piece)
                if size > part.size or unpack.unused_data:
                    raise self.damaged(wrong)
                digest.update(piece)
                yield piece
        if not unpack.eof or size != part.size or digest.digest() != part.sha256:
            raise self.damaged(wrong)

    def _stored(self, number: int, part: _PartRow) -> Iterator[bytes]:
        """The pieces of a part as they are stored. The checksum is compared at the end."""
        digest = hashlib.sha256()
        start = self._parts_at + part.offset
        for at in range(start, start + part.stored, _PIECE_BYTES):
            piece = self._read(at, min(_PIECE_BYTES, start + part.stored - at))
            digest.update(piece)
            yield piece
        if digest.digest() != part.stored_sha256:
            raise self.damaged(f"the checksum of part {number} does not match")

    # -- The file -------------------------------------------------------------------------------------------------

    def unsigned(self) -> Iterator[bytes]:
        """The whole file without its signatures, in pieces."""
        for at in range(0, self._end, _PIECE_BYTES):
            yield self._read(at, min(_PIECE_BYTES, self._end - at))

    def close(self) -> None:
        """Close the file: no part can be read from then on. The file is also closed when the pack is garbage-collected."""
        self._file = -1
        self._closing()

    @property
    def shown(self) -> str:
        """Its path, as messages name it."""
        return _named(self.path)

    def error(self, given: str, allowed: str, advice: str = "") -> PackError:
        """The exception for something in the pack that is not allowed."""
        return PackError(message(self.shown, given, allowed, advice))

    def damaged(self, how: str) -> PackError:
        """The exception for a pack that no writer would have written."""
        return PackError(f"{self.shown}: this pack is damaged: {how}. Copy or build it again.")

    def _read(self, at: int, size: int) -> bytes:
        pieces = []
        while size:
            try:
                piece = os.pread(self._file, min(size, 1 << 30), at)
            except (OSError, ValueError) as error:
                raise PackError(f"{self.shown}: cannot be read: {reason(error)}.") from None
            if not piece:
                raise self.damaged("it was cut short while it was open")
            pieces.append(piece)
            at, size = at + len(piece), size - len(piece)
        return b"".join(pieces)


def _named(path: str | Path) -> str:
    """A path in a message: a terminal must not be sent the control characters that a file's name may have."""
    from tvmdml.system.console import printable  # it imports click, which loading a pack does not need

    return printable(path)


def _shown(record: KernelRecord | OperationRecord) -> str:
    return f"{record.operator}/{record.kernel}" if isinstance(record, KernelRecord) else str(record.line.get("operator"))
