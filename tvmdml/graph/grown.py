"""``Grown``: compiled graphs for sizes that are near each other, made from one of them without planning.

A decoder's past grows by a word at each step. Where the memory of the largest size has room for all, the launches, their places,
the packed weights and the intermediate memory stay: new are the kernels' integers, and what callers see of inputs and outputs.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

from tvmdml.arrays import NumpyArray
from tvmdml.compiler import Ready, ready_owned
from tvmdml.graph.by_size import BySize, Described, Differs, Values, input_of
from tvmdml.graph.compiled import CompiledGraph
from tvmdml.graph.laid import Returned
from tvmdml.graph.laying import given, laid_out
from tvmdml.graph.nodes import Call
from tvmdml.graph.packing import Shared
from tvmdml.graph.plan import Launches
from tvmdml.graph.program import Finished
from tvmdml.kernels.kernel import Kernel
from tvmdml.operators._contract import Operator
from tvmdml.operators._contract import Shared as InPlace
from tvmdml.targets import Step, Target


class _Varying(NamedTuple):
    """A launch that depends on the size."""

    step: int
    """Its place among the launches."""
    desc: Described
    edges: Described
    in_place: InPlace
    bases: tuple[tuple[int, int, str], ...]
    """Of each array: its slot, its offset without that of the edge that reads it, and the tensor's name."""


