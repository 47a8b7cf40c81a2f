"""Fold a batch normalization by constants into the filter and the bias of the convolution before it.

The sums change by one rounding of each filter element: within what the accuracy rule of a convolution allows.
"""

from __future__ import annotations

import dataclasses
from typing import Any

import numpy as np

from tvmdml.enums import ConvolutionDirection
from tvmdml.graph.nodes import Call, Constant, Edge
from tvmdml.graph.packers import reading
from tvmdml.graph.program import Program
from tvmdml.targets import Target
from tvmdml.tensors import TensorDataType, TensorDesc
from tvmdml.tensors.arrays import NumpyArray

PARAMETERS = ("mean_tensor", "variance_tensor", "scale_tensor", "bias_tensor")


def run(program: Program, target: Target) -> None:
    """Fold wherever the convolution has no other reader."""
    uses, kept = program.uses(), program.kept()
    for call in list(program.calls):
        if call.desc.NAME != "BATCH_NORMALIZATION":
            continue
        edge = call.edges["input_tensor"]
        head = edge.source
        if isinstance(head, Call) and len(uses.get(edge.value, ())) == 1 and edge.value not in kept and _fits(head, call, edge):
            _fold(program, head, call)


def _fits(head: Call, call: Call, edge: Edge) -> bool:
    first: Any = head.desc
    norm: Any = call.desc
    if first.NAME != "CONVOLUTION" or first.fused_activation is not None or edge.offset:
        return False
    if not first.output_tensor.is_like(norm.input_tensor) or not norm.output_tensor.is_like(first.output_tensor):
        return False
    if first.output_tensor.data_type is not TensorDataType.FLOAT32:
        return False
    if first.direction is ConvolutionDirection.BACKWARD and first.group_count != 1:
        return False
    constants = [head.edges["filter_tensor"], *(call.edges[name] for name in PARAMETERS)]
    constants += [head.edges["bias_tensor"]] if first.bias_tensor is not None else []
    by_channel = all(_is_by_channel(getattr(norm, name)) for name in PARAMETERS)
    return by_channel and all(isinstance(one.source, Constant) for one in constants)


def _is_by_channel(tensor: TensorDesc) -> bool:
    return all(n == 1 or step == 0 or axis == 1 for axis, (n, step) in enumerate(zip(tensor.sizes, tensor.layout, strict=True)))


def _fold(program: Program, head: Call, call: Call) -> None:
    first: Any = head.desc
    norm: Any = call.desc
    channels = first.output_tensor.sizes[1]
    mean, variance, scale, bias = (_by_channel(_values(call, name), channels) for name in PARAMETERS)
    factor = scale / np.sqrt(variance + norm.epsilon)
    filters = _values(head, "filter_tensor").astype(np.float64)
    axis = 0 if first.direction is ConvolutionDirection.FORWARD else 1
    shape = [channels if i == axis else 1 for i in range(filters.ndim)]
    before = _by_channel(_values(head, "bias_tensor"), channels) if first.bias_tensor is not None else 0.0
    new_filter = (filters * factor.reshape(shape)).astype(np.float32)
    new_bias = ((before - mean) * factor + bias).astype(np.float32).reshape(1, channels, *(1 for _ in shape[2:]))
    desc = dataclasses.replace(
        first,
        filter_tensor=dataclasses.replace(
            first.filter_tensor, sizes=new_filter.shape, strides=None, total_tensor_size_in_bytes=None
        ),
        bias_tensor=TensorDesc("float32", new_bias.shape),
        fused_activation=norm.fused_activation,
    )
    edges = {
        **head.edges,
        "filter_tensor": Edge(Constant(new_filter, "", head.where)),
        "bias_tensor": Edge(Constant(new_bias, "", call.where)),
    }
    program.fuse([head, call], desc, edges, {(call, 0): 0})


def _values(call: Call, name: str) -> NumpyArray:
    edge = call.edges[name]
    assert isinstance(edge.source, Constant)
    return reading(edge.source.array, edge.offset, dict(call.desc.tensors())[name])  # type: ignore[arg-type]


def _by_channel(array: NumpyArray, channels: int) -> NumpyArray:
    """One value for each channel, in double precision."""
    index = tuple(slice(None) if axis == 1 else 0 for axis in range(array.ndim))
    return np.broadcast_to(array[index].astype(np.float64), (channels,))
