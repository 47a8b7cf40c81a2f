"""Attributes that are passed at launch: one kernel serves all their values.

A pointwise operator describes its formula with a ``Word`` in the place of each FLOAT attribute. ``tensorir_values.like`` makes a
word an expression over the launch's integers, each of which has the bits of one attribute.
"""

from __future__ import annotations

import copy
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from typing import TYPE_CHECKING, Any, NamedTuple, NoReturn

import numpy as np

from tvmdml.kernels import tensorir as T

if TYPE_CHECKING:
    from tvm.tirx import PrimExpr

_expressions: ContextVar[tuple[Any, ...]] = ContextVar("words", default=())


class Word(NamedTuple):
    """A number in single precision that is known at launch only. It cannot be computed with but by its own methods."""

    position: int
    rounded: str = ""
    """The type to which it is rounded before it is used; empty if it is not."""
    negated: bool = False

    def __neg__(self) -> Word:
        """The number with the other sign."""
        return self._replace(negated=not self.negated)

    def __repr__(self) -> str:
        """Its name, which stands for its value in a kernel's parameters."""
        return f"word {self.position}"

    def expression(self) -> PrimExpr:
        """The number, as a float32."""
        found = _expressions.get()[self.position]
        if self.rounded:
            found = T.cast(T.cast(found, self.rounded), "float32")
        return found * T.const(-1.0, "float32") if self.negated else found


def _refused(*_: object) -> NoReturn:
    """Python's operators on a ``Word``."""
    raise TypeError("an attribute that is passed at launch is no number; allowed: T.like(x, self.alpha), self.number(self.alpha)")


_BOTH_SIDES = ("add", "sub", "mul", "truediv", "pow")
for _operator in (*_BOTH_SIDES, *(f"r{one}" for one in _BOTH_SIDES), "float", "lt", "le", "gt", "ge"):
    setattr(Word, f"__{_operator}__", _refused)


class Words:
    """The attributes of a kernel that are passed at launch."""

    def __init__(self) -> None:
        self.values: list[float] = []

    def add(self, value: float) -> Word:
        """The word of one more attribute."""
        self.values.append(value)
        return Word(len(self.values) - 1)


def patterns(values: Sequence[float]) -> tuple[int, ...]:
    """The bits of numbers in single precision."""
    with np.errstate(over="ignore"):
        return tuple(np.array(values, np.float64).astype(np.float32).view(np.uint32).tolist())


@contextmanager
def given(expressions: Sequence[Any]) -> Iterator[None]:
    """Formulas that are evaluated meanwhile have these integers of 32 bits, or wider ones, as their words' bits."""
    token = _expressions.set(tuple(T.reinterpret("float32", T.cast(one, "int32")) for one in expressions))
    try:
        yield
    finally:
        _expressions.reset(token)


@contextmanager
def after(count: int) -> Iterator[None]:
    """Formulas that are evaluated meanwhile have the words after the first ``count``."""
    token = _expressions.set(_expressions.get()[count:])
    try:
        yield
    finally:
        _expressions.reset(token)


def with_fields(desc: Any, **fields: Any) -> Any:
    """A copy of a descriptor with other fields, which are not checked."""
    found = copy.copy(desc)
    for name, value in fields.items():
        object.__setattr__(found, name, value)
    return found
