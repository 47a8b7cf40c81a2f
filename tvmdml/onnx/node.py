"""``Node``: a node of a model, as the rules of ``rules/`` read it; ``RULES`` has the rule of each operator."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple, Protocol

import numpy as np

import tvmdml
from tvmdml.errors import InvalidArgument, message
from tvmdml.graph import Expression, Graph
from tvmdml.graph.scattering import along as along
from tvmdml.onnx import versions
from tvmdml.onnx.descriptors import NotConvertible
from tvmdml.onnx.values import TooLate, Value, dependencies
from tvmdml.tensors.arrays import NumpyArray
from tvmdml.tensors.sizes import are_equal, is_one, is_open


class Result(NamedTuple):
    """What ONNX's shape inference says of an output."""

    dtype: Any
    """``None`` if it is not known, or NumPy has no such type."""
    shape: tuple[int, ...] | None
    case: tuple[int, ...] | None = None
    """The shape in the case at hand, if ONNX does not infer how it follows from sizes that are open."""


class Around(Protocol):
    """What converts the graph that a node is in."""

    graph: Graph

    @property
    def is_top(self) -> bool:
        """Whether the node is one of the model's own graph, which may run between stages."""

    @property
    def may_round(self) -> bool:
        """Whether the node may round what it multiplies, if it says so."""

    def inner(self, graph: Any, inputs: Sequence[Value]) -> list[Value]:
        """Convert a graph in an attribute of a node, and return its outputs."""

    def array(self, tensor: Any) -> NumpyArray:
        """The elements of a tensor in an attribute."""

    def count(self, nodes: int) -> None:
        """Count converted nodes; a model that makes too many is refused."""

    def other(
        self, node: Node, kind: str, opset: int, inputs: Sequence[Value | None], attributes: Mapping[str, Any]
    ) -> list[Value | None]:
        """What an operator of ONNX's own makes of inputs, in the place of a node."""

    def random_state(self, seed: float | None) -> Expression:
        """The state of RANDOM_GENERATOR for one more node that draws numbers; ``seed`` is the node's own."""


class Node:
    """A node: its inputs are known arrays or expressions, and its attributes are values."""

    def __init__(
        self,
        kind: str,
        inputs: Sequence[Value | None],
        outputs: Sequence[bool],
        attributes: Mapping[str, Any],
        results: Sequence[Result],
        opset: int,
        around: Around,
    ) -> None:
        """Not public: ``converting`` makes nodes."""
        self.kind = kind
        """ONNX's name of the operator; with its domain, unless that is ONNX's own."""
        self.inputs = list(inputs)
        self.outputs = tuple(outputs)
        """Whether each output is used."""
        self.attributes = dict(attributes)
        self.results = list(results)
        """What is known about each output."""
        self.opset = opset
        """The version of the domain."""
        self.around = around
        self.read: list[Value] = []
        """The inputs whose elements decided how it is computed."""

    @property
    def graph(self) -> Graph:
        """The graph that is built."""
        return self.around.graph

    def replaced(self, kind: str = "", inputs: Sequence[Value | None] | None = None, **attributes: Any) -> Node:
        """A node like this one, of another kind, with other inputs, or with other attributes; its results are not known."""
        given = self.inputs if inputs is None else inputs
        own = {**(self.attributes if not kind else {}), **attributes}
        found = Node(kind or self.kind, given, self.outputs, own, [Result(None, None)] * len(self.outputs), self.opset, self.around)
        found.read = self.read
        return found

    def is_before(self, version: int) -> bool:
        """Whether it has the meaning before a version that changed its operator (``versions``)."""
        return versions.is_before(self.kind, self.opset, version)

    # -- Inputs

    def has(self, position: int) -> bool:
        """Whether there is an input at this position."""
        return position < len(self.inputs) and self.inputs[position] is not None

    def value(self, position: int) -> Value:
        """An input that must be there."""
        found = self.inputs[position] if position < len(self.inputs) else None
        if found is None:
            raise NotConvertible(f"its input {position} is missing")
        return found

    def x(self, position: int = 0) -> Expression:
        """An input as an expression; bool as uint8, which has the same bytes."""
        found = self.value(position).expression(self.graph)
        return found.view(np.uint8) if found.dtype == np.bool_ else found

    def maybe(self, position: int) -> Expression | None:
        """``x``, or ``None`` for an absent input."""
        return self.x(position) if self.has(position) else None

    def dtype(self, position: int = 0) -> np.dtype[Any]:
        """The type of an input."""
        return np.dtype(self.value(position).dtype)

    def shape(self, position: int = 0) -> tuple[int, ...]:
        """The shape of an input."""
        return self.value(position).shape or ()

    def known(self, position: int) -> NumpyArray:
        """The elements of an input that decides how the node is computed."""
        found = self.value(position)
        self.read.append(found)
        return found.decided(self.graph)

    def counted(self, position: int) -> NumpyArray:
        """The elements of an input that decides how many the results have: of a tensor that a run computes, after the stage."""
        value = self.value(position)
        if value.array is None and value.sizes is None:
            expression = value.expression(self.graph)
            if dependencies(expression) or self.graph.follows_from_sizes(expression):
                raise TooLate("the number of its results depends on elements that a run computes")
        return self.known(position)

    def is_known(self, position: int) -> bool:
        """Whether the elements of an input are known already."""
        return self.has(position) and self.value(position).array is not None

    def elements(self, position: int) -> NumpyArray:
        """The elements of an input that decides how the node is computed. Sizes that are open are objects."""
        sizes = self.value(position).sizes
        return self.known(position) if sizes is None or self.is_known(position) else sizes

    def integers(self, position: int) -> list[int]:
        """The elements of an input as integers, which may be sizes that are open."""
        return [n if is_open(n) else int(n) for n in self.elements(position).reshape(-1).tolist()]

    def count(self, position: int) -> int:
        """The only element of an input as an integer, which may be a size that is open."""
        several = self.integers(position)
        if len(several) != 1:
            raise NotConvertible(f"its input {position} has {len(several)} elements, and not one")
        return several[0]

    def number(self, position: int) -> float | int:
        """The only element of an input."""
        found = self.known(position)
        if found.size != 1:
            raise NotConvertible(f"its input {position} has {found.size} elements, and not one")
        return found.reshape(-1)[0].item()

    # -- Attributes

    def integer(self, name: str, default: int) -> int:
        """An integer attribute."""
        found = self.attributes.get(name, default)
        if not isinstance(found, int):
            raise NotConvertible(f"its {name} is not an integer")
        return found

    def real(self, name: str, default: float) -> float:
        """A float attribute."""
        found = self.attributes.get(name, default)
        if not isinstance(found, (int, float)):
            raise NotConvertible(f"its {name} is not a number")
        return float(found)

    def text(self, name: str, default: str) -> str:
        """A string attribute."""
        found = self.attributes.get(name, default)
        if isinstance(found, bytes):
            return found.decode("utf-8", "replace")
        if not isinstance(found, str):
            raise NotConvertible(f"its {name} is not a string")
        return found

    def axis(self, rank: int, default: int = 0, name: str = "axis") -> int:
        """An axis attribute, counted from the front."""
        return axis_of(self.integer(name, default), rank)

    # -- Helpers of rules

    def constant(self, array: Any) -> Expression:
        """A constant of the graph."""
        return self.graph.constant(np.asarray(array))

    def upto(self, count: int) -> Expression:
        """0, 1, 2, …, so many, which may be a size that is open: int64."""
        if not is_open(count):
            return self.constant(np.arange(count, dtype=np.int64))
        graph: Any = self.graph
        found: Any = tvmdml.fill_value_sequence([count], 0, 1, dtype="int64", device=graph)
        return found

    def like(self, number: float, other: Expression) -> Expression:
        """A constant without dimensions of another one's type."""
        return self.graph.constant(np.asarray(number, other.dtype))


