"""What a session says of its model: its inputs and outputs, and what the file says of itself."""

from __future__ import annotations

from typing import Any, NamedTuple, Protocol

from tvmdml.onnx.kinds import Kind


class NodeArg(NamedTuple):
    """An input or output, as in ONNX Runtime."""

    name: str
    type: str
    """ONNX's name of the type: ``tensor(float)``; empty for an output whose type the model does not say."""
    shape: list[int | str | None]
    """The sizes; a string is a symbolic size, and ``None`` one without a name."""


class ModelMetadata(NamedTuple):
    """What the file says of itself."""

    producer_name: str
    graph_name: str
    domain: str
    description: str
    graph_description: str
    version: int
    custom_metadata_map: dict[str, str]


class ArgumentDescription(Protocol):
    """An input or output of a model."""

    @property
    def name(self) -> str:
        """The name."""

    @property
    def type(self) -> str:
        """ONNX's name of the type."""

    @property
    def shape(self) -> tuple[int | str | None, ...] | None:
        """The sizes, if their number is known."""

    @property
    def dtype(self) -> Any:
        """The NumPy type."""

    @property
    def kind(self) -> Kind:
        """A tensor, a sequence, or either if it is there."""


def node_arg(one: ArgumentDescription) -> NodeArg:
    """As ONNX Runtime's programs see it."""
    return NodeArg(one.name, one.type, list(one.shape or ()))
