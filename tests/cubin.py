"""All that a cubin says about its kernels: what the package reads of it, and how they are launched."""

from __future__ import annotations

import struct
from typing import NamedTuple

from tvmdml.targets.cuda.cubin import FRAME_SIZE, MIN_STACK_SIZE, attributes, is_cubin, needs, sections

# Attributes in the sections .nv.info and .nv.info.KERNEL.
_MAX_THREADS, _PARAMETER, _REGISTERS = 0x05, 0x17, 0x2F
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
    assert is_cubin(content), content[:20]
    (flags,) = struct.unpack_from("<I", content, 48)
    # The ABI defines where the flags are: in the lowest byte, or, since CUDA 13, in the next one.
    number = flags >> 8 & 0xFF if content[8] >= 8 else flags & 0xFF
    parts = sections(content)
    found = needs(content, (_REGISTERS, FRAME_SIZE, MIN_STACK_SIZE))
    return f"sm_{number}", {name: _kernel(name, own, parts, number) for name, own in found.items()}


def _kernel(name: str, numbers: dict[int, int], parts: dict[str, bytes], number: int) -> Kernel:
    own = list(attributes(parts[f".nv.info.{name}"]))
    shared = len(parts.get(f".nv.shared.{name}", b""))
    parameters = [struct.unpack_from("<4xHHI", payload) for attribute, payload in own if attribute == _PARAMETER]
    return Kernel(
        numbers[_REGISTERS],
        max(numbers.get(FRAME_SIZE, 0), numbers.get(MIN_STACK_SIZE, 0)),
        shared - _RESERVED_SHARED if shared and number >= 90 else shared,
        next(struct.unpack("<III", payload) for attribute, payload in own if attribute == _MAX_THREADS),
        tuple((offset, size >> 18) for _, offset, size in sorted(parameters)),
    )
