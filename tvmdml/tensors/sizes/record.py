"""``Record``: the symbols that sizes are made of, arithmetic with sizes, and the guards that comparisons leave behind.

A size is a polynomial of **atoms**: symbols, and quotients of polynomials, rounded down.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Hashable, Iterator, Mapping, Sequence
from typing import Any, NamedTuple

from tvmdml.errors import InvalidArgument, message
from tvmdml.tensors.sizes import polynomials, showing
from tvmdml.tensors.sizes.guards import INFINITE, MOST_FACTORS, MOST_TERMS, Atom, Bounds, Guards, Quotient, Symbol, Within, is_huge
from tvmdml.tensors.sizes.polynomials import Terms
from tvmdml.tensors.sizes.size import Size

SizeOperand = Size | int


class Open(NamedTuple):
    """An argument that is a polynomial."""

    terms: Terms


_records = itertools.count()


class Record:
    """Symbols, atoms and guards of what is recorded together."""

    def __init__(self, assumed: bool = False, asker: Callable[[], str] | None = None) -> None:
        """
        Args:
            assumed: the case at hand is only assumed: no size may become Python's own integer.
            asker: says who asks something, for messages about guards.
        """
        self._assumed = assumed
        self.number = next(_records)
        """No other record of the process has it."""
        self.atoms: list[Atom] = []
        self._numbers: dict[Atom, int] = {}
        self._values: list[int] = []
        """Of each atom in the case at hand."""
        self._guards = Guards(self.atoms, self._values, asker)
        self.allowed: dict[int, Bounds] = {}
        """The least and the largest value of each symbol."""
        self.choices: dict[tuple[Callable[..., Any], tuple[Any, ...]], Any] = {}
        """Functions of integers, their arguments, which may be terms, and what they must return."""
        self.answers: dict[Hashable, bool] = {}
        """What comparisons answered: that does not change, since their guards hold."""
        self._sums: dict[tuple[Terms | int, Terms | int, int], SizeOperand] = {}
        self._products: dict[tuple[Terms | int, Terms | int], SizeOperand] = {}
        self._texts: dict[Terms, str] = {}
        self.specialized = 0
        """How often a size became Python's own integer."""

    @property
    def guards(self) -> dict[Terms, Within]:
        """What must hold, in the order in which it was asked: a later guard may be undefined where an earlier one fails."""
        return self._guards.every

    # -- Symbols

    def symbol(self, name: str, value: int, least: int = 0, most: float = INFINITE) -> Size:
        """A size of its own.

        Args:
            name: for messages.
            value: in the case at hand.
            least: the least value that is allowed.
            most: the largest.
        """
        size = self._atom(Symbol(name), value)
        self.allowed[size.terms[0][0][0]] = least, most
        self._guards.know(size.terms, least, most)
        return size

    @property
    def symbols(self) -> list[str]:
        """Their names, in the order in which they were made."""
        return [atom.name for atom in self.atoms if isinstance(atom, Symbol)]

    def symbol_terms(self, name: str) -> Terms:
        """The polynomial that is a symbol."""
        return polynomials.atom(self._numbers[Symbol(name)])

    def _atom(self, atom: Atom, value: int) -> Size:
        number = self._numbers.get(atom)
        if number is None:
            number = self._numbers[atom] = len(self.atoms)
            self.atoms.append(atom)
            self._values.append(value)
        return Size(self, polynomials.atom(number), self._values[number])

    def copy(self) -> Record:
        """The same, apart: what is asked of one of them later is not asked of the other."""
        return self.at({name: self.value(self.symbol_terms(name)) for name in self.symbols})

    def at(self, values: Mapping[str, int]) -> Record:
        """A record with the same symbols, atoms and guards, for another case, in which the guards hold.

        Args:
            values: of the symbols in that case.
        """
        record = Record()
        record.atoms, record._numbers = list(self.atoms), dict(self._numbers)
        record._guards = self._guards.copy(record.atoms, record._values)
        record.allowed, record.choices = dict(self.allowed), dict(self.choices)
        for atom in self.atoms:
            own = values[atom.name] if isinstance(atom, Symbol) else record.value(atom.number) // record.value(atom.divisor)
            record._values.append(own)
        return record

    def value(self, terms: Terms | int) -> int:
        """Of a polynomial in the case at hand."""
        return self._guards.value(terms)

    def size(self, terms: Terms) -> Size:
        """The size that is a polynomial of this record's atoms."""
        return Size(self, terms, self.value(terms))

    def close(self) -> None:
        """From now on no question may leave a guard: what holds is what was asked until now."""
        self._guards.closed = True

    # -- Arithmetic

    def _size(self, terms: Terms, value: int) -> SizeOperand:
        """A size, or an integer if that is the same in all cases."""
        if not terms or terms[-1][0] == ():
            return value
        size = Size(self, terms, value)
        return size if len(terms) <= MOST_TERMS else size.own()

    def added(self, a: SizeOperand, b: SizeOperand, sign: int) -> SizeOperand:
        """``a + sign * b``."""
        key = a.terms if type(a) is Size else a, b.terms if type(b) is Size else b, sign
        if (known := self._sums.get(key)) is None:  # type: ignore[arg-type] # mypy takes a Size for an int
            known = self._size(polynomials.plus(_terms(a), _terms(b), sign), _value(a) + sign * _value(b))
            self._sums[key] = known  # type: ignore[index]
        return known

    def multiplied(self, a: SizeOperand, b: SizeOperand) -> SizeOperand:
        """``a * b``."""
        key = a.terms if type(a) is Size else a, b.terms if type(b) is Size else b
        if (known := self._products.get(key)) is None:  # type: ignore[arg-type]
            terms = polynomials.times(_terms(a), _terms(b))
            known = self._size(terms, _value(a) * _value(b))
            if type(known) is Size and any(len(atoms) > MOST_FACTORS or is_huge(factor) for atoms, factor in terms):
                known = known.own()
            self._products[key] = known  # type: ignore[index]
        return known

    def divided(self, a: SizeOperand, b: SizeOperand) -> SizeOperand:
        """``a // b``."""
        if not b:  # a guard
            return _value(a) // 0  # Python's error
        value, number, divisor = _value(a) // _value(b), _terms(a), _terms(b)
        if (ratio := polynomials.ratio(number, divisor)) is not None:
            return ratio[0] // ratio[1]
        shared = polynomials.common((*number, *divisor))  # no factor is 0, since b is not
        number, divisor = polynomials.without(number, shared), polynomials.without(divisor, shared)
        if divisor[-1][0] == ():
            return self._rounded(number, divisor[0][1], value)
        factors = math.gcd(*(factor for _, factor in (*number, *divisor)))
        return self._quotient(polynomials.scaled(number, factors), polynomials.scaled(divisor, factors), value)

    def _rounded(self, number: Terms, divisor: int, value: int) -> SizeOperand:
        """A polynomial by an integer."""
        if divisor < 0:
            number, divisor = polynomials.scaled(number, -1), -divisor
        # what the divisor divides leaves the quotient
        outside = polynomials.ordered({atoms: factor // divisor for atoms, factor in number})
        constant, rest = polynomials.apart(polynomials.ordered({atoms: factor % divisor for atoms, factor in number}))
        factors = math.gcd(divisor, *(factor for _, factor in rest))
        if rest and factors < divisor:
            inside = polynomials.plus(polynomials.scaled(rest, factors), polynomials.constant(constant // factors))
            outside = polynomials.plus(outside, _terms(self._quotient(inside, polynomials.constant(divisor // factors), None)))
        return self._size(outside, value)

    def _quotient(self, number: Terms, divisor: Terms, value: int | None) -> SizeOperand:
        """A polynomial by another one that has no factor in common with it."""
        if value is None:
            value = self.value(number) // self.value(divisor)
        if self._guards.least(divisor) > 0:
            rest = polynomials.plus(number, divisor, -value)
            if self._guards.least(rest) >= 0 and self._guards.least(polynomials.plus(divisor, rest, -1)) > 0:
                return value
            if number == polynomials.constant(1):
                return int(self._guards.at_most(divisor, 1))
            constant, terms = polynomials.apart(number)
            if len(terms) == 1 and len(terms[0][0]) == 1 and terms[0][1] == 1:  # (n//2 + 1) // m is (n + 2) // (2*m)
                atom = self.atoms[terms[0][0][0]]
                if isinstance(atom, Quotient) and isinstance(atom.divisor, int):
                    inner = polynomials.plus(polynomials.of(atom.number), polynomials.constant(constant * atom.divisor))
                    by = polynomials.times(divisor, polynomials.constant(atom.divisor))
                    return self.divided(self._sized(inner), self._sized(by))
        size = self._atom(Quotient(_plain(number), _plain(divisor)), value)
        self._guards.know(size.terms, *self.bounds(size.terms))
        return size

    def _sized(self, terms: Terms) -> SizeOperand:
        return self._size(terms, self.value(terms))

    def remainder(self, a: SizeOperand, b: SizeOperand) -> SizeOperand:
        """``a % b``."""
        quotient = self.divided(a, b)
        rest = self.added(a, self.multiplied(quotient, b), -1)
        if type(rest) is Size:
            low, high = self.bounds(_terms(b))
            if low > 0 or high < 0:
                self._guards.know(rest.terms, *((0, high - 1) if low > 0 else (low + 1, 0)))
        return rest

    def are_proportional(self, a: Size, b: Size) -> bool:
        """Whether the quotient is the same in all cases: the factors of all terms have one ratio. A divisor of 0 is a guard."""
        return polynomials.ratio(a.terms, b.terms) is not None and bool(b)

    # -- What is shown

    def text(self, terms: Terms | int) -> str:
        """A polynomial with the names of symbols: ``2*n - m//3 + 1``."""
        terms = polynomials.of(terms)
        if (text := self._texts.get(terms)) is None:
            text = self._texts[terms] = showing.text(self.atoms, terms)
        return text

    def failed(self, values: Mapping[str, int]) -> list[str]:
        """The conditions that do not hold for values of the symbols, in words; all if that cannot be said."""
        try:
            case = self.at(values)
        except ZeroDivisionError:
            return self.conditions()
        texts = []
        for terms, within in self._conditions():
            if not within.has(n := case.value(terms)):
                limit = within.least if n < within.least else within.most if n > within.most else n
                asker = self._guards.askers.get((terms, limit))
                texts += [
                    f"{text} (asked by {asker})" if asker else text for text in showing.conditions(self.atoms, [(terms, within)])
                ]
        return texts

    def conditions(self) -> list[str]:
        """What must hold, in words: ``2 <= n <= 64``, ``n != m``."""
        return showing.conditions(self.atoms, self._conditions())

    def _conditions(self) -> Iterator[tuple[Terms, Within]]:
        """Those of symbols first."""
        symbols = {polynomials.atom(number): Within(*limits) for number, limits in self.allowed.items()}
        for terms, limits in symbols.items():
            if (guard := self.guards.get(terms)) is not None:
                limits.without |= guard.without
                limits.limit(guard.least, guard.most)
            yield terms, limits
        yield from ((terms, guard) for terms, guard in self.guards.items() if terms not in symbols)

    # -- What is asked

    def bounds(self, terms: Terms) -> Bounds:
        """Between which numbers a polynomial is, by the guards and the bounds of symbols."""
        return self._guards.bounds(terms)

    def at_most(self, size: Size, most: int) -> bool:
        """Whether a size is at most an integer, in the case at hand and in all that the record holds for."""
        return self._guards.at_most(size.terms, most)

    def is_zero(self, size: Size) -> bool:
        """Whether a size is 0."""
        return self._guards.equals(size.terms, 0)

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
            self._guards.equals(size.terms, size.value)

    def choose(self, function: Callable[..., Any], arguments: Sequence[Any]) -> Any:
        """What a function of integers returns in the case at hand; the record holds for others in which it returns the same."""
        answer = function(*(size.value if type(size) is Size else size for size in arguments))
        self.choices[function, tuple(Open(size.terms) if type(size) is Size else size for size in arguments)] = answer
        return answer


def _terms(operand: SizeOperand) -> Terms:
    return operand.terms if type(operand) is Size else polynomials.constant(operand)  # type: ignore[arg-type]


def _value(operand: SizeOperand) -> int:
    return operand.value if type(operand) is Size else operand  # type: ignore[return-value]


def _plain(terms: Terms) -> Terms | int:
    constant, rest = polynomials.apart(terms)
    return terms if rest else constant
