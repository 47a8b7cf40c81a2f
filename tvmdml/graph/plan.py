"""``Plan``: the launches of a program, and where the arguments of each are."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, MutableMapping, Sequence
from typing import NamedTuple

from tvmdml.compiler import ReadyOperator, ready_owned
from tvmdml.errors import CompileError, TvmdmlError, Unsupported
from tvmdml.graph.conditional import Guard, are_skipped, guards, in_order
from tvmdml.graph.in_place import Pieces
from tvmdml.graph.joined import insides
from tvmdml.graph.kernels import Progress, compile_all
from tvmdml.graph.memory import ArenaPlaces, planned
from tvmdml.graph.nodes import Call, Constant, Edge, Input
from tvmdml.graph.program import NodeOutput, Program
from tvmdml.kernels import knobs
from tvmdml.kernels.kernel import Kernel
from tvmdml.kernels.persistent import Packing
from tvmdml.operators._contract import Operator, Role, Shared
from tvmdml.targets import Launch, Target

ARENA = 0
"""The slot of the memory of intermediate results."""


class PlanStep(NamedTuple):
    """One launch."""

    call: Call
    kernel: Kernel
    launch: Launch
    places: tuple[tuple[int, int], ...]
    """For each array of the launch: its slot, and the byte where it begins. Then the same for each guard's condition."""
    sizes: tuple[int, ...]
    """The bytes of each array, with the gaps between its elements, and of each condition."""
    in_place: Shared
    """The pairs of tensors that share memory."""
    guards: tuple[Guard, ...]
    """What must be so if it is to run."""

    @property
    def wanted(self) -> tuple[bool, ...]:
        """What each condition must be."""
        return tuple(one.wanted for one in self.guards)


class Packed(NamedTuple):
    """A weight in the form that a kernel reads."""

    call: Call
    """The first call that reads it."""
    packing: Packing

    @property
    def edges(self) -> tuple[Edge, ...]:
        """What it is made of."""
        return tuple(self.call.edges[name] for name in self.packing.owned.inputs)

    @property
    def key(self) -> object:
        """Equal for weights that are the same bytes."""
        return (self.packing.owned.layout, *((id(edge.source), edge.output, edge.offset) for edge in self.edges))


class Plan(NamedTuple):
    """All launches in order. The slots are the arena, the constants, the packed weights, the inputs and the outputs."""

    steps: tuple[PlanStep, ...]
    constants: tuple[Constant, ...]
    """Those that kernels read as they are."""
    packed: tuple[Packed, ...]
    inputs: tuple[Input, ...]
    outputs: tuple[NodeOutput, ...]
    """The values that have memory of their own, in the order of their slots."""
    memory: ArenaPlaces

    @property
    def slots(self) -> int:
        """The number of slots."""
        return 1 + len(self.constants) + len(self.packed) + len(self.inputs) + len(self.outputs)


Launches = MutableMapping[object, ReadyOperator]
"""Kernels that were found for other programs of the same model: with a few other sizes, most are the same."""
_MOST_LAUNCHES = 1024


