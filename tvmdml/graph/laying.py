"""``laid_out``: a graph after all passes becomes what runs: its plan, its packed weights, and how callers give and get arrays."""

from __future__ import annotations

import functools
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from tvmdml.graph import packing
from tvmdml.graph.explaining import reports
from tvmdml.graph.kernels import Progress
from tvmdml.graph.laid import Given, Laid, Returned, Weights
from tvmdml.graph.nodes import Call, Constant, Input
from tvmdml.graph.packers import reading
from tvmdml.graph.packing import SharedWeights
from tvmdml.graph.plan import Launches, Plan, plan
from tvmdml.graph.program import Finished, NodeOutput, OutputForm, Program
from tvmdml.targets import SequenceStep, Target


def laid_out(
    finished: Finished,
    target: Target,
    *,
    calls: Sequence[Call] = (),
    progress: Progress | None = None,
    shared: SharedWeights | None = None,
    launches: Launches | None = None,
) -> Laid:
    """Plan a graph.

    Args:
        finished: what it computes.
        target: where it runs.
        calls: the calls to explain.
        progress: called while kernels compile.
        shared: packed weights of other graphs.
        launches: kernels that other graphs found.

    Raises:
        Unsupported, CompileError: a kernel cannot be made; the message names the call.
    """
    found = plan(finished.program, target, progress, launches)
    return laid_of(finished, found, lambda owned: packing.pack(found.packed, owned, target, shared), calls)


def laid_of(
    finished: Finished,
    found: Plan,
    weights: Callable[[Mapping[int, Any]], list[Weights]],
    calls: Sequence[Call] = (),
) -> Laid:
    """A graph that was planned.

    Args:
        finished: what it computes.
        found: its plan.
        weights: makes the packed weights.
        calls: the calls to explain.
    """
    name, inputs, program, forms = finished
    first = 1 + len(found.constants) + len(found.packed)
    slots = {id(node): first + i for i, node in enumerate(found.inputs)}
    explained = tuple(calls or program.calls)
    return Laid(
        name,
        tuple(given(node, i, slots.get(id(node), -1)) for i, node in enumerate(inputs)),
        _returned(forms, program, found),
        tuple(SequenceStep(step.launch, step.places, step.sizes, step.wanted) for step in found.steps),
        tuple(step.kernel.name for step in found.steps),
        found.slots,
        tuple(node.array for node in found.constants),
        tuple(one.packing.owned.nbytes for one in found.packed),
        found.memory.size,
        found.memory.bound,
        weights,
        functools.cache(lambda: reports(name, explained, program, found)),
        lambda: finished,
        found,
    )


def given(node: Input, number: int, slot: int) -> Given:
    """An input, as callers give it."""
    desc = node.desc
    shape = () if getattr(desc, "zero_dimensional", False) else desc.sizes
    strides = tuple(step * node.dtype.itemsize for step in desc.layout) if shape else ()
    return Given(node.name, node.name or f"input {number}", node.dtype, shape, strides, node.bytes_of(0), node.owned, slot, node)


def _returned(forms: Sequence[OutputForm], program: Program, found: Plan) -> tuple[Returned, ...]:
    first = 1 + len(found.constants) + len(found.packed) + len(found.inputs)
    slots = {value: first + i for i, value in enumerate(found.outputs)}
    seen: dict[NodeOutput, int] = {}
    outputs = []
    for i, ((dtype, shape), result) in enumerate(zip(forms, program.results, strict=True)):
        value = result.edge.value
        if isinstance(result.edge.source, Constant):
            array = reading(result.edge.source.array, result.edge.offset, result.desc)
            outputs.append(Returned(dtype, shape, -1, array.view(dtype).reshape(shape)))
        elif value in seen:
            outputs.append(Returned(dtype, shape, -1, seen[value]))
        else:
            seen[value] = i
            outputs.append(Returned(dtype, shape, slots[value], None))
    return tuple(outputs)
