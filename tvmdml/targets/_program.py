"""``KernelProgram``: a device's compiled kernel as data: its functions and its launches. It is written to files and read back."""

from __future__ import annotations

import json
import operator
import re
import struct
from collections.abc import Callable, Iterable, Sequence
from typing import Any, NamedTuple

_MAGIC = b"TVMDML-PROGRAM-1\n"
_SPIRV_MAGIC = b"\x03\x02\x23\x07"
# Limits for what a file may contain: far above what schedules make, and low enough that reading exhausts no resource.
_MAX_HEADER_BYTES = 1 << 20
# A pack's program may be anyone's: what it asks for is bounded before memory is taken. Expressions are read recursively.
_MAX_PARAMETERS = 1 << 12
_MAX_SCALAR_BYTES = 1 << 15
_MAX_DEPTH = 100
_LEAST, _MOST = -(1 << 63), (1 << 64) - 1  # of int64, and of uint64
_FORM = re.compile(r"spirv|(?:sm|compute)_[1-9]\d{1,2}", re.ASCII)
_NAME = re.compile(r"[A-Za-z_]\w{0,255}", re.ASCII)
_SCALAR_SIZES = {form: struct.calcsize(f"<{form}") for form in "iIqQfd"}

IntegerExpression = int | tuple[Any, ...]
"""An integer, ``("scalar", parameter)``, or an operation's name with its operands."""


def _truncdiv(a: int, b: int) -> int:
    quotient = abs(a) // abs(b)
    return quotient if (a < 0) == (b < 0) else -quotient


def _left(a: int, b: int) -> int:
    if not 0 <= b < 64:  # Python would make an integer that fills the memory
        raise ValueError(f"a shift by {b} bits")
    return a << b


def _right(a: int, b: int) -> int:
    if not 0 <= b < 64:
        raise ValueError(f"a shift by {b} bits")
    return a >> b


_OPERATIONS: dict[str, Callable[[int, int], int]] = {
    "+": operator.add, "-": operator.sub, "*": operator.mul, "//": operator.floordiv, "%": operator.mod,
    "truncdiv": _truncdiv, "truncmod": lambda a, b: a - b * _truncdiv(a, b), "min": min, "max": max,
    "<<": _left, ">>": _right, "&": operator.and_, "|": operator.or_,
}  # fmt: skip


def evaluate(expression: IntegerExpression, scalars: Sequence[int]) -> int:
    """The value of an expression. ``scalars`` has one entry for each parameter; the entries of buffers are ignored.

    Raises:
        ValueError, ZeroDivisionError: it has no value, or the value does not fit in 64 bits.
    """
    if isinstance(expression, int):
        return expression
    name, *operands = expression
    if name == "scalar":
        return int(scalars[operands[0]])
    one, other = (evaluate(operand, scalars) for operand in operands)
    value = _OPERATIONS[name](one, other)
    if not _LEAST <= value <= _MOST:
        raise ValueError(f"{one} {name} {other} does not fit in 64 bits")
    return value


class Image(NamedTuple):
    """Machine code, or code that a driver compiles to machine code."""

    form: str
    """``spirv``; for CUDA, ``sm_90`` (machine code) or ``compute_90`` (PTX)."""
    content: bytes


class DeviceFunction(NamedTuple):
    """One compiled device function."""

    name: str
    image: int
    """The program's image that holds it; -1 if every image does, each for a different device."""
    buffers: int
    scalars: tuple[tuple[int, str], ...]
    """The offset of each scalar in the scalar block, and its ``struct`` format."""
    scalar_bytes: int
    threads: tuple[int, int, int]
    """Threads of a group."""


class ProgramStep(NamedTuple):
    """One launch of a function."""

    function: int
    buffers: tuple[int, ...]
    """The program's buffers that are passed to it."""
    scalars: tuple[IntegerExpression, ...]
    groups: tuple[IntegerExpression, IntegerExpression, IntegerExpression]


class EvaluatedStep(NamedTuple):
    """A step with its expressions evaluated."""

    function: int
    buffers: tuple[int, ...]
    scalars: bytes
    """The bytes of the scalar block."""
    groups: tuple[int, int, int]


