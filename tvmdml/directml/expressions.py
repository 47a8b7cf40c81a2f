"""``Expression``: a tensor of a graph, and the arithmetic of expressions."""

from __future__ import annotations

import functools
import math
from collections.abc import Callable, Sequence
from typing import Any, ClassVar, Protocol

import numpy as np

from tvmdml import doors
from tvmdml.directml.errors import refusing
from tvmdml.directml.tensors import TensorDesc, numpy_type, sizes_of
from tvmdml.graph import Expression as Value
from tvmdml.system.names import no_attribute
from tvmdml.tensors import packed_strides


class ExpressionOwner(Protocol):
    """A graph, as expressions know it."""

    def wrapped(self, found: Any) -> Any:
        """The results of a function of tvmdml, as expressions of this graph."""
        ...


class Expression:
    """A tensor of a graph: an input, a constant, or a result of an operator. Functions and inputs of graphs make expressions.

    ``==`` and ``hash`` go by identity: an expression is a key of the arrays that are given to a graph.
    """

    __slots__ = ("_desc", "_graph", "_strides", "_value", "token")
    __array_ufunc__ = None  # NumPy's numbers leave arithmetic to this class
    functions: ClassVar[frozenset[str]] = frozenset()
    """The names of the functions that take expressions, for messages."""

    def __init__(
        self, graph: ExpressionOwner, value: Value, *, strides: Sequence[int] | None = None, desc: TensorDesc | None = None
    ) -> None:
        """Not public: graphs and functions make expressions."""
        self._graph, self._value, self._desc = graph, value, desc
        self._strides = value.strides if strides is None else tuple(strides)
        self.token: object = None
        """What an input is known by; ``None`` for all other expressions."""

    @property
    def graph(self) -> ExpressionOwner:
        """The graph."""
        return self._graph

    @property
    def value(self) -> Value:
        """The expression of ``tvmdml.Graph`` behind this one."""
        return self._value

    @property
    def desc(self) -> TensorDesc:
        """The tensor."""
        return self._desc or TensorDesc(self.dtype, self.shape, strides=self._strides)

    @property
    def shape(self) -> tuple[int, ...]:
        """The sizes."""
        return self._value.desc.sizes

    @property
    def strides(self) -> tuple[int, ...] | None:
        """The strides in elements; ``None`` if it is row-major without gaps."""
        return self._strides

    @property
    def dtype(self) -> np.dtype[Any]:
        """The NumPy type."""
        return self._value.dtype

    @property
    def size(self) -> int:
        """The number of elements."""
        return math.prod(self.shape)

    def __repr__(self) -> str:
        return f"<dml.Expression {self.dtype.name} {list(self.shape)}>"

    def __getattr__(self, name: str) -> Any:
        """What is not there may be a function."""
        raise no_attribute("an Expression", name, () if name.startswith("_") else self.functions, "dml.")

    def __add__(self, other: Any) -> Expression:
        return _arithmetic(self, "+", other, lambda n: scaled(self, 1.0, n))

    def __sub__(self, other: Any) -> Expression:
        return _arithmetic(self, "-", other, lambda n: scaled(self, 1.0, -n))

    def __mul__(self, other: Any) -> Expression:
        return _arithmetic(self, "*", other, lambda n: scaled(self, n, 0.0))

    def __truediv__(self, other: Any) -> Expression:
        return _arithmetic(self, "/", other, lambda n: scaled(self, 1.0 / n if n else math.copysign(math.inf, n), 0.0))

    def __mod__(self, other: Any) -> Expression:
        return _arithmetic(self, "%", other, None)

    def __radd__(self, other: Any) -> Expression:
        return _arithmetic(self, "+", other, lambda n: scaled(self, 1.0, n))

    def __rsub__(self, other: Any) -> Expression:
        return _arithmetic(self, "-", other, lambda n: scaled(self, -1.0, n))

    def __rmul__(self, other: Any) -> Expression:
        return _arithmetic(self, "*", other, lambda n: scaled(self, n, 0.0))

    def __rtruediv__(self, other: Any) -> Expression:
        return _arithmetic(self, "/", other, lambda n: scaled(called("recip", input=self), n, 0.0))

    def __neg__(self) -> Expression:
        return called("negate", input=self)


_SYMBOLS = {"+": "add", "-": "subtract", "*": "multiply", "/": "divide", "%": "modulus_floor"}


