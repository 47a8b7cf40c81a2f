"""What a reduction computes: how elements are combined, and in which walks over a slice.

A slice is the elements that become one: those along the reduced axes. A ``Walk`` goes over all elements of a slice, makes something
of each, and combines that. What it comes to is known to the next walk; after the last one, results are computed: of the slice, and
of each element.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import numpy as np

from tvmdml.kernels import tensorir_values as T

CHAIN = 32
"""How many elements are added one after the other, before the sum becomes a term of the next level's sum."""
FOLDS = 64
"""How many such sums, and sums of sums, are added one after the other."""
LEVELS = 4
"""Sums of sums. All together no element takes part in more additions than ``64 + 8 log2 n``."""

Values = tuple[Any, ...]


class Combination:
    """How two partial results become one. A partial result is a tuple of values."""

    exact = True
    """Whether the order makes no difference, so that there need not be levels."""
    width = 1
    """The number of values."""

    def identity(self, like: Values) -> Values:
        """What changes nothing: values with the types and lanes of those given."""
        raise NotImplementedError

    def combine(self, a: Values, b: Values, in_order: bool = False) -> Values:
        """Both combined. ``in_order`` says that the elements of ``b`` come after those of ``a``."""
        raise NotImplementedError


class _Sum(Combination):
    exact = False

    def identity(self, like: Values) -> Values:
        return (T.like(like[0], -0.0 if T.is_float(like[0]) else 0),)  # -0 + x is x for zeros, too

    def combine(self, a: Values, b: Values, in_order: bool = False) -> Values:
        return (a[0] + b[0],)


class _Product(Combination):
    exact = False

    def identity(self, like: Values) -> Values:
        return (T.like(like[0], 1),)

    def combine(self, a: Values, b: Values, in_order: bool = False) -> Values:
        return (a[0] * b[0],)


class _Extreme(Combination):
    """The largest or the smallest value; NaN if there is one, or with ``of_numbers`` perhaps the largest number."""

    def __init__(self, largest: bool, of_numbers: bool = False) -> None:
        self.largest, self.of_numbers = largest, of_numbers

    def identity(self, like: Values) -> Values:
        return (T.like(like[0], (-np.inf if self.largest else np.inf) if T.is_float(like[0]) else self._worst(like[0])),)

    def _worst(self, value: Any) -> int:
        limits = np.iinfo(T.scalar_type(value))
        return int(limits.min if self.largest else limits.max)

    def combine(self, a: Values, b: Values, in_order: bool = False) -> Values:
        if self.of_numbers:
            return (T.Select(self.exceeds(b[0], a[0]), b[0], a[0]),)
        return ((T.maximum if self.largest else T.minimum)(b[0], a[0]),)

    def exceeds(self, value: Any, other: Any, or_equals: bool = False) -> Any:
        """Whether a value is nearer to the extreme than another; no NaN is."""
        if or_equals:
            return value >= other if self.largest else value <= other
        return value > other if self.largest else value < other


class _Bits(Combination):
    """The largest and smallest bits of floats as integers: with a sign the largest, without one the largest and the smallest.

    As integers with a sign, a positive float is larger than all negative ones; without, a negative one is larger than all positive
    ones. Each order is that of floats among positive ones, and the opposite among negative ones.
    """

    width = 3

    def identity(self, like: Values) -> Values:
        width = T.bits_of(like[0])
        return T.like(like[0], -(1 << (width - 1))), T.like(like[1], 0), T.like(like[2], (1 << width) - 1)

    def combine(self, a: Values, b: Values, in_order: bool = False) -> Values:
        return T.max(a[0], b[0]), T.max(a[1], b[1]), T.min(a[2], b[2])


class _Place(Combination):
    """The position of the largest key: (key, position). Of equal keys the first or the last counts."""

    width = 2

    def __init__(self, last: bool) -> None:
        self.last = last

    def identity(self, like: Values) -> Values:
        key, position = like
        return T.like(key, int(np.iinfo(T.scalar_type(key)).min)), T.like(position, -1 if self.last else (2**31 - 1))

    def combine(self, a: Values, b: Values, in_order: bool = False) -> Values:
        if in_order:
            better = b[0] >= a[0] if self.last else b[0] > a[0]
        else:
            nearer = b[1] > a[1] if self.last else b[1] < a[1]
            better = (b[0] > a[0]) | (T.expression(b[0] == a[0]) & nearer)
        return T.select(better, b[0], a[0]), T.select(better, b[1], a[1])


