"""``Size``: an integer expression over named symbols, with its value in the case at hand.

Code that computes with sizes computes with it as with an integer. A comparison answers for the case at hand, and its record keeps
the answer as a guard; so does everything that must have Python's own integer, such as an index, a key or a text. What was computed
is right for all values of the symbols for which the guards hold, whatever the code does.

PyTorch's symbolic shapes work so, too: an answer from a hint, and a guard.
"""

from __future__ import annotations

import functools
import operator
import re
from collections.abc import Callable
from contextvars import ContextVar
from typing import TYPE_CHECKING, Any, TypeVar

from tvmdml.system import at_hand
from tvmdml.tensors.sizes import polynomials
from tvmdml.tensors.sizes.guards import is_huge
from tvmdml.tensors.sizes.polynomials import Terms

if TYPE_CHECKING:
    from fractions import Fraction


def is_open(value: object) -> bool:
    """Whether a value is a size, and not Python's own integer."""
    return type(value) is Size


def hint(size: Any) -> int:
    """The value in the case at hand. A size that is open is asked nothing: for what decides how fast something is, and no more."""
    return size.value if type(size) is Size else size


def is_one(size: Any) -> bool:
    """Whether a size is 1 in all cases. One that is open counts as another, and is asked nothing."""
    return type(size) is not Size and bool(size == 1)


def are_equal(size: Any, other: Any) -> bool:
    """Whether two sizes are equal in all cases: one expression, if they are open. They are asked nothing."""
    if type(size) is Size or type(other) is Size:
        return type(size) is type(other) and size.record is other.record and size.terms == other.terms
    return bool(size == other)


_F = TypeVar("_F", bound=Callable[..., Any])


def choice(function: _F) -> _F:
    """A schedule's choice: a function of integers and tuples of numbers, which returns such.

    Where sizes are open, it is asked as a whole: the record holds for all cases with the same answer. That is for answers which
    follow from many comparisons, such as the best of a hundred tiles.
    """
    known: Any = functools.lru_cache(1 << 12)(function)

    @functools.wraps(function)
    def call(*given: Any) -> Any:
        record = next((size.record for size in given if type(size) is Size), None)
        return known(*given) if record is None else record.choose(call, given)

    call.is_choice = True  # type: ignore[attr-defined] # a mark
    return call  # type: ignore[return-value] # it has the same arguments


def cached(most: int) -> Callable[[_F], _F]:
    """``functools.lru_cache`` of so many results. Those of open sizes are not cached: they belong to a record."""

    def decorated(function: _F) -> _F:
        known = functools.lru_cache(most)(function)

        @functools.wraps(function)
        def call(*given: Any) -> Any:
            return function(*given) if _has_open(given) else known(*given)

        return call  # type: ignore[return-value] # it has the same arguments

    return decorated


def _has_open(given: tuple[Any, ...]) -> bool:
    return any(type(value) is Size or (type(value) is tuple and _has_open(value)) for value in given)


_KEYS, _MESSAGES = "keys", "messages"
_texts: ContextVar[str] = ContextVar("tvmdml texts of sizes", default="")


def fraction(a: Any, b: Any) -> Fraction:
    """The exact ratio of two sizes. It may be the same in all cases, as that of ``2 * n`` and ``n`` is."""
    at_hand("fractions")
    from fractions import Fraction

    if type(a) is Size and type(b) is Size and a.record.are_proportional(a, b):
        return Fraction(*polynomials.ratio(a.terms, b.terms))  # type: ignore[misc] # it is one
    return Fraction(int(a), int(b))


def key_of(value: Any) -> Any:
    """What is equal for integers that are equal in all cases, and can be a key."""
    return (value.record.number, value.terms) if type(value) is Size else value


def naming_sizes(function: _F) -> _F:
    """A function whose messages have the names of sizes."""

    @functools.wraps(function)
    def call(*given: Any, **options: Any) -> Any:
        with texts_for_messages():
            return function(*given, **options)

    return call  # type: ignore[return-value] # it has the same arguments


class _Texts:
    """Within it, texts of sizes leave no guard."""

    __slots__ = ("_token", "_use")

    def __init__(self, use: str) -> None:
        self._use = use

    def __enter__(self) -> None:
        self._token = _texts.set(self._use)

    def __exit__(self, *_: object) -> None:
        _texts.reset(self._token)


def texts_for_messages() -> _Texts:
    """A size has the names of its symbols, as a caller gave them. A rule's message is made though the rule holds."""
    return _Texts(_MESSAGES)


def texts_for_keys() -> _Texts:
    """A size has the text of its expression, and of its record: equal texts are equal in all cases."""
    return _Texts(_KEYS)


_KEY = re.compile(r"<\d+: \(")


