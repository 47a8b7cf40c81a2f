"""Whether a model depends on its sizes regularly: what decides its programs are sizes, and sums and products of them.

A model may compute with sizes in any way: ``x[:n // 2]``, ``n > 512``. Here, conversions for several sizes are compared node by
node. A result that is known is one of these:

- **constant**: the same for all sizes;
- **regular**: integers that are sizes, or sums and products of regular ones. All are polynomials of degree 2 at most, which five
  sizes prove: a product of two has degree 4;
- anything else, such as positions, masks, and quotients, even if it is the same for all sizes that were tried. Nodes may compute
  with it element by element. It must decide no shape, and nothing else that a program depends on.
"""

from __future__ import annotations

import enum
import math
from collections.abc import Mapping, Sequence
from fractions import Fraction
from typing import Any, NamedTuple

import numpy as np

from tvmdml.arrays import NumpyArray
from tvmdml.graph.by_size import Differs, Number
from tvmdml.onnx.converting import Conversion
from tvmdml.onnx.scopes import Traced
from tvmdml.onnx.values import Value

_FIRST = frozenset({0})
_SUMS: Mapping[str, frozenset[int] | None] = {
    **dict.fromkeys(("Add", "Concat", "Mul", "Neg", "Sub", "Sum")),
    **dict.fromkeys(("Cast", "Flatten", "Gather", "Identity", "ReduceProd", "ReduceSum", "Reshape", "Slice"), _FIRST),
    **dict.fromkeys(("Squeeze", "Tile", "Transpose", "Unsqueeze"), _FIRST),
}
"""Operators whose results are regular if these inputs are (``None``: all), and the others constant."""
_COMPARED = frozenset({"Equal", "Greater", "GreaterOrEqual", "Less", "LessOrEqual"})
_CHOSEN = frozenset({"Max", "Min"})
_BY_ELEMENT = (
    _COMPARED
    | _CHOSEN
    | {
        *(
            "Add",
            "And",
            "Cast",
            "Concat",
            "Cos",
            "Div",
            "Exp",
            "Gather",
            "Identity",
            "MatMul",
            "Mul",
            "Neg",
            "Not",
            "Or",
            "Sin",
            "Sub",
        ),
        *("Transpose", "Where", "Xor"),
    }
)
_INNER = frozenset({"If", "Loop", "Scan"})
"""Operators with inner graphs."""
_MOST_DEGREE = 4
"""Of a polynomial that five sizes decide."""
_MOST_PERIOD = 64
_NEARLY = 2
"""How far a dimension is from a part of the size at most: windows may go beyond edges, or end before them."""
_RESHAPED = frozenset({"Expand", "Flatten", "Reshape", "Slice", "Squeeze", "Tile", "Unsqueeze"})
"""Operators that compute with the elements of all inputs, or of the first one."""


class _Kind(enum.IntEnum):
    CONSTANT = 0
    REGULAR = 1
    OTHER = 2


class Kinds(NamedTuple):
    """What is known of the tensors of conversions."""

    others: frozenset[int]
    """The identities of the first conversion's values that are neither constant nor regular."""
    every: tuple[int, ...]
    """What each one is, in the order in which they were converted."""


def kinds(sizes: Sequence[int], step: int, conversions: Sequence[Conversion]) -> Kinds | None:
    """Which known tensors are neither constant nor regular; ``None`` if one of them decides about programs.

    All that the graph reads are tensors of the model's own graph.

    Args:
        sizes: the values of the size.
        step: the difference of two values that are next to each other.
        conversions: one model for each of them.
    """
    return _Compared(sizes, step, conversions).found()


def period(sizes: Sequence[int], conversions: Sequence[Conversion]) -> int | None:
    """After how many sizes all shapes may have grown by whole numbers; ``None`` if that is not to be seen, or many.

    A result may have an n-th of the size, rounded in some way. This is a guess: what follows from it must be proven.

    Args:
        sizes: the values of the size.
        conversions: one model for each of them.
    """
    found = 1
    columns: set[tuple[int, ...]] = set()
    for nodes in zip(*(one.trace for one in conversions), strict=False):
        for several in zip(*(one.results for one in nodes), strict=False):
            shapes = [() if one is None or one.shape is None else one.shape for one in several]
            if len(set(map(len, shapes))) == 1:
                columns.update(zip(*shapes, strict=True))
    for column in columns:
        if len(set(column)) > 1 and (part := _part(sizes, column)) is not None:
            found = math.lcm(found, part)
    return found if found <= _MOST_PERIOD else None


def _part(sizes: Sequence[int], column: Sequence[int]) -> int | None:
    """Which part of the size a dimension is, at least nearly."""
    slopes = {Fraction(b - column[0], n - sizes[0]) for n, b in zip(sizes[1:], column[1:], strict=True)}
    if len(slopes) == 1:
        return next(iter(slopes)).denominator
    part = max(1, round(max(sizes) / max(max(column), 1)))
    return part if all(abs(n / part - one) < _NEARLY for n, one in zip(sizes, column, strict=True)) else None


