"""What a dispatchable is: something that a model's commands dispatch, of whatever kind."""

from __future__ import annotations

import abc
from collections.abc import Callable, Mapping

from tvmdml.dxdispatch.bindings import Bindings, RunBuffers
from tvmdml.dxdispatch.resources import Resource
from tvmdml.enums import FeatureLevel
from tvmdml.errors import ModelError
from tvmdml.operators import Operator
from tvmdml.operators._json.nodes import JsonNode
from tvmdml.targets import Target


class Runner(abc.ABC):
    """A dispatchable that is compiled for a target."""

    stays_there = True
    """Whether the buffers that a dispatch binds are kept in the target's memory while it is repeated."""

    def __init__(self, target: Target) -> None:
        self.target = target
        """Where it runs."""

    @abc.abstractmethod
    def explained(self) -> list[str]:
        """Lines about what was compiled."""

    def initialize(self, memory: RunBuffers) -> None:  # noqa: B027 - most own nothing
        """Take the tensors that it owns from the buffers, once.

        Raises:
            ModelError: one does not fit.
        """

    @abc.abstractmethod
    def bind(self, node: JsonNode, found: Bindings, memory: RunBuffers) -> Callable[[], None]:
        """A function that runs it on buffers.

        Args:
            node: the bindings in the model, for errors.
            found: the bindings.
            memory: the buffers. Those of deferred resources are made here, with the size that a result has.

        Raises:
            ModelError: a tensor does not fit in its buffer.
        """


class Dispatchable(abc.ABC):
    """What a model declares as a dispatchable."""

    def __init__(self, node: JsonNode) -> None:
        self.node = node
        """The object of its fields."""

    @property
    def desc(self) -> Operator:
        """The descriptor of a dispatchable that is a single operator.

        Raises:
            ModelError: it is none.
        """
        raise self.node.error("a dispatchable that is not a single operator", "dispatchables of the type DML_OPERATOR_…")

    @abc.abstractmethod
    def bindings(self, node: JsonNode, resources: Mapping[str, Resource]) -> Bindings:
        """The bindings of a dispatch.

        Raises:
            ModelError: one is missing, or is not allowed.
        """

    @abc.abstractmethod
    def compiled(self, target: Target, level: str | FeatureLevel | None) -> Runner:
        """Compile it.

        Raises:
            ModelError: the model asks for what is not allowed.
            CompileError, DeviceError: a kernel or the device is not available.
        """


def said(node: JsonNode, error: Exception) -> ModelError:
    """Another module's error about a node."""
    return ModelError(f"{node.where}: {error}")
