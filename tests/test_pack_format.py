"""The file format of packs: a written file reads back equal, and any other content raises ``PackError`` and nothing else."""

from __future__ import annotations

import contextlib
import dataclasses
import hashlib
import json
import os
import random
import struct
import subprocess
import sys
import threading
import zlib
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import hypothesis.strategies as st
import pytest
from hypothesis import HealthCheck, given, settings

from tvmdml.errors import InvalidArgument, PackError
from tvmdml.packs import format as container
from tvmdml.packs.format import Contents, Pack, Part, write
from tvmdml.packs.records import Kernel, Launch, Operation, kernel_key, operation_key

NO_PART = 0xFFFFFFFF
PARTS = [Part(".so", b"\x7fELF" + bytes(40)), Part(".cuda", hashlib.sha256(b"code").digest()), Part(".o", b"")]


def contents() -> Contents:
    parameters = (("counted in", "int32"), ("sizes", (2, 3)), ("vector", True), ("lanes", 16))
    kernels = [
        Kernel("top_k", "rows", parameters, "cpu:x86-64-v3", 0),
        Kernel("top_k", "radix", (), "cpu:x86-64-v3", 0),
        Kernel("element_wise_round", "default", (), "cuda sm_80,sm_90", 1),
    ]
    line = {"operator": "TOP_K1", "InputTensor": "float32[2, 3]", "K": 2, "Fill": "-inf", "Epsilon": 0.5}
    launches = (Launch(1, kernels[0].key, (3, -1), ()), Launch(8, kernels[1].key, (), (("int32", 7),)))
    operations = [
        Operation(line, False, "cpu:x86-64-v3", launches),
        Operation({"operator": "ELEMENT_WISE_ROUND"}, True, "cuda sm_80,sm_90", (Launch(0, kernels[2].key, (), ()),)),
    ]
    head = {
        "producer": {"tvmdml": "0.1"},
        "targets": {"cpu:x86-64-v3": "cpu:x86-64-v3"},
        "sources": {"cpu top_k": "0123"},
        "knobs": {"top_k": {"lanes": 16}},
        "logs": [{"operator": "top_k", "machine": {"target": "cpu:x86-64-v3"}, "knobs": {"rank_k": 1}}],
    }
    return Contents(head, PARTS, kernels, operations)


def ordered(found: Contents) -> tuple[Any, ...]:
    """Contents, as they compare: records have no order."""
    return (
        found.head,
        list(found.parts),
        *(sorted(one, key=lambda record: record.key) for one in (found.kernels, found.operations)),
    )


def read(path: Path) -> Contents:
    pack = Pack(path)
    try:
        assert all(pack.find(kernel.key) is not None for kernel in pack.kernels())
        return pack.contents()
    finally:
        pack.close()


@dataclasses.dataclass
class Raw:
    """A pack taken apart. ``file`` makes every checksum and size anew, but for what ``changed`` says."""

    head: bytes
    rows: list[list[Any]]
    """Offset, stored bytes, bytes, two checksums, suffix."""
    stored: list[bytes]
    table: list[list[Any]]
    """Key, offset, bytes, part."""
    records: list[bytes]
    signatures: list[bytes]

    @classmethod
    def of(cls, file: bytes) -> Raw:
        index_bytes, parts_bytes = struct.unpack_from("<QQ", file, 16)
        index, end = file[64 : 64 + index_bytes], 64 + index_bytes + parts_bytes
        (size,) = struct.unpack_from("<I", index)
        head, at = index[4 : 4 + size], 4 + size
        (count,) = struct.unpack_from("<I", index, at)
        rows = [list(row) for row in struct.iter_unpack("<QQQ32s32s8s", index[at + 4 : at + 4 + 96 * count])]
        at += 4 + 96 * count
        (count,) = struct.unpack_from("<I", index, at)
        table = [list(row) for row in struct.iter_unpack("<16sIII", index[at + 4 : at + 4 + 28 * count])]
        at += 4 + 28 * count
        parts = [file[64 + index_bytes + row[0] :][: row[1]] for row in rows]
        records = [index[at + row[1] :][: row[2]] for row in table]
        return cls(head, rows, parts, table, records, [file[i : i + 128] for i in range(end, len(file), 128)])

    def replaced(self, number: int, record: bytes, key: bytes | None = None) -> Raw:
        """With another record, whose place in the table is right, and whose key is, where it is given."""
        self.records[number] = record
        self.table[number][0] = key or self.table[number][0]
        both = sorted(zip(self.table, self.records, strict=True), key=lambda pair: bytes(pair[0][0]))
        self.table, self.records = [row for row, _ in both], [one for _, one in both]
        at = 0
        for row, one in both:
            row[1:3] = at, len(one)
            at += len(one)
        return self

    def part(self, number: int, stored: bytes, size: int) -> Raw:
        """With another part, whose checksum is right."""
        self.rows[number][1:3] = len(stored), size
        self.rows[number][4] = hashlib.sha256(stored).digest()
        self.stored[number] = stored
        for before, row in zip(self.rows, self.rows[1:], strict=False):
            row[0] = before[0] + before[1]
        return self

    def file(self, version: int = 1, **counts: int) -> bytes:
        pieces = [
            *(struct.pack("<I", counts.get("head", len(self.head))), self.head),
            *(struct.pack("<I", counts.get("parts", len(self.rows))), *(struct.pack("<QQQ32s32s8s", *row) for row in self.rows)),
            *(struct.pack("<I", counts.get("table", len(self.table))), *(struct.pack("<16sIII", *row) for row in self.table)),
            *self.records,
        ]
        index, parts = b"".join(pieces), b"".join(self.stored)
        sizes = counts.get("index_bytes", len(index)), counts.get("parts_bytes", len(parts))
        header = struct.pack("<8sIIQQ32s", b"\x89TVMDML\n", version, 0, *sizes, hashlib.sha256(index).digest())
        return b"".join([header, index, parts, *self.signatures])


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("packs")


