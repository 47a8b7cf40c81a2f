"""Pass results of products and convolutions through the pointwise operators that read them, before they are stored.

Bits do not change: a result is rounded to its own type first. What has other readers, or lies otherwise than a kernel reads it
quickly, is left alone.
"""

from __future__ import annotations

import dataclasses

from tvmdml.errors import InvalidArgument, Unsupported
from tvmdml.graph.expression import reshaped_strides
from tvmdml.graph.nodes import Call
from tvmdml.graph.program import Program
from tvmdml.operators._contract import Operator
from tvmdml.operators._matrix_fused import FOLLOWED, follow_by
from tvmdml.operators._pointwise_fused import FusedPointwise, fuse, fusible
from tvmdml.operators._pointwise_fused import Result as Made
from tvmdml.scheduling import kernel_for
from tvmdml.targets import Target
from tvmdml.tensors import TensorDesc

_SLOW = "default"
"""The kernel of what no schedule serves."""


def run(program: Program, target: Target) -> None:
    """Fuse wherever a pointwise operator, or a group of them, is the only reader."""
    uses, kept = program.uses(), program.kept()
    for call in list(program.calls):
        for name, edge in call.edges.items():
            head = edge.source
            if not isinstance(head, Call) or type(head.desc) not in FOLLOWED or edge.offset or edge.value in kept:
                continue
            if any(use.call is not call or use.name != name for use in uses[edge.value]):
                continue
            if (found := _followed(head, call, name, target)) is not None:
                desc, others = found
                edges = {**head.edges, **{f"epilogue_tensors[{i}]": call.edges[other] for i, other in enumerate(others)}}
                program.fuse([head, call], desc, edges, {(call, 0): 0})
                break


def _followed(head: Call, call: Call, name: str, target: Target) -> tuple[Operator, list[str]] | None:
    """Both as one, and the names of the inputs of the second that it reads beside the result of the first."""
    names = [one for one, _, _ in call.inputs()]
    others = [one for one in names if one != name]
    chain = _group(call.desc, names.index(name))
    if chain is not None:
        chain = _regrouped(chain, head.outputs()[0])
    if chain is None or len(head.edges) + len(others) + 1 > target.most_arrays:
        return None
    try:
        desc = follow_by(head.desc, chain)
        if kernel_for(desc, target).name == _SLOW:
            return None
    except (InvalidArgument, Unsupported):
        return None
    return desc, others


def _regrouped(chain: FusedPointwise, like: TensorDesc | None) -> FusedPointwise | None:
    """The group with other sizes for the same elements: a product's rows may be several dimensions for its reader."""
    result = chain.output_tensors[0]
    if like is None or like.sizes == result.sizes:
        return chain
    if like.element_count != result.element_count or any(one.sizes != result.sizes for one in chain.input_tensors):
        return None

    found = []
    for tensor in (*chain.input_tensors, result):
        strides = reshaped_strides(tensor.sizes, tensor.layout, like.sizes)
        if strides is None:
            return None
        found.append(TensorDesc(tensor.data_type, like.sizes, strides))
    return dataclasses.replace(chain, input_tensors=tuple(found[:-1]), output_tensors=tuple(found[-1:]))


def _group(desc: Operator, first: int) -> FusedPointwise | None:
    """The operators as a group whose first input is the one at a place."""
    if isinstance(desc, FusedPointwise):
        return desc.with_first(first) if len(desc.output_tensors) == 1 else None
    count = len([one for one in desc.tensors() if one[1] is not None]) - len(desc.outputs())
    if not fusible(desc) or len(desc.outputs()) != 1:
        return None
    order = [first, *(i for i in range(count) if i != first)]
    return fuse([desc], [[order.index(i) for i in range(count)]], [Made(0)])