class Grown:
    """Compiled graphs up to a size."""

    def __init__(self, programs: BySize, n: int, arrays: Sequence[NumpyArray], target: Target, shared: Shared, launches: Launches):
        """Plan the largest one.

        Args:
            programs: the program for each size.
            n: the largest size.
            arrays: the constants that follow from it.
            target: where the graphs run.
            shared: packed weights of other graphs.
            launches: kernels that other graphs found.

        Raises:
            Differs: the launches of other sizes may be others.
            Unsupported, CompileError: a kernel cannot be made.
        """
        self._programs, self._target, self._shared = programs, target, shared
        self.largest = n
        self._finished = programs.at(n, arrays)
        laid = laid_out(self._finished, target, shared=shared, launches=launches)
        self.graph = CompiledGraph(laid, target)
        """The largest one."""
        plan = laid.plan
        assert plan is not None
        places = {id(array): i for i, array in enumerate(arrays)}
        self._constants = [places.get(id(node.array)) for node in plan.constants]
        packed = {id(edge.source) for one in plan.packed for edge in one.edges}
        if any(id(node.array) in places for node in self._finished.program.constants() if id(node) in packed):
            raise Differs
        if any(one.owned for one in laid.inputs) or any(not isinstance(one.copies, (int, type(None))) for one in laid.outputs):
            raise Differs
        self._varying: list[_Varying] = []
        self._room: dict[int, tuple[int, ...]] = {}
        self._packed: dict[int, object] = {}
        self._find(n, {id(step.call): i for i, step in enumerate(plan.steps)})

    def _find(self, n: int, numbers: Mapping[int, int]) -> None:
        """The launches that depend on the size; ``numbers`` has the place of each by the identity of its call."""
        plan, value = self.graph.laid.plan, Values(n).of
        assert plan is not None
        each = zip(self._finished.program.calls, self._programs.descs, self._programs.edges, strict=True)
        for call, desc, edges in each:
            if not (desc.varies or edges.varies):
                continue
            if (i := numbers.get(id(call))) is None:
                raise Differs  # a join in place, or nothing to compute: that may depend on the size
            step = plan.steps[i]
            offsets = _offsets(value(edges))
            if step.kernel.owned and edges.varies:
                raise Differs  # what is packed may be elsewhere
            names = _passed(call.desc, step.in_place, step.kernel)
            bases = [(slot, at - offsets.get(name, 0), name) for (slot, at), name in zip(step.places, names, strict=True)]
            self._varying.append(_Varying(i, desc, edges, step.in_place, tuple(bases)))
            self._room[id(desc)] = _room(call.desc)
            self._packed[id(desc)] = _packed(step.kernel, call.desc)

    def at(self, n: int, arrays: Sequence[NumpyArray]) -> CompiledGraph:
        """The graph for a size.

        Args:
            n: the size, at most the largest.
            arrays: the constants that follow from it.

        Raises:
            Differs: its launches, or their memory, are others.
            Unsupported, CompileError: a kernel cannot be made.
        """
        laid, programs, values = self.graph.laid, self._programs, Values(n)
        steps, kernels = list(laid.steps), list(laid.kernels)
        known: dict[tuple[int, InPlace], tuple[Ready, Mapping[str, int]]] = {}
        for one in self._varying:
            desc = values.of(one.desc)
            key = id(one.desc), one.in_place
            if (found := known.get(key)) is None:
                found = known[key] = self._ready(one, desc), _spans(desc)
            ready, spans = found
            places, old = laid.steps[one.step].places, laid.steps[one.step].sizes
            if one.edges.varies:
                offsets = _offsets(values.of(one.edges))
                if any(offsets.get(source) for source, _ in one.in_place):
                    raise Differs
                places = tuple((slot, at + offsets.get(name, 0)) for slot, at, name in one.bases)
            sizes = tuple(spans.get(name, size) for (_, _, name), size in zip(one.bases, old, strict=True))
            steps[one.step], kernels[one.step] = Step(ready.launch, places, sizes), ready.kernel.name
        alike = {id(one): given(input_of(values.of(one), ""), 0, 0)._replace(node=None) for one in programs.inputs}
        inputs = (
            alike[id(one)]._replace(name=old.name, shown=old.shown, slot=old.slot)
            for one, old in zip(programs.inputs, laid.inputs, strict=True)
        )
        forms = zip(map(values.of, programs.forms), laid.outputs, strict=True)

        def finished() -> Finished:
            return programs.at(n, arrays)

        new = laid._replace(
            inputs=tuple(inputs),
            outputs=tuple(Returned(dtype, shape, one.slot, one.copies) for (dtype, shape), one in forms),
            steps=tuple(steps),
            kernels=tuple(kernels),
            constants=tuple(old if i is None else arrays[i] for i, old in zip(self._constants, laid.constants, strict=True)),
            weights=lambda owned: self.graph.weights,
            reports=lambda: laid_out(finished(), self._target, shared=self._shared).reports(),
            finished=finished,
            plan=None,
        )
        return CompiledGraph(new, self._target, self.graph)

    def _ready(self, one: _Varying, desc: Operator) -> Ready:
        """The kernel for a size."""
        if not all(0 < new <= old or new == old for new, old in zip(_room(desc), self._room[id(one.desc)], strict=True)):
            raise Differs
        if any(pair not in desc.shareable() for pair in one.in_place):
            raise Differs
        found = ready_owned(desc, self._target, one.in_place)
        if _packed(found.kernel, desc) != self._packed[id(one.desc)]:
            raise Differs
        return found


def _offsets(edges: Any) -> dict[str, int]:
    """The offset of each edge, by the tensor's name."""
    return {name: offset for name, (_, _, offset) in edges}


def _passed(desc: Operator, in_place: InPlace, kernel: Kernel) -> list[str]:
    """The tensors that a launch takes; an empty name for one that is packed."""
    without, packed = {source for source, _ in in_place}, {one.name for one in kernel.owned}
    every = [name for name, tensor in desc.tensors() if (tensor is not None or name in packed) and name not in without]
    return ["" if name in packed else name for name in every]


def _room(desc: Operator) -> tuple[int, ...]:
    """The bytes of each output."""
    call = Call(desc, {}, "", "")
    return tuple(call.bytes_of(i) for i in range(len(call.outputs())))


def _packed(kernel: Kernel, desc: Operator) -> object:
    """The inputs that a kernel takes packed, and what they are made of."""
    if not kernel.owned:
        return ()
    tensors = dict(desc.tensors())
    return tuple((*one[:-1], *(repr(tensors[name]) for name in one.inputs)) for one in kernel.owned)


def _spans(desc: Operator) -> dict[str, int]:
    """The bytes that each tensor spans."""
    return {name: tensor.span_in_bytes for name, tensor in desc.tensors() if tensor is not None}
