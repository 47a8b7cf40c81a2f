"""The file format of packs: a written file reads back equal, and any other content raises ``PackError`` and nothing else."""

from __future__ import annotations

import contextlib
import itertools
import json
import os
import struct
import threading
import zlib
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from programs import python
from raw_packs import NO_PART, Raw, contents

from tvmdml.errors import InvalidArgument, PackError
from tvmdml.library import format as container
from tvmdml.library.format import Contents, Pack, Part, write
from tvmdml.library.records import KernelRecord, LaunchRecord, OperationRecord, kernel_key, operation_key


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


def test_records_are_found_by_what_they_are_about(folder: Path, file: bytes) -> None:
    pack = Pack(folder / "whole.tvmdml")
    for kernel in contents().kernels:
        key = kernel_key(kernel.target, kernel.operator, kernel.kernel, kernel.parameters)
        assert (pack.find(key), pack.kernel(key), pack.operation(key)) == (kernel.part, kernel, None)
    for operation in contents().operations:
        key = operation_key(operation.target, operation.line, operation.in_place)
        assert (pack.find(key), pack.operation(key), pack.kernel(key)) == (None, operation, None)
    assert (pack.find(bytes(16)), pack.kernel(bytes(16)), pack.operation(bytes(16))) == (None, None, None)
    for number in (-1, pack.part_count):
        with pytest.raises(PackError, match=f"there is no part {number}"):
            pack.part(number)
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
        {"kernels": [KernelRecord("top_k", "rows", (), "cpu", 3)]},
        {"kernels": [KernelRecord("../../x", "rows", (), "cpu", 0)]},
        {"kernels": [KernelRecord("top_k", "rows", (("scale", 0.5),), "cpu", 0)]},
        {"kernels": [KernelRecord("top_k", "rows", (("text", "x" * (2 << 20)),), "cpu", 0)]},
        {"operations": [OperationRecord({"operator": "A", "x": float("nan")}, False, "cpu", ())]},
        {"operations": [OperationRecord({"operator": "A"}, False, "cpu", (LaunchRecord(1, b"short", (), ()),))]},
        {"head": {**contents().head, "producer": {"tvmdml": "0.1\x1b[2J"}}},
        {"head": {"producer": {}}},
    ],
    ids=lambda change: next(iter(change)),
)
def test_what_could_not_be_read_is_not_written(tmp_path: Path, change: dict[str, Any]) -> None:
    with pytest.raises(PackError):
        write(tmp_path / "x.tvmdml", contents()._replace(**change))
    assert not list(tmp_path.iterdir())


def test_parts_have_a_largest_size(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(container, "MAX_PART_BYTES", 44)
    write(tmp_path / "x.tvmdml", contents())
    with pytest.raises(PackError, match=r"given 45 bytes, suffix '\.o'; allowed: up to 44 bytes"):
        write(tmp_path / "y.tvmdml", contents()._replace(parts=[*contents().parts[:2], Part(".o", bytes(45))]))


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
    """All bits of the header, and one of every other byte."""
    path = folder / "flipped.tvmdml"
    path.write_bytes(file)
    missed = []
    with open(path, "r+b", buffering=0) as stream:
        for at in range(len(file)):
            for bit in range(8) if at < 64 else [at % 8]:
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
BOMB = zlib.compress(bytes(32 << 20))


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
        (row(0, 2, (1 << 64) - 1), "given a part of 18446744073709551615 bytes; allowed: up to 268435456"),
        (row(0, 0, 1), "part 0 does not begin where"),
        (row(1, 0, (1 << 64) - 1), "part 1 does not begin where"),
        (row(1, 1, (1 << 63)), "part 1 does not begin where"),
        (row(2, 1, 1), "its parts do not end where the header says"),
        (row(0, 5, b"./../x"), "part 0 has the suffix"),
        (row(0, 5, b".so\0x"), "part 0 has the suffix"),
        (row(0, 5, b".\xff"), "part 0 has the suffix"),
        (row(0, 5, b""), "part 0 has the suffix ''"),
        (lambda raw: raw.part(0, BOMB, 44), "part 0 has .* bytes for 44"),
        (lambda raw: raw.part(0, BOMB, 30 << 20), "part 0 does not unpack to what its index says"),
        (lambda raw: raw.part(0, raw.stored[0] + b"more", 44), "part 0 does not unpack to what its index says"),
        (lambda raw: raw.part(0, raw.stored[0][:-1], 44), "part 0 does not unpack to what its index says"),
        (lambda raw: raw.part(0, b"no zlib", 44), "part 0 cannot be unpacked"),
        (lambda raw: raw.stored.append(b"more"), "its parts do not end where the header says"),
        (cell(0, 0, b"\xff" * 16), "not in order"),
        (lambda raw: cell(1, 0, raw.table[0][0])(raw), "not in order, or has a key twice"),
        (cell(0, 2, 0xFFFFFFFF), "its records do not follow one another"),
        (cell(-1, 0, b"\xff" * 16), "a record does not match its key"),
        (cell(-1, 2, 1), "its records do not end where the index does"),
    ],
)
def test_an_index_that_lies_is_refused(raw: Raw, reads: Callable[[bytes], Contents], change: Change, why: str) -> None:
    change(raw)
    refused(reads, raw.file(), why)