@pytest.fixture(scope="module")
def file(folder: Path) -> bytes:
    """A pack with two signatures, whose checksums are right; who signed is not looked at here."""
    path = folder / "whole.tvmdml"
    write(path, contents())
    return path.read_bytes() + b"".join(container.signature(bytes([i]) * 32, bytes(64)) for i in (1, 2))


@pytest.fixture
def raw(file: bytes) -> Raw:
    return Raw.of(file)


@pytest.fixture(scope="module")
def reads(folder: Path) -> Callable[[bytes], Contents]:
    """Reads bytes as a pack, and checks that nothing but a ``PackError`` comes of bad ones."""
    path = folder / "tried.tvmdml"

    def reader(content: bytes) -> Contents:
        path.write_bytes(content)
        return read(path)

    return reader


def refused(reads: Callable[[bytes], Contents], content: bytes, why: str) -> None:
    with pytest.raises(PackError, match=why):
        reads(content)


# -- What is whole ------------------------------------------------------------------------------------------------


def test_what_is_written_is_read(folder: Path, file: bytes, reads: Callable[[bytes], Contents]) -> None:
    assert ordered(reads(file)) == ordered(contents())
    assert Raw.of(file).file() == file, "the helper of these tests changes nothing by itself"


def test_an_empty_pack_is_a_pack(folder: Path) -> None:
    nothing = Contents({"producer": {}, "targets": {}, "sources": {}, "knobs": {}, "logs": []}, [], [], [])
    write(folder / "empty.tvmdml", nothing)
    assert read(folder / "empty.tvmdml") == nothing


def test_equal_contents_are_equal_bytes(folder: Path, file: bytes) -> None:
    given = contents()
    heads = {**given.head, "logs": given.head["logs"][0]}
    turned = {name: dict(reversed(value.items())) for name, value in reversed(heads.items())}
    turned["logs"] = [turned["logs"]]
    shuffled = Contents(turned, given.parts, given.kernels[::-1], given.operations[::-1])
    write(folder / "again.tvmdml", shuffled)
    assert (folder / "again.tvmdml").read_bytes() == file[:-256]


def test_records_are_found_by_what_they_are_about(folder: Path) -> None:
    pack = Pack(folder / "whole.tvmdml")
    for kernel in contents().kernels:
        key = kernel_key(kernel.target, kernel.operator, kernel.kernel, kernel.parameters)
        assert (pack.find(key), pack.kernel(key), pack.operation(key)) == (kernel.part, kernel, None)
    for operation in contents().operations:
        key = operation_key(operation.target, operation.line, operation.in_place)
        assert (pack.find(key), pack.operation(key), pack.kernel(key)) == (None, operation, None)
    assert (pack.find(bytes(16)), pack.kernel(bytes(16)), pack.operation(bytes(16))) == (None, None, None)
    pack.close()
    with pytest.raises(PackError, match="cannot be read"):
        pack.content(0)


def test_members_that_are_not_known_are_passed_over(raw: Raw, reads: Callable[[bytes], Contents]) -> None:
    raw.head = json.dumps({**json.loads(raw.head), "newer": [1]}).encode()
    for number, record in enumerate(raw.records):
        raw.replaced(number, json.dumps({**json.loads(record), "newer": {"a": None}}).encode())
    assert ordered(reads(raw.file())) == ordered(contents())


