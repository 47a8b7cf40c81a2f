"""Give the inputs of joins the strides that they have as parts of the result: they are written there, and the join has no work.

Inputs that are parts of one value, and lie in it as in the result, are one input.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence
from typing import Any

from tvmdml.errors import TvmdmlError
from tvmdml.graph.joined import JoinedPart, parts
from tvmdml.graph.nodes import Call, Edge
from tvmdml.graph.passes.asking import kernel_in_this_case
from tvmdml.graph.passes.layouts import changed_to
from tvmdml.graph.program import NodeOutput, Program, Use
from tvmdml.operators._contract import Operator, Role
from tvmdml.targets import Target
from tvmdml.tensors import TensorDesc

Changes = dict[Call, dict[str, TensorDesc]]
"""Other tensors of calls, by their names."""
Offsets = dict[tuple[Call, str], int]
"""Where in a value a call reads: from another byte on."""


def run(program: Program, target: Target) -> None:
    """Change each join whose inputs the same kernels write and read with these strides; the last one first, as parts have parts."""
    joins = [call for call in program.calls if call.desc.NAME == "JOIN"]
    if not joins:
        return
    for call in joins:
        _unite(call)
    uses, taken = program.uses(), program.kept()
    for call in reversed(joins):
        own, changes, offsets = parts(call, target.kind, taken), Changes(), Offsets()
        if not own or not all(part.lies_so or _follow(part, uses, changes, offsets) for part in own):
            continue
        found = {one: changed_to(one.desc, tensors) for one, tensors in changes.items()}
        if all(one is call or _kernel(one.desc, target) == _kernel(desc, target) for one, desc in found.items()):
            for one, desc in found.items():
                one.desc = desc
            for (one, name), offset in offsets.items():
                one.edges[name] = one.edges[name]._replace(offset=offset)
            taken |= {part.edge.value for part in own}


def _unite(call: Call) -> None:
    """Let inputs of a join that follow each other in one value, as they do in the result, be one input."""
    desc: Any = call.desc
    found: list[tuple[TensorDesc, Edge]] = []
    for _, tensor, edge in call.inputs():
        if found and (whole := _together(*found[-1], tensor, edge, desc.axis)) is not None:
            found[-1] = whole, found[-1][1]
        else:
            found.append((tensor, edge))
    if len(found) < len(desc.input_tensors):
        call.desc = dataclasses.replace(desc, input_tensors=tuple(tensor for tensor, _ in found))
        call.edges = {f"input_tensors[{i}]": edge for i, (_, edge) in enumerate(found)}


def _together(first: TensorDesc, before: Edge, second: TensorDesc, behind: Edge, axis: int) -> TensorDesc | None:
    """Two parts of a value as one, if the second one begins where the first one ends."""
    sizes = [*first.sizes]
    sizes[axis] += second.sizes[axis]
    step = first.sizes[axis] * first.layout[axis] * first.data_type.itemsize
    if before.value != behind.value or behind.offset - before.offset != step or first.data_type.is_nibble:
        return None
    if first.layout[axis] != second.layout[axis] or any(
        a != b for n, a, b in zip(first.sizes, first.layout, second.layout, strict=True) if n > 1
    ):
        return None
    return dataclasses.replace(first, sizes=tuple(sizes), strides=first.layout, total_tensor_size_in_bytes=None)


def _follow(part: JoinedPart, uses: Mapping[NodeOutput, Sequence[Use]], changes: Changes, offsets: Offsets) -> bool:
    """Let the writer and all readers of an input have the strides, if all have the same ones now; some read parts of it."""
    source, output = part.edge.source, part.edge.output
    assert isinstance(source, Call)
    written, place = source.outputs()[output], part.place
    if written is None or (written.sizes, written.layout) != (part.tensor.sizes, part.tensor.layout):
        return False
    changes.setdefault(source, {})[source.output_names()[output]] = place
    for call, name in uses[part.edge.value]:
        read = dict(call.desc.tensors(Role.INPUT))[name]
        begin = None if read is None else _begin(written, read, call.edges[name].offset)
        if read is None or begin is None:
            return False
        tensor = dataclasses.replace(place, sizes=read.sizes, strides=place.layout, total_tensor_size_in_bytes=None)
        changes.setdefault(call, {})[name] = tensor
        offsets[call, name] = sum(n * step for n, step in zip(begin, place.layout, strict=True)) * place.data_type.itemsize
    return True


def _begin(whole: TensorDesc, part: TensorDesc, offset: int) -> list[int] | None:
    """The first element of a part of a tensor; ``None`` if it is no such part."""
    if part.data_type is not whole.data_type or part.rank != whole.rank:
        return None
    if any(n > 1 and a != b for n, a, b in zip(part.sizes, part.layout, whole.layout, strict=True)):
        return None
    left, rest = divmod(offset, whole.data_type.itemsize)
    found = [0] * whole.rank
    for i in sorted(range(whole.rank), key=lambda i: -whole.layout[i]):
        if whole.sizes[i] > 1 and whole.layout[i]:
            found[i], left = divmod(left, whole.layout[i])
    inside = all(begin + n <= most for begin, n, most in zip(found, part.sizes, whole.sizes, strict=True))
    return found if inside and not left and not rest else None


def _kernel(desc: Operator, target: Target) -> str:
    try:
        return kernel_in_this_case(desc, target).name
    except TvmdmlError as error:
        return str(error)
