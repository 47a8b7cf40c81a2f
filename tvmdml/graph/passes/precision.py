"""Round the factors of products and convolutions of float32 to bfloat16, where the graph's precision is "bf16".

Both must be worth it: a weight that never changes is rounded and packed once, in half the bytes, and sums are so long that the
factors' errors meet in them. What is left is float32; so are all results.
"""

from __future__ import annotations

import dataclasses
import math
from typing import Any

import numpy as np

from tvmdml.enums import PaddingMode
from tvmdml.errors import TvmdmlError
from tvmdml.graph.nodes import Call, Constant, Edge, never_changes
from tvmdml.graph.packers import reading
from tvmdml.graph.passes.asking import kernel_in_this_case
from tvmdml.graph.passes.layouts import changed_to
from tvmdml.graph.passes.owned import marked
from tvmdml.graph.program import Program
from tvmdml.kernels.contraction import CHAIN
from tvmdml.operators._contract import Role
from tvmdml.operators._following import followed
from tvmdml.operators._matrix_bfloat16_fused import Bfloat16Convolution, Bfloat16Gemm, padded
from tvmdml.operators.convolution import Convolution
from tvmdml.operators.element_wise_unary import ElementWiseIdentity
from tvmdml.operators.gemm import Gemm
from tvmdml.operators.padding import Padding
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


class _StaysExact(Exception):
    """Why a call is not rounded."""


def run(program: Program, target: Target) -> None:
    """Take the form that rounds wherever the target has a kernel for it."""
    if program.precision != "bf16" or target.kind != "cpu":
        return
    convolutions: list[Any] = [call.desc for call in program.calls if isinstance(call.desc, Convolution)]
    least = LEAST_PRODUCTS[any(one.group_count > 1 and one.filters()[1] == 1 for one in convolutions)]
    calls = []
    for call in program.calls:
        before, after = list[Call](), list[Call]()
        if type(call.desc) in FORMS:
            try:
                before, after = _round(call, target, least)
            except _StaysExact as why:
                program.notes[call.origins[0]] = f"float32: {why}"
            except TvmdmlError:  # what is wrong is found when the kernel is chosen
                pass
        for copy in after:
            program.replace({(call, 0): Edge(copy)})
        calls += [*before, call, *after]
    program.calls = calls


def _round(call: Call, target: Target, least: int) -> tuple[list[Call], list[Call]]:
    """Take the form that rounds: the copies that come before it, and after.

    Raises:
        _StaysExact: it is not rounded.
    """
    desc: Any = call.desc
    form, weight = FORMS[type(desc)]
    tensor = getattr(desc, weight)
    if tensor.data_type is not TensorDataType.FLOAT32:
        raise _StaysExact(f"it has {tensor.data_type.tvm}")
    if not never_changes(call.edges[weight].source):
        raise _StaysExact("no factor is a weight")
    products = desc.contraction().depth
    if is_open(products) or products < least or desc.of_rows() is not None:
        raise _StaysExact(f"a sum has fewer than {least} products, or a number that is not known")
    edges, before, after = call.edges, list[Call](), list[Call]()
    if weight == "filter_tensor" and desc.group_count == 1 and not _is_factor(desc):
        desc, edges, before = _with_taps(call) or _with_image(call)
        desc, edges = _with_filters(desc, edges)
        desc, more, after = _with_result(call, desc, edges)
        before += more
    rounded = form(**{field.name: getattr(desc, field.name) for field in type(desc).fields()})
    if any(owned.name == weight for owned in kernel_in_this_case(marked(rounded, [weight]), target).owned):
        call.desc, call.edges = rounded, edges
        return before, after
    raise _StaysExact("no kernel rounds it")


def _is_factor(desc: Any) -> bool:
    """Whether the image is a factor as it lies: with one tap, and places that follow each other as those of the result do."""
    one_tap = math.prod((*desc.filter_tensor.sizes[2:], *desc.strides)) == 1
    return one_tap and (desc.input_tensor.layout[1] == 1) == (desc.output_tensor.layout[1] == 1)


def _with_image(call: Call) -> tuple[Any, dict[str, Edge], list[Call]]:
    """The convolution of an image whose channels are last: a copy, unless it lies so."""
    edges = dict(call.edges)
    if call.desc.input_tensor.layout[1] == 1:  # type: ignore[attr-defined] # a convolution
        return call.desc, edges, []
    desc, copy = _copied(call, call.desc, edges, "input_tensor")
    return desc, edges, [copy]


def _copied(call: Call, desc: Any, edges: dict[str, Edge], name: str) -> tuple[Any, Call]:
    """The convolution with a copy of an input whose channels are last, and the copy."""
    tensor = dict(desc.tensors())[name]
    last = _last(tensor)
    copy = ElementWiseIdentity(input_tensor=tensor, output_tensor=last, scale_bias=None)
    made = Call(copy, {"input_tensor": edges[name]}, call.name, call.where)
    edges[name] = Edge(made)
    return changed_to(desc, {name: last}), made


