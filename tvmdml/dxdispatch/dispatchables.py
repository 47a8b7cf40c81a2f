"""A model's dispatchables, of every kind."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path

from tvmdml.dxdispatch import graph_kind, onnx_kind, operator_kind
from tvmdml.dxdispatch.dispatchable import Dispatchable
from tvmdml.dxdispatch.resources import Resource
from tvmdml.operators._json.nodes import JsonNode

_KINDS: Mapping[str, Callable[[JsonNode, Path], Dispatchable]] = {
    "onnx": onnx_kind.read,
    "dmlserializedgraph": graph_kind.read,
}
"""By the type in the model, in lower case; all other types are names of operators."""


def read(node: JsonNode, resources: Mapping[str, Resource], folder: Path) -> dict[str, Dispatchable]:
    """All dispatchables of a model. Files are read only from inside the folder.

    Raises:
        ModelError: tvmdml does not support some operators (the message names them all), or a dispatchable is invalid.
    """
    members = node.members()
    kinds = {name: _type(member) for name, member in members.items()}
    single = {name: kind for name, kind in kinds.items() if kind.text().lower() not in _KINDS}
    if missing := [line for name, kind in single.items() for line in operator_kind.missing(members[name], kind)]:
        allowed = "operators that tvmdml supports"
        raise node.error(", ".join(missing), allowed, "`tvmdml operators` lists them. Nothing was run.")
    return {
        name: operator_kind.read(member, single[name], resources)
        if name in single
        else _KINDS[kinds[name].text().lower()](member, folder)
        for name, member in members.items()
    }


def _type(node: JsonNode) -> JsonNode:
    return node.get("type", "Type") or node.need("type", "the name of an operator, such as DML_OPERATOR_TOP_K1")
