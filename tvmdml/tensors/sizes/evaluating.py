"""``GuardedIntegers``: what makes integers of the symbols' values, and says for which of them. It is data, and becomes code."""

from __future__ import annotations

import importlib
import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, NamedTuple

from tvmdml.tensors.sizes import polynomials, showing
from tvmdml.tensors.sizes.guards import Atom, Quotient, Symbol, Within
from tvmdml.tensors.sizes.polynomials import Terms
from tvmdml.tensors.sizes.record import Open, Record
from tvmdml.tensors.sizes.size import Size

Evaluator = Callable[..., "tuple[int, ...] | None"]
"""Called with the symbols' values, in their order: the integers, or ``None`` where a condition does not hold."""
Polynomial = Terms | int
_CHOICES = "tvmdml.kernels.tiles"
"""The module whose functions a file may name."""
_MOST = 1 << 512
"""No integer that is read is larger: guards have products of sizes, which are below 2^32."""
_MOST_TERMS, _MOST_FACTORS = 4096, 64
"""Of a polynomial that is read, and of one of its products."""
_BITS, _MOST_BITS = 64, 1 << 12
"""Of a symbol, and of a quotient that is read, of which another one may be a power."""


def own(value: Any) -> Any:
    """A value whose sizes are Python's own integers: their record holds for these values only."""
    if type(value) is Size:
        return value.own()
    if isinstance(value, tuple):
        parts = [own(part) for part in value]
        return tuple(parts) if type(value) is tuple else type(value)(*parts)
    return value


def terms_of(value: Any) -> Polynomial:
    """A size, or Python's own integer, as a polynomial."""
    return value.terms if type(value) is Size else value


class Condition(NamedTuple):
    """An interval in which a polynomial must stay, and numbers that it must not be."""

    terms: Terms
    least: int | None
    most: int | None
    without: tuple[int, ...]


class Choice(NamedTuple):
    """A function of integers, and what it must return."""

    function: Callable[..., Any]
    arguments: tuple[Any, ...]
    """Polynomials are ``Open``."""
    answer: Any


