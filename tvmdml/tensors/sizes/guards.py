"""``Guards``: what was asked of polynomials of atoms, and what follows from that and from bounds.

A guard is an interval in which a polynomial without a constant must stay, and numbers that it must not be; so many comparisons with
one polynomial are one guard. A question is asked in its simplest form: ``n//4 >= 2`` of ``n``, and ``h - h*w < 0`` of ``w``. What
intervals decide is no guard. Nothing is proved.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import NamedTuple

from tvmdml.tensors.sizes import polynomials
from tvmdml.tensors.sizes.polynomials import Terms

INFINITE = math.inf
MOST_TERMS, MOST_FACTORS = 64, 16
"""No polynomial has more, nor a product: what would make it is no arithmetic of sizes."""
_HUGE = 1 << 512
"""Larger bounds count as infinite: Python's floats, one of which is infinity, end there. No size has larger factors."""
_DEEPEST = 32
"""The bounds of quotients of quotients are computed again so far down."""
_FEW_TERMS = 8
Bounds = tuple[float, float]


class Symbol(NamedTuple):
    """An atom that has a value in each case."""

    name: str


class Quotient(NamedTuple):
    """An atom: a polynomial by another one, rounded down. Polynomials are terms, or Python's own integers."""

    number: Terms | int
    divisor: Terms | int


Atom = Symbol | Quotient


class Within:
    """Where a polynomial must stay."""

    __slots__ = ("least", "most", "without")

    def __init__(self, least: float = -INFINITE, most: float = INFINITE, without: frozenset[int] = frozenset()) -> None:
        self.least, self.most, self.without = least, most, set(without)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Within) and (self.least, self.most, self.without) == (other.least, other.most, other.without)

    __hash__ = None  # type: ignore[assignment] # it changes

    def copy(self) -> Within:
        """The same, apart."""
        return Within(self.least, self.most, frozenset(self.without))

    def has(self, number: int) -> bool:
        """Whether a number is there."""
        return self.least <= number <= self.most and number not in self.without

    def limit(self, least: float, most: float) -> None:
        """Keep it between two numbers, too."""
        self.least, self.most = max(self.least, least), min(self.most, most)
        while self.least in self.without:
            self.least += 1
        while self.most in self.without:
            self.most -= 1
        self.without = {number for number in self.without if self.least < number < self.most}