@pytest.mark.parametrize(
    "change",
    [
        {"parts": [Part("../so", b"")]},
        {"parts": [Part(".toolong_", b"")]},
        {"kernels": [Kernel("top_k", "rows", (), "cpu", 3)]},
        {"kernels": [Kernel("../../x", "rows", (), "cpu", 0)]},
        {"kernels": [Kernel("top_k", "rows", (("scale", 0.5),), "cpu", 0)]},
        {"kernels": [Kernel("top_k", "rows", (("text", "x" * (2 << 20)),), "cpu", 0)]},
        {"operations": [Operation({"operator": "A", "x": float("nan")}, False, "cpu", ())]},
        {"operations": [Operation({"operator": "A"}, False, "cpu", (Launch(1, b"short", (), ()),))]},
        {"head": {**contents().head, "producer": {"tvmdml": "0.1\x1b[2J"}}},
        {"head": {"producer": {}}},
    ],
    ids=lambda change: next(iter(change)),
)
def test_what_could_not_be_read_is_not_written(tmp_path: Path, change: dict[str, Any]) -> None:
    with pytest.raises(PackError):
        write(tmp_path / "x.tvmdml", contents()._replace(**change))
    assert not list(tmp_path.iterdir())


def test_a_pack_takes_its_place_at_once_and_leaves_nothing_beside_it(tmp_path: Path) -> None:
    path = tmp_path / "x.tvmdml"
    path.write_bytes(b"before")
    path.chmod(0o640)
    write(path, contents())
    assert (path.stat().st_mode & 0o777, list(tmp_path.iterdir())) == (0o640, [path])
    (tmp_path / "folder").mkdir()
    with pytest.raises(InvalidArgument, match="folder, which exists and is not a file"):
        write(tmp_path / "folder", contents())
    assert sorted(tmp_path.iterdir()) == [tmp_path / "folder", path]


def test_a_new_file_has_the_rights_that_the_umask_leaves(tmp_path: Path) -> None:
    before = os.umask(0o027)
    try:
        write(tmp_path / "x.tvmdml", contents())
    finally:
        os.umask(before)
    assert (tmp_path / "x.tvmdml").stat().st_mode & 0o777 == 0o640


# -- What is damaged ----------------------------------------------------------------------------------------------


def test_every_flipped_bit_is_seen(file: bytes, folder: Path) -> None:
    """All bits of header and index, and of every byte of the parts and signatures one."""
    path = folder / "flipped.tvmdml"
    path.write_bytes(file)
    covered = 64 + struct.unpack_from("<Q", file, 16)[0]
    missed = []
    with open(path, "r+b", buffering=0) as stream:
        for at in range(len(file)):
            for bit in range(8) if at < covered else [at % 8]:
                os.pwrite(stream.fileno(), bytes([file[at] ^ 1 << bit]), at)
                with contextlib.suppress(PackError):
                    read(path)
                    missed.append((at, bit))
            os.pwrite(stream.fileno(), file[at : at + 1], at)
    assert not missed
    assert ordered(read(path)) == ordered(contents())


def test_every_truncation_is_seen(file: bytes, folder: Path) -> None:
    path = folder / "short.tvmdml"
    path.write_bytes(file)
    missed = []
    for size in range(len(file) - 1, -1, -1):
        os.truncate(path, size)
        with contextlib.suppress(PackError):
            read(path)
            missed.append(size)
    assert missed == [len(file) - 128, len(file) - 256], "where a signature is taken away whole, the rest is a pack"


@pytest.mark.parametrize("more", [b"\0", b"x" * 127, bytes(128), b"x" * 128, bytes(1 << 14)], ids=len)
def test_what_follows_the_end_is_a_signature_or_damage(file: bytes, reads: Callable[[bytes], Contents], more: bytes) -> None:
    refused(reads, file + more, "damaged|signatures; allowed: up to 64")


def test_signatures_are_few_and_of_different_keys(file: bytes, reads: Callable[[bytes], Contents]) -> None:
    refused(reads, file + file[-128:], "signed it twice")
    many = [container.signature(bytes([i]) * 32, bytes(64)) for i in range(65)]
    assert reads(file[:-256] + b"".join(many[:64]))
    refused(reads, file[:-256] + b"".join(many), "given 65 signatures; allowed: up to 64")