class GuardedIntegers(NamedTuple):
    """Conditions, and the integers that hold where they do."""

    symbols: tuple[int, ...]
    """Which atoms the arguments are."""
    quotients: tuple[tuple[int, Polynomial, Polynomial], ...]
    """Other atoms, in an order in which each follows those that it needs: its number, what is divided, and by what."""
    conditions: tuple[Condition, ...]
    choices: tuple[Choice, ...]
    wanted: tuple[Polynomial, ...]

    @classmethod
    def of(cls, record: Record, wanted: Sequence[Polynomial], within: Record | None = None) -> GuardedIntegers:
        """The function of polynomials of a record, with its guards.

        Args:
            record: of the polynomials.
            wanted: them.
            within: a record that this one was made from, whose guards are known to hold.
        """
        conditions = tuple(_conditions(record, within))
        choices = tuple(
            Choice(function, arguments, answer)
            for (function, arguments), answer in record.choices.items()
            if within is None or (function, arguments) not in within.choices
        )
        used: set[int] = set()
        asked = [argument.terms for choice in choices for argument in choice.arguments if isinstance(argument, Open)]
        for terms in (*wanted, *(condition.terms for condition in conditions), *asked):
            _use(record, terms, used)
        symbols = tuple(i for i, atom in enumerate(record.atoms) if isinstance(atom, Symbol))
        quotients = tuple((i, *atom) for i, atom in enumerate(record.atoms) if isinstance(atom, Quotient) and i in used)
        return cls(symbols, quotients, conditions, choices, tuple(wanted))

    def evaluated(self, *values: int) -> tuple[int, ...] | None:
        """What ``compiled`` returns, without code: for a function that is called once."""
        atoms = dict(zip(self.symbols, values, strict=True))

        def value(terms: Polynomial) -> int:
            if isinstance(terms, int):
                return terms
            return sum([factor * math.prod([atoms[i] for i in own]) for own, factor in terms])

        try:
            for i, number, divisor in self.quotients:
                atoms[i] = value(number) // value(divisor)
            for terms, least, most, without in self.conditions:
                n = value(terms)
                if (least is not None and n < least) or (most is not None and n > most) or n in without:
                    return None
            for function, arguments, answer in self.choices:
                if function(*[value(given.terms) if isinstance(given, Open) else given for given in arguments]) != answer:
                    return None
            return tuple(map(value, self.wanted))
        except ZeroDivisionError:
            return None

    def compiled(self) -> Evaluator:
        """The function as code; without symbols it needs none."""
        if not (self.symbols or self.conditions or self.choices) and all(isinstance(terms, int) for terms in self.wanted):
            fixed: Any = self.wanted
            return lambda: fixed
        space: dict[str, Any] = {"__builtins__": {"ZeroDivisionError": ZeroDivisionError}}
        lines = [f"def evaluate({', '.join(f'a{i}' for i in self.symbols)}):", "    try:"]
        for i, number, divisor in self.quotients:
            lines.append(f"        a{i} = ({_text(number)}) // ({_text(divisor)})")
        for condition in self.conditions:
            for text in _tests(*condition):
                lines += [f"        if not ({text}):", "            return None"]
        for function, arguments, answer in self.choices:
            given = ", ".join(_text(one.terms) if isinstance(one, Open) else _named(space, one) for one in arguments)
            lines += [f"        if {_named(space, function)}({given}) != {_named(space, answer)}:", "            return None"]
        lines.append(f"        return ({''.join(f'{_text(terms)}, ' for terms in self.wanted)})")
        lines += ["    except ZeroDivisionError:", "        return None"]
        exec("\n".join(lines), space)  # noqa: S102 - integers and names made here
        return space["evaluate"]

    def texts(self, names: Sequence[str]) -> list[str]:
        """The conditions in words: ``2 <= n <= 64``.

        Args:
            names: of the symbols.
        """
        atoms = self._atoms(names)
        guards = [
            (terms, Within(_or(least, -math.inf), _or(most, math.inf), frozenset(without)))
            for terms, least, most, without in self.conditions
        ]
        texts = showing.conditions(atoms, guards)
        for function, arguments, answer in self.choices:
            shown = [showing.text(atoms, given.terms) if isinstance(given, Open) else f"{given}" for given in arguments]
            texts.append(f"{function.__name__}({', '.join(shown)}) == {answer}")
        return texts

    def shown(self, names: Sequence[str]) -> list[str]:
        """The integers in words: ``2*n + 1``.

        Args:
            names: of the symbols.
        """
        atoms = self._atoms(names)
        return [showing.text(atoms, polynomials.of(terms)) for terms in self.wanted]

    def _atoms(self, names: Sequence[str]) -> dict[int, Atom]:
        symbols = zip(self.symbols, map(Symbol, names), strict=True)
        return {**dict(symbols), **{i: Quotient(number, divisor) for i, number, divisor in self.quotients}}

    # -- As JSON

    def written(self) -> list[Any]:
        """The function as JSON.

        Raises:
            ValueError: a function of a choice is none of a schedule's.
        """
        choices = [
            [_name_of(function), [["terms", one.terms] if isinstance(one, Open) else ["is", one] for one in arguments], answer]
            for function, arguments, answer in self.choices
        ]
        return [self.symbols, self.quotients, self.conditions, choices, self.wanted]

    @classmethod
    def read(cls, given: Any, asks_schedules: bool = False) -> GuardedIntegers:
        """A function that was written.

        Args:
            given: as it was written.
            asks_schedules: it may have choices, which run with the arguments that are written: it is this user's own.

        Raises:
            ValueError, TypeError: it is damaged.
        """
        symbols, quotients, conditions, choices, wanted = given
        if choices and not asks_schedules:
            raise ValueError("choices of schedules")
        function = cls(
            tuple(map(_integer, symbols)),
            tuple((_integer(i), _polynomial(number), _polynomial(divisor)) for i, number, divisor in quotients),
            tuple(
                Condition(_terms(terms), _limit(least), _limit(most), tuple(map(_integer, without)))
                for terms, least, most, without in conditions
            ),
            tuple(
                Choice(_choice(name), tuple(_argument(*one) for one in arguments), _plain(answer))
                for name, arguments, answer in choices
            ),
            tuple(map(_polynomial, wanted)),
        )
        known = dict.fromkeys(function.symbols, _BITS)
        if len(known) < len(function.symbols) or min(known, default=0) < 0:
            raise ValueError(f"symbols {function.symbols}")
        for i, number, divisor in function.quotients:
            if i < 0 or i in known:
                raise ValueError(f"the quotient {i}")
            _require(known, number, divisor)
            known[i] = _bits(known, number)
            if known[i] > _MOST_BITS:
                raise ValueError(f"the quotient {i} of {known[i]} bits")
        asked = (one.terms for choice in function.choices for one in choice.arguments if isinstance(one, Open))
        _require(known, *(condition.terms for condition in function.conditions), *asked, *function.wanted)
        return function


def evaluator(record: Record, wanted: Sequence[Polynomial], within: Record | None = None) -> Evaluator:
    """``GuardedIntegers.of``, compiled."""
    return GuardedIntegers.of(record, wanted, within).compiled()


