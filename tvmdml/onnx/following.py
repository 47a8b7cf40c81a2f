"""What follows a stage: ``Rest``, the nodes, and ``Next``, their stage as its callers see it."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple, Protocol

from tvmdml.onnx.running import Argument, Ready

if TYPE_CHECKING:
    from tvmdml.onnx.values import Value


class Rest(NamedTuple):
    """Nodes of a model that follow a stage."""

    name: str
    """Equal for equal parts of a model."""
    given: Sequence[Argument]
    """What they read that is computed before. The type of what NumPy computes is seen in the first run."""
    wanted: Sequence[str]
    """The model's outputs that they compute."""
    draws: int
    """How many nodes before them draw random numbers."""
    nodes: Sequence[Any] | None = None
    """``None`` as long as all that was run is in the cache."""
    known: Mapping[str, Value] = {}
    """What they read that is known."""


class Next(Protocol):
    """A stage that follows another one."""

    part: Rest | None

    def for_arrays(self, arrays: Mapping[str, Any]) -> tuple[Ready, dict[str, Any], Sequence[str]]:
        """What computes the outputs from these arrays, lists of arrays, or ``None`` for nothing; the tensors; the outputs."""

    def follow(self, source: Callable[[], object]) -> None:
        """Where its nodes come from: a conversion of the stage before completes it."""


Following = Callable[[Rest], Next]
"""The stage of nodes: the same one for equal nodes."""