@pytest.mark.parametrize(
    ("content", "why"),
    [
        (b"", "a file that does not begin like a pack"),
        (b"\x89TVM", "a file that does not begin like a pack"),
        (b"PK\3\4" * 40, "a file that does not begin like a pack"),
        (b"\x89TVMDML\n", "within its header"),
    ],
)
def test_what_is_no_pack_is_refused(reads: Callable[[bytes], Contents], content: bytes, why: str) -> None:
    refused(reads, content, why)


@pytest.mark.parametrize(
    ("version", "advice"), [(0, "Build it again"), (2, "Use a newer tvmdml"), (0xFFFFFFFF, "Use a newer tvmdml")]
)
def test_another_format_is_named(raw: Raw, reads: Callable[[bytes], Contents], version: int, advice: str) -> None:
    refused(reads, raw.file(version), f"given format {version}; allowed: format 1, which this tvmdml reads. {advice}")


# -- What lies, with checksums that are right ---------------------------------------------------------------------

Change = Callable[[Raw], Any]
BOMB = zlib.compress(bytes(32 << 20), 9)


def row(number: int, column: int, value: Any) -> Change:
    return lambda raw: raw.rows[number].__setitem__(column, value)


def cell(number: int, column: int, value: Any) -> Change:
    return lambda raw: raw.table[number].__setitem__(column, value)


@pytest.mark.parametrize(
    ("change", "why"),
    [
        (row(0, 3, bytes(32)), "part 0 does not unpack to what its index says"),
        (row(0, 4, bytes(32)), "the checksum of part 0 does not match"),
        (row(0, 2, 43), "part 0 does not unpack to what its index says"),
        (row(0, 2, 45), "part 0 does not unpack to what its index says"),
        (row(0, 2, 257 << 20), "given a part of 269484032 bytes; allowed: up to 268435456"),
        (row(0, 2, (1 << 64) - 1), "given a part of 18446744073709551615 bytes"),
        (row(0, 0, 1), "part 0 does not begin where"),
        (row(1, 0, 0), "part 1 does not begin where"),
        (row(1, 0, (1 << 64) - 1), "part 1 does not begin where"),
        (row(1, 1, 0), "part 2 does not begin where|unpack|checksum"),
        (row(1, 1, (1 << 63)), "part 1 does not begin where"),
        (row(2, 1, 1), "its parts do not end where the header says"),
        (row(2, 0, 0), "its parts do not end where the header says"),
        (row(0, 5, b"/so"), "part 0 has the suffix '/so'"),
        (row(0, 5, b"./../x"), "part 0 has the suffix"),
        (row(0, 5, b".so\0x"), "part 0 has the suffix"),
        (row(0, 5, b".\xff"), "part 0 has the suffix"),
        (row(0, 5, b""), "part 0 has the suffix ''"),
        (lambda raw: raw.part(0, BOMB, 44), "part 0 has .* bytes for 44"),
        (lambda raw: raw.part(0, BOMB, 30 << 20), "part 0 does not unpack to what its index says"),
        (lambda raw: raw.part(0, raw.stored[0] + b"more", 44), "part 0 does not unpack to what its index says"),
        (lambda raw: raw.part(0, raw.stored[0] + raw.stored[0], 44), "part 0 does not unpack to what its index says"),
        (lambda raw: raw.part(0, raw.stored[0][:-1], 44), "part 0 does not unpack to what its index says"),
        (lambda raw: raw.part(0, b"", 44), "part 0 does not unpack to what its index says"),
        (lambda raw: raw.part(0, b"no zlib", 44), "part 0 cannot be unpacked"),
        (lambda raw: raw.stored.append(b"more"), "its parts do not end where the header says"),
        (lambda raw: raw.stored.insert(0, b"more"), "its parts do not end where the header says"),
        (cell(0, 0, b"\xff" * 16), "not in order"),
        (lambda raw: raw.table.reverse(), "not in order|do not follow one another"),
        (lambda raw: cell(1, 0, raw.table[0][0])(raw), "not in order, or has a key twice"),
        (cell(0, 1, 0xFFFFFFFF), "its records do not follow one another"),
        (cell(0, 2, 0xFFFFFFFF), "its records do not follow one another"),
        (cell(-1, 0, b"\xff" * 16), "a record does not match its key"),
        (cell(-1, 2, 1), "its records do not end where the index does"),
        (lambda raw: raw.records.append(b" "), "its records do not end where the index does"),
        (lambda raw: raw.table[0].__setitem__(slice(1, 3), raw.table[1][1:3]), "its records do not follow one another"),
    ],
)
def test_an_index_that_lies_is_refused(raw: Raw, reads: Callable[[bytes], Contents], change: Change, why: str) -> None:
    change(raw)
    refused(reads, raw.file(), why)


