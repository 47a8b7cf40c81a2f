"""Packs: their files damaged, and changed with checksums that are right; whatever is wrong is a ``PackError``.

The code in a pack is never changed together with its checksums: that would be other code, which loading a pack may run.
"""

from __future__ import annotations

import functools
import hashlib
import itertools
import json
import tempfile
from pathlib import Path
from typing import Any

import numpy as np
from raw_packs import Raw, contents

import tvmdml
from fuzz import trees
from fuzz.choices import Choices
from fuzz.oracle import refusals
from tvmdml import packs as building
from tvmdml.errors import InvalidArgument, PackError
from tvmdml.library import format as container
from tvmdml.library import opened, records, signing
from tvmdml.library.spec import Spec, Wanted
from tvmdml.packs import change, header, look

EXAMPLES = 200
WORDS = (
    "producer", "targets", "sources", "knobs", "logs", "is", "kernel", "operation", "operator", "parameters", "target", "line",
    "in_place", "launches", "threads", "scalars", "temporaries", "top_k", "rows", "cpu:x86-64-v2", "cpu:", "cuda sm_80",
    "vulkan", "float32", "float32[8]", "InputTensor", "OutputTensor", "ELEMENT_WISE_ROUND", "machine", "\x89TVMDML\n", "tvmdml",
    "cpu element_wise_round", "shape_class",
)  # fmt: skip
_X = np.array([0.5, 1.5, -2.5, 3.2, 0, 7.9, -0.1, 100], np.float32)


def seeds() -> list[bytes]:
    """Whole packs."""
    return [b"\0" + _plain()]


def one(choices: Choices) -> None:
    """Bytes as they come; a pack with some bytes changed; one with some of its index changed, and its checksums made anew."""
    kind = choices.integer(0, 5)
    if kind == 0:
        check(choices.rest())
    elif kind == 1:
        check(trees.damaged(choices, choices.pick((_plain, _real))(), WORDS))
    else:
        check(_changed(choices, choices.pick((_plain, _real))()))


def check(content: bytes) -> None:
    """Everything that reads a pack."""
    path = Path("pack.tvmdml")
    path.write_bytes(content)
    with refusals(of=PackError):
        pack = container.Pack(path)
        for look_at in (look.rows, look.summary, signing.signers, _diff, _header, container.Pack.contents, _split):
            with refusals(of=PackError):
                look_at(pack)  # type: ignore[operator]
        pack.close()
    with refusals(of=PackError):
        signing.sign(path, _key())
        assert signing.signers(container.Pack(path))
    opened._libraries.clear()
    with refusals(of=PackError), tvmdml.load_pack(path, strict=True) as pack:
        repr(pack)
        with refusals(tvmdml.CompileError, of=PackError):
            assert tvmdml.round(_X).tolist() == np.rint(_X).tolist()
        with refusals(tvmdml.CompileError, of=PackError):
            assert tvmdml.top_k(_X, 2).indices.tolist() == [7, 5]


def _diff(pack: container.Pack) -> None:
    path = Path("other.tvmdml")
    path.write_bytes(_plain())
    look.diff(pack, container.Pack(path))
    look.diff(container.Pack(path), pack)


def _header(pack: container.Pack) -> None:
    # An operation that is none of this version's is refused as what it is.
    with tempfile.TemporaryDirectory(dir=".") as folder, refusals():
        header.write(pack, Path(folder))


def _split(pack: container.Pack) -> None:
    with refusals(InvalidArgument, of=PackError):
        change.split(pack.path, list(pack.head["targets"].values())[:1], Path("split.tvmdml"))
    with refusals(InvalidArgument, of=PackError):
        change.merge([pack.path, Path("other.tvmdml")], Path("merged.tvmdml"))


# -- Packs that are as they should be -----------------------------------------------------------------------------


@functools.cache
def _plain() -> bytes:
    """One of records alone: its parts are no code."""
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "plain.tvmdml"
        container.write(path, contents())
        return path.read_bytes()


@functools.cache
def _real() -> bytes:
    """One that has a kernel, and a signature."""
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "real.tvmdml"
        x = tvmdml.TensorDesc("float32", (8,))
        desc = tvmdml.ElementWiseRound(input_tensor=x, output_tensor=x, rounding_mode=0)  # type: ignore[arg-type]
        building.build(Spec(("cpu:x86-64-v2",), (Wanted(desc), Wanted(desc, (("input_tensor", "output_tensor"),)))), path, jobs=1)
        signing.sign(path, _key())
        return path.read_bytes()


@functools.cache
def _key() -> Path:
    folder = Path(tempfile.mkdtemp(prefix="fuzz-key-"))
    signing.generate(folder / "key", folder / "public")
    return folder / "key"


# -- Changes ------------------------------------------------------------------------------------------------------


def _changed(choices: Choices, content: bytes) -> bytes:
    raw = Raw.of(content)
    counts: dict[str, int] = {}
    for _ in range(choices.integer(1, 3)):
        kind = choices.integer(0, 6)
        if kind == 0:
            raw.head = _json(choices, raw.head)
        elif kind <= 2:
            number = choices.integer(0, len(raw.records) - 1)
            record = _json(choices, raw.records[number])
            raw.replaced(number, record, None if choices.flag(4) else _key_of(record))
        elif kind == 3:
            _number(choices, raw.table, (1, 2, 3))
        elif kind == 4:
            _number(choices, raw.rows, (0, 1, 2))
        elif kind == 5:
            name = choices.pick(("head", "parts", "table", "index_bytes", "parts_bytes"))
            counts[name] = choices.number() % (1 << 32 if "bytes" not in name else 1 << 64)
        else:
            row = choices.pick(raw.rows)
            row[5] = choices.pick((b".so", b".o", b"so", b".SO", b".vulkan", b".cuda", b"", b"./../..", b"\xff.so")).ljust(8, b"\0")
    if choices.flag(4):
        raw.signatures.append(_signature(choices))
    return raw.file(choices.number() % (1 << 32) if choices.flag(12) else 1, **counts)


def _json(choices: Choices, content: bytes) -> bytes:
    try:
        tree = json.loads(content)
    except (ValueError, RecursionError):  # changed before
        return content
    if choices.flag(4):
        return trees.damaged(choices, content, WORDS)
    return trees.text(trees.changed(choices, tree, WORDS, 2)).encode()


def _key_of(record: bytes) -> bytes | None:
    """The key that stands for it, if it has one."""
    for part in (0, records.NO_PART):
        try:
            return records.read(record, part, 1).key
        except records.NOT_WRITTEN:
            continue
    return None


def _number(choices: Choices, rows: list[list[Any]], columns: tuple[int, ...]) -> None:
    row, column = choices.pick(rows), choices.pick(columns)
    size = 32 if len(row) == 4 else 64
    row[column] = (choices.number() if choices.flag() else row[column] + choices.integer(-2, 2)) % (1 << size)


def _signature(choices: Choices) -> bytes:
    both = bytes(itertools.islice(itertools.cycle(choices.bytes(8)), 96))
    return both + (hashlib.sha256(both).digest() if choices.flag(2) else choices.bytes(32))
