"""A sum with a product, rounded once, in LLVM IR: for processors that have no such instruction.

Boldo's and Melquiond's way: the product and the sum are two floats each, and what their roundings lose is rounded to odd. It is
right unless a factor is next to the largest number, or a part below the normal numbers.
"""

from __future__ import annotations

import functools


def name(dtype: str, lanes: int) -> str:
    """The name of the function for a type."""
    return f"tvmdml_fused_{dtype}x{lanes}"


@functools.cache
def source(dtype: str, lanes: int) -> str:
    """That function."""
    return _function({"float32": "float", "float64": "double"}[dtype], dtype, lanes)


class _Lines:
    """Instructions, which are numbered."""

    def __init__(self, ctype: str, lanes: int) -> None:
        self.width = {"float": 32, "double": 64}[ctype]
        self.lanes = lanes
        self.real, self.word, self.truth = (self.many(one) for one in (ctype, f"i{self.width}", "i1"))
        self.lines: list[str] = []

    def many(self, one: str) -> str:
        return one if self.lanes == 1 else f"<{self.lanes} x {one}>"

    def bits(self, number: int) -> str:
        """An integer constant."""
        return str(number) if self.lanes == 1 else f"<{', '.join([f'i{self.width} {number}'] * self.lanes)}>"

    def add(self, text: str) -> str:
        self.lines.append(f"  %{len(self.lines)} = {text}\n".replace("%", "%v", 1))
        return f"%v{len(self.lines) - 1}"

    def real_op(self, op: str, a: str, b: str) -> str:
        return self.add(f"{op} {self.real} {a}, {b}")

    def word_op(self, op: str, a: str, b: str) -> str:
        return self.add(f"{op} {self.word} {a}, {b}")

    def as_word(self, a: str) -> str:
        return self.add(f"bitcast {self.real} {a} to {self.word}")

    def as_real(self, a: str) -> str:
        return self.add(f"bitcast {self.word} {a} to {self.real}")

    def halves(self, a: str) -> tuple[str, str]:
        """A float as a sum of two with half of the bits each."""
        cut = {32: 12, 64: 27}[self.width]
        up = self.word_op("add", self.as_word(a), self.bits(1 << (cut - 1)))
        high = self.as_real(self.word_op("and", up, self.bits(-1 << cut)))
        return high, self.real_op("fsub", a, high)

    def sum(self, a: str, b: str) -> tuple[str, str]:
        """A sum, and what its rounding loses."""
        total = self.real_op("fadd", a, b)
        back = self.real_op("fsub", total, a)
        first = self.real_op("fsub", a, self.real_op("fsub", total, back))
        return total, self.real_op("fadd", first, self.real_op("fsub", b, back))


def _function(ctype: str, dtype: str, lanes: int) -> str:
    f = _Lines(ctype, lanes)
    a, b, c = "%a", "%b", "%c"
    (a_high, a_low), (b_high, b_low) = f.halves(a), f.halves(b)
    product = f.real_op("fmul", a, b)
    rest = f.real_op("fsub", f.real_op("fmul", a_high, b_high), product)
    for one, other in ((a_high, b_low), (a_low, b_high), (a_low, b_low)):
        rest = f.real_op("fadd", rest, f.real_op("fmul", one, other))
    low, lower = f.sum(c, rest)
    high, low = f.sum(product, low)
    some, lost = f.sum(low, lower)
    bits = f.as_word(some)
    differ = f.word_op("ashr", f.word_op("xor", bits, f.as_word(lost)), f.bits(f.width - 1))
    change = f.word_op("or", differ, f.bits(1))  # to the next number toward what is lost
    is_even = f.add(f"icmp eq {f.word} {f.word_op('and', bits, f.bits(1))}, {f.bits(0)}")
    is_inexact = f.add(f"fcmp one {f.real} {lost}, zeroinitializer" if lanes > 1 else f"fcmp one {f.real} {lost}, 0.0")
    inexact = f.add(f"and {f.truth} {is_even}, {is_inexact}")
    moved = f.word_op("add", bits, change)
    odd = f.as_real(f.add(f"select {f.truth} {inexact}, {f.word} {moved}, {f.word} {bits}"))
    found = f.real_op("fadd", high, odd)
    plain = f.real_op("fadd", product, c)
    infinity = {32: 0x7F800000, 64: 0x7FF0000000000000}[f.width]
    size = f.word_op("and", f.as_word(plain), f.bits((1 << (f.width - 1)) - 1))
    finite = f.add(f"icmp ult {f.word} {size}, {f.bits(infinity)}")
    result = f.add(f"select {f.truth} {finite}, {f.real} {found}, {f.real} {plain}")
    arguments = ", ".join(f"{f.real} {one}" for one in (a, b, c))
    head = f"define {f.real} @{name(dtype, lanes)}({arguments}) noinline nounwind willreturn memory(none) {{\n"
    return f"{head}{''.join(f.lines)}  ret {f.real} {result}\n}}\n"
