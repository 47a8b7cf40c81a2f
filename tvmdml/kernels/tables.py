"""Small tables in LLVM IR: an element for each lane, from a register where an instruction permutes its lanes, else from memory."""

from __future__ import annotations

import functools
import hashlib
import struct
from collections.abc import Sequence

from tvmdml.kernels.registers import apart, together

SIZE = 8
"""The elements of a table: the three lowest bits of an index count. On the CPU there may be 16, and four bits count."""
_PERMUTED = {8: "avx2.permps", 16: "avx512.permvar.sf.512"}
"""By the lanes of a register."""


def name(table: Sequence[float], lanes: int, register: int) -> str:
    """The name of the function for a table of float32. An instruction permutes the lanes of a ``register``; 0 if there is none."""
    digest = hashlib.sha256(struct.pack(f"<{len(table)}d", *table)).hexdigest()[:16]
    return f"tvmdml_table_{digest}_{register}x{lanes}"


@functools.cache
def source(table: tuple[float, ...], lanes: int, register: int) -> str:
    """That function: of indices, whose bits above the lowest four may be anything. The fourth is 0 for a table of eight."""
    return _permuted(table, lanes, register) if register else _loaded(table, lanes)


def _numbers(table: Sequence[float]) -> str:
    return ", ".join(f"float 0x{struct.pack('>d', number).hex().upper()}" for number in table)


def _permuted(table: Sequence[float], lanes: int, register: int) -> str:
    part, places, whole = (f"<{count} x {one}>" for count, one in ((register, "float"), (register, "i32"), (lanes, "i32")))
    llvm = f"@llvm.x86.{_PERMUTED[register]}"
    entries = f"{part} <{_numbers([*table] * (register // len(table)))}>"
    lines = [f"declare {part} {llvm}({part}, {places})"]
    lines.append(f"define <{lanes} x float> @{name(table, lanes, register)}({whole} %index) alwaysinline {{")
    lines += apart("index", "i32", lanes, register)
    lines += [f"  %r{i} = call {part} {llvm}({entries}, {places} %index{i})" for i in range(lanes // register)]
    return "\n".join([*lines, *together("r", "float", lanes, register), "}", ""])


def _loaded(table: Sequence[float], lanes: int) -> str:
    own, array = name(table, lanes, 0), f"[{len(table)} x float]"
    index, result = ("i32", "float") if lanes == 1 else (f"<{lanes} x i32>", f"<{lanes} x float>")
    lines = [f"@{own}_of = private unnamed_addr constant {array} [{_numbers(table)}]"]
    lines.append(f"define {result} @{own}({index} %index) alwaysinline {{")
    found = "poison"
    for i in range(lanes):
        one = "%index" if lanes == 1 else f"%e{i}"
        if lanes > 1:
            lines.append(f"  %e{i} = extractelement {index} %index, i32 {i}")
        lines.append(f"  %i{i} = and i32 {one}, {len(table) - 1}")
        lines.append(f"  %p{i} = getelementptr inbounds {array}, ptr @{own}_of, i32 0, i32 %i{i}")
        lines.append(f"  %x{i} = load float, ptr %p{i}, align 4")
        if lanes > 1:
            lines.append(f"  %v{i} = insertelement {result} {found}, float %x{i}, i32 {i}")
        found = f"%x{i}" if lanes == 1 else f"%v{i}"
    return "\n".join([*lines, f"  ret {result} {found}", "}", ""])
