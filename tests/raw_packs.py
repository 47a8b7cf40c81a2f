"""A pack's file taken apart, so that a test can put it together wrongly; and contents for a pack."""

from __future__ import annotations

import dataclasses
import hashlib
import struct
from typing import Any

from tvmdml.library.format import Contents, Part
from tvmdml.library.records import KernelRecord, LaunchRecord, OperationRecord

NO_PART = 0xFFFFFFFF
PARTS = [Part(".so", b"\x7fELF" + bytes(40)), Part(".cuda", hashlib.sha256(b"code").digest()), Part(".o", b"")]


def contents() -> Contents:
    parameters = (("counted in", "int32"), ("sizes", (2, 3)), ("vector", True), ("lanes", 16))
    kernels = [
        KernelRecord("top_k", "rows", parameters, "cpu:x86-64-v3", 0),
        KernelRecord("top_k", "radix", (), "cpu:x86-64-v3", 0),
        KernelRecord("element_wise_round", "default", (), "cuda sm_80,sm_90", 1),
    ]
    line = {"operator": "TOP_K1", "InputTensor": "float32[2, 3]", "K": 2, "Fill": "-inf", "Epsilon": 0.5}
    launches = (LaunchRecord(1, kernels[0].key, (3, -1), ()), LaunchRecord(8, kernels[1].key, (), (("int32", 7),)))
    operations = [
        OperationRecord(line, False, "cpu:x86-64-v3", launches),
        OperationRecord({"operator": "ELEMENT_WISE_ROUND"}, True, "cuda sm_80,sm_90", (LaunchRecord(0, kernels[2].key, (), ()),)),
    ]
    head = {
        "producer": {"tvmdml": "0.1"},
        "targets": {"cpu:x86-64-v3": "cpu:x86-64-v3"},
        "sources": {"cpu top_k": "0123"},
        "knobs": {"top_k": {"lanes": 16}},
        "logs": [{"operator": "top_k", "machine": {"target": "cpu:x86-64-v3"}, "knobs": {"rank_k": 1}}],
    }
    return Contents(head, PARTS, kernels, operations)


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
