"""Quotients and square roots of float32, and fused sums and remainders of float32 and float64, correctly rounded on every device.

Vulkan allows errors of several units in the last place, and a device may flush subnormals. So the device divides the significands
only, which gives nearly all bits; integer arithmetic then finds the remainder, the missing bits and the rounding. The remainder is
small, so its low 32 bits are enough.

A device's ``Fma`` may round the product, too. Its ``FRem`` is wrong by a whole divisor where the quotient is large.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Protocol

from tvmdml.targets.vulkan.spirv_tables import FLOAT, UINT, Scalar

_INT = Scalar("int", 32)
_SIGN, _MAGNITUDE, _INFINITY, _NAN, _FRACTION, _HIDDEN = 0x80000000, 0x7FFFFFFF, 0x7F800000, 0x7FC00000, 0x7FFFFF, 0x800000
_BELOW_QUOTIENT, _BELOW_ROOT = 32, 16
"""More than a device's quotient or root may be too large, in units of the last bit that is computed here."""


class ExactArithmetic(Protocol):
    """What this module needs of ``Arithmetic``."""

    def constant(self, scalar: Scalar, value: float) -> int:
        """A constant."""

    def binary(self, node: str, scalar: Scalar, a: int, b: int) -> int:
        """``Add``, ``BitwiseOr`` …"""

    def compare(self, node: str, scalar: Scalar, a: int, b: int) -> int:
        """``LT``, ``NE`` …"""

    def select(self, scalar: Scalar, condition: int, a: int, b: int) -> int:
        """The first value if the condition holds, otherwise the second."""

    def cast(self, source: Scalar, target: Scalar, value: int) -> int:
        """The value in another type."""

    def bits(self, source: Scalar, target: Scalar, value: int) -> int:
        """The same bits as another type."""

    def words(self, value: int) -> tuple[int, int]:
        """The low and the high 32 bits of a float64."""

    def of_words(self, low: int, high: int) -> int:
        """The float64 with these bits."""

    def leading_zeros(self, scalar: Scalar, value: int) -> int:
        """The number of zero bits above the highest set bit, as an int32."""

    def repeated(self, times: int, scalar: Scalar, value: int, step: Callable[[int], int]) -> int:
        """The value after a step is done so many times (an int32), or not at all if that is below 1."""

    def both(self, a: int, b: int) -> int:
        """Whether both truth values hold."""

    def any(self, a: int, b: int) -> int:
        """Whether one of two truth values holds."""

    def approximate_quotient(self, a: int, b: int) -> int:
        """The device's quotient of two normal float32."""

    def approximate_root(self, value: int) -> int:
        """The device's square root of a normal float32."""


class _Words:
    """Short names for steps with the bits of a float type, as integers."""

    def __init__(self, steps: ExactArithmetic, scalar: Scalar = FLOAT) -> None:
        self.steps = steps
        self.word = Scalar("uint", scalar.bits)
        self.fraction_bits = {32: 23, 64: 52}[scalar.bits]

    def n(self, value: int) -> int:
        return self.steps.constant(self.word, value)

    def op(self, node: str, a: int, b: int) -> int:
        return self.steps.binary(node, self.word, a, b)

    def has(self, node: str, a: int, b: int) -> int:
        return self.steps.compare(node, self.word, a, b)

    def pick(self, condition: int, a: int, b: int) -> int:
        return self.steps.select(self.word, condition, a, b)

    def parts(self, magnitude: int) -> tuple[int, int]:
        """The significand of a magnitude, its highest bit set, and the biased exponent (int32), which is below 1 for subnormals."""
        hidden = 1 << self.fraction_bits
        fraction = self.op("BitwiseAnd", magnitude, self.n(hidden - 1))
        exponent = self.steps.cast(self.word, _INT, self.op("RShift", magnitude, self.n(self.fraction_bits)))
        above = self.steps.constant(_INT, self.word.bits - 1 - self.fraction_bits)
        zeros = self.steps.binary("Sub", _INT, self.steps.leading_zeros(self.word, fraction), above)
        # The significand of zero is 0, and no shift is larger than its bits.
        moved = self.op("LShift", fraction, self.steps.cast(_INT, self.word, zeros))
        subnormal = self.has("LT", magnitude, self.n(hidden))
        below = self.steps.binary("Sub", _INT, self.steps.constant(_INT, 1), zeros)
        whole = self.op("BitwiseOr", fraction, self.n(hidden))
        return self.pick(subnormal, moved, whole), self.steps.select(_INT, subnormal, below, exponent)

    def rounded(self, bits: int, drop: int, sticky: int) -> int:
        """A number without its lowest bits, halves to even; ``sticky``: whether anything but zeros follows it."""
        one = self.n(1)
        kept = self.op("RShift", bits, drop)
        unit = self.op("LShift", one, drop)
        rest = self.op("BitwiseAnd", bits, self.op("Sub", unit, one))
        half = self.op("RShift", unit, one)
        odd = self.has("NE", self.op("BitwiseAnd", kept, one), self.n(0))
        tie = self.steps.both(self.has("EQ", rest, half), self.steps.any(sticky, odd))
        up = self.steps.any(self.has("GT", rest, half), tie)
        return self.pick(up, self.op("Add", kept, one), kept)


