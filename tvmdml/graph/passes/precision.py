"""Round the factors of products and convolutions of float32 to bfloat16, where the graph's precision is "bf16".

Both must be worth it: a weight that never changes is rounded and packed once, in half the bytes, and sums are so long that the
factors' errors meet in them. What is left is float32; so are all results.
"""

from __future__ import annotations

import contextlib
import dataclasses
import math
from typing import Any

import numpy as np

from tvmdml.errors import TvmdmlError
from tvmdml.graph.nodes import Call, Constant, Edge, never_changes
from tvmdml.graph.packers import reading
from tvmdml.graph.passes.asking import kernel_in_this_case
from tvmdml.graph.passes.owned import marked
from tvmdml.graph.program import Program
from tvmdml.operators._following import followed
from tvmdml.operators._matrix_bfloat16_fused import Bfloat16Convolution, Bfloat16Gemm
from tvmdml.operators.convolution import Convolution
from tvmdml.operators.element_wise_unary import ElementWiseIdentity
from tvmdml.operators.gemm import Gemm
from tvmdml.targets import Target
from tvmdml.tensors import TensorDataType, TensorDesc
from tvmdml.tensors.sizes import is_open

_PLAIN: dict[Any, tuple[Any, str]] = {Gemm: (Bfloat16Gemm, "b_tensor"), Convolution: (Bfloat16Convolution, "filter_tensor")}
FORMS: dict[Any, tuple[Any, str]] = {
    **_PLAIN,
    **{followed(head): (followed(form), weight) for head, (form, weight) in _PLAIN.items()},
}
"""The form that rounds, and the input that must never change, of each operator."""
LEAST_PRODUCTS = {False: 32, True: 512}
"""The least products of a sum, by whether the program has depthwise convolutions: those of one step of a matrix tile; more where
narrow images pass through many functions, each of which makes the error of a short sum larger."""


def run(program: Program, target: Target) -> None:
    """Take the form that rounds wherever the target has a kernel for it."""
    if program.precision != "bf16" or target.kind != "cpu":
        return
    convolutions: list[Any] = [call.desc for call in program.calls if isinstance(call.desc, Convolution)]
    least = LEAST_PRODUCTS[any(one.group_count > 1 and one.filters()[1] == 1 for one in convolutions)]
    calls = []
    for call in program.calls:
        copies: list[Call] = []
        if type(call.desc) in FORMS:
            with contextlib.suppress(TvmdmlError):  # what is wrong is found when the kernel is chosen
                copies = _round(call, target, least)
        calls += [*copies, call]
    program.calls = calls


def _round(call: Call, target: Target, least: int) -> list[Call]:
    """Take the form that rounds, if there is a kernel; what it reads may have to be copied first."""
    desc: Any = call.desc
    form, weight = FORMS[type(desc)]
    tensor = getattr(desc, weight)
    if tensor.data_type is not TensorDataType.FLOAT32 or not never_changes(call.edges[weight].source):
        return []
    products = desc.contraction().depth
    if is_open(products) or products < least or desc.of_rows() is not None:
        return []
    edges, copies = call.edges, list[Call]()
    if weight == "filter_tensor":
        desc, edges, copies = _with_image(call)
        desc, edges = _with_filters(call, desc, edges)
    rounded = form(**{field.name: getattr(desc, field.name) for field in type(desc).fields()})
    if any(owned.name == weight for owned in kernel_in_this_case(marked(rounded, [weight]), target).owned):
        call.desc, call.edges = rounded, edges
        return copies
    return []


def _with_image(call: Call) -> tuple[Any, dict[str, Edge], list[Call]]:
    """The convolution of an image whose channels are last: a copy, unless it lies so, or is a factor as it lies."""
    desc: Any = call.desc
    image, filters = desc.input_tensor, desc.filter_tensor
    as_it_lies = math.prod((*filters.sizes[2:], *desc.strides)) == 1 and desc.output_tensor.layout[1] != 1
    if image.layout[1] == 1 or as_it_lies or desc.group_count != 1:
        return desc, call.edges, []
    _, channels, *space = image.sizes
    steps = [channels * math.prod(space[i + 1 :]) for i in range(len(space))]
    last = TensorDesc(image.data_type, image.sizes, (channels * math.prod(space), 1, *steps))
    copy = ElementWiseIdentity(input_tensor=image, output_tensor=last, scale_bias=None)
    made = Call(copy, {"input_tensor": call.edges["input_tensor"]}, call.name, call.where)
    return dataclasses.replace(desc, input_tensor=last), {**call.edges, "input_tensor": Edge(made)}, [made]


def _with_filters(call: Call, desc: Any, edges: dict[str, Edge]) -> tuple[Any, dict[str, Edge]]:
    """The convolution with filters whose channels are last, where those of the image are, and filters have several taps."""
    source, tensor = call.edges["filter_tensor"].source, desc.filter_tensor
    if not isinstance(source, Constant) or desc.input_tensor.layout[1] != 1 or math.prod(tensor.sizes[2:]) == 1:
        return desc, edges
    array = reading(source.array, call.edges["filter_tensor"].offset, tensor)
    moved = np.ascontiguousarray(np.moveaxis(array, 1, -1))
    steps = [step // moved.itemsize for step in moved.strides]
    own = TensorDesc(tensor.data_type, tensor.sizes, (steps[0], steps[-1], *steps[1:-1]))
    edge = Edge(Constant(moved, source.name, source.where))
    return dataclasses.replace(desc, filter_tensor=own), {**edges, "filter_tensor": edge}