def _last(tensor: TensorDesc) -> TensorDesc:
    """The same with channels last."""
    _, channels, *space = tensor.sizes
    steps = [channels * math.prod(space[i + 1 :]) for i in range(len(space))]
    return TensorDesc(tensor.data_type, tensor.sizes, (channels * math.prod(space), 1, *steps))


def _with_result(call: Call, desc: Any, edges: dict[str, Edge]) -> tuple[Any, list[Call], list[Call]]:
    """The convolution whose result has its channels last, and what is added to it: copies that come before it, and after."""
    result = desc.output_tensor
    if result.layout[1] == 1:
        return desc, [], []
    before = []
    for name, tensor in list(desc.tensors(Role.INPUT)):
        if name.startswith("epilogue") and tensor.layout[1] != 1 and any(tensor.layout[2:]):
            desc, copy = _copied(call, desc, edges, name)
            before.append(copy)
    last = _last(result)
    own = ElementWiseIdentity(input_tensor=last, output_tensor=result, scale_bias=None)
    after = Call(own, {"input_tensor": Edge(call)}, call.name, call.where)
    return changed_to(desc, {"output_tensor": last}), before, [after]


def _with_taps(call: Call) -> tuple[Any, dict[str, Edge], list[Call]] | None:
    """The convolution of few channels as that of all channels that the taps of a row meet, which lie side by side in a copy.

    The copy has zeros before and behind each row. ``None`` where that is no gain.
    """
    desc: Any = call.desc
    image, source, across = desc.input_tensor, call.edges["filter_tensor"].source, desc.filter_tensor.sizes[-1]
    channels, rank = image.sizes[1], image.rank
    known = not any(map(is_open, (*image.sizes[1:], *desc.output_tensor.sizes[2:])))
    if not isinstance(source, Constant) or not known or channels >= 2 * CHAIN or across == 1 or rank not in (3, 4):
        return None
    if desc.dilations[-1] != 1 or desc.backward or desc.turned:
        return None
    batch, _, *above, width = image.sizes
    around = (desc.start_padding[-1], desc.end_padding[-1])
    row = (width + sum(around)) * channels
    steps = (math.prod(above) * row, 1, *((row,) if above else ()))
    frame = TensorDesc(image.data_type, (batch, channels, *above, width + sum(around)), (*steps, channels))
    own = {f"{name}_padding": (*[0] * (rank - 1), n) for name, n in zip(("start", "end"), around, strict=True)}
    copy = Call(
        Padding.of(image, output_tensor=frame, padding_mode=PaddingMode.CONSTANT, padding_value=0, **own), {}, call.name, call.where
    )
    copy.edges["input_tensor"] = call.edges["input_tensor"]
    view = TensorDesc(
        image.data_type,
        (batch, across * channels, *above, desc.output_tensor.sizes[-1]),
        (*steps, desc.strides[-1] * channels),
    )
    filters = reading(source.array, call.edges["filter_tensor"].offset, desc.filter_tensor)
    rows = np.moveaxis(filters, 1, -1).reshape(len(filters), *filters.shape[2:-1], -1)
    rows = np.ascontiguousarray(np.moveaxis(rows, -1, 1))[..., None]
    changed = dataclasses.replace(
        desc,
        input_tensor=view,
        filter_tensor=TensorDesc(image.data_type, rows.shape),
        **{name: (*getattr(desc, name)[:-1], usual) for name, usual in (("strides", 1), ("start_padding", 0), ("end_padding", 0))},
    )
    edges = {"input_tensor": Edge(copy), "filter_tensor": Edge(Constant(rows, source.name, source.where))}
    return changed, {**call.edges, **edges}, [copy]


def _with_filters(desc: Any, edges: dict[str, Edge]) -> tuple[Any, dict[str, Edge]]:
    """The convolution with filters whose channels are last, where those of the image are; zeros fill up the units of each tap."""
    source, tensor = edges["filter_tensor"].source, desc.filter_tensor
    channels, taps = tensor.sizes[1], tensor.sizes[2:]
    if not isinstance(source, Constant) or desc.input_tensor.layout[1] != 1 or math.prod((*taps, *desc.strides)) == 1:
        return desc, edges
    array = reading(source.array, edges["filter_tensor"].offset, tensor)
    moved = np.zeros((tensor.sizes[0], *taps, padded(channels)), array.dtype)
    moved[..., :channels] = np.moveaxis(array, 1, -1)
    steps = [step // moved.itemsize for step in moved.strides]
    own = TensorDesc(tensor.data_type, tensor.sizes, (steps[0], steps[-1], *steps[1:-1]), moved.nbytes)
    edge = Edge(Constant(moved, source.name, source.where))
    return dataclasses.replace(desc, filter_tensor=own), {**edges, "filter_tensor": edge}
