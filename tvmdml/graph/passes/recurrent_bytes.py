"""Recurrent networks that multiply by weights of 8 bits as they are stored, and what they are where no kernel does that."""

from __future__ import annotations

import dataclasses
from typing import Any

from tvmdml.enums import NEWEST_FEATURE_LEVEL
from tvmdml.errors import TvmdmlError
from tvmdml.graph.nodes import Call, Edge
from tvmdml.graph.passes import unused
from tvmdml.graph.passes.asking import offered
from tvmdml.graph.program import Fusion, Program
from tvmdml.kernels.kernel import Offers
from tvmdml.operators._recurrent_fused import CLASSES, QuantizedRecurrent
from tvmdml.operators.quantization import ElementWiseDequantizeLinear
from tvmdml.targets import Target
from tvmdml.tensors import TensorDesc
from tvmdml.tensors.sizes import is_open

FUSED = {cls.HEAD: cls for cls in CLASSES}
WEIGHTS = ("weight", "recurrence")


def run(program: Program, target: Target) -> None:
    """Give floats to networks of bytes for which the target has no kernel."""
    fusions: list[Fusion] = []
    for call in list(program.calls):
        if not isinstance(call.desc, QuantizedRecurrent):
            continue
        try:
            takes_bytes = Offers.OWN in offered(call.desc, target)
        except TvmdmlError:
            takes_bytes = False
        if not takes_bytes:
            desc, edges = _with_floats(program, call)
            fusions.append(Fusion([call], desc, edges, {(call, i): i for i in range(len(call.desc.all_outputs()))}))
    program.fuse_all(fusions)
    if fusions:
        unused.run(program, target)


def read_bytes(call: Call, may_round: bool) -> None:
    """Make one of a network and the ELEMENT_WISE_DEQUANTIZE_LINEAR before both weights, if there they are.

    What such a network loses follows from the largest element of a vector: it is less exact than floats for elements that are far
    smaller, so that nobody gets one who did not ask for it.

    Args:
        call: the network.
        may_round: whether vectors may have as few bits as the weights.
    """
    if (made := _network(call, FUSED[type(call.desc)])) is not None:
        call.desc, call.edges = dataclasses.replace(made[0], may_round=may_round), made[1]


def _with_floats(program: Program, call: Call) -> tuple[Any, dict[str, Edge]]:
    """The network behind dequantizations, which are added, and what it reads."""
    desc: Any = call.desc
    fields = {field.name: getattr(desc, field.name) for field in desc.HEAD.fields()}
    edges = {name: edge for name, edge in call.edges.items() if name in fields}
    for name in WEIGHTS:
        q, tensors, read = getattr(desc, f"{name}_tensor"), [], {"input_tensor": call.edges[f"{name}_tensor"]}
        for one in ("scale_tensor", "zero_point_tensor"):
            if (own := getattr(desc, f"{name}_{one}")) is not None:
                tensors.append(TensorDesc(own.data_type, q.sizes, (*own.layout[1:], 0)))
                read[one] = call.edges[f"{name}_{one}"]
        floats = ElementWiseDequantizeLinear.of(q, *tensors)
        head = Call(floats, read, call.name, call.where, origins=call.origins)
        program.calls.insert(program.calls.index(call), head)
        fields[f"{name}_tensor"], edges[f"{name}_tensor"] = floats.output_tensor, Edge(head)
    return desc.HEAD(**fields), edges


def _network(call: Call, fused: Any) -> tuple[Any, dict[str, Edge]] | None:
    """The network with weights of bytes, and what it reads."""
    desc, edges = call.desc, dict(call.edges)
    fields: dict[str, Any] = {field.name: getattr(desc, field.name) for field in desc.fields()}
    for name in WEIGHTS:
        if (found := _dequantized(fields[f"{name}_tensor"], edges.pop(f"{name}_tensor"))) is None:
            return None
        (head, order), q = found, found[0].desc
        for own, given in (
            ("tensor", "input_tensor"),
            ("scale_tensor", "scale_tensor"),
            ("zero_point_tensor", "zero_point_tensor"),
        ):
            if (tensor := getattr(q, given)) is None:
                continue
            view = _viewed(tensor, order)
            if own != "tensor":
                if view.sizes[3] != 1 and view.layout[3]:
                    return None
                view = TensorDesc(view.data_type, (1, *view.sizes[:3]), (0, *view.layout[:3]))
            fields[f"{name}_{own}"] = view
            edges[f"{name}_{own}"] = head.edges[given]
    network = fused(**{**fused.DEFAULTS, **fields})
    network.validate(NEWEST_FEATURE_LEVEL, extensions=True)
    return network, edges


def _dequantized(view: TensorDesc, edge: Edge) -> tuple[Call, list[int | None]] | None:
    """The dequantization whose result weights are, perhaps copied, and which of its dimensions theirs are."""
    while isinstance(head := edge.source, Call) and not edge.offset:
        desc: Any = head.desc
        if desc.NAME not in ("ELEMENT_WISE_DEQUANTIZE_LINEAR", "ELEMENT_WISE_IDENTITY"):
            break
        if (order := _order(view, desc.output_tensor)) is None:
            break
        if desc.NAME == "ELEMENT_WISE_DEQUANTIZE_LINEAR":
            return head, order
        if desc.scale_bias is not None:
            break
        view, edge = _viewed(desc.input_tensor, order), head.edges["input_tensor"]
    return None


def _order(view: TensorDesc, whole: TensorDesc) -> list[int | None] | None:
    """Which dimension of a tensor each one of its view is; ``None`` for one of size 1. The view has all elements."""
    if any(map(is_open, (*view.sizes, *view.layout, *whole.sizes, *whole.layout))):
        return None
    every = {(size, step): i for i, (size, step) in enumerate(zip(whole.sizes, whole.layout, strict=True)) if size > 1}
    order = [every.pop((size, step), -1) if size > 1 else None for size, step in zip(view.sizes, view.layout, strict=True)]
    return None if -1 in order or every else order


def _viewed(tensor: TensorDesc, order: list[int | None]) -> TensorDesc:
    """A tensor with its dimensions in this order."""
    sizes, steps = ([other if i is None else every[i] for i in order] for every, other in ((tensor.sizes, 1), (tensor.layout, 0)))
    return TensorDesc(tensor.data_type, sizes, steps)
