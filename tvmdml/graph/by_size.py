"""``BySize``: a program as a function of one size, found from the programs for some values of it.

A decoder whose past grows by a word needs, at each step, a program with the same calls and other numbers. These numbers are
polynomials of the size, of degree 2 at most. They are found from three programs, and must hold in others, or there is no such
function. Between the values that were tried it makes programs without conversion and passes.
"""

from __future__ import annotations

import dataclasses
import itertools
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from fractions import Fraction
from typing import Any, NamedTuple, TypeVar

from tvmdml import exact
from tvmdml.arrays import NumpyArray
from tvmdml.graph.nodes import Call, Constant, Edge, Input, Node
from tvmdml.graph.program import Finished, Program, Result
from tvmdml.operators._contract import Operator
from tvmdml.sizes import Record, Size
from tvmdml.sizes.template import Template
from tvmdml.tensors import TensorDesc

T = TypeVar("T")


class Differs(Exception):
    """The programs differ by more than numbers."""


class Number(NamedTuple):
    """An integer that is a polynomial of the size: ``(square * n * n + linear * n + fixed) // divisor``, without a remainder."""

    square: int
    linear: int
    fixed: int
    divisor: int

    def at(self, n: Any) -> Any:
        """Its value for a size, which may be open.

        Raises:
            Differs: it is not an integer there.
        """
        found, rest = divmod((self.square * n + self.linear) * n + self.fixed, self.divisor)
        if rest:
            raise Differs
        return found

    @classmethod
    def through(cls, sizes: Sequence[int], values: Sequence[int]) -> Number:
        """The polynomial with these values.

        Raises:
            Differs: there is none of degree 2.
        """
        first, second, third = sizes[:3]
        a, b, c = values[:3]
        # Newton's divided differences, times their common divisor
        divisor = (second - first) * (third - first) * (third - second)
        slope = (b - a) * (third - first) * (third - second)
        square = (c - b) * (second - first) - (b - a) * (third - second)
        linear = slope - square * (first + second)
        found = cls(square, linear, a * divisor - slope * first + square * first * second, divisor)
        if any(found.at(n) != value for n, value in zip(sizes, values, strict=True)):
            raise Differs
        return found

    def leads(self) -> tuple[Fraction, Fraction | None]:
        """What polynomials of other sizes have in common with it if quotients are rounded otherwise: the square, or the slope."""
        square = Fraction(self.square, self.divisor)
        return square, None if square else Fraction(self.linear, self.divisor)


_NO_LEAD = Fraction(0), Fraction(0)


class Made(NamedTuple):
    """A descriptor, a tuple, or anything else whose integers are numbers: its class, and its parts."""

    kind: type[Any]
    names: tuple[str, ...]
    """The fields of a dataclass."""
    parts: tuple[Any, ...]


class Other:
    """A value without such integers."""

    def __init__(self, value: Any) -> None:
        self.value = value
        self._key = exact.key(value)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Other) and self._key == other._key

    def __hash__(self) -> int:
        return hash(self._key)


NUMBER = Other("a number")
"""Where an integer is."""
Form = Made | Other


def _form(value: Any, numbers: list[Any]) -> Form:
    """The form of a value; its integers are appended to ``numbers``."""
    kind = type(value)
    if kind is int or kind is Size:
        numbers.append(value)
        return NUMBER
    if isinstance(value, (TensorDesc, Operator)):
        names = tuple(field.name for field in dataclasses.fields(value))  # type: ignore[arg-type] # both are dataclasses
        return Made(kind, names, tuple(_form(getattr(value, name), numbers) for name in names))
    if isinstance(value, tuple):
        return Made(kind, (), tuple(_form(one, numbers) for one in value))
    return Other(value)


def _value(form: Form, numbers: Iterable[Any]) -> Any:
    """The value of a form with these integers."""
    rest = iter(numbers)

    def made(form: Any) -> Any:
        if form is NUMBER:
            return next(rest)
        if isinstance(form, Other):
            return form.value
        parts = [made(part) for part in form.parts]
        if form.names:
            return form.kind(**dict(zip(form.names, parts, strict=True)))
        return tuple(parts) if form.kind is tuple else form.kind(*parts)

    return made(form)


