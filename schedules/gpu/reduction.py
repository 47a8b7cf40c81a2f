"""Reductions on a GPU: a group of threads for each slice, or a thread for each.

- ``groups``: the threads of a group read neighbours of one slice, and combine their totals in shared memory. Few long slices have
  parts, each with a group: one launch for each walk, which stores what every part comes to, and one for the results.
- ``threads``: neighbouring slices are contiguous, or slices are short. Threads that are neighbours have neighbouring slices.

Sums have levels (``kernels/reduction.py``), so that no element takes part in many additions.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from types import SimpleNamespace
from typing import Any

from tvmdml.kernels import tensorir_values as T
from tvmdml.kernels.kernel import Kernel
from tvmdml.kernels.knobs import Knob, Knobs
from tvmdml.kernels.reduction import LEVELS, Totals, Values, Walk
from tvmdml.operators._contract import Shared
from tvmdml.operators._reduction import Reduction
from tvmdml.schedules.gpu import Numbers, checked, enough_groups, require, strided
from tvmdml.schedules.gpu._joined import JoinedThreads
from tvmdml.schedules.gpu._words import offset, unravel
from tvmdml.targets._device import DeviceTarget

KNOBS = Knobs(
    "reduction",
    enough_groups(1024),
    algorithm=Knob(
        "auto", ("auto", "groups", "threads"), "the variant; auto chooses by layout, and by how many and how long slices are"
    ),
    threads=Knob(128, (32, 64, 128, 256), "threads per group of threads"),
    thread_elements=Knob(64, tuple(1 << n for n in range(12)), "longest slice that is one thread's, wherever its elements are"),
    widest=Knob(512, (128, 256, 512), "threads per group, at most, where there are few groups; sums depend on it"),
    part_elements=Knob(
        1 << 13, tuple(1 << n for n in range(10, 24)), "least elements of each part of a long slice; sums depend on it"
    ),
    most_groups=Knob(8192, tuple(1 << n for n in range(16)), "maximum groups of threads per launch; each strides over the rest"),
)

_PARTS = 256
"""Most parts of a slice."""
_LEAST = 8
"""Elements of each thread, at least, of a group that is wider than others."""
_TASK = 256
"""Threads of each of a target's tasks."""
_MOST_ROUNDS = 1 << 15
"""Of a loop in a thread: Mesa's CPU driver silently ends one after 65535."""


def kernel(desc: Reduction, target: DeviceTarget, shared: Shared, knobs: Any) -> Kernel:
    """A group of threads or a thread for each slice, or groups for its parts."""
    writer = writer_of(desc, target, knobs)
    module, *also = desc.modules()
    scalars = writer.numbers.scalars
    plain = Kernel(module, writer.way, writer.parameters, writer.function, scalars, writer.scratch, also=tuple(also))
    return checked(desc, target, plain)


