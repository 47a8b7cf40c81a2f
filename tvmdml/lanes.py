"""``Lanes``: numbers that have a value in each of several cases, so that code which computes with sizes runs once for many sizes.

A comparison has one answer: that of the case that decides. Cases with another answer leave. So does a case where a number becomes
Python's own, as an index or a key, and is another one. So what is computed is right for all that are left, whatever the code does.
"""

from __future__ import annotations

import operator
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

_MOST = 1 << 62
"""Numbers are below this."""
_MOST_EXACT = 1 << 53
"""Integers up to this are floats, too."""


class TooLarge(ArithmeticError):
    """A number is too large to be computed in lanes."""


class Cases:
    """Some cases, of which all are left at first; one decides, and stays."""

    def __init__(self, count: int, first: int) -> None:
        self.left = np.ones(count, np.bool_)
        self.first = first

    def agree(self, values: Any) -> Any:
        """Keep the cases where a value is that of the one that decides, which is returned as a Python object."""
        self.left &= values == values[self.first]
        return values[self.first].item()


class Lanes:
    """A number with a value in each case. To ``isinstance`` it is an ``int`` or a ``float``."""

    __slots__ = ("_cases", "_most", "_values")

    def __init__(self, cases: Cases, values: Any, most: int) -> None:
        """Not public: ``together`` makes the first ones. ``most`` is a bound of the integers' absolute values."""
        if most >= _MOST:
            raise TooLarge
        self._cases, self._values, self._most = cases, values, most

    @property  # type: ignore[misc] # functions in C that need an int call __index__ all the same
    def __class__(self) -> type:
        """The type of the number."""
        return float if self._values.dtype.kind == "f" else int

    def values(self) -> list[Any]:
        """The value in each case."""
        found: list[Any] = self._values.tolist()
        return found

    def _own(self) -> Any:
        """The number in the case that decides; others leave."""
        return self._cases.agree(self._values)

    def _other(self, other: Any) -> Any:
        """The operand of an operation: lanes of these cases, a number, or nothing that is known here."""
        if type(other) is Lanes:
            return other if other._cases is self._cases else other._own()
        return other if type(other) in (int, float, bool) else None

    # -- Arithmetic

    def _made(self, values: Any, most: int) -> Any:
        """A result; a plain number if it is the same in all cases."""
        return values[0].item() if (values == values[0]).all() else Lanes(self._cases, values, most)

    def _with(self, other: Any, function: Callable[[Any, Any], Any], most: Callable[[int, int], int], turned: bool = False) -> Any:
        one = self._other(other)
        if one is None:
            return NotImplemented
        values, bound = (one._values, one._most) if type(one) is Lanes else (one, abs(one))
        found = most(self._most, int(bound)) if isinstance(one, int) else 0
        if found >= _MOST:
            raise TooLarge
        return self._made(function(values, self._values) if turned else function(self._values, values), found)

    def __add__(self, other: Any) -> Any:
        return self._with(other, operator.add, operator.add)

    __radd__ = __add__

    def __sub__(self, other: Any) -> Any:
        return self._with(other, operator.sub, operator.add)

    def __rsub__(self, other: Any) -> Any:
        return self._with(other, operator.sub, operator.add, turned=True)

    def __mul__(self, other: Any) -> Any:
        return self._with(other, operator.mul, operator.mul)

    __rmul__ = __mul__

    def _divided(self, other: Any, function: Callable[[Any, Any], Any], most: Callable[[int, int], int], turned: bool) -> Any:
        one = self._other(other)
        divisor = self if turned else one
        if one is None:
            return NotImplemented
        if not divisor:  # cases with another answer leave
            return function(1, 0)  # Python's error
        if type(divisor) is Lanes and not self._cases.left.all():
            divisor = Lanes(self._cases, np.where(self._cases.left, divisor._values, 1), divisor._most)
        return divisor._with(one, function, most, True) if turned else self._with(divisor, function, most)

    def __floordiv__(self, other: Any) -> Any:
        return self._divided(other, operator.floordiv, lambda a, b: a + 1, False)

    def __rfloordiv__(self, other: Any) -> Any:
        return self._divided(other, operator.floordiv, lambda a, b: b + 1, True)

    def __mod__(self, other: Any) -> Any:
        return self._divided(other, operator.mod, lambda a, b: b, False)

    def __rmod__(self, other: Any) -> Any:
        return self._divided(other, operator.mod, lambda a, b: a, True)

    def __divmod__(self, other: Any) -> Any:
        return self // other, self % other

    def _exact(self, *others: Any) -> None:
        """Integers are those that floats have, too."""
        if any(one._most >= _MOST_EXACT if type(one) is Lanes else abs(one) >= _MOST_EXACT for one in (self, *others)):
            raise TooLarge

    def __truediv__(self, other: Any) -> Any:
        if (one := self._other(other)) is None:
            return NotImplemented
        self._exact(one)
        return self._divided(one, operator.truediv, lambda a, b: 0, False)

    def __rtruediv__(self, other: Any) -> Any:
        if (one := self._other(other)) is None:
            return NotImplemented
        self._exact(one)
        return self._divided(one, operator.truediv, lambda a, b: 0, True)

    def __neg__(self) -> Any:
        return Lanes(self._cases, -self._values, self._most)

    def __pos__(self) -> Any:
        return self

    def __abs__(self) -> Any:
        return self._made(abs(self._values), self._most)

    def _rounded(self, function: Callable[[Any], Any]) -> Any:
        if self._values.dtype.kind != "f":
            return self
        if not (abs(self._values) < _MOST_EXACT).all():
            raise TooLarge
        return self._made(function(self._values).astype(np.int64), _MOST_EXACT)

    def __ceil__(self) -> Any:
        return self._rounded(np.ceil)

    def __floor__(self) -> Any:
        return self._rounded(np.floor)

    def __trunc__(self) -> Any:
        return self._rounded(np.trunc)

    def __round__(self, digits: int | None = None) -> Any:
        return self._rounded(np.rint) if digits is None else round(self._own(), digits)

    def bit_length(self) -> Any:
        """As of an int."""
        values = np.array([int(one).bit_length() for one in self._values], np.int64)
        return self._made(values, 64)

    def __rlshift__(self, other: Any) -> Any:
        return other << self._own()

    def __lshift__(self, other: Any) -> Any:
        return self * (1 << int(other))

    def __rshift__(self, other: Any) -> Any:
        return self // (1 << int(other))

    def __and__(self, other: Any) -> Any:
        return self._own() & other

    __rand__ = __and__

    def __or__(self, other: Any) -> Any:
        return self._own() | other

    __ror__ = __or__

    def __xor__(self, other: Any) -> Any:
        return self._own() ^ other

    __rxor__ = __xor__

    def __pow__(self, other: Any) -> Any:
        return self._own() ** other

    def __rpow__(self, other: Any) -> Any:
        return other ** self._own()

    # -- Comparisons, and what is Python's own

    def _compared(self, other: Any, function: Callable[[Any, Any], Any]) -> Any:
        one = self._other(other)
        if one is None:
            return NotImplemented
        if isinstance(self, float) or isinstance(one, float):
            self._exact(one)
        return self._cases.agree(np.asarray(function(self._values, one._values if type(one) is Lanes else one)))

    def __lt__(self, other: Any) -> Any:
        return self._compared(other, operator.lt)

    def __le__(self, other: Any) -> Any:
        return self._compared(other, operator.le)

    def __gt__(self, other: Any) -> Any:
        return self._compared(other, operator.gt)

    def __ge__(self, other: Any) -> Any:
        return self._compared(other, operator.ge)

    def __eq__(self, other: Any) -> Any:
        return self._compared(other, operator.eq)

    def __ne__(self, other: Any) -> Any:
        return self._compared(other, operator.ne)

    def __bool__(self) -> bool:
        return bool(self._compared(0, operator.ne))

    def __hash__(self) -> int:
        return hash(self._own())

    def __index__(self) -> int:
        return operator.index(self._own())

    def __int__(self) -> int:
        return int(self._own())

    def __float__(self) -> float:
        return float(self._own())

    def __repr__(self) -> str:
        return repr(self._own())

    def __format__(self, spec: str) -> str:
        return format(self._own(), spec)

    def __reduce__(self) -> Any:
        return type(self._own()), (self._own(),)


