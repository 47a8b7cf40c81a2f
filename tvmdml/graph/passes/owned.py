"""Let operators take weights as their kernels read them: packed once, when the graph is compiled or initialized."""

from __future__ import annotations

import contextlib
import dataclasses
from collections.abc import Collection

from tvmdml.enums import TensorFlags
from tvmdml.errors import TvmdmlError
from tvmdml.graph.nodes import Call, never_changes
from tvmdml.graph.passes.asking import kernel_in_this_case
from tvmdml.graph.program import Program
from tvmdml.operators._contract import Operator
from tvmdml.operators._pointwise import Pointwise
from tvmdml.targets import Target


def run(program: Program, target: Target) -> None:
    """Mark the inputs that a kernel takes packed as OWNED_BY_DML: constants, and owned inputs of the graph."""
    for call in program.calls:
        if isinstance(call.desc, Pointwise):
            continue
        fixed = [name for name, edge in call.edges.items() if "[" not in name and never_changes(edge.source)]
        if fixed:
            with contextlib.suppress(TvmdmlError):  # what is wrong is found when the kernel is chosen
                call.desc = _packed(call, fixed, target)


def _packed(call: Call, fixed: Collection[str], target: Target) -> Operator:
    """The descriptor with the flag at those inputs that its kernel packs, and at what is packed with them."""
    kernel = kernel_in_this_case(marked(call.desc, fixed), target)
    wanted = {name for owned in kernel.owned for name in (owned.name, *owned.inputs)}
    return marked(call.desc, wanted)


def marked(desc: Operator, names: Collection[str]) -> Operator:
    """The descriptor with the flag OWNED_BY_DML at these inputs."""
    changed = {name: dataclasses.replace(getattr(desc, name), flags=TensorFlags.OWNED_BY_DML) for name in names}
    return dataclasses.replace(desc, **changed) if changed else desc  # type: ignore[type-var] # a dataclass, as all are