def quotient(steps: ExactArithmetic, a: int, b: int) -> int:
    """``a / b`` for float32."""
    w = _Words(steps)
    first, second = (steps.bits(FLOAT, UINT, value) for value in (a, b))
    sign = w.op("BitwiseAnd", w.op("BitwiseXor", first, second), w.n(_SIGN))
    x, y = (w.op("BitwiseAnd", value, w.n(_MAGNITUDE)) for value in (first, second))
    (mx, ex), (my, ey) = w.parts(x), w.parts(y)
    my = w.pick(w.has("EQ", my, w.n(0)), w.n(_HIDDEN), my)
    # The quotient of the significands, from 2**24 to 2**26, so with at least one bit too many.
    near = steps.approximate_quotient(steps.cast(_INT, FLOAT, mx), steps.cast(_INT, FLOAT, my))
    near = steps.binary("Mul", FLOAT, near, steps.constant(FLOAT, 2.0**25))
    low = w.op("Sub", steps.cast(FLOAT, UINT, near), w.n(_BELOW_QUOTIENT))
    left = w.op("Sub", w.op("LShift", mx, w.n(25)), w.op("Mul", low, my))
    more = w.op("Div", left, my)
    sticky = w.has("NE", w.op("Sub", left, w.op("Mul", more, my)), w.n(0))
    bits = w.op("Add", low, more)
    short = w.has("LT", bits, w.n(1 << 25))
    bits = w.pick(short, w.op("LShift", bits, w.n(1)), bits)
    exponent = steps.binary("Add", _INT, steps.binary("Sub", _INT, ex, ey), steps.constant(_INT, 127))
    one, none = steps.constant(_INT, 1), steps.constant(_INT, 0)
    exponent = steps.select(_INT, short, steps.binary("Sub", _INT, exponent, one), exponent)
    normal = steps.compare("GT", _INT, exponent, none)
    below = steps.binary("Min", _INT, steps.binary("Sub", _INT, steps.constant(_INT, 3), exponent), steps.constant(_INT, 28))
    drop = steps.cast(_INT, UINT, steps.select(_INT, normal, steps.constant(_INT, 2), below))
    field = steps.cast(_INT, UINT, steps.select(_INT, normal, steps.binary("Sub", _INT, exponent, one), none))
    found = w.op("Add", w.rounded(bits, drop, sticky), w.op("LShift", field, w.n(23)))
    found = w.pick(steps.compare("GE", _INT, exponent, steps.constant(_INT, 255)), w.n(_INFINITY), found)
    x_zero, y_zero = (w.has("EQ", value, w.n(0)) for value in (x, y))
    x_infinite, y_infinite = (w.has("EQ", value, w.n(_INFINITY)) for value in (x, y))
    found = w.pick(steps.any(x_zero, y_infinite), w.n(0), found)
    found = w.pick(steps.any(x_infinite, y_zero), w.n(_INFINITY), found)
    nan = steps.any(steps.both(x_zero, y_zero), steps.both(x_infinite, y_infinite))
    for value in (x, y):
        nan = steps.any(nan, w.has("GT", value, w.n(_INFINITY)))
    return steps.bits(UINT, FLOAT, w.op("BitwiseOr", w.pick(nan, w.n(_NAN), found), sign))


