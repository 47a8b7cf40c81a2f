"""Pass results of products, convolutions, reductions, movement and attention through the pointwise operators that read them.

That is done before they are stored, so they are never in memory.

A result is rounded to its own type first, so bits do not change; but a reduction's sums may have another order where what follows
lies otherwise, such as a number for each channel. What has other readers, or lies otherwise than a kernel reads it quickly, is left
alone.
"""

from __future__ import annotations

import dataclasses
import itertools
import math
from collections.abc import Sequence
from typing import Any

from tvmdml.errors import InvalidArgument, Unsupported
from tvmdml.graph.conditional import choices
from tvmdml.graph.expression import reshaped_strides
from tvmdml.graph.nodes import Call
from tvmdml.graph.passes.asking import offered
from tvmdml.graph.program import Fusion, Program
from tvmdml.kernels.kernel import Offers
from tvmdml.operators._contract import Operator
from tvmdml.operators._following import follow_by, followed
from tvmdml.operators._pointwise_fused import FusedPointwise, fuse, fusible
from tvmdml.operators._pointwise_fused import Result as Made
from tvmdml.targets import Target
from tvmdml.tensors import MAX_RANK, TensorDesc
from tvmdml.tensors.sizes import is_open


def run(program: Program, target: Target) -> None:
    """Fuse wherever a pointwise operator, or a group of them, is the only reader."""
    uses, kept = program.uses(), program.kept()
    choosing, _ = choices(program, target)
    fusions: list[Fusion] = []
    known: dict[tuple[str, str, str], tuple[Operator, list[str]] | None] = {}  # networks repeat the same pairs
    for call in [
        one for one in program.calls if one not in choosing and (isinstance(one.desc, FusedPointwise) or fusible(one.desc))
    ]:
        for name, edge in call.edges.items():
            head = edge.source
            if not isinstance(head, Call) or edge.offset or edge.value in kept:
                continue
            if followed(type(head.desc)) is None or any(use.call is not call or use.name != name for use in uses[edge.value]):
                continue
            pair = head.desc.exactly(), call.desc.exactly(), name
            if pair not in known:
                known[pair] = _followed(head, call, name, target)
            if (found := known[pair]) is not None:
                desc, others = found
                edges = {**head.edges, **{f"epilogue_tensors[{i}]": call.edges[other] for i, other in enumerate(others)}}
                fusions.append(Fusion([head, call], desc, edges, {(call, 0): 0}))
                break
    program.fuse_all(fusions)


def _followed(head: Call, call: Call, name: str, target: Target) -> tuple[Operator, list[str]] | None:
    """Both as one, and the names of the inputs of the second that it reads beside the result of the first."""
    names = [one for one, _, _ in call.inputs()]
    others = [one for one in names if one != name]
    chain = _group(call.desc, names.index(name))
    first: Operator = head.desc
    if chain is not None and (other := _regrouped(chain, head.outputs()[0])) is None:
        finer = _refined(first, chain)
        first, chain = finer if finer is not None else (first, None)
    elif chain is not None:
        chain = other
    if chain is None or len(head.edges) + len(others) + 1 > target.most_arrays:
        return None
    try:
        desc = follow_by(first, chain)
        offers = offered(desc, target)
        # Without vectors, functions of vectors would become functions of single elements.
        single = Offers.VECTORS not in offers
        if Offers.OWN not in offers or (single and (chain.steps() or Offers.VECTORS in offered(first, target))):
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
    return _restated(chain, found, result.sizes, like.sizes)


def _restated(
    chain: FusedPointwise, tensors: Sequence[TensorDesc], old: tuple[int, ...], new: tuple[int, ...]
) -> FusedPointwise | None:
    """The group with other tensors, of ``new`` sizes; those of its operators have them too, or a single element."""

    def sized(tensor: TensorDesc) -> TensorDesc:
        return tensor.with_sizes(new if tensor.sizes == old else (1,) * len(new))

    own = [tensor for part in chain.operators for _, tensor in part.tensors() if tensor is not None]
    if any(tensor.sizes != old and tensor.element_count != 1 for tensor in own):
        return None
    parts = tuple(part.with_tensors(sized) for part in chain.operators)
    return dataclasses.replace(chain, operators=parts, input_tensors=tuple(tensors[:-1]), output_tensors=tuple(tensors[-1:]))


def _refined(head: Operator, chain: FusedPointwise) -> tuple[Operator, FusedPointwise] | None:
    """Both with parts of the dimensions of each: a group of channels that is normalized is several channels for its reader."""
    source: Any = getattr(head, "input_tensor", None)
    axes: Any = getattr(head, "axes", None)
    result, made = chain.output_tensors[0].sizes, head.outputs()[0].sizes
    if source is None or not axes or source.sizes != made or any(one.sizes != result for one in chain.input_tensors):
        return None
    if (parts := _parts(made, result)) is None:
        return None
    mine, others = parts
    new = tuple(itertools.chain.from_iterable(mine))
    if not 1 <= len(new) <= MAX_RANK:
        return None
    first = list(itertools.accumulate(map(len, mine), initial=0))
    along = tuple(at for axis in axes for at in range(first[axis], first[axis + 1]))
    finer: Any = head.with_tensors(lambda tensor: split(tensor, mine))
    finer = dataclasses.replace(finer, axes=along)
    tensors = [split(tensor, others) for tensor in (*chain.input_tensors, *chain.output_tensors)]
    group = _restated(chain, tensors, result, new)
    return None if group is None else (finer, group)


def _parts(a: tuple[int, ...], b: tuple[int, ...]) -> tuple[list[list[int]], list[list[int]]] | None:
    """For each dimension of two tensors with the same elements, the sizes of its parts, which are the same in both."""
    found: tuple[list[list[int]], list[list[int]]] = ([[] for _ in a], [[] for _ in b])
    i, j, left, right = len(a), len(b), 1, 1
    while True:
        while left == 1 and i:
            i, left = i - 1, a[i - 1]
        while right == 1 and j:
            j, right = j - 1, b[j - 1]
        if left == 1 and right == 1:
            return found
        part = right if _divides(right, left) else left
        if part == 1 or not _divides(part, right):
            return None
        found[0][i].insert(0, part)
        found[1][j].insert(0, part)
        left, right = left // part, right // part


def _divides(size: int, other: int) -> bool:
    """Whether a size divides another one, for all values of those that are open."""
    rest = other % size
    return not is_open(rest) and rest == 0


def split(tensor: TensorDesc, parts: Sequence[Sequence[int]]) -> TensorDesc:
    """A tensor with its dimensions in parts; one of size 1 has parts of size 1."""
    sizes: list[int] = []
    strides: list[int] = []
    for size, step, some in zip(tensor.sizes, tensor.layout, parts, strict=True):
        for i, part in enumerate(some):
            sizes.append(part if size != 1 else 1)
            strides.append(step * math.prod(some[i + 1 :]))
    return TensorDesc(tensor.data_type, sizes, strides, flags=tensor.flags)


def _group(desc: Operator, first: int) -> FusedPointwise | None:
    """The operators as a group whose first input is the one at a place."""
    if isinstance(desc, FusedPointwise):
        return desc.with_first(first) if len(desc.output_tensors) == 1 else None
    count = len([one for one in desc.tensors() if one[1] is not None]) - len(desc.outputs())
    if not fusible(desc) or len(desc.outputs()) != 1:
        return None
    order = [first, *(i for i in range(count) if i != first)]
    return fuse([desc], [[order.index(i) for i in range(count)]], [Made(0)])
