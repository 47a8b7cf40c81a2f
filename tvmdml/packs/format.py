"""The file that a pack is: written, and read without believing it.

A pack is, with all numbers little-endian::

    header      64 bytes: magic, format version, 0, bytes of the index, bytes of the parts, SHA-256 of the index
    index       head    u32 bytes, then JSON: who made the pack, of which schedules, with which knobs
                parts   u32 count, then 64 bytes each: offset, stored bytes, bytes, SHA-256, suffix
                table   u32 count, then 28 bytes each, by key: key, offset and bytes of a record, a kernel's part (else 2^32 - 1)
                records JSON objects: kernels, and the operations that they are for
    parts       the native code, each compressed by zlib
    signatures  128 bytes each: Ed25519 public key, its signature of the header, SHA-256 of both

The header stands for the whole: it has the index's checksum, and the index has those of the parts. A record's key is the first 16
bytes of a hash of what the record is about, so that a record cannot stand for another; a kernel's symbol is made of its key.

A reader refuses a format that it does not know, and passes over members of JSON objects that it does not know.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
import struct
import tempfile
import zlib
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from tvmdml.errors import PackError, message

FORMAT = 1
"""The version of the file: raised when a reader of the one before would misunderstand it."""
MAGIC = b"\x89TVMDML\n"
SUFFIX = ".tvmdml"
MAX_PART_BYTES = 256 << 20
"""The most that a part may unpack to."""
_HEADER = struct.Struct("<8sIIQQ32s")
_COUNT = struct.Struct("<I")
_PART = struct.Struct("<QQQ32s8s")
_ROW = struct.Struct("<16sIII")
_NO_PART = 0xFFFFFFFF
SIGNATURE_BYTES = 128
_encode = json.JSONEncoder(separators=(",", ":"), sort_keys=True).encode
_NOT_A_RECORD = (ValueError, KeyError, TypeError, IndexError, AttributeError, RecursionError, struct.error)
"""What reading an index may raise that nobody wrote."""

Parameters = tuple[tuple[str, Any], ...]


def kernel_key(target: str, operator: str, kernel: str, parameters: Parameters) -> bytes:
    """The key of a kernel: what its code was generated from, but for the source of schedules, which the head has."""
    return _key(["kernel", target, operator, kernel, parameters])


def operation_key(target: str, line: Mapping[str, Any], in_place: bool) -> bytes:
    """The key of an operation."""
    return _key(["operation", target, line, in_place])


def _key(what: object) -> bytes:
    return hashlib.blake2b(_encode(what).encode(), digest_size=16).digest()


class Kernel(NamedTuple):
    """A compiled kernel in a pack."""

    operator: str
    """The operator's module."""
    kernel: str
    """Which of the schedule's kernels."""
    parameters: Parameters
    target: str
    """What the code runs on, as ``Target.code`` says it."""
    part: int
    """The number of the part that has the code."""

    @property
    def key(self) -> bytes:
        """What it is found by."""
        return kernel_key(self.target, self.operator, self.kernel, self.parameters)

    @property
    def symbol(self) -> str:
        """The name of its function in a library."""
        return f"tvmdml_{self.key.hex()}"


class Launch(NamedTuple):
    """How a schedule would have an operation launched."""

    threads: int
    """On so many threads, or more; 0 for devices."""
    kernel: bytes
    """The kernel's key."""
    scalars: tuple[int, ...]
    temporaries: tuple[tuple[str, int], ...]


class Operation(NamedTuple):
    """A descriptor that a pack was built for, on a target."""

    line: dict[str, Any]
    """The descriptor, as a spec writes it."""
    in_place: bool
    target: str
    launches: tuple[Launch, ...]

    @property
    def key(self) -> bytes:
        """What it is found by."""
        return operation_key(self.target, self.line, self.in_place)


class Part(NamedTuple):
    """One piece of native code: a library of kernels, or a device's program."""

    suffix: str
    content: bytes


class Contents(NamedTuple):
    """What a pack is made of, and what becomes of one that is read whole."""

    head: dict[str, Any]
    """``producer`` (versions), ``sources`` (a stamp of the schedules' source, by target kind and operator), ``knobs``."""
    parts: Sequence[Part]
    kernels: Sequence[Kernel]
    operations: Sequence[Operation]


# -- Writing ------------------------------------------------------------------------------------------------------


def write(path: str | os.PathLike[str], contents: Contents) -> None:
    """Write a pack, whole or not at all. The same contents are the same bytes.

    Raises:
        OSError: it cannot be written.
    """
    stored = [zlib.compress(part.content, 9) for part in contents.parts]
    rows, at = [], 0
    for part, compressed in zip(contents.parts, stored, strict=True):
        checksum = hashlib.sha256(part.content).digest()
        rows.append(_PART.pack(at, len(compressed), len(part.content), checksum, part.suffix.encode()))
        at += len(compressed)
    index = _index(contents, rows)
    header = _HEADER.pack(MAGIC, FORMAT, 0, len(index), at, hashlib.sha256(index).digest())
    replace(path, [header, index, *stored])


