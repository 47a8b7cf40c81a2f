"""``Work``: one operator with its inputs, attributes and outputs; what a contender has to do."""

from __future__ import annotations

import dataclasses
import itertools
from collections.abc import Iterator
from typing import Any, NamedTuple

from tvmdml import operators
from tvmdml.enums import DmlEnum
from tvmdml.errors import InvalidArgument
from tvmdml.operators import Operator
from tvmdml.operators._contract import Role, Shared
from tvmdml.operators._following import follow
from tvmdml.operators._pointwise_fused import Result
from tvmdml.proof.bench import inputs
from tvmdml.proof.bench.inputs import Sizes
from tvmdml.tensors import TensorDataType, TensorDesc


@dataclasses.dataclass(frozen=True)
class Operand:
    """A tensor as a caller has it: an input may be smaller than the result, if the operator broadcasts it."""

    sizes: Sizes
    dtype: str = "float32"
    data: str = "normal"
    """One of ``inputs.FILLS``; empty for an output."""
    layout: str = "packed"
    """One of ``inputs.LAYOUTS``."""

    def describe(self) -> TensorDesc:
        """Its description."""
        return TensorDesc(self.dtype, self.sizes, None if self.layout == "packed" else inputs.steps(self.sizes, self.layout))

    def at_most(self, size: int) -> Operand:
        """The same with dimensions limited to a size."""
        return dataclasses.replace(self, sizes=tuple(min(n, size) for n in self.sizes))


Attribute = int | float | str | tuple[float, ...] | Operand | tuple[Operand, ...]
"""A value, in Python's own types. Of an output: its data type, or an ``Operand``, unless it follows from the inputs."""
Given = Operand | tuple[Operand, ...] | None
"""An input: a tensor, a list of tensors, or none."""


