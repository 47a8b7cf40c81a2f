"""Put an activation into the operator before it: as DirectML's FusedActivation, where that operator has this field.

Elements in half precision are left alone: a fused activation takes the wider sum, and the call of its own the rounded one.
"""

from __future__ import annotations

import dataclasses
from typing import Any

from tvmdml.graph.nodes import Call
from tvmdml.graph.program import Program
from tvmdml.operators._contract import Role
from tvmdml.targets import Target
from tvmdml.tensors import TensorDataType


def run(program: Program, target: Target) -> None:
    """Fuse wherever the operator before has no other reader."""
    uses, kept = program.uses(), program.kept()
    for call in list(program.calls):
        edge = call.edges.get("input_tensor")
        if edge is None or len(call.edges) != 1 or not isinstance(edge.source, Call) or edge.offset:
            continue
        head = edge.source
        if len(uses.get(edge.value, ())) == 1 and edge.value not in kept and _fits(head, call):
            after: Any = call.desc
            names = [field.name for field in after.fields() if field.role not in (Role.INPUT, Role.OUTPUT)]
            part = type(after).fused(**{name: getattr(after, name) for name in names})
            desc = dataclasses.replace(head.desc, fused_activation=part)  # type: ignore[type-var] # a dataclass, as all are
            program.fuse([head, call], desc, head.edges, {(call, 0): 0})


def _fits(head: Call, call: Call) -> bool:
    first, after = head.desc, call.desc
    if getattr(first, "fused_activation", call) is not None or after.NAME not in first.FUSES:
        return False
    outputs = [tensor for tensor in head.outputs() if tensor is not None]
    mine: Any = after
    if len(outputs) != 1 or outputs[0].data_type is not TensorDataType.FLOAT32:
        return False
    if getattr(mine, "scale_bias", None) is not None or after.NAME in ("ACTIVATION_SOFTMAX", "ACTIVATION_SOFTMAX1"):
        return False
    packed = outputs[0].is_packed and mine.input_tensor.is_packed and mine.output_tensor.is_packed
    same = outputs[0].is_like(mine.input_tensor) and outputs[0].is_like(mine.output_tensor)
    return same or (packed and outputs[0].element_count == mine.input_tensor.element_count)
