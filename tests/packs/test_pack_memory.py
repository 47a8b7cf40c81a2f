"""The memory use of packs: an untrusted file is not read as a multiple of its size, and parts are read in pieces."""

from __future__ import annotations

import hashlib
import json
import struct
import zlib
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest
from folders import TESTS
from programs import python

from tvmdml.errors import PackError
from tvmdml.library import signing
from tvmdml.library.format import Contents, Part, write
from tvmdml.library.records import KernelRecord, symbol_of
from tvmdml.packs import Pack, change

MIB = 1 << 20
CODE = "cpu:x86-64-v3"
HEAD: dict[str, Any] = {"producer": {}, "targets": {CODE: CODE}, "sources": {}, "knobs": {}, "logs": []}
PARTS, PART_BYTES = 6, 16 * MIB

_CHILD = """
import contextlib, shutil, sys
from tvmdml.errors import PackError
from tvmdml.packs import Pack, change, header, look, verify
from tvmdml.library import signing
from tvmdml.library.format import write

def peak():
    with open("/proc/self/status") as status:
        return next(int(line.split()[1]) for line in status if line.startswith("VmHWM")) / 1024

def work(path):
    {work}

with contextlib.suppress(PackError):  # everything that it needs is imported
    work(sys.argv[1])
before = peak()
try:
    work(sys.argv[2])
    said = ""
except PackError as error:
    said = str(error)
print(peak() - before, said)
"""


def measured(work: str, small: Path, path: Path) -> tuple[float, str]:
    """The MiB that work on a pack adds to a process that has done the same on a small one; and why the pack was refused."""
    mib, _, said = python(_CHILD.replace("{work}", work), small, path, may_complain=True).partition(" ")
    return float(mib), said.strip()


class Large(Sequence[Part]):
    """Parts of zeros, which compress to a thousandth; each with the symbol of its kernel."""

    def __len__(self) -> int:
        return PARTS

    def __iter__(self) -> Iterator[Part]:
        return (self[number] for number in range(PARTS))

    def __getitem__(self, number: Any) -> Any:
        return Part(".so", symbol_of(kernel(number).key).encode().ljust(PART_BYTES, b"\0"))


def kernel(number: int) -> KernelRecord:
    return KernelRecord("top_k", "rows", (("number", number),), CODE, number)


