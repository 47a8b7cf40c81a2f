"""``Tail``: what runs after the graph of a stage: nodes that NumPy computes from elements, and the next stage."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple, Protocol

from tvmdml.errors import InvalidArgument, Unsupported
from tvmdml.onnx.counting import COUNTING, plain
from tvmdml.onnx.looping import Looped
from tvmdml.onnx.running import Run, results_of
from tvmdml.tensors.arrays import NumpyArray

if TYPE_CHECKING:
    from tvmdml.onnx.following import Next


class HostNode(Protocol):
    """A node that NumPy computes."""

    @property
    def outputs(self) -> tuple[str, ...]:
        """The names of its results."""

    def reads(self) -> set[str]:
        """The names of what it reads."""

    def shown(self) -> tuple[str, str]:
        """What it is, and what runs it."""

    def run(self, run: Run, arrays: Mapping[str, Any], state: NumpyArray) -> dict[str, Any]:
        """The results, by name, of arrays, lists of them, or ``None`` for nothing.

        Args:
            run: runs a graph.
            arrays: what is computed, and what is known.
            state: of the random numbers of the run.

        Raises:
            Unsupported, ModelError: it cannot be computed for these elements.
        """


class Counting(NamedTuple):
    """A node whose operator is a function of arrays."""

    kind: str
    attributes: Mapping[str, Any]
    inputs: tuple[str, ...]
    outputs: tuple[str, ...]

    def reads(self) -> set[str]:
        """As every node between stages does."""
        return set(self.inputs) - {""}

    def shown(self) -> tuple[str, str]:
        """As every node between stages does."""
        return f"{self.kind} of {', '.join(filter(None, self.outputs))}", "NumPy"

    def run(self, run: Run, arrays: Mapping[str, Any], state: NumpyArray) -> dict[str, Any]:
        """As every node between stages does."""
        try:
            results = COUNTING[self.kind]([plain(arrays[name]) if name else None for name in self.inputs], self.attributes)
        except InvalidArgument as error:
            raise Unsupported(f"{self.kind} of {', '.join(self.outputs)}: {error}") from None
        return {name: result for name, result in zip(self.outputs, results, strict=False) if name}


class Tail(NamedTuple):
    """What runs after a graph."""

    reads: tuple[tuple[str, int | None], ...]
    """The names of what the graph gives beside outputs, in order; with the number of its tensors for a sequence."""
    known: Mapping[str, Any]
    """What nodes between the stages read that is known: arrays, lists of them, or ``None`` for nothing."""
    host: tuple[HostNode, ...]
    """What NumPy computes before the next stage."""
    stage: Next | None
    """The next stage; ``None`` if the nodes give all outputs."""
    makes: Mapping[int, str]
    """The names of the model's outputs that are computed here, by their places."""
    kinds: tuple[str, ...]
    """ONNX's names of the operators."""
    passed: tuple[str, ...] = ()
    """The inputs of the stage that are given on as they are."""

    @property
    def tensors(self) -> int:
        """The number of tensors that the graph gives beside outputs."""
        return sum(1 if count is None else count for _, count in self.reads)

    def stages(self) -> list[Next]:
        """Those that it runs."""
        bodies = [node.stage for node in self.host if isinstance(node, Looped)]
        return bodies if self.stage is None else [*bodies, self.stage]

    def shown(self) -> list[tuple[str, str]]:
        """The nodes between the stages, and what runs each."""
        return [node.shown() for node in self.host]

    def missing(self) -> set[str]:
        """The names of what is read, and nothing makes: none."""
        made = {*self.known, *self.passed, *(name for name, _ in self.reads)}
        missing: set[str] = set()
        for node in self.host:
            missing |= node.reads() - made
            made |= set(node.outputs)
        if self.stage is not None and self.stage.part is not None:
            missing |= {about.name for about in self.stage.part.given} - made
            made |= set(self.stage.part.wanted)
        return missing | set(self.makes.values()) - made

    def run(self, run: Run, given: Mapping[str, Any], results: Sequence[Any], state: NumpyArray) -> dict[int, Any]:
        """The outputs, by their places: arrays, lists of them, or ``None`` for nothing.

        Args:
            run: runs a graph.
            given: the inputs of the stage.
            results: the tensors of ``reads``.
            state: of the random numbers of the run.

        Raises:
            Unsupported, ModelError: a node cannot be computed for these elements.
        """
        rest = iter(results)
        arrays = {name: given[name] for name in self.passed}
        arrays |= {name: next(rest) if count is None else [next(rest) for _ in range(count)] for name, count in self.reads}
        for node in self.host:
            arrays |= node.run(run, {**self.known, **arrays}, state)
        if self.stage is not None:
            ready, tensors, wanted = self.stage.for_arrays(arrays)
            arrays |= dict(zip(wanted, results_of(run, ready, tensors, len(wanted), state), strict=True))
        return {place: arrays[name] for place, name in self.makes.items()}
