"""Programs whose sizes are open, as what is the same for all sizes and the integers that are not."""

from __future__ import annotations

import dataclasses
import functools
import itertools
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from enum import Enum
from typing import Any, NamedTuple

from tvmdml.enums import TensorFlags
from tvmdml.graph.nodes import Call, Constant, Edge, Input, Node, SizesArray
from tvmdml.graph.program import Finished, Program, ProgramOutput
from tvmdml.library.scheduling import remembered
from tvmdml.operators import _exact
from tvmdml.operators._contract import Operator
from tvmdml.tensors import TensorDataType, TensorDesc
from tvmdml.tensors.sizes import Size, is_open


class Other:
    """A value without integers."""

    __slots__ = ("_key", "value")
    integers = 0

    def __init__(self, value: Any) -> None:
        self.value, self._key = value, _exact.key(value)

    def __eq__(self, other: object) -> bool:
        return self is other or (isinstance(other, Other) and self._key == other._key)

    def __hash__(self) -> int:
        return hash(self._key)

    def made(self, numbers: tuple[Any, ...]) -> Any:
        """The value."""
        return self.value


class IntegerTemplate:
    """Where an integer is."""

    integers = 1

    def made(self, numbers: tuple[Any, ...]) -> Any:
        """The integer."""
        return numbers[0]


class TensorTemplate(NamedTuple):
    """A description of a tensor: its integers are sizes, strides, bytes and alignment."""

    kind: type[TensorDesc]
    data_type: TensorDataType
    rank: int
    has_strides: bool
    has_bytes: bool
    flags: TensorFlags
    others: tuple[Any, ...]
    """The fields that only the class has."""

    @property
    def integers(self) -> int:
        """How many integers it has."""
        return self.rank * (1 + self.has_strides) + self.has_bytes + 1

    def made(self, numbers: tuple[Any, ...]) -> Any:
        """The description with these integers."""
        return _desc(self, numbers) if _are_known(numbers) else self.desc(numbers)

    def desc(self, numbers: tuple[Any, ...]) -> TensorDesc:
        """A new one."""
        sizes, strides = numbers[: self.rank], numbers[self.rank : 2 * self.rank] if self.has_strides else None
        nbytes = numbers[-2] if self.has_bytes else None
        return self.kind(self.data_type, sizes, strides, nbytes, numbers[-1], self.flags, *self.others)


class MadeTemplate:
    """A descriptor or a tuple: its class, and its parts."""

    __slots__ = ("_hash", "integers", "kind", "names", "parts")

    def __init__(self, kind: type[Any], names: tuple[str, ...], parts: tuple[Form, ...]) -> None:
        """``names`` are the fields of a descriptor."""
        self.kind, self.names, self.parts = kind, names, parts
        self.integers: int = sum([part.integers for part in parts])
        """How many integers it has."""
        self._hash = hash((kind, parts))

    def __eq__(self, other: object) -> bool:
        if self is other:
            return True
        return (
            isinstance(other, MadeTemplate) and self._hash == other._hash and (self.kind, self.parts) == (other.kind, other.parts)
        )

    def __hash__(self) -> int:
        return self._hash

    def made(self, numbers: tuple[Any, ...]) -> Any:
        """The value with these integers. While a graph is compiled, equal descriptors are one, with all that follows from it."""
        known = remembered() if self.names and _are_known(numbers) else None
        if known is not None and (value := known.get((self, numbers))) is not None:
            return value
        parts, first = [], 0
        for part in self.parts:
            parts.append(part.made(numbers[first : first + part.integers]))
            first += part.integers
        if self.names:
            value = self.kind(**dict(zip(self.names, parts, strict=True)))
            if known is not None:
                known[self, numbers] = value
            return value
        return tuple(parts) if self.kind is tuple else self.kind(*parts)


Form = MadeTemplate | TensorTemplate | IntegerTemplate | Other
NUMBER = IntegerTemplate()
_INTEGERS = {int}
_plain = functools.lru_cache(1 << 10)(lambda kind, value: Other(value))
_tensor = functools.lru_cache(1 << 10)(TensorTemplate)
_desc = functools.lru_cache(1 << 10)(TensorTemplate.desc)