class Described:
    """A value as a function of the size: a descriptor, or a tuple with any depth, whose integers are numbers."""

    def __init__(self, form: Form, numbers: Sequence[Any]) -> None:
        """
        Args:
            form: what it is beside its integers.
            numbers: these, in the order in which they are in it: Python's own, or such that depend on sizes.
        """
        self.form, self.numbers = form, numbers
        self.key = form, tuple((one.record.number, one.terms) if type(one) is Size else one for one in numbers)
        """Equal for what is the same for each size."""
        self.varies = any(type(one) is not int for one in numbers)
        """Whether it depends on the size."""
        self._value = None if self.varies else _value(form, numbers)

    @classmethod
    def through(cls, sizes: Sequence[int], values: Sequence[Any]) -> Described:
        """What has these values.

        Raises:
            Differs: the values differ by more than numbers.
        """
        numbers: list[list[int]] = [[] for _ in values]
        forms = [_form(value, own) for value, own in zip(values, numbers, strict=True)]
        if any(form != forms[0] for form in forms[1:]):
            raise Differs
        return cls(forms[0], [Number.through(sizes, one) if len(set(one)) > 1 else one[0] for one in zip(*numbers, strict=True)])

    @classmethod
    def of(cls, value: Any) -> Described:
        """What this is, with sizes that are open."""
        numbers: list[Any] = []
        return cls(_form(value, numbers), numbers)

    def is_like(self, other: Described) -> bool:
        """Whether it grows as another one does."""
        mine, others = ([one.leads() if isinstance(one, Number) else _NO_LEAD for one in some.numbers] for some in (self, other))
        return self.form == other.form and mine == others

    def recorded(self, n: int, function: Callable[[Any], T]) -> Template[T]:
        """What a function makes of the value for a size, for all sizes with the same answers.

        Raises:
            Differs: a number is no integer at this size.
            Exception: what the function raises.
        """
        record = Record()
        size = record.symbol("n", n)
        numbers = [one.at(size) if isinstance(one, Number) else one for one in self.numbers]
        return Template(record, function(_value(self.form, numbers)))

    def at(self, n: int) -> Any:
        """The value for a size."""
        return self.filled(lambda one: one.at(n))

    def filled(self, number: Callable[[Any], Any]) -> Any:
        """The value, with these integers in the places of those that depend on sizes."""
        if not self.varies:
            return self._value
        return _value(self.form, [one if type(one) is int else number(one) for one in self.numbers])


class Filled:
    """The values of several ``Described``; each is made once."""

    def __init__(self, number: Callable[[Any], Any]) -> None:
        """``number`` makes an integer of one that depends on sizes."""
        self._number = number
        self._known: dict[int, Any] = {}

    def of(self, one: Described) -> Any:
        """The value of one of them, which lives as long as this does."""
        found = self._known.get(id(one))
        if found is None:
            found = self._known[id(one)] = one.filled(self._number)
        return found


class Values(Filled):
    """The values for a size."""

    def __init__(self, n: int) -> None:
        super().__init__(lambda one: one.at(n))
        self.n = n


class Place(NamedTuple):
    """A node: in which list of its program it is, and where."""

    kind: str
    number: int