def axis_of(axis: int, rank: int) -> int:
    """An axis counted from the front.

    Raises:
        NotConvertible: there is no such axis.
    """
    if not -rank <= axis < max(rank, 1):
        raise NotConvertible(f"it has axis {axis}, for {rank} dimensions")
    return axis % max(rank, 1)


def broadcast_sizes(*shapes: Sequence[int]) -> tuple[int, ...]:
    """The sizes to which several are repeated by NumPy's rules.

    Raises:
        NotConvertible: they do not fit.
    """
    rank = max(map(len, shapes), default=0)
    found = []
    for axis in range(rank):
        every = [shape[axis - rank + len(shape)] for shape in shapes if axis - rank + len(shape) >= 0]
        size = 1
        for n in every:
            if is_one(size) or (not are_equal(n, size) and not is_one(n) and size == 1):
                size = n
            elif not (are_equal(n, size) or is_one(n) or n == size or n == 1):
                raise NotConvertible(f"sizes that do not fit each other: {', '.join(str(list(shape)) for shape in shapes)}")
        found.append(size)
    return tuple(found)


def reshaped(x: Expression, shape: Sequence[int]) -> Expression:
    """The same elements in another shape; a reason to refuse the node if they do not fit."""
    if math.prod(shape) != x.size or any(n < 0 for n in shape):
        raise NotConvertible(f"its {x.size} elements cannot have the sizes {list(shape)}")
    return x if tuple(shape) == x.shape else x.reshape(tuple(shape))


def channels_first(x: Expression) -> Expression:
    """A view of an image, or a filter, whose channels are last, with them where ONNX has them."""
    return x.transpose(0, x.ndim - 1, *range(1, x.ndim - 1))


def channels_last(x: Expression) -> Expression:
    """A view of an image with its channels last."""
    return x.transpose(0, *range(2, x.ndim), 1)


Results = Any
"""What a rule returns: a ``Value``, an ``Expression`` or an array for each output; one, or a sequence."""
Rule = Callable[[Node], Results]
RULES: dict[str, Rule] = {}
"""The rule of each ONNX operator that needs more than its descriptor class."""


def rule(*kinds: str) -> Callable[[Rule], Rule]:
    """Use a function of this package as the rule of some operators. Those of programs are marked with ``tvmdml.onnx.operator``.

    Raises:
        InvalidArgument: the function is not of this package: plans are kept without regard to it.
    """

    def registered(function: Rule) -> Rule:
        if not str(function.__module__).startswith("tvmdml.onnx.rules."):
            raise InvalidArgument(
                message("rule", f"a function of {function.__module__}", "one of this package", "Use tvmdml.onnx.operator.")
            )
        for kind in kinds:
            assert kind not in RULES, kind
            RULES[kind] = function
        return function

    return registered
