"""Move quantized elements as they are, where they are dequantized only to be moved, or compared, and quantized as before.

This does not change bits: an integer that is dequantized and quantized with the same scale and zero point is itself, and the larger
of two integers stands for the larger of two numbers.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from tvmdml.enums import InterpolationMode
from tvmdml.errors import TvmdmlError
from tvmdml.graph.nodes import Call
from tvmdml.graph.passes import unused
from tvmdml.graph.passes.layouts import changed_to
from tvmdml.graph.passes.quantized import DEQUANTIZE, QUANTIZE, Quantized, dequantized, lies_alike, parameters
from tvmdml.graph.program import Program
from tvmdml.operators._contract import Operator, Role
from tvmdml.operators.element_wise_unary import ElementWiseClip, ElementWiseIdentity
from tvmdml.targets import Target
from tvmdml.tensors import TensorDesc

_MOVES = (
    *("ELEMENT_WISE_IDENTITY", "SLICE", "SLICE1", "JOIN", "TILE", "GATHER", "GATHER_ELEMENTS", "GATHER_ND", "GATHER_ND1"),
    *("DEPTH_TO_SPACE", "DEPTH_TO_SPACE1", "SPACE_TO_DEPTH", "SPACE_TO_DEPTH1", "REVERSE_SUBSEQUENCES"),
    *("MAX_POOLING", "MAX_POOLING1", "MAX_POOLING2", "RESAMPLE", "RESAMPLE1", "RESAMPLE2"),
)
"""Operators whose results are elements of their inputs, with some attributes."""
_RELU = "ACTIVATION_RELU"


def run(program: Program, target: Target) -> None:
    """Change wherever a QuantizeLinear is the only reader."""
    uses, kept = program.uses(), program.kept()
    changed = False
    for call in list(program.calls):
        if call.desc.NAME != QUANTIZE or (to := parameters(call)) is None or to.axis is not None:
            continue
        edge = call.edges["input_tensor"]
        head = edge.source
        if not isinstance(head, Call):
            continue
        try:
            if head.desc.NAME == DEQUANTIZE:
                done = _copied(program, call, to)
            else:
                alone = not edge.offset and len(uses.get(edge.value, ())) == 1 and edge.value not in kept
                done = alone and _moved(program, head, call, to)
        except TvmdmlError:
            continue
        changed = changed or done
    if changed:
        unused.run(program, target)


def _copied(program: Program, call: Call, to: Quantized) -> bool:
    """A QuantizeLinear of what was dequantized is a copy."""
    one = dequantized(call, "input_tensor")
    if one is None or not _same(one, to):
        return False
    desc = ElementWiseIdentity(input_tensor=one.tensor, output_tensor=to.tensor, scale_bias=None)
    desc.check()
    program.fuse([call], desc, {"input_tensor": one.edge}, {(call, 0): 0})
    return True


def _moved(program: Program, head: Call, call: Call, to: Quantized) -> bool:
    """What is between both, on the integers."""
    desc: Any = head.desc
    floats = [name for name, tensor, _ in head.inputs() if tensor.data_type is call.desc.input_tensor.data_type]  # type: ignore[attr-defined]
    outputs = [tensor for tensor in head.outputs() if tensor is not None]
    if len(outputs) != 1 or not floats or not _takes(desc):
        return False
    if not lies_alike(outputs[0], call.desc.input_tensor) or not lies_alike(call.desc.input_tensor, to.tensor):  # type: ignore[attr-defined]
        return False
    edges, tensors = dict(head.edges), {}
    for name in floats:
        one = dequantized(head, name)
        if one is None or not _same(one, to):
            return False
        edges[name], tensors[name] = one.edge, one.tensor
    result = TensorDesc(to.tensor.data_type, outputs[0].sizes, outputs[0].strides)
    made: Operator
    if desc.NAME == _RELU:
        limits = np.iinfo(to.tensor.data_type.numpy)  # type: ignore[type-var]
        least = {"min": float(to.zero[0]), "max": float(limits.max)}
        made = ElementWiseClip(input_tensor=tensors["input_tensor"], output_tensor=result, scale_bias=None, **least)
    else:
        (output,) = (name for name, tensor in desc.tensors(Role.OUTPUT) if tensor is not None)
        made = changed_to(desc, {**tensors, output: result})
    made.check()
    program.fuse([head, call], made, edges, {(call, 0): 0})
    return True


def _takes(desc: Any) -> bool:
    if getattr(desc, "scale_bias", None) is not None:
        return False
    if desc.NAME == _RELU:
        return True
    return desc.NAME in _MOVES and getattr(desc, "interpolation_mode", None) in (None, InterpolationMode.NEAREST_NEIGHBOR)


def _same(one: Quantized, other: Quantized) -> bool:
    """Whether integers stand for the same numbers."""
    if one.axis is not None or one.tensor.data_type is not other.tensor.data_type:
        return False
    return bool(one.scale[0] == other.scale[0] and one.zero[0] == other.zero[0])
