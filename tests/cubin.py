"""Reads what a cubin says about its kernels from the ELF file itself, so that no NVIDIA tool is needed."""

from __future__ import annotations

import struct
from collections.abc import Iterator
from typing import NamedTuple

_CUDA = 190  # EM_CUDA
# Attributes in the sections .nv.info and .nv.info.KERNEL.
_MAX_THREADS, _FRAME_SIZE, _MIN_STACK_SIZE, _PARAMETER, _REGISTERS = 0x05, 0x11, 0x12, 0x17, 0x2F
_RESERVED_SHARED = 1024  # reserved by the driver; the assembler includes it from sm_90 on


class Kernel(NamedTuple):
    """What one needs."""

    registers: int
    stack: int
    """Bytes of a thread's own memory, for what the registers have no room for."""
    shared: int
    threads: tuple[int, int, int]
    """The most that it may be launched with."""
    parameters: tuple[tuple[int, int], ...]
    """Where each lies, and how large it is."""


def read(content: bytes) -> tuple[str, dict[str, Kernel]]:
    """The architecture (``sm_90``), and the kernels by name."""
    assert content[:4] == b"\x7fELF", content[:16]
    (machine,) = struct.unpack_from("<H", content, 18)
    assert machine == _CUDA
    (flags,) = struct.unpack_from("<I", content, 48)
    # The ABI defines where the flags are: in the lowest byte, or, since CUDA 13, in the next one.
    number = flags >> 8 & 0xFF if content[8] >= 8 else flags & 0xFF
    sections = _sections(content)
    symbols, names = sections[".symtab"], sections[".strtab"]
    known = [_name(names, struct.unpack_from("<I", symbols, at)[0]) for at in range(0, len(symbols), 24)]
    needs: dict[str, dict[int, int]] = {}
    for attribute, payload in _attributes(sections[".nv.info"]):
        if attribute in (_REGISTERS, _FRAME_SIZE, _MIN_STACK_SIZE):
            symbol, value = struct.unpack("<II", payload)
            needs.setdefault(known[symbol], {})[attribute] = value
    # Functions called by a kernel have their own sections, with a dollar sign in the name.
    return f"sm_{number}", {name: _kernel(name, own, sections, number) for name, own in needs.items() if "$" not in name}


def _kernel(name: str, needs: dict[int, int], sections: dict[str, bytes], number: int) -> Kernel:
    own = list(_attributes(sections[f".nv.info.{name}"]))
    shared = len(sections.get(f".nv.shared.{name}", b""))
    parameters = [struct.unpack_from("<4xHHI", payload) for attribute, payload in own if attribute == _PARAMETER]
    return Kernel(
        needs[_REGISTERS],
        max(needs.get(_FRAME_SIZE, 0), needs.get(_MIN_STACK_SIZE, 0)),
        shared - _RESERVED_SHARED if shared and number >= 90 else shared,
        next(struct.unpack("<III", payload) for attribute, payload in own if attribute == _MAX_THREADS),
        tuple((offset, size >> 18) for _, offset, size in sorted(parameters)),
    )


def _sections(content: bytes) -> dict[str, bytes]:
    (start,) = struct.unpack_from("<Q", content, 40)
    size, count, names = struct.unpack_from("<HHH", content, 58)
    headers = [struct.unpack_from("<IIQQQQ", content, start + i * size) for i in range(count)]
    table = content[headers[names][4] :]
    # Memory that is not stored in the file has its full size nevertheless.
    return {
        _name(table, name): bytes(length) if kind == 8 else content[offset : offset + length]
        for name, kind, _, _, offset, length in headers
    }


def _name(table: bytes, offset: int) -> str:
    return table[offset : table.index(b"\0", offset)].decode()


def _attributes(section: bytes) -> Iterator[tuple[int, bytes]]:
    at = 0
    while at < len(section):
        form, attribute, value = struct.unpack_from("<BBH", section, at)
        at += 4
        payload = section[at : at + value] if form == 4 else b""
        at += len(payload)
        yield attribute, payload