def has_open_sizes(key: str) -> bool:
    """Whether a text that was made within ``texts_for_keys`` is of a size that is open."""
    return _KEY.search(key) is not None


def _is_apart(other: Any) -> bool:
    """Whether a number computes with Python's own integers only."""
    return type(other) is float or (type(other) is int and is_huge(other))


def _operation(compute: Callable[[Any, Size, Any], Any], plain: Callable[[int, float], Any]) -> Any:
    """A method that computes with another size or an integer; beside a float or a huge one, it becomes Python's own integer."""

    def method(self: Size, other: Any) -> Any:
        if type(other) is Size and other.record is self.record:
            return compute(self.record, self, other)
        if _is_apart(other):
            return plain(self.own(), other)
        operand = self._other(other)
        return NotImplemented if operand is None else compute(self.record, self, operand)

    return method


class Size:
    """An integer that is a polynomial of a record's atoms. To ``isinstance`` it is an ``int``."""

    __slots__ = ("record", "terms", "value")

    def __init__(self, record: Any, terms: Terms, value: int) -> None:
        """Not public: ``Record.symbol`` makes the first ones.

        Args:
            record: the ``Record`` that knows the atoms, and keeps guards.
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
        """The operand of an operation: a size of this record, an integer, or ``None`` for what is not known here.

        Raises:
            RuntimeError: a size of another record, which holds for other cases.
        """
        if type(other) is Size:
            if other.record is not self.record:
                raise RuntimeError("sizes of two recordings meet")
            return other
        return int(other) if type(other) in (int, bool) else None

    # -- Arithmetic

    __add__ = __radd__ = _operation(lambda record, a, b: record.added(a, b, 1), operator.add)
    __sub__ = _operation(lambda record, a, b: record.added(a, b, -1), operator.sub)
    __mul__ = __rmul__ = _operation(lambda record, a, b: record.multiplied(a, b), operator.mul)
    __floordiv__ = _operation(lambda record, a, b: record.divided(a, b), operator.floordiv)
    __rfloordiv__ = _operation(lambda record, a, b: record.divided(b, a), lambda a, b: b // a)
    __mod__ = _operation(lambda record, a, b: record.remainder(a, b), operator.mod)
    __rmod__ = _operation(lambda record, a, b: record.remainder(b, a), lambda a, b: b % a)

    def __rsub__(self, other: Any) -> Any:
        return -self + other

    def __divmod__(self, other: Any) -> Any:
        return self // other, self % other

    def __rdivmod__(self, other: Any) -> Any:
        return other // self, other % self

    def __truediv__(self, other: Any) -> Any:
        operand = self._other(other)
        if type(operand) is Size and self.record.are_proportional(self, operand):
            return self.value / operand.value
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
            return (-self).bit_length()  # a size or an int
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
        if _is_apart(other):
            return compare(self.own(), other)
        operand = self._other(other)
        if operand is None:
            return NotImplemented
        key = self.terms, operand.terms if type(operand) is Size else operand, most
        answer = self.record.answers.get(key)
        if answer is None:
            difference = self.record.added(self, operand, -1)
            answer = self.record.at_most(difference, most) if type(difference) is Size else difference <= most
            self.record.answers[key] = answer
        return answer

    def __eq__(self, other: Any) -> Any:
        if _is_apart(other):
            return self.own() == other
        operand = self._other(other)
        if operand is None:
            return NotImplemented
        key = self.terms, operand.terms if type(operand) is Size else operand
        answer = self.record.answers.get(key)
        if answer is None:
            difference = self.record.added(self, operand, -1)
            answer = self.record.is_zero(difference) if type(difference) is Size else difference == 0
            self.record.answers[key] = answer
        return answer

    def __ne__(self, other: Any) -> Any:
        answer = self.__eq__(other)
        return answer if answer is NotImplemented else not answer

    def __bool__(self) -> bool:
        return not self.record.is_zero(self)

    # -- What is Python's own

    @property
    def numerator(self) -> int:
        """Of a fraction, which has Python's own integers."""
        return self.own()

    @property
    def denominator(self) -> int:
        """1."""
        return 1

    def __hash__(self) -> int:
        return hash(self.own())

    def __index__(self) -> int:
        return self.own()

    def __int__(self) -> int:
        return self.own()

    def __float__(self) -> float:
        return float(self.own())

    def __repr__(self) -> str:
        return self._shown("")

    def __format__(self, spec: str) -> str:
        return self._shown(spec)

    def _shown(self, spec: str) -> str:
        if (use := _texts.get()) == _KEYS:
            return f"<{self.record.number}: {self.terms}>"
        return self.record.text(self.terms) if use else format(self.own(), spec)

    def __reduce__(self) -> Any:
        return int, (self.own(),)