@dataclasses.dataclass(frozen=True)
class Work:
    """What a contender has to do."""

    operator: str
    """DirectML's name."""
    inputs: tuple[Given, ...]
    """In DirectML's order; those at the end may be left out if they are optional."""
    attributes: tuple[tuple[str, Attribute], ...] = ()
    """By name, in the order of the names. Outputs are here too, if they do not follow from the inputs.
    A fused operator is its name."""
    in_place: bool = False
    """Whether the output is written to the first input's memory."""
    door: str = "bound"
    """How it is called: ``bound`` (converted once), ``initialized`` (the same, and weights are given once), ``operator`` (arrays
    checked each time) or ``function`` (results allocated)."""
    behind: tuple[str, ...] = ()
    """Pointwise operators that follow in the same kernel, each on the result before it; one with two inputs takes the next of the
    inputs that the operator itself does not."""

    @classmethod
    def on(
        cls,
        operator: str,
        *inputs: Given,
        in_place: bool = False,
        door: str = "bound",
        behind: tuple[str, ...] = (),
        **attributes: Attribute,
    ) -> Work:
        """The work of an operator on these inputs."""
        return cls(operator, inputs, tuple(sorted(attributes.items())), in_place, door, behind)

    def __getitem__(self, name: str) -> Any:
        """An attribute."""
        return dict(self.attributes)[name]

    def operands(self) -> Iterator[Operand]:
        """All inputs that are present, one by one."""
        for given in self.inputs:
            yield from given if isinstance(given, tuple) else () if given is None else (given,)

    # -- The first input, or without inputs the output: peers of operators with one input ask for no other

    @property
    def first(self) -> Operand:
        """The first input, or the output if there is no input."""
        outputs = (value for _, value in self.attributes if isinstance(value, Operand))
        return next(iter((*self.operands(), *outputs)))

    @property
    def sizes(self) -> Sizes:
        """The first tensor's sizes."""
        return self.first.sizes

    @property
    def dtype(self) -> str:
        """The first tensor's data type."""
        return self.first.dtype

    @property
    def layout(self) -> str:
        """The first tensor's layout."""
        return self.first.layout

    @property
    def data(self) -> str:
        """The first input's contents; empty if there is no input."""
        return next((one.data for one in self.operands()), "")

    # -- Changes

    def with_first(self, **changes: Any) -> Work:
        """The same work with changes to ``first``."""
        wanted = self.first

        def changed(given: Any) -> Any:
            if isinstance(given, tuple):
                return tuple(map(changed, given))
            return dataclasses.replace(given, **changes) if given is wanted else given

        attributes = self.attributes
        if not any(self.operands()):
            attributes = tuple((name, changed(value)) for name, value in attributes)
        return dataclasses.replace(self, inputs=changed(self.inputs), attributes=attributes)

    def at_most(self, size: int) -> Work:
        """The same work with dimensions limited to a size, and with them the attributes that count elements."""
        fields = operators.by_name(self.operator).fields()
        counts = {field.name for field in fields if field.role in (Role.UINT, Role.UINTS) and not field.is_axis}

        def limited(name: str, value: Any) -> Any:
            if isinstance(value, tuple):
                return tuple(limited(name, one) for one in value)
            return value.at_most(size) if isinstance(value, Operand) else min(value, size) if name in counts else value

        attributes = {name: limited(name, value) for name, value in self.attributes}
        found = dataclasses.replace(
            self, inputs=tuple(limited("", one) for one in self.inputs), attributes=tuple(attributes.items())
        )
        found = found._agreeing()
        several = [value for value in attributes.values() if isinstance(value, tuple) and value and isinstance(value[0], Operand)]
        if not several:
            return found
        axis = self["axis"]  # outputs side by side: the input has them all
        total = sum(part.sizes[axis] for part in several[0])
        return found.with_first(sizes=(*found.sizes[:axis], total, *found.sizes[axis + 1 :]))

    def _agreeing(self) -> Work:
        """The same work with sizes of inputs that agree with each other, if the operator says which do."""
        cls = operators.by_name(self.operator)
        names = [field.name for field in cls.fields() if field.role is Role.INPUT]
        sizes = {name: one.sizes for name, one in zip(names, self.inputs, strict=False) if isinstance(one, Operand)}
        own = {**sizes, **cls.agreeing(sizes)}
        changed = (
            dataclasses.replace(one, sizes=own[name]) if isinstance(one, Operand) else one
            for name, one in zip(names, self.inputs, strict=False)
        )
        return dataclasses.replace(self, inputs=(*changed, *self.inputs[len(names) :]))

    # -- What it means

    def describe(self) -> Operator:
        """The descriptor."""
        tensors = (tuple(map(Operand.describe, one)) if isinstance(one, tuple) else one and one.describe() for one in self.inputs)
        cls = operators.by_name(self.operator)
        fused = {field.name for field in cls.fields() if field.role is Role.OPERATOR}
        given = {
            name: operators.by_name(str(value)).fused() if name in fused else _described(value) for name, value in self.attributes
        }
        if not self.behind:
            return cls.of(*tensors, **given)
        own = sum(field.role is Role.INPUT for field in cls.fields())
        return _followed(cls.of(*itertools.islice(tensors, own), **given), self.behind, list(tensors))

    def newest(self) -> Work:
        """The work of the newest operator that does the same, by which peers are known."""
        desc = self.describe()
        if type(desc.canonical()) is type(desc):
            return self
        found = of(desc, self.shared(), self.data)
        return self if found is None else dataclasses.replace(found, door=self.door)

    def shared(self) -> Shared:
        """The pairs (input, output) in the same memory."""
        return self.describe().shareable()[:1] if self.in_place else ()

    def as_json(self) -> dict[str, Any]:
        """As JSON, for people and for programs that read results: the first tensor's properties are also the work's own."""

        def plain(value: Any) -> Any:
            if isinstance(value, tuple):
                return list(map(plain, value))
            return {**dataclasses.asdict(value), "sizes": list(value.sizes)} if isinstance(value, Operand) else value

        return {
            "operator": self.operator,
            "sizes": list(self.sizes),
            "dtype": self.dtype,
            "data": self.data,
            "layout": self.layout,
            "inputs": plain(self.inputs),
            "attributes": {name: plain(value) for name, value in self.attributes},
            "in_place": self.in_place,
            "door": self.door,
            "behind": list(self.behind),
        }


class Traffic(NamedTuple):
    """The bytes that work must move, by what happens to them."""

    copied: int = 0
    """Read, and written elsewhere."""
    rewritten: int = 0
    """Read and written in place."""
    read: int = 0
    """Only read."""
    written: int = 0
    """Only written."""
    zeroed: int = 0
    """Only written, with zeros, which may be faster."""

    @property
    def total(self) -> int:
        """Bytes over the memory bus: copied bytes count twice."""
        return 2 * (self.copied + self.rewritten) + self.read + self.written + self.zeroed


# -- From a descriptor --------------------------------------------------------------------------------------------


_NOT_WRITTEN = (Role.INPUT, Role.OUTPUT, Role.OPERATOR)
"""The roles of fields that are not attributes of a ``Work``: it can only express the usual fused operators."""