def replace(path: str | os.PathLike[str], pieces: Sequence[bytes]) -> None:
    """Put a file in a place at once: beside it first, then renamed."""
    path = Path(path)
    handle, staged = tempfile.mkstemp(dir=path.parent, prefix=f".{path.name}-")
    try:
        with os.fdopen(handle, "wb") as stream:
            stream.writelines(pieces)
        os.chmod(staged, 0o666 & ~_umask())
        os.replace(staged, path)
    except BaseException:
        with contextlib.suppress(OSError):
            os.unlink(staged)
        raise


def _umask() -> int:
    mask = os.umask(0)
    os.umask(mask)
    return mask


def _index(contents: Contents, parts: list[bytes]) -> bytes:
    records: dict[bytes, bytes] = {}
    part_of: dict[bytes, int] = {}
    for kernel in contents.kernels:
        records[kernel.key] = _encode({"is": "kernel", **{name: value for name, value in kernel._asdict().items() if name != "part"}}).encode()
        part_of[kernel.key] = kernel.part
    for operation in contents.operations:
        launches = [{**launch._asdict(), "kernel": launch.kernel.hex()} for launch in operation.launches]
        records[operation.key] = _encode({"is": "operation", **operation._asdict(), "launches": launches}).encode()
    table, at = [], 0
    for key in sorted(records):
        table.append(_ROW.pack(key, at, len(records[key]), part_of.get(key, _NO_PART)))
        at += len(records[key])
    head = _encode(contents.head).encode()
    return b"".join(
        [
            *(_COUNT.pack(len(head)), head),
            *(_COUNT.pack(len(parts)), *parts),
            *(_COUNT.pack(len(table)), *table),
            *(records[key] for key in sorted(records)),
        ]
    )


# -- Reading ------------------------------------------------------------------------------------------------------


class _PartRow(NamedTuple):
    offset: int
    stored: int
    size: int
    sha256: bytes
    suffix: str