@pytest.mark.parametrize("count", [1, 2, 4, 1 << 16, 0xFFFFFFFF])
@pytest.mark.parametrize("of", ["head", "parts", "table"])
def test_counts_that_lie_are_refused(raw: Raw, reads: Callable[[bytes], Contents], of: str, count: int) -> None:
    refused(reads, raw.file(**{of: count}), "its index is invalid")


@pytest.mark.parametrize(
    "sizes", [{"index_bytes": 1 << 60}, {"parts_bytes": 1 << 60}, {"index_bytes": (1 << 64) - 1}, {"index_bytes": 0}]
)
def test_sizes_that_lie_are_refused(raw: Raw, reads: Callable[[bytes], Contents], sizes: dict[str, int]) -> None:
    refused(reads, raw.file(**sizes), "damaged")


def test_bytes_cannot_change_sides_between_parts_and_signatures(raw: Raw, reads: Callable[[bytes], Contents]) -> None:
    raw.part(1, bytes(200), 200)
    parts = sum(map(len, raw.stored))
    refused(reads, raw.file(parts_bytes=parts + 128), "its parts do not end where the header says")
    refused(reads, raw.file(parts_bytes=parts - 128), "the checksum of a signature does not match")


def kernels_and_operations(raw: Raw) -> Iterator[tuple[int, dict[str, Any]]]:
    for number, record in enumerate(raw.records):
        yield number, json.loads(record)


def first(raw: Raw, kind: str) -> tuple[int, dict[str, Any]]:
    return next((number, record) for number, record in kernels_and_operations(raw) if record["is"] == kind)


def key_of(record: dict[str, Any]) -> bytes | None:
    """The key of whatever it is, right or wrong."""
    with contextlib.suppress(KeyError, TypeError, ValueError, AttributeError):
        if record["is"] == "kernel":
            return kernel_key(record["target"], record["operator"], record["kernel"], record["parameters"])
        return operation_key(record["target"], record["line"], record["in_place"])
    return None


@pytest.mark.parametrize(
    ("kind", "changes"),
    [
        ("kernel", {"operator": "../../x"}),
        ("kernel", {"operator": "top_k\n"}),
        ("kernel", {"operator": "top_\u212a"}),
        ("kernel", {"operator": 3}),
        ("kernel", {"kernel": "/etc/passwd"}),
        ("kernel", {"kernel": ""}),
        ("kernel", {"kernel": "x" * 101}),
        ("kernel", {"target": None}),
        ("kernel", {"target": "cpu\x1b[31m"}),
        ("kernel", {"target": "\ud800"}),
        ("kernel", {"parameters": {"a": 1}}),
        ("kernel", {"parameters": [["a"]]}),
        ("kernel", {"parameters": [["a", {}]]}),
        ("kernel", {"parameters": [["a", 1.5]]}),
        ("kernel", {"parameters": [["a", None]]}),
        ("kernel", {"parameters": [["a", [1 << 64]]]}),
        ("kernel", {"parameters": [[1, 1]]}),
        ("kernel", {"is": "operation"}),
        ("kernel", {"is": "colour"}),
        ("kernel", {"is": []}),
        ("operation", {"is": "kernel"}),
        ("operation", {"line": [["operator", "TOP_K1"]]}),
        ("operation", {"line": "TOP_K1"}),
        ("operation", {"in_place": 1}),
        ("operation", {"in_place": None}),
        ("operation", {"launches": {}, "target": 1}),
        ("operation", {"launches": [{}]}),
        ("operation", {"launches": [{"threads": -1, "kernel": "00" * 16, "scalars": [], "temporaries": []}]}),
        ("operation", {"launches": [{"threads": 1, "kernel": "00" * 15, "scalars": [], "temporaries": []}]}),
        ("operation", {"launches": [{"threads": 1, "kernel": " " + "00" * 16, "scalars": [], "temporaries": []}]}),
        ("operation", {"launches": [{"threads": 1, "kernel": "00" * 16, "scalars": [True], "temporaries": []}]}),
        ("operation", {"launches": [{"threads": 1, "kernel": "00" * 16, "scalars": [1 << 63], "temporaries": []}]}),
        ("operation", {"launches": [{"threads": 1, "kernel": "00" * 16, "scalars": [], "temporaries": [["int32", -1]]}]}),
        ("operation", {"launches": [{"threads": 1, "kernel": "00" * 16, "scalars": [], "temporaries": [["O, 3", 1]]}]}),
        ("operation", {"line": {"a": "\x1b"}}),
        ("operation", {"line": json.loads("[" * 20 + "]" * 20)}),
    ],
    ids=str,
)
def test_records_that_nobody_writes_are_refused(raw: Raw, reads: Callable[[bytes], Contents], kind: str, changes: Any) -> None:
    number, record = first(raw, kind)
    record.update(changes)
    raw.replaced(number, json.dumps(record).encode(), key_of(record))
    refused(reads, raw.file(), "a record is invalid")


