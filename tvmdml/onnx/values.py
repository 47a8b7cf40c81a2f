"""``Value``: a tensor of a model while the model is converted."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator
from typing import Any

import numpy as np

from tvmdml.graph import Expression, Graph
from tvmdml.graph.nodes import Call, Constant, Input, SizesArray
from tvmdml.onnx.descriptors import NotConvertible
from tvmdml.onnx.random_state import STATE
from tvmdml.onnx.types import Undecided, decides, is_narrow, is_ours, wide_of
from tvmdml.tensors import MAX_RANK, TensorDataType
from tvmdml.tensors.arrays import NumpyArray
from tvmdml.tensors.sizes import is_open
from tvmdml.tensors.sizes.evaluating import own


class TooLate(NotConvertible):
    """Elements must be known that depend on those of inputs that do not decide."""


class Value:
    """A tensor of the model: an array that is known already, an expression of the graph, or, after an error, neither.

    A sequence has the tensors in ``parts``. An optional tensor or sequence is what it has, or ``nothing``.
    """

    def __init__(self, dtype: Any, shape: tuple[int, ...] | None, array: NumpyArray | None, expression: Expression | None) -> None:
        """Not public: ``known``, ``computed`` and ``lost`` make values."""
        self.dtype = dtype
        """The NumPy type; ``None`` if it is unknown or NumPy has no such type."""
        self.shape = shape
        """The sizes; ``None`` after an error, where they are unknown."""
        self.array = array
        """The elements, if they are known."""
        self.sizes: NumpyArray | None = None
        """The elements, if they follow from sizes that are open: an array of objects, sizes or Python's own integers."""
        self._expression = expression
        self._wide: Value | None = None
        self.parts: tuple[Value, ...] | None = None
        self.is_later = False
        """Whether it is computed after the graph (``tail``)."""
        self.is_outside = False
        """Whether only another library computes with it: texts."""
        self.texts: NumpyArray | None = None
        """These, if they are known."""
        self.is_nothing = False
        """Whether it is an optional tensor or sequence that is not there."""

    @classmethod
    def sequence(cls, parts: Iterable[Value]) -> Value:
        """Several tensors.

        Raises:
            NotConvertible: not all of them are tensors.
        """
        found = cls(None, None, None, None)
        found.parts = tuple(parts)
        if any(one.parts is not None or one.is_nothing for one in found.parts):
            raise NotConvertible(
                "a sequence has tensors, and here a sequence, or an optional tensor that is not there, would be in it"
            )
        return found

    @classmethod
    def nothing(cls) -> Value:
        """An optional tensor or sequence that is not there."""
        found = cls(None, None, None, None)
        found.is_nothing = True
        return found

    @classmethod
    def known(cls, array: Any) -> Value:
        """A tensor whose elements are known."""
        found = np.asarray(array)
        return cls(found.dtype, found.shape, found, None)

    @classmethod
    def of_sizes(cls, elements: Any, dtype: Any) -> Value:
        """A tensor of integers that may follow from sizes that are open; an array of objects."""
        every = elements.reshape(-1).tolist()
        if not any(map(is_open, every)):
            return cls.known(np.array(every, dtype).reshape(elements.shape))
        made = cls(np.dtype(dtype), elements.shape, None, None)
        made.sizes = elements
        return made

    @classmethod
    def computed(cls, expression: Expression) -> Value:
        """A tensor that the graph computes."""
        return cls(expression.dtype, expression.shape, None, expression)

    @classmethod
    def of_many(cls, shape: tuple[int, ...], expression: Expression) -> Value:
        """A tensor of more dimensions than DirectML has, whose elements stand in one (``dimensions``)."""
        return cls(expression.dtype, shape, None, expression)

    @classmethod
    def narrowed(cls, dtype: Any, expression: Expression) -> Value:
        """A tensor of a type that DirectML has not, whose elements are those of a wider one."""
        return cls(np.dtype(dtype), expression.shape, None, expression)

    def widened(self) -> Value:
        """The same elements in a type that DirectML has."""
        if self.parts is not None or not is_narrow(self.dtype):
            return self
        if self.array is None:
            return self if self._expression is None else Value.computed(self._expression)
        if self._wide is None:
            self._wide = Value.known(self.array.astype(wide_of(self.dtype)))
        return self._wide

    @classmethod
    def later(cls) -> Value:
        """A tensor that is computed after the graph; nothing is known of it."""
        found = cls(None, None, None, None)
        found.is_later = True
        return found

    @classmethod
    def outside(cls, texts: NumpyArray | None = None) -> Value:
        """A tensor that only another library computes with: what reads it runs between stages."""
        value = cls.later()
        value.is_outside, value.texts = True, texts
        return value

    @classmethod
    def lost(cls, dtype: Any = None, shape: tuple[int, ...] | None = None) -> Value:
        """A tensor that cannot be computed, because of an error that is already reported."""
        return cls(dtype, shape, None, None)

    @property
    def is_lost(self) -> bool:
        """Whether there is neither an array nor an expression."""
        return not (self.is_tensor or self.parts is not None or self.is_later or self.is_nothing)

    @property
    def is_tensor(self) -> bool:
        """Whether it is a tensor, and no sequence, after what could be an error."""
        return self.array is not None or self.sizes is not None or self._expression is not None

    @property
    def elements(self) -> NumpyArray | None:
        """The elements if they are known, or follow from sizes."""
        return self.sizes if self.array is None else self.array

    def tensors(self) -> Iterator[Value]:
        """The tensors that it consists of: those of a sequence, or itself."""
        if self.parts is not None:
            for one in self.parts:
                yield from one.tensors()
        elif not self.is_nothing:
            yield self

    def mapped(self, function: Callable[[Value], Value]) -> Value:
        """The same with what a function makes of each tensor."""
        if self.parts is not None:
            return Value.sequence(one.mapped(function) for one in self.parts)
        return self if self.is_nothing else function(self)

    @property
    def is_open(self) -> bool:
        """Whether sizes that are open are in it."""
        return any(one.sizes is not None or any(map(is_open, one.shape or ())) for one in self.tensors())

    def closed(self) -> Value:
        """A tensor whose sizes are Python's own integers."""
        if not self.is_open:
            return self
        if self.sizes is not None and self.array is None:
            return Value.known(np.array([own(n) for n in self.sizes.reshape(-1).tolist()], self.dtype).reshape(self.sizes.shape))
        found = Value(self.dtype, None if self.shape is None else tuple(map(own, self.shape)), self.array, None)
        found._expression = None if self._expression is None else self._expression.closed()
        return found

    @property
    def content(self) -> NumpyArray | Expression | None:
        """The array if it is known, or the expression."""
        return self._expression if self.array is None else self.array

    def reshaped(self, graph: Graph, shape: tuple[int, ...]) -> Value:
        """The same elements in another shape."""
        if self.array is not None:
            return Value.known(self.array.reshape(shape))
        if self.sizes is not None:
            return Value.of_sizes(self.sizes.reshape(shape), self.dtype)
        return Value.computed(self.flat(graph).reshape(shape))

    @property
    def node(self) -> Constant | None:
        """The constant of the graph that has the elements, if they are known and the graph reads them."""
        source = None if self.array is None or self._expression is None else self._expression.edge.source
        return source if isinstance(source, Constant) else None

    @property
    def size(self) -> int:
        """The number of elements."""
        return math.prod(self.shape or ())

    def expression(self, graph: Graph) -> Expression:
        """The tensor as an expression, of a narrow type in the wider one.

        Raises:
            NotConvertible: DirectML has no such type.
        """
        self._require_tensor()
        if len(self.shape or ()) > MAX_RANK:
            raise NotConvertible(f"its input has {len(self.shape or ())} dimensions, of which DirectML has {MAX_RANK}")
        if self._expression is None and self.sizes is not None:
            self._expression = graph.sizes_array(self.sizes, self.dtype)
        if self._expression is None:
            assert self.array is not None
            if is_narrow(self.dtype):
                return self.widened().expression(graph)
            if not is_ours(self.dtype):
                raise NotConvertible(f"its input has the type {self.dtype}, which is not one of DirectML's")
            self._expression = graph.constant(self.array)
        return self._expression

    def flat(self, graph: Graph) -> Expression:
        """The elements in one dimension, in their order.

        Raises:
            NotConvertible: it is no tensor of one of DirectML's types.
        """
        if len(self.shape or ()) <= MAX_RANK:
            return self.expression(graph).reshape(-1)
        self._require_tensor()
        if not is_ours(self.dtype):
            raise NotConvertible(f"its input has the type {self.dtype}, which is not one of DirectML's")
        if self._expression is None:
            assert self.array is not None
            self._expression = graph.constant(self.array.reshape(-1))
        return self._expression

    def _require_tensor(self) -> None:
        if self.parts is not None:
            raise NotConvertible("its input is a sequence, and not a tensor")
        if self.is_nothing:
            raise NotConvertible("its input is an optional tensor that is not there")

    def bytes_as(self, graph: Graph, kind: TensorDataType) -> Expression:
        """The tensor's memory without gaps; two elements in a byte if the type has them so."""
        if kind.is_nibble:
            if self.array is None:
                raise NotConvertible(f"its input has the type {kind.tvm}, and is not a constant")
            return graph.constant(nibbles(self.array))
        found = self.expression(graph)
        if found.strides is not None:
            self._expression = found = found.copy()
        return found

    def decided(self, graph: Graph) -> NumpyArray:
        """The elements, computed now if they depend on constants only.

        Raises:
            Undecided: they depend on inputs that decide.
            TooLate: they depend on inputs that do not: the next stage knows them.
        """
        self._require_tensor()
        if self.array is None and self.sizes is not None:
            every = [own(n) for n in self.sizes.reshape(-1).tolist()]
            self.array = np.array(every, self.dtype).reshape(self.sizes.shape)
        if self.array is None:
            assert self._expression is not None
            inputs = dependencies(self._expression)
            own = len(inputs) == 1 and self._expression.edge.source is inputs[0]
            if large := [one.name for one in inputs if one.name == STATE or not decides(one.dtype, math.prod(_sizes(one)), own)]:
                raise TooLate(f"it must be known before the model runs, but depends on the elements of {large[0]}")
            if inputs:
                raise Undecided(one.name for one in inputs)
            self.array = graph.evaluated(self._expression)
            self.shape = self.array.shape
        return self.array


def dependencies(expression: Expression) -> list[Input]:
    """The inputs of the graph that an expression depends on."""
    waiting, seen = [expression.edge.source], {id(expression.edge.source)}
    found = []
    while waiting:
        node = waiting.pop()
        if isinstance(node, Input):
            if not isinstance(node, SizesArray):
                found.append(node)
        elif isinstance(node, Call):
            for edge in node.edges.values():
                if id(edge.source) not in seen:
                    seen.add(id(edge.source))
                    waiting.append(edge.source)
    return found


def nibbles(array: NumpyArray) -> NumpyArray:
    """Elements of 4 bits, two in a byte: the one with the even offset in the low bits."""
    flat = array.reshape(-1).astype(np.int8).view(np.uint8) & 15
    if flat.size % 2:
        flat = np.append(flat, np.uint8(0))
    return flat[::2] | (flat[1::2] << 4)


def _sizes(node: Input) -> tuple[int, ...]:
    return node.desc.sizes