# -- Of a record


def _use(record: Record, terms: Polynomial, used: set[int]) -> None:
    """Add the atoms that a polynomial needs."""
    if isinstance(terms, int):
        return
    for atoms, _ in terms:
        for i in atoms:
            if i not in used:
                used.add(i)
                atom = record.atoms[i]
                if isinstance(atom, Quotient):
                    _use(record, atom.number, used)
                    _use(record, atom.divisor, used)


def _conditions(record: Record, within: Record | None) -> Iterator[Condition]:
    if within is None:
        for i, atom in enumerate(record.atoms):
            if isinstance(atom, Symbol):
                least, most = record.allowed[i]
                yield Condition((((i,), 1),), _finite(least), _finite(most), ())
    for terms, guard in record.guards.items():
        known = None if within is None else within.guards.get(terms)
        if known is None or known != guard:
            yield Condition(terms, _finite(guard.least), _finite(guard.most), tuple(sorted(guard.without)))


def _or(limit: int | None, otherwise: float) -> float:
    return otherwise if limit is None else limit


def _finite(limit: float) -> int | None:
    return None if math.isinf(limit) else int(limit)


# -- Code


def _tests(terms: Terms, least: int | None, most: int | None, without: Sequence[int]) -> Iterator[str]:
    text = _text(terms)
    if least is not None and least == most:
        yield f"{text} == {least}"
    elif least is not None or most is not None:
        low, high = ("" if least is None else f"{least} <= "), ("" if most is None else f" <= {most}")
        yield f"{low}{text}{high}"
    if without:
        yield f"{text} not in ({''.join(f'{number}, ' for number in without)})"


def _text(terms: Polynomial) -> str:
    """A polynomial in Python: an atom's name is ``a`` and its number."""
    if isinstance(terms, int):
        return f"{terms:d}"
    products = ("*".join([str(factor)] * (factor != 1 or not atoms) + [f"a{atom}" for atom in atoms]) for atoms, factor in terms)
    return " + ".join(products)


def _named(space: dict[str, Any], value: Any) -> str:
    """The name of a value that the code reads."""
    name = f"v{len(space)}"
    space[name] = value
    return name


# -- Reading


def _integer(value: Any) -> int:
    if type(value) is not int or not -_MOST < value < _MOST:
        raise ValueError(f"{str(value)[:100]}, which is no integer, or too large")
    return value


def _limit(value: Any) -> int | None:
    return None if value is None else _integer(value)


def _terms(given: Any) -> Terms:
    terms = tuple((tuple(map(_integer, atoms)), _integer(factor)) for atoms, factor in given)
    if not 0 < len(terms) <= _MOST_TERMS or any(len(atoms) > _MOST_FACTORS for atoms, _ in terms):
        raise ValueError("a polynomial without products, or with too many")
    return terms


def _polynomial(given: Any) -> Polynomial:
    return _integer(given) if type(given) is int else _terms(given)


def _require(known: Mapping[int, int], *polynomials: Polynomial) -> None:
    """Refuse atoms that are not there."""
    used = {i for terms in polynomials if not isinstance(terms, int) for atoms, _ in terms for i in atoms}
    if not used <= known.keys():
        raise ValueError(f"atoms {sorted(used - known.keys())}")


def _bits(known: Mapping[int, int], terms: Polynomial) -> int:
    """The most bits of a polynomial, given those of atoms."""
    if isinstance(terms, int):
        return terms.bit_length()
    products = [factor.bit_length() + sum([known[i] for i in atoms]) for atoms, factor in terms]
    return max(products) + len(products).bit_length()


def _plain(value: Any) -> Any:
    """JSON, whose lists are tuples."""
    return tuple(map(_plain, value)) if isinstance(value, list) else value


def _argument(kind: str, value: Any) -> Any:
    return Open(_terms(value)) if kind == "terms" else _plain(value)


def _name_of(function: Any) -> str:
    if getattr(function, "is_choice", False) is not True or function.__module__ != _CHOICES:
        raise ValueError(f"{function!r}, which is no choice of a schedule")
    return f"{_CHOICES}:{function.__name__}"


def _choice(name: Any) -> Any:
    module, _, attribute = str(name).partition(":")
    if module != _CHOICES:
        raise ValueError(f"{name!r}, which is no choice of a schedule")
    function = getattr(importlib.import_module(module), attribute)
    if getattr(function, "is_choice", False) is not True:
        raise ValueError(f"{name!r}, which is no choice of a schedule")
    return function
