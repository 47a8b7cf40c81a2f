"""A float64 rounded to an integral value, or to a float32 for a further rounding, in steps that are exact on every device.

Drivers cannot be trusted with GLSL.std.450's functions for float64. On processors without AVX-512, Mesa's driver for the CPU
rounds 1.5 to 1, leaves numbers past 2**24 as they are, and loses the sign of a zero. Only addition, subtraction and comparison are
used here.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Protocol

from tvmdml.targets.vulkan.spirv_tables import FLOAT, UINT, Scalar

_ALL_WHOLE = 2.0**52
"""From here on every float64 is an integer."""


class RoundingArithmetic(Protocol):
    """What this module needs of ``Arithmetic``."""

    def constant(self, scalar: Scalar, value: float) -> int:
        """A constant."""

    def binary(self, node: str, scalar: Scalar, a: int, b: int) -> int:
        """``Add``, ``Sub`` or ``Mul``."""

    def compare(self, node: str, scalar: Scalar, a: int, b: int) -> int:
        """``LT``, ``NE`` …"""

    def select(self, scalar: Scalar, condition: int, a: int, b: int) -> int:
        """The first value if the condition holds, otherwise the second."""

    def copy_sign(self, scalar: Scalar, magnitude: int, sign: int) -> int:
        """The first float with the second one's sign."""

    def math(self, name: str, scalar: Scalar, *values: int) -> int:
        """``fabs``."""

    def cast(self, source: Scalar, target: Scalar, value: int) -> int:
        """The value in another type."""

    def bits(self, source: Scalar, target: Scalar, value: int) -> int:
        """The same bits as another type."""


def odd_float32(steps: RoundingArithmetic, scalar: Scalar, value: int) -> int:
    """A float64 as a float32: itself, or of the two neighbours the one whose last bit is 1.

    A float16 of this float32 is rounded once: the last bit keeps a number beside the middle of two float16 away from it. Drivers
    that convert by way of the nearest float32 round twice; Mesa's driver for the CPU does.
    """
    near = steps.cast(scalar, FLOAT, value)
    back = steps.cast(FLOAT, scalar, near)
    larger = steps.compare("GT", scalar, steps.math("fabs", scalar, back), steps.math("fabs", scalar, value))
    one, zero = steps.constant(UINT, 1), steps.constant(UINT, 0)
    down = steps.binary("Sub", UINT, steps.bits(FLOAT, UINT, near), steps.select(UINT, larger, one, zero))
    odd = steps.bits(UINT, FLOAT, steps.binary("BitwiseOr", UINT, down, one))
    return steps.select(FLOAT, steps.compare("NE", scalar, back, value), odd, near)


def rounded(steps: RoundingArithmetic, name: str, scalar: Scalar, value: int) -> int:
    """The value rounded by one of ``ROUNDINGS``. NaN and infinities stay as they are, and zeros keep their signs."""
    return ROUNDINGS[name](steps, scalar, value)


def _whole(steps: RoundingArithmetic, scalar: Scalar, magnitude: int) -> int:
    """A number that is not negative, rounded down.

    Adding 2**52 rounds to an integer, up or down, whatever the device's rounding mode is. What was rounded up is one too much.
    """
    large = steps.constant(scalar, _ALL_WHOLE)
    near = steps.binary("Sub", scalar, steps.binary("Add", scalar, magnitude, large), large)
    less = steps.binary("Sub", scalar, near, steps.constant(scalar, 1.0))
    down = steps.select(scalar, steps.compare("GT", scalar, near, magnitude), less, near)
    return steps.select(scalar, steps.compare("LT", scalar, magnitude, large), down, magnitude)


def _trunc(steps: RoundingArithmetic, scalar: Scalar, value: int) -> int:
    return steps.copy_sign(scalar, _whole(steps, scalar, steps.math("fabs", scalar, value)), value)


def _floor(steps: RoundingArithmetic, scalar: Scalar, value: int) -> int:
    whole = _trunc(steps, scalar, value)
    less = steps.binary("Sub", scalar, whole, steps.constant(scalar, 1.0))
    return steps.select(scalar, steps.compare("GT", scalar, whole, value), less, whole)


def _ceil(steps: RoundingArithmetic, scalar: Scalar, value: int) -> int:
    whole = _trunc(steps, scalar, value)
    more = steps.binary("Add", scalar, whole, steps.constant(scalar, 1.0))
    return steps.select(scalar, steps.compare("LT", scalar, whole, value), more, whole)


def _round_even(steps: RoundingArithmetic, scalar: Scalar, value: int) -> int:
    magnitude = steps.math("fabs", scalar, value)
    whole = _whole(steps, scalar, magnitude)
    rest = steps.binary("Sub", scalar, magnitude, whole)  # NaN for infinity, so that no comparison holds
    half = steps.binary("Mul", scalar, whole, steps.constant(scalar, 0.5))
    odd = steps.compare("NE", scalar, half, _whole(steps, scalar, half))
    more = steps.binary("Add", scalar, whole, steps.constant(scalar, 1.0))
    middle = steps.constant(scalar, 0.5)
    even = steps.select(scalar, odd, more, whole)
    up = steps.select(scalar, steps.compare("GT", scalar, rest, middle), more, whole)
    return steps.copy_sign(scalar, steps.select(scalar, steps.compare("EQ", scalar, rest, middle), even, up), value)


ROUNDINGS: dict[str, Callable[[RoundingArithmetic, Scalar, int], int]] = {
    "Ceil": _ceil,
    "Floor": _floor,
    "RoundEven": _round_even,
    "Trunc": _trunc,
}
"""By the name that GLSL.std.450 gives the function."""
