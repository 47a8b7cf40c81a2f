"""The movement family: each element of an output is a copy of an element of an input, or a fill.

Such an operator is a class of a few lines: a name, a support table, ``source``, which says where the element at some coordinates
comes from, and ``numpy``, the reference. The family adds the computation, the schedules and the conformance cases. See README.md in
this folder.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any, ClassVar, NamedTuple

from tvmdml.enums import PaddingMode
from tvmdml.errors import counted
from tvmdml.kernels import movement
from tvmdml.kernels import tensorir as T
from tvmdml.kernels.formula import Formula
from tvmdml.kernels.movement import CoordinateRule, Linear, Look, Move, Transfer
from tvmdml.operators._accuracy import Expected
from tvmdml.operators._contract import NumpyArray, Operator, Role, Shared
from tvmdml.operators._frozen import derived
from tvmdml.tensors import TensorDesc

_BENT = {
    PaddingMode.CONSTANT: movement.INSIDE,
    PaddingMode.EDGE: movement.CLAMP,
    PaddingMode.REFLECTION: movement.MIRROR,
    PaddingMode.SYMMETRIC: movement.SYMMETRIC,
    PaddingMode.WRAP: movement.WRAP,
}


class Digit:
    """A coordinate of the loop, or a part of one: ``c = c // n * n + c % n``."""

    def __init__(self, size: int) -> None:
        self.size = size
        self.parts: tuple[Digit, ...] = ()

    def leaves(self) -> list[tuple[Digit, int]]:
        """The digits that it finally consists of, each with its weight."""
        if not self.parts:
            return [(self, 1)]
        weights = [math.prod(one.size for one in self.parts[i + 1 :]) for i in range(len(self.parts))]
        return [(leaf, own * weight) for one, weight in zip(self.parts, weights, strict=True) for leaf, own in one.leaves()]


