"""Vectors of several registers in LLVM IR: taken apart, and put together from what became of each register."""

from __future__ import annotations


def _order(first: int, count: int) -> str:
    return f"<{count} x i32> <{', '.join(f'i32 {lane}' for lane in range(first, first + count))}>"


def apart(value: str, ctype: str, lanes: int, register: int) -> list[str]:
    """The instructions that make ``%x0``, ``%x1`` … of ``%x``, each as long as a register."""
    whole, count = f"<{lanes} x {ctype}>", lanes // register
    return [
        f"  %{value}{i} = shufflevector {whole} %{value}, {whole} poison, {_order(i * register, register)}" for i in range(count)
    ]


def together(value: str, ctype: str, lanes: int, register: int) -> list[str]:
    """The instructions that return the vector of ``%x0``, ``%x1`` …: pairs are joined until one is left."""
    lines, found, width = [], [f"%{value}{i}" for i in range(lanes // register)], register
    while len(found) > 1:
        half, width = f"<{width} x {ctype}>", 2 * width
        joined = [f"%{value}{width}_{i}" for i in range(len(found) // 2)]
        for i, one in enumerate(joined):
            lines.append(f"  {one} = shufflevector {half} {found[2 * i]}, {half} {found[2 * i + 1]}, {_order(0, width)}")
        found = joined
    return [*lines, f"  ret <{lanes} x {ctype}> {found[0]}"]
