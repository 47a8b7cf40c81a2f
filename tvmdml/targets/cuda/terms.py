"""``Term``: a piece of CUDA C++ that stands for a value, and TensorIR's operators in C++.

Arithmetic follows the contracts, not the shortest code: there is no contraction, comparisons with NaN are false, and float16 is
computed in float32 and rounded once, which gives the nearest float16.

Integers wrap. Overflow of signed integers is undefined in C++, so values from memory are computed as unsigned. Values made only of
sizes, thread indices and loop variables stay signed: TensorIR guarantees that these never overflow, and the compiler may use
this.
"""

from __future__ import annotations

import ctypes
import functools
import math
import operator
import struct
from collections.abc import Callable
from typing import NamedTuple

HALF = "float16"
# How loosely a piece of C++ binds: one that binds more loosely than its place allows gets parentheses.
PRIMARY, UNARY, PRODUCT, QUOTIENT, SUM, SHIFT, ORDER, EQUALITY, AND, XOR, OR, BOTH, EITHER, CHOICE = range(14)
_NOTHING: frozenset[str] = frozenset()
EVERYTHING = "*"
"""In place of the memory that code reads: the code must run exactly once, in its place."""


class Refusal(Exception):
    """CUDA has no equivalent."""


class Term(NamedTuple):
    """The expression of one lane. In a vector's term, ``lane`` stands for the lane's number."""

    dtype: str
    """The type of a lane, by TensorIR's name."""
    code: str
    lanes: int = 1
    rank: int = PRIMARY
    zeros: int = 0
    """The number of an integer's lowest bits that are known to be zero."""
    number: int | None = None
    """The value of an integer constant."""
    data: bool = False
    """Whether it depends on the contents of memory, and may have any value of its type."""
    reads: frozenset[str] = _NOTHING
    """The memory that the code reads: the value changes when that is written to."""
    held: str = ""
    """The code's type in C++, if it differs from ``dtype`` and has the same bits."""
    depth: int = 0
    """The nesting depth of the code."""


