"""``Record``: the symbols that sizes are made of, and the guards that comparisons leave behind.

A size is a polynomial of **atoms**: symbols, and quotients of polynomials, rounded down. A guard is an interval in which a
polynomial without a constant must stay, and numbers that it must not be; so many comparisons with one polynomial are one guard.
What the guards so far, and the bounds of symbols, decide already is no guard of its own.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

from tvmdml.errors import InvalidArgument, message
from tvmdml.sizes.size import Size, Terms

Operand = Size | int
_INFINITE = math.inf
_MOST_TERMS = 64
"""A polynomial with more is Python's own integer: what made it is no arithmetic of sizes."""


class Symbol(NamedTuple):
    """An atom that has a value in each case."""

    name: str


class Quotient(NamedTuple):
    """An atom: a polynomial by another one, rounded down. Polynomials are terms, or Python's own integers."""

    number: Terms | int
    divisor: Terms | int


Atom = Symbol | Quotient


class Open(NamedTuple):
    """An argument that is a polynomial."""

    terms: Terms


_records = itertools.count()


class Within:
    """Where a polynomial must stay."""

    __slots__ = ("least", "most", "without")

    def __init__(self) -> None:
        self.least: float = -_INFINITE
        self.most: float = _INFINITE
        self.without: set[int] = set()

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Within) and (self.least, self.most, self.without) == (other.least, other.most, other.without)

    __hash__ = None  # type: ignore[assignment] # it changes

    def copy(self) -> Within:
        """The same, apart."""
        copied = Within()
        copied.least, copied.most, copied.without = self.least, self.most, set(self.without)
        return copied