@pytest.mark.parametrize(
    "content",
    [
        b"",
        b"null",
        b"[]",
        b'"kernel"',
        b"{",
        b"\xff\xfe{}",
        "{}".encode("utf-16"),
        b'{"is":"kernel"}',
        b"NaN",
        b"[" * 100_000,
        b'{"a":' * 100_000,
        b'{"is":' + b"[" * 50_000 + b"]" * 50_000 + b"}",
        b'{"is":' + b"9" * 10_000 + b"}",
        b'{"is":"kernel"' + b" " * (1 << 20) + b"}",
    ],
    ids=lambda content: content[:12].decode("latin1"),
)
@pytest.mark.parametrize("where", ["record", "head"])
def test_json_that_nobody_writes_is_refused(raw: Raw, reads: Callable[[bytes], Contents], where: str, content: bytes) -> None:
    if where == "record":
        raw.replaced(0, content)
    else:
        raw.head = content
    refused(reads, raw.file(), "is invalid")


@pytest.mark.parametrize("constant", ["NaN", "Infinity", "-Infinity", "1e999"])
@pytest.mark.parametrize("where", ["record", "head"])
def test_numbers_that_are_none_are_refused(raw: Raw, reads: Callable[[bytes], Contents], where: str, constant: str) -> None:
    if where == "record":
        number, record = first(raw, "operation")
        raw.replaced(number, json.dumps({**record, "more": "?"}).replace('"?"', constant).encode())
    else:
        raw.head = raw.head.replace(b'"lanes":16', f'"lanes":{constant}'.encode())
    refused(reads, raw.file(), f"is no JSON|{constant}")


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("knobs", {"top_k": 3}),
        ("knobs", []),
        ("producer", {"tvmdml": 1}),
        ("sources", {"a": None}),
        ("targets", {"\x07": "cpu"}),
        ("targets", ""),
        ("logs", {}),
        ("logs", [1]),
        ("logs", [{"operator": "top_k"}]),
        ("logs", [{"operator": "../top_k", "machine": {"target": "cpu"}}]),
        ("logs", [{"operator": "top_k", "machine": {"target": 3}}]),
    ],
)
def test_a_head_that_nobody_writes_is_refused(raw: Raw, reads: Callable[[bytes], Contents], name: str, value: Any) -> None:
    raw.head = json.dumps({**json.loads(raw.head), name: value}).encode()
    refused(reads, raw.file(), "its index is invalid")


@pytest.mark.parametrize("name", ["producer", "targets", "sources", "knobs"])
def test_a_head_lacks_nothing(raw: Raw, reads: Callable[[bytes], Contents], name: str) -> None:
    raw.head = json.dumps({key: value for key, value in json.loads(raw.head).items() if key != name}).encode()
    refused(reads, raw.file(), f"its index is invalid .*{name}")


def test_a_head_may_be_of_a_time_without_logs(raw: Raw, reads: Callable[[bytes], Contents]) -> None:
    raw.head = json.dumps({key: value for key, value in json.loads(raw.head).items() if key != "logs"}).encode()
    assert reads(raw.file()).head == {**contents().head, "logs": []}


def test_a_record_that_somebody_might_write_is_read(raw: Raw, reads: Callable[[bytes], Contents]) -> None:
    """So that what the tests here refuse is not refused for the helper's sake."""
    for kind, changes in (
        ("operation", {"in_place": False}),
        ("kernel", {"operator": "a", "parameters": [["a", [1, [True, "b"]]]]}),
    ):
        number, record = first(raw, kind)
        record.update(changes)
        raw.replaced(number, json.dumps(record).encode(), key_of(record))
    found = reads(raw.file())
    assert (len(found.kernels), [one.in_place for one in found.operations]) == (3, [False, False])
    assert ("a", (("a", (1, (True, "b"))),)) in [(kernel.operator, kernel.parameters) for kernel in found.kernels]


def test_a_kernel_does_not_stand_for_another(raw: Raw, reads: Callable[[bytes], Contents]) -> None:
    number = next(number for number, record in kernels_and_operations(raw) if record.get("kernel") == "rows")
    record = json.loads(raw.records[number])
    raw.replaced(number, json.dumps({**record, "parameters": [["sizes", [200, 300]]]}).encode())
    refused(reads, raw.file(), "a record does not match its key: top_k/rows")