class _Compared:
    """Conversions of one model, node by node."""

    def __init__(self, sizes: Sequence[int], step: int, conversions: Sequence[Conversion]) -> None:
        self._sizes, self._step = sizes, step
        self._traces = [one.trace for one in conversions]
        self._own = set(map(id, conversions[0].tensors().values()))
        self._every: list[_Kind] = []
        self._kinds: dict[int, _Kind] = {}
        """By the identities of the first conversion's values. One that the graph computes has that of what it depends on: its
        elements may become known later."""

    def found(self) -> Kinds | None:
        if len(set(map(len, self._traces))) > 1 or not all(map(self._follows, zip(*self._traces, strict=True))):
            return None
        return Kinds(frozenset(one for one, kind in self._kinds.items() if kind is _Kind.OTHER), tuple(self._every))

    def _follows(self, nodes: Sequence[Traced]) -> bool:
        """Find what the results of a node are, and whether it may depend on its inputs as it does."""
        first = nodes[0]
        if len({(one.node.kind, len(one.node.inputs), len(one.node.read), one.folded) for one in nodes}) > 1:
            return False
        given = [_arrays(several) for several in zip(*(one.node.inputs for one in nodes), strict=True)]
        own = [self._kind(one, arrays) for one, arrays in zip(first.node.inputs, given, strict=True)]
        if not first.folded:
            others = [i for i, kind in enumerate(own) if kind is _Kind.OTHER]
            if others and first.node.kind not in _BY_ELEMENT and not (first.node.kind in _RESHAPED and others == [0]):
                return False
            if any(id(first.node.inputs[i]) not in self._own for i in others):
                return False  # of a function, or an inner graph: it cannot be computed alone
            if any(self._kinds.get(id(one)) is _Kind.OTHER for one in first.node.read):
                return False
        for several in zip(*(one.results for one in nodes), strict=True):
            if several[0] is not None:
                arrays = _arrays(several)
                kind = self._depends(first) if arrays is None else self._result(first, own, given, arrays)
                self._kinds[id(several[0])] = kind
                self._every.append(kind)
        return True

    def _kind(self, one: Value | None, arrays: list[NumpyArray] | None) -> _Kind:
        """What an input is."""
        if one is None or arrays is None:
            return _Kind.CONSTANT  # the graph computes it
        found = self._kinds.get(id(one))
        if found is _Kind.OTHER:
            return found
        if _alike(arrays):
            return _Kind.CONSTANT  # a polynomial with so many equal values is constant
        return _Kind.OTHER if found is None else found

    def _depends(self, one: Traced) -> _Kind:
        """What a result is if its elements become known: sizes, sequences and inner graphs may decide them in any way."""
        node = one.node
        free = all(each is None or (each.parts is None and not self._kinds.get(id(each))) for each in node.inputs)
        return _Kind.CONSTANT if free and node.kind not in _INNER else _Kind.OTHER

    def _result(self, one: Traced, own: Sequence[_Kind], given: Sequence[Any], arrays: list[NumpyArray]) -> _Kind:
        """What a result that is known is."""
        kind = one.node.kind
        if not one.folded:
            return self._depends(one) if _alike(arrays) else _Kind.OTHER
        if kind in ("Shape", "Size"):
            return _Kind.REGULAR if self._are_polynomials(arrays) else _Kind.OTHER
        if not any(own):
            return _Kind.CONSTANT if _alike(arrays) else _Kind.OTHER  # the shape decides some
        if _Kind.OTHER in own:
            return _Kind.OTHER
        if kind in _COMPARED and self._same_order(*given):
            return _Kind.CONSTANT
        if arrays[0].dtype.kind not in "iu" or not self._are_polynomials(arrays):
            return _Kind.OTHER
        if kind == "ReduceProd" and not self._is_low(given[0]):
            return _Kind.OTHER
        if (kind == "Where" and own[0] is _Kind.CONSTANT) or (kind in _CHOSEN and len(given) == 2 and self._same_order(*given)):
            return _Kind.REGULAR
        places = _SUMS.get(kind, frozenset())
        return _Kind.REGULAR if all(not one or places is None or i in places for i, one in enumerate(own)) else _Kind.OTHER

    # -- Polynomials

    def _numbers(self, arrays: Sequence[NumpyArray]) -> list[Number]:
        """The elements as polynomials of the size, which are integers at all sizes.

        Raises:
            Differs: they are none.
        """
        if len({one.shape for one in arrays}) > 1:
            raise Differs
        found = [Number.through(self._sizes, values) for values in zip(*(one.reshape(-1).tolist() for one in arrays), strict=True)]
        for one in found:
            for i in range(3):  # then all others are, too
                one.at(self._sizes[0] + i * self._step)
        return found

    def _are_polynomials(self, arrays: Sequence[NumpyArray]) -> bool:
        try:
            self._numbers(arrays)
        except Differs:
            return False
        return True

    def _is_low(self, arrays: Sequence[NumpyArray]) -> bool:
        """Whether the product of all elements has a degree that the sizes prove."""
        return sum(2 if one.square else 1 if one.linear else 0 for one in self._numbers(arrays)) <= _MOST_DEGREE

    def _same_order(self, x: Sequence[NumpyArray], y: Sequence[NumpyArray]) -> bool:
        """Whether each element of the one is less than, equal to or greater than that of the other for all sizes alike."""
        if x[0].dtype.kind not in "iu":
            return False
        try:
            found = self._numbers([np.asarray(np.subtract(a, b, dtype=object)) for a, b in zip(x, y, strict=True)])
        except Differs:
            return False
        least, most = min(self._sizes), max(self._sizes)
        for one in found:
            near = -one.linear // (2 * one.square) if one.square else least
            places = (least, most, *(n for n in (near, near + 1) if least <= n <= most))
            values = [(one.square * n + one.linear) * n + one.fixed for n in places]
            if len({(value > 0) - (value < 0) for value in values}) > 1:
                return False
        return True


def _arrays(several: Sequence[Value | None]) -> list[NumpyArray] | None:
    """The elements of a tensor for each size, if they are known."""
    found = [one.array for one in several if one is not None and one.array is not None]
    return found if len(found) == len(several) else None


def _alike(arrays: Sequence[NumpyArray]) -> bool:
    first = arrays[0]
    return all(one is first or (one.shape == first.shape and one.tobytes() == first.tobytes()) for one in arrays[1:])