def root(steps: ExactArithmetic, value: int) -> int:
    """The square root of a float32: of -0 it is -0, and of other negative numbers NaN."""
    w = _Words(steps)
    whole = steps.bits(FLOAT, UINT, value)
    m, exponent = w.parts(w.op("BitwiseAnd", whole, w.n(_MAGNITUDE)))
    exponent = steps.binary("Add", _INT, exponent, steps.constant(_INT, 129))  # positive, and odd for an odd power of two
    odd_power = w.has("NE", w.op("BitwiseAnd", steps.cast(_INT, UINT, exponent), w.n(1)), w.n(0))
    m = w.pick(odd_power, w.op("LShift", m, w.n(1)), m)
    near = steps.binary("Mul", FLOAT, steps.cast(_INT, FLOAT, m), steps.constant(FLOAT, 2.0**-23))
    near = steps.binary("Mul", FLOAT, steps.approximate_root(near), steps.constant(FLOAT, 2.0**24))
    bits = w.op("Sub", steps.cast(FLOAT, UINT, near), w.n(_BELOW_ROOT))
    left = w.op("Sub", w.op("LShift", m, w.n(25)), w.op("Mul", bits, bits))
    for step in (16, 8, 4, 2, 1):
        cost = w.op("Add", w.op("Mul", bits, w.n(2 * step)), w.n(step * step))
        fits = w.has("GE", left, cost)
        left = w.pick(fits, w.op("Sub", left, cost), left)
        bits = w.pick(fits, w.op("Add", bits, w.n(step)), bits)
    kept = w.rounded(bits, w.n(1), w.has("NE", left, w.n(0)))
    field = w.op("Sub", w.op("RShift", steps.cast(_INT, UINT, exponent), w.n(1)), w.n(2))
    found = w.op("Add", kept, w.op("LShift", field, w.n(23)))
    found = w.pick(w.has("GT", whole, w.n(_INFINITY)), w.n(_NAN), found)
    same = steps.any(w.has("EQ", whole, w.n(_INFINITY)), w.has("EQ", w.op("BitwiseAnd", whole, w.n(_MAGNITUDE)), w.n(0)))
    return steps.bits(UINT, FLOAT, w.pick(same, whole, found))


def remainder(steps: ExactArithmetic, scalar: Scalar, a: int, b: int) -> int:
    """C's fmod: what is left of ``a`` after subtracting a whole multiple of ``b``; for float32 and float64. It is exact.

    This is long division of the significands, in as many steps as the exponents differ by, whatever the device takes for 0.
    """
    w = _Words(steps, scalar)
    sign_bit, hidden = 1 << scalar.bits - 1, 1 << w.fraction_bits
    infinity = w.n((sign_bit - 1) & -hidden)
    first, second = (steps.bits(scalar, w.word, value) for value in (a, b))
    x, y = (w.op("BitwiseAnd", value, w.n(sign_bit - 1)) for value in (first, second))
    (mx, ex), (my, ey) = w.parts(x), w.parts(y)
    y_zero, none, one = w.has("EQ", y, w.n(0)), steps.constant(_INT, 0), steps.constant(_INT, 1)

    def less(value: int) -> int:
        return w.pick(w.has("GE", value, my), w.op("Sub", value, my), value)

    # (If the divisor is 0, the result is not used.)
    rest = steps.repeated(steps.binary("Sub", _INT, ex, ey), w.word, less(mx), lambda rest: less(w.op("LShift", rest, w.n(1))))
    # In units of the divisor's last bit: normalized again, as far as the exponent allows.
    above = steps.constant(_INT, scalar.bits - 1 - w.fraction_bits)
    zeros = steps.binary("Sub", _INT, steps.leading_zeros(w.word, rest), above)
    most = steps.binary("Sub", _INT, ey, one)
    up = steps.binary("Min", _INT, zeros, most)
    raised = steps.compare("GE", _INT, up, none)
    by = steps.cast(_INT, w.word, steps.select(_INT, raised, up, steps.binary("Sub", _INT, none, up)))
    bits = w.pick(raised, w.op("LShift", rest, by), w.op("RShift", rest, by))
    field = w.op("LShift", steps.cast(_INT, w.word, steps.binary("Sub", _INT, most, up)), w.n(w.fraction_bits))
    found = w.pick(w.has("EQ", rest, w.n(0)), w.n(0), w.op("Add", bits, field))
    found = w.op("BitwiseOr", w.pick(w.has("LT", x, y), x, found), w.op("BitwiseAnd", first, w.n(sign_bit)))
    nan = steps.any(y_zero, steps.any(w.has("GE", x, infinity), w.has("GT", y, infinity)))
    return steps.bits(w.word, scalar, w.pick(nan, w.op("BitwiseOr", infinity, w.n(hidden >> 1)), found))