SUM, PRODUCT = _Sum(), _Product()
LARGEST, SMALLEST = _Extreme(True), _Extreme(False)
LARGEST_NUMBER = _Extreme(True, of_numbers=True)
"""For what is NaN anyway if there is one."""
FIRST, LAST = _Place(False), _Place(True)


def itself(x: Any) -> Any:
    """What an element becomes that stays as it is."""
    return x


def key_of(value: Any, largest: bool) -> Any:
    """An integer that orders elements: the largest belongs to the largest or smallest value, or to NaN; zeros have the same."""
    if not T.is_float(value):
        width = max(T.bits_of(value), 32)
        if T.scalar_type(value) in ("uint32", "uint64"):
            value = T.reinterpret(value ^ T.like(value, 1 << (width - 1)), f"int{width}")
        value = T.cast(value, f"int{width}")
        return value if largest else ~value
    width = T.bits_of(value)
    bits = T.reinterpret(value + T.like(value, 0.0), f"int{width}")  # of -0 those of +0
    mask = (1 << (width - 1)) - 1
    bits = bits ^ ((bits >> T.like(bits, width - 1)) & T.like(bits, mask))
    return T.select(T.is_nan(value), T.like(bits, mask), bits if largest else ~bits)


class Walk(NamedTuple):
    """A walk over the elements of a slice."""

    combinations: tuple[Combination, ...]
    before: Callable[..., Any]
    """What an element becomes: of the elements of all inputs, and of what earlier walks have found, a value for each that the
    combinations need (one value, or a tuple). A float16 is given as float32."""
    after: Callable[..., Any] | None = None
    """What the totals become: of the totals, what earlier walks have found, and the number of elements as a float."""
    finds: int = 0
    """How many values ``after`` returns, if they are not as many as the combinations have."""
    counted: bool = False
    """Whether ``before`` gets the element's position in the slice, as its first argument."""

    kept: bool = False
    """Whether ``element`` gets the value that an element became, as its last argument: it need not be computed again."""

    extreme: _Extreme | None = None
    """That of the elements themselves, if the place of the largest or smallest one is sought: a schedule may go by it, and look for
    the place afterwards."""

    @property
    def seeks_an_element(self) -> bool:
        """Whether it finds the largest or the smallest element, and no more."""
        return self.combinations in ((LARGEST,), (SMALLEST,)) and self.before is itself and self.after is None

    @property
    def states(self) -> int:
        """The number of values of the combinations."""
        return sum(one.width for one in self.combinations)

    @property
    def found(self) -> int:
        """The number of values that it finds."""
        return self.finds or self.states

    @property
    def exact(self) -> bool:
        """Whether the order of elements makes no difference."""
        return all(one.exact for one in self.combinations)

    def values(self, found: Sequence[Any], position: Any, elements: Sequence[Any]) -> Values:
        """What an element becomes."""
        given = self.before(*([position] if self.counted else []), *elements, *found)
        return given if isinstance(given, tuple) else (given,)

    def identity(self, like: Values) -> Values:
        """The totals of no elements."""
        return self._each(lambda one, values: one.identity(values), like)

    def combine(self, a: Values, b: Values, in_order: bool = False) -> Values:
        """The totals of both."""
        return self._each(lambda one, x, y: one.combine(x, y, in_order), a, b)

    def totals(self, values: Values, found: Sequence[Any], count: Any) -> Values:
        """What is found."""
        if self.after is None:
            return values
        given = self.after(*values, *found, count)
        return given if isinstance(given, tuple) else (given,)

    def _each(self, do: Callable[..., Values], *parts: Values) -> Values:
        found: Values = ()
        at = 0
        for one in self.combinations:
            found += do(one, *(part[at : at + one.width] for part in parts))
            at += one.width
        return found


