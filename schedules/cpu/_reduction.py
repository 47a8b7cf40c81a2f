"""What the ways of reductions on the CPU share: a kernel's parameters, where elements are, and steps on vectors of totals."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import numpy as np

from tvmdml.kernels import tensorir_values as T
from tvmdml.kernels.formula import Source
from tvmdml.kernels.reduction import Values, Walk, has_bits, of_bits
from tvmdml.operators._reduction import Reduction
from tvmdml.schedules.cpu._leaves import Leaves

CELL = 8
"""Bytes of a value in scratch memory."""


def is_by_bits(desc: Reduction) -> bool:
    """Whether the largest or smallest float of slices is all that is computed, and sought by the bits of elements."""
    walks = desc.walks()
    return len(walks) == 1 and not desc.EACH and has_bits(walks[0], desc.source.data_type.tvm)


def own_walks(desc: Reduction, by_bits: bool) -> tuple[Walk, ...]:
    """The walks of a kernel."""
    return tuple(of_bits(walk, desc.source.data_type.tvm) for walk in desc.walks()) if by_bits else desc.walks()


class ReductionWriter:
    """Writes the kernel."""

    lanes: int
    vectors: int
    ranks: tuple[int, int]
    last: tuple[int, ...]
    parts: bool
    divided: bool
    keeps: str
    turns: bool
    position: str
    by_bits: bool
    """Whether elements are floats that are compared by their bits (``is_by_bits``)."""

    def __init__(self, desc: Reduction, leaves: Leaves, **choices: Any) -> None:
        self.desc, self.leaves = desc, leaves
        self.__dict__.update(choices)
        self.parameters = (*desc.formula_key(), *choices.items())
        self.walks = own_walks(desc, self.by_bits)

    def function(self) -> T.PrimFunc:
        desc = self.desc
        with T.function() as f:
            buffers = f.tensors(desc)
            self.scratch = f.buffer("scratch", "int64")
            operands, slices = desc.operands(), desc.slice_outputs()
            self.inputs = [name for name, _ in operands if name not in desc.EACH]
            self.outputs = [(name, tensor) for name, tensor in operands if name in desc.EACH]
            self.slices = slices
            self.tasks, self.count, self.chunk, self.together = map(f.scalar, ("tasks", "parts", "chunk", "together"))
            self.outer, self.inner = f.scalars("outer", self.ranks[0]), f.scalars("inner", self.ranks[1])
            self.operand_names = {name for name, _ in operands}
            names = [*(name for name, _ in operands), *(name for name, _ in slices)]
            outer = {name: f.scalars(f"outer_step{i}_", self.ranks[0]) for i, name in enumerate(names)}
            inner = {name: f.scalars(f"inner_step{i}_", self.ranks[1]) for i, (name, _) in enumerate(operands)}
            self.buffers, self.steps = buffers, {name: (outer[name], inner.get(name, [])) for name in names}
            self.slice_count = T.let(math.prod(self.outer[1:], start=self.outer[0]) * T.i64(1))
            self.length = T.let(math.prod(self.inner[1:], start=self.inner[0]) * T.i64(1))
            with self.leaves.available():
                self.body()
        return f.result()

    def clear(self) -> None:
        """No places yet: of the inputs, of the outputs with all elements, and of those of slices."""
        self.sources: list[Source] = []
        self.sinks: list[Source] = []
        self.ends: list[Source] = []

    def body(self) -> None:
        raise NotImplementedError

    def as_count(self, lanes: int) -> Any:
        """The number of elements in a slice as a float, in every lane."""
        return splat(T.cast(self.length, self.desc.computed), lanes)

    def read(self, sources: Sequence[Source], at: Sequence[Any], lanes: int) -> list[Any]:
        """The elements of all inputs."""
        return [T.hold(one.get(at, lanes) if self.by_bits else T.wide(one.get(at, lanes))) for one in sources]

    def results(self, sinks: Sequence[Source], at: Sequence[Any], values: Any, tensors: Any) -> None:
        found = self.desc.results_of(values, tensors)
        for sink, value in zip(sinks, list(map(T.hold, found)) if len(found) > 1 else found, strict=True):
            T.store(sink.buffer, sink.place(at, T.lanes(value)), value)


def widened(values: Sequence[Any], lanes: int) -> list[Any]:
    """Values of a slice in every lane."""
    return [T.repeated(one, lanes) if lanes > 1 and T.lanes(one) == 1 else one for one in values]


def bits(kind: str) -> int:
    return 8 * np.dtype(kind).itemsize


def held(values: Values) -> Values:
    return tuple(map(T.hold, values))


def splat(value: Any, lanes: int) -> Any:
    return T.splat(value, lanes) if lanes > 1 else value


def lane_numbers(lanes: int) -> Any:
    zero, one = T.const(0, "int32"), T.const(1, "int32")
    return T.ramp(zero, one, lanes) if lanes > 1 else zero


def tree(walk: Walk, parts: list[Values]) -> Values:
    """Several totals combined, neighbours first."""
    while len(parts) > 1:
        parts = [held(walk.combine(a, b)) for a, b in zip(parts[::2], parts[1::2], strict=True)]
    return parts[0]


def across(walk: Walk, values: Values, lanes: int) -> Values:
    """The lanes combined, each half with the other."""
    while lanes > 1:
        lanes //= 2
        halves = ([*range(lanes)], [*range(lanes, 2 * lanes)])
        low, high = (tuple(T.Shuffle([one], half) for one in values) for half in halves)
        values = held(walk.combine(low, high))
    return values


def to_cell(value: Any) -> Any:
    """A scalar as 64 bits."""
    return T.cast(T.reinterpret(value, f"int{bits(T.scalar_type(value))}"), "int64")


def from_cell(cell: Any, kind: str) -> Any:
    return T.reinterpret(T.cast(cell, f"int{bits(kind)}"), kind)