def test_an_operation_does_not_stand_for_another(raw: Raw, reads: Callable[[bytes], Contents]) -> None:
    number, record = first(raw, "operation")
    raw.replaced(number, json.dumps({**record, "in_place": not record["in_place"]}).encode())
    refused(reads, raw.file(), "a record does not match its key")


@pytest.mark.parametrize(("kind", "part"), [("kernel", 3), ("kernel", NO_PART), ("kernel", 1 << 31), ("operation", 0)])
def test_parts_that_records_name_are_there(raw: Raw, reads: Callable[[bytes], Contents], kind: str, part: int) -> None:
    raw.table[first(raw, kind)[0]][3] = part
    refused(reads, raw.file(), "a record is invalid .ValueError: (a kernel in part|an operation with a part)")


# -- Anything -----------------------------------------------------------------------------------------------------

JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=8) | st.sampled_from(["cpu", "top_k", "00" * 16]),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(max_size=4), inner, max_size=4),
    max_leaves=8,
)
PLENTY = settings(max_examples=200, deadline=None, suppress_health_check=[HealthCheck.too_slow])


@PLENTY
@given(st.data())
def test_any_bytes_are_a_pack_or_an_error(file: bytes, reads: Callable[[bytes], Contents], data: st.DataObject) -> None:
    content = data.draw(st.binary(max_size=400))
    keep = data.draw(st.sampled_from([0, 8, 12, 16, 32, 64, 200]))
    with pytest.raises(PackError):
        reads(file[:keep] + content)


@PLENTY
@given(st.data())
def test_any_change_under_right_checksums_is_a_pack_or_an_error(
    file: bytes, folder: Path, reads: Callable[[bytes], Contents], data: st.DataObject
) -> None:
    """What is read then can be written, and read, again."""
    raw = Raw.of(file)
    number = data.draw(st.integers(0, len(raw.records) - 1))
    kind = data.draw(st.sampled_from(["member", "member", "row", "cell", "head", "stored", "bytes"]))
    if kind == "member":
        record = json.loads(raw.records[number])
        holder: Any = record
        while isinstance(holder, dict | list) and holder:
            key = data.draw(st.sampled_from(sorted(holder) if isinstance(holder, dict) else range(len(holder))))
            if not (isinstance(holder[key], dict | list) and holder[key] and data.draw(st.booleans())):
                holder[key] = data.draw(JSON)
                break
            holder = holder[key]
        raw.replaced(number, json.dumps(record).encode(), key_of(record))
    elif kind == "row":
        column = data.draw(st.integers(0, 5))
        value = data.draw(st.integers(0, (1 << 64) - 1) | st.integers(0, 100) if column < 3 else st.binary(max_size=40))
        raw.rows[number % 3][column] = value
    elif kind == "cell":
        column = data.draw(st.integers(0, 3))
        raw.table[number][column] = data.draw(st.integers(0, NO_PART) | st.integers(0, 2000) if column else st.binary(max_size=20))
    elif kind == "head":
        head = json.loads(raw.head)
        head[data.draw(st.sampled_from(sorted(head)))] = data.draw(JSON)
        raw.head = json.dumps(head).encode()
    elif kind == "stored":
        content = data.draw(st.binary(max_size=100))
        stored = data.draw(st.just(zlib.compress(content, 1)) | st.binary(max_size=60))
        raw.part(number % 3, stored, data.draw(st.just(len(content)) | st.integers(0, 1 << 30)))
        raw.rows[number % 3][3] = hashlib.sha256(content).digest()
    else:
        raw.replaced(number, data.draw(st.binary(max_size=60)))
    try:
        found = reads(raw.file())
    except PackError:
        return
    write(folder / "rewritten.tvmdml", found)
    assert ordered(read(folder / "rewritten.tvmdml")) == ordered(found)


def test_any_flips_under_right_checksums_are_a_pack_or_an_error(file: bytes, reads: Callable[[bytes], Contents]) -> None:
    """Of the index: its inner checks are all that there is between it and the reader."""
    chance = random.Random(0)
    (size,) = struct.unpack_from("<Q", file, 16)
    for _ in range(1500):
        index = bytearray(file[64 : 64 + size])
        for _ in range(chance.choice([1, 1, 2, 8])):
            index[chance.randrange(size)] ^= 1 << chance.randrange(8)
        with contextlib.suppress(PackError):
            reads(file[:32] + hashlib.sha256(index).digest() + bytes(index) + file[64 + size :])


# -- What is no file, or changes ----------------------------------------------------------------------------------