class Coordinate:
    """An integer that follows from an output's coordinates: sums, products with numbers, and digits of single coordinates."""

    def __init__(self, terms: Mapping[Digit, int], base: int = 0) -> None:
        self.terms, self.base = dict(terms), base

    def __add__(self, other: Any) -> Coordinate:
        """A sum with another coordinate, or with a number."""
        more = other if isinstance(other, Coordinate) else Coordinate({}, other)
        terms = {digit: self.terms.get(digit, 0) + more.terms.get(digit, 0) for digit in (*self.terms, *more.terms)}
        return Coordinate(terms, self.base + more.base)

    __radd__ = __add__

    def __sub__(self, number: int) -> Coordinate:
        """A difference with a number."""
        return self + -number

    def __rsub__(self, number: int) -> Coordinate:
        """A number minus this."""
        return self * -1 + number

    def __mul__(self, factor: int) -> Coordinate:
        """A product with a number."""
        return Coordinate({digit: factor * own for digit, own in self.terms.items()}, factor * self.base)

    __rmul__ = __mul__

    def digits(self, *sizes: int) -> tuple[Coordinate, ...]:
        """Its digits in row-major order: the sizes' product is the coordinate's size."""
        (digit,) = self.terms
        if not digit.parts:
            assert math.prod(sizes) == digit.size
            digit.parts = tuple(map(Digit, sizes))
        assert tuple(one.size for one in digit.parts) == sizes, "a coordinate is divided in one way only"
        return tuple(Coordinate({one: 1}) for one in digit.parts)

    def __divmod__(self, size: int) -> tuple[Coordinate, Coordinate]:
        """The quotient and the remainder for a divisor of the coordinate's size."""
        (digit,) = self.terms
        high, low = self.digits(digit.size // size, size)
        return high, low

    def __floordiv__(self, size: int) -> Coordinate:
        """The quotient."""
        return divmod(self, size)[0]

    def __mod__(self, size: int) -> Coordinate:
        """The remainder."""
        return divmod(self, size)[1]


class IndexElement(NamedTuple):
    """An element of an index tensor."""

    name: str
    at: Sequence[Coordinate]


class Bound(NamedTuple):
    """A source's coordinate that is not simply a ``Coordinate``; see ``tvmdml.kernels.movement.CoordinateRule``."""

    kind: str
    x: Coordinate = Coordinate({})
    divisor: int = 1
    entry: IndexElement | None = None
    size: int | None = None


def inside(x: Coordinate) -> Bound:
    """The coordinate; outside of the source there is the fill."""
    return Bound(movement.INSIDE, x)


def divided(x: Coordinate, divisor: int) -> Bound:
    """The quotient; where it is not whole, or outside of the source, there is the fill."""
    return Bound(movement.WHOLE, x, divisor)


def padded(x: Coordinate, mode: PaddingMode) -> Bound:
    """The coordinate, brought back into the source as a padding mode says."""
    return Bound(_BENT[mode], x)


def picked(entry: IndexElement) -> Bound:
    """An index: a negative one counts from the end, and one that is out of range is clamped."""
    return Bound(movement.PICKED, entry=entry)


def turned(x: Coordinate, length: IndexElement) -> Bound:
    """The coordinate counted from the end of the first elements, as many as a length says; behind these the coordinate itself."""
    return Bound(movement.TURNED, x, entry=length)


def equal(x: Coordinate, entry: IndexElement, size: int) -> Bound:
    """The coordinate 0 where an index into so many elements is ``x``; elsewhere there is the fill."""
    return Bound(movement.EQUAL, x, entry=entry, size=size)


SourceCoordinates = Sequence[Coordinate | Bound]
"""A coordinate for each dimension of the source."""


class Movement(Operator):
    """Base class of operators that move elements."""

    FAMILY: ClassVar[str] = "movement"
    TAKES_BOOL = True
    CONSTANT_SHAPES = "where an element comes from follows from the sizes"
    INDICES: ClassVar[tuple[str, ...]] = ()
    """The inputs that are indices or lengths: their elements are looked at, and do not move."""

    # -- What an operator defines

    def source(self, *at: Coordinate) -> SourceCoordinates:
        """Where the output's element at these coordinates comes from."""
        raise NotImplementedError(self.NAME)

    def numpy(self, *arrays: Any) -> Any:
        """The same in NumPy, written independently; a tuple for several outputs."""
        raise NotImplementedError(self.NAME)

    def fill(self) -> int:
        """The bits of elements that come from nowhere."""
        return 0

    # -- Rules that several have

    def require_count(self, *names: str) -> None:
        """Refuse sequences that do not have a number for each dimension of the first tensor."""
        rank = next(tensor.rank for _, tensor in self.tensors() if tensor is not None)
        for name in names:
            given = getattr(self, name)
            self.require(len(given) == rank, name, counted(len(given), "number"), f"{rank}, one for each dimension")

    def require_sizes(self, name: str, sizes: tuple[int, ...]) -> None:
        """Refuse a tensor that has other sizes than it must have."""
        given = getattr(self, name).sizes
        self.require(given == sizes, f"{name}.sizes", given, str(sizes))

    def require_elements(self, name: str) -> None:
        """Refuse a tensor without elements from which some must be taken."""
        given = getattr(self, name)
        wanted = any(tensor is not None and tensor.element_count for _, tensor in self.tensors(Role.OUTPUT))
        self.require(
            given.element_count > 0 or not wanted, f"{name}.sizes", given.sizes, "sizes with elements: some are taken from it"
        )

    def require_axis(self, name: str = "axis") -> None:
        """Refuse an axis that the first tensor does not have."""
        rank, axis = next(tensor.rank for _, tensor in self.tensors() if tensor is not None), getattr(self, name)
        self.require(axis < rank, name, axis, f"0 to {rank - 1}, the dimensions of the tensor")

    def require_one_each(self, name: str, sizes: tuple[int, ...]) -> None:
        """Refuse a tensor that has not one element for each sequence along the axis of such sizes."""
        axis = self._axis()
        self.require_sizes(name, (*sizes[:axis], 1, *sizes[axis + 1 :]))

    def one_each(self, name: str, at: Sequence[Coordinate]) -> IndexElement:
        """The element of such a tensor for the sequence with these coordinates."""
        return IndexElement(name, [Coordinate({}) if i == self._axis() else x for i, x in enumerate(at)])

    def _axis(self) -> int:
        return self.axis  # type: ignore[attr-defined] # a field of the subclasses

    # -- What the family derives from it

    def is_moved(self) -> bool:
        """Whether elements move as ``source`` says; otherwise ``computation`` is the kernel."""
        return True

    def resampling(self) -> Operator | None:
        """Where elements do not just move: the operator of the resampling family that does the same, if there is one."""
        return None

    def moves(self) -> tuple[Move, ...]:
        """The moves; one from the first input that moves to the output, unless an operator says more."""
        name = next(name for name, _ in self.tensors(Role.INPUT) if name not in self.INDICES)
        result = next(name for name, _ in self.tensors(Role.OUTPUT))
        return (self.move(name, result, self.source),)

    def move(
        self,
        source: str,
        result: str,
        read: Callable[..., SourceCoordinates],
        written: Callable[..., SourceCoordinates] | None = None,
    ) -> Move:
        """A move between two tensors.

        Args:
            source: the name of the tensor that is read.
            result: that of the one that is written.
            read: for each coordinate of the loop, where in the source the element is.
            written: where in the result it goes; the loop's coordinates are then the source's. By default they are the result's.
        """
        tensors = self._present()
        names = {name: place for place, name in enumerate(tensors)}
        whole = [Digit(size) for size in tensors[result if written is None else source].sizes]
        at = [Coordinate({digit: 1}) for digit in whole]
        found = read(*at)
        target = at if written is None else written(*at)
        leaves = [leaf for digit in whole for leaf, _ in digit.leaves()]

        def linear(coordinates: Sequence[tuple[Coordinate, int]]) -> Linear:
            weights, base = dict.fromkeys(leaves, 0), 0
            for one, step in coordinates:
                base += one.base * step
                for digit, factor in one.terms.items():
                    for leaf, weight in digit.leaves():
                        weights[leaf] += factor * weight * step
            return Linear(base, tuple(weights.values()))

        own = tensors[source]
        assert len(found) == own.rank
        rules = []
        for one, size, step in zip(found, own.sizes, own.layout, strict=True):
            if isinstance(one, Bound):
                look = None
                if one.entry is not None:
                    places = zip(one.entry.at, tensors[one.entry.name].layout, strict=True)
                    look = Look(names[one.entry.name], linear(list(places)))
                at_most = size if one.size is None else one.size
                rules.append(CoordinateRule(one.kind, at_most, step, linear([(one.x, 1)]), one.divisor, look))
        plain = [(one, step) for one, step in zip(found, own.layout, strict=True) if isinstance(one, Coordinate)]
        goal = [one for one in target if isinstance(one, Coordinate)]

        def aim(name: str) -> Linear:
            return linear(list(zip(goal, tensors[name].layout, strict=True)))

        return Move(
            tuple(leaf.size for leaf in leaves),
            names[source],
            names[result],
            linear(plain),
            aim(result),
            tuple(rules),
            tuple(Look(names[name], aim(name)) for name in self.beside()),
        )

    @derived
    def _present(self) -> dict[str, TensorDesc]:
        """The tensors that are present, by name; found once, since there may be many."""
        return {name: tensor for name, tensor in self.tensors() if tensor is not None}

    def transfer(self) -> Transfer:
        """What its kernel moves."""
        return Transfer(tuple(tensor for _, tensor in self.tensors() if tensor is not None), self.moves(), self.fill())

    def computation(self, each: T.Each, shared: Shared = ()) -> T.PrimFunc:
        """One item for each element of a move."""
        transfer, formula = self.transfer(), self.formula()
        bits = formula.inputs[0].data_type.tvm
        with T.function() as f:
            buffers = [f.buffer(f"tensor{i}", kind) for i, kind in enumerate(self.kinds())]
            for move in transfer.moves:
                with T.elements(each, move.sizes) as at:
                    offset, comes = movement.place(move, buffers, at)
                    found = buffers[move.source][offset]
                    if comes is not None:
                        found = T.Select(comes, T.let(found), filled(transfer, buffers, bits))
                    others = (buffers[one.tensor][movement.value(one.place, at)] for one in move.beside)
                    T.store(buffers[move.result], movement.value(move.written, at), *formula.value(found, *others))
        return f.result()

    def beside(self) -> tuple[str, ...]:
        """The inputs that what follows in the kernel takes."""
        return ()

    def formula(self) -> Formula:
        """What an element passes through before it is stored, from its bits: nothing changes it here."""
        bits = TensorDesc(f"uint{8 * self.outputs()[0].data_type.itemsize}", (1,))
        return Formula((bits,), (bits,), lambda x: (x,), (), (), copied=True)

    def reference(self, *inputs: NumpyArray | None) -> tuple[Expected, ...]:
        """The operator in NumPy."""
        found = self.numpy(*inputs)
        return found if type(found) is tuple else (found,)  # a Near is a tuple, too

    def kinds(self) -> tuple[str, ...]:
        """The type in which a kernel has each tensor's elements: those that move as bits of their width."""
        formula = self.formula()
        bits, stored = (some[0].data_type.tvm for some in (formula.inputs, formula.outputs))
        own = (*self.INDICES, *self.beside())
        results = {name for name, _ in self.tensors(Role.OUTPUT)}
        return tuple(
            tensor.data_type.tvm if name in own else stored if name in results else bits
            for name, tensor in self.tensors()
            if tensor is not None
        )

    def bounds(self, name: str) -> tuple[int, int] | None:
        """Of indices: those that are in range for the dimension that they are looked up for."""
        names = [name for name, tensor in self.tensors() if tensor is not None]
        if name not in self.INDICES:
            return None
        rules = [rule for move in self.moves() for rule in move.rules if rule.look and rule.look.tensor == names.index(name)]
        size = min((rule.size for rule in rules), default=1)
        lengths = any(rule.kind == movement.TURNED for rule in rules)
        return (0, size) if lengths else (self.lowest(name, size), size - 1)

    def lowest(self, name: str, size: int) -> int:
        """The least index in range: a negative one counts from the end."""
        return -size if _present(dict(self.tensors())[name]).data_type.is_signed else 0


def filled(transfer: Transfer, buffers: Sequence[Any], bits: str) -> Any:
    """The value of elements that come from nowhere, as a constant or an element in memory."""
    if transfer.filled_from is not None:
        tensor, offset = transfer.filled_from
        return T.let(buffers[tensor][T.index(offset)])
    return T.word(transfer.fill, int(bits.removeprefix("uint")))


def _present(tensor: TensorDesc | None) -> TensorDesc:
    assert tensor is not None
    return tensor
