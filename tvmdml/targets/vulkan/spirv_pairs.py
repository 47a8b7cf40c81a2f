"""Integers of 64 bits on devices that have none (``shaderInt64``): each is a vector of two words, the low one first.

Memory, selections and bitwise instructions take such vectors as they are. What carries from word to word is here.
"""

from __future__ import annotations

from typing import Protocol

from tvmdml.targets.vulkan.spirv_module import Module
from tvmdml.targets.vulkan.spirv_tables import FLOAT, UINT, Scalar

_INT = Scalar("int", 32)
_LONG = Scalar("uint", 64)
_ORDERS = {"LT": (False, False), "GE": (False, True), "GT": (True, False), "LE": (True, True)}
"""Each order as "less than": whether the operands change places, and whether the result is negated."""


class PairArithmetic(Protocol):
    """What is needed of ``Arithmetic``."""

    module: Module

    def constant(self, scalar: Scalar, value: float | int | bool) -> int:
        """A constant."""

    def binary(self, node: str, scalar: Scalar, a: int, b: int) -> int:
        """An operation of two values."""

    def compare(self, node: str, scalar: Scalar, a: int, b: int) -> int:
        """A comparison of two values."""

    def select(self, scalar: Scalar, condition: int, a: int, b: int) -> int:
        """One of two values."""

    def cast(self, source: Scalar, target: Scalar, value: int) -> int:
        """A conversion."""

    def math(self, name: str, scalar: Scalar, *values: int) -> int:
        """A float function."""

    def bits(self, source: Scalar, target: Scalar, value: int) -> int:
        """The same bits as another type."""

    def negation(self, truth: int) -> int:
        """Not."""

    def both(self, a: int, b: int) -> int:
        """Whether both hold."""

    def any(self, a: int, b: int) -> int:
        """Whether one of two holds."""

    def leading_zeros(self, scalar: Scalar, value: int) -> int:
        """The zero bits above the highest set bit."""


