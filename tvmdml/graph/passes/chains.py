"""Put pointwise operators on the same elements into one kernel: what only they read is not written to memory.

A group grows from its first operator on: an operator joins the groups of its inputs, unless what is between them would have to run
in the middle of the group. Bits do not change: each result is rounded to its own type.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import NamedTuple

from tvmdml.errors import InvalidArgument, Unsupported
from tvmdml.graph.conditional import choices
from tvmdml.graph.nodes import Call, Edge
from tvmdml.graph.passes.asking import offered
from tvmdml.graph.program import Fusion, NodeOutput, Program, ordered
from tvmdml.kernels.kernel import Offers
from tvmdml.operators._contract import Operator
from tvmdml.operators._pointwise_fused import MOST_OPERATORS, Result, fuse, fusible
from tvmdml.operators._pointwise_fused import GroupOperand as Wire
from tvmdml.targets import Target
from tvmdml.tensors import TensorDesc
from tvmdml.tensors.sizes import key_of


def run(program: Program, target: Target) -> None:
    """Fuse as much as possible."""
    groups = _Groups(program, target)
    for call in program.calls:
        groups.add(call)
    groups.apply()


class _Made(NamedTuple):
    """A group as one call."""

    desc: Operator
    edges: dict[str, Edge]
    values: dict[NodeOutput, int]


class _Groups:
    """Every call is in a group, at first alone."""

    def __init__(self, program: Program, target: Target) -> None:
        self._program, self._target = program, target
        self._number = {call: i for i, call in enumerate(program.calls)}
        self._readers = {value: [use.call for use in uses] for value, uses in program.uses().items()}
        self._kept = program.kept()
        self._of = {call: [call] for call in program.calls}
        choosing, self._guards = choices(program, target)
        self._fusible = {call for call in program.calls if _takes(call) and call not in choosing}
        self._made: dict[Call, _Made] = {}
        """What a group is as one call, by its last member."""
        self._descs: dict[object, Operator | None] = {}
        """The descriptors of groups, ``None`` of those that cannot be one call: networks repeat the same ones."""

    def add(self, call: Call) -> None:
        """Let a call join the groups of its inputs; those are then one."""
        if call not in self._fusible:
            return
        for source in dict.fromkeys(edge.source for edge in call.edges.values()):
            if not isinstance(source, Call) or source not in self._fusible or self._of[source] is self._of[call]:
                continue
            if self._guards.get(source) != self._guards.get(call):
                continue  # one of them runs where the other one need not
            union = sorted((*self._of[source], *self._of[call]), key=self._number.__getitem__)
            if len(union) > MOST_OPERATORS or self._is_interrupted(union) or (made := self._fused(union)) is None:
                continue
            self._made[union[-1]] = made
            for member in union:
                self._of[member] = union

    def apply(self) -> None:
        """Change the program."""
        groups = list({id(group): group for group in self._of.values()}.values())
        self._program.calls = [call for group in self._in_order(groups) for call in group]
        made = [(group, self._made[group[-1]]) for group in groups if len(group) > 1]
        self._program.fuse_all(Fusion(group, one.desc, one.edges, one.values) for group, one in made)

    def _is_interrupted(self, members: list[Call]) -> bool:
        """Whether a call outside of the group depends on one member, and another member on it."""
        inside, last = set(members), self._number[members[-1]]
        ahead = [reader for member in members for reader in self._read_by(member) if reader not in inside]
        seen = set(ahead)
        while ahead:
            for member in self._of[ahead.pop()]:
                for reader in self._read_by(member):
                    if reader in inside:
                        return True
                    if reader not in seen and self._number[reader] < last:
                        seen.add(reader)
                        ahead.append(reader)
        return False

    def _read_by(self, call: Call) -> Iterable[Call]:
        return (reader for i, _ in enumerate(call.outputs()) for reader in self._readers.get((call, i), ()))

    def _fused(self, members: list[Call]) -> _Made | None:
        """The group as one call, if it can be one."""
        at = {call: i for i, call in enumerate(members)}
        numbers: dict[tuple[NodeOutput, int, str], int] = {}
        edges: list[Edge] = []
        wiring: list[list[Wire]] = []
        for call in members:
            wires: list[Wire] = []
            for (_, tensor, edge), view in zip(call.inputs(), call.desc.operands(), strict=False):  # type: ignore[attr-defined]
                source = edge.source
                if isinstance(source, Call) and source in at:
                    if not _is_direct(edge, tensor):
                        return None
                    wires.append(Result(at[source], _places(source).index(edge.output)))
                    continue
                key = (edge.value, key_of(edge.offset), str(view))
                if key not in numbers:
                    numbers[key] = len(edges)
                    edges.append(edge)
                wires.append(numbers[key])
            wiring.append(wires)
        values: list[NodeOutput] = []
        results: list[Result] = []
        for call in members:
            for place, output in enumerate(_places(call)):
                if (call, output) in self._kept or any(one not in at for one in self._readers.get((call, output), ())):
                    values.append((call, output))
                    results.append(Result(at[call], place))
        if len(edges) + len(values) > self._target.most_arrays:
            return None
        kind = (*((call.desc.exactly(), *wires) for call, wires in zip(members, wiring, strict=True)), *results)
        if kind not in self._descs:
            self._descs[kind] = self._desc([call.desc for call in members], wiring, results)
        if (desc := self._descs[kind]) is None:
            return None
        named = {f"input_tensors[{i}]": edge for i, edge in enumerate(edges)}
        return _Made(desc, named, {value: i for i, value in enumerate(values)})

    def _desc(self, nodes: list[Operator], wiring: list[list[Wire]], results: list[Result]) -> Operator | None:
        """The descriptor of a group, if it can be one call."""
        try:
            desc = fuse(nodes, wiring, results)
            # Tensors that lie alike, or are one element, are read by whole vectors in any case.
            alike = all(one.is_packed or not any(one.layout) for one in (*desc.input_tensors, *desc.output_tensors))
            if not alike and Offers.VECTORS not in offered(desc, self._target):
                return None  # one input that lies so would slow the whole group down
        except (InvalidArgument, Unsupported):
            return None
        return desc

    def _in_order(self, groups: list[list[Call]]) -> Iterable[list[Call]]:
        """The groups in an order that respects all edges, near the one that they have."""
        number = {member: i for i, group in enumerate(groups) for member in group}
        before = [
            {number[edge.source] for call in group for edge in call.edges.values() if isinstance(edge.source, Call)} - {i}
            for i, group in enumerate(groups)
        ]
        return (groups[i] for i in ordered(before, [self._number[group[-1]] for group in groups]))


def _takes(call: Call) -> bool:
    """Whether a call may be in a group; one whose tensors are views of views, such as without elements, may not."""
    return fusible(call.desc) and not any(tensor is not None and not tensor.element_count for _, tensor in call.desc.tensors())


def _places(call: Call) -> list[int]:
    """The outputs that are present, by their places among all."""
    return [i for i, tensor in enumerate(call.outputs()) if tensor is not None]


def _is_direct(edge: Edge, tensor: TensorDesc) -> bool:
    """Whether a result is read as it was written."""
    assert isinstance(edge.source, Call)
    made = edge.source.outputs()[edge.output]
    return made is not None and not edge.offset and made.is_like(tensor)
