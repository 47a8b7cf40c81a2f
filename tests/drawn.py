"""What a run draws from the operators' conformance cases: kernels, knobs, task counts, layouts, and places in memory.

Compiling is what a test costs, so kernels are drawn, not cases: of many candidates those that differ most, by name and parameters.
The same seed draws the same.
"""

from __future__ import annotations

import dataclasses
import functools
import random
import zlib
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from itertools import cycle
from typing import Any, NamedTuple

import amx
import numpy as np
import pytest

from tvmdml import InvalidArgument, TensorDesc, TvmdmlError, functions, knobs, operators, targets
from tvmdml.enums import NEWEST_FEATURE_LEVEL
from tvmdml.kernels.kernel import Kernel
from tvmdml.kernels.knobs import Value
from tvmdml.library import scheduling
from tvmdml.library.scheduling import kernel_for
from tvmdml.operators import Operator
from tvmdml.operators._contract import NumpyArray, Role
from tvmdml.operators._trial import OperatorTrial, Values, any_values
from tvmdml.proof.conformance import cases, references
from tvmdml.proof.conformance.cases import Case
from tvmdml.proof.conformance.drawing import of_windows
from tvmdml.proof.conformance.fills import FILLS
from tvmdml.targets import Target
from tvmdml.targets.cpu import CpuTarget, caches, host
from tvmdml.tensors.arrays.guarded import GuardedTensor

_ZEN4 = "x86-64-v4+avx512bitalg+avx512vbmi+avx512vbmi2+avx512vnni+avx512vpopcntdq+gfni"
LEVELS = {
    "x86_64": ("x86-64-v2", "x86-64-v3", "x86-64-v4", _ZEN4, f"{_ZEN4}+avx512fp16", f"{_ZEN4}+avx512fp16+{'+'.join(amx.FEATURES)}"),
    "aarch64": ("aarch64", "aarch64+dotprod+fullfp16"),
}
"""The processors that CPU kernels are drawn for, whether this machine is one of them or not."""
SMALL = 20_000
"""The most elements of a case whose kernel gets other knobs than its own: they reach their limits in small arrays."""
WIDTHS: tuple[dict[str, int], ...] = ({}, {"_NARROW": 1}, {"_PUSH_BYTES": 0}, {"_NARROW": 1, "_PUSH_BYTES": 0})
"""Settings of ``schedules.gpu``: a launch's integers as they are, of 64 bits, as constants, and as constants of 64 bits."""
OWN, DEFAULT = "own schedule", "default schedule"


