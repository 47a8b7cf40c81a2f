"""A model's dispatchables: named operators."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import NamedTuple

from tvmdml.dxdispatch import bindings, descriptors
from tvmdml.dxdispatch.bindings import Bindings
from tvmdml.dxdispatch.nodes import Node
from tvmdml.dxdispatch.resources import Resource
from tvmdml.errors import Unsupported
from tvmdml.operators import Operator

_FIELDS = ("type", "Type", "desc", "Desc", "bindings", "dmlCompileType", "executionFlags")
_COMPILE_TYPES = {"DmlCompileOp": None, "DmlCompileGraph": None}
_EXECUTION_FLAGS = dict.fromkeys(("NONE", "ALLOW_HALF_PRECISION_COMPUTATION", "DISABLE_META_COMMANDS", "DESCRIPTORS_VOLATILE"))


class Dispatchable(NamedTuple):
    """An operator."""

    node: Node
    """The object of its fields."""
    desc: Operator
    owned: Bindings
    """Bindings of the tensors that are OWNED_BY_DML; these are read once, at the start."""


def read(node: Node, resources: Mapping[str, Resource]) -> dict[str, Dispatchable]:
    """All dispatchables of a model.

    Raises:
        ModelError: tvmdml does not support some operators (the message names them all), or a dispatchable is invalid.
    """
    members = node.members()
    missing = [line for member in members.values() for line in _missing(member)]
    if missing:
        allowed = "operators that tvmdml supports"
        raise node.error(", ".join(missing), allowed, "`tvmdml operators` lists them. Nothing was run.")
    return {name: _read(member, resources) for name, member in members.items()}


def _read(node: Node, resources: Mapping[str, Resource]) -> Dispatchable:
    desc_node = _desc(node)
    desc = descriptors.read(descriptors.find(_type(node)), desc_node)
    if compile_type := node.get("dmlCompileType"):
        compile_type.choice(_COMPILE_TYPES)
    if flags := node.get("executionFlags"):
        # They affect how DirectML runs an operator, but not its results.
        for flag in flags.items() if isinstance(flags.value, list) else [flags]:
            flag.choice(_EXECUTION_FLAGS, "DML_EXECUTION_FLAG_")
    bound = node.get("bindings") or Node({}, node.file, f"{node.path}.bindings")
    return Dispatchable(desc_node, desc, bindings.read(bound, desc, resources, owned=True))


def _type(node: Node) -> Node:
    return node.get("type", "Type") or node.need("type", "the name of an operator, such as DML_OPERATOR_TOP_K1")


def _desc(node: Node) -> Node:
    """The object with the descriptor's fields; these may also be among the dispatchable's own fields."""
    found = node.get("desc", "Desc")
    if found is not None:
        node.only(_FIELDS)
        return found
    return Node({name: value for name, value in node.value.items() if name not in _FIELDS}, node.file, node.path)


def _missing(node: Node) -> Iterator[str]:
    """The operators of a dispatchable, including fused ones, that tvmdml does not support."""
    for kind in (_type(node), *descriptors.nested(_desc(node))):
        try:
            descriptors.find(kind)
        except Unsupported:
            yield f"{kind.text()} ({kind.path})"