def places(largest: bool, last: bool = False) -> tuple[Walk, ...]:
    """The walk that finds the place of the largest or smallest element: the key and the place are found."""

    def settled(key: Any, position: Any, _: Any) -> Any:
        # The least key is also that of no element, which no element of this key replaces: then all elements are alike.
        # TVM compares by differences, as if these could not overflow; it does not look through an exclusive or.
        rest = key ^ T.like(key, int(np.iinfo(T.scalar_type(key)).min))
        least = T.expression(rest == T.like(key, 0))
        return key, position if last else T.select(least, 0, position)

    combination = LAST if last else FIRST
    extreme = LARGEST if largest else SMALLEST
    return (Walk((combination,), lambda position, x: (key_of(x, largest), position), settled, counted=True, extreme=extreme),)


_INFINITE = {"float16": 0x7C00, "float32": 0x7F800000}
"""The bits of infinities. Processors do not compare wider integers in one instruction."""


def has_bits(walk: Walk, dtype: str) -> bool:
    """Whether there is the same walk on the bits of elements (``of_bits``)."""
    return walk.seeks_an_element and dtype in _INFINITE


def of_bits(walk: Walk, dtype: str) -> Walk:
    """A walk that seeks an element, by the bits of elements: NaN takes no comparison of its own, and float16 no conversion.

    Elements are given in their own type.
    """
    largest = walk.combinations == (LARGEST,)
    width, infinite = 8 * np.dtype(dtype).itemsize, _INFINITE[dtype]

    def before(x: Any) -> Values:
        bits = T.hold(T.reinterpret(x, f"uint{width}"))
        return T.reinterpret(bits, f"int{width}"), bits, bits

    def after(signed: Any, most: Any, least: Any, _: Any) -> Any:
        sign = 1 << (width - 1)
        if largest:
            found = T.Select(signed < T.like(signed, 0), least, T.reinterpret(signed, f"uint{width}"))
        else:
            found = T.Select(most >= T.like(most, sign), most, least)
        is_nan = (signed > T.like(signed, infinite)) | (most > T.like(most, sign | infinite))
        return T.wide(T.reinterpret(T.hold(T.Select(is_nan, T.like(most, sign - 1), found)), dtype))

    return Walk((_Bits(),), before, after, finds=1)


class Totals:
    """Totals in variables: of a level, of what was folded into the next one, and so on."""

    def __init__(self, walk: Walk, like: Values, levels: int | None = None) -> None:
        self.walk = walk
        self.identity = walk.identity(like)
        count = 1 if walk.exact else LEVELS if levels is None else levels
        self.levels = [[T.Variable(T.type_of(one), one) for one in self.identity] for _ in range(count)]

    def add(self, values: Values, level: int = 0, in_order: bool = True) -> None:
        """Combine values with those of a level."""
        level = min(level, len(self.levels) - 1)
        own = self.levels[level]
        held = tuple(map(T.hold, values)) if len(values) > 1 else values
        found = self.walk.combine(tuple(one.value for one in own), held, in_order)
        for variable, value in zip(own, tuple(map(T.hold, found)) if len(found) > 1 else found, strict=True):
            variable.set(value)

    def reset(self) -> None:
        """No elements, at all levels."""
        for own in self.levels:
            for variable, value in zip(own, self.identity, strict=True):
                variable.set(value)

    def fold(self, level: int) -> None:
        """A level becomes a term of the next one."""
        self.add(tuple(one.value for one in self.levels[level]), level + 1)
        for variable, value in zip(self.levels[level], self.identity, strict=True):
            variable.set(value)

    def fold_after(self, count: Any, every: int = CHAIN) -> None:
        """Fold what is due after ``count`` terms of the first level."""
        for level in range(len(self.levels) - 1):
            with T.when(T.expression(count & T.const(every - 1, T.type_of(count)) == T.const(0, T.type_of(count)))):
                self.fold(level)
            every *= FOLDS

    @property
    def values(self) -> Values:
        """All levels combined."""
        found = tuple(one.value for one in self.levels[-1])
        for own in reversed(self.levels[:-1]):
            found = tuple(map(T.hold, self.walk.combine(found, tuple(one.value for one in own))))
        return found
