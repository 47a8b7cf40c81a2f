"""Polynomials and guards as a reader would write them: ``n % 4 == 0``, ``h*w != 1``, ``n//2 <= m + 3``."""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Mapping, Sequence

from tvmdml.tensors.sizes import polynomials
from tvmdml.tensors.sizes.guards import Atom, Quotient, Symbol, Within
from tvmdml.tensors.sizes.polynomials import Terms

Atoms = Sequence[Atom] | Mapping[int, Atom]
"""By their numbers."""
_Sum = list[tuple[int, tuple[str, ...]]]
"""Numbers, and the names that each multiplies; of a constant none."""


def text(atoms: Atoms, terms: Terms) -> str:
    """A polynomial with the names of symbols."""
    return _joined(_sum(atoms, terms))


def conditions(atoms: Atoms, guards: Iterable[tuple[Terms, Within]]) -> list[str]:
    """What must hold, of polynomials without a constant, each condition once."""
    every: dict[Terms, Within] = {}
    for terms, own in guards:
        within = every.setdefault(terms, Within())
        within.without |= own.without
        within.limit(own.least, own.most)
    return [shown for terms, within in every.items() for shown in _conditions(atoms, terms, within)]


def _conditions(atoms: Atoms, terms: Terms, within: Within) -> list[str]:
    numbers = [polynomials.of(own.number) for i in _used(terms) if isinstance(own := atoms[i], Quotient)]
    for moved in dict.fromkeys([*(polynomials.apart(number)[0] for number in numbers), 0]):
        parts = _sum(atoms, polynomials.plus(terms, polynomials.constant(moved)))
        if is_remainder := len(parts) == 1 and parts[0][0] == 1 and "%" in "".join(parts[0][1]):
            break
    least, most = within.least + moved, within.most + moved
    shown = [_compared(parts, "!=", number + moved) for number in sorted(within.without)]
    if least == most:
        return [_compared(parts, "==", int(most))]
    if is_remainder and least == 1 and math.isinf(most) and parts[0][1][0].rpartition("% ")[2].isdigit():  # which is positive
        return [_compared(parts, "!=", 0), *shown]
    if math.isinf(least) and math.isinf(most):
        return shown
    if math.isinf(most):
        return [_compared(parts, ">=", int(least)), *shown]
    if math.isinf(least):
        return [_compared(parts, "<=", int(most)), *shown]
    return [f"{least} <= {_joined(parts)} <= {most}", *shown]


def _used(terms: Terms) -> list[int]:
    return list(dict.fromkeys(i for atoms, _ in terms for i in atoms))


def _compared(parts: _Sum, sign: str, number: int) -> str:
    """A comparison whose sides have no negative factors, where there are two of them."""
    left, right = [part for part in parts if part[0] > 0], [(-factor, own) for factor, own in parts if factor < 0]
    if not left or not right:
        return f"{_joined(parts)} {sign} {number}"
    if (sign, number) in (("<=", -1), (">=", 1)):
        sign, number = sign[0], 0
    left, right = (left, [*right, (number, ())]) if number > 0 else ([*left, (-number, ())], right)
    if sign in ("==", "!=") and right[0][0] == 1 and left[0][0] != 1:
        left, right = right, left
    return f"{_joined(left)} {sign} {_joined(right)}"


def _sum(atoms: Atoms, terms: Terms) -> _Sum:
    """The constant comes last."""
    remainders: _Sum = []
    for number in _used(terms):
        for over, by in _divisions(atoms, number, terms):
            rest = polynomials.plus(over, polynomials.times(by, polynomials.atom(number)), -1)
            own = dict(terms)
            product, factor = next(term for term in rest if number in term[0])
            times = own.get(product, 0) // factor
            if times > 0 and all(own.get(product, 0) / factor >= times for product, factor in rest):
                remainders.append((times, (f"{_within(atoms, over)} % {_within(atoms, by)}",)))
                terms = polynomials.plus(terms, rest, -times)
                break
    constant, others = polynomials.apart(terms)
    products = [(factor, tuple(_name(atoms, i) for i in own)) for own, factor in others]
    return [*remainders, *products, *([(constant, ())] if constant else [])]


def _divisions(atoms: Atoms, number: int, terms: Terms) -> Iterator[tuple[Terms, Terms]]:
    """What a quotient divides, and by what: ``n//16`` is ``n`` by 16, and where there is a term of ``n//2``, that by 8."""
    own = atoms[number]
    if not isinstance(own, Quotient):
        return
    yield polynomials.of(own.number), polynomials.of(own.divisor)
    for i in _used(terms):
        other = atoms[i]
        if isinstance(other, Quotient) and i != number and other.number == own.number:
            inner, outer = polynomials.of(other.divisor), polynomials.of(own.divisor)
            if (ratio := polynomials.ratio(outer, inner)) is not None and ratio[0] % ratio[1] == 0:
                yield polynomials.atom(i), polynomials.constant(ratio[0] // ratio[1])


def _joined(parts: _Sum) -> str:
    shown = ""
    for number, names in parts:
        if not number and len(parts) > 1:
            continue
        factors = [str(abs(number))] * (abs(number) != 1 or not names) + list(names)
        negated = number < 0 and not shown and any(sign in factors[0] for sign in "%/")  # -n//2 is (-n)//2
        alone = len(factors) == 1 and not negated and (len(parts) == 1 or "%" not in factors[0])
        product = factors[0] if alone else "*".join(f"({name})" if "%" in name or "//" in name else name for name in factors)
        sign = "-" if number < 0 else "+"
        shown += f" {sign} {product}" if shown else f"{'-' * (number < 0)}{product}"
    return shown or "0"


def _name(atoms: Atoms, number: int) -> str:
    own = atoms[number]
    if isinstance(own, Symbol):
        return own.name
    return "//".join(_within(atoms, polynomials.of(part)) for part in own)


def _within(atoms: Atoms, terms: Terms) -> str:
    """An operand of a division."""
    shown = text(atoms, terms)
    return f"({shown})" if any(sign in shown for sign in " */") else shown