def of(desc: Operator, shared: Shared = (), data: str = "", newest: bool = True) -> Work | None:
    """The work that a descriptor describes, with inputs of this fill (by default the operator's usual one).

    It is the work of the newest operator that does the same, unless ``newest`` is false.

    Returns:
        The work; ``None`` if ``Work`` cannot express it.
    """
    desc = desc.canonical() if newest else desc
    if shared not in ((), desc.shareable()[:1]):
        return None
    fill = data or next(iter(desc.samples()), "")
    fields = [field for field in desc.fields() if getattr(desc, field.name) is not None]
    first = next(tensor for _, tensor in desc.tensors() if tensor is not None)
    own = {field.name: _plain(getattr(desc, field.name)) for field in fields if field.role not in _NOT_WRITTEN}
    attributes: dict[str, Any] = {name: value for name, value in own.items() if getattr(desc, name) is not first.data_type}
    given: list[Given] = []
    for field in (field for field in desc.fields() if field.role is Role.INPUT):
        value = getattr(desc, field.name)
        tensors = value if field.many else () if value is None else (value,)
        found = tuple(one for one in (_operand(tensor, fill, desc.BROADCAST) for tensor in tensors) if one is not None)
        if len(found) != len(tensors):
            return None
        given.append(found if field.many else found[0] if found else None)
    while given and given[-1] is None:
        given.pop()
    work = Work.on(desc.NAME, *given, in_place=bool(shared), **attributes)
    outputs = _outputs(work, desc)
    if outputs is None:
        return None
    work = Work.on(desc.NAME, *given, in_place=bool(shared), **attributes, **outputs)
    return work if _written_out(work.describe()) == _written_out(desc) else None


def _described(value: Any) -> Any:
    if isinstance(value, tuple):
        return tuple(map(_described, value))
    return value.describe() if isinstance(value, Operand) else value


def _followed(head: Any, behind: tuple[str, ...], others: list[Any]) -> Operator:
    """An operator with pointwise operators behind it, some of which take another tensor each."""
    nodes: list[Operator] = []
    wiring: list[list[Result | int]] = []
    result, taken = head.output_tensor, 0
    for name in behind:
        cls = operators.by_name(name)
        more = others[taken : taken + sum(field.role is Role.INPUT for field in cls.fields()) - 1]
        taken += len(more)
        wiring.append([Result(len(nodes) - 1) if nodes else 0, *range(taken - len(more) + 1, taken + 1)])
        nodes.append(cls.of(result, *more))
        result = nodes[-1].outputs()[0]
    return follow(head, nodes, wiring)


def _plain(value: Any) -> Any:
    """An attribute's value in Python's own types."""
    if isinstance(value, TensorDataType):
        return value.tvm
    return value.name.lower() if isinstance(value, DmlEnum) else tuple(value) if isinstance(value, tuple) else value


def _operand(tensor: TensorDesc, fill: str, broadcast: bool = False) -> Operand | None:
    """The operand of a tensor, if one of the layouts fits; one with strides of 0 is as small as it was before it was repeated."""
    repeats = broadcast and any(n > 1 and step == 0 for n, step in zip(tensor.sizes, tensor.layout, strict=True))
    if repeats:
        sizes = tuple(1 if step == 0 else n for n, step in zip(tensor.sizes, tensor.layout, strict=True))
        tensor = TensorDesc(tensor.data_type, sizes, tensor.layout)
    for layout in inputs.LAYOUTS:
        found = Operand(tensor.sizes, tensor.data_type.tvm, fill, layout)
        if tensor.is_like(found.describe()):
            return found
    return None


def _outputs(work: Work, desc: Operator) -> dict[str, Any] | None:
    """The outputs that do not follow from the inputs; ``None`` if one of them cannot be expressed."""
    try:
        inferred = work.describe()
    except InvalidArgument:
        inferred = None
    found: dict[str, Attribute] = {}
    for name, tensor in desc.tensors(Role.OUTPUT):
        usual = getattr(inferred, name, None)
        if tensor is None or (isinstance(usual, TensorDesc) and tensor.is_like(usual)):
            continue
        if isinstance(usual, TensorDesc) and tensor.is_like(dataclasses.replace(usual, data_type=tensor.data_type)):
            found[name] = tensor.data_type.tvm
            continue
        operand = _operand(tensor, "")
        if operand is None:
            return None
        field, is_one_of_many, _ = name.partition("[")
        found[field] = (*found.get(field, ()), operand) if is_one_of_many else operand  # type: ignore[misc]
    return found


def _written_out(desc: Operator) -> str:
    """A descriptor as text, equal for tensors with equal layouts."""

    def plain(tensor: TensorDesc) -> TensorDesc:
        steps = (0 if n == 1 else step for n, step in zip(tensor.sizes, tensor.layout, strict=True))
        return TensorDesc(tensor.data_type, tensor.sizes, tuple(steps))

    return desc.with_tensors(plain).exactly()
