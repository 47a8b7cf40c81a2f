"""Let a convolution read zeros around its input itself, in place of a padding before it."""

from __future__ import annotations

import dataclasses
from typing import Any

from tvmdml.enums import PaddingMode
from tvmdml.graph.nodes import Call
from tvmdml.graph.program import Program
from tvmdml.targets import Target


def run(program: Program, target: Target) -> None:
    """Fold wherever the padding has no other reader."""
    uses, kept = program.uses(), program.kept()
    for call in list(program.calls):
        edge = call.edges.get("input_tensor")
        if call.desc.NAME != "CONVOLUTION" or edge is None or edge.offset or not isinstance(edge.source, Call):
            continue
        head = edge.source
        if len(uses.get(edge.value, ())) == 1 and edge.value not in kept and _fits(head, call):
            pad: Any = head.desc
            conv: Any = call.desc
            desc = dataclasses.replace(
                conv,
                input_tensor=dataclasses.replace(pad.input_tensor, flags=conv.input_tensor.flags),
                start_padding=tuple(a + b for a, b in zip(conv.start_padding, pad.start_padding[2:], strict=True)),
                end_padding=tuple(a + b for a, b in zip(conv.end_padding, pad.end_padding[2:], strict=True)),
            )
            program.fuse([head, call], desc, {**call.edges, "input_tensor": head.edges["input_tensor"]}, {(call, 0): 0})


def _fits(head: Call, call: Call) -> bool:
    pad: Any = head.desc
    conv: Any = call.desc
    if pad.NAME not in ("PADDING", "PADDING1") or pad.padding_mode is not PaddingMode.CONSTANT or pad.padding_value != 0:
        return False
    if not pad.output_tensor.is_like(conv.input_tensor) or conv.direction.name != "FORWARD":
        return False
    return not any(pad.start_padding[:2]) and not any(pad.end_padding[:2])