class Guards:
    """The guards on atoms."""

    def __init__(self, atoms: list[Atom], values: list[int], asker: Callable[[], str] | None = None) -> None:
        """
        Args:
            atoms: all of them; their list grows.
            values: of each in the case at hand.
            asker: says who asks, for messages.
        """
        self._atoms, self._values, self._asker = atoms, values, asker
        self.askers: dict[tuple[Terms, float], str] = {}
        """Who asked, by a guard's polynomial and its limit or the number that it must not be."""
        self.every: dict[Terms, Within] = {}
        """In the order in which they were asked: a later one may be undefined where an earlier one fails."""
        self._known: dict[Terms, Bounds] = {}
        """Bounds that are declared, or follow from guards."""
        self._equal: dict[int, Terms] = {}
        """Atoms that a guard makes equal to a polynomial of others."""
        self._since: dict[Terms, Bounds] = {}
        """``bounds``, since the last guard."""
        self._depth = 0
        self.closed = False
        """What holds was made of the guards: no question may add one."""

    def copy(self, atoms: list[Atom], values: list[int]) -> Guards:
        """The same, apart, for another case."""
        copied = Guards(atoms, values)
        copied.every, copied.askers = dict(self.every), dict(self.askers)
        copied._known, copied._equal, copied._since = dict(self._known), dict(self._equal), dict(self._since)
        return copied

    def value(self, terms: Terms | int) -> int:
        """Of a polynomial in the case at hand."""
        if isinstance(terms, int):
            return terms
        return sum(factor * math.prod([self._values[atom] for atom in atoms]) for atoms, factor in terms)

    # -- What is known

    def know(self, terms: Terms, least: float, most: float) -> None:
        """A polynomial is between two numbers wherever the guards hold."""
        number, terms = polynomials.apart(terms)
        divisor, own = polynomials.normal(terms)
        limits = least - number, most - number
        least, most = limits if divisor > 0 else (-limits[1], -limits[0])
        least, most = -_floor(-least, abs(divisor)), _floor(most, abs(divisor))
        before = self._known.get(own, (-INFINITE, INFINITE))
        known = max(before[0], least), min(before[1], most)
        if known == before:
            return
        self._known[own] = known
        self._forget(own)
        self._know_parts(own, *known)

    def _forget(self, terms: Terms) -> None:
        """The bounds of a polynomial became narrower. Those of atoms stay known: they may be wider than they need be."""
        self._since = {} if _is_atom(terms) else {own: bounds for own, bounds in self._since.items() if _is_atom(own)}

    def _know_parts(self, terms: Terms, least: float, most: float) -> None:
        """What follows for the atoms of a polynomial."""
        if len(terms) > 1:
            for term in terms:
                if len(term[0]) == 1:
                    low, high = self.bounds(tuple(other for other in terms if other is not term))
                    if low > -INFINITE or high < INFINITE:
                        self.know((term,), least - high, most - low)
            return
        atoms = terms[0][0]
        atom = self._atoms[atoms[0]]
        if len(atoms) > 1:
            lows = [self.bounds(polynomials.atom(i))[0] for i in atoms]
            if min(lows) >= 1 and most < INFINITE:
                for i, low in dict(zip(atoms, lows, strict=True)).items():
                    self.know(polynomials.atom(i), -INFINITE, most // (math.prod(lows) // low))
        elif isinstance(atom, Quotient) and isinstance(atom.divisor, int) and not isinstance(atom.number, int):
            self.know(atom.number, least * atom.divisor, (most + 1) * atom.divisor - 1)

    def bounds(self, terms: Terms) -> Bounds:
        """Between which numbers a polynomial is, by the guards and the bounds of atoms."""
        known = self._since.get(terms)
        if known is None:
            known = self._since[terms] = self._bounds(terms)
        return known

    def least(self, terms: Terms) -> float:
        """The lower bound, where equal atoms count as the same."""
        return max(self.bounds(terms)[0], self.bounds(self._reduced(terms))[0])

    def _bounds(self, terms: Terms) -> Bounds:
        number, own = polynomials.apart(terms)
        if not own:
            return number, number
        divisor, normal = polynomials.normal(own)
        if number or divisor != 1:
            low, high = _multiplied(self.bounds(normal), (divisor, divisor))
            return low + number, high + number
        bounds = self._known.get(own, (-INFINITE, INFINITE))
        if (guard := self.every.get(own)) is not None:
            bounds = _both(bounds, (guard.least, guard.most))
        return _both(bounds, self._of_atom(own[0][0][0]) if _is_atom(own) else self._of_sum(own))

    def _tighter(self, terms: Terms) -> Bounds:
        """Bounds by more ways, which take longer."""
        bounds = self.bounds(terms)
        seen = [atom for atoms, _ in terms for atom in set(atoms)] if 1 < len(terms) <= _FEW_TERMS else []
        for atom in {atom for atom in seen if seen.count(atom) > 1}:  # 4*h*w - 4*w is 4*(h - 1)*w
            inner, rest = polynomials.parted(terms, atom)
            product = _multiplied(self.bounds(polynomials.atom(atom)), self.bounds(inner))
            bounds = _both(bounds, _sum(product, self.bounds(rest)))
        for other, guard in self.every.items() if len(terms) > 1 else ():  # m <= k by m <= n, where it is known that n <= k
            factors = dict(other) if len(other) > 1 else {}
            for atoms, factor in terms if factors else ():
                times, rest_of = divmod(factor, factors.get(atoms, 0) or 2 * factor)
                if not rest_of:
                    left = self.bounds(polynomials.plus(terms, other, -times))
                    bounds = _both(bounds, _sum(left, _multiplied((guard.least, guard.most), (times, times))))
        return bounds

    def _of_sum(self, terms: Terms) -> Bounds:
        low: float = 0
        high: float = 0
        for atoms, factor in terms:
            product: Bounds = factor, factor
            for atom in atoms:
                product = _multiplied(product, self.bounds(polynomials.atom(atom)))
            low += product[0]
            high += product[1]
        return low, high

    def _of_atom(self, atom: int) -> Bounds:
        own = self._atoms[atom]
        if isinstance(own, Symbol) or self._depth > _DEEPEST:
            return -INFINITE, INFINITE
        self._depth += 1
        (least, most), (low, high) = (self.bounds(polynomials.of(part)) for part in own)
        self._depth -= 1
        if low <= 0:
            return -INFINITE, INFINITE
        return _floor(least, high if least >= 0 else low), _floor(most, low if most >= 0 else high)

    # -- What is asked

    def at_most(self, terms: Terms, most: int) -> bool:
        """Whether a polynomial is at most an integer, in the case at hand and wherever the guards hold."""
        number, terms = polynomials.apart(terms)
        if not terms:
            return number <= most
        divisor, own = polynomials.normal(terms)
        if divisor < 0:
            return not self.at_most(own, -((most - number) // -divisor) - 1)
        most = (most - number) // divisor
        low, high = self.bounds(own)
        if high <= most or low > most:
            return high <= most
        if (simpler := self._simpler(own, has_sign=most in (-1, 0))) is not None:
            return self.at_most(simpler, most)
        atom = self._atoms[own[0][0][0]] if _is_atom(own) else None
        if isinstance(atom, Quotient) and isinstance(atom.divisor, int) and atom.divisor > 0:
            return self.at_most(polynomials.of(atom.number), (most + 1) * atom.divisor - 1)
        low, high = self._tighter(own)
        if high <= most or low > most:
            return high <= most
        answer = self.value(own) <= most
        self._guard(own, *((-INFINITE, most) if answer else (most + 1, INFINITE)))
        return answer

    def equals(self, terms: Terms, number: int) -> bool:
        """Whether a polynomial is an integer."""
        left, terms = polynomials.apart(terms)
        number -= left
        if not terms:
            return number == 0
        divisor, own = polynomials.normal(terms)
        number, rest = divmod(number, divisor)
        low, high = self.bounds(own)
        if rest or not low <= number <= high:
            return False
        if low == high:
            return True
        if number == low:
            return self.at_most(own, number)
        if number == high:
            return not self.at_most(own, number - 1)
        if (simpler := self._simpler(own, has_sign=number == 0)) is not None:
            return self.equals(simpler, number)
        low, high = self._tighter(own)
        guard = self.every.get(own)
        if not low <= number <= high or (guard is not None and number in guard.without):
            return False
        if self.value(own) == number:
            return self.at_most(own, number) and not self.at_most(own, number - 1)
        self._guard(own, other=number)
        return False

    def _guard(self, terms: Terms, least: float = -INFINITE, most: float = INFINITE, other: int | None = None) -> None:
        """Keep a polynomial within limits, or from another number."""
        guard = Within() if (before := self.every.get(terms)) is None else before.copy()  # other records have it, too
        assert not self.closed, "a size was asked something after the conditions on it were made"
        self.every[terms] = guard
        if other is not None:
            guard.without.add(other)
        guard.limit(least, most)
        if self._asker is not None:
            asker = self._asker()
            for limit in (guard.least, guard.most) if other is None else (other,):
                self.askers.setdefault((terms, limit), asker)
        if (guard.least, guard.most) == ((-INFINITE, INFINITE) if before is None else (before.least, before.most)):
            return
        self._forget(terms)
        low, high = self.bounds(terms)
        if low == high:
            guard.limit(low, high)
            self._equate(terms, int(low))
        self._know_parts(terms, low, high)

    def _equate(self, terms: Terms, number: int) -> None:
        """A polynomial is a number: let an atom that stands alone in it be replaced from now on."""
        for atoms, factor in reversed(terms) if len(terms) > 1 else ():
            if len(atoms) == 1 and abs(factor) == 1:
                others = polynomials.plus(polynomials.constant(number), tuple(term for term in terms if term[0] != atoms), -1)
                if not self._reaches(others, atoms[0]):
                    self._equal[atoms[0]] = polynomials.times(others, polynomials.constant(factor))
                    return

    def _reaches(self, terms: Terms, atom: int) -> bool:
        """Whether a polynomial has an atom, or one that is made of it, or stands for it."""
        reached: set[int] = set()
        waiting = [terms]
        while waiting:
            for number in {i for atoms, _ in waiting.pop() for i in atoms} - reached:
                reached.add(number)
                own = self._atoms[number]
                parts = [polynomials.of(part) for part in own] if isinstance(own, Quotient) else []
                waiting += [*parts, self._equal.get(number, ())]
        return atom in reached

    # -- Simpler forms of a question

    def _simpler(self, terms: Terms, has_sign: bool) -> Terms | None:
        """A polynomial that answers the same question.

        Args:
            terms: without a constant.
            has_sign: only the sign is asked.
        """
        reduced = self._reduced(terms)
        if reduced != terms:
            return reduced
        shared = polynomials.common(terms) if has_sign else ()
        positive = tuple(atom for atom in shared if self.bounds(polynomials.atom(atom))[0] > 0)
        return polynomials.without(terms, positive) if positive else None

    def _reduced(self, terms: Terms) -> Terms:
        """An equal polynomial, where the guards say that an atom equals a number or a polynomial of others."""
        instead: dict[int, Terms] = {}
        for atom in {atom for atoms, _ in terms for atom in atoms}:
            low, high = self.bounds(polynomials.atom(atom))
            if low == high:
                instead[atom] = polynomials.constant(int(low))
            elif atom in self._equal:
                instead[atom] = self._equal[atom]
        if not instead:
            return terms
        total: Terms = ()
        for atoms, factor in terms:
            product = polynomials.constant(factor)
            for atom in atoms:
                product = polynomials.times(product, instead.get(atom, polynomials.atom(atom)))
            total = polynomials.plus(total, product)
        return total if len(total) <= MOST_TERMS else terms


def is_huge(number: int) -> bool:
    """Whether an integer is too large for arithmetic with infinite bounds."""
    return not -_HUGE < number < _HUGE


def _is_atom(terms: Terms) -> bool:
    return len(terms) == 1 and len(terms[0][0]) == 1


# -- Intervals


def _both(a: Bounds, b: Bounds) -> Bounds:
    return max(a[0], b[0]), min(a[1], b[1])


def _sum(a: Bounds, b: Bounds) -> Bounds:
    return a[0] + b[0], a[1] + b[1]


def _multiplied(a: Bounds, b: Bounds) -> Bounds:
    corners = [0 if x == 0 or y == 0 else x * y for x in a for y in b]
    low, high = min(corners), max(corners)
    return (-INFINITE if low < -_HUGE else min(low, _HUGE)), (INFINITE if high > _HUGE else max(high, -_HUGE))


def _floor(a: float, b: float) -> float:
    """``a // b`` where ``b`` is positive; both may be infinite."""
    if math.isinf(a):
        return a
    if math.isinf(b):
        return 0 if a >= 0 else -1
    return a // b
