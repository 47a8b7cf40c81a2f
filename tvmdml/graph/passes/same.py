"""Let equal calls be one: the same operator, of the same memory. Small constants that are equal are one, too."""

from __future__ import annotations

from tvmdml.graph.nodes import Call, Constant, Edge
from tvmdml.graph.program import NodeOutput, Program
from tvmdml.operators._contract import Role
from tvmdml.targets import Target

MOST_BYTES = 64
"""Constants up to this size are compared: numbers in formulas."""


def run(program: Program, target: Target) -> None:
    """Keep the first of equal calls and constants."""
    numbers: dict[object, Constant] = {}
    program.replace(
        {
            (one, 0): Edge(kept)
            for one in program.constants()
            if one.array.nbytes <= MOST_BYTES
            and (kept := numbers.setdefault((one.array.dtype, one.array.shape, one.array.tobytes()), one)) is not one
        }
    )
    first: dict[object, Call] = {}
    gone: list[Call] = []
    instead: dict[NodeOutput, Edge] = {}
    for call in program.calls:
        for name, edge in call.edges.items():  # an earlier call may have been replaced
            if edge.value in instead:
                other = instead[edge.value]
                call.edges[name] = other._replace(offset=other.offset + edge.offset)
        key = (call.desc.exactly(), tuple((name, id(e.source), e.output, f"{e.offset}") for name, e in call.edges.items()))
        known = first.setdefault(key, call)
        if known is not call:
            gone.append(call)
            for i, _ in enumerate(call.desc.tensors(Role.OUTPUT)):
                instead[call, i] = Edge(known, i)
            known.origins = (*known.origins, *call.origins)
    program.replace(instead)
    program.forget(gone, "equal to an earlier call")