class Record:
    """Symbols, atoms and guards of what is recorded together."""

    def __init__(self, assumed: bool = False) -> None:
        """
        Args:
            assumed: the case at hand is only assumed: no size may become Python's own integer.
        """
        self._assumed = assumed
        self.number = next(_records)
        """No other record of the process has it."""
        self.atoms: list[Atom] = []
        self._numbers: dict[Atom, int] = {}
        self._values: list[int] = []
        """Of each atom in the case at hand."""
        self.guards: dict[Terms, Within] = {}
        """In the order in which they were asked: a later one may be undefined where an earlier one fails."""
        self._bounds: dict[Terms, tuple[float, float]] = {}
        """What is true of polynomials in all cases."""
        self.choices: dict[tuple[Callable[..., Any], tuple[Any, ...]], Any] = {}
        """Functions of integers, their arguments, which may be terms, and what they must return."""
        self.specialized = 0
        """How often a size became Python's own integer."""

    # -- Symbols

    def symbol(self, name: str, value: int, least: int = 0, most: float = _INFINITE) -> Size:
        """A size of its own.

        Args:
            name: for messages.
            value: in the case at hand.
            least: the least value that is allowed.
            most: the largest.
        """
        size = self._atom(Symbol(name), value)
        self._bounds[size.terms] = least, most
        return size

    @property
    def symbols(self) -> list[str]:
        """Their names, in the order in which they were made."""
        return [atom.name for atom in self.atoms if isinstance(atom, Symbol)]

    def symbol_terms(self, name: str) -> Terms:
        """The polynomial that is a symbol."""
        return (((self._numbers[Symbol(name)],), 1),)

    def allowed(self, atom: int) -> tuple[float, float]:
        """The least and the largest value of a symbol."""
        return self._bounds[(((atom,), 1),)]

    def _atom(self, atom: Atom, value: int) -> Size:
        number = self._numbers.get(atom)
        if number is None:
            number = self._numbers[atom] = len(self.atoms)
            self.atoms.append(atom)
            self._values.append(value)
        return Size(self, (((number,), 1),), self._values[number])

    def copy(self) -> Record:
        """The same, apart: what is asked of one of them later is not asked of the other."""
        return self.at({name: self.value(self.symbol_terms(name)) for name in self.symbols})

    def at(self, values: Mapping[str, int]) -> Record:
        """A record with the same symbols, atoms and guards, for another case, in which the guards hold.

        Args:
            values: of the symbols in that case.
        """
        record = Record()
        record.atoms, record._numbers, record._bounds = list(self.atoms), dict(self._numbers), dict(self._bounds)
        record.guards = {terms: guard.copy() for terms, guard in self.guards.items()}
        record.choices = dict(self.choices)
        for atom in self.atoms:
            own = values[atom.name] if isinstance(atom, Symbol) else record.value(atom.number) // record.value(atom.divisor)
            record._values.append(own)
        return record

    def value(self, terms: Terms | int) -> int:
        """Of a polynomial in the case at hand."""
        return terms if isinstance(terms, int) else sum(factor * self._product(atoms) for atoms, factor in terms)

    def size(self, terms: Terms) -> Size:
        """The size that is a polynomial of this record's atoms."""
        return Size(self, terms, self.value(terms))

    # -- Arithmetic

    def _size(self, terms: Mapping[tuple[int, ...], int], value: int) -> Operand:
        """A size, or an integer if that is the same in all cases."""
        own = tuple(sorted((atoms, factor) for atoms, factor in terms.items() if factor))
        if not own or own[-1][0] == ():
            return value
        size = Size(self, own, value)
        return size if len(own) <= _MOST_TERMS else size.own()

    def added(self, a: Operand, b: Operand, sign: int) -> Operand:
        """``a + sign * b``."""
        terms = dict(_terms(a))
        for atoms, factor in _terms(b):
            terms[atoms] = terms.get(atoms, 0) + sign * factor
        return self._size(terms, _value(a) + sign * _value(b))

    def multiplied(self, a: Operand, b: Operand) -> Operand:
        """``a * b``."""
        terms: dict[tuple[int, ...], int] = {}
        for mine, factor in _terms(a):
            for theirs, other in _terms(b):
                atoms = tuple(sorted(mine + theirs))
                terms[atoms] = terms.get(atoms, 0) + factor * other
        return self._size(terms, _value(a) * _value(b))

    def divided(self, a: Operand, b: Operand) -> Operand:
        """``a // b``."""
        if not b:  # a guard
            return _value(a) // 0  # Python's error
        factored = self._factored(a, b)
        if factored is not None:
            return factored
        if type(b) is Size:
            return self._quotient(a, b)
        assert type(b) is int
        if b < 0:
            return self.divided(self.multiplied(a, -1), -b)
        # what the divisor divides leaves the quotient
        whole = {atoms: factor // b for atoms, factor in _terms(a)}
        rest = {atoms: factor % b for atoms, factor in _terms(a)}
        outside = self._size(whole, self.value(tuple(whole.items())))
        inside = self._size(rest, self.value(tuple(rest.items())))
        return self.added(outside, self._rounded(inside, b) if type(inside) is Size else inside // b, 1)

    def _rounded(self, a: Size, b: int) -> Operand:
        """``a // b``, which no factor leaves: ``(n // 2 + 1) // 2`` is ``(n + 2) // 4``."""
        constant, terms = _apart(a.terms)
        if len(terms) == 1 and len(terms[0][0]) == 1 and terms[0][1] == 1:
            atom = self.atoms[terms[0][0][0]]
            if isinstance(atom, Quotient) and isinstance(atom.divisor, int) and not isinstance(atom.number, int):
                return self.divided(self.added(self.size(atom.number), constant * atom.divisor, 1), atom.divisor * b)
        return self._quotient(a, b)

    def remainder(self, a: Operand, b: Operand) -> Operand:
        """``a % b``."""
        quotient = self.divided(a, b)
        rest = self.added(a, self.multiplied(quotient, b), -1)
        if type(rest) is Size and type(b) is int:
            constant, terms = _apart(rest.terms)
            least, most = (0, b - 1) if b > 0 else (b + 1, 0)
            self._bounds.setdefault(terms, (least - constant, most - constant))
        return rest

    def are_proportional(self, a: Size, b: Size) -> bool:
        """Whether the quotient is the same in all cases: the factors of all terms have one ratio. A divisor of 0 is a guard."""
        if [atoms for atoms, _ in a.terms] != [atoms for atoms, _ in b.terms]:
            return False
        first, other = a.terms[0][1], b.terms[0][1]
        return all(mine * other == theirs * first for (_, mine), (_, theirs) in zip(a.terms, b.terms, strict=True)) and bool(b)

    def _product(self, atoms: tuple[int, ...]) -> int:
        return math.prod(self._values[atom] for atom in atoms)

    def _factored(self, a: Operand, b: Operand) -> Operand | None:
        """The quotient if the divisor has one term, which is a factor of all terms."""
        divisor = _terms(b)
        if len(divisor) != 1:
            return 1 if _terms(a) == divisor else None
        ((atoms, factor),) = divisor
        terms: dict[tuple[int, ...], int] = {}
        for mine, own in _terms(a):
            left = list(mine)
            for atom in atoms:
                if atom not in left:
                    return None
                left.remove(atom)
            if own % factor:
                return None
            terms[tuple(left)] = own // factor
        return self._size(terms, _value(a) // _value(b))

    def _quotient(self, a: Operand, b: Operand) -> Size:
        size = self._atom(Quotient(_plain(a), _plain(b)), _value(a) // _value(b))
        if size.terms not in self._bounds:
            least, most = self.bounds(_terms(a))
            low, high = self.bounds(_terms(b))
            if low > 0 and least >= 0:
                self._bounds[size.terms] = least // high if high < _INFINITE else 0, most // low if most < _INFINITE else _INFINITE
        return size

    # -- What is shown

    def text(self, terms: Terms | int) -> str:
        """A polynomial with the names of symbols: ``2*n - m//3 + 1``."""
        if isinstance(terms, int):
            return str(terms)
        constant, own = _apart(terms)
        text = ""
        for atoms, factor in (*own, *((((), constant),) if constant else ())):
            product = "*".join([str(abs(factor))] * (abs(factor) != 1 or not atoms) + list(map(self._name, atoms)))
            sign = "-" if factor < 0 else "+"
            text += f" {sign} {product}" if text else f"{'-' * (factor < 0)}{product}"
        return text

    def _name(self, atom: int) -> str:
        own = self.atoms[atom]
        if isinstance(own, Symbol):
            return own.name
        number, divisor = (text if text.isalnum() else f"({text})" for text in map(self.text, own))
        return f"({number}//{divisor})"

    def failed(self, values: Mapping[str, int]) -> list[str]:
        """The conditions that do not hold for values of the symbols, in words; all if that cannot be said."""
        try:
            case = self.at(values)
        except ZeroDivisionError:
            return self.conditions()
        return self.conditions(lambda terms, least, most, without: least <= (n := case.value(terms)) <= most and n not in without)

    def conditions(self, holds: Callable[[Terms, float, float, set[int]], bool] = lambda *_: False) -> list[str]:
        """What must hold, in words: ``2 <= n <= 64``, ``n - m != 0``; without what holds."""
        symbols = [(((i,), 1),) for i, atom in enumerate(self.atoms) if isinstance(atom, Symbol)]
        texts = []
        for terms in dict.fromkeys((*symbols, *self.guards)):
            least, most = self._known(terms)
            guard = self.guards.get(terms)
            without = guard.without if guard else set()
            if holds(terms, least, most, without):
                continue
            text = self.text(terms)
            low, high = (f"{least} <= " if least > -_INFINITE else ""), (f" <= {most}" if most < _INFINITE else "")
            if low or high:
                texts.append(f"{text} == {least}" if least == most else f"{low}{text}{high}")
            texts += [f"{text} != {number}" for number in sorted(without)]
        return texts

    # -- What is known

    def bounds(self, terms: Terms) -> tuple[float, float]:
        """Between which numbers a polynomial is, by the guards and the bounds of atoms."""
        constant, own = _apart(terms)
        least, most = self._known(own)
        if len(own) > 1 or (own and (len(own[0][0]) > 1 or own[0][1] != 1)):
            low: float = 0
            high: float = 0
            for atoms, factor in own:
                begin, end = self._of_product(atoms)
                low += _times(factor, begin if factor > 0 else end)
                high += _times(factor, end if factor > 0 else begin)
            least, most = max(least, low), min(most, high)
        return (least + constant, most + constant) if own else (constant, constant)

    def _of_product(self, atoms: tuple[int, ...]) -> tuple[float, float]:
        low: float = 1
        high: float = 1
        for atom in atoms:
            begin, end = self._known((((atom,), 1),))
            corners = [_times(x, y) for x in (low, high) for y in (begin, end)]
            low, high = min(corners), max(corners)
        return low, high

    def _known(self, terms: Terms) -> tuple[float, float]:
        least, most = self._bounds.get(terms, (-_INFINITE, _INFINITE))
        guard = self.guards.get(terms)
        return (least, most) if guard is None else (max(least, guard.least), min(most, guard.most))

    # -- What is asked

    def at_most(self, size: Size, most: int) -> bool:
        """Whether a size is at most an integer, in the case at hand and in all that the record holds for."""
        return self._asked(size, most, self._at_most)

    def is_zero(self, size: Size) -> bool:
        """Whether a size is 0."""
        return self._asked(size, 0, self._is)

    def specialize(self, size: Size) -> None:
        """The record holds for this value of a size only from now on.

        Raises:
            InvalidArgument: the value is only assumed.
        """
        least, most = self.bounds(size.terms)
        if least != most:
            if self._assumed:
                text = self.text(size.terms)
                given = "an index, a length, a key, a text, or a number for what takes integers only"
                raise InvalidArgument(
                    message(f"size {text}", given, "arithmetic, with //, and comparisons", f"{text} is not known yet.")
                )
            self.specialized += 1
            self._asked(size, size.value, self._is)

    def choose(self, function: Callable[..., Any], arguments: Sequence[Any]) -> Any:
        """What a function of integers returns in the case at hand; the record holds for others in which it returns the same."""
        answer = function(*(size.value if type(size) is Size else size for size in arguments))
        self.choices[function, tuple(Open(size.terms) if type(size) is Size else size for size in arguments)] = answer
        return answer

    def _asked(self, size: Size, number: int, ask: Callable[[Terms, int, int, int], bool]) -> bool:
        """Ask in a normal form: without a constant, without a common factor, with a positive first factor."""
        constant, terms = _apart(size.terms)
        divisor = math.gcd(*(factor for _, factor in terms))
        if terms[0][1] < 0:
            divisor = -divisor
        own = tuple((atoms, factor // divisor) for atoms, factor in terms)
        return ask(own, number - constant, divisor, (size.value - constant) // divisor)

    def _at_most(self, terms: Terms, most: int, divisor: int, value: int) -> bool:
        """Whether ``divisor * terms <= most``."""
        if divisor < 0:  # terms >= most / divisor
            return not self._limited(terms, -(-most // divisor) - 1, value)
        return self._limited(terms, most // divisor, value)

    def _limited(self, terms: Terms, most: int, value: int) -> bool:
        low, high = self.bounds(terms)
        if high <= most or low > most:
            return high <= most
        guard = self.guards.setdefault(terms, Within())
        if value <= most:
            guard.most = most
        else:
            guard.least = most + 1
        return value <= most

    def _is(self, terms: Terms, number: int, divisor: int, value: int) -> bool:
        """Whether ``divisor * terms == number``."""
        number, rest = divmod(number, divisor)
        low, high = self.bounds(terms)
        if rest or not low <= number <= high:
            return False
        if low == high:
            return True
        guard = self.guards.setdefault(terms, Within())
        if number in guard.without:
            return False
        if value == number:
            guard.least = guard.most = number
        elif number == low:
            guard.least = number + 1
        elif number == high:
            guard.most = number - 1
        else:
            guard.without.add(number)
        return value == number


def _terms(operand: Operand) -> Terms:
    return operand.terms if type(operand) is Size else (((), operand),) if operand else ()  # type: ignore[return-value]


def _value(operand: Operand) -> int:
    return operand.value if type(operand) is Size else operand  # type: ignore[return-value]


def _plain(operand: Operand) -> Terms | int:
    return operand.terms if type(operand) is Size else operand  # type: ignore[return-value]


def _apart(terms: Terms) -> tuple[int, Terms]:
    """The constant, and the rest. The constant's product is empty, so it comes first."""
    return (terms[0][1], terms[1:]) if terms and terms[0][0] == () else (0, terms)


def _times(x: float, y: float) -> float:
    return 0 if x == 0 or y == 0 else x * y