def fused(steps: ExactArithmetic, scalar: Scalar, a: int, b: int, c: int) -> int:
    """``a * b + c``, rounded once, unless a part of it is below the normal numbers, or a factor next to the largest.

    Boldo's and Melquiond's way: the product and the sum are two floats each, and what their roundings lose is rounded to odd.
    """
    parts: _Single | _Double = _Single(steps) if scalar == FLOAT else _Double(steps)

    def real(node: str, a: int, b: int) -> int:
        return steps.binary(node, scalar, a, b)

    def halves(x: int) -> tuple[int, int]:
        high = parts.upper(x)
        return high, real("Sub", x, high)

    def total(a: int, b: int) -> tuple[int, int]:
        found = real("Add", a, b)
        back = real("Sub", found, a)
        return found, real("Add", real("Sub", a, real("Sub", found, back)), real("Sub", b, back))

    (a_high, a_low), (b_high, b_low) = halves(a), halves(b)
    product = real("Mul", a, b)
    rest = real("Sub", real("Mul", a_high, b_high), product)
    for one, other in ((a_high, b_low), (a_low, b_high), (a_low, b_low)):
        rest = real("Add", rest, real("Mul", one, other))
    low, lower = total(c, rest)
    high, low = total(product, low)
    some, lost = total(low, lower)
    found = real("Add", high, parts.odd(some, lost))
    plain = real("Add", product, c)
    return steps.select(scalar, parts.is_finite(plain), found, plain)


class _Single(_Words):
    """The bits of float32 that a fused sum needs."""

    def bits(self, value: int) -> int:
        return self.steps.bits(FLOAT, UINT, value)

    def upper(self, value: int) -> int:
        """The nearest number with half of the bits."""
        up = self.op("Add", self.bits(value), self.n(1 << 11))
        return self.steps.bits(UINT, FLOAT, self.op("BitwiseAnd", up, self.n(0xFFFFF000)))

    def odd(self, value: int, lost: int) -> int:
        """The number, or its neighbour toward what was lost, so that the last bit is 1 if anything was."""
        bits, other = self.bits(value), self.bits(lost)
        differ = self.has("GE", self.op("BitwiseXor", bits, other), self.n(_SIGN))
        change = self.pick(differ, self.n(0xFFFFFFFF), self.n(1))
        even = self.has("EQ", self.op("BitwiseAnd", bits, self.n(1)), self.n(0))
        inexact = self.has("NE", self.op("BitwiseAnd", other, self.n(_MAGNITUDE)), self.n(0))
        found = self.pick(self.steps.both(even, inexact), self.op("Add", bits, change), bits)
        return self.steps.bits(UINT, FLOAT, found)

    def is_finite(self, value: int) -> int:
        return self.has("LT", self.op("BitwiseAnd", self.bits(value), self.n(_MAGNITUDE)), self.n(_INFINITY))


class _Double(_Words):
    """The same of float64, in two words each: a device may have no 64-bit integers."""

    def upper(self, value: int) -> int:
        low, high = self.steps.words(value)
        up = self.op("Add", low, self.n(1 << 26))
        carried = self.op("Add", high, self.pick(self.has("LT", up, low), self.n(1), self.n(0)))
        return self.steps.of_words(self.op("BitwiseAnd", up, self.n(0xF8000000)), carried)

    def odd(self, value: int, lost: int) -> int:
        (low, high), (other_low, other_high) = self.steps.words(value), self.steps.words(lost)
        differ = self.has("GE", self.op("BitwiseXor", high, other_high), self.n(_SIGN))
        even = self.has("EQ", self.op("BitwiseAnd", low, self.n(1)), self.n(0))
        rest = self.op("BitwiseOr", other_low, self.op("BitwiseAnd", other_high, self.n(_MAGNITUDE)))
        changes = self.steps.both(even, self.has("NE", rest, self.n(0)))
        borrow = self.pick(self.has("EQ", low, self.n(0)), self.n(1), self.n(0))
        new_low = self.pick(differ, self.op("Sub", low, self.n(1)), self.op("BitwiseOr", low, self.n(1)))
        new_high = self.pick(differ, self.op("Sub", high, borrow), high)
        return self.steps.of_words(self.pick(changes, new_low, low), self.pick(changes, new_high, high))

    def is_finite(self, value: int) -> int:
        _, high = self.steps.words(value)
        return self.has("LT", self.op("BitwiseAnd", high, self.n(_MAGNITUDE)), self.n(0x7FF00000))