def writer_of(desc: Reduction, target: DeviceTarget, knobs: Any) -> SliceWriter:
    """What writes the launches."""
    spaces = desc.spaces()
    operands, slices = desc.operands(), desc.slice_outputs()
    length, count = math.prod(spaces.inner), math.prod(spaces.outer)
    threads = min(knobs.threads, target.max_threads)
    alone = length <= knobs.thread_elements or (spaces.neighbours and not spaces.contiguous and count >= threads * 8)
    way = ("threads" if alone else "groups") if knobs.algorithm == "auto" else knobs.algorithm
    parts = 1
    if way == "groups" and count < target.tasks():
        parts = max(1, min(_PARTS, length // knobs.part_elements, -(-target.tasks() // count)))
    units = count * parts
    if way == "groups":
        threads = _widened(threads, units, length // parts, target, knobs)
    most = min(target.max_groups, knobs.most_groups)
    groups = max(1, min(most, -(-count // threads) if way == "threads" else units))
    spans = [tensor.span for _, tensor in (*operands, *slices)]
    numbers = Numbers(
        max(*spans, length + threads * _MOST_ROUNDS, units + threads * most),
        slices=count,
        length=length,
        parts=parts,
        # A separate number for each launch, as TVM would name one that two launches share.
        groups=(groups,) * (1 if parts == 1 else 1 + len(desc.walks())),
        outer=spaces.outer,
        inner=spaces.inner,
        outer_steps=sum(spaces.outer_steps, ()),
        inner_steps=sum(spaces.inner_steps, ()),
    )
    require(desc, target, *(tensor.data_type.tvm for _, tensor in (*operands, *slices)))
    ranks = len(spaces.outer), len(spaces.inner)
    scratch = tuple((kind, units) for walk in desc.walks() for kind in desc.state_types(walk)) if parts > 1 else ()
    return SliceWriter(desc, numbers, scratch, way=way, threads=threads, ranks=ranks, parts=parts > 1)


def _widened(threads: int, units: int, length: int, target: DeviceTarget, knobs: Any) -> int:
    """The threads of a group: as many as keep the device busy, where there are few groups, whose elements suffice for them."""
    while (
        2 * threads <= min(knobs.widest, target.max_threads)
        and units * threads < target.tasks() * _TASK
        and length >= 2 * threads * _LEAST
    ):
        threads *= 2
    return threads


class SliceWriter:
    """Writes the kernel, or its launches after those of another one, whose results are reduced."""

    way: str
    threads: int
    ranks: tuple[int, int]
    parts: bool

    def __init__(self, desc: Reduction, numbers: Numbers, scratch: tuple[tuple[str, int], ...], **choices: Any) -> None:
        self.desc, self.numbers, self.scratch, self.dtype = desc, numbers, scratch, numbers.dtype
        self.__dict__.update(choices)
        self.parameters = (*desc.formula_key(), *choices.items(), ("position", desc.position_type), *numbers.parameters)
        self.walks = desc.walks()

    def function(self) -> T.PrimFunc:
        with T.on_device(), T.function() as f:
            buffers = f.tensors(self.desc)
            self.keep(f)
            self.launches(f, buffers)
        return f.result()

    def keep(self, f: T.Function) -> None:
        """Add the parameters for what is kept between launches."""
        kinds = [self.desc.state_types(walk) for walk in self.walks] if self.parts else []
        self.kept = [[f.buffer(f"kept{i}_{j}", kind) for j, kind in enumerate(own)] for i, own in enumerate(kinds)]

    def launches(self, f: T.Function, buffers: dict[str, Any]) -> None:
        """Add the integers, and all launches."""
        desc, self.buffers = self.desc, buffers
        self.operands, self.slices = desc.operands(), desc.slice_outputs()
        self.outputs = [(name, tensor) for name, tensor in self.operands if name in desc.EACH]
        self.n = self.numbers.declare(f)
        turns = len(self.walks) + 1 if self.parts else 1
        for turn in range(turns):
            self._launch(turn)

    def _launch(self, turn: int) -> None:
        """One launch, with its own variables for the integers: TVM would pass what launches have in common as parameters."""
        given = self.n
        with T.launch(given.groups[turn], self.threads) as (group, thread):
            held = {name: [T.hold(one) for one in v] if isinstance(v, list) else T.hold(v) for name, v in vars(given).items()}
            self.n = SimpleNamespace(**held)
            self.thread = T.let(T.cast(thread, self.dtype))
            self.joined = JoinedThreads(self.threads, self.thread)
            first, step = T.cast(group, self.dtype), self.n.groups[turn]
            if self.way == "threads":
                with strided(T.let(first * self.threads + self.thread), self.n.slices, T.let(step * self.threads)) as unit:
                    self._slice(unit, self.numbers.const(0))
            elif not self.parts:
                with strided(T.let(first), self.n.slices, step) as unit:
                    self._slice(unit, self.thread)
            else:
                with strided(T.let(first), T.let(self.n.slices * self.n.parts), step) as unit:
                    self._part(unit, turn)
        self.n = given

    # -- Slices

    def _slice(self, unit: Any, first: Any) -> None:
        """A slice from its first walk to its results, by a thread or by all of a group."""
        self._at(unit)
        found: list[Any] = []
        for walk in self.walks:
            totals = self._total(walk, found, first, self.n.length)
            found += map(T.hold, walk.totals(totals, found, self._count()))
        self._slice_results(found, first)
        self._elements(found, first, self.n.length)

    def _part(self, unit: Any, turn: int) -> None:
        """A part of a slice in one walk; after the last one, its results."""
        index = T.hold(T.truncdiv(unit, self.n.parts))
        part = T.let(unit - index * self.n.parts)
        self._at(index)
        found: list[Any] = []
        for walk, kept in zip(self.walks[:turn], self.kept, strict=False):
            whole = Totals(walk, self._like(walk, found), 1)
            with self._own(self.thread, self.n.parts) as (one, _):
                whole.add(tuple(T.hold(buffer[T.let(index * self.n.parts + one)]) for buffer in kept))
            values = self.joined.across(tuple(map(T.hold, whole.values)), walk.combine)
            found += map(T.hold, walk.totals(values, found, self._count()))
        size = T.let(T.truncdiv(self.n.length + self.n.parts - 1, self.n.parts))
        begin = T.let(T.min(part * size, self.n.length))
        end = T.let(T.min(begin + size, self.n.length))
        first = T.let(begin + self.thread)
        if turn < len(self.walks):
            totals = self._total(self.walks[turn], found, first, end)
            with T.when(self.thread == self.numbers.const(0)):
                for buffer, value in zip(self.kept[turn], totals, strict=True):
                    T.store(buffer, unit, value)
            return
        with T.when(part == self.numbers.const(0)):
            self._slice_results(found, self.thread)
        self._elements(found, first, end)

    def _at(self, index: Any) -> None:
        """Where the elements of a slice are."""
        at = unravel(index, self.n.outer)
        rank = self.ranks[0]
        names = [name for name, _ in (*self.operands, *self.slices)]
        self.bases = {
            name: T.let(offset(at, self.n.outer_steps[i * rank : (i + 1) * rank], self.dtype)) for i, name in enumerate(names)
        }

    def _places(self, position: Any) -> dict[str, Any]:
        """The offset of an element in each operand."""
        at = unravel(position, self.n.inner)
        rank = self.ranks[1]
        return {
            name: T.let(self.bases[name] + offset(at, self.n.inner_steps[i * rank : (i + 1) * rank], self.dtype))
            for i, (name, _) in enumerate(self.operands)
        }

    def _read(self, places: dict[str, Any]) -> list[Any]:
        """The elements of all inputs; narrow integers as 32 bits."""
        names = [name for name, _ in self.operands if name not in self.desc.EACH]
        return [T.hold(_wide(self.buffers[name][places[name]])) for name in names]

    def _count(self) -> Any:
        return T.cast(self.n.length, self.desc.computed)

    def _like(self, walk: Walk, found: list[Any]) -> Values:
        """Values of a walk at the first element, for their types."""
        zero = self.numbers.const(0)
        places = {name: base for name, base in self.bases.items() if name in dict(self.operands)}
        return tuple(map(T.hold, walk.values(found, T.cast(zero, self.desc.position_type), self._read(places))))

    @contextmanager
    def _own(self, first: Any, end: Any) -> Iterator[tuple[Any, Any]]:
        """The elements of a thread, from one on: the position, and how many came before."""
        step = 1 if self.way == "threads" else self.threads
        rounds = T.hold(T.max(T.truncdiv(end - first + (step - 1), self.numbers.const(step)), self.numbers.const(0)))
        with T.loop(T.let(T.truncdiv(rounds + (_MOST_ROUNDS - 1), self.numbers.const(_MOST_ROUNDS)))) as part:
            start = T.let(part * _MOST_ROUNDS)
            with T.loop(T.let(T.min(rounds - start, self.numbers.const(_MOST_ROUNDS)))) as i:
                number = T.let(start + i)
                yield T.let(first + number * step), number

    def _total(self, walk: Walk, found: list[Any], first: Any, end: Any) -> Values:
        """What elements come to: a thread's, or all those of a group."""
        totals = Totals(walk, self._like(walk, found), LEVELS)
        with self._own(first, end) as (position, number):
            elements = self._read(self._places(position))
            totals.add(walk.values(found, T.cast(position, self.desc.position_type), elements))
            totals.fold_after(number + 1)
        values = tuple(map(T.hold, totals.values))
        return values if self.way == "threads" else self.joined.across(values, walk.combine)

    def _slice_results(self, found: Sequence[Any], first: Any) -> None:
        if not self.slices:
            return
        values = self.desc.results_of(self.desc.slice_results(*found, self._count()), self.slices)
        with T.when(first == self.numbers.const(0)):
            for (name, _), value in zip(self.slices, values, strict=True):
                T.store(self.buffers[name], self.bases[name], value)

    def _elements(self, found: Sequence[Any], first: Any, end: Any) -> None:
        if not self.outputs:
            return
        with self._own(first, end) as (position, _):
            places = self._places(position)
            own = self.desc.element_of(T.cast(position, self.desc.position_type), self._read(places), found)
            values = self.desc.results_of(own, self.outputs)
            for (name, _), value in zip(self.outputs, list(map(T.hold, values)), strict=True):
                T.store(self.buffers[name], places[name], value)


def _wide(value: Any) -> Any:
    """A float16 as float32, and an integer of fewer than 32 bits as one of 32."""
    kind = T.scalar_type(value)
    if T.is_float(value):
        return T.wide(value)
    return T.cast(value, "uint32" if kind.startswith("u") else "int32") if T.bits_of(value) < 32 else value