def test_what_cannot_be_opened_is_refused(tmp_path: Path) -> None:
    for path in (tmp_path / "missing", tmp_path / "nul\0byte", tmp_path / ("x" * 5000), tmp_path / "\ud800"):
        with pytest.raises(PackError, match=r"cannot be read: .* Give the path of a pack"):
            Pack(path)
    with pytest.raises(PackError, match="given something that is not a regular file"):
        Pack(tmp_path)
    with pytest.raises(PackError, match="cannot be read"):
        Pack(3)  # type: ignore[arg-type]


@pytest.mark.skipif(not hasattr(os, "geteuid") or os.geteuid() == 0, reason="root may read everything")
def test_what_may_not_be_read_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "x.tvmdml"
    write(path, contents())
    path.chmod(0)
    with pytest.raises(PackError, match="cannot be read: Permission denied"):
        Pack(path)


def test_pipes_and_devices_are_refused_and_not_waited_for(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe")
    found: list[BaseException] = []

    def look(path: Path) -> None:
        try:
            Pack(path)
        except BaseException as error:
            found.append(error)

    for path in (tmp_path / "pipe", Path("/dev/zero"), Path("/dev/null")):
        thread = threading.Thread(target=look, args=(path,), daemon=True)
        thread.start()
        thread.join(10)
        assert not thread.is_alive(), f"{path} is waited for"
        assert isinstance(found[-1], PackError)
        assert "not a regular file" in str(found[-1])


def test_a_file_that_shrinks_while_it_is_open_is_damaged(tmp_path: Path, file: bytes) -> None:
    path = tmp_path / "x.tvmdml"
    path.write_bytes(file)
    pack = Pack(path)
    os.truncate(path, len(file) - 256 - 10)
    assert pack.content(0) == contents().parts[0].content
    os.truncate(path, 100)
    for read_on in (pack.contents, lambda: list(pack.unsigned()), lambda: pack.content(0)):
        with pytest.raises(PackError, match="cut short while it was open"):
            read_on()
    assert len(pack.kernels()) == 3, "the index was read whole"


def test_a_file_that_is_replaced_while_it_is_open_is_what_it_was(tmp_path: Path, file: bytes) -> None:
    path = tmp_path / "x.tvmdml"
    path.write_bytes(file)
    pack = Pack(path)
    write(path, contents()._replace(kernels=[], operations=[], parts=[]))
    assert ordered(pack.contents()) == ordered(contents())


_FRUGAL = """
import sys
from tvmdml.errors import PackError
from tvmdml.packs.format import Pack
def used():
    with open("/proc/self/status") as status:  # ru_maxrss would begin with the peak of the process that started this one
        return next(int(line.split()[1]) >> 10 for line in status if line.startswith("VmHWM"))
before = used()
for path in sys.argv[1:]:
    try:
        Pack(path).contents()
        sys.exit(f"{path} was read")
    except PackError:
        pass
    if used() - before > 100:
        sys.exit(f"{path} took {used() - before} MB")
"""


def test_small_files_do_not_take_much_memory(tmp_path: Path, file: bytes) -> None:
    def large(path: Path, content: bytes, size: int) -> None:
        path.write_bytes(content)
        os.truncate(path, size)  # the rest is a hole in a sparse file

    claims = Raw.of(file)
    (tmp_path / "claims").write_bytes(claims.file(index_bytes=1 << 60))
    large(tmp_path / "index", Raw.of(file).file(index_bytes=1 << 33, parts_bytes=0), 64 + (1 << 33))
    parts = Raw.of(file)
    parts.signatures = []
    parts.rows[2][1] = (1 << 33) - parts.rows[2][0]
    content = parts.file(parts_bytes=1 << 33)
    large(tmp_path / "parts", content, 64 + struct.unpack_from("<Q", content, 16)[0] + (1 << 33))
    (tmp_path / "bomb").write_bytes(Raw.of(file).part(0, zlib.compress(bytes(256 << 20), 9), 1 << 20).file())
    lists = Raw.of(file)
    lists.head = b'{"a":[' + b"[]," * 340_000 + b"1]}"
    (tmp_path / "lists").write_bytes(lists.file())
    (tmp_path / "counts").write_bytes(Raw.of(file).file(parts=0xFFFFFFFF))
    (tmp_path / "table").write_bytes(Raw.of(file).file(table=0xFFFFFFFF))
    large(tmp_path / "signatures", file, len(file) + (1 << 32))
    paths = [str(path) for path in sorted(tmp_path.iterdir())]
    done = subprocess.run([sys.executable, "-c", _FRUGAL, *paths], capture_output=True, text=True, timeout=60, check=False)
    assert done.returncode == 0, done.stderr
