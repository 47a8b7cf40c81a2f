"""``Grown``: compiled graphs for sizes that are near each other, made from one of them without planning.

A decoder's past grows by a word at each step. Where the memory of the largest size has room for all, the launches, their places,
the packed weights and the intermediate memory stay: new are the kernels' integers, and what callers see of inputs and outputs.
"""

from __future__ import annotations

import functools
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple, TypeVar

from tvmdml.arrays import NumpyArray
from tvmdml.graph.by_size import BySize, Described, Differs, Values
from tvmdml.graph.compiled import CompiledGraph
from tvmdml.graph.conditional import chooses
from tvmdml.graph.forms import Calls, Forms
from tvmdml.graph.joined import begins
from tvmdml.graph.laid import Given, Laid, Returned, Weights
from tvmdml.graph.laying import laid_out
from tvmdml.graph.nodes import Call
from tvmdml.graph.packing import Shared, pack
from tvmdml.graph.plan import Launches, Packed, Plan, launch_of
from tvmdml.graph.program import Finished
from tvmdml.graph.sizes import Sized, Sizes, packed, room, spans
from tvmdml.kernels.kernel import Kernel
from tvmdml.operators._contract import Operator
from tvmdml.operators._contract import Shared as InPlace
from tvmdml.targets import Launch, Run, Step

T = TypeVar("T")


class _Group(NamedTuple):
    """Launches of one kernel with the same integers, which depend on the size."""

    desc: Described
    in_place: InPlace
    launch: Launch
    """That of the largest size."""
    room: tuple[int, ...]
    """The bytes of each output of the largest size."""
    packed: tuple[Any, ...]


class _Varying(NamedTuple):
    """A launch that depends on the size."""

    step: int
    """Its place among the launches."""
    group: int
    edges: Described
    bases: tuple[tuple[int, int, str], ...]
    """Of each array: its slot, its offset without that of the edge that reads it, and the tensor's name."""
    call: Call
    """For the largest size."""
    alone: bool
    """Whether its places depend on the size, or others that do not depend on it have the same launch."""


