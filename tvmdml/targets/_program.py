"""``Program``: a device's compiled kernel as data: its functions, and the launches they make up. Written to a file, and read."""

from __future__ import annotations

import json
import operator
import struct
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

_MAGIC = b"TVMDML-PROGRAM-1\n"

Expression = int | tuple[Any, ...]
"""An integer, ``("scalar", parameter)``, or an operation's name with its operands."""


def _truncdiv(a: int, b: int) -> int:
    quotient = abs(a) // abs(b)
    return quotient if (a < 0) == (b < 0) else -quotient


_OPERATIONS: dict[str, Callable[[int, int], int]] = {
    "+": operator.add, "-": operator.sub, "*": operator.mul, "//": operator.floordiv, "%": operator.mod,
    "truncdiv": _truncdiv, "truncmod": lambda a, b: a - b * _truncdiv(a, b), "min": min, "max": max,
    "<<": operator.lshift, ">>": operator.rshift, "&": operator.and_, "|": operator.or_,
}  # fmt: skip


def evaluate(expression: Expression, scalars: Sequence[int]) -> int:
    """The value of an expression; ``scalars`` are all parameters from the first on, with anything in place of buffers."""
    if isinstance(expression, int):
        return expression
    name, *operands = expression
    if name == "scalar":
        return int(scalars[operands[0]])
    one, other = (evaluate(operand, scalars) for operand in operands)
    return _OPERATIONS[name](one, other)


class Image(NamedTuple):
    """Machine code, or what a driver makes some of."""

    form: str
    """``spirv``; ``sm_90`` for CUDA's machine code, and ``compute_90`` for its PTX."""
    content: bytes


class Function(NamedTuple):
    """One compiled device function."""

    name: str
    image: int
    """Which of the program's images holds it; -1 where each does, for a device of its own."""
    buffers: int
    scalars: tuple[tuple[int, str], ...]
    """Where each scalar lies in the block of scalars, and its ``struct`` format."""
    scalar_bytes: int
    threads: tuple[int, int, int]
    """Threads of a group."""


class Step(NamedTuple):
    """One launch of a function."""

    function: int
    buffers: tuple[int, ...]
    """Which of the program's buffers it is given."""
    scalars: tuple[Expression, ...]
    groups: tuple[Expression, Expression, Expression]


class Launch(NamedTuple):
    """A step with its numbers worked out."""

    function: int
    buffers: tuple[int, ...]
    scalars: bytes
    """The block of scalars."""
    groups: tuple[int, int, int]


class Program(NamedTuple):
    """A kernel: buffers first, then integers."""

    images: tuple[Image, ...]
    functions: tuple[Function, ...]
    steps: tuple[Step, ...]
    parameters: int
    """How many, buffers and integers together."""
    reads: tuple[int, ...]
    """The buffers that some step reads."""
    writes: tuple[int, ...]

    def launches(self, scalars: Sequence[int]) -> tuple[Launch, ...]:
        """What to launch for these integers."""
        values = [0] * (self.parameters - len(scalars)) + [int(value) for value in scalars]
        found = []
        for step in self.steps:
            function = self.functions[step.function]
            block = bytearray(function.scalar_bytes)
            for (offset, form), expression in zip(function.scalars, step.scalars, strict=True):
                struct.pack_into("<" + form, block, offset, evaluate(expression, values))
            x, y, z = (evaluate(extent, values) for extent in step.groups)
            found.append(Launch(step.function, step.buffers, bytes(block), (x, y, z)))
        return tuple(found)

    def to_bytes(self) -> bytes:
        """As a file."""
        images = [{"form": image.form, "bytes": len(image.content)} for image in self.images]
        lists = {name: [one._asdict() for one in getattr(self, name)] for name in ("functions", "steps")}
        header = json.dumps({**self._asdict(), **lists, "images": images}).encode()
        return b"".join([_MAGIC, struct.pack("<I", len(header)), header, *(image.content for image in self.images)])

    @classmethod
    def from_bytes(cls, content: bytes) -> Program:
        """What ``to_bytes`` wrote.

        Raises:
            ValueError: it did not write this.
        """
        start = len(_MAGIC) + 4
        if not content.startswith(_MAGIC) or len(content) < start:
            raise ValueError("this is no program of tvmdml's")
        at = start + struct.unpack_from("<I", content, len(_MAGIC))[0]
        try:
            header = json.loads(content[start:at])
            images = []
            for given in header["images"]:
                images.append(Image(given["form"], content[at : at + given["bytes"]]))
                at += given["bytes"]
            functions = tuple(Function(**_of(given)) for given in header["functions"])
            steps = tuple(Step(**_of(given)) for given in header["steps"])
            rest = {name: _tuples(header[name]) for name in ("parameters", "reads", "writes")}
            program = cls(images=tuple(images), functions=functions, steps=steps, **rest)
        except (KeyError, TypeError, AttributeError) as error:
            raise ValueError(f"this program is damaged: {error!r}") from error
        if at != len(content):
            raise ValueError("this program is cut short, or longer than it says")
        return program


def _of(given: dict[str, Any]) -> dict[str, Any]:
    return {name: _tuples(value) for name, value in given.items()}


def _tuples(value: Any) -> Any:
    return tuple(map(_tuples, value)) if isinstance(value, list) else value
