"""``Template``: a value with sizes in any place, and what makes it for other values of the symbols."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from typing import Any, Generic, TypeVar

from tvmdml.sizes.record import Quotient, Record, Symbol
from tvmdml.sizes.size import Size, Terms

T = TypeVar("T")


class Template(Generic[T]):
    """A value, whose sizes may stand in tuples of any depth, named ones too."""

    def __init__(self, record: Record, value: T) -> None:
        """
        Args:
            record: of its sizes, with all guards that were asked while it was made.
            value: it.
        """
        self._value = value
        unique = {size.terms: size for size in _sizes(value)}
        self._places = {terms: i for i, terms in enumerate(unique)}
        self._numbers = evaluator(record, list(unique))

    def at(self, symbols: Sequence[int]) -> T | None:
        """The value for these values of the symbols; ``None`` if a guard fails."""
        numbers = self._numbers(*symbols)
        return None if numbers is None else self._filled(self._value, numbers)

    def _filled(self, value: Any, numbers: Sequence[int]) -> Any:
        if type(value) is Size:
            return numbers[self._places[value.terms]]
        if isinstance(value, tuple):
            parts: list[Any] = [part if type(part) is int else self._filled(part, numbers) for part in value]
            return tuple(parts) if type(value) is tuple else type(value)(*parts)
        return value


def _sizes(value: Any) -> Iterator[Size]:
    if type(value) is Size:
        yield value
    elif isinstance(value, tuple):
        for part in value:
            yield from _sizes(part)


def own(value: Any) -> Any:
    """A value whose sizes are Python's own integers: their record holds for these values only."""
    if type(value) is Size:
        return value.own()
    if isinstance(value, tuple):
        parts = [own(part) for part in value]
        return tuple(parts) if type(value) is tuple else type(value)(*parts)
    return value


# -- Evaluating


def evaluator(record: Record, wanted: Sequence[Terms]) -> Callable[..., tuple[int, ...] | None]:
    """A function of the symbols' values, in their order: the values of polynomials, or ``None`` where a guard fails."""
    arguments = [f"a{i}" for i, atom in enumerate(record.atoms) if isinstance(atom, Symbol)]
    lines = [f"def evaluate({', '.join(arguments)}):", "    try:"]
    for i, atom in enumerate(record.atoms):
        if isinstance(atom, Quotient):
            lines.append(f"        a{i} = ({_text(atom.number)}) // ({_text(atom.divisor)})")
    for condition in _conditions(record):
        lines += [f"        if not ({condition}):", "            return None"]
    lines.append(f"        return ({''.join(f'{_text(terms)}, ' for terms in wanted)})")
    lines += ["    except ZeroDivisionError:", "        return None"]
    space: dict[str, Any] = {}
    exec("\n".join(lines), {"__builtins__": {"ZeroDivisionError": ZeroDivisionError}}, space)  # noqa: S102 - integers and names made here
    return space["evaluate"]  # type: ignore[no-any-return]


def _conditions(record: Record) -> Iterator[str]:
    for i, atom in enumerate(record.atoms):
        if isinstance(atom, Symbol):
            yield from _interval(f"a{i}", *record.allowed(i), ())
    for terms, guard in record.guards.items():
        yield from _interval(_text(terms), guard.least, guard.most, sorted(guard.without))


def _interval(text: str, least: float, most: float, without: Sequence[int]) -> Iterator[str]:
    if least == most:
        yield f"{text} == {least}"
    elif least > -math.inf or most < math.inf:
        low, high = (f"{least} <= " if least > -math.inf else ""), (f" <= {most}" if most < math.inf else "")
        yield f"{low}{text}{high}"
    if without:
        yield f"{text} not in ({''.join(f'{number}, ' for number in without)})"


def _text(terms: Terms | int) -> str:
    """A polynomial in Python: an atom's name is ``a`` and its number."""
    if isinstance(terms, int):
        return str(terms)
    products = ("*".join([str(factor)] * (factor != 1 or not atoms) + [f"a{atom}" for atom in atoms]) for atoms, factor in terms)
    return " + ".join(products)
