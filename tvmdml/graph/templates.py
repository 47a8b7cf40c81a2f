"""Programs whose sizes are open, as what is the same for all sizes and the integers that are not."""

from __future__ import annotations

import dataclasses
import itertools
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any, NamedTuple

from tvmdml import exact
from tvmdml.graph.nodes import Call, Constant, Edge, Input, Node, SizesArray
from tvmdml.graph.program import Finished, Program, Result
from tvmdml.operators._contract import Operator
from tvmdml.sizes import Size, is_open
from tvmdml.tensors import TensorDesc


class Made(NamedTuple):
    """A descriptor, a tuple, or anything else with integers: its class, and its parts."""

    kind: type[Any]
    names: tuple[str, ...]
    """The fields of a dataclass."""
    parts: tuple[Any, ...]


class Other:
    """A value without integers."""

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
        return Made(kind, (), tuple(_form(part, numbers) for part in value))
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


class Template:
    """A descriptor, or a tuple with any depth, with integers that may be open."""

    def __init__(self, form: Form, numbers: Sequence[Any]) -> None:
        """
        Args:
            form: what it is beside its integers.
            numbers: these, in the order in which they are in it.
        """
        self.form, self.numbers = form, numbers
        self.key = form, tuple((n.record.number, n.terms) if type(n) is Size else n for n in numbers)
        """Equal for what is the same for all sizes."""
        self.is_open = any(map(is_open, numbers))
        """Whether it depends on sizes."""
        self._value = None if self.is_open else _value(form, numbers)

    @classmethod
    def of(cls, value: Any) -> Template:
        """What this is."""
        numbers: list[Any] = []
        return cls(_form(value, numbers), numbers)

    def filled(self, number: Callable[[Size], Any]) -> Any:
        """The value, with these integers in the places of open ones."""
        if not self.is_open:
            return self._value
        return _value(self.form, [number(n) if type(n) is Size else n for n in self.numbers])

    def with_numbers(self, numbers: Sequence[int]) -> Any:
        """The value with other integers, in their order.

        Raises:
            ValueError: they are more, or fewer.
        """
        if len(numbers) != len(self.numbers):
            raise ValueError(f"{len(numbers)} integers in the places of {len(self.numbers)}")
        return _value(self.form, numbers)


class Filled:
    """The values of several templates; each is made once."""

    def __init__(self, number: Callable[[Size], Any]) -> None:
        """``number`` makes an integer of an open one."""
        self._number = number
        self._known: dict[int, Any] = {}

    def of(self, template: Template) -> Any:
        """The value of one of them, which lives as long as this does."""
        value = self._known.get(id(template))
        if value is None:
            value = self._known[id(template)] = template.filled(self._number)
        return value


class Place(NamedTuple):
    """A node: in which list of its program it is, and where."""

    kind: str
    number: int


@dataclasses.dataclass(frozen=True, eq=False)
class ProgramTemplate:
    """A program whose sizes are open. Equal templates are one object: layers have calls that are alike."""

    name: str
    titles: Sequence[tuple[str, str]]
    """The name of each call, and where it was made."""
    constants: Sequence[Constant]
    arrays: Sequence[Template]
    """The elements, the descriptor and the name of each array of sizes."""
    descs: Sequence[Template]
    """Of each call."""
    edges: Sequence[Template]
    """What each call reads: pairs of a tensor's name and an edge, whose last part is the offset."""
    inputs: Sequence[Template]
    """The type, the caller's type, and whether it is owned, of each input."""
    ends: Sequence[Template]
    """The edge of each result."""
    results: Sequence[Template]
    """The descriptor of each result."""
    forms: Sequence[Template]
    """The type and shape of each output."""
    names: tuple[str, ...]
    """Of the inputs."""

    @classmethod
    def of(cls, finished: Finished) -> ProgramTemplate:
        """The template of a program."""
        nodes = _Nodes(finished)
        seen: dict[Any, Template] = {}

        def templates(values: Iterable[Any]) -> list[Template]:
            every = map(Template.of, values)
            return [seen.setdefault(template.key, template) for template in every]

        calls, results = finished.program.calls, finished.program.results
        return cls(
            finished.name,
            [(call.name, call.where) for call in calls],
            nodes.constants,
            templates((node.elements, node.desc, node.name) for node in nodes.arrays),
            templates(call.desc for call in calls),
            templates(tuple((name, nodes.edge(edge)) for name, edge in call.edges.items()) for call in calls),
            templates((node.desc, node.dtype, node.owned) for node in finished.inputs),
            templates(nodes.edge(end.edge) for end in results),
            templates(end.desc for end in results),
            templates(finished.forms),
            tuple(node.name for node in finished.inputs),
        )

    def templates(self) -> Iterator[Template]:
        """All that may depend on sizes."""
        return itertools.chain(self.arrays, self.descs, self.edges, self.inputs, self.ends, self.results, self.forms)

    def filled(self, number: Callable[[Size], Any]) -> Finished:
        """The program with these integers in the places of open ones."""
        value = Filled(number).of
        inputs = [input_of(value(template), name) for template, name in zip(self.inputs, self.names, strict=True)]
        arrays = [_array(*value(template)) for template in self.arrays]
        calls: list[Call] = []
        lists: Mapping[str, Sequence[Node]] = {"inputs": inputs, "constants": self.constants, "arrays": arrays, "calls": calls}

        def edge(of: Any) -> Edge:
            (kind, number), output, offset = of
            return Edge(lists[kind][number], output, offset)

        for (name, where), desc, edges in zip(self.titles, self.descs, self.edges, strict=True):
            calls.append(Call(value(desc), {tensor: edge(of) for tensor, of in value(edges)}, name, where))
        results = [Result(edge(value(end)), value(desc)) for end, desc in zip(self.ends, self.results, strict=True)]
        return Finished(self.name, inputs, Program(calls, results), list(map(value, self.forms)))


def input_of(form: tuple[TensorDesc, Any, bool], name: str) -> Input:
    """An input of a program."""
    desc, dtype, owned = form
    return Input(desc, dtype, owned, name, "")


def _array(elements: tuple[Any, ...], desc: TensorDesc, name: str) -> Node:
    """An array of sizes; a constant if none is open."""
    node = SizesArray(elements, desc, name, "")
    return node if any(map(is_open, elements)) else Constant(node.array(elements), name, "")


class _Nodes:
    """The nodes of a program by their places."""

    def __init__(self, finished: Finished) -> None:
        self.constants = finished.program.constants()
        self.arrays = [node for node in finished.program.inputs() if isinstance(node, SizesArray)]
        lists: dict[str, Sequence[Node]] = {
            "inputs": finished.inputs,
            "constants": self.constants,
            "arrays": self.arrays,
            "calls": finished.program.calls,
        }
        self._places = {id(node): Place(kind, i) for kind, nodes in lists.items() for i, node in enumerate(nodes)}

    def edge(self, edge: Edge) -> tuple[Place, int, int]:
        """An edge with its source's place."""
        return self._places[id(edge.source)], edge.output, edge.offset
