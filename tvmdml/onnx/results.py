"""What the results of a rule become: values with ONNX's types and shapes; and how inputs are given to rules."""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np

from tvmdml.errors import safe_repr
from tvmdml.graph import Expression
from tvmdml.onnx import described
from tvmdml.onnx.descriptors import NotConvertible
from tvmdml.onnx.narrow import rounded
from tvmdml.onnx.node import RULES, Node, Result, Results, Rule
from tvmdml.onnx.own_operators import OWN
from tvmdml.onnx.types import is_narrow
from tvmdml.onnx.values import Value
from tvmdml.tensors.sizes import hint, is_one, key_of
from tvmdml.tensors.sizes.evaluating import own


def by_rule(node: Node) -> list[Value | None]:
    """What the rule of a node's operator makes of it."""
    rule: Rule | None = RULES.get(node.kind) or (described.convert if described.is_mapped(node.kind) else None)
    if rule is None and (own := OWN.get(node.kind)) is not None:
        rule = own.function
    if rule is None:
        raise NotConvertible("DirectML has no counterpart")
    return finished(rule(node), node)


def finished(found: Results, node: Node) -> list[Value | None]:
    """The values of a rule's results, with ONNX's types and shapes."""
    several = list(found) if isinstance(found, (list, tuple)) else [found]
    values: list[Value | None] = []
    for i, used in enumerate(node.outputs):
        one = several[i] if i < len(several) else None
        if one is None:
            if used:
                raise NotConvertible(f"its output {i} is used, which DirectML does not give")
            values.append(None)
        elif not isinstance(one, (Value, Expression)) and np.asarray(one).dtype.kind in "OUS":
            raise NotConvertible(f"its rule returned {safe_repr(one)}; allowed: expressions and arrays")
        else:
            values.append(_alike(one, node.results[i] if i < len(node.results) else Result(None, None)))
    return values


def wide(kind: str, value: Value | None) -> Value | None:
    """An input in a type that DirectML has; constants of a few bits stay as they are where DirectML has them."""
    if value is None or value.is_lost:
        return value
    if value.array is not None and kind.endswith(_STORED) and np.dtype(value.dtype).name in _FEW_BITS:
        return value
    if value.parts is not None and any(is_narrow(one.dtype) for one in value.parts):
        raise NotConvertible("its input is a sequence of a type that is not one of DirectML's")
    return value.widened()


_STORED = (".MatMulNBits", "QuantizeLinear", "DequantizeLinear", ".GatherBlockQuantized")
_FEW_BITS = ("int4", "uint4", "int2", "uint2")


def _alike(one: Any, result: Result) -> Value:
    if isinstance(one, Value):
        if one.is_lost:
            return Value.lost(*result[:2])
        if is_narrow(one.dtype) and one.dtype == result.dtype and one.shape == result.shape:
            return one
        if not one.is_tensor:
            return one
        if one.array is None and one.sizes is not None:
            elements = one.sizes if result.shape is None else one.sizes.reshape(tuple(map(own, result.shape)))
            return Value.of_sizes(elements, one.dtype if result.dtype is None else result.dtype)
        one = one.content
    if result.shape is None and result.case is not None:
        shape = one.shape if isinstance(one, Expression) else np.shape(one)
        if tuple(map(hint, shape)) != result.case:
            result = result._replace(shape=_fitted(shape, result.case))
    if not isinstance(one, Expression):
        array = np.asarray(one)
        if result.dtype is not None and array.dtype != result.dtype:
            array = array.astype(result.dtype)
        return Value.known(array if result.shape is None else array.reshape(result.shape))
    narrow = is_narrow(result.dtype)
    if narrow:
        one = rounded(one, result.dtype)
    elif result.dtype is not None and one.dtype != result.dtype:
        same = result.dtype.kind in "biu" and one.dtype.kind in "biu" and result.dtype.itemsize == one.dtype.itemsize
        one = one.view(result.dtype) if same else one.astype(result.dtype)
    if result.shape is not None and one.shape != result.shape:
        if math.prod(result.shape) != one.size:
            raise NotConvertible(f"its result has the sizes {list(one.shape)}, and not {list(result.shape)}")
        one = one.reshape(result.shape)
    return Value.narrowed(result.dtype, one) if narrow else Value.computed(one)


def _fitted(shape: Sequence[int], case: tuple[int, ...]) -> tuple[int, ...]:
    """A shape that has more or less sizes of 1 than the case at hand says, as that says it.

    If it is not clear which ones, or the sizes are others, the sizes become Python's own integers.
    """
    fitting = list(itertools.islice(_fittings(tuple(shape), case), 64))
    if len({tuple(map(key_of, one)) for one in fitting}) == 1:
        return fitting[0]
    for n in shape:
        own(n)
    return case


def _fittings(shape: tuple[int, ...], case: tuple[int, ...]) -> Iterator[tuple[int, ...]]:
    if not shape and not case:
        yield ()
    if shape and case and hint(shape[0]) == case[0]:
        yield from ((shape[0], *rest) for rest in _fittings(shape[1:], case[1:]))
    if shape and is_one(shape[0]):
        yield from _fittings(shape[1:], case)
    if case and case[0] == 1:
        yield from ((1, *rest) for rest in _fittings(shape, case[1:]))