class Grown:
    """Compiled graphs up to a size."""

    def __init__(
        self, programs: BySize, n: int, arrays: Sequence[NumpyArray], sizes: Sizes, shared: Shared, launches: Launches
    ) -> None:
        """Plan the largest one.

        Args:
            programs: the program for each size.
            n: the largest size.
            arrays: the constants that follow from it.
            sizes: what follows from sizes, on the target where the graphs run.
            shared: packed weights of other graphs.
            launches: kernels that other graphs found.

        Raises:
            Differs: the launches of other sizes may be others.
            Unsupported, CompileError: a kernel cannot be made.
        """
        self._programs, self._target, self._shared, self._sizes = programs, sizes.target, shared, sizes
        self._launches = launches
        self.largest = n
        self._finished = programs.at(n, arrays)
        laid = laid_out(self._finished, self._target, shared=shared, launches=launches)
        self.graph = CompiledGraph(laid, self._target)
        """The largest one."""
        plan = laid.plan
        assert plan is not None
        self._first_packed = 1 + len(plan.constants)
        places = {id(array): i for i, array in enumerate(arrays)}
        self._constants = [places.get(id(node.array)) for node in plan.constants]
        weights = {id(edge.source) for one in plan.packed for edge in one.edges}
        if any(id(node.array) in places for node in self._finished.program.constants() if id(node) in weights):
            raise Differs
        if any(one.owned for one in laid.inputs) or any(not isinstance(one.copies, (int, type(None))) for one in laid.outputs):
            raise Differs
        numbers, self._given = _numbered(programs.inputs, laid.inputs)
        own, returned = _numbered(programs.forms, programs.forms)
        self._returned = [one for one, _ in returned]
        self._calls = Calls.of(laid, self._target, numbers, own)
        self._kept: tuple[int | None, dict[int, CompiledGraph]] = None, {}
        """For how many threads graphs were made, and these by their sizes. One is a few KB."""
        self._groups: list[_Group] = []
        self._varying: list[_Varying] = []
        self._joins: list[tuple[Call, Described]] = []
        """The joins and choices that have nothing to do, and their descriptors."""
        self._replaced: list[bool] = []
        """Whether a group is all launches with its kernel and integers, for the largest size: others may have them by chance."""
        self._find(plan)

    def _find(self, plan: Plan) -> None:
        """The launches that depend on the size."""
        numbers = {id(step.call): i for i, step in enumerate(plan.steps)}
        value = Values(self.largest).of
        groups: dict[tuple[int, InPlace], int] = {}
        varying = []
        for call, desc, edges in zip(self._finished.program.calls, self._programs.descs, self._programs.edges, strict=True):
            if not (desc.varies or edges.varies):
                continue
            if (i := numbers.get(id(call))) is None:
                if edges.varies or not _is_done(call):
                    raise Differs  # nothing to compute: that may depend on the size
                self._joins.append((call, desc))
                continue
            step = plan.steps[i]
            offsets = _offsets(value(edges))
            if step.kernel.owned and edges.varies:
                raise Differs  # what is packed may be elsewhere
            names = [*_passed(call.desc, step.in_place, step.kernel), *("a condition" for _ in step.guards)]
            bases = [(slot, at - offsets.get(name, 0), name) for (slot, at), name in zip(step.places, names, strict=True)]
            group = groups.setdefault((id(desc), step.in_place), len(groups))
            if group == len(self._groups):
                self._groups.append(_Group(desc, step.in_place, step.launch, room(call.desc), packed(step.kernel, call.desc)))
            varying.append(_Varying(i, group, edges, tuple(bases), call, edges.varies))
        own: list[set[int]] = [set() for _ in self._groups]
        for one in varying:
            own[one.group].add(one.step)
        for shared, steps in zip(self._groups, own, strict=True):
            self._replaced.append(steps == {i for i, step in enumerate(plan.steps) if step.launch is shared.launch})
        self._varying = [one._replace(alone=one.alone or not self._replaced[one.group]) for one in varying]
        self._readers = Counter(slot for step in plan.steps for slot, _ in step.places)

    def knows(self, n: int) -> bool:
        """Whether ``kept`` has the graph for a size, for as many threads as there are now."""
        threads, known = self._kept
        return n in known and threads is not None and threads == self._sizes.now()

    def kept(self, n: int, constants: Callable[[int], Sequence[NumpyArray]]) -> CompiledGraph:
        """The graph for a size, made once: texts that grow have the same lengths again and again.

        Raises:
            Differs, Unsupported, CompileError: as ``at``, or as ``constants``, which makes those that follow from the size.
        """
        threads = self._sizes.now()
        if threads is None or threads != self._kept[0]:
            self._kept = threads, {}
        known = self._kept[1]
        if (found := known.get(n)) is None:
            found = known[n] = self.at(n, constants(n))
        return found

    def at(self, n: int, arrays: Sequence[NumpyArray]) -> CompiledGraph:
        """The graph for a size.

        Args:
            n: the size, at most the largest.
            arrays: the constants that follow from it.

        Raises:
            Differs: its launches, or their memory, are others.
            Unsupported, CompileError: a kernel cannot be made.
        """
        values = Values(n)
        for join, desc in self._joins:
            if begins(Call(values.of(desc), join.edges, "", "")) != begins(join):
                raise Differs
        threads = self._sizes.now()
        found = self._found(values, threads)
        changed = self._changed(found, values)
        steps = {one.step: self._step(one, found[one.group], values, changed) for one in self._varying if one.alone}
        varied: Callable[..., Run] | None = getattr(self.graph.sequence, "varied", None)
        if varied is None:
            sequence = self._target.sequence(self._steps(found, values, changed), self.graph.laid.slots)
        else:
            every = zip(self._groups, found, self._replaced, strict=True)
            pairs = tuple((group.launch, one.launch) for group, one, replaced in every if replaced)
            sequence = varied(pairs, tuple((i, step.short()) for i, step in steps.items()))
        every_constant = zip(self._constants, self.graph.laid.constants, strict=True)
        constants = tuple(old if i is None else arrays[i] for i, old in every_constant)
        lay = functools.partial(self._laid, n, arrays, constants, threads)
        weights = self._weights(changed)
        return CompiledGraph.near(self.graph, sequence, self._calls, self._forms(values), constants, weights, lay)

    def _found(self, values: Values, threads: int | None) -> list[Sized]:
        """The kernel of each group for a size."""
        return [self._sized(one, values, threads) for one in self._groups]

    def _laid(self, n: int, arrays: Sequence[NumpyArray], constants: tuple[NumpyArray, ...], threads: int | None) -> Laid:
        """What is not needed to run the graph for a size."""
        values = Values(n)
        found = self._found(values, threads)
        changed = self._changed(found, values)
        kernels, packed = list(self.graph.laid.kernels), list(self.graph.laid.packed)
        for slot, own in changed.items():
            packed[slot - self._first_packed] = own.packing.owned.nbytes
        for one in self._varying:
            kernels[one.step] = found[one.group].name

        def finished() -> Finished:
            return self._programs.at(n, arrays)

        return self.graph.laid._replace(
            inputs=self._inputs(values),
            outputs=self._outputs(values),
            steps=tuple(self._steps(found, values, changed)),
            kernels=tuple(kernels),
            constants=constants,
            packed=tuple(packed),
            weights=lambda owned: self._weights(changed),
            reports=lambda: laid_out(finished(), self._target, shared=self._shared).reports(),
            finished=finished,
            plan=None,
        )

    def _changed(self, found: Sequence[Sized], values: Values) -> dict[int, Packed]:
        """The weights that kernels read in another form than for the largest size, by their slots.

        Raises:
            Differs: not all kernels that read one read it so.
        """
        changed: dict[int, Packed] = {}
        read: Counter[int] = Counter()
        for one in self._varying:
            group = self._groups[one.group]
            if found[one.group].packed == group.packed:
                continue
            desc: Operator = values.of(group.desc)
            packings = {each.owned.name: each for each in launch_of(desc, self._target, group.in_place, self._launches).packings}
            call = Call(desc, one.call.edges, "", "")
            slots = [slot for slot, _, name in one.bases if not name]
            for slot, name in zip(slots, [name for name, _ in desc.tensors() if name in packings], strict=True):
                new = Packed(call, packings[name])
                if changed.setdefault(slot, new).key != new.key:
                    raise Differs
                read[slot] += 1
        if any(count != self._readers[slot] for slot, count in read.items()):
            raise Differs
        return changed

    def _weights(self, changed: Mapping[int, Packed]) -> list[Weights]:
        """The packed weights for a size."""
        weights = self.graph.weights
        if changed:
            weights = list(weights)
            for slot, new in zip(changed, pack(changed.values(), {}, self._target, self._shared), strict=True):
                weights[slot - self._first_packed] = new
        return weights

    def _forms(self, values: Values) -> Forms:
        """The shapes of inputs and outputs for a size."""
        inputs = []
        for one, old in self._given:
            own = self._sizes.given(one, values) if one.varies else old
            inputs.append((own.shape, own.strides))
        return Forms(tuple(inputs), tuple(values.of(one)[1] for one in self._returned))

    def _inputs(self, values: Values) -> tuple[Given, ...]:
        """The inputs, as callers give them for a size."""
        known: dict[int, Given] = {}
        found = []
        for one, old in zip(self._programs.inputs, self.graph.laid.inputs, strict=True):
            if not one.varies:
                found.append(old)
                continue
            if (new := known.get(id(one))) is None:
                new = known[id(one)] = self._sizes.given(one, values)
            found.append(Given(old.name, old.shown, new.dtype, new.shape, new.strides, new.nbytes, new.owned, old.slot, None))
        return tuple(found)

    def _outputs(self, values: Values) -> tuple[Returned, ...]:
        """The outputs, as callers get them for a size."""
        found = []
        for one, old in zip(self._programs.forms, self.graph.laid.outputs, strict=True):
            found.append(Returned(old.dtype, values.of(one)[1], old.slot, old.copies) if one.varies else old)
        return tuple(found)

    def _steps(self, found: Sequence[Sized], values: Values, changed: Mapping[int, Packed]) -> list[Step]:
        """All launches for a size."""
        steps = list(self.graph.laid.steps)
        for one in self._varying:
            steps[one.step] = self._step(one, found[one.group], values, changed)
        return steps

    def _step(self, one: _Varying, found: Sized, values: Values, changed: Mapping[int, Packed]) -> Step:
        """A launch that depends on the size."""
        old = self.graph.laid.steps[one.step]
        places = old.places
        if one.edges.varies:
            offsets = _offsets(values.of(one.edges))
            if any(offsets.get(source) for source, _ in self._groups[one.group].in_place):
                raise Differs
            places = tuple((slot, at + offsets.get(name, 0)) for slot, at, name in one.bases)
        own = dict(found.spans())
        sizes = [own.get(name, size) for (_, _, name), size in zip(one.bases, old.sizes, strict=True)]
        for i, (slot, _, _) in enumerate(one.bases):
            if slot in changed:
                sizes[i] = changed[slot].packing.owned.nbytes
        return Step(found.launch, places, tuple(sizes), old.wanted)

    def _sized(self, one: _Group, values: Values, threads: int | None) -> Sized:
        """The kernel for a size."""
        found = self._sizes.kernel(one.desc, one.in_place, values.n, threads)
        if found is None:
            desc: Operator = values.of(one.desc)
            if any(pair not in desc.shareable() for pair in one.in_place):
                raise Differs
            ready = launch_of(desc, self._target, one.in_place, self._launches)
            found = Sized(ready.launch, ready.kernel.name, packed(ready.kernel, desc), room(desc), lambda: spans(desc))
        if [name for name, *_ in found.packed] != [name for name, *_ in one.packed]:
            raise Differs
        if not all(0 < new <= old or new == old for new, old in zip(found.room, one.room, strict=True)):
            raise Differs
        return found


