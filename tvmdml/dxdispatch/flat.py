"""Reads FlatBuffers that may be damaged or hostile: tables and vectors, each checked before it is read.

The package ``flatbuffers`` finds the fields; it does not check where they are, so that is done here.
"""

from __future__ import annotations

import importlib
import struct
from collections.abc import Iterator
from typing import Any, NamedTuple

import numpy as np

from tvmdml.errors import InvalidArgument, Unsupported, message
from tvmdml.system import installing

_MOST_READ = 16
"""How many times the size of the file may be read: parts of it may be shared, but no file needs more."""
_LEAST_READ = 1 << 16
_DEEPEST = 8
"""Tables inside of tables inside of the root."""


class Damaged(InvalidArgument):
    """A file that is no such FlatBuffer."""


class FlatTable:
    """A table of the file. Fields are counted from 0, in the order of the schema; ``None`` is a field that is absent."""

    def __init__(self, file: _File, position: int, depth: int = 0) -> None:
        """Not public: ``root`` reads tables."""
        self._file, self._depth = file, depth
        if depth > _DEEPEST:
            raise Damaged(f"tables inside of more than {_DEEPEST} others")
        file.spend(8)
        back = file.number("<i", position)
        fields = position - back
        size = file.number("<H", fields)
        file.require(fields, size)
        self._table = file.package.Table(file.content, position)
        self._fields = max(size // 2 - 2, 0)
        self._position = position

    def _at(self, field: int) -> int | None:
        if field >= self._fields:
            return None
        offset = self._table.Offset(4 + 2 * field)
        return self._position + offset if offset else None

    def _indirect(self, field: int) -> int | None:
        at = self._at(field)
        return None if at is None else at + self._file.number("<I", at)

    def number(self, field: int, form: str) -> int:
        """A number of a form of ``struct``; 0 if it is absent."""
        at = self._at(field)
        return 0 if at is None else int(self._file.number(f"<{form}", at))

    def numbers(self, field: int, form: str) -> tuple[Any, ...] | None:
        """The members of a structure behind a union."""
        at = self._indirect(field)
        return None if at is None else self._file.numbers(f"<{form}", at)

    def text(self, field: int) -> str | None:
        """A string."""
        at = self._indirect(field)
        return None if at is None else self._file.text(at)

    def table(self, field: int) -> FlatTable | None:
        """Another table."""
        at = self._indirect(field)
        return None if at is None else FlatTable(self._file, at, self._depth + 1)

    def array(self, field: int, dtype: str) -> Any:
        """A vector of numbers."""
        at = self._indirect(field)
        if at is None:
            return None
        count, itemsize = self._file.number("<I", at), np.dtype(dtype).itemsize
        self._file.require(at + 4, count * itemsize)
        self._file.spend(count * itemsize)
        return np.frombuffer(self._file.content, dtype, count, at + 4)

    def texts(self, field: int) -> list[str]:
        """A vector of strings."""
        return [self._file.text(at) for at in self._places(field)]

    def tables(self, field: int) -> list[FlatTable]:
        """A vector of tables."""
        return [FlatTable(self._file, at, self._depth + 1) for at in self._places(field)]

    def _places(self, field: int) -> Iterator[int]:
        offsets = self.array(field, "<u4")
        at = self._indirect(field)
        for i, offset in enumerate([] if offsets is None else offsets.tolist()):
            assert at is not None
            yield at + 4 + 4 * i + offset


class _File(NamedTuple):
    content: bytes
    package: Any
    budget: list[int]

    def spend(self, size: int) -> None:
        self.budget[0] -= size
        if self.budget[0] < 0:
            raise Damaged(f"parts that are shared more than {_MOST_READ} times")

    def require(self, position: int, size: int) -> None:
        if not 0 <= position <= len(self.content) - size:
            raise Damaged(f"{size} bytes at {position}, of a file of {len(self.content)} bytes")

    def numbers(self, form: str, position: int) -> tuple[Any, ...]:
        self.require(position, struct.calcsize(form))
        return struct.unpack_from(form, self.content, position)

    def number(self, form: str, position: int) -> Any:
        return self.numbers(form, position)[0]

    def text(self, position: int) -> str:
        size = self.number("<I", position)
        self.require(position + 4, size)
        self.spend(size + 4)
        try:
            return self.content[position + 4 : position + 4 + size].decode()
        except UnicodeDecodeError:
            raise Damaged("a name that is not UTF-8") from None


def root(content: bytes) -> FlatTable:
    """The table that a file begins with.

    Raises:
        Damaged: there is none; reading its fields may also raise this.
        Unsupported: the package ``flatbuffers`` is not installed.
    """
    try:
        package = importlib.import_module("flatbuffers.table")
    except ImportError:
        given, allowed = "the package flatbuffers, which is not installed", "a serialized graph needs it"
        raise Unsupported(message("import", given, allowed, f"Install it: {installing.command('dxdispatch')}.")) from None
    file = _File(content, package, [_MOST_READ * len(content) + _LEAST_READ])
    return FlatTable(file, file.number("<I", 0))