class Drawn(NamedTuple):
    """A case, and what its kernel is made with."""

    case: Case
    target: Target
    schedule: str = OWN
    threads: int = 0
    """Threads of the CPU; 0: as many as there are, and no more tasks than pay."""
    knobs: Mapping[str, Value] = {}
    widths: Mapping[str, int] = {}

    @property
    def tuned_as(self) -> str:
        """The name of the knobs."""
        return operators.tuned_as(type(self.case.desc.canonical()))

    @property
    def elements(self) -> int:
        """Elements of the largest tensor."""
        return max(tensor.element_count for _, tensor in self.case.desc.tensors() if tensor is not None)

    def __str__(self) -> str:
        """All that is needed to repeat it."""
        what = references.ReferenceCase(self.case.desc.NAME, self.case).what
        return (
            f"{what} on {self.target.name}, {self.schedule}, threads {self.threads}, knobs {dict(self.knobs)}, {dict(self.widths)}"
        )

    @contextmanager
    def in_force(self, emulates: bool = False) -> Iterator[None]:
        """The schedule, the threads and the knobs apply inside, and what the processor lacks is emulated if kernels are to run."""
        from tvmdml.schedules import gpu
        from tvmdml.schedules.cpu import _default

        with ExitStack() as stack:
            patch = stack.enter_context(pytest.MonkeyPatch.context())
            if isinstance(self.target, CpuTarget):  # neither this machine's caches nor its threads decide
                patch.setattr(caches, "here", lambda: caches.GENERIC)
                patch.setenv("TVMDML_NUM_THREADS", "2")
                if emulates and not host.host().runs(self.target.processor):
                    stack.enter_context(amx.tiles(patch))
            if self.schedule == DEFAULT:
                whole = scheduling._schedule
                patch.setattr(scheduling, "_schedule", lambda folder, *_: whole(folder, "_default", ""))
            if self.threads:
                patch.setenv("TVMDML_NUM_THREADS", str(self.threads))
                patch.setattr(CpuTarget, "handover", lambda target: 1)
                patch.setattr(_default, "LEAST_PARALLEL_ITEMS", 1)
            for name, value in self.widths.items():
                patch.setattr(gpu, name, value)
            if self.knobs:
                stack.enter_context(knobs.using(**{self.tuned_as: self.knobs}))
            functions.forget_plans()
            stack.callback(functions.forget_plans)
            yield

    def kernel(self) -> Kernel | None:
        """The kernel; ``None`` if the target or the schedule cannot make it."""
        with self.in_force():
            try:
                return kernel_for(self.case.desc.canonical(), self.target, self.case.shared)
            except TvmdmlError:
                return None

    @property
    def number(self) -> int:
        """A number that differs for each."""
        return zlib.crc32(str(self).encode())

    def values(self, seed: int) -> Values:
        """The function that fills the inputs."""
        return functools.partial(FILLS[self.case.fill], np.random.default_rng([seed, self.number]))

    def inputs(self, seed: int) -> list[NumpyArray | None]:
        """The inputs, which lie as the descriptor says; ``None`` for an absent one. Those in one output's memory are the same."""
        values, taken = self.values(seed), dict(self.case.shared)
        found: dict[str, NumpyArray | None] = {}
        for name, tensor in self.case.desc.tensors(Role.INPUT):
            first = next((other for other in found if name in taken and taken.get(other) == taken[name]), "")
            if tensor is None or first:
                found[name] = found.get(first)
            else:
                found[name] = GuardedTensor(tensor).holding(values(tensor.stored.data_type, tensor.stored.sizes)).array
        return list(found.values())

    def problem(self, seed: int) -> str:
        """What is wrong with the kernel's results; empty if nothing is."""
        trial = OperatorTrial(
            self.case.desc, self.case.shared, self.values(seed), shift=self.number % 4, flushed=self.target.flushed()
        )
        with self.in_force(emulates=True):
            said = references.tried(self.case.desc, self.target, trial)
        return said and f"{self}: {said}"


# -- Kernels that differ ------------------------------------------------------------------------------------------


ALONE = tuple(name for name, cls in operators.all_operators().items() if not cls.FAMILY)
"""Operators with schedules of their own."""
OF_A_FAMILY = tuple(name for name, cls in operators.all_operators().items() if cls.FAMILY)
"""The others: specimens prove a family's schedules, and an operator its expression."""


def some_operators(count: int) -> pytest.MarkDecorator:
    """The test's ``name`` is every operator that has a schedule of its own, and so many of the others."""
    return pytest.mark.drawn("name", OF_A_FAMILY, count, *ALONE)


def budget(name: str, count: int, least: int = 1) -> int:
    """How many of so many kernels are drawn for an operator: of one of a family, the least."""
    return count if name in ALONE else least


def plain(name: str, target: Target) -> list[Drawn]:
    """All cases of an operator, as they are."""
    return [Drawn(case, target) for case in _cases(name)]


def dealt(name: str, target: Target, rng: random.Random) -> list[Drawn]:
    """All cases of an operator; those for the CPU are dealt out to the levels."""
    every = plain(name, target)
    if target.kind != "cpu":
        return every
    return [drawn._replace(target=place) for drawn, place in zip(rng.sample(every, len(every)), cycle(levels()), strict=False)]