def together(function: Callable[[list[Any]], Any], columns: Sequence[Sequence[int]], first: int = 0) -> tuple[list[int], Any]:
    """Run a function for several cases at once.

    Args:
        function: it takes a number for each column, computes, and returns a value with ``Lanes`` in any place.
        columns: the values of each number, one for each case.
        first: the case that decides.

    Returns:
        The cases that the result is right for, and the result; its lanes have values of these cases, in their order.

    Raises:
        TooLarge: a number is too large.
        Exception: what the function raises for the case that decides.
    """
    cases = Cases(len(columns[0]) if columns else 1, first)
    found = function([_first(cases, np.array(one, np.int64)) for one in columns])
    left = np.flatnonzero(cases.left)
    return left.tolist(), _chosen(found, left)


def _first(cases: Cases, values: Any) -> Any:
    return int(values[0]) if (values == values[0]).all() else Lanes(cases, values, int(abs(values).max()))


def _chosen(value: Any, left: Any) -> Any:
    """The same with the values of some cases."""
    if type(value) is Lanes:
        return Lanes(value._cases, value._values[left], value._most)
    if isinstance(value, tuple):
        parts = [_chosen(one, left) for one in value]
        return tuple(parts) if type(value) is tuple else type(value)(*parts)
    return value


def at(value: Any, case: int) -> Any:
    """A result in one of its cases."""
    if type(value) is Lanes:
        return value._values[case].item()
    if isinstance(value, tuple):
        parts: list[Any] = [one if type(one) is int else at(one, case) for one in value]
        return tuple(parts) if type(value) is tuple else type(value)(*parts)
    return value


def fixed(value: Any) -> Any:
    """A result without lanes, as it is in the case that decides; others leave."""
    if type(value) is Lanes:
        return value._own()
    if isinstance(value, tuple):
        parts = [fixed(one) for one in value]
        return tuple(parts) if type(value) is tuple else type(value)(*parts)
    return value