@dataclasses.dataclass(frozen=True, eq=False)
class BySize:
    """A program for each value of a size.

    Inputs of the programs that are none of their callers' stand for constants: ``at`` gets their arrays. Equal descriptions are one
    object: layers have calls that are alike.
    """

    name: str
    titles: Sequence[tuple[str, str]]
    """The name of each call, and where it was made."""
    constants: Sequence[Constant]
    """Those that are the same for each size."""
    descs: Sequence[Described]
    """Of each call."""
    edges: Sequence[Described]
    """What each call reads: pairs of a tensor's name and an edge, whose last part is the offset."""
    inputs: Sequence[Described]
    """The type, the caller's type, and whether it is owned, of each input."""
    ends: Sequence[Described]
    """The edge of each result."""
    results: Sequence[Described]
    """The descriptor of each result."""
    forms: Sequence[Described]
    """The type and shape of each output."""
    names: tuple[str, ...]
    """Of the inputs."""
    wanted: tuple[str, ...]
    """The names of the inputs that stand for constants."""

    @classmethod
    def through(cls, programs: Mapping[int, Finished]) -> BySize:
        """The function with these programs.

        Args:
            programs: after all passes, by the size. Three have a common function if they have the same calls; more must agree.

        Raises:
            Differs: they are not one function of the size.
        """
        finished = list(programs.values())
        nodes = [_Nodes(one) for one in finished]
        if len({(len(one.program.calls), len(own.constants)) for one, own in zip(finished, nodes, strict=True)}) > 1:
            raise Differs
        for first, *others in zip(*(own.constants for own in nodes), strict=True):
            if not all(_same(first.array, other.array) for other in others):
                raise Differs
        seen: dict[Any, Described] = {}

        def described(values: Iterable[Any]) -> Described:
            found = Described.through(list(programs), list(values))
            return seen.setdefault(found.key, found)

        def by_call(what: Callable[[Call, _Nodes], Any]) -> list[Described]:
            several = ([what(call, own) for call in one.program.calls] for one, own in zip(finished, nodes, strict=True))
            return [described(values) for values in zip(*several, strict=True)]

        def by_place(what: Callable[[Finished, _Nodes], Sequence[Any]]) -> list[Described]:
            several = [what(one, own) for one, own in zip(finished, nodes, strict=True)]
            if len(set(map(len, several))) > 1:
                raise Differs
            return [described(values) for values in zip(*several, strict=True)]

        first_size = next(iter(programs))
        return cls(
            finished[0].name,
            [(call.name, call.where) for call in finished[0].program.calls],
            nodes[0].constants,
            by_call(lambda call, _: call.desc),
            by_call(lambda call, own: tuple((name, own.edge(edge)) for name, edge in call.edges.items())),
            by_place(lambda one, _: [(i.desc, i.dtype, i.owned) for i in one.inputs]),
            by_place(lambda one, own: [own.edge(end.edge) for end in one.program.results]),
            by_place(lambda one, _: [end.desc for end in one.program.results]),
            by_place(lambda one, _: one.forms),
            described(tuple(i.name for i in one.inputs) for one in finished).at(first_size),
            described(own.names() for own in nodes).at(first_size),
        )

    def described(self) -> Iterator[Described]:
        """All that depends on the size, or may do so."""
        return itertools.chain(self.descs, self.edges, self.inputs, self.ends, self.results, self.forms)

    def is_like(self, other: BySize) -> bool:
        """Whether the programs are those of another function, with numbers that grow alike."""
        mine, others = list(self.described()), list(other.described())
        if (self.names, self.wanted, len(mine)) != (other.names, other.wanted, len(others)):
            return False
        if len(self.constants) != len(other.constants):
            return False
        pairs = {(id(a), id(b)): (a, b) for a, b in zip(mine, others, strict=True)}
        arrays = zip(self.constants, other.constants, strict=True)
        return all(a.is_like(b) for a, b in pairs.values()) and all(_same(a.array, b.array) for a, b in arrays)

    @classmethod
    def of(cls, finished: Finished) -> BySize:
        """A program with sizes that are open."""
        nodes = _Nodes(finished)
        seen: dict[Any, Described] = {}

        def described(values: Iterable[Any]) -> list[Described]:
            every = map(Described.of, values)
            return [seen.setdefault(one.key, one) for one in every]

        calls, results = finished.program.calls, finished.program.results
        return cls(
            finished.name,
            [(call.name, call.where) for call in calls],
            nodes.constants,
            described(call.desc for call in calls),
            described(tuple((name, nodes.edge(edge)) for name, edge in call.edges.items()) for call in calls),
            described((one.desc, one.dtype, one.owned) for one in finished.inputs),
            described(nodes.edge(end.edge) for end in results),
            described(end.desc for end in results),
            described(finished.forms),
            tuple(one.name for one in finished.inputs),
            nodes.names(),
        )

    def at(self, n: int, arrays: Sequence[NumpyArray]) -> Finished:
        """The program for a size.

        Args:
            n: the size, between those that were tried.
            arrays: the constants that are ``wanted``.

        Raises:
            Differs: a number is no integer there.
        """
        return self.filled(Values(n), arrays)

    def filled(self, values: Filled, arrays: Sequence[NumpyArray] = ()) -> Finished:
        """The program with these integers in the places of those that depend on sizes; ``arrays`` are the constants ``wanted``."""
        value = values.of
        inputs = [input_of(value(one), name) for one, name in zip(self.inputs, self.names, strict=True)]
        given = [Constant(array, name, "") for name, array in zip(self.wanted, arrays, strict=True)]
        calls: list[Call] = []
        lists: Mapping[str, Sequence[Node]] = {"inputs": inputs, "constants": self.constants, "given": given, "calls": calls}

        def edge(found: Any) -> Edge:
            (kind, number), output, offset = found
            return Edge(lists[kind][number], output, offset)

        for (name, where), desc, edges in zip(self.titles, self.descs, self.edges, strict=True):
            calls.append(Call(value(desc), {tensor: edge(one) for tensor, one in value(edges)}, name, where))
        results = [Result(edge(value(one)), value(desc)) for one, desc in zip(self.ends, self.results, strict=True)]
        return Finished(self.name, inputs, Program(calls, results), list(map(value, self.forms)))


def input_of(form: tuple[TensorDesc, Any, bool], name: str) -> Input:
    """An input of a program."""
    desc, dtype, owned = form
    return Input(desc, dtype, owned, name, "")


class _Nodes:
    """The nodes of a program by their places."""

    def __init__(self, finished: Finished) -> None:
        self.constants = finished.program.constants()
        own = set(map(id, finished.inputs))
        self._given = [node for node in finished.program.inputs() if id(node) not in own]
        lists: dict[str, Sequence[Node]] = {
            "inputs": finished.inputs,
            "constants": self.constants,
            "given": self._given,
            "calls": finished.program.calls,
        }
        self._places = {id(node): Place(kind, i) for kind, nodes in lists.items() for i, node in enumerate(nodes)}

    def edge(self, edge: Edge) -> tuple[Place, int, int]:
        """An edge with its source's place."""
        return self._places[id(edge.source)], edge.output, edge.offset

    def names(self) -> tuple[str, ...]:
        """The names of the inputs that are none of the callers'."""
        return tuple(node.name for node in self._given)


def _same(array: NumpyArray, other: NumpyArray) -> bool:
    """Whether two arrays have the same elements, bit for bit."""
    if (array.shape, array.dtype) != (other.shape, other.dtype):
        return False
    return array.ctypes.data == other.ctypes.data or array.tobytes() == other.tobytes()
