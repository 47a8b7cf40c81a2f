"""Polynomials of atoms, which are known by their numbers: pure arithmetic."""

from __future__ import annotations

import functools
import math
from collections import Counter
from collections.abc import Mapping

Terms = tuple[tuple[tuple[int, ...], int], ...]
"""A polynomial: products of atoms, and their factors. In order, so the constant comes first; no factor is 0."""
Monomial = tuple[int, ...]
_MOST_KNOWN = 1 << 12
"""A graph has few sizes, and computes with them again and again."""


def ordered(terms: Mapping[Monomial, int]) -> Terms:
    """The polynomial of products and factors."""
    return tuple(sorted([term for term in terms.items() if term[1]]))


def constant(number: int) -> Terms:
    """The polynomial that is a number."""
    return (((), number),) if number else ()


def of(value: Terms | int) -> Terms:
    """A polynomial that may be given as a number."""
    return constant(value) if isinstance(value, int) else value


def atom(number: int) -> Terms:
    """The polynomial that is an atom."""
    return (((number,), 1),)


@functools.lru_cache(_MOST_KNOWN)
def plus(a: Terms, b: Terms, factor: int = 1) -> Terms:
    """``a + factor * b``."""
    terms = dict(a)
    for atoms, own in b:
        terms[atoms] = terms.get(atoms, 0) + factor * own
    return ordered(terms)


@functools.lru_cache(_MOST_KNOWN)
def times(a: Terms, b: Terms) -> Terms:
    """``a * b``."""
    terms: dict[Monomial, int] = {}
    for mine, factor in a:
        for theirs, other in b:
            atoms = tuple(sorted(mine + theirs))
            terms[atoms] = terms.get(atoms, 0) + factor * other
    return ordered(terms)


def scaled(terms: Terms, divisor: int) -> Terms:
    """The polynomial by an integer that divides all factors."""
    return tuple((atoms, factor // divisor) for atoms, factor in terms)


def apart(terms: Terms) -> tuple[int, Terms]:
    """The constant, and the rest."""
    return (terms[0][1], terms[1:]) if terms and terms[0][0] == () else (0, terms)


def normal(terms: Terms) -> tuple[int, Terms]:
    """A divisor of all factors, and the polynomial by it: without a common factor, and with a positive first one."""
    if terms[0][1] == 1:
        return 1, terms
    divisor = math.gcd(*[factor for _, factor in terms])
    if terms[0][1] < 0:
        divisor = -divisor
    return divisor, terms if divisor == 1 else scaled(terms, divisor)


def common(terms: Terms) -> Monomial:
    """The atoms that all products have."""
    if not terms or terms[0][0] == ():
        return ()
    shared = Counter(terms[0][0])
    for atoms, _ in terms[1:]:
        shared &= Counter(atoms)
    return tuple(sorted(shared.elements()))


def without(terms: Terms, atoms: Monomial) -> Terms:
    """The polynomial by a product that all products have."""
    return ordered({_less(own, atoms): factor for own, factor in terms}) if atoms else terms


def parted(terms: Terms, number: int) -> tuple[Terms, Terms]:
    """``a`` and ``b``, where the polynomial is an atom times ``a``, plus ``b``."""
    within = {_less(atoms, (number,)): factor for atoms, factor in terms if number in atoms}
    return ordered(within), tuple((atoms, factor) for atoms, factor in terms if number not in atoms)


def ratio(a: Terms, b: Terms) -> tuple[int, int] | None:
    """Two integers whose ratio is that of two polynomials in all cases."""
    if not a or not b or [atoms for atoms, _ in a] != [atoms for atoms, _ in b]:
        return None
    first, other = a[0][1], b[0][1]
    return (first, other) if all(x * other == y * first for (_, x), (_, y) in zip(a, b, strict=True)) else None


def _less(atoms: Monomial, others: Monomial) -> Monomial:
    left = list(atoms)
    for number in others:
        left.remove(number)
    return tuple(left)
