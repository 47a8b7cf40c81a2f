"""Functions of floats: exp, log, sin … on numbers that each of them is used for, in cache and beyond."""

from __future__ import annotations

from collections.abc import Iterator

from tvmdml.proof.bench.cases import Case, Group, K, M
from tvmdml.proof.bench.work import Operand, Work

SINGLE = Group("functions f32", 1.5)
NARROW = Group("functions f16", 1.5)
SIZES = (("4K", 4 * K), ("64K", 64 * K), ("1M", M), ("16M", 16 * M))
UNIT, POSITIVE, USUAL = "unit", "positive", "usual"
FUNCTIONS = (
    ("exp", USUAL), ("log", POSITIVE), ("sin", USUAL), ("cos", USUAL), ("tan", USUAL), ("asin", UNIT), ("acos", UNIT),
    ("atan", USUAL), ("sinh", USUAL), ("cosh", USUAL), ("tanh", USUAL), ("asinh", USUAL), ("acosh", POSITIVE), ("atanh", UNIT),
    ("erf", USUAL), ("atan_yx", USUAL), ("pow", POSITIVE),
)  # fmt: skip
QUICK = ("exp", "log", "tanh", "sin")


def function(name: str, size: int, data: str, dtype: str = "float32") -> Work:
    """ELEMENT_WISE_EXP, for ``exp`` …"""
    operands = [Operand((size,), dtype, data)]
    if name in ("atan_yx", "pow"):
        operands.append(Operand((size,), dtype, USUAL))
    return Work.on(f"ELEMENT_WISE_{name.upper()}", *operands)


def _cases() -> Iterator[Case]:
    for name, data in FUNCTIONS:
        for point, size in SIZES:
            yield Case(f"{name} f32", point, function(name, size, data), quick=name in QUICK and size == 64 * K, group=SINGLE)
        for point, size in SIZES:
            yield Case(f"{name} f16", point, function(name, size, data, "float16"), group=NARROW)


CASES = tuple(_cases())
