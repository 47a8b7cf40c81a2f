"""Expressions of sizes as a table for C: each row is a value that is computed from earlier ones, and each is there once."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from tvmdml.packs import _header_choices
from tvmdml.tensors.sizes.evaluating import Condition, GuardedIntegers, Polynomial
from tvmdml.tensors.sizes.record import Open

_SIZE, _NUMBER, _SUM, _PRODUCT, _QUOTIENT, _AT_MOST, _EQUALS, _DIFFERS, _CHOICE = range(9)
_LEAST, _MOST = -(1 << 63), (1 << 63) - 1
_DEEPEST = 1 << 12
"""Values that need each other, one after another."""
List = Callable[[Sequence[int]], int]
"""Adds a list to a table; returns where it begins."""


class PlanValues:
    """The values of one plan."""

    def __init__(self, numbers: List, lists: List) -> None:
        """
        Args:
            numbers: the table of 64-bit integers.
            lists: the table of lists of values.
        """
        self._add_numbers, self._add_list = numbers, lists
        self.rows: dict[tuple[int, int, int], int] = {}
        """What each is: an operation and two operands."""
        self._depths: list[int] = []

    def size(self, place: int) -> int:
        """The size at a place."""
        return self._row(_SIZE, place)

    def number(self, number: int) -> int:
        """A number.

        Raises:
            ValueError: it has more than 64 bits.
        """
        if not _LEAST <= number <= _MOST:
            raise ValueError(f"the number {number}, which has more than 64 bits")
        return self._row(_NUMBER, self._add_numbers((number,)))

    def _row(self, operation: int, a: int, b: int = 0, needs: Sequence[int] = ()) -> int:
        """The place of a value, which needs others.

        Raises:
            ValueError: they are too deep for the stack of a program in C.
        """
        key = operation, a, b
        if key not in self.rows:
            self.rows[key] = len(self.rows)
            self._depths.append(1 + max((self._depths[i] for i in needs), default=0))
            if self._depths[-1] > _DEEPEST:
                raise ValueError("an expression of sizes that is too deep")
        return self.rows[key]

    def _made(self, operation: int, a: int, b: int) -> int:
        return self._row(operation, a, b, (a, b))

    def reading(self, function: GuardedIntegers, sizes: Sequence[int]) -> FunctionReading:
        """What reads a function.

        Args:
            function: the function.
            sizes: the values of its symbols.
        """
        return FunctionReading(self, function, sizes)

    def sum(self, several: Sequence[int]) -> int:
        """The sum of some values."""
        return self._joined(_SUM, several)

    def product(self, several: Sequence[int]) -> int:
        """The product of some values."""
        return self._joined(_PRODUCT, several)

    def quotient(self, number: int, divisor: int) -> int:
        """A quotient, rounded down."""
        return self._made(_QUOTIENT, number, divisor)

    def _joined(self, operation: int, several: Sequence[int]) -> int:
        value = several[0]
        for other in several[1:]:
            value = self._made(operation, value, other)
        return value

    def within(self, value: int, condition: Condition) -> list[int]:
        """The conditions that a value is where it must be."""
        _, least, most, without = condition
        conditions = []
        if least is not None and least == most:
            return [self._made(_EQUALS, value, self.number(least))]
        if least is not None and least > _LEAST:
            conditions.append(self._made(_AT_MOST, self.number(least), value))
        if most is not None and most < _MOST:
            conditions.append(self._made(_AT_MOST, value, self.number(most)))
        return [*conditions, *(self._made(_DIFFERS, value, self.number(number)) for number in without)]

    def chosen(self, which: int, arguments: Sequence[int], answer: int) -> int:
        """The condition that a choice has an answer."""
        choice = self._row(_CHOICE, which, self._add_list((len(arguments), *arguments)), arguments)
        return self._made(_EQUALS, choice, self.number(answer))


class FunctionReading:
    """A function's polynomials and conditions as values."""

    def __init__(self, values: PlanValues, function: GuardedIntegers, sizes: Sequence[int]) -> None:
        """``PlanValues.reading`` makes it."""
        self._values, self.function = values, function
        self._atoms = dict(zip(function.symbols, sizes, strict=True))
        for i, number, divisor in function.quotients:
            self._atoms[i] = values.quotient(self.of(number), self.of(divisor))

    @property
    def quotients(self) -> list[int]:
        """All of them: where one divides by 0, the function has no answer."""
        return [self._atoms[i] for i, *_ in self.function.quotients]

    def of(self, terms: Polynomial) -> int:
        """The value of a polynomial."""
        values = self._values
        if isinstance(terms, int):
            return values.number(terms)
        products = []
        for atoms, factor in terms:
            own = [self._atoms[i] for i in atoms]
            products.append(values.product([*own, values.number(factor)] if factor != 1 or not own else own))
        return values.sum(products)

    def wanted(self) -> list[int]:
        """The values of its integers."""
        return [self.of(terms) for terms in self.function.wanted]

    def conditions(self) -> list[tuple[int, Condition | None]]:
        """All that must hold: a value that is not 0, and the condition, if it is none of a schedule's choice."""
        conditions: list[tuple[int, Condition | None]] = []
        for condition in self.function.conditions:
            conditions += [(value, condition) for value in self._values.within(self.of(condition.terms), condition)]
        for function, arguments, answer in self.function.choices:
            flat = _header_choices.flattened(function, arguments)
            which = _header_choices.NAMES.index(function.__name__)
            conditions.append((self._values.chosen(which, list(map(self._argument, flat)), _header_choices.encoded(answer)), None))
        return conditions

    def _argument(self, given: Any) -> int:
        return self.of(given.terms) if isinstance(given, Open) else self._values.number(int(given))