class KernelProgram(NamedTuple):
    """A kernel: buffers first, then integers."""

    images: tuple[Image, ...]
    functions: tuple[DeviceFunction, ...]
    steps: tuple[ProgramStep, ...]
    parameters: int
    """The number of buffers and integers together."""
    reads: tuple[int, ...]
    """The buffers that at least one step reads."""
    writes: tuple[int, ...]

    def launches(self, scalars: Sequence[int]) -> tuple[EvaluatedStep, ...]:
        """The launches for these integers.

        Raises:
            ValueError: the program does not accept them.
        """
        buffers = self.parameters - len(scalars)
        values = [0] * buffers + [int(value) for value in scalars]
        found = []
        for step in self.steps:
            if max(step.buffers, default=-1) >= buffers:
                raise ValueError(f"{len(scalars)} integers are too many: {self.parameters} parameters, buffers included")
            function = self.functions[step.function]
            block = bytearray(function.scalar_bytes)
            try:
                for (offset, form), expression in zip(function.scalars, step.scalars, strict=True):
                    struct.pack_into("<" + form, block, offset, evaluate(expression, values))
                x, y, z = (evaluate(extent, values) for extent in step.groups)
            except (struct.error, ArithmeticError, IndexError) as error:
                raise ValueError(f"launching {function.name} with {tuple(scalars)}: {error}") from error
            if not (0 <= x < 1 << 32 and 0 <= y < 1 << 32 and 0 <= z < 1 << 32):
                raise ValueError(f"launching {function.name} with {tuple(scalars)}: {(x, y, z)} groups")
            found.append(EvaluatedStep(step.function, step.buffers, bytes(block), (x, y, z)))
        return tuple(found)

    def to_bytes(self) -> bytes:
        """The program as the content of a file."""
        images = [{"form": image.form, "bytes": len(image.content)} for image in self.images]
        lists = {name: [one._asdict() for one in getattr(self, name)] for name in ("functions", "steps")}
        header = json.dumps({**self._asdict(), **lists, "images": images}).encode()
        return b"".join([_MAGIC, struct.pack("<I", len(header)), header, *(image.content for image in self.images)])

    @classmethod
    def from_bytes(cls, content: bytes) -> KernelProgram:
        """Read what ``to_bytes`` wrote.

        Raises:
            ValueError: the content is not valid.
        """
        start = len(_MAGIC) + 4
        if not content.startswith(_MAGIC) or len(content) < start:
            raise ValueError("this is not a tvmdml program")
        (size,) = struct.unpack_from("<I", content, len(_MAGIC))
        if size > min(_MAX_HEADER_BYTES, len(content) - start):
            raise ValueError(f"this program is damaged: its header claims {size} bytes")
        try:
            return _program(json.loads(content[start : start + size].decode()), content, start + size)
        except (ValueError, KeyError, TypeError, AttributeError, RecursionError) as error:
            raise ValueError(f"this program is damaged: {str(error) or type(error).__name__}") from error


# -- Reading untrusted content --------------------------------------------------------------------------------------


def _program(header: dict[str, Any], content: bytes, at: int) -> KernelProgram:
    images = []
    for given in header["images"]:
        image = Image(given["form"], content[at : at + _whole(given["bytes"], 1, len(content) - at)])
        if not _FORM.fullmatch(image.form):
            raise ValueError(f"an image of the unknown form {image.form[:20]!r}")
        if image.form == "spirv" and (len(image.content) % 4 or not image.content.startswith(_SPIRV_MAGIC)):
            raise ValueError("an image that is not SPIR-V")
        images.append(image)
        at += len(image.content)
    if at != len(content):
        raise ValueError(f"it has {len(content) - at} bytes more than its header says")
    if not images:
        raise ValueError("it has no code")
    parameters = _whole(header["parameters"], 0, _MAX_PARAMETERS)
    functions = tuple(_function(given, len(images), parameters) for given in header["functions"])
    steps = tuple(_step(given, functions, parameters) for given in header["steps"])
    reads, writes = (_buffers(header[name], parameters) for name in ("reads", "writes"))
    return KernelProgram(tuple(images), functions, steps, parameters, reads, writes)


def _function(given: dict[str, Any], images: int, parameters: int) -> DeviceFunction:
    if not _NAME.fullmatch(given["name"]):
        raise ValueError(f"a function with the invalid name {given['name'][:100]!r}")
    scalar_bytes = _whole(given["scalar_bytes"], 0, _MAX_SCALAR_BYTES)
    scalars = tuple((_whole(at, 0, scalar_bytes - _SCALAR_SIZES[form]), form) for at, form in given["scalars"])
    x, y, z = (_whole(count, 1, 1 << 16) for count in given["threads"])
    image = _whole(given["image"], -1, images - 1)
    return DeviceFunction(given["name"], image, _whole(given["buffers"], 0, parameters), scalars, scalar_bytes, (x, y, z))


def _step(given: dict[str, Any], functions: Sequence[DeviceFunction], parameters: int) -> ProgramStep:
    number = _whole(given["function"], 0, len(functions) - 1)
    buffers = _buffers(given["buffers"], parameters)
    scalars = tuple([_expression(one, parameters, _MAX_DEPTH) for one in given["scalars"]])
    x, y, z = (_expression(one, parameters, _MAX_DEPTH) for one in given["groups"])
    if len(buffers) != functions[number].buffers or len(scalars) != len(functions[number].scalars):
        raise ValueError(f"a launch of {functions[number].name} with {len(buffers)} buffers and {len(scalars)} scalars")
    return ProgramStep(number, buffers, scalars, (x, y, z))


def _expression(given: Any, parameters: int, depth: int) -> IntegerExpression:
    if type(given) is int:
        return _whole(given, _LEAST, _MOST)
    if not depth:
        raise ValueError("an expression is nested too deeply")
    name, *operands = given
    if name == "scalar":
        (number,) = operands
        return ("scalar", _whole(number, 0, parameters - 1))
    one, other = operands
    if name not in _OPERATIONS:
        raise ValueError(f"an unknown operation {str(name)[:20]!r}")
    return (name, _expression(one, parameters, depth - 1), _expression(other, parameters, depth - 1))


def _buffers(given: Iterable[Any], parameters: int) -> tuple[int, ...]:
    return tuple([_whole(number, 0, parameters - 1) for number in given])


def _whole(value: Any, least: int, most: int) -> int:
    if type(value) is not int or not least <= value <= most:
        raise ValueError(f"{str(value)[:20]} where an integer from {least} to {most} was expected")
    return value