def _numbered(every: Sequence[Described], what: Sequence[T]) -> tuple[list[int], list[tuple[Described, T]]]:
    """The number of each description, and the descriptions, each once, with what belongs to it."""
    numbers: dict[int, int] = {}
    found: list[tuple[Described, T]] = []
    for one, belongs in zip(every, what, strict=True):
        if numbers.setdefault(id(one), len(found)) == len(found):
            found.append((one, belongs))
    return [numbers[id(one)] for one in every], found


def _offsets(edges: Any) -> dict[str, int]:
    """The offset of each edge, by the tensor's name."""
    return {name: offset for name, (_, _, offset) in edges}


def _is_done(call: Call) -> bool:
    """Whether a call without a launch is a join or a choice whose inputs are written where its result is."""
    return (call.desc.NAME == "JOIN" or chooses(call) is not None) and call.bytes_of(0) > 0 and bool(begins(call))


def _passed(desc: Operator, in_place: InPlace, kernel: Kernel) -> list[str]:
    """The tensors that a launch takes; an empty name for one that is packed."""
    without, owned = {source for source, _ in in_place}, {one.name for one in kernel.owned}
    every = [name for name, tensor in desc.tensors() if (tensor is not None or name in owned) and name not in without]
    return ["" if name in owned else name for name in every]
