"""What a cubin says about its kernels: it is an ELF file, which is read here without NVIDIA's tools, or a GPU."""

from __future__ import annotations

import struct
from collections.abc import Iterator

MACHINE = 190
"""What ELF calls CUDA."""
FRAME_SIZE, MIN_STACK_SIZE = 0x11, 0x12
"""Attributes in the section ``.nv.info``: bytes of a kernel's own stack, and with the functions that it calls."""
_NOT_STORED, _WITH_PAYLOAD = 8, 4


def stacks(content: bytes) -> dict[str, int]:
    """The bytes of each kernel's threads that lie in memory because registers have no room for them; none of another file."""
    try:
        found = needs(content, (FRAME_SIZE, MIN_STACK_SIZE)) if is_cubin(content) else {}
    except (struct.error, LookupError, ValueError):  # not as the files that are known
        return {}
    return {name: max(own.values()) for name, own in found.items()}


def is_cubin(content: bytes) -> bool:
    """Whether this is machine code for CUDA's devices."""
    return content[:4] == b"\x7fELF" and content[18:20] == struct.pack("<H", MACHINE)


def needs(content: bytes, wanted: tuple[int, ...]) -> dict[str, dict[int, int]]:
    """Attributes of each kernel that are numbers."""
    found = sections(content)
    symbols, names = found[".symtab"], found[".strtab"]
    known = [_name(names, struct.unpack_from("<I", symbols, at)[0]) for at in range(0, len(symbols), 24)]
    values: dict[str, dict[int, int]] = {}
    for attribute, payload in attributes(found[".nv.info"]):
        if attribute in wanted:
            symbol, value = struct.unpack("<II", payload)
            # Functions called by a kernel have their own sections, with a dollar sign in the name.
            if "$" not in known[symbol]:
                values.setdefault(known[symbol], {})[attribute] = value
    return values


def sections(content: bytes) -> dict[str, bytes]:
    """The parts of the file by name. Memory that is not stored in the file has its full size nevertheless."""
    (start,) = struct.unpack_from("<Q", content, 40)
    size, count, names = struct.unpack_from("<HHH", content, 58)
    headers = [struct.unpack_from("<IIQQQQ", content, start + i * size) for i in range(count)]
    table = content[headers[names][4] :]
    return {
        _name(table, name): bytes(length) if kind == _NOT_STORED else content[offset : offset + length]
        for name, kind, _, _, offset, length in headers
    }


def attributes(section: bytes) -> Iterator[tuple[int, bytes]]:
    """The attributes in a section, and what they say."""
    at = 0
    while at < len(section):
        form, attribute, value = struct.unpack_from("<BBH", section, at)
        at += 4
        payload = section[at : at + value] if form == _WITH_PAYLOAD else b""
        at += len(payload)
        yield attribute, payload


def _name(table: bytes, offset: int) -> str:
    return table[offset : table.index(b"\0", offset)].decode()