class Pairs:
    """Operations on pairs of words. Arguments and results are ids."""

    def __init__(self, steps: PairArithmetic) -> None:
        self._steps = steps
        self._module = steps.module
        self._words: dict[int, tuple[int, int]] = {}
        """The words of pairs that were made of them."""

    def join(self, low: int, high: int) -> int:
        """The pair of two words."""
        number = self._module.pure("CompositeConstruct", self._module.vector(UINT, 2), low, high)
        return self.know(number, low, high)

    def know(self, value: int, low: int, high: int) -> int:
        """Record the words of a pair, which are computed wherever it is."""
        self._words[value] = low, high
        return value

    def split(self, value: int) -> tuple[int, int]:
        """The words of a pair."""
        if value in self._words:
            return self._words[value]
        low, high = (self._module.pure("CompositeExtract", self._module.type(UINT), value, word) for word in (0, 1))
        return low, high

    def widened(self, value: int, is_signed: bool) -> int:
        """A word with the high word that its sign asks for."""
        high = self._word("RShift", value, self._number(31), _INT) if is_signed else self._number(0)
        return self.join(value, high)

    # -- Operators

    def binary(self, node: str, scalar: Scalar, a: int, b: int) -> int:
        """A binary operation that is no bitwise one."""
        if node in ("LShift", "RShift"):
            return self._shifted(node, scalar, a, self.split(b)[0])
        if node in ("Div", "Mod"):
            return self._divided(node, scalar, a, b)
        (a0, a1), (b0, b1) = self.split(a), self.split(b)
        if node == "Mul":
            low, high = self._product(a0, b0)
            for own, other in ((a0, b1), (a1, b0)):
                if other != self._number(0) and own != self._number(0):
                    high = self._word("Add", high, self._word("Mul", own, other))
            return self.join(low, high)
        low, high = self._word(node, a0, b0), self._word(node, a1, b1)
        carry = self._less(low, a0) if node == "Add" else self._less(a0, b0)
        return self.join(low, self._word(node, high, self._steps.select(UINT, carry, self._number(1), self._number(0))))

    def compare(self, node: str, scalar: Scalar, a: int, b: int) -> int:
        """A comparison; the result is a bool."""
        steps = self._steps
        if node in ("EQ", "NE"):
            same = steps.both(*(steps.compare("EQ", UINT, x, y) for x, y in zip(self.split(a), self.split(b), strict=True)))
            return same if node == "EQ" else steps.negation(same)
        swapped, negated = _ORDERS[node]
        (a0, a1), (b0, b1) = (self.split(value) for value in ((b, a) if swapped else (a, b)))
        above = steps.compare("LT", Scalar(scalar.kind, 32), a1, b1)
        below = steps.both(steps.compare("EQ", UINT, a1, b1), self._less(a0, b0))
        less = steps.any(above, below)
        return steps.negation(less) if negated else less

    def _shifted(self, node: str, scalar: Scalar, value: int, by: int) -> int:
        """The word that is shifted into keeps what the other one loses; from 32 bits on it is all that the other one had."""
        is_left = node == "LShift"
        low, high = self.split(value)
        moved, other = (low, high) if is_left else (high, low)
        kind = UINT if is_left else Scalar(scalar.kind, 32)
        within, back = self._word("BitwiseAnd", by, self._number(31)), "RShift" if is_left else "LShift"
        rest = self._word("Sub", self._number(31), within)  # in two steps: no word is shifted by 32
        lost = self._word(back, self._word(back, moved, self._number(1)), rest)
        kept = self._word(node, moved, within, kind)
        filled = self._word("BitwiseOr", self._word(node, other, within), lost)
        empty = self._word("RShift", moved, self._number(31), kind) if not is_left and kind == _INT else self._number(0)
        is_far = self._steps.compare("NE", UINT, self._word("BitwiseAnd", by, self._number(32)), self._number(0))
        near, far = (self._steps.select(UINT, is_far, x, y) for x, y in ((empty, kept), (kept, filled)))
        return self.join(near, far) if is_left else self.join(far, near)

    def _divided(self, node: str, scalar: Scalar, a: int, b: int) -> int:
        """The quotient, cut, or of unsigned integers the remainder. Of a division by 0 it is any number."""
        if scalar.kind == "int":
            first, second = (self._magnitude(value) for value in (a, b))
            quotient = self._quotient(first[0], second[0])
            differ = self._steps.compare("LT", _INT, self._word("BitwiseXor", first[1], second[1]), self._number(0))
            return self._steps.select(scalar, differ, self._negative(quotient), quotient)
        quotient = self._quotient(a, b)
        return quotient if node == "Div" else self.binary("Sub", scalar, a, self.binary("Mul", scalar, quotient, b))

    def _quotient(self, a: int, b: int) -> int:
        """Long division, a bit at a time from the highest one that is set. Words are divided by the device."""
        steps, module, pair = self._steps, self._module, self._module.vector(UINT, 2)
        (a0, a1), (b0, b1) = self.split(a), self.split(b)
        zero, one = steps.constant(_LONG, 0), self._number(1)
        are_words = steps.compare("EQ", UINT, self._word("BitwiseOr", a1, b1), self._number(0))
        of_words = self._word("Div", a0, self._word("Max", b0, one))
        length = self._word("Sub", self._number(64), steps.leading_zeros(_LONG, a))
        length = steps.select(UINT, are_words, self._number(0), length)

        def step(rest: int, quotient: int, left: int) -> list[int]:
            left = self._word("Sub", left, one)
            bit = self._word("BitwiseAnd", self.split(self._shifted("RShift", _LONG, a, left))[0], one)
            is_above = steps.compare("LT", _INT, self.split(rest)[1], self._number(0))  # twice the rest has 65 bits
            low, high = self.split(self._shifted("LShift", _LONG, rest, one))
            rest = self.join(self._word("BitwiseOr", low, bit), high)
            fits = steps.any(is_above, self.compare("GE", _LONG, rest, b))
            low, high = self.split(self._shifted("LShift", _LONG, quotient, one))
            low = self._word("BitwiseOr", low, steps.select(UINT, fits, one, self._number(0)))
            return [steps.select(_LONG, fits, self.binary("Sub", _LONG, rest, b), rest), self.join(low, high), left]

        _, quotient, _ = module.repeat(
            [pair, pair, module.type(UINT)],
            [zero, zero, length],
            lambda rest, quotient, left: steps.compare("NE", UINT, left, self._number(0)),
            step,
        )
        return steps.select(_LONG, are_words, self.join(of_words, self._number(0)), quotient)

    # -- Conversions

    def to_float(self, source: Scalar, target: Scalar, value: int) -> int:
        """The nearest float32 or float64."""
        steps = self._steps
        if target.bits == 64:  # one rounding, in the sum
            low, high = self.split(value)
            above = steps.binary(
                "Mul", target, steps.cast(Scalar(source.kind, 32), target, high), steps.constant(target, float(1 << 32))
            )
            return steps.binary("Add", target, above, steps.cast(UINT, target, low))
        magnitude, sign = self._magnitude(value) if source.kind == "int" else (value, self._number(0))
        zeros = steps.leading_zeros(_LONG, magnitude)
        low, high = self.split(self._shifted("LShift", _LONG, magnitude, zeros))
        sticky = steps.select(UINT, steps.compare("NE", UINT, low, self._number(0)), self._number(1), self._number(0))
        nearest = steps.cast(UINT, FLOAT, self._word("BitwiseOr", high, sticky))
        exponent = self._word("LShift", self._word("Sub", self._number(127 + 32), zeros), self._number(23))
        signed = self._word("BitwiseOr", exponent, self._word("BitwiseAnd", sign, self._number(1 << 31)))
        return steps.cast(FLOAT, target, steps.binary("Mul", FLOAT, nearest, steps.bits(UINT, FLOAT, signed)))

    def of_float(self, source: Scalar, value: int) -> int:
        """A float32 or float64 within the range, cut."""
        steps = self._steps
        whole = steps.math("trunc", source, steps.math("fabs", source, value))
        high = steps.cast(source, UINT, steps.binary("Mul", source, whole, steps.constant(source, 2.0**-32)))
        above = steps.binary("Mul", source, steps.cast(UINT, source, high), steps.constant(source, 2.0**32))
        pair = self.join(steps.cast(source, UINT, steps.binary("Sub", source, whole, above)), high)
        is_negative = steps.compare("LT", source, value, steps.constant(source, 0.0))
        return steps.select(_LONG, is_negative, self._negative(pair), pair)

    # -- Within

    def _word(self, node: str, a: int, b: int, scalar: Scalar = UINT) -> int:
        return self._steps.binary(node, scalar, a, b)

    def _number(self, value: int) -> int:
        return self._steps.constant(UINT, value)

    def _less(self, a: int, b: int) -> int:
        return self._steps.compare("LT", UINT, a, b)

    def _negative(self, value: int) -> int:
        return self.binary("Sub", _LONG, self._steps.constant(_LONG, 0), value)

    def _magnitude(self, value: int) -> tuple[int, int]:
        """The absolute value, and the word with the sign."""
        _, high = self.split(value)
        is_negative = self._steps.compare("LT", _INT, high, self._number(0))
        return self._steps.select(_LONG, is_negative, self._negative(value), value), high

    def _product(self, a: int, b: int) -> tuple[int, int]:
        """Both words of the product of two words."""
        product = self._module.pure("UMulExtended", self._module.two_words(), a, b)
        low, high = (self._module.pure("CompositeExtract", self._module.type(UINT), product, word) for word in (0, 1))
        return low, high