class Pack:
    """A pack's file, opened: its index checked, its parts read and checked one by one when they are wanted.

    Raises:
        PackError: it cannot be read, is damaged, or is of a format that this version does not know.
    """

    def __init__(self, path: str | os.PathLike[str]) -> None:
        self.path = Path(path)
        try:
            self._file = open(self.path, "rb", buffering=0)  # noqa: SIM115 - parts are read later; what was opened is what is read
        except OSError as error:
            raise PackError(f"{self.path}: cannot be read: {error.strerror or error}. Give the path of a pack.") from None
        try:
            self._open()
        except BaseException:
            self._file.close()
            raise

    def _open(self) -> None:
        size = os.fstat(self._file.fileno()).st_size
        self.header = self._read(0, min(_HEADER.size, size))
        if not self.header.startswith(MAGIC):
            raise self.error("something else", "a pack, as `tvmdml pack build` writes it")
        if len(self.header) < _HEADER.size:
            raise self.damaged("it ends within its header")
        _, version, zero, index_bytes, parts_bytes, checksum = _HEADER.unpack(self.header)
        if version != FORMAT:
            advice = "Use a newer tvmdml." if version > FORMAT else "Build it anew."
            raise self.error(f"format {version}", f"format {FORMAT}, which this tvmdml reads", advice)
        end = _HEADER.size + index_bytes + parts_bytes
        if zero or end > size or (size - end) % SIGNATURE_BYTES:
            raise self.damaged(f"it has {size} bytes, and its header speaks of {end}")
        index = self._read(_HEADER.size, index_bytes)
        if hashlib.sha256(index).digest() != checksum:
            raise self.damaged("its index is not what its checksum says")
        self.checksum = hashlib.sha256(self.header).hexdigest()
        """Of the header, and so of the whole pack but its signatures."""
        self._parts_at, self._parts_bytes = _HEADER.size + index_bytes, parts_bytes
        self._index, self._end, self._size = index, end, size
        try:
            self._read_index()
        except _NOT_A_RECORD as error:
            raise self.damaged(f"its index makes no sense ({type(error).__name__}: {error})") from None
        self.signatures = self._read_signatures()

    def _read_index(self) -> None:
        at = _COUNT.size
        (head_bytes,) = _COUNT.unpack_from(self._index)
        head = json.loads(self._index[at : at + head_bytes])
        at += head_bytes
        self.head: dict[str, Any] = {name: dict(head[name]) for name in ("producer", "sources", "knobs")}
        """As ``Contents.head``."""
        (self.part_count,) = _COUNT.unpack_from(self._index, at)
        self._part_rows = at + _COUNT.size
        at = self._part_rows + self.part_count * _PART.size
        (self.count,) = _COUNT.unpack_from(self._index, at)
        at += _COUNT.size
        table = memoryview(self._index)[at : at + self.count * _ROW.size]
        self._records = at + len(table)
        if len(table) != self.count * _ROW.size:
            raise ValueError("its table is cut short")
        self._rows = {row[0]: row for row in _ROW.iter_unpack(table)}
        if len(self._rows) != self.count:
            raise ValueError("a key is there twice")

    def _read_signatures(self) -> tuple[tuple[bytes, bytes], ...]:
        found = []
        for at in range(self._end, self._size, SIGNATURE_BYTES):
            one = self._read(at, SIGNATURE_BYTES)
            if hashlib.sha256(one[:96]).digest() != one[96:]:
                raise self.damaged("a signature is not what its checksum says")
            found.append((one[:32], one[32:96]))
        return tuple(found)

    # -- Records --------------------------------------------------------------------------------------------------

    def find(self, key: bytes) -> int | None:
        """The part that has the kernel of a key: all that it takes to run it, for its symbol is made of the key."""
        row = self._rows.get(key)
        return None if row is None or row[3] == _NO_PART else row[3]

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
        start = self._records + offset
        try:
            given = json.loads(self._index[start : start + size])
            record = _RECORDS[given["is"]](given, part)
            mine = record.key
        except _NOT_A_RECORD as error:
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
        row = _PART.unpack_from(self._index, self._part_rows + number * _PART.size)
        part = _PartRow(*row[:4], row[4].rstrip(b"\0").decode("ascii", "backslashreplace"))
        if part.offset + part.stored > self._parts_bytes:
            raise self.damaged(f"part {number} reaches past its end")
        if part.size > MAX_PART_BYTES:
            raise self.error(f"a part of {part.size} bytes", f"up to {MAX_PART_BYTES}")
        return part

    def content(self, number: int) -> bytes:
        """A part, unpacked.

        Raises:
            PackError: it is not what its checksum says.
        """
        part = self.part(number)
        unpack = zlib.decompressobj()
        try:
            content = unpack.decompress(self._read(self._parts_at + part.offset, part.stored), part.size + 1)
        except zlib.error as error:
            raise self.damaged(f"part {number} cannot be unpacked: {error}") from None
        if not unpack.eof or unpack.unused_data or hashlib.sha256(content).digest() != part.sha256:
            raise self.damaged(f"part {number} is not what its checksum says")
        return content

    # -- The file -------------------------------------------------------------------------------------------------

    def unsigned(self) -> bytes:
        """The whole file but for its signatures."""
        return self._read(0, self._end)

    def close(self) -> None:
        """Close the file: parts that were not read cannot be, from then on."""
        self._file.close()

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
                piece = os.pread(self._file.fileno(), min(size, 1 << 30), at)
            except (OSError, ValueError) as error:
                raise PackError(f"{self.path}: cannot be read: {error}.") from None
            if not piece:
                raise self.damaged("it was cut short while it was open")
            pieces.append(piece)
            at, size = at + len(piece), size - len(piece)
        return b"".join(pieces)


def _kernel(given: Mapping[str, Any], part: int) -> Kernel:
    operator, kernel, target = (_text(given[name]) for name in ("operator", "kernel", "target"))
    parameters = tuple((_text(name), _tuples(value)) for name, value in given["parameters"])
    return Kernel(operator, kernel, parameters, target, part)


def _operation(given: Mapping[str, Any], part: int) -> Operation:
    if part != _NO_PART:
        raise ValueError("an operation that has a part")
    launches = tuple(
        Launch(
            _whole(launch["threads"]),
            bytes.fromhex(launch["kernel"]),
            tuple(map(_whole, launch["scalars"])),
            tuple((_text(dtype), _whole(count)) for dtype, count in launch["temporaries"]),
        )
        for launch in given["launches"]
    )
    if type(given["in_place"]) is not bool:
        raise TypeError("in_place")
    return Operation(dict(given["line"]), given["in_place"], _text(given["target"]), launches)


_RECORDS: dict[str, Callable[[Mapping[str, Any], int], Kernel | Operation]] = {"kernel": _kernel, "operation": _operation}


def _text(value: object) -> str:
    if not isinstance(value, str):
        raise TypeError(f"{value!r} is no string")
    return value


def _whole(value: object) -> int:
    if type(value) is not int:
        raise TypeError(f"{value!r} is no integer")
    return value


def _tuples(value: Any) -> Any:
    return tuple(map(_tuples, value)) if isinstance(value, list) else value


def _shown(record: Kernel | Operation) -> str:
    return f"{record.operator}/{record.kernel}" if isinstance(record, Kernel) else str(record.line.get("operator"))