@pytest.fixture(scope="module")
def small(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("packs") / "small"
    write(path, Contents(HEAD, [Part(".so", symbol_of(kernel(0).key).encode())], [kernel(0)], []))
    return path


@pytest.fixture(scope="module")
def large(small: Path) -> Path:
    """A file of 200 KB that decompresses to 192 MiB."""
    path = small.with_name("large")
    write(path, Contents(HEAD, Large(), [kernel(number) for number in range(PARTS)], []))
    assert path.stat().st_size < MIB
    return path


_LOOK = "look.diff(Pack(path), Pack(path)); look.rows(Pack(path)); look.summary(Pack(path))"
_SIGN = (
    "shutil.copyfile(path, path + '.s'); signing.generate(path + '.key', path + '.pub'); signing.sign(path + '.s', path + '.key')"
)


@pytest.mark.full
@pytest.mark.parametrize(
    ("work", "most"),
    [
        (f"change.merge([path, path], path + '.out'); change.split(path, ['cpu'], path + '.out'); {_LOOK}", 16),
        ("[len(Pack(path).content(i)) for i in range(Pack(path).part_count)]; verify.verify(path)", 2 * PART_BYTES // MIB),
    ],
    ids=["copied", "decompressed"],
)
def test_parts_are_read_one_at_a_time(small: Path, large: Path, work: str, most: int) -> None:
    took, said = measured(work, small, large)
    assert not said
    assert took < most


@pytest.mark.full
def test_signing_streams_the_file(small: Path, large: Path) -> None:
    pytest.importorskip("cryptography")
    took, said = measured(_SIGN, small, large)
    assert not said
    assert took < 16


@pytest.mark.full
def test_writing_holds_one_part(small: Path, large: Path) -> None:
    """As ``build`` writes: from parts that are made when they are asked for."""
    code = f"sys.path[:0] = {str(Path(__file__).parent)!r}, {str(TESTS)!r}; import test_pack_memory as t; t.write_large(path)"
    took, said = measured(code, small, large.with_name("written"))
    assert not said
    assert took < 2.5 * PART_BYTES / MIB
    assert large.with_name("written").read_bytes() == large.read_bytes()


def write_large(path: str) -> None:
    """What the test above runs; in place of a small pack nothing is written."""
    if path.endswith("written"):
        write(path, Contents(HEAD, Large(), [kernel(number) for number in range(PARTS)], []))


def with_part(file: bytes, stored: bytes, size: int, content: bytes) -> bytes:
    """The small pack with another part, whose row and checksums are made for it."""
    (index_bytes,) = struct.unpack_from("<Q", file, 16)
    index = bytearray(file[64 : 64 + index_bytes])
    at = 4 + struct.unpack_from("<I", index)[0] + 4
    digests = (hashlib.sha256(one).digest() for one in (content, stored))
    struct.pack_into("<QQQ32s32s", index, at, 0, len(stored), size, *digests)
    header = struct.pack("<8sIIQQ32s", b"\x89TVMDML\n", 1, 0, len(index), len(stored), hashlib.sha256(index).digest())
    return header + bytes(index) + stored


@pytest.mark.full
@pytest.mark.parametrize(
    ("work", "declared"),
    [
        ("change.merge([path], path + '.out')", MIB),
        ("change.merge([path], path + '.out')", 64 * MIB + 1),
        ("Pack(path).content(0)", 64 * MIB - 1),
    ],
    ids=["merge", "merge, more", "content"],
)
def test_no_more_is_decompressed_than_the_index_declares(small: Path, tmp_path: Path, work: str, declared: int) -> None:
    content = bytes(64 * MIB)
    path = tmp_path / "bomb"
    path.write_bytes(with_part(small.read_bytes(), zlib.compress(content, 9), declared, content))
    took, said = measured(work, small, path)
    assert "part 0 does not unpack to what its index says" in said
    assert took < 16 + (2 * declared / MIB if "content" in work else 0)
    assert not (tmp_path / "bomb.out").exists()


def test_a_damaged_part_is_not_copied(small: Path, tmp_path: Path) -> None:
    """Neither one whose compressed bytes are wrong, nor one that decompresses to other bytes than its checksum says."""
    file = small.read_bytes()
    damaged = bytearray(file)
    damaged[-1] ^= 1
    content = b"code"
    other = with_part(file, zlib.compress(b"evil"), len(content), content)
    for written, why in (
        (damaged, "the checksum of part 0 does not match"),
        (other, "part 0 does not unpack to what its index says"),
    ):
        (tmp_path / "x").write_bytes(written)
        with pytest.raises(PackError, match=why):
            change.merge([tmp_path / "x"], tmp_path / "output")
        assert [path.name for path in tmp_path.iterdir()] == ["x"]


def test_compressed_bytes_are_copied_as_they_are(small: Path, tmp_path: Path) -> None:
    content = symbol_of(kernel(0).key).encode()
    stored = zlib.compress(content, 1)
    (tmp_path / "x").write_bytes(with_part(small.read_bytes(), stored, len(content), content))
    change.merge([tmp_path / "x"], tmp_path / "output")
    assert (tmp_path / "output").read_bytes() == (tmp_path / "x").read_bytes()
    assert (tmp_path / "output").read_bytes() != small.read_bytes()
    assert Pack(tmp_path / "output").contents().parts == [Part(".so", content)]


# -- The index ----------------------------------------------------------------------------------------------------


def with_index(path: Path, count: int, record: bytes) -> Path:
    """A pack with many records, whose checksum is right."""
    head = json.dumps(HEAD).encode()
    rows = (struct.pack("<16sIII", number.to_bytes(16, "big"), number * len(record), len(record), 0) for number in range(count))
    pieces = [struct.pack("<I", len(head)), head, struct.pack("<II", 0, count), *rows, record * count]
    index = b"".join(pieces)
    path.write_bytes(struct.pack("<8sIIQQ32s", b"\x89TVMDML\n", 1, 0, len(index), 0, hashlib.sha256(index).digest()) + index)
    return path


OPEN = "from tvmdml.library.shelf import LoadedPack; LoadedPack(path)"


@pytest.mark.full
@pytest.mark.parametrize(
    ("count", "record", "why"),
    [(2_100_000, b"", "2100000 records; at most 262144 are read"), (1 << 18, b"x" * 200, ""), (60, b"[" + b"[]," * 340_000, "")],
    ids=["rows", "records", "lists"],
)
def test_an_index_takes_its_own_size(small: Path, tmp_path: Path, count: int, record: bytes, why: str) -> None:
    path = with_index(tmp_path / "index", count, record)
    size = path.stat().st_size / MIB
    assert size > 50
    took, said = measured(OPEN, small, path)
    assert why in said
    assert bool(why) == bool(said)
    assert took < size + 16


@pytest.mark.full
def test_the_index_of_a_pack_that_is_not_trusted_is_not_read(small: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("cryptography")
    signing.generate(tmp_path / "private", tmp_path / "public")
    monkeypatch.setenv("TVMDML_TRUSTED_KEYS", str(tmp_path / "public"))
    path = with_index(tmp_path / "index", 1 << 18, b"x" * 200)
    took, said = measured(OPEN, small, path)
    assert "given an unsigned pack" in said
    assert took < 8


def test_more_records_than_are_read_are_not_written(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("tvmdml.library.format.MAX_RECORDS", 1)
    with pytest.raises(PackError, match="2 records; at most 1 are read"):
        write(tmp_path / "x", Contents(HEAD, [Part(".so", b"")], [kernel(0), kernel(1)._replace(part=0)], []))
    assert not list(tmp_path.iterdir())
