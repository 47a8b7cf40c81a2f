"""Checks of a shared library before the system loads it, because loading can run any code in it."""

from __future__ import annotations

import struct

_HEADER = struct.Struct("<4sBBBB8xHHIQQQIHHHHHH")
_MACHINES = {"x86_64": 62, "aarch64": 183}  # e_machine of an ELF file
_LIBRARY = 3  # ET_DYN


def problem(content: bytes, machine: str) -> str:
    """What is wrong with a shared library for a machine (``x86_64``, ``aarch64``); empty if nothing is wrong."""
    if len(content) < _HEADER.size or not content.startswith(b"\x7fELF"):
        return "it is not an ELF file"
    _, bits, order, _, _, kind, built_for, _, _, segments, sections, _, _, segment_size, count, section_size, section_count, _ = (
        _HEADER.unpack_from(content)
    )
    if (bits, order, kind) != (2, 1, _LIBRARY):
        return "it is not a 64-bit shared library"
    if built_for != _MACHINES[machine]:
        return f"it is not for {machine}"
    ends = [segments + count * segment_size, sections + section_count * section_size]
    ends += _segment_ends(content, segments, segment_size, count) if ends[0] <= len(content) else []
    if max(ends) > len(content):
        return "it is truncated"
    return ""


def _segment_ends(content: bytes, at: int, size: int, count: int) -> list[int]:
    """Where the segments end in the file. Beyond the file's end the system would map pages that do not exist."""
    if size < 56:
        return []
    found = (struct.unpack_from("<QQQQ", content, at + size * number + 8) for number in range(count))
    return [offset + file_size for offset, _, _, file_size in found]
