"""Which launches a run leaves out: those whose results it reads only if a condition is the other one.

A call of IF whose condition is one element chooses between two whole tensors, as ONNX's If does between two branches. What only
one of them depends on is computed only if the condition says so: each such call has *guards*, conditions and what they must be. The
call of IF itself has no work, if what writes the tensors is guarded: both are written where its result is.

Guards follow from the calls alone, so nothing is kept of them in files: who plans the calls finds them again.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from typing import Any, NamedTuple

from tvmdml.graph.nodes import Call
from tvmdml.graph.program import NodeOutput, Program, ordered
from tvmdml.operators._pointwise_fused import fusible
from tvmdml.targets import Target


class Guard(NamedTuple):
    """What must be so if a call is to run."""

    condition: NodeOutput
    """Memory whose first byte is the condition."""
    wanted: bool
    """Whether that byte must be another one than 0."""


CallGuards = Mapping[Call, Sequence[Guard]]
"""Of each call that has any, in the order in which they are read: a condition is known if the guards before it hold."""

SIDES = {"a_tensor": True, "b_tensor": False}
"""The tensors between which IF chooses, and with which condition."""


def are_skipped(kind: str) -> bool:
    """Whether a kind of target leaves launches out. A device computes all: its work is ordered before conditions are known."""
    return kind == "cpu"


def chooses(call: Call) -> NodeOutput | None:
    """The condition of a call that chooses between whole tensors."""
    if call.desc.NAME != "ELEMENT_WISE_IF":
        return None
    desc: Any = call.desc
    tensor, edge = desc.condition_tensor, call.edges["condition_tensor"]
    alone = not any(step for n, step in zip(tensor.sizes, tensor.layout, strict=True) if n > 1)
    return edge.value if alone and not edge.offset and desc.output_tensor.element_count else None


def guards(calls: Sequence[Call], kept: Collection[NodeOutput]) -> CallGuards:
    """The guards of all calls.

    Args:
        calls: in an order that respects their edges.
        kept: the values that are read after all calls.
    """
    return _guards(calls, kept, {call: value for call in calls if (value := chooses(call)) is not None})


def choices(program: Program, target: Target) -> tuple[set[Call], CallGuards]:
    """The calls of IF that no other call is to be fused with, and the guards that they give.

    Where only pointwise operators could be left out, all of them and IF may be one kernel, which is left to the passes.
    """
    if not are_skipped(target.kind):
        return set(), {}
    every = {call: value for call in program.calls if (value := chooses(call)) is not None}
    found = _guards(program.calls, program.kept(), every)
    worth = {one.condition for call, own in found.items() if not fusible(call.desc) for one in own}
    some = {call: value for call, value in every.items() if value in worth}
    return set(some), _guards(program.calls, program.kept(), some)


def in_order(calls: Sequence[Call], found: CallGuards) -> list[Call]:
    """The calls in an order in which conditions are computed before the calls that they guard."""
    if not found:
        return list(calls)
    numbers = {call: i for i, call in enumerate(calls)}
    before = []
    for call in calls:
        sources = [edge.source for edge in call.edges.values()] + [one.condition[0] for one in found.get(call, ())]
        before.append({numbers[source] for source in sources if isinstance(source, Call) and source in numbers})
    return [calls[i] for i in ordered(before, range(len(calls)))]


def _guards(calls: Sequence[Call], kept: Collection[NodeOutput], choosing: Mapping[Call, NodeOutput]) -> CallGuards:
    if not choosing:
        return {}
    outside = {id(node) for node, _ in kept}
    nothing: frozenset[Guard] = frozenset()
    own: dict[Call, frozenset[Guard]] = {}
    read: dict[int, frozenset[Guard]] = {}
    """What all readers so far of a call's results have in common."""
    for call in reversed(calls):
        mine = own[call] = nothing if id(call) in outside else read.get(id(call), nothing)
        condition = choosing.get(call)
        for name, edge in call.edges.items():
            if isinstance(edge.source, Call):
                more = mine if condition is None or name not in SIDES else mine | {Guard(condition, SIDES[name])}
                known = read.get(id(edge.source))
                read[id(edge.source)] = more if known is None else known & more
    numbers = {value: i for i, value in enumerate(dict.fromkeys(choosing.values()))}

    def rank(one: Guard) -> tuple[int, int, bool]:
        source = one.condition[0]  # what computes a condition has fewer guards than what computes one that depends on it
        return len(own[source]) if isinstance(source, Call) else 0, numbers[one.condition], one.wanted

    return {call: sorted(some, key=rank) for call, some in own.items() if some}
