"""Whether a model depends on its sizes regularly: what decides its programs are sizes, and sums and products of them.

A model may compute with sizes in any way: ``x[:n // 2]``, ``n > 512``. Here, conversions for several sizes are compared node by
node. A result that is known is one of these:

- **constant**: the same for all sizes;
- **regular**: integers that are sizes, or sums and products of regular ones;
- anything else, such as positions, masks, and quotients. Nodes may compute with it element by element. It must decide no shape, and
  nothing else that a program depends on.
"""

from __future__ import annotations

import enum
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from tvmdml.arrays import NumpyArray
from tvmdml.onnx.converting import Conversion, Traced
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
_RESHAPED = frozenset({"Expand", "Flatten", "Reshape", "Slice", "Squeeze", "Tile", "Unsqueeze"})
"""Operators that compute with the elements of all inputs, or of the first one."""


class _Kind(enum.IntEnum):
    CONSTANT = 0
    REGULAR = 1
    OTHER = 2


def is_regular(conversions: Sequence[Conversion]) -> bool:
    """Whether all that decides the programs of one model for several sizes is regular. The sizes are in ascending order."""
    traces = [one.trace for one in conversions]
    if len({len(one) for one in traces}) > 1:
        return False
    kinds: dict[int, _Kind] = {}  # by the identities of the first conversion's values
    return all(_follows(nodes, kinds) for nodes in zip(*traces, strict=True))


def _follows(nodes: Sequence[Traced], kinds: dict[int, _Kind]) -> bool:
    """Find what the results of a node are, and whether it may depend on its inputs as it does."""
    first = nodes[0]
    if len({(one.node.kind, len(one.node.inputs), len(one.node.read), one.folded) for one in nodes}) > 1:
        return False
    given = [_arrays(several) for several in zip(*(one.node.inputs for one in nodes), strict=True)]
    own = [_kind(one, arrays, kinds) for one, arrays in zip(first.node.inputs, given, strict=True)]
    if not first.folded:
        others = [i for i, kind in enumerate(own) if kind is _Kind.OTHER]
        if others and first.node.kind not in _BY_ELEMENT and not (first.node.kind in _RESHAPED and others == [0]):
            return False
        if any(kinds.get(id(one), _Kind.CONSTANT) is _Kind.OTHER for one in first.node.read):
            return False
    for several in zip(*(one.results for one in nodes), strict=True):
        if several[0] is not None:
            arrays = _arrays(several)
            kinds[id(several[0])] = _result(first, own, given, arrays) if arrays is not None else _Kind.CONSTANT
    return True


def _arrays(several: Sequence[Value | None]) -> list[NumpyArray] | None:
    """The elements of a tensor for each size, if they are known."""
    found = [one.array for one in several if one is not None and one.array is not None]
    return found if len(found) == len(several) else None


def _kind(one: Value | None, arrays: list[NumpyArray] | None, kinds: Mapping[int, _Kind]) -> _Kind:
    """What an input is."""
    if one is None or arrays is None:
        return _Kind.CONSTANT  # the graph computes it
    found = kinds.get(id(one))
    if found is _Kind.OTHER:
        return found
    if _alike(arrays):
        return _Kind.CONSTANT  # a polynomial with so many equal values is constant
    return _Kind.OTHER if found is None else found


def _result(one: Traced, own: Sequence[_Kind], given: Sequence[Any], arrays: list[NumpyArray]) -> _Kind:
    """What a result that is known is."""
    kind = one.node.kind
    if not one.folded:
        return _Kind.CONSTANT if _alike(arrays) else _Kind.OTHER
    if kind in ("Shape", "Size"):
        return _Kind.REGULAR
    if not any(own):
        return _Kind.CONSTANT if _alike(arrays) else _Kind.OTHER  # the shape decides some
    if _Kind.OTHER in own:
        return _Kind.OTHER
    if kind in _COMPARED and _same_order(*given):
        return _Kind.CONSTANT
    if arrays[0].dtype.kind not in "iu":
        return _Kind.OTHER
    if (kind == "Where" and own[0] is _Kind.CONSTANT) or (kind in _CHOSEN and len(given) == 2 and _same_order(*given)):
        return _Kind.REGULAR
    places = _SUMS.get(kind, frozenset())
    return _Kind.REGULAR if all(not one or places is None or i in places for i, one in enumerate(own)) else _Kind.OTHER


def _same_order(x: Sequence[NumpyArray], y: Sequence[NumpyArray]) -> bool:
    """Whether each element of the one is less than, equal to or greater than that of the other for all sizes alike."""
    order = [np.sign(np.subtract(a, b, dtype=np.float64)) for a, b in zip(x, y, strict=True)]
    return _alike(order)


def _alike(arrays: Sequence[NumpyArray]) -> bool:
    first = arrays[0]
    return all(one is first or (one.shape == first.shape and one.tobytes() == first.tobytes()) for one in arrays[1:])