def _are_known(numbers: tuple[Any, ...]) -> bool:
    """Whether all are Python's own integers."""
    return set(map(type, numbers)) <= _INTEGERS


def _form(value: Any, numbers: list[Any]) -> Form:
    """The form of a value; its integers are appended to ``numbers``."""
    kind: Any = type(value)
    if kind is int or kind is Size:
        numbers.append(value)
        return NUMBER
    if value is None or kind is bool or kind is str or issubclass(kind, Enum):
        return _plain(kind, value)
    if issubclass(kind, TensorDesc):
        numbers += (*value.sizes, *(value.strides or ()))
        has_bytes = value.total_tensor_size_in_bytes is not None
        numbers += [value.total_tensor_size_in_bytes] * has_bytes + [value.guaranteed_base_offset_alignment]
        others = tuple([getattr(value, name) for name in _own_fields(kind)])
        return _tensor(kind, value.data_type, value.rank, value.strides is not None, has_bytes, value.flags, others)
    if issubclass(kind, Operator):
        form, own = _form_of(value)
        numbers += own
        return form
    if issubclass(kind, tuple):
        return MadeTemplate(kind, (), tuple([_form(part, numbers) for part in value]))
    return Other(value)


def _form_of(desc: Operator) -> tuple[MadeTemplate, list[Any]]:
    """The form of a descriptor and its integers, which are kept in it: passes ask for them again and again."""
    known: tuple[MadeTemplate, list[Any]] | None = desc.__dict__.get("_form")
    if known is None:
        numbers: list[Any] = []
        form = MadeTemplate(type(desc), tuple(desc.FIELDS), tuple([_form(getattr(desc, name), numbers) for name in desc.FIELDS]))
        known = desc.__dict__["_form"] = form, numbers
    return known


@functools.cache
def _own_fields(kind: Any) -> tuple[str, ...]:
    """The fields that only a class of tensor descriptions has."""
    return tuple(field.name for field in dataclasses.fields(kind))[len(dataclasses.fields(TensorDesc)) :]


class Template:
    """A descriptor, or a tuple with any depth, with integers that may be open."""

    def __init__(self, value: Any) -> None:
        self.numbers: list[Any] = []
        """The integers, in the order in which they are in it."""
        self._form = _form(value, self.numbers)
        self.key = self._form, tuple([(n.record.number, n.terms) if type(n) is Size else n for n in self.numbers])
        """Equal for what is the same for all sizes."""
        self.is_open = any(map(is_open, self.numbers))
        """Whether it depends on sizes."""
        self._value = None if self.is_open else value

    def filled(self, number: Callable[[Size], Any]) -> Any:
        """The value, with these integers in the places of open ones."""
        if not self.is_open:
            return self._value
        return self._form.made(tuple([number(n) if type(n) is Size else n for n in self.numbers]))

    def with_numbers(self, numbers: Sequence[int]) -> Any:
        """The value with other integers, in their order.

        Raises:
            ValueError: they are more, or fewer.
        """
        if len(numbers) != len(self.numbers):
            raise ValueError(f"{len(numbers)} integers in the places of {len(self.numbers)}")
        return self._form.made(tuple(numbers))


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


class NodePlace(NamedTuple):
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
    precision: str
    """That of the graph."""

    @classmethod
    def of(cls, finished: Finished) -> ProgramTemplate:
        """The template of a program."""
        nodes = _Nodes(finished)
        seen: dict[Any, Template] = {}

        def templates(values: Iterable[Any]) -> list[Template]:
            every = map(Template, values)
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
            finished.program.precision,
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
        results = [ProgramOutput(edge(value(end)), value(desc)) for end, desc in zip(self.ends, self.results, strict=True)]
        return Finished(self.name, inputs, Program(calls, results, self.precision), list(map(value, self.forms)))


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
        self._places = {id(node): NodePlace(kind, i) for kind, nodes in lists.items() for i, node in enumerate(nodes)}

    def edge(self, edge: Edge) -> tuple[NodePlace, int, int]:
        """An edge with its source's place."""
        return self._places[id(edge.source)], edge.output, edge.offset