TYPES = {
    "bool": "bool", HALF: "__half", "float32": "float", "float64": "double",
    **{f"{kind}{bits}": f"{kind}{bits}_t" for kind in ("int", "uint") for bits in (8, 16, 32, 64)},
}  # fmt: skip
"""CUDA's name of each type in a register."""
SIZES = {name: 1 if name == "bool" else int(name.lstrip("uintfloa")) // 8 for name in TYPES}
"""The bytes of an element."""
_OPERATORS = {
    "Add": ("+", SUM), "Sub": ("-", SUM), "Mul": ("*", PRODUCT), "Div": ("/", QUOTIENT), "Mod": ("%", QUOTIENT),
    "LShift": ("<<", SHIFT), "RShift": (">>", SHIFT), "And": ("&&", BOTH), "Or": ("||", EITHER),
    "BitwiseAnd": ("&", AND), "BitwiseXor": ("^", XOR), "BitwiseOr": ("|", OR),
    "EQ": ("==", EQUALITY), "NE": ("!=", EQUALITY),
    "LT": ("<", ORDER), "LE": ("<=", ORDER), "GT": (">", ORDER), "GE": (">=", ORDER),
}  # fmt: skip
BINARY = {*_OPERATORS, "Min", "Max"}
"""The nodes that ``binary`` handles."""
_COMPARISONS = {"EQ", "NE", "LT", "LE", "GT", "GE"}
_OVERFLOWING = {"Add", "Sub", "Mul", "LShift"}
_MODULAR = {*_OVERFLOWING, "BitwiseAnd", "BitwiseOr", "BitwiseXor"}
"""The result has the same bits for signed and unsigned operands."""
_LOOSEST = {
    PRODUCT: UNARY, QUOTIENT: UNARY, SUM: QUOTIENT, SHIFT: UNARY, ORDER: SUM, EQUALITY: SUM, AND: UNARY, XOR: UNARY, OR: UNARY,
    BOTH: EQUALITY, EITHER: EQUALITY, CHOICE: SUM,
}  # fmt: skip
"""The operands that an operator may have without parentheses, for readers who do not know all of C++'s precedences."""
_CHAINED = {PRODUCT, SUM, AND, XOR, OR, BOTH, EITHER}
"""Operators whose left operand may have the same rank."""
_ZEROS: dict[str, Callable[[int, int], int]] = {
    "Add": min, "Sub": min, "Mul": operator.add, "BitwiseAnd": max, "BitwiseOr": min, "BitwiseXor": min,
}  # fmt: skip
_ALL_ZEROS = 64

MATH = {
    "acos", "acosh", "asin", "asinh", "atan", "atan2", "atanh", "cbrt", "ceil", "copysign", "cos", "cosh", "erf", "erfc", "exp",
    "exp10", "exp2", "expm1", "fabs", "floor", "fma", "fmax", "fmod", "hypot", "ldexp", "lgamma", "log", "log10", "log1p", "log2",
    "nearbyint", "nextafter", "pow", "rint", "sin", "sinh", "sqrt", "tan", "tanh", "tgamma", "trunc",
}  # fmt: skip
"""Float functions, by C's name of the double version: CUDA's exact ones, never those of ``--use_fast_math``."""


def is_float(dtype: str) -> bool:
    """Whether it is a float type."""
    return dtype.startswith("float")


# -- Pieces of C++ ----------------------------------------------------------------------------------------------------


def call(dtype: str, function: str, *arguments: Term, zeros: int = 0) -> Term:
    """A function's result."""
    return _made(dtype, f"{function}({', '.join([argument.code for argument in arguments])})", PRIMARY, arguments, zeros)


def as_type(dtype: str, term: Term, zeros: int = 0) -> Term:
    """C++'s conversion of a value to another type. (As a C cast: a call-like form could be parsed as a declaration.)"""
    code = term.code if term.rank <= UNARY else f"({term.code})"
    return _made(dtype, f"({TYPES[dtype]}){code}", UNARY, (term,), zeros)


def _made(dtype: str, code: str, rank: int, operands: tuple[Term, ...], zeros: int = 0, held: str = "") -> Term:
    _, _, lanes, _, _, _, data, reads, _, depth = operands[0]
    for other in operands[1:]:
        lanes, data, depth = max(lanes, other.lanes), data or other.data, max(depth, other.depth)
        if other.reads:
            reads |= other.reads
    return Term(dtype, code, lanes, rank, zeros, None, data, reads, held, depth + 1)


def _infix(dtype: str, node: str, a: Term, b: Term, zeros: int = 0, held: str = "") -> Term:
    symbol, rank = _OPERATORS[node]
    left = a.code if a.rank <= _LOOSEST[rank] or (a.rank == rank and rank in _CHAINED) else f"({a.code})"
    right = b.code if b.rank <= _LOOSEST[rank] and b.code[0] != "-" else f"({b.code})"
    return _made(dtype, f"{left} {symbol} {right}", rank, (a, b), zeros, held)


def _prefix(dtype: str, symbol: str, term: Term) -> Term:
    return _made(dtype, f"{symbol}{term.code}" if term.rank == PRIMARY else f"{symbol}({term.code})", UNARY, (term,))


def typed(term: Term) -> Term:
    """The value with exactly its own type in C++, for places where that matters."""
    dtype = term.dtype
    if term.held:
        return as_type(dtype, term, term.zeros)
    if term.number is None or dtype in ("int32", "uint32", "uint64"):
        return term
    if dtype == "int64":
        return term if term.rank == PRIMARY and not term.code.isdecimal() else term._replace(code=f"{term.code}ll")
    return term._replace(code=f"({TYPES[dtype]}){term.code}", rank=UNARY)


def signed(term: Term) -> Term:
    """The value as signed, if the code is unsigned."""
    return typed(term) if term.held else term


def wide(term: Term) -> Term:
    """The value in the type of computation: float32 for a float16."""
    return call("float32", "__half2float", term) if term.dtype == HALF else signed(term)


def narrowed(dtype: str, term: Term) -> Term:
    """A computed value in its own type: C++ computes narrow integers as int, and a float16 is computed as float32."""
    if dtype == HALF:
        return call(dtype, "__float2half_rn", term)
    return as_type(dtype, term, term.zeros) if SIZES[dtype] < 4 else term


# -- Constants --------------------------------------------------------------------------------------------------------


def constant(dtype: str, value: float | int) -> Term:
    """A number."""
    if dtype == "bool":
        return Term(dtype, "true" if value else "false")
    if is_float(dtype):
        code = _float(dtype, float(value))
        return Term(dtype, code, rank=UNARY if code[0] == "-" else PRIMARY)
    return _integer(dtype, int(value))


@functools.lru_cache(1 << 12)
def _integer(dtype: str, number: int) -> Term:
    bits = 8 * SIZES[dtype]
    number &= (1 << bits) - 1
    if dtype[0] == "i" and number >> bits - 1:
        number -= 1 << bits
    zeros = (number & -number).bit_length() - 1 if number else _ALL_ZEROS
    if bits >= 32 and number == -(1 << bits - 1):  # C++ has no literal for it: the number without the minus sign is too large
        return Term(dtype, f"({number + 1}{'ll' if bits == 64 else ''} - 1)", zeros=zeros, number=number)
    suffix = {"uint32": "u", "uint64": "ull"}.get(dtype, "")
    return Term(dtype, f"{number}{suffix}", rank=PRIMARY if number >= 0 else UNARY, zeros=zeros, number=number)


def _float(dtype: str, value: float) -> str:
    if dtype == HALF:
        return f"__ushort_as_half({_half_bits(value):#06x})"
    if dtype == "float32":
        value = ctypes.c_float(value).value  # the nearest float32: only its digits may be rounded again
    if not math.isfinite(value):
        (bits,) = (
            struct.unpack("<I", struct.pack("<f", value)) if dtype == "float32" else struct.unpack("<Q", struct.pack("<d", value))
        )
        return f"__uint_as_float({bits:#x}u)" if dtype == "float32" else f"__longlong_as_double({bits:#x}ll)"
    if dtype == "float64":
        return repr(value)
    text = f"{value:.9g}"  # enough digits to distinguish neighbouring float32 values
    return f"{text}f" if "." in text or "e" in text else f"{text}.0f"


def _half_bits(value: float) -> int:
    try:
        packed = struct.pack("<e", value)
    except OverflowError:  # it rounds to infinity
        packed = struct.pack("<e", math.copysign(math.inf, value))
    return struct.unpack("<H", packed)[0]


# -- Operators --------------------------------------------------------------------------------------------------------


def binary(node: str, a: Term, b: Term) -> Term:
    """``Add``, ``Max``, ``EQ`` …

    Raises:
        Refusal: the type has no such operator.
    """
    dtype = a.dtype
    if node in _COMPARISONS:
        a, b = wide(a), wide(b)
        if node == "NE" and is_float(dtype):  # ordered, as in TVM's CPU code: false with NaN
            return call("bool", "differ", a, b)
        return _infix("bool", node, a, b)
    if node in ("Min", "Max"):
        return _extreme("least" if node == "Min" else "greatest", a, b)
    if is_float(dtype):
        if node == "Mod":
            return math_call("fmod", a, b)
        if node not in ("Add", "Sub", "Mul", "Div"):
            raise Refusal(f"there is no {node} of {dtype}")
        return narrowed(dtype, _infix(dtype, node, wide(a), wide(b)))
    if dtype == "bool":
        return _of_truths(node, a, b)
    return _of_integers(node, a, b)


def _extreme(function: str, a: Term, b: Term) -> Term:
    dtype = a.dtype
    # C++ treats constants, and sums with them, as int or long long; a float16 is a float during computation.
    exact = is_float(dtype) or dtype in ("bool", "int32", "uint32")
    if not exact or a.held or b.held:
        function = f"{function}<{TYPES[dtype]}>"
        return call(dtype, function, a, b, zeros=min(a.zeros, b.zeros))
    found = call(dtype, function, wide(a), wide(b), zeros=min(a.zeros, b.zeros))
    return narrowed(dtype, found) if dtype == HALF else found


def _of_truths(node: str, a: Term, b: Term) -> Term:
    if node == "BitwiseXor":
        return _infix("bool", "NE", a, b)
    return _infix("bool", node, a, b, held="" if node in ("And", "Or") else "int32")


def _of_integers(node: str, a: Term, b: Term) -> Term:
    dtype = a.dtype
    size, known = SIZES[dtype], _known_zeros(node, a, b)
    if a.number is not None and (b.number is not None or node in ("LShift", "RShift")):
        a = typed(a)  # only this operand gives the result its width
    if node in ("LShift", "RShift"):
        b = signed(b)
    if node not in _MODULAR:
        return narrowed(dtype, _infix(dtype, node, signed(a), signed(b), known))
    if node in _OVERFLOWING and not (a.held or (b.held and node != "LShift")):
        # A product of two uint16 overflows int, the type it is computed in.
        if dtype[0] == "i" and size >= 4 and (a.data or b.data):
            a, b = _without_sign(node, a, b)
        elif (dtype[0] == "i" and node == "LShift" and a.data) or (dtype == "uint16" and node == "Mul"):
            a = as_type("uint32", a)._replace(held="uint32")
    return narrowed(dtype, _infix(dtype, node, a, b, known, a.held or (b.held if node != "LShift" else "")))


def _without_sign(node: str, a: Term, b: Term) -> tuple[Term, Term]:
    """Signed operands with one of them converted to unsigned: C++ then converts the other as well."""
    dtype = "u" + a.dtype
    if node != "LShift" and b.number is not None:
        return a, constant(dtype, b.number)._replace(held=dtype)
    if a.number is not None:
        return constant(dtype, a.number)._replace(held=dtype), b
    return as_type(dtype, a)._replace(dtype=a.dtype, held=dtype), b


def _known_zeros(node: str, a: Term, b: Term) -> int:
    if node == "LShift" and b.number is not None:
        return min(a.zeros + b.number, _ALL_ZEROS)
    rule = _ZEROS.get(node)
    return 0 if rule is None else min(rule(a.zeros, b.zeros), _ALL_ZEROS)


def math_call(name: str, *arguments: Term) -> Term:
    """A float function, such as ``trunc``.

    Raises:
        Refusal: CUDA does not have it for the type.
    """
    dtype = arguments[0].dtype
    if not is_float(dtype) or (name == "nextafter" and dtype == HALF):
        raise Refusal(f"there is no {name} of {dtype}")
    if dtype == HALF and name in ("fabs", "copysign"):
        return call(dtype, f"{name}_half", *arguments)
    return narrowed(dtype, call(dtype, name if dtype == "float64" else f"{name}f", *map(wide, arguments)))


def cast(term: Term, dtype: str) -> Term:
    """The value converted to another type."""
    source = term.dtype
    if source == dtype:
        return term
    if dtype == "bool":
        return _infix(dtype, "NE", wide(term), Term(dtype, "0"))  # NaN is true
    if is_float(dtype):
        return _cast_to_float(term, dtype)
    if term.number is not None:
        return constant(dtype, term.number)._replace(lanes=term.lanes)
    if is_float(source):
        # A value too large for a narrow integer is too large for int as well, or wraps: it adds no undefined behaviour.
        whole = as_type("int32" if SIZES[dtype] < 4 else dtype, wide(term))
        return narrowed(dtype, whole)._replace(data=True)
    if term.held == dtype:
        return term._replace(dtype=dtype, held="")
    if SIZES[dtype] > SIZES[source]:
        term = signed(term)
    found = as_type(dtype, term, term.zeros)
    return found._replace(data=False) if source == "bool" else found


def _cast_to_float(term: Term, dtype: str) -> Term:
    source = term.dtype
    if dtype == HALF:
        if source == "float64":
            return call(dtype, "__double2half", term)
        # Integers that float32 would round are larger than the largest float16 anyway.
        return call(dtype, "__float2half_rn", term if source == "float32" else as_type("float32", signed(term)))
    if (source, dtype) == (HALF, "float32"):
        return wide(term)
    return as_type(dtype, wide(term))


def inverse(term: Term) -> Term:
    """Every bit flipped."""
    if term.dtype == "bool":
        return _prefix("bool", "!", term)
    found = _prefix(term.dtype, "~", typed(term) if term.number is not None else term)
    return found._replace(held=term.held) if SIZES[term.dtype] >= 4 else narrowed(term.dtype, found)


def select(condition: Term, a: Term, b: Term) -> Term:
    """The first value if the condition holds, otherwise the second; the other value is not computed."""
    held = a.held if a.held == b.held else ""
    if not held:
        a, b = typed(a), typed(b)
    pieces = [one.code if one.rank <= loosest else f"({one.code})" for one, loosest in ((condition, EQUALITY), (a, SUM), (b, SUM))]
    found = _made(a.dtype, "{} ? {} : {}".format(*pieces), CHOICE, (condition, a, b), min(a.zeros, b.zeros), held)
    return found._replace(data=a.data or b.data) if condition.data else found
