"""Elements of few bits in words of 32 bits: how they become floats in registers, on all targets.

Bits become a float without a conversion: set as the last bits of a float whose first ones say ``2**23``, they add their value to
it. Where they are further up in a word, the float has fewer bits behind them. A difference with ``2**23`` and the zero point is
exact.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from typing import Any, ClassVar

from tvmdml.kernels import tensorir_values as T

_MANTISSA = 23


class FewBits:
    """How elements are stored; words and vectors of words have elements without signs, counted from the lower end of the range."""

    KEEP: ClassVar[Any] = staticmethod(T.let)
    """How a value is computed once."""

    bits: int
    is_signed: bool
    zero: str
    """Zero points: none, ``bits`` or ``floats``."""

    @property
    def per_word(self) -> int:
        """The elements of a word."""
        return 32 // self.bits

    @property
    def steps(self) -> int:
        """The elements of a word that become floats without a shift of it."""
        return min(4, 16 // self.bits)

    @property
    def middle(self) -> int:
        """What has the sign of signed elements, and the zero point of others where there is none."""
        return 1 << (self.bits - 1)

    @property
    def offset(self) -> int:
        """How much elements without signs exceed what a zero point that is no bits is subtracted from."""
        return 0 if self.zero and not self.is_signed else self.middle

    @property
    def start(self) -> int:
        """The first bits of the float to which the first element of a word adds its value."""
        return (127 + _MANTISSA) << _MANTISSA

    def starts(self, first: Any) -> list[Any]:
        """Those of each step, by the first one."""
        return [self.KEEP(first - T.const(step * self.bits << _MANTISSA, "uint32")) for step in range(self.steps)]

    def signless(self, word: Any) -> Any:
        """Words of elements as they are stored, as those of elements without signs."""
        every = sum(self.middle << at for at in range(0, 32, self.bits))
        return self.KEEP(word ^ T.splat(T.const(every, "uint32"), T.lanes(word))) if self.is_signed else word

    def plain(self, element: Any) -> Any:
        """An element, or a vector of some, as one without a sign."""
        return element ^ T.splat(T.const(self.middle, "uint32"), T.lanes(element)) if self.is_signed else element

    def less(self, zeros: Any, lanes: int = 1) -> list[Any]:
        """What is subtracted in each step of ``floats``, by zero points as they are stored, which matter if they are bits."""
        bases = [2.0 ** (_MANTISSA - step * self.bits) for step in range(self.steps)]
        if self.zero == "bits":
            own = self.KEEP(T.cast(self.plain(zeros), "float32"))
            return [self.KEEP(own + T.splat(T.const(base, "float32"), lanes)) for base in bases]
        return [T.splat(T.const(base + self.offset, "float32"), lanes) for base in bases]

    def floats(self, word: Any, less: Sequence[Any], own: Any, starts: Sequence[Any] = ()) -> list[Any]:
        """The elements of words less their zero points, each of a word in turn.

        Args:
            word: words of elements without signs.
            less: for each step, what is subtracted.
            own: zero points that are floats, which are subtracted from exact elements; ``None`` if they are not.
            starts: of each step, the first bits of the float; by default constants.
        """
        lanes, elements = T.lanes(word), []

        def vector(value: int) -> Any:
            return T.splat(T.const(value, "uint32"), lanes)

        for number in range(self.per_word):
            shift, step = divmod(number, self.steps)
            if shift and not step:
                word = self.KEEP(word >> vector(self.steps * self.bits))
            value = self.element(word, step, less[step], starts[step] if starts else None)
            elements.append(self.KEEP(value - own) if self.zero == "floats" else value)
        return elements

    def element(self, word: Any, step: int, less: Any, start: Any = None) -> Any:
        """An element that becomes a float without a shift of its words. ``less`` and ``start``, if given, are those of its step."""
        vector = partial(T.splat, count=T.lanes(word))
        mask, first = (((1 << self.bits) - 1) << (step * self.bits)), self.start - (step * self.bits << _MANTISSA)
        raised = (word & vector(T.const(mask, "uint32"))) | (vector(T.const(first, "uint32")) if start is None else start)
        return self.KEEP(T.reinterpret(raised, "float32") - less)
