"""``Size``: an integer expression over named symbols, with its value in the case at hand.

Code that computes with sizes computes with it as with an integer. A comparison answers for the case at hand, and its record keeps
the answer as a guard; so does everything that must have Python's own integer, such as an index, a key or a text. What was computed
is right for all values of the symbols for which the guards hold, whatever the code does.

PyTorch's symbolic shapes work so, too: an answer from a hint, and a guard.
"""

from __future__ import annotations

import operator
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from tvmdml.sizes.record import Record

Terms = tuple[tuple[tuple[int, ...], int], ...]
"""A polynomial: products of atoms, by their numbers in the record, and their factors. In order; no factor is 0."""


class Size:
    """An integer that is a polynomial of a record's atoms. To ``isinstance`` it is an ``int``."""

    __slots__ = ("record", "terms", "value")

    def __init__(self, record: Record, terms: Terms, value: int) -> None:
        """Not public: ``Record.symbol`` makes the first ones.

        Args:
            record: what knows the atoms, and keeps guards.
            terms: the polynomial, which is no constant.
            value: its value in the case at hand.
        """
        self.record, self.terms, self.value = record, terms, value

    @property  # type: ignore[misc] # functions in C that need an int call __index__ all the same
    def __class__(self) -> type:
        """``int``."""
        return int

    def own(self) -> int:
        """Python's own integer. The record holds for this value only from now on."""
        self.record.specialize(self)
        return self.value

    def _other(self, other: Any) -> Any:
        """The operand of an operation: a size of this record, an integer, or ``None`` for what is not known here."""
        if type(other) is Size:
            return other if other.record is self.record else other.own()
        return int(other) if type(other) in (int, bool) else None

    # -- Arithmetic

    def __add__(self, other: Any) -> Any:
        if type(other) is float:
            return self.own() + other
        operand = self._other(other)
        return NotImplemented if operand is None else self.record.added(self, operand, 1)

    __radd__ = __add__

    def __sub__(self, other: Any) -> Any:
        if type(other) is float:
            return self.own() - other
        operand = self._other(other)
        return NotImplemented if operand is None else self.record.added(self, operand, -1)

    def __rsub__(self, other: Any) -> Any:
        return -self + other

    def __mul__(self, other: Any) -> Any:
        if type(other) is float:
            return self.own() * other
        operand = self._other(other)
        return NotImplemented if operand is None else self.record.multiplied(self, operand)

    __rmul__ = __mul__

    def __floordiv__(self, other: Any) -> Any:
        if type(other) is float:
            return self.own() // other
        operand = self._other(other)
        return NotImplemented if operand is None else self.record.divided(self, operand)

    def __rfloordiv__(self, other: Any) -> Any:
        if type(other) is float:
            return other // self.own()
        operand = self._other(other)
        return NotImplemented if operand is None else self.record.divided(operand, self)

    def __mod__(self, other: Any) -> Any:
        if type(other) is float:
            return self.own() % other
        operand = self._other(other)
        return NotImplemented if operand is None else self.record.remainder(self, operand)

    def __rmod__(self, other: Any) -> Any:
        if type(other) is float:
            return other % self.own()
        operand = self._other(other)
        return NotImplemented if operand is None else self.record.remainder(operand, self)

    def __divmod__(self, other: Any) -> Any:
        return self // other, self % other

    def __rdivmod__(self, other: Any) -> Any:
        return other // self, other % self

    def __truediv__(self, other: Any) -> Any:
        return self.own() / other

    def __rtruediv__(self, other: Any) -> Any:
        return other / self.own()

    def __neg__(self) -> Any:
        return self.record.multiplied(self, -1)

    def __pos__(self) -> Any:
        return self

    def __abs__(self) -> Any:
        return -self if self < 0 else self

    def __ceil__(self) -> Any:
        return self

    __floor__ = __trunc__ = __ceil__

    def __round__(self, digits: int | None = None) -> Any:
        return self if digits is None else round(self.own(), digits)

    def bit_length(self) -> int:
        """As of an ``int``; a guard keeps the octave."""
        bits = self.value.bit_length()
        if self < 0:
            return (-self).bit_length()  # type: ignore[no-any-return] # a size or an int
        return bits if 1 << bits >> 1 <= self < 1 << bits else 0  # it is: the comparisons leave guards

    def __lshift__(self, other: Any) -> Any:
        return self * (1 << int(other))

    def __rlshift__(self, other: Any) -> Any:
        return other << self.own()

    def __rshift__(self, other: Any) -> Any:
        return self // (1 << int(other))

    def __rrshift__(self, other: Any) -> Any:
        return other >> self.own()

    def __and__(self, other: Any) -> Any:
        mask = int(other)
        return self % (mask + 1) if mask > 0 and not mask & (mask + 1) else self.own() & mask

    __rand__ = __and__

    def __or__(self, other: Any) -> Any:
        return self.own() | other

    __ror__ = __or__

    def __xor__(self, other: Any) -> Any:
        return self.own() ^ other

    __rxor__ = __xor__

    def __invert__(self) -> Any:
        return -self - 1

    def __pow__(self, other: Any) -> Any:
        return self * self if type(other) is int and other == 2 else self.own() ** other

    def __rpow__(self, other: Any) -> Any:
        return other ** self.own()

    # -- Comparisons

    def __lt__(self, other: Any) -> Any:
        return self._asked(other, -1, operator.lt)

    def __le__(self, other: Any) -> Any:
        return self._asked(other, 0, operator.le)

    def __ge__(self, other: Any) -> Any:
        answer = self._asked(other, -1, operator.lt)
        return answer if answer is NotImplemented else not answer

    def __gt__(self, other: Any) -> Any:
        answer = self._asked(other, 0, operator.le)
        return answer if answer is NotImplemented else not answer

    def _asked(self, other: Any, most: int, compare: Any) -> Any:
        """Whether the difference is at most this."""
        if type(other) is float:
            return compare(self.own(), other)
        operand = self._other(other)
        if operand is None:
            return NotImplemented
        difference = self.record.added(self, operand, -1)
        return self.record.at_most(difference, most) if type(difference) is Size else difference <= most

    def __eq__(self, other: Any) -> Any:
        if type(other) is float:
            return self.own() == other
        operand = self._other(other)
        if operand is None:
            return NotImplemented
        difference = self.record.added(self, operand, -1)
        return self.record.is_zero(difference) if type(difference) is Size else difference == 0

    def __ne__(self, other: Any) -> Any:
        answer = self.__eq__(other)
        return answer if answer is NotImplemented else not answer

    def __bool__(self) -> bool:
        return not self.record.is_zero(self)

    # -- What is Python's own

    def __hash__(self) -> int:
        return hash(self.own())

    def __index__(self) -> int:
        return self.own()

    def __int__(self) -> int:
        return self.own()

    def __float__(self) -> float:
        return float(self.own())

    def __repr__(self) -> str:
        return repr(self.own())

    def __format__(self, spec: str) -> str:
        return format(self.own(), spec)

    def __reduce__(self) -> Any:
        return int, (self.own(),)
