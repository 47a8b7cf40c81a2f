"""What a conversion walks through: the tensors that nodes see, where nodes stand, and what is wrong there."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

from tvmdml.errors import ModelError, Unsupported, clean, counted, safe_repr
from tvmdml.onnx import bounds
from tvmdml.onnx.node import Node
from tvmdml.onnx.values import Value

_MOST_LISTED = 20


class Problem(NamedTuple):
    """A node that cannot be converted."""

    kind: str
    where: str
    """Where the node stands."""
    reason: str
    malformed: bool
    """Whether the model is at fault."""

    def __str__(self) -> str:
        """One line."""
        return f"{self.where}: {self.reason}"


def raise_all(name: str, problems: Sequence[Problem]) -> None:
    """Raise one error that lists all problems, if there are any.

    Raises:
        ModelError: a node is malformed.
        Unsupported: nodes have no counterpart.
    """
    if problems:
        lines = list(dict.fromkeys(map(str, problems)))
        more = f"\n  and {len(lines) - _MOST_LISTED} more" if len(lines) > _MOST_LISTED else ""
        text = "\n  ".join([f"{name}: {counted(len(lines), 'node')} cannot be converted:", *lines[:_MOST_LISTED]]) + more
        raise (ModelError if any(one.malformed for one in problems) else Unsupported)(text)


class TracedNode(NamedTuple):
    """A node that was converted."""

    node: Node
    results: list[Value | None]
    folded: bool
    """Whether its results were known from those of its inputs, or their shapes (``folding``)."""


class Scope:
    """The tensors that the nodes of a graph can read, the attributes of the function that it is in, and its operator sets."""

    def __init__(
        self, versions: Mapping[str, int], above: Scope | None = None, attributes: Mapping[str, Any] | None = None
    ) -> None:
        self.versions = versions
        self.attributes: Mapping[str, Any] = attributes if attributes is not None else above.attributes if above else {}
        """The attributes that nodes refer to, by name."""
        self.place: Place | None = above.place if above else None
        """What calls the function, for messages."""
        self.absent: frozenset[str] = above.absent if above else frozenset()
        """Optional inputs of the function that its caller leaves out."""
        self._above = above
        self.values: dict[str, Value] = {}
        """Those of this graph."""

    def get(self, name: str) -> Value | None:
        """A tensor, also one of the graph around this one."""
        scope: Scope | None = self
        while scope is not None:
            if (found := scope.values.get(name)) is not None:
                return found
            scope = scope._above
        return None

    def lacks(self, name: str) -> bool:
        """Whether an input of a node is left out."""
        return not name or (name in self.absent and self.get(name) is None)

    def set(self, name: str, value: Value) -> None:
        """Name a tensor."""
        if name:
            self.values[name] = value


def kind_of(proto: Any) -> str:
    """ONNX's name of a node's operator; with its domain, unless that is ONNX's own."""
    return f"{domain}.{proto.op_type}" if (domain := bounds.domain_of(proto)) else str(proto.op_type)


class Place(NamedTuple):
    """Where a node stands, for messages: a model of many functions has more of these than are ever read."""

    above: Place | None
    """What calls the function that it is in."""
    text: str

    def __str__(self) -> str:
        """All functions and the node."""
        return clean(self.text if self.above is None else f"{self.above} / {self.text}")


def place_of(proto: Any) -> str:
    """Where a node stands in its graph."""
    kind = clean(kind_of(proto))
    if proto.name:
        return f"{kind} {safe_repr(str(proto.name))}"
    return f"{kind} of {', '.join(safe_repr(str(one)) for one in list(proto.output)[:3])}"
