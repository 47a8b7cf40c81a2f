"""Pointwise operators on a GPU: memory-bound, so each thread moves 16 bytes at once, and neighbouring threads move neighbours.

There are three ways, over any number of tensors:

- ``flat``: every tensor is contiguous, or one element repeated: 16 bytes at once, and the rest one by one.
- ``rows``: any strides; as many neighbours at once as are contiguous and aligned in every row.
- ``tiles``: inputs are contiguous in another dimension than the outputs: they are transposed through shared memory.

Indices have 32 bits where they fit. The launch's integers may take 128 bytes; where sizes and strides need more (seven dimensions
that cannot be merged, with four tensors), they are constants in the code, and the kernel serves one shape.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

from tvmdml.kernels import launched
from tvmdml.kernels import tensorir as T
from tvmdml.kernels.formula import Formula, Sink, Source
from tvmdml.kernels.kernel import Kernel
from tvmdml.kernels.layout import collapse
from tvmdml.operators import Operator
from tvmdml.operators._contract import Shared
from tvmdml.operators._pointwise import Pointwise
from tvmdml.schedules.gpu import (
    VECTOR_BYTES,
    Numbers,
    _default,
    _tiles,
    checked,
    group_knobs,
    groups_for,
    position,
    require,
    strided,
)
from tvmdml.schedules.gpu._words import unravel
from tvmdml.targets._device import DeviceTarget

KNOBS = group_knobs("pointwise")

SHARED_BYTES = 1 << 14
"""The shared memory that every Vulkan device has for a group."""


def kernel(desc: Pointwise, target: DeviceTarget, shared: Shared, knobs: Any) -> Kernel:
    """The kernel of one operator."""
    if not desc.is_strided():
        return _default.kernel(desc, target, shared)
    return kernel_of(desc.formula(shared), desc, target, knobs)


def kernel_of(formula: Formula, desc: Operator, target: DeviceTarget, knobs: Any) -> Kernel:
    """The kernel of a formula: elements in the first output's order, with contiguous dimensions merged into one.

    ``desc`` is the operator that errors name.
    """
    tensors = (*formula.inputs, *reversed(formula.outputs))
    sizes, steps = collapse(formula.outputs[0].sizes, *(tensor.layout for tensor in tensors), reorder=True)
    count, elements = len(formula.inputs), formula.outputs[0].element_count
    sizes, steps = sizes or (1,), tuple(own or (1,) for own in (*steps[:count], *reversed(steps[count:])))
    types = (*(tensor.data_type for tensor in tensors), *formula.between)
    lanes = VECTOR_BYTES // max(one.itemsize for one in types)
    threads = min(knobs.threads, target.max_threads)
    memory = tuple(i for i in range(count) if i not in formula.counted)
    turned, other = _turned(sizes, {i: steps[i] for i in memory}, steps[count:])
    if any(steps[i][-1] != 0 for i in formula.counted):
        lanes = 1
    if _tiles.bytes_of(tensors[i].data_type.itemsize for i in turned) > SHARED_BYTES:
        turned = ()
    if all(own in ((0,), (1,)) for own in steps) and all(own == (1,) for own in steps[count:]):
        way, turned = "flat", ()
        groups = groups_for(-(-sizes[0] // lanes), threads, target, knobs.most_groups)
    elif turned and target.max_threads >= _tiles.THREADS:
        way, lanes, threads = "tiles", 1, _tiles.THREADS
        order = [*(i for i in range(len(sizes) - 1) if i != other), other, len(sizes) - 1]
        sizes, steps = tuple(sizes[i] for i in order), tuple(tuple(own[i] for i in order) for own in steps)
        groups = min(_tiles.count(sizes), target.max_groups, knobs.most_groups)
    else:
        way, turned, lanes = "rows", (), _together(sizes, [steps[i] for i in memory], steps[count:], lanes)
        groups = groups_for(elements // lanes, threads, target, knobs.most_groups)
        sizes = (*sizes[:-1], sizes[-1] // lanes)
    span, words = max(elements, *(tensor.span for tensor in tensors)), launched.patterns(formula.words)
    divisors = ("sizes",) if way == "rows" and target.has("int64") else ()
    numbers = Numbers(span, words, divisors=divisors, groups=groups, sizes=sizes, steps=sum(steps, ()))
    require(desc, target, *(one.tvm for one in types))
    repeated = tuple(own[-1] == 0 for own in steps)
    writer = _Writer(
        formula, numbers, way=way, lanes=lanes, threads=threads, rank=len(sizes), repeated=tuple(map(int, repeated)), turned=turned
    )
    module, *also = formula.modules
    built = Kernel(module, way, writer.parameters, writer.function, numbers.scalars, also=tuple(also))
    return checked(desc, target, built)


InputSteps = Sequence[Sequence[int]]


def _turned(sizes: Sequence[int], inputs: Mapping[int, Sequence[int]], outputs: InputSteps) -> tuple[tuple[int, ...], int]:
    """The inputs that are contiguous in another dimension than the outputs, and that dimension, if they have the same one."""
    if any(own[-1] != 1 for own in outputs):
        return (), 0
    across = tuple(i for i, own in inputs.items() if own[-1] not in (0, 1))
    found = {_tiles.crossing(sizes, inputs[i], outputs[0]) for i in across}
    other = found.pop() if len(found) == 1 else None
    return ((), 0) if other is None else (across, other)


def _together(sizes: Sequence[int], inputs: InputSteps, outputs: InputSteps, most: int) -> int:
    """How many neighbours can be moved at once everywhere: a power of two."""
    if any(own[-1] not in (0, 1) for own in inputs) or any(own[-1] != 1 for own in outputs):
        return 1
    contiguous = [own for own in (*inputs, *outputs) if own[-1] == 1]
    while any(number % most for number in (sizes[-1], *(step for own in contiguous for step in own[:-1]))):
        most //= 2
    return most


class _Writer:
    """Writes the kernel."""

    way: str
    lanes: int
    threads: int
    rank: int
    repeated: tuple[int, ...]
    turned: tuple[int, ...]

    def __init__(self, formula: Formula, numbers: Numbers, **choices: Any) -> None:
        self.formula, self.numbers = formula, numbers
        self.__dict__.update(choices)
        self.parameters = (*formula.key, *choices.items(), *numbers.parameters)

    def function(self) -> T.PrimFunc:
        formula = self.formula
        with T.on_device(), T.function() as f:
            # An input that shares an output's memory is no parameter: two buffers with the same memory would violate the no-alias
            # promise.
            shared = dict(formula.shared)
            count = len(formula.inputs)
            inputs = [(i, t) for i, t in enumerate(formula.inputs) if i not in formula.counted]
            read = {i: f.buffer(f"input{i}", t.data_type.tvm) for i, t in inputs if i not in shared}
            written = [f.buffer(f"output{i}", t.data_type.tvm) for i, t in enumerate(formula.outputs)]
            found: dict[int, Any] = {**dict.fromkeys(formula.counted), **read, **{i: written[at] for i, at in shared.items()}}
            buffers = [*(found[i] for i in range(count)), *written]
            self.n = self.numbers.declare(f)
            places = []
            for i, (buffer, repeated) in enumerate(zip(buffers, self.repeated, strict=True)):
                steps = self.n.steps[i * self.rank : (i + 1) * self.rank]
                last = 0 if repeated else 1 if self.way == "flat" or self.lanes > 1 else steps[-1]
                dtype = formula.inputs[i].data_type.tvm if i in shared else ""
                places.append(Source(buffer, (*steps[:-1], last), aligned=self.lanes > 1 and buffer is not None, dtype=dtype))
            self.sink = Sink(formula, tuple(places[:count]), tuple(places[count:]))
            with launched.given(self.n.words):
                {"flat": self._flat, "rows": self._rows, "tiles": self._tiles}[self.way]()
        return f.result()

    def _flat(self) -> None:
        n, lanes = self.n, self.numbers.const(self.lanes)
        with T.launch(n.groups, self.threads) as (group, thread):
            first = position(group, thread, self.threads, self.numbers.dtype)
            (total,) = n.sizes
            whole = T.let(T.truncdiv(total, lanes))
            with strided(first, whole, T.let(n.groups * self.threads)) as i:
                self.sink.put([T.let(i * lanes)], lanes=self.lanes)
            with T.when(first < total - whole * lanes):  # the rest is less than a vector
                self.sink.put([T.let(whole * lanes + first)])

    def _rows(self) -> None:
        n, lanes = self.n, self.numbers.const(self.lanes)
        with T.launch(n.groups, self.threads) as (group, thread):
            first = position(group, thread, self.threads, self.numbers.dtype)
            total = T.let(math.prod(n.sizes[1:], start=n.sizes[0]))
            with strided(first, total, T.let(n.groups * self.threads)) as i:
                *at, last = (T.cast(c, self.numbers.dtype) for c in unravel(i, n.sizes))
                self.sink.put([*at, T.let(last * lanes)], lanes=self.lanes)

    def _tiles(self) -> None:
        sources = self.sink.sources

        def read(at: list[Any]) -> list[Any]:
            return [sources[i].get(at) for i in self.turned]

        def write(at: list[Any], values: Any) -> None:
            found = dict(zip(self.turned, values, strict=True))
            given = (found[i] if i in found else source.get(at) for i, source in enumerate(sources))
            self.sink.store(at, self.formula.value(*given))

        types = [self.formula.inputs[i].data_type.tvm for i in self.turned]
        _tiles.move(self.n.groups, self.numbers, self.n.sizes, types, read, write)