def plan(program: Program, target: Target, progress: Progress | None = None, launches: Launches | None = None) -> Plan:
    """Choose kernels and places.

    Raises:
        Unsupported, CompileError: a kernel cannot be made; the message names the call.
    """
    calls, pieces = arranged(program, target.kind)
    shared = pieces.shared
    alike = [(call.desc.exactly(), call.desc.owned(), shared.get(call, ())) for call in calls]
    distinct = dict(zip(alike, calls, strict=True))
    found: Launches = {} if launches is None or knobs.in_force() else launches
    if len(found) > _MOST_LAUNCHES:
        found.clear()
    missing = {key: call for key, call in distinct.items() if key not in found}
    compile_all(((call.desc, shared.get(call, ())) for call in missing.values()), target, progress)
    found.update({key: _launch(call, target, shared.get(call, ())) for key, call in missing.items()})
    kernels = [found[key] for key in alike]

    packed = packed_of(zip(calls, (kernel.packings for kernel in kernels), strict=True))
    outputs = outputs_of(program)
    read = {id(edge.source) for call, kernel in zip(calls, kernels, strict=True) for edge in read_of(call, kernel.packings)}
    read |= pieces.deciding()
    constants = [node for node in program.constants() if id(node) in read]
    inputs = program.inputs()
    slots: dict[NodeOutput, int] = {(node, 0): 1 + i for i, node in enumerate(constants)}
    first = 1 + len(constants)
    packed_slots = {one: first + i for i, one in enumerate(packed)}
    first += len(packed)
    slots |= {value: first + i for i, value in enumerate([*((node, 0) for node in inputs), *outputs])}
    lifetimes = pieces.lifetimes()
    places = planned(list(lifetimes.values()))
    offsets = pieces.places(dict(zip(lifetimes, places.offsets, strict=True)))

    def place(edge: Edge) -> tuple[int, int]:
        edge = pieces.outermost(edge)
        if edge.value in slots:
            return slots[edge.value], edge.offset
        return ARENA, offsets[edge.value] + edge.offset

    steps = []
    for call, kernel in zip(calls, kernels, strict=True):
        arguments, sizes = [], []
        results = {name: i for i, name in enumerate(call.output_names())}
        buffers = {one.owned.name: (packed_slots[Packed(call, one).key], one.owned.nbytes) for one in kernel.packings}
        in_place = {source for source, _ in shared.get(call, ())}
        for name, tensor in call.desc.tensors():
            if name in in_place:
                continue
            if name in buffers:
                slot, size = buffers[name]
                arguments.append((slot, 0))
                sizes.append(size)
            elif tensor is not None:
                arguments.append(place(Edge(call, results[name]) if name in results else call.edges[name]))
                sizes.append(tensor.span_in_bytes)
        own = tuple(pieces.guards.get(call, ()))
        arguments += [place(Edge(*one.condition)) for one in own]
        sizes += [1] * len(own)
        steps.append(PlanStep(call, kernel.kernel, kernel.launch, tuple(arguments), tuple(sizes), shared.get(call, ()), own))
    return Plan(tuple(steps), tuple(constants), tuple(packed.values()), tuple(inputs), tuple(outputs), places)


def launch_of(desc: Operator, target: Target, shared: Shared, launches: Launches) -> ReadyOperator:
    """The kernel of a call, which may be that of other programs.

    Raises:
        Unsupported, CompileError: it cannot be made.
    """
    if knobs.in_force():
        return ready_owned(desc, target, shared)
    key = desc.exactly(), desc.owned(), shared
    if (found := launches.get(key)) is None:
        found = launches[key] = ready_owned(desc, target, shared)
    return found


def arranged(program: Program, kind: str) -> tuple[list[Call], Pieces]:
    """The calls that compute something on a kind of target, and the memory of their intermediate results."""
    calls = computing(program)
    apart = set(outputs_of(program))
    found = guards(calls, apart) if are_skipped(kind) else {}
    calls = in_order(calls, found)
    inside = insides(calls, kind, apart, found)
    done = {id(edge.source) for edge in inside.values()}
    for call in calls:
        if id(call) in done:
            program.note(call, "its inputs are written where it is")
    calls = [call for call in calls if id(call) not in done]
    pieces = Pieces(calls, apart, inside, found)
    pieces.reduce()
    return calls, pieces


def computing(program: Program) -> list[Call]:
    """The calls that have anything to compute."""
    return [call for call in program.calls if not _is_empty(call)]


def outputs_of(program: Program) -> list[NodeOutput]:
    """The values that have memory of their own."""
    return list(dict.fromkeys(one.edge.value for one in program.results if isinstance(one.edge.source, Call)))


def _launch(call: Call, target: Target, shared: Shared) -> ReadyOperator:
    try:
        return ready_owned(call.desc, target, shared)
    except (Unsupported, CompileError) as error:
        raise of_call(call, error) from error


def of_call(call: Call, error: TvmdmlError) -> TvmdmlError:
    """The same error, with the call's name and line."""
    return type(error)(f"{call}: {error}") if type(error) in (Unsupported, CompileError) else error


def _is_empty(call: Call) -> bool:
    """Whether there is nothing to compute: no output has an element."""
    outputs = [tensor for tensor in call.outputs() if tensor is not None]
    if not any(one.element_count for one in outputs):
        return True
    for name, tensor in call.desc.tensors(Role.INPUT):
        if tensor is not None and not tensor.element_count:
            raise Unsupported(f"{call}: {name} has no elements, but the result has: it is not computed in a graph.")
    return False


def packed_of(calls: Iterable[tuple[Call, Sequence[Packing]]]) -> Mapping[object, Packed]:
    """The packed weights, each once: of calls, and what their kernels take packed."""
    found: dict[object, Packed] = {}
    for call, packings in calls:
        for packing in packings:
            one = Packed(call, packing)
            found.setdefault(one.key, one)
    return found


def read_of(call: Call, packings: Sequence[Packing]) -> list[Edge]:
    """What a kernel reads as it is."""
    packed = {one.owned.name for one in packings}
    return [edge for name, edge in call.edges.items() if name not in packed]