@functools.cache
def levels() -> tuple[Target, ...]:
    """The processors of this machine's family that kernels are drawn for."""
    return tuple(place for name in LEVELS[host.host().machine] for place in targets.elsewhere(f"cpu:{name}"))


def runs_here(target: Target) -> bool:
    """Whether this machine runs the target's kernels, if need be with emulated matrix tiles."""
    if not isinstance(target, CpuTarget) or host.host().runs(target.processor):
        return True
    without = target.processor._replace(features=tuple(name for name in target.processor.features if name not in amx.FEATURES))
    return not amx.missing() and host.host().runs(without)


@functools.cache
def _cases(name: str) -> list[Case]:
    """An operator's cases: describing them takes longer than running some."""
    return list(cases.reference(name))


def spread(candidates: Sequence[Drawn], count: int, rng: random.Random) -> list[list[Drawn]]:
    """Kernels that differ from one another as much as possible, each with all the candidates that it serves.

    There are about so many for all targets of the candidates together. What is drawn for one does not depend on the others, and
    those that this machine cannot run are left out. A single kernel is any of them.
    """
    by_target: dict[str, list[Drawn]] = {}
    for drawn in candidates:
        by_target.setdefault(drawn.target.name, []).append(drawn)
    share, own = -(-count // max(1, len(by_target))), rng.random()
    return [
        served
        for name, some in sorted(by_target.items())
        if runs_here(some[0].target)
        for served in _spread(some, share, random.Random(f"{own} {name}"))
    ]


def _spread(candidates: Sequence[Drawn], count: int, rng: random.Random) -> list[list[Drawn]]:
    served: dict[str, list[Drawn]] = {}
    facts: dict[str, tuple[set[object], set[object]]] = {}
    for drawn in rng.sample(candidates, len(candidates)):
        if (kernel := drawn.kernel()) is not None:
            served.setdefault(kernel.identity, []).append(drawn)
            facts.setdefault(kernel.identity, _facts(kernel, drawn))
    if count == 1 and served:
        return [rng.choice(list(served.values()))]
    chosen: list[list[Drawn]] = []
    met: set[object] = set()
    while facts and len(chosen) < count:
        best = max(facts, key=lambda identity: tuple(len(some - met) for some in facts[identity]))
        met = met.union(*facts.pop(best))
        chosen.append(served[best])
    return chosen


def more(kernels: Sequence[Sequence[Drawn]], rng: random.Random, tried: int = 60) -> list[list[Drawn]]:
    """The kernels with other small cases that they serve too: other lengths and values."""
    found = []
    for served in kernels:
        first = served[0]
        small = [drawn.case for drawn in plain(first.case.desc.NAME, first.target) if drawn.elements <= SMALL]
        others = (first._replace(case=case) for case in rng.sample(small, min(tried, len(small))))
        kernel = first.kernel()
        alike = [one for one in others if kernel and (own := one.kernel()) and own.identity == kernel.identity]
        found.append([*served, *alike])
    return found


def _facts(kernel: Kernel, drawn: Drawn) -> tuple[set[object], set[object]]:
    """What sets a kernel apart: first its name, with each choice of its schedule; then its types, and whether it is in tasks."""
    choices = {(kernel.name, key, value) for key, value in kernel.parameters if isinstance(value, bool)}
    others = {(key, value) for key, value in kernel.parameters if len(repr(value)) < 20}
    types = {(name, tensor.data_type) for name, tensor in drawn.case.desc.tensors() if tensor is not None}
    widths = tuple(drawn.widths.items())
    more = {(kernel.name, drawn.threads > 1), widths, *((kernel.name, one) for one in of_windows(drawn.case.desc))}
    return choices | {kernel.name, (kernel.name, drawn.case.shared)}, others | types | more


def of(seed: int, *key: object) -> random.Random:
    """The same random numbers for the same seed and key."""
    return random.Random(f"{seed} {key!r}")


# -- Other knobs, threads and layouts -----------------------------------------------------------------------------


def forced(name: str, target: Target, rng: random.Random, count: int, schedule: str = OWN) -> list[Drawn]:
    """Small cases, in layouts of their own, with knobs, threads and processors that they would not have."""
    small = [drawn.case for drawn in plain(name, target) if drawn.elements <= (SMALL if schedule == OWN else 500)]
    places = levels() if target.kind == "cpu" else (target,)
    return [_forced(relaid(rng.choice(small), rng), places[i % len(places)], rng, schedule) for i in range(count)]


def _forced(case: Case, target: Target, rng: random.Random, schedule: str) -> Drawn:
    drawn = Drawn(case, target, schedule)
    if target.schedules == "cpu":
        drawn = drawn._replace(threads=rng.choice((1, 1, 3, 4, 5)))
    else:
        drawn = drawn._replace(widths=rng.choice(WIDTHS))
    declared = knobs.of(drawn.tuned_as, target)
    if schedule == DEFAULT or declared is None:
        return drawn
    for _ in range(20):
        values = {name: _value(knob.choices, rng) for name, knob in declared.knobs.items() if rng.random() < 0.5}
        if not declared.allowed(values, drawn.target):
            return drawn._replace(knobs=values)
    return drawn


def _value(choices: tuple[Value, ...], rng: random.Random) -> Value:
    """Any choice; of numbers often the first, with which small arrays are cut into many pieces."""
    return rng.choice((choices[0], rng.choice(choices))) if isinstance(choices[0], int) else rng.choice(choices)


def relaid(case: Case, rng: random.Random) -> Case:
    """The case with other strides, half of the time: inputs repeat or overlap elements, outputs have gaps and any order."""
    shared: dict[tuple[int, ...], tuple[int, ...]] = {}
    changes: dict[str, Any] = {}
    for field in case.desc.fields():
        tensor = getattr(case.desc, field.name)
        if not isinstance(tensor, TensorDesc) or rng.random() < 0.5:
            continue
        strides = _nested(tensor.sizes, rng)
        if case.shared:
            strides = shared.setdefault(tensor.sizes, strides)
        elif field.role is Role.INPUT and rng.random() < 0.3:
            strides = tuple(rng.choice((0, stride, rng.randrange(70))) for stride in strides)
        changes[field.name] = TensorDesc(tensor.data_type, tensor.sizes, strides)
    if case.shared and changes:  # all of the same sizes, or none
        for name, tensor in case.desc.tensors():
            if tensor is not None and tensor.sizes in shared:
                changes[name] = TensorDesc(tensor.data_type, tensor.sizes, shared[tensor.sizes])
    desc: Operator = dataclasses.replace(case.desc, **changes)  # type: ignore[type-var]
    try:
        desc.validate(NEWEST_FEATURE_LEVEL, extensions=True)
    except InvalidArgument:  # the operator has a rule about layouts
        return case
    return case._replace(desc=desc) if set(case.shared) <= set(desc.shareable()) else case


def _nested(sizes: tuple[int, ...], rng: random.Random) -> tuple[int, ...]:
    """Dimensions nested in any order, with gaps of any size, or without."""
    strides, step, gap = [0] * len(sizes), rng.choice((1, 1, 2, 3)), rng.choice((0, 0, 1, 4))
    order = list(range(len(sizes)))
    for i in rng.choice((order, order[::-1], rng.sample(order, len(order)))):
        strides[i] = step
        step = step * sizes[i] + gap
    return tuple(strides)


def agrees(desc: Operator, target: Target, shared: Any = (), shift: int = 0) -> None:
    """The kernel's results on any values are the reference's, and it writes nothing else."""
    rng = np.random.default_rng(zlib.crc32(desc.exactly().encode()))
    trial = OperatorTrial(desc, shared, lambda dtype, sizes: any_values(rng, dtype, sizes), shift=shift, flushed=target.flushed())
    assert not references.tried(desc, target, trial), desc
