"""Let products read what is repeated where it is: heads of keys that heads of queries share are not copied for each of them.

A repeated dimension and the one before it are one dimension of the copy. Without the copy they are two dimensions of the batch, and
the kernel takes the rows that share a matrix together.
"""

from __future__ import annotations

import dataclasses
import math
from typing import Any

from tvmdml.graph.nodes import Call, Edge
from tvmdml.graph.passes.epilogues import split
from tvmdml.graph.passes.identities import copied
from tvmdml.graph.program import Program
from tvmdml.operators._contract import Operator
from tvmdml.targets import Target
from tvmdml.tensors import MAX_RANK, TensorDesc

FACTORS = ("a_tensor", "b_tensor")


def run(program: Program, target: Target) -> None:
    """Change each product of a copy that repeats; ``unused`` drops copies that nobody reads any more."""
    for call in program.calls:
        if call.desc.NAME != "GEMM" or getattr(call.desc, "fused_activation", None) is not None:
            continue
        for name in FACTORS:
            edge = call.edges[name]
            if edge.offset or not isinstance(edge.source, Call) or (tensors := copied(edge.source)) is None:
                continue
            if (desc := _without(call.desc, name, *tensors)) is not None:
                source: Edge = edge.source.edges["input_tensor"]
                call.desc, call.edges[name] = desc, source


def _without(desc: Operator, name: str, x: TensorDesc, copy: TensorDesc) -> Operator | None:
    """The product with ``x`` in place of a copy of it."""
    if not any(n > 1 and not step for n, step in zip(x.sizes, x.layout, strict=True)) or not copy.is_packed:
        return None
    factor: TensorDesc = getattr(desc, name)
    every = [_within(n, step, x, copy) for n, step in zip(factor.sizes, factor.layout, strict=True)]
    if any(one is None for one in every):
        return None
    dimensions: list[list[tuple[int, int]]] = every  # type: ignore[assignment] # none is None
    matrix = zip(dimensions[-2:], factor.layout[-2:], strict=True)
    if any(len(own) > 1 or (own[0][1] == 1) != (step == 1) for own, step in matrix if own[0][0] > 1):  # contiguous lines stay so
        return None
    parts = [[n for n, _ in own] for own in dimensions[:-2]]
    if sum(map(len, parts)) + 2 > MAX_RANK:
        return None
    sizes, steps = zip(*(part for own in dimensions for part in own), strict=True)
    finer: Any = desc.with_tensors(lambda tensor: split(tensor, [*parts, *([n] for n in tensor.sizes[-2:])]))
    return dataclasses.replace(finer, **{name: TensorDesc(factor.data_type, sizes, steps, flags=factor.flags)})


def _within(size: int, step: int, x: TensorDesc, copy: TensorDesc) -> list[tuple[int, int]] | None:
    """A dimension of the copy as it is read, by the dimensions of what is copied: their sizes and strides."""
    if size == 1 or not step:
        return [(size, 0)]
    found: list[tuple[int, int]] = []
    for n, own, packed in reversed(list(zip(x.sizes, x.layout, copy.layout, strict=True))):
        if n == 1 or (not found and packed != step):
            continue
        if math.prod(size for size, _ in found) == size:
            break
        if found and own == found[0][0] * found[0][1]:
            found[0] = n * found[0][0], found[0][1]
        else:
            found.insert(0, (n, own))
    return found if math.prod(n for n, _ in found) == size else None
