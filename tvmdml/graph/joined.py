"""Joins that are no work: what writes their inputs writes them where the result is. IF is, too, if it chooses one of two."""

from __future__ import annotations

import dataclasses
from collections.abc import Collection, Iterator, Sequence
from typing import Any, NamedTuple

from tvmdml.graph.conditional import SIDES, CallGuards, Guard, chooses
from tvmdml.graph.memory import ALIGNMENT
from tvmdml.graph.nodes import Call, Edge
from tvmdml.graph.program import NodeOutput
from tvmdml.tensors import TensorDesc
from tvmdml.tensors.sizes import are_equal


class JoinedPart(NamedTuple):
    """An input of a join, or of a choice, and where it is in the result."""

    name: str
    tensor: TensorDesc
    edge: Edge
    place: TensorDesc
    """The part of the result, as a tensor."""
    offset: int
    """The byte of the result's memory where it begins."""

    @property
    def lies_so(self) -> bool:
        """Whether the input has the strides that the part has."""
        return all(n < 2 or a == b for n, a, b in zip(self.tensor.sizes, self.tensor.layout, self.place.layout, strict=True))


def parts(call: Call, kind: str, kept: Collection[NodeOutput]) -> list[JoinedPart]:
    """The inputs of a join; none if they cannot be written where the result is: other calls must write each, as a whole."""
    found = list(_parts(call))
    values = {part.edge.value for part in found}
    step = 64 if kind == "cpu" else ALIGNMENT  # where kernels are as fast as anywhere
    fits = all(_is_whole(part) and part.edge.value not in kept and are_equal(part.offset % step, 0) for part in found)
    return found if fits and len(values) == len(found) else []


def begins(call: Call) -> list[int]:
    """Where each input of a join, or of a choice, is in the result; none if they do not lie as parts of the result do."""
    found = list(_parts(call))
    return [part.offset for part in found] if all(part.lies_so for part in found) else []


def _parts(call: Call) -> Iterator[JoinedPart]:
    desc: Any = call.desc
    result, begin = desc.output_tensor, 0
    if desc.NAME != "JOIN":
        for name in SIDES:
            yield JoinedPart(name, getattr(desc, name), call.edges[name], result, 0)
        return
    for name, tensor, edge in call.inputs():
        place = dataclasses.replace(result, sizes=tensor.sizes, strides=result.layout, total_tensor_size_in_bytes=None)
        yield JoinedPart(name, tensor, edge, place, begin * result.layout[desc.axis] * result.data_type.itemsize)
        begin += tensor.sizes[desc.axis]


def _is_whole(part: JoinedPart) -> bool:
    """Whether a join reads all that a call writes, and nothing else."""
    if not isinstance(part.edge.source, Call) or part.edge.offset or part.tensor.data_type.is_nibble:
        return False
    written = part.edge.source.outputs()[part.edge.output]
    return (
        written is not None
        and written.data_type is part.tensor.data_type
        and 0 < written.element_count == part.tensor.element_count
        and written.span == part.tensor.span
        and part.edge.source.bytes_of(part.edge.output) == written.span_in_bytes
    )


def insides(calls: Sequence[Call], kind: str, kept: Collection[NodeOutput], guards: CallGuards) -> dict[NodeOutput, Edge]:
    """Which values are in the memory of another, and where. The joins and choices that read them have nothing to do."""
    found: dict[NodeOutput, Edge] = {}
    for call in reversed(calls):
        condition = chooses(call) if guards else None
        if call.desc.NAME != "JOIN" and condition is None:
            continue
        own = parts(call, kind, {*kept, *found})
        if all(part.lies_so and _runs_with(part, call, condition, guards) for part in own):
            found |= {part.edge.value: Edge(call, 0, part.offset) for part in own}
    return found


def _runs_with(part: JoinedPart, call: Call, condition: NodeOutput | None, guards: CallGuards) -> bool:
    """Whether a part is written exactly if a run needs it: nothing else is in its place then."""
    own = {*guards.get(call, ())} | ({Guard(condition, SIDES[part.name])} if condition is not None else set())
    return own == {*guards.get(part.edge.source, ())}  # type: ignore[call-overload] # `parts` come from calls
