"""Dispatchables that are a single operator."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping

from tvmdml.compiler import CompiledOperator
from tvmdml.compiler import compile as compile_operator
from tvmdml.dxdispatch import bindings
from tvmdml.dxdispatch.bindings import AnyArray, Bindings, RunBuffers
from tvmdml.dxdispatch.dispatchable import Dispatchable, Runner
from tvmdml.dxdispatch.resources import Resource
from tvmdml.enums import FeatureLevel
from tvmdml.errors import InvalidArgument, Unsupported
from tvmdml.operators import Operator
from tvmdml.operators._contract import Role
from tvmdml.operators._json import descriptors
from tvmdml.operators._json.nodes import JsonNode
from tvmdml.targets import Target

_FIELDS = ("type", "Type", "desc", "Desc", "bindings", "dmlCompileType", "executionFlags")
_COMPILE_TYPES = {"DmlCompileOp": None, "DmlCompileGraph": None}
_EXECUTION_FLAGS = dict.fromkeys(("NONE", "ALLOW_HALF_PRECISION_COMPUTATION", "DISABLE_META_COMMANDS", "DESCRIPTORS_VOLATILE"))

_Owned = dict[str, list["AnyArray | None"]]
"""The tensors of fields that are not bound in dispatches: ``None`` for those that are OWNED_BY_DML."""


class SingleOperator(Dispatchable):
    """An operator, with the bindings of the tensors that it owns."""

    def __init__(self, node: JsonNode, desc: Operator, owned: Bindings) -> None:
        super().__init__(node)
        self._desc, self.owned = desc, owned

    @property
    def desc(self) -> Operator:
        """The descriptor."""
        return self._desc

    def bindings(self, node: JsonNode, resources: Mapping[str, Resource]) -> Bindings:
        """By the names of the descriptor's fields."""
        return bindings.read(node, self._desc, resources, owned=False)

    def compiled(self, target: Target, level: str | FeatureLevel | None) -> Runner:
        """Checked against the level first."""
        desc, level = self._desc, FeatureLevel.of(level)
        names = [field.dml_name for field in desc.fields()]
        try:
            desc.validate(level)
        except (InvalidArgument, Unsupported) as error:
            raise self.node.blame(error, desc.NAME, names) from None
        try:
            operator = compile_operator(desc, target, level)
        except Unsupported as error:  # other errors are not the model's fault
            raise self.node.blame(error, desc.NAME, names) from None
        return _Runner(self, operator)


class _Runner(Runner):
    def __init__(self, declared: SingleOperator, operator: CompiledOperator) -> None:
        super().__init__(operator.target)
        self._declared, self._operator = declared, operator
        self._owned: _Owned = {}

    def explained(self) -> list[str]:
        """The operator and its tensors."""
        return [repr(self._operator)]

    def initialize(self, memory: RunBuffers) -> None:
        declared = self._declared
        desc = declared.desc
        bound = bindings.arrays(desc, declared.owned, memory, frozen=True)
        names = [[name for name, _ in desc.tensors() if name.partition("[")[0] == field.name] for field in desc.fields()]
        own = {field.dml_name: some for field, some in zip(desc.fields(), names, strict=True)}
        every = {name: array for field, arrays in bound.items() for name, array in zip(own[field], arrays, strict=True)}
        owned = set(desc.owned())
        try:
            self._operator.initialize(**{name: array for name, array in every.items() if name in owned})
        except InvalidArgument as error:
            raise declared.node.blame(error, desc.NAME, bound) from None
        self._owned = {field: [None if name in owned else every[name] for name in own[field]] for field in bound}

    def bind(self, node: JsonNode, found: Bindings, memory: RunBuffers) -> Callable[[], None]:
        desc = self._declared.desc
        given = bindings.arrays(desc, found, memory)
        bound: _Owned = {name: [*arrays] for name, arrays in given.items()}
        bound.update(self._owned)
        tensors: list[AnyArray | None] = []
        for field in desc.fields():
            if field.role in (Role.INPUT, Role.OUTPUT):  # an absent array has no tensors; an absent optional tensor is None
                own = bound.get(field.dml_name, [] if field.many else [None])
                tensors += [None if array is None else memory.there(array) for array in own]
        try:
            return self._operator.bind(*tensors)
        except InvalidArgument as error:
            raise node.blame(error, desc.NAME, found) from None


def read(node: JsonNode, kind: JsonNode, resources: Mapping[str, Resource]) -> SingleOperator:
    """An operator; ``kind`` is its name.

    Raises:
        ModelError: the dispatchable is invalid.
    """
    desc_node = _desc(node)
    desc = descriptors.read(descriptors.find(kind), desc_node)
    if compile_type := node.get("dmlCompileType"):
        compile_type.choice(_COMPILE_TYPES)
    if flags := node.get("executionFlags"):
        # They affect how DirectML runs an operator, but not its results.
        for flag in flags.items() if isinstance(flags.value, list) else [flags]:
            flag.choice(_EXECUTION_FLAGS, "DML_EXECUTION_FLAG_")
    bound = node.get("bindings") or JsonNode({}, node.file, f"{node.path}.bindings")
    return SingleOperator(desc_node, desc, bindings.read(bound, desc, resources, owned=True))


def missing(node: JsonNode, kind: JsonNode) -> Iterator[str]:
    """The operators of a dispatchable, including fused ones, that tvmdml does not support."""
    for one in (kind, *descriptors.nested(_desc(node))):
        try:
            descriptors.find(one)
        except Unsupported:
            yield f"{one.text()} ({one.path})"


def _desc(node: JsonNode) -> JsonNode:
    """The object with the descriptor's fields; these may also be among the dispatchable's own fields."""
    found = node.get("desc", "Desc")
    if found is not None:
        node.only(_FIELDS)
        return found
    return JsonNode({name: value for name, value in node.value.items() if name not in _FIELDS}, node.file, node.path)
