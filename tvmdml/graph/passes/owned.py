"""Let operators take weights as their kernels read them: packed once, when the graph is compiled or initialized."""

from __future__ import annotations

import contextlib
import dataclasses
from collections.abc import Collection

from tvmdml.enums import TensorFlags
from tvmdml.errors import TvmdmlError
from tvmdml.graph.nodes import Call, Edge, never_changes
from tvmdml.graph.passes.asking import kernel_in_this_case
from tvmdml.graph.program import Program
from tvmdml.operators._contract import Operator
from tvmdml.operators._pointwise import Pointwise
from tvmdml.targets import Target
from tvmdml.tensors import TensorDesc
from tvmdml.tensors.sizes import is_open


def run(program: Program, target: Target) -> None:
    """Mark the inputs that a kernel takes packed as OWNED_BY_DML: constants, and owned inputs of the graph."""
    for call in program.calls:
        if isinstance(call.desc, Pointwise):
            continue
        fixed = [
            name
            for name, tensor, edge in call.inputs()
            if "[" not in name and never_changes(edge.source) and _is_same(tensor, edge)
        ]
        if fixed:
            with contextlib.suppress(TvmdmlError):  # what is wrong is found when the kernel is chosen
                call.desc = _packed(call, fixed, target)


def _is_same(tensor: TensorDesc, edge: Edge) -> bool:
    """Whether the same elements are read in all cases: an open size may only say how often they are repeated."""
    read = zip(tensor.sizes, tensor.layout, strict=True)
    return not is_open(edge.offset) and not any(is_open(step) or (step and is_open(size)) for size, step in read)


def _packed(call: Call, fixed: Collection[str], target: Target) -> Operator:
    """The descriptor with the flag at those inputs that its kernel packs, and at what is packed with them."""
    kernel = kernel_in_this_case(marked(call.desc, fixed), target)
    wanted = {name for owned in kernel.owned for name in (owned.name, *owned.inputs)}
    return marked(call.desc, wanted)


def marked(desc: Operator, names: Collection[str]) -> Operator:
    """The descriptor with the flag OWNED_BY_DML at these inputs."""
    changed = {name: dataclasses.replace(getattr(desc, name), flags=TensorFlags.OWNED_BY_DML) for name in names}
    return dataclasses.replace(desc, **changed) if changed else desc  # type: ignore[type-var] # a dataclass, as all are
