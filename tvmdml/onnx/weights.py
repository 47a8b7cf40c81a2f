"""Weights that stay outside of Protocol Buffers: where the large tensors of a file have their bytes, and the rest of the file.

Parsing a file whole copies its weights three times: into the file's content, into the message, and out of it. Here only the frame
of the message is walked: a model has a graph, a graph has initializers, an initializer has raw data.
"""

from __future__ import annotations

import io
from collections.abc import Callable, Iterator
from typing import BinaryIO, NamedTuple

LEAST_BYTES = 4096
"""Smaller tensors stay in the message."""
_GRAPH, _INITIALIZER, _RAW_DATA = 7, 5, 9
_VARINT, _FIXED64, _BYTES, _FIXED32 = 0, 1, 2, 5
_MOST_VARINT = 10


class Apart(NamedTuple):
    """A file without its large weights."""

    message: bytes
    places: dict[int, tuple[int, int]]
    """The first byte and the number of bytes of initializers, by their places in the graph."""


class _Strange(Exception):
    """Something that is left to Protocol Buffers: a message that is damaged, or whose parts are repeated."""


def apart(file: BinaryIO, size: int) -> Apart | None:
    """Walk a file; ``None`` if it must be parsed whole."""
    walk = _Walk(file)
    try:
        return Apart(walk.model(size), walk.places)
    except (_Strange, OSError):
        return None


class _Field(NamedTuple):
    number: int
    kind: int
    start: int
    """Where the field begins, with its number."""
    content: int
    """Where its content begins."""
    end: int


class _Walk:
    def __init__(self, file: BinaryIO) -> None:
        self._file = file
        self.places: dict[int, tuple[int, int]] = {}
        self._initializers = 0

    def model(self, size: int) -> bytes:
        """The whole file."""
        return self._without(0, size, _GRAPH, self._graph, once=True)

    def _graph(self, start: int, end: int) -> bytes:
        return self._without(start, end, _INITIALIZER, self._tensor)

    def _tensor(self, start: int, end: int) -> bytes:
        place = self._initializers
        self._initializers += 1

        def data(first: int, last: int) -> bytes | None:
            if last - first >= LEAST_BYTES:
                self.places[place] = first, last - first
                return None
            return self._bytes(first, last)

        return self._without(start, end, _RAW_DATA, data, once=True)

    def _without(self, start: int, end: int, number: int, inner: Callable[[int, int], bytes | None], once: bool = False) -> bytes:
        """A message with the content of one field replaced, or left out."""
        found, kept, seen = io.BytesIO(), start, 0
        for field in self._fields(start, end):
            if field.number != number:
                continue
            seen += 1
            if field.kind != _BYTES or (once and seen > 1):
                raise _Strange
            found.write(self._bytes(kept, field.start))
            kept = field.end
            if (content := inner(field.content, field.end)) is not None:
                found.write(_varint(number << 3 | _BYTES) + _varint(len(content)) + content)
        found.write(self._bytes(kept, end))
        return found.getvalue()

    def _fields(self, at: int, end: int) -> Iterator[_Field]:
        while at < end:
            tag, content = self._read_varint(at, end)
            kind = tag & 7
            if kind == _VARINT:
                _, last = self._read_varint(content, end)
            elif kind == _BYTES:
                length, content = self._read_varint(content, end)
                last = content + length
            elif kind in (_FIXED32, _FIXED64):
                last = content + (4 if kind == _FIXED32 else 8)
            else:
                raise _Strange
            if last > end or not tag >> 3:
                raise _Strange
            yield _Field(tag >> 3, kind, at, content, last)
            at = last

    def _read_varint(self, at: int, end: int) -> tuple[int, int]:
        """A number, and where what follows begins."""
        self._file.seek(at)
        content = self._file.read(min(_MOST_VARINT, end - at))
        value = 0
        for i, byte in enumerate(content):
            value |= (byte & 127) << 7 * i
            if byte < 128:
                return value, at + i + 1
        raise _Strange

    def _bytes(self, start: int, end: int) -> bytes:
        self._file.seek(start)
        content = self._file.read(end - start)
        if len(content) != end - start:
            raise _Strange
        return content


def _varint(value: int) -> bytes:
    found = bytearray()
    while value > 127:
        found.append(value & 127 | 128)
        value >>= 7
    found.append(value)
    return bytes(found)
