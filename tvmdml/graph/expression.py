"""``Expression``: a tensor of a graph. Functions take it like an array; views of it are other strides, never copies."""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Iterator, Sequence
from types import EllipsisType
from typing import TYPE_CHECKING, Any, TypeAlias

import numpy as np

from tvmdml import doors
from tvmdml.errors import InvalidArgument, bounded, message, safe_repr
from tvmdml.graph.nodes import Edge
from tvmdml.graph.templates import Template
from tvmdml.system.names import no_attribute
from tvmdml.tensors import MOST_VALUES, ArrayTensorDesc, TensorDataType, packed_strides
from tvmdml.tensors.arrays import Traced
from tvmdml.tensors.sizes import Size, is_one, naming_sizes, symbols, texts_for_messages
from tvmdml.tensors.sizes.evaluating import own

if TYPE_CHECKING:
    from tvmdml.typing import DType, Number, NumpyArray

    Operand: TypeAlias = "Expression | NumpyArray | Number"

Key = int | slice | None | EllipsisType


_ALSO = {"sizes": "shape", "data_type": "dtype", "rank": "ndim", "element_count": "size"}
"""What an array calls what a ``TensorDesc`` calls otherwise."""


def _function(name: str) -> Any:
    return doors.public_name(name)


def _operator(name: str) -> Callable[[Expression, Operand], Expression]:
    """The method of an operator: a function of the expression, and what stands behind the operator."""

    def method(self: Expression, other: Operand) -> Expression:
        return _function(name)(self, other)

    method.__doc__ = f"``tvmdml.{name}``."
    return method


def _reflected(name: str) -> Callable[[Expression, Operand], Expression]:
    """The same for an expression that stands behind the operator."""

    def method(self: Expression, other: Operand) -> Expression:
        return _function(name)(other, self)

    method.__doc__ = f"``tvmdml.{name}``."
    return method


