"""``Laid``: a compiled graph as it runs, whether it was planned in this process or read from the cache (``stored.cache``)."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

if TYPE_CHECKING:
    from tvmdml.graph.nodes import Input
    from tvmdml.graph.plan import Plan
    from tvmdml.graph.program import Finished
    from tvmdml.targets import SequenceStep
    from tvmdml.tensors.arrays import NumpyArray


class Weights:
    """A packed weight, with what it was made of: as long as this is kept, no other array is at the same place."""

    def __init__(self, buffer: Any, layout: str = "", sources: Sequence[tuple[NumpyArray, int]] = ()) -> None:
        """Keep all: ``layout`` identifies the form, and ``sources`` are constants, and the byte of each where it begins."""
        self.buffer, self.layout, self.sources = buffer, layout, sources


class Given(NamedTuple):
    """One input of the graph, as callers give it."""

    name: str
    """By which it is given; empty if it has none."""
    shown: str
    """For messages."""
    dtype: np.dtype[Any]
    shape: tuple[int, ...]
    strides: tuple[int, ...]
    """How it lies, in bytes."""
    nbytes: int
    """Of its memory."""
    owned: bool
    slot: int
    """-1 if nothing depends on it."""
    node: Input | None
    """``None`` if the graph was read from the cache."""


class Returned(NamedTuple):
    """One output, as callers get it."""

    dtype: np.dtype[Any]
    shape: tuple[int, ...]
    slot: int
    """Where it is computed; -1 for a constant."""
    copies: NumpyArray | int | None
    """A constant's array, or an earlier output that has the same bytes."""


class Picture(NamedTuple):
    """What each kernel of a graph reads."""

    name: str
    """The graph's."""
    kernels: Sequence[str]
    """What is written on each kernel."""
    edges: Sequence[tuple[int | str, int, str]]
    """Which kernel, or which input, each kernel reads, and the tensor."""
    results: Sequence[tuple[int, str]]
    """The kernel that computes each output, and the tensor; -1 for a constant or an input."""


class Reports(NamedTuple):
    """What is said of a graph, and not needed to run it."""

    titles: list[str]
    """The operator of each launch, and the call's name and line."""
    tensors: list[dict[str, str]]
    """The tensors of each launch."""
    lines: list[tuple[str, str]]
    """Each call of the graph, and what became of it."""
    total: str
    """The sums."""
    picture: Picture | None
    """``None`` of several graphs."""
    written: list[list[bool]]
    """Of each array of each launch, and each condition, whether the launch writes it."""


class Laid(NamedTuple):
    """Launches in order, and what is in each slot: the arena, the constants, the packed weights, the inputs, the outputs."""

    name: str
    inputs: tuple[Given, ...]
    """All, in the order in which callers give them."""
    outputs: tuple[Returned, ...]
    steps: tuple[SequenceStep, ...]
    kernels: tuple[str, ...]
    """The name of each launch's kernel."""
    slots: int
    constants: tuple[NumpyArray, ...]
    """Those that kernels read as they are."""
    packed: tuple[int, ...]
    """The bytes of each packed weight."""
    temporary: int
    """The bytes of the arena."""
    bound: int
    """The most bytes of intermediate results that are needed at one moment."""
    weights: Callable[[Mapping[int, Any]], list[Weights]]
    """Makes the packed weights, given the arrays of owned inputs by the identities of their nodes."""
    reports: Callable[[], Reports]
    finished: Callable[[], Finished]
    """What it computes, after all passes."""
    plan: Plan | None
    """What it was made from; ``None`` if it was read."""
    saved: object = None
    """What it was made from, a ``SavedPlan``, if it was read from a file or a pack."""
