"""Exponents, mantissas and fractions by AVX-512's own instructions, in LLVM IR: exact for every float, subnormals included."""

from __future__ import annotations

import functools

from tvmdml.kernels.registers import apart, together

_KINDS = {"float32": ("float", "ps", 16), "float64": ("double", "pd", 8)}
_NOW = 4
"""The rounding that is in force."""
_STEPS: dict[str, tuple[str, tuple[str, ...], int | None]] = {
    "scale": ("scalef", ("x", "power"), None),
    "scale_from": ("scalef", ("x", "power"), None),
    "exponent": ("getexp", ("x",), None),
    "mantissa": ("getmant", ("x",), 0b1011),  # in the interval from 3/4 to 3/2, and NaN for negative numbers
    "rest": ("reduce", ("x",), 0),  # of the nearest integral number, halves to even; 0 of infinities
}
"""The instruction's name, its operands, and a number that it has."""
_FROM = ("value", "least")
"""What ``scale_from`` has besides: where the value is less than the least, the result is 0 and the instruction leaves the lane out.
Intel's processors take some 200 cycles for a result below the normal numbers, even if it is 0 in the end. A choice behind the
instruction would not do: LLVM moves it behind what comes next.
"""


def lanes_of(dtype: str) -> int:
    """The lanes of a register."""
    return _KINDS[dtype][2]


def name(step: str, dtype: str, lanes: int) -> str:
    """The name of the function for a type. A step is one of ``_STEPS``."""
    return f"tvmdml_{step}_{dtype}x{lanes}"


@functools.cache
def source(step: str, dtype: str, lanes: int) -> str:
    """That function: of several registers, one after the other."""
    ctype, suffix, width = _KINDS[dtype]
    whole, part, mask = f"<{lanes} x {ctype}>", f"<{width} x {ctype}>", f"i{width}"
    llvm, values, number = _STEPS[step]
    chosen = [] if number is None else ["i32"]
    types = [*[part] * len(values), *chosen, part]
    lines = [f"declare {part} @llvm.x86.avx512.mask.{llvm}.{suffix}.512({', '.join([*types, mask, 'i32'])})"]
    limits = _FROM if step == "scale_from" else ()
    arguments = ", ".join(f"{whole} %{value}" for value in (*values, *limits))
    lines.append(f"define {whole} @{name(step, dtype, lanes)}({arguments}) alwaysinline {{")
    for value in (*values, *limits):
        lines += apart(value, ctype, lanes, width)
    for i in range(lanes // width):
        given = [*(f"{part} %{value}{i}" for value in values), *(f"{one} {number}" for one in chosen)]
        kept = "-1"
        if limits:
            lines += [
                f"  %kept{i} = fcmp uge {part} %value{i}, %least{i}",
                f"  %mask{i} = bitcast <{width} x i1> %kept{i} to {mask}",
            ]
            kept = f"%mask{i}"
        rest = [f"{part} zeroinitializer", f"{mask} {kept}", f"i32 {_NOW}"]
        lines.append(f"  %r{i} = call {part} @llvm.x86.avx512.mask.{llvm}.{suffix}.512({', '.join(given + rest)})")
    return "\n".join([*lines, *together("r", ctype, lanes, width), "}", ""])
