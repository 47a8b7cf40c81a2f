"""What stands in a SPIR-V module, for the tests of its generator."""

from __future__ import annotations

import struct
from collections.abc import Iterator

from tvmdml.targets.vulkan.spirv_tables import CAPABILITY, DECORATION, OPCODES, STORAGE_CLASS


def instructions(code: bytes) -> Iterator[tuple[str, tuple[int, ...]]]:
    """Each instruction's name and operands."""
    names = {number: name for name, number in OPCODES.items()}
    words = struct.unpack(f"<{len(code) // 4}I", code)
    at = 5
    while at < len(words):
        length = words[at] >> 16
        yield names[words[at] & 0xFFFF], words[at + 1 : at + length]
        at += length


def declared(code: bytes) -> set[str]:
    """The capabilities of a module."""
    names = {number: name for name, number in CAPABILITY.items()}
    return {names[operands[0]] for name, operands in instructions(code) if name == "Capability"}


def decorations(code: bytes, name: str) -> list[int]:
    """What carries a decoration."""
    found = [operands for instruction, operands in instructions(code) if instruction == "Decorate"]
    return [operands[0] for operands in found if operands[1] == DECORATION[name]]


def widths(code: bytes, storage: str = "StorageBuffer") -> list[int]:
    """How many 32-bit words each load and store moves; 0 for part of one."""
    types: dict[int, int] = {}
    pointers: dict[int, int] = {}
    moved = []
    for name, operands in instructions(code):
        if name in ("TypeInt", "TypeFloat"):
            types[operands[0]] = operands[1] // 32
        elif name == "TypeVector":
            types[operands[0]] = types[operands[1]] * operands[2]
        elif name == "TypePointer" and operands[1] == STORAGE_CLASS[storage] and operands[2] in types:
            types[operands[0]] = types[operands[2]]
        elif name == "AccessChain" and operands[0] in types:
            pointers[operands[1]] = types[operands[0]]
        elif name == "Load" and operands[2] in pointers:
            moved.append(pointers[operands[2]])
        elif name == "Store" and operands[0] in pointers:
            moved.append(pointers[operands[0]])
    return moved
