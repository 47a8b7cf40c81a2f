"""``GraphArguments``: what is said of a graph's inputs and outputs in every call, apart from shapes, in which graphs may differ."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

if TYPE_CHECKING:
    from tvmdml.graph.laid import Given, Laid, Returned
    from tvmdml.targets import Target
    from tvmdml.tensors.arrays import NumpyArray


def misfit_advice(dtype: np.dtype[Any], shape: Sequence[int], wanted: np.dtype[Any], built: Sequence[int]) -> str:
    """What to do about an array that does not fit an input: convert it, reshape it, or build the graph for other sizes."""
    if dtype != wanted:
        return f"Convert it first: array.astype({str(wanted)!r})."
    if len(shape) != len(built) or math.prod(shape) == math.prod(built):
        return "Reshape the array first."
    different = [axis for axis, (n, m) in enumerate(zip(shape, built, strict=True)) if n != m]
    names = {axis: "n" if len(different) == 1 else f"n{axis}" for axis in different}
    opened = tuple(names.get(axis, n) for axis, n in enumerate(built))
    return f"This graph was built for {list(built)}; build it with an open size: graph.input({opened})."


class Forms(NamedTuple):
    """Shapes, each once."""

    inputs: tuple[tuple[tuple[int, ...], tuple[int, ...]], ...]
    """And strides, in bytes."""
    outputs: tuple[tuple[int, ...], ...]


class _Read(NamedTuple):
    """An input that kernels read where it is."""

    place: int
    """Among the inputs."""
    dtype: np.dtype[Any]
    form: int


class _Result(NamedTuple):
    """An output."""

    dtype: np.dtype[Any]
    form: int
    is_written: bool
    """By a kernel."""
    copies: NumpyArray | int | None
    """Otherwise a constant's array, or an earlier output that has the same bytes."""


class GraphArguments(NamedTuple):
    """The inputs and outputs of a graph; their shapes are numbers of ``Forms``."""

    order: tuple[str, ...]
    """The names of the inputs."""
    names: frozenset[str]
    plain: tuple[_Read, ...] | None
    """The inputs by their slots; ``None`` if some are kept, or moved."""
    results: tuple[_Result, ...]
    all_are_written: bool
    """Whether kernels write all outputs."""

    @classmethod
    def of(cls, inputs: Sequence[Given], outputs: Sequence[Returned], target: Target) -> GraphArguments:
        """Those of a graph with these inputs and outputs."""
        order = tuple(one.name for one in inputs)
        plain = None
        if not target.moves and not any(one.owned for one in inputs):
            numbered = sorted((one.slot, i) for i, one in enumerate(inputs) if one.slot >= 0)
            plain = tuple(_Read(i, inputs[i].dtype, i) for _, i in numbered)
        results = tuple(_Result(one.dtype, i, one.slot >= 0, one.copies) for i, one in enumerate(outputs))
        return cls(order, frozenset(order), plain, results, all(one.is_written for one in results))


def forms_of(laid: Laid) -> Forms:
    """The shapes, in the order of the inputs and outputs."""
    return Forms(tuple((one.shape, one.strides) for one in laid.inputs), tuple(one.shape for one in laid.outputs))
