"""Give the inputs of joins the strides that they have as parts of the result: they are written there, and the join has no work."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from tvmdml.errors import TvmdmlError
from tvmdml.graph.joined import Part, parts
from tvmdml.graph.nodes import Call
from tvmdml.graph.passes.layouts import changed_to
from tvmdml.graph.program import Program, Use, Value
from tvmdml.operators._contract import Operator, Role
from tvmdml.scheduling import kernel_for
from tvmdml.targets import Target
from tvmdml.tensors import TensorDesc

Changes = dict[Call, dict[str, TensorDesc]]
"""Other tensors of calls, by their names."""


def run(program: Program, target: Target) -> None:
    """Change each join whose inputs the same kernels write and read with these strides; the last one first, as parts have parts."""
    joins = [call for call in program.calls if call.desc.NAME == "JOIN"]
    if not joins:
        return
    uses, taken = program.uses(), program.kept()
    for call in reversed(joins):
        own, changes = parts(call, target.kind, taken), Changes()
        if not own or not all(part.lies_so or _follow(part, uses, changes) for part in own):
            continue
        found = {one: changed_to(one.desc, tensors) for one, tensors in changes.items()}
        if all(one is call or _kernel(one.desc, target) == _kernel(desc, target) for one, desc in found.items()):
            for one, desc in found.items():
                one.desc = desc
            taken |= {part.edge.value for part in own}


def _follow(part: Part, uses: Mapping[Value, Sequence[Use]], changes: Changes) -> bool:
    """Let the writer and all readers of an input have the strides, if all have the same ones now."""
    source, output = part.edge.source, part.edge.output
    assert isinstance(source, Call)
    written = source.outputs()[output]
    places = [(source, source.output_names()[output], written)]
    for call, name in uses[part.edge.value]:
        read = dict(call.desc.tensors(Role.INPUT))[name]
        places.append((call, name, None if call.edges[name].offset else read))
    form = part.tensor.sizes, part.tensor.layout
    for call, name, tensor in places:
        if tensor is None or (tensor.sizes, tensor.layout) != form:
            return False
        changes.setdefault(call, {})[name] = part.place
    return True


def _kernel(desc: Operator, target: Target) -> str:
    try:
        return kernel_for(desc, target).name
    except TvmdmlError as error:
        return str(error)
