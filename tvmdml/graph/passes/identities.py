"""Drop calls that change nothing: a copy of a whole tensor, and a conversion to the type that it has."""

from __future__ import annotations

from tvmdml.graph.nodes import Call, Edge
from tvmdml.graph.program import NodeOutput, Program
from tvmdml.operators._contract import Role
from tvmdml.targets import Target
from tvmdml.tensors import TensorDesc

COPIES = ("ELEMENT_WISE_IDENTITY", "ACTIVATION_IDENTITY", "CAST")
"""The operators whose output has the bits of the input, where both have the same type and there is no scale and bias."""


def run(program: Program, target: Target) -> None:
    """Let the readers of a copy read the original, where a view says the same."""
    results = program.kept()
    instead: dict[NodeOutput, Edge] = {}
    gone = []
    for call in program.calls:
        if _changes_nothing(call):
            edge = call.edges["input_tensor"]
            while (other := instead.get(edge.value)) is not None:  # a copy of a copy
                edge = other._replace(offset=other.offset + edge.offset)
            if (call, 0) in results and not isinstance(edge.source, Call):
                continue  # a result has memory of its own
            if (call, 0) in results and edge.value in results:
                continue
            if (call, 0) in results and (edge.offset or edge.source.bytes_of(edge.output) != call.bytes_of(0)):
                continue
            instead[call, 0] = edge
            gone.append(call)
            if (call, 0) in results:
                results.add(edge.value)
    program.replace(instead)
    program.forget(gone, "changes nothing")


def _changes_nothing(call: Call) -> bool:
    tensors = copied(call)
    return tensors is not None and tensors[0].is_like(tensors[1])


def copied(call: Call) -> tuple[TensorDesc, TensorDesc] | None:
    """What a call reads and writes, if it copies bits."""
    scale_bias = getattr(call.desc, "scale_bias", None)
    if call.desc.NAME not in COPIES or (scale_bias is not None and tuple(scale_bias) != (1, 0)):
        return None
    tensors = dict(call.desc.tensors(Role.INPUT, Role.OUTPUT))
    one, other = tensors["input_tensor"], tensors["output_tensor"]
    return (one, other) if one is not None and other is not None and one.data_type is other.data_type else None