def test_counts_and_sizes_that_lie_are_refused(raw: Raw, reads: Callable[[bytes], Contents]) -> None:
    for of, count in itertools.product(("head", "parts", "table"), (1, 4, 0xFFFFFFFF)):
        refused(reads, raw.file(**{of: count}), "its index is invalid")
    for of, size in (("index_bytes", 0), *itertools.product(("index_bytes", "parts_bytes"), (1 << 60, (1 << 64) - 1))):
        refused(reads, raw.file(**{of: size}), "damaged")


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


def launch(**changes: Any) -> dict[str, Any]:
    return {"launches": [{"threads": 1, "kernel": "00" * 16, "scalars": [], "temporaries": [], **changes}]}


RECORDS: dict[str, list[Any]] = {
    "kernel": [
        *({"operator": wrong} for wrong in ("../../x", "top_k\n", "top_\u212a", 3)),
        *({"kernel": wrong} for wrong in ("/etc/passwd", "", "x" * 101)),
        *({"target": wrong} for wrong in (None, "cpu\x1b[31m", "\ud800")),
        *({"parameters": wrong} for wrong in ({"a": 1}, [["a"]], [["a", {}]], [["a", 1.5]], [["a", [1 << 64]]], [[1, 1]])),
        *({"is": wrong} for wrong in ("operation", "colour", [])),
    ],
    "operation": [
        *({"line": wrong} for wrong in ("TOP_K1", {"a": "\x1b"}, json.loads("[" * 20 + "]" * 20))),
        *({"in_place": 1}, {"launches": {}, "target": 1}, {"launches": [{}]}, launch(threads=-1)),
        *(launch(kernel=wrong) for wrong in ("00" * 15, " " + "00" * 16)),
        *(launch(scalars=wrong) for wrong in ([True], [1 << 63])),
        *(launch(temporaries=wrong) for wrong in ([["int32", -1]], [["O, 3", 1]])),
    ],
}


def test_records_that_nobody_writes_are_refused(file: bytes, reads: Callable[[bytes], Contents]) -> None:
    for kind, wrongs in RECORDS.items():
        for changes in wrongs:
            raw = Raw.of(file)
            number, record = first(raw, kind)
            record.update(changes)
            raw.replaced(number, json.dumps(record).encode(), key_of(record))
            refused(reads, raw.file(), "a record is invalid")
    for kind, part in (("kernel", 3), ("kernel", NO_PART), ("operation", 0)):
        raw = Raw.of(file)
        raw.table[first(raw, kind)[0]][3] = part
        refused(reads, raw.file(), "a record is invalid .ValueError: (a kernel in part|an operation with a part)")


@pytest.mark.parametrize("where", ["record", "head"])
def test_json_that_nobody_writes_is_refused(file: bytes, reads: Callable[[bytes], Contents], where: str) -> None:
    more = "", "NaN", "-Infinity", "1e999", "[" * 100_000, '{"is":' * 100_000, "9" * 10_000, '"' + "x" * (1 << 20) + '"'
    for content in (b"", b"null", b"[]", b"{", b"\xff\xfe{}", *(f'{{"is":{one}}}'.encode() for one in more)):
        raw = Raw.of(file)
        if where == "record":
            raw.replaced(0, content)
        else:
            raw.head = content
        refused(reads, raw.file(), "is invalid")


def test_a_head_that_nobody_writes_is_refused(raw: Raw, reads: Callable[[bytes], Contents]) -> None:
    head = json.loads(raw.head)
    wrong = [
        ("knobs", {"top_k": 3}),
        ("knobs", []),
        ("producer", {"tvmdml": 1}),
        ("sources", {"a": None}),
        ("targets", {"\x07": "cpu"}),
    ]
    machines = ({}, {"machine": {"target": 3}}, {"operator": "../top_k", "machine": {"target": "cpu"}})
    wrong += [("logs", {}), *(("logs", [{"operator": "top_k", **more}]) for more in machines)]
    for name, value in wrong:
        raw.head = json.dumps({**head, name: value}).encode()
        refused(reads, raw.file(), "its index is invalid")
    for name in ("producer", "targets", "sources", "knobs"):
        raw.head = json.dumps({key: value for key, value in head.items() if key != name}).encode()
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


def test_no_record_stands_for_another(file: bytes, reads: Callable[[bytes], Contents]) -> None:
    for kind, change in (("kernel", {"parameters": [["sizes", [200, 300]]]}), ("operation", {"in_place": None})):
        raw = Raw.of(file)
        number, record = first(raw, kind)
        change = change if kind == "kernel" else {"in_place": not record["in_place"]}
        raw.replaced(number, json.dumps({**record, **change}).encode())
        refused(reads, raw.file(), "a record does not match its key")


# -- What is no file, or changes ----------------------------------------------------------------------------------


def test_what_cannot_be_opened_is_refused(tmp_path: Path) -> None:
    for path in (tmp_path / "missing", tmp_path / "nul\0byte", tmp_path / ("x" * 5000), tmp_path / "\ud800"):
        with pytest.raises(PackError, match=r"cannot be read: .* Give the path of a pack"):
            Pack(path)
    with pytest.raises(PackError, match="given something that is not a regular file"):
        Pack(tmp_path)
    with pytest.raises(PackError, match="cannot be read"):
        Pack(3)  # type: ignore[arg-type]


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
from tvmdml.library.format import Pack
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
    (tmp_path / "counts").write_bytes(Raw.of(file).file(parts=0xFFFFFFFF))
    (tmp_path / "table").write_bytes(Raw.of(file).file(table=0xFFFFFFFF))
    large(tmp_path / "signatures", file, len(file) + (1 << 32))
    paths = sorted(tmp_path.iterdir())
    python(_FRUGAL, *paths)