def _arithmetic(one: Expression, symbol: str, other: Any, by_number: Callable[[float], Expression] | None) -> Expression:
    if isinstance(other, Expression):
        check_pair(f"{one!r} {symbol} {other!r}", one, other)
        return called(_SYMBOLS[symbol], a=one, b=other)
    if isinstance(other, np.ndarray):
        raise TypeError(f"{one!r} {symbol} a NumPy array; allowed: expressions and numbers. graph.constant(array) makes one")
    if by_number is None or not isinstance(other, (int, float, np.integer, np.floating)):
        return NotImplemented
    return by_number(float(other))


def scaled(one: Expression, scale: float, bias: float) -> Expression:
    """``one * scale + bias``: ELEMENT_WISE_IDENTITY with ScaleBias."""
    return called("identity", input=one, scale_bias=(scale, bias))


def check_pair(where: str, one: Expression, other: Expression) -> None:
    """Two tensors of an elementwise operator must agree.

    Raises:
        ValueError: their shapes or types differ.
    """
    if one.shape != other.shape:
        raise ValueError(
            f"{where}: shapes differ, and nothing is repeated by itself; dml.broadcast() views one in the other's shape"
        )
    if one.dtype != other.dtype:
        raise ValueError(f"{where}: element types differ; dml.cast() converts one")


def called(door: str, home: ExpressionOwner | None = None, **arguments: Any) -> Any:
    """The expressions that a function of tvmdml makes of expressions, and of other arguments.

    Raises:
        ValueError: the expressions are not of one graph, or there are none.
        Refused: the operator does not accept the tensors or attributes.
    """
    owners = [one.graph for given in arguments.values() for one in (given if isinstance(given, list) else [given]) if _is(one)]
    if home is None and not owners:
        raise ValueError(f"{door}(): there are no expressions")
    graph = owners[0] if home is None else home
    if any(one is not graph for one in owners):
        raise ValueError(f"{door}(): the expressions are of different graphs")
    with refusing():
        found = _door(door)(**{name: _value(one) for name, one in arguments.items()})
    return graph.wrapped(found)


@functools.cache
def _door(name: str) -> Any:
    return doors.public_name(name)


def _is(given: Any) -> bool:
    return isinstance(given, Expression)


def _value(given: Any) -> Any:
    if isinstance(given, list):
        return [_value(one) for one in given]
    return given.value if isinstance(given, Expression) else given


# -- Views


def reinterpret(input: Expression, sizes: Sequence[int], strides: Sequence[int] | None = None, dtype: Any = None) -> Expression:  # noqa: A002
    """The same memory read with other sizes, strides (in elements; ``None`` for row-major) or as another type. Nothing is copied.

    Raises:
        TypeError: an argument is of the wrong kind.
        Refused: it would read outside of the memory.
    """
    one = required(input, "reinterpret input")
    dims = sizes_of(sizes, "reinterpret sizes")
    steps = None if strides is None else sizes_of(strides, "reinterpret strides")
    kind = None if dtype is None else numpy_type(dtype)
    with refusing():
        found = one.value.reinterpret(dims or [1], steps, kind)
    return type(one)(one.graph, found, strides=steps)


def broadcast(input: Expression, shape: Sequence[int]) -> Expression:  # noqa: A002
    """A view in another shape, of at least as many axes: axes of size 1, and missing ones before them, are repeated (stride 0).

    Raises:
        TypeError: an argument is of the wrong kind.
        ValueError: an axis of another size cannot be repeated, or there are fewer axes.
    """
    one, target = required(input, "broadcast input"), sizes_of(shape, "broadcast shape")
    source = list(one.shape)
    if source == target:
        return one
    if len(target) < len(source):
        raise ValueError(f"cannot broadcast {source} to {target}: there are fewer axes")
    added = len(target) - len(source)
    steps = [0] * added
    for size, wanted, step in zip(source, target[added:], one.strides or packed_strides(tuple(source)), strict=True):
        if size not in (1, wanted):
            raise ValueError(f"cannot broadcast {source} to {target}: an axis of {size} is not repeated to {wanted}")
        steps.append(step if size == wanted else 0)
    return reinterpret(one, target, steps)


def required(given: Any, where: str) -> Expression:
    """An expression.

    Raises:
        TypeError: it is something else.
    """
    if not isinstance(given, Expression):
        raise TypeError(f"{where}: given {type(given).__name__}; allowed: an Expression. Graph.constant() makes one of an array")
    return given
