"""What is left to do with an input that has no elements: a scatter of nothing copies, and a product of no depth adds zeros."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Mapping
from typing import Any

import numpy as np

from tvmdml.graph.nodes import Call, Constant, Edge
from tvmdml.graph.program import Program
from tvmdml.operators._contract import Role
from tvmdml.operators.element_wise_unary import ElementWiseIdentity
from tvmdml.targets import Target


def run(program: Program, target: Target) -> None:
    """Let such calls be others, which read elements only. A kernel reads no tensor without elements."""
    for call in program.calls:
        change = _CHANGES.get(call.desc.NAME)
        computes = any(tensor is not None and tensor.element_count for tensor in call.outputs())
        if change and computes and not all(tensor.element_count for _, tensor, _ in call.inputs()):
            change(call)


def _copy(call: Call) -> None:
    """No element is replaced."""
    tensors: dict[str, Any] = dict(call.desc.tensors(Role.INPUT, Role.OUTPUT))
    call.desc = ElementWiseIdentity(input_tensor=tensors["input_tensor"], output_tensor=tensors["output_tensor"])
    call.edges = {"input_tensor": call.edges["input_tensor"]}


def _of_depth_1(call: Call) -> None:
    """The factors of a product with no depth are zeros of depth 1: what is added to the product stays."""
    _zeros(call, {name: [n or 1 for n in tensor.sizes] for name, tensor, _ in call.inputs() if not tensor.element_count})


def _of_a_channel(call: Call) -> None:
    """The same of a convolution without input channels: each group of filters reads one."""
    desc: Any = call.desc
    x, filters, groups = desc.input_tensor, desc.filter_tensor, desc.group_count
    if not x.sizes[1] and 0 not in (x.sizes[0], *x.sizes[2:]):
        numbers = [n or one for n, one in zip(filters.sizes[:2], (groups, 1), strict=True)]
        _zeros(call, {"input_tensor": [x.sizes[0], groups, *x.sizes[2:]], "filter_tensor": [*numbers, *filters.sizes[2:]]})


def _zeros(call: Call, sizes: Mapping[str, list[int]]) -> None:
    """Let inputs be zeros of these sizes."""
    desc: Any = call.desc
    tensors = {name: getattr(desc, name).with_sizes(wanted) for name, wanted in sizes.items()}
    for name, tensor in tensors.items():
        call.edges[name] = Edge(Constant(np.zeros(tensor.sizes, tensor.data_type.numpy), name, call.where))
    call.desc = dataclasses.replace(desc, **tensors)


_CHANGES: Mapping[str, Callable[[Call], None]] = {
    **dict.fromkeys(("SCATTER", "SCATTER_ND", "FUSED_SCATTER", "FUSED_SCATTER_ND"), _copy),
    "GEMM": _of_depth_1,
    "CONVOLUTION": _of_a_channel,
}
"""What becomes of a call, by its operator."""
