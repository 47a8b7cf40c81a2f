"""``Program``: a compiled kernel as data. Its shaders, and the launches that they make up; written to a file and read again."""

from __future__ import annotations

import json
import operator
import struct
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

_MAGIC = b"TVMDML-SPIRV-1\n"

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


class Shader(NamedTuple):
    """One compiled device function."""

    name: str
    code: bytes
    """SPIR-V."""
    buffers: int
    push: tuple[tuple[int, str], ...]
    """Where each scalar lies in the push constants, and its ``struct`` format."""
    push_bytes: int


class Step(NamedTuple):
    """One launch of a shader."""

    shader: int
    buffers: tuple[int, ...]
    """Which of the program's buffers it binds."""
    scalars: tuple[Expression, ...]
    groups: tuple[Expression, Expression, Expression]


class Launch(NamedTuple):
    """A step with its numbers worked out."""

    shader: int
    buffers: tuple[int, ...]
    push: bytes
    groups: tuple[int, int, int]


class Program(NamedTuple):
    """A kernel: buffers first, then integers."""

    shaders: tuple[Shader, ...]
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
            shader = self.shaders[step.shader]
            push = bytearray(shader.push_bytes)
            for (offset, form), expression in zip(shader.push, step.scalars, strict=True):
                struct.pack_into("<" + form, push, offset, evaluate(expression, values))
            x, y, z = (evaluate(extent, values) for extent in step.groups)
            found.append(Launch(step.shader, step.buffers, bytes(push), (x, y, z)))
        return tuple(found)

    def to_bytes(self) -> bytes:
        """As a file."""
        shaders = [{**shader._asdict(), "code": len(shader.code)} for shader in self.shaders]
        header = json.dumps({**self._asdict(), "shaders": shaders, "steps": [step._asdict() for step in self.steps]}).encode()
        parts = [_MAGIC, struct.pack("<I", len(header)), header, *(shader.code for shader in self.shaders)]
        return b"".join(parts)

    @classmethod
    def from_bytes(cls, content: bytes) -> Program:
        """What ``to_bytes`` wrote.

        Raises:
            ValueError: it did not write this.
        """
        start = len(_MAGIC) + 4
        if not content.startswith(_MAGIC) or len(content) < start:
            raise ValueError("this is no SPIR-V program of tvmdml's")
        at = start + struct.unpack_from("<I", content, len(_MAGIC))[0]
        try:
            header = json.loads(content[start:at])
            shaders = []
            for given in header["shaders"]:
                code, at = content[at : at + given["code"]], at + given["code"]
                shaders.append(Shader(**{**given, "code": code, "push": tuple((o, f) for o, f in given["push"])}))
            steps = tuple(Step(**{name: _tuples(value) for name, value in given.items()}) for given in header["steps"])
            rest = {name: _tuples(header[name]) for name in ("parameters", "reads", "writes")}
            program = cls(shaders=tuple(shaders), steps=steps, **rest)
        except (KeyError, TypeError, AttributeError) as error:
            raise ValueError(f"this SPIR-V program is damaged: {error!r}") from error
        if at != len(content):
            raise ValueError("this SPIR-V program is cut short, or longer than it says")
        return program


def _tuples(value: Any) -> Any:
    return tuple(map(_tuples, value)) if isinstance(value, list) else value
