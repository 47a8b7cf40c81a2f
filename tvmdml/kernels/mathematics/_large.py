"""Payne and Hanek's reduction: a float of any size, divided by pi / 2, from the bits of 2 / pi that matter for it.

The float is an integer times a power of two. Bits of 2 / pi whose product with it is a multiple of 4 are left out, and so are those
far behind the point. Words are done in halves, so that no product, and no sum, overflows.
"""

from __future__ import annotations

import itertools
import math
from typing import Any

from tvmdml.kernels import tensorir_values as T
from tvmdml.kernels.mathematics._steps import FloatFormat, fixed
from tvmdml.kernels.mathematics.coefficients import QUADRANT, TWO_OVER_PI

_HIGH_BITS = {32: 12, 64: 31}
"""The number of bits of the first part of ``QUADRANT``."""
_LIMBS = 6
"""How many halves of a word of 2 / pi are multiplied: the last one only rounds."""


def reduced_large(x: Any) -> tuple[Any, Any]:
    """The rest of x and the number of its quadrant, for x that is not near 0; of infinities and NaN they are any numbers."""
    form = FloatFormat(x)
    half = form.width // 2
    bits = fixed(T.reinterpret(x, form.word))

    def word(number: int) -> Any:
        return T.like(bits, number)

    low = word((1 << half) - 1)
    exponent = (bits >> word(form.fraction)) & word((1 << (form.width - 1 - form.fraction)) - 1)
    mantissa = fixed((bits & word((1 << form.fraction) - 1)) | word(1 << form.fraction))
    # The first bit of 2 / pi that counts, with one limb of zeros before the point: 2 to the power of the exponent times it is 2.
    first = fixed(exponent - word(form.bias + form.fraction + 2 - half))
    limbs = _window([0, *TWO_OVER_PI[form.dtype]], first, half)
    m0, m1 = fixed(mantissa & low), fixed(mantissa >> word(half))
    carry = word(0)
    digits: list[Any] = []
    for i in reversed(range(_LIMBS - 1)):
        lower = limbs[i + 1]
        total = fixed(((m0 * limbs[i]) & low) + ((m0 * lower) >> word(half)) + m1 * lower + carry)
        digits.insert(0, fixed(total & low))
        carry = fixed(total >> word(half))
    top = digits[0]
    # Above a half, the angle is counted back from the next quadrant.
    past = fixed((top >> word(half - 3)) & word(1))
    flip = fixed(past * low)
    digits = [digit ^ flip for digit in digits]
    digits[0] = digits[0] & word((1 << (half - 3)) - 1)
    scaled = [
        fixed(T.rounded(_to_float(fixed(digit), form) * T.like(x, 2.0 ** (2 - half * (i + 1))))) for i, digit in enumerate(digits)
    ]
    sign = fixed((bits >> word(form.width - 1)) ^ past)
    rest = T.reinterpret(fixed(_angle(scaled)), form.word) | (sign << word(form.width - 1))
    quadrant = fixed(((top >> word(half - 2)) + past) & word(3))
    negative = bits >> word(form.width - 1)
    quadrant = fixed(((quadrant ^ (negative * word(3))) + negative) & word(3))
    return fixed(T.reinterpret(rest, form.dtype)), quadrant


def _angle(turns: list[Any]) -> Any:
    """The sum of such parts of a quadrant, the largest first, times pi / 2: but for the last sum almost without rounding."""
    first, *others = turns
    rest = others.pop()
    for part in reversed(others):
        rest = fixed(rest + part)
    total = fixed(first + rest)
    lost = fixed(rest - fixed(total - first))
    form, parts = FloatFormat(total), QUADRANT[T.scalar_type(total)]
    # The product of the high bits of both is exact.
    bits = T.reinterpret(total, form.word)
    low = _HIGH_BITS[form.width]
    high = fixed(T.reinterpret((bits >> T.like(bits, low)) << T.like(bits, low), form.dtype))
    low_part = fixed(T.rounded((total - high) + lost) * T.like(total, math.pi / 2))
    product = T.rounded(high * T.like(total, parts[0]))
    return product + (T.rounded(high * T.like(total, parts[1] + parts[2])) + T.rounded(low_part))


def _window(limbs: list[int], first: Any, half: int) -> list[Any]:
    """The limbs from a bit on."""
    dtype = first

    def word(number: int) -> Any:
        return T.like(dtype, number)

    index, shift = fixed(first >> word(half.bit_length() - 1)), fixed(first & word(half - 1))
    found: list[Any] = [word(limb) for limb in limbs]
    step = 1 << ((len(limbs) - _LIMBS - 2).bit_length() - 1)
    while step:
        is_set = T.expression((index & word(step)) != word(0))
        found = [fixed(T.Select(is_set, found[i + step], found[i])) for i in range(_LIMBS + step)]
        step //= 2
    low = word((1 << half) - 1)
    pairs = itertools.pairwise(found)  # one more than the limbs
    return [fixed((((one << word(half)) | other) >> (word(half) - shift)) & low) for one, other in pairs]


def _to_float(digit: Any, form: FloatFormat) -> Any:
    """An integer of few bits as a float: its bits below those of 2**fraction, less that."""
    power = T.like(digit, (form.bias + form.fraction) << form.fraction)
    return fixed(T.reinterpret(digit | power, form.dtype)) - T.like(T.reinterpret(digit, form.dtype), 2.0**form.fraction)
