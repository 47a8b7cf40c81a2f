"""``disassemble``: a module's words as readable assembly, one instruction per line, in the format of SPIRV-Tools' spirv-dis."""

from __future__ import annotations

import math
import re
import struct
from collections.abc import Iterator

from tvmdml.targets.vulkan.spirv_tables import BUILTIN, DECORATION, ENUMERANTS, GLSL, HEADER_WORDS, INSTRUCTIONS, MAGIC

_BY_NUMBER = {instruction.number: (name, instruction.operands) for name, instruction in INSTRUCTIONS.items()}
_NAMES = {letter: {number: name for name, number in table.items()} for letter, table in ENUMERANTS.items()}
_FUNCTIONS = {number: name for name, number in GLSL.items()}
_BUILTINS = {number: name for name, number in BUILTIN.items()}
_FLOATS = {16: "<e", 32: "<f", 64: "<d"}
_INTEGERS = {8: "uchar", 16: "ushort", 32: "uint", 64: "ulong"}
_FLOAT_NAMES = {16: "half", 32: "float", 64: "double"}
_MARGIN = 24


def disassemble(code: bytes) -> str:
    """The assembly of a SPIR-V module, with its names.

    Raises:
        ValueError: it is not SPIR-V, or contains an instruction that tvmdml does not write.
    """
    words = _words(code)
    listing = _Listing(words)
    return "\n".join(listing.line(name, operands, values) for name, operands, values in _instructions(words)) + "\n"


def _words(code: bytes) -> tuple[int, ...]:
    if len(code) % 4 or len(code) < 4 * HEADER_WORDS or struct.unpack_from("<I", code)[0] != MAGIC:
        raise ValueError("not a SPIR-V module")
    return struct.unpack(f"<{len(code) // 4}I", code)


def _instructions(words: tuple[int, ...]) -> Iterator[tuple[str, str, tuple[int, ...]]]:
    """Each instruction's name, the kinds of its operands, and the operands."""
    at = HEADER_WORDS
    while at < len(words):
        length, number = words[at] >> 16, words[at] & 0xFFFF
        if number not in _BY_NUMBER or not 0 < length <= len(words) - at:
            raise ValueError(f"instruction {number} at word {at} is unknown")
        yield *_BY_NUMBER[number], words[at + 1 : at + length]
        at += length


class _Listing:
    """What is known about a module's results: their names, and the types of those that are numbers."""

    def __init__(self, words: tuple[int, ...]) -> None:
        self._names: dict[int, str] = {}
        self._types: dict[int, tuple[str, int]] = {}
        given: dict[int, str] = {}
        taken: set[str] = set()
        for name, operands, values in _instructions(words):
            if name == "Name":
                given[values[0]] = _text(values[1:])[0]
            elif name == "Decorate" and values[1] == DECORATION["BuiltIn"]:
                given[values[0]] = _BUILTINS[values[2]]
            elif "r" in operands:
                result = values[operands.index("r")]
                found = given.get(result) or self._inferred(name, values)
                if found is not None:
                    self._names[result] = _unique(found, taken)

    def _inferred(self, name: str, values: tuple[int, ...]) -> str | None:
        """The name of a type or a constant, derived from what it is."""
        called = [self._names.get(value, str(value)) for value in values]
        if name == "TypeInt":
            self._types[values[0]] = ("int", values[1])
            return _INTEGERS[values[1]]
        if name == "TypeFloat":
            self._types[values[0]] = ("float", values[1])
            return _FLOAT_NAMES[values[1]]
        if name == "Constant":
            return f"{called[0]}_{self._number(values[0], values[2:])}"
        return {
            "TypeVoid": lambda: "void",
            "TypeBool": lambda: "bool",
            "ConstantTrue": lambda: "true",
            "ConstantFalse": lambda: "false",
            "TypeVector": lambda: f"v{values[2]}{called[1]}",
            "TypeArray": lambda: f"array_{called[1]}_{called[2]}",
            "TypeRuntimeArray": lambda: f"array_{called[1]}",
            "TypeStruct": lambda: f"struct_{values[0]}",
            "TypePointer": lambda: f"ptr_{_NAMES['B'][values[1]]}_{called[2]}",
        }.get(name, lambda: None)()

    def line(self, name: str, operands: str, values: tuple[int, ...]) -> str:
        """One instruction."""
        result, texts, rest = "", [], values
        kinds = _kinds(operands)
        while rest:
            kind = next(kinds)
            if kind == "s":
                text, length = _text(rest)
                texts.append(f'"{text}"')
            elif kind == "l":
                text, length = self._number(values[0], rest), len(rest)
                texts.append(text)
            else:
                text, length = self._operand(kind, rest[0]), 1
                if kind == "r":
                    result = text
                elif name == "Decorate" and len(texts) == 2 and texts[1] == "BuiltIn":
                    texts.append(_BUILTINS[rest[0]])
                elif name == "Decorate" and len(texts) == 2 and texts[1] == "FPRoundingMode":
                    texts.append("RTE")
                else:
                    texts.append(text)
            rest = rest[length:]
        left = f"{result} = " if result else ""
        return f"{left:>{_MARGIN}}{' '.join((f'Op{name}', *texts))}"

    def _operand(self, kind: str, value: int) -> str:
        if kind in _NAMES:
            return _NAMES[kind].get(value, str(value))
        if kind == "x":
            return _FUNCTIONS.get(value, str(value))
        return str(value) if kind == "n" else f"%{self._names.get(value, value)}"

    def _number(self, kind: int, words: tuple[int, ...]) -> str:
        number = sum(word << (32 * place) for place, word in enumerate(words))
        form, bits = self._types[kind]
        if form == "int":
            return str(number)
        value = struct.unpack(_FLOATS[bits], number.to_bytes(bits // 8, "little"))[0]
        if not math.isfinite(value):
            return _not_finite(number, bits)
        return f"{value:.17g}" if bits == 64 else f"{value:.9g}"


def _not_finite(number: int, bits: int) -> str:
    """An infinity or a NaN in assembly syntax: hexadecimal, with the exponent after the largest."""
    fraction_bits, exponent = {16: (10, 16), 32: (23, 128), 64: (52, 1024)}[bits]
    padding = -fraction_bits % 4
    fraction = f"{(number & ((1 << fraction_bits) - 1)) << padding:0{(fraction_bits + padding) // 4}x}".rstrip("0")
    return f"{'-' if number >> (bits - 1) else ''}0x1{'.' if fraction else ''}{fraction}p+{exponent}"


def _kinds(operands: str) -> Iterator[str]:
    """The kind of each operand in turn; the last one repeats if a star follows it."""
    yield from operands.rstrip("*")
    while operands.endswith("*"):
        yield operands[-2]


def _text(words: tuple[int, ...]) -> tuple[str, int]:
    """Text, and the number of words it uses."""
    data, _, _ = struct.pack(f"<{len(words)}I", *words).partition(b"\0")
    return data.decode(), len(data) // 4 + 1


def _unique(name: str, taken: set[str]) -> str:
    """A name of characters that are valid in assembly, with a number appended if it is not the first."""
    base = re.sub(r"\W", "_", name, flags=re.ASCII).replace("-", "_") or "_"
    if base[0].isdigit():
        base = f"_{base}"
    found, count = base, 0
    while found in taken:
        found, count = f"{base}_{count}", count + 1
    taken.add(found)
    return found