class Expression(Traced):
    """A tensor of a graph: an input, a constant, or the result of a function of other expressions.

    It has the ``shape``, ``dtype`` and ``strides`` of an array, and no elements until the graph runs. All functions take it;
    ``+ - * / % @ **``, unary ``-``, ``abs()`` and ``< <= > >=`` are those functions. ``==`` is identity; ``tvmdml.equals`` compares
    elements.
    """

    __slots__ = ("__weakref__", "desc", "dtype", "edge", "graph")

    def __init__(self, graph: Any, edge: Edge, desc: ArrayTensorDesc, dtype: np.dtype[Any]) -> None:
        """Not public: graphs and functions make expressions."""
        self.graph = graph
        """The ``Graph`` that it belongs to."""
        self.edge = edge
        self.desc = desc
        """How its memory is read: a ``TensorDesc`` with strides, in elements."""
        self.dtype = dtype
        """The NumPy type. A bool tensor is UINT8 in ``desc``."""

    @property
    def tracer(self) -> Any:
        """What functions hand their calls to."""
        return self.graph

    @property
    def shape(self) -> tuple[int, ...]:
        """The sizes; ``()`` for a tensor without dimensions."""
        return () if self.desc.zero_dimensional else self.desc.sizes

    @property
    def strides(self) -> tuple[int, ...] | None:
        """The strides in elements; ``None`` if it is row-major without gaps."""
        return None if self.desc.is_packed else self.desc.strides

    @property
    def ndim(self) -> int:
        """The number of dimensions."""
        return len(self.shape)

    @property
    def size(self) -> int:
        """The number of elements."""
        return self.desc.element_count

    def __repr__(self) -> str:
        """The type and shape, and where it comes from."""
        with texts_for_messages():  # to look at it asks nothing of sizes
            return bounded(f"<Expression {self.dtype}{list(self.shape)} of {self.edge.source}>")

    def __getattr__(self, name: str) -> Any:
        """What is not there may be a function."""
        if (own := _ALSO.get(name)) is not None:
            raise no_attribute("an Expression", name, (), otherwise=f" Did you mean {own!r}?")
        known = () if name.startswith("_") else (one for several in doors.public_names_by_module().values() for one in several)
        raise no_attribute("an Expression", name, known, "tvmdml.")

    def __len__(self) -> int:
        """The first size."""
        if not self.shape:
            raise TypeError("len() of an expression without dimensions")
        return self.shape[0]

    def __iter__(self) -> Iterator[Expression]:
        """An expression has no elements to iterate over before the graph runs; slices along the first dimension are views."""
        return (self[i] for i in range(len(self)))

    def __bool__(self) -> bool:
        """An expression has no value."""
        raise TypeError("an expression of a graph has no value until the graph runs")

    __array_ufunc__ = None  # NumPy's arrays leave arithmetic with an expression to the expression

    def __array__(self, *_: Any, **__: Any) -> Any:
        """An expression is no array."""
        raise TypeError("an expression of a graph has no value until the graph runs")

    # -- Arithmetic

    __add__, __radd__ = _operator("add"), _reflected("add")
    __sub__, __rsub__ = _operator("subtract"), _reflected("subtract")
    __mul__, __rmul__ = _operator("multiply"), _reflected("multiply")
    __truediv__, __rtruediv__ = _operator("divide"), _reflected("divide")
    __mod__ = _operator("modulus_floor")
    __matmul__ = _operator("gemm")
    __pow__ = _operator("pow")
    __lt__ = _operator("less_than")  # uint8, 1 or 0, as the next three
    __le__ = _operator("less_than_or_equal")
    __gt__ = _operator("greater_than")
    __ge__ = _operator("greater_than_or_equal")

    def __neg__(self) -> Expression:
        """``tvmdml.negate``."""
        return _function("negate")(self)

    def __abs__(self) -> Expression:
        """``tvmdml.abs``."""
        return _function("abs")(self)

    # -- Views

    @naming_sizes
    def reinterpret(
        self, sizes: Sequence[int], strides: Sequence[int] | None = None, dtype: DType | None = None, offset: int = 0
    ) -> Expression:
        """The same memory read with other sizes, strides (in elements; ``None`` for row-major without gaps) and type.

        Args:
            sizes: the new sizes.
            strides: the new strides; 0 repeats a dimension.
            dtype: the new type; by default the same.
            offset: the first element, counted from this view's first, in elements of the new type.

        Raises:
            InvalidArgument: it would read outside of the memory.
        """
        kind = self.dtype if dtype is None else _numpy_type(dtype)
        shape = _sizes((sizes,), "reinterpret sizes")
        (first,) = _sizes((offset,), "reinterpret offset")
        desc = ArrayTensorDesc(TensorDataType.from_numpy(kind), shape or (1,), strides, zero_dimensional=not shape)
        start = self.edge.offset + first * kind.itemsize
        room = self.edge.source.bytes_of(self.edge.output)
        if start < 0 or start + desc.span_in_bytes > room:
            allowed = f"a view inside of the {room} bytes of {self.edge.source}"
            raise InvalidArgument(message("reinterpret", f"{desc} from byte {start} on", allowed))
        if start % kind.itemsize:
            raise InvalidArgument(message("reinterpret", f"byte {start}", f"a multiple of the element size, {kind.itemsize}"))
        return Expression(self.graph, self.edge._replace(offset=start), desc, kind)

    def view(self, dtype: DType) -> Expression:
        """The same bytes as another type of the same size, such as bool as uint8."""
        kind = _numpy_type(dtype)
        if kind.itemsize != self.dtype.itemsize:
            raise InvalidArgument(message("view dtype", kind, f"a type of {self.dtype.itemsize} bytes"))
        return self._viewed(self.desc.sizes, self.desc.layout, zero_dimensional=self.desc.zero_dimensional, dtype=kind)

    @naming_sizes
    def reshape(self, *shape: int | Sequence[int]) -> Expression:
        """The same elements in row-major order with other sizes, one of which may be -1. A view if the memory allows it."""
        sizes = _sizes(shape, "reshape")
        if -1 in sizes:
            rest = -math.prod(sizes)
            sizes = tuple((self.size // rest if rest else 0) if n == -1 else n for n in sizes)
        if math.prod(sizes) != self.size or any(n < 0 for n in sizes):
            allowed = f"sizes for the {self.size} elements of {list(self.shape)}"
            raise InvalidArgument(message("reshape", safe_repr(sizes), allowed))
        if self.desc.is_packed:
            return self._viewed(sizes or (1,), packed_strides(sizes or (1,)), zero_dimensional=not sizes)
        strides = reshaped_strides(self.desc.sizes, self.desc.layout, sizes)
        if strides is None:
            return self.copy().reshape(sizes)
        return self._viewed(sizes or (1,), strides if sizes else (1,), zero_dimensional=not sizes)

    @naming_sizes
    def transpose(self, *axes: int | Sequence[int] | None) -> Expression:
        """A view with the dimensions in another order; by default the reverse."""
        order = _sizes(axes, "transpose") if axes and not (len(axes) == 1 and axes[0] is None) else tuple(range(self.ndim))[::-1]
        order = tuple(axis + self.ndim if axis < 0 else axis for axis in order)
        if sorted(order) != list(range(self.ndim)):
            raise InvalidArgument(message("transpose", safe_repr(axes), f"each of the {self.ndim} dimensions once"))
        if not order:
            return self
        return self._viewed([self.desc.sizes[i] for i in order], [self.desc.layout[i] for i in order])

    @property
    def T(self) -> Expression:  # noqa: N802 - NumPy's name
        """``transpose()``."""
        return self.transpose()

    @naming_sizes
    def broadcast(self, *shape: int | Sequence[int]) -> Expression:
        """A view repeated to a shape by NumPy's rules: with strides of 0."""
        sizes = _sizes(shape, "broadcast")
        added = len(sizes) - self.ndim
        pairs = list(zip(self.shape, sizes[added:], strict=True)) if added >= 0 else [(0, 1)]
        if any(n not in (1, m) for n, m in pairs):
            raise InvalidArgument(message("broadcast", safe_repr(shape), f"a shape that {list(self.shape)} can be repeated to"))
        if not sizes:
            return self
        own = () if self.desc.zero_dimensional else self.desc.layout
        steps = [step if n == m else 0 for (n, m), step in zip(pairs, own, strict=True)]
        return self._viewed(sizes, [0] * added + steps)

    @naming_sizes
    def __getitem__(self, key: Key | tuple[Key, ...]) -> Expression:
        """A view by integers, slices with positive steps, ``None`` and ``...``."""
        keys = list(key) if isinstance(key, tuple) else [key]
        given = sum(one is not None and one is not Ellipsis for one in keys)
        if given > self.ndim or sum(one is Ellipsis for one in keys) > 1:
            raise InvalidArgument(message("index", safe_repr(key), f"at most {self.ndim} integers and slices"))
        if not any(one is Ellipsis for one in keys):
            keys.append(Ellipsis)
        sizes: list[int] = []
        steps: list[int] = []
        offset, axis = 0, 0
        for one in keys:
            if one is None:
                sizes.append(1)
                steps.append(0)
                continue
            if one is Ellipsis:
                count = self.ndim - given
                sizes += self.shape[axis : axis + count]
                steps += self.desc.layout[axis : axis + count] if self.shape else ()
                axis += count
                continue
            size, step = self.shape[axis], self.desc.layout[axis]
            if isinstance(one, slice):
                try:
                    start, stop, by = slice_of(one, size)
                except (TypeError, ValueError) as error:
                    raise InvalidArgument(message("index", safe_repr(one), f"slices of integers ({error})")) from None
                if by < 1:
                    raise InvalidArgument(message("index", safe_repr(one), "slices with a positive step", "Use reverse functions."))
                sizes.append(max(0, -(-(stop - start) // by)))
                steps.append(step * by)
                offset += start * step if sizes[-1] else 0
            else:
                try:
                    if isinstance(one, (bool, np.bool_)):
                        raise TypeError("a mask")
                    at = symbols.index(one)
                except TypeError:
                    allowed = "integers, slices, None and ..."
                    raise InvalidArgument(message("index", safe_repr(one), allowed, "gather takes indices as a tensor.")) from None
                if not -size <= at < size:
                    raise IndexError(f"index {at} is out of range for axis {axis} of size {size}")
                offset += (at + size if at < 0 else at) * step
            axis += 1
        if 0 in sizes:  # there is no memory to be inside of
            offset, steps = 0, [1 for _ in sizes]
        return self._viewed(sizes or [1], steps or [1], zero_dimensional=not sizes, offset=offset)

    def astype(self, dtype: DType) -> Expression:
        """``tvmdml.cast``."""
        return self if _numpy_type(dtype) == self.dtype else _function("cast")(self, dtype)

    def copy(self) -> Expression:
        """``tvmdml.identity``: the same elements, row-major without gaps."""
        found: Expression = _function("identity")(self.view(np.uint8) if self.dtype == np.bool_ else self)
        return found.view(np.bool_) if self.dtype == np.bool_ else found

    def closed(self) -> Expression:
        """The same, for the case at hand: sizes that are open are Python's own integers."""
        desc = Template(self.desc).filled(Size.own)
        return Expression(self.graph, self.edge._replace(offset=own(self.edge.offset)), desc, self.dtype)

    def _viewed(
        self,
        sizes: Sequence[int],
        strides: Sequence[int],
        *,
        zero_dimensional: bool = False,
        offset: int = 0,
        dtype: np.dtype[Any] | None = None,
    ) -> Expression:
        kind = self.dtype if dtype is None else dtype
        desc = ArrayTensorDesc(TensorDataType.from_numpy(kind), tuple(sizes), tuple(strides), zero_dimensional=zero_dimensional)
        if desc.is_packed:
            desc = ArrayTensorDesc(desc.data_type, desc.sizes, zero_dimensional=zero_dimensional)
        edge = self.edge._replace(offset=self.edge.offset + offset * kind.itemsize)
        return Expression(self.graph, edge, desc, kind)


def slice_of(given: slice, size: int) -> tuple[int, int, int]:
    """``slice.indices`` for a positive step, of a size that may be open."""
    if type(size) is int and all(one is None or type(one) is int for one in (given.start, given.stop, given.step)):
        return given.indices(size)

    def place(one: Any, otherwise: int) -> int:
        if one is None:
            return otherwise
        at: int = symbols.index(one)
        return max(at + size, 0) if at < 0 else min(at, size)

    return place(given.start, 0), place(given.stop, size), 1 if given.step is None else symbols.index(given.step)


def _numpy_type(dtype: Any) -> np.dtype[Any]:
    with_bool = getattr(dtype, "name", dtype) in ("bool", bool, np.bool_)
    return np.dtype(np.bool_) if with_bool else TensorDataType.of(dtype, "dtype").numpy


def _sizes(given: Sequence[Any], where: str) -> tuple[int, ...]:
    """Integers, given one by one or as one sequence."""
    if len(given) == 1 and not isinstance(given[0], (int, np.integer)):
        given = given[0]
    try:
        return tuple(symbols.index(n) for n in itertools.islice(given, MOST_VALUES))
    except TypeError:
        raise InvalidArgument(message(where, safe_repr(given), "integers")) from None


def reshaped_strides(sizes: Sequence[int], strides: Sequence[int], shape: Sequence[int]) -> tuple[int, ...] | None:
    """The strides of the same elements in another shape; ``None`` if no strides say it."""
    if math.prod(sizes) == 0:
        return tuple(1 for _ in shape)
    dims = [(n, s) for n, s in zip(sizes, strides, strict=True) if not is_one(n)]
    merged: list[list[int]] = []  # groups of dimensions that are contiguous in each other
    for n, step in dims:
        if merged and merged[-1][1] == n * step:
            merged[-1] = [merged[-1][0] * n, step]
        else:
            merged.append([n, step])
    found: list[int] = []
    left = list(reversed(merged))
    room, step = left.pop() if left else (1, 1)
    for n in shape:
        if is_one(n):
            found.append(0)
            continue
        if is_one(room):
            if not left:
                return None
            room, step = left.pop()
        if room % n:
            return None
        room //= n
        found.append(room * step)
    # a group may be left half used only if it is used up
    return tuple(found) if is_one(room) and not left else None
