"""Let images between convolutions have their channels last: other strides, so that filters are the vectors of every kernel.

On the CPU, products of the channels of a place are then products of matrices, and finished sums are stored as they are. Inputs and
results of the graph keep their strides: convolutions read inputs as they are, and what others need otherwise is copied.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Callable, Iterable, Mapping
from typing import Any

from tvmdml.errors import TvmdmlError
from tvmdml.graph.nodes import Call, Edge, never_changes
from tvmdml.graph.passes.owned import marked
from tvmdml.graph.program import Program, Value
from tvmdml.operators._contract import Operator, Role
from tvmdml.operators._pointwise import Pointwise
from tvmdml.operators._pointwise_fused import FusedPointwise, fusible
from tvmdml.operators.element_wise_unary import ElementWiseIdentity
from tvmdml.scheduling import kernel_for
from tvmdml.targets import Target
from tvmdml.tensors import TensorDataType, TensorDesc

KERNELS = ("last", "channels", "tiles")
"""The kernels of convolutions that gain."""
_CONVOLUTIONS = ("CONVOLUTION", "FUSED_CONVOLUTION")
_IMAGES = (
    *("AVERAGE_POOLING", "AVERAGE_POOLING1", "LP_POOLING", "LP_POOLING1", "MAX_POOLING", "MAX_POOLING1", "MAX_POOLING2"),
    *("RESAMPLE", "RESAMPLE1", "RESAMPLE2", "RESAMPLE3", "UPSAMPLE_2D", "FUSED_UPSAMPLE_2D"),
)
"""Operators of one image and one result, which may be as fast with channels last."""
_SLOW = "default"
"""The kernel of what no schedule serves."""
_FEWEST = 2
"""The least convolutions that are worth copies."""
_PRODUCTS = 1024
"""The least products for each element that is copied."""


def last(tensor: TensorDesc) -> TensorDesc:
    """The same with channels last."""
    _, c, h, w = tensor.sizes
    return dataclasses.replace(tensor, strides=(c * h * w, 1, w * c, c), total_tensor_size_in_bytes=None)


def run(program: Program, target: Target) -> None:
    """Change the whole program, if that pays."""
    if target.kind != "cpu":
        return
    found = _Found(program, target)
    copied = sum(math.prod(tensor.sizes) for _, tensor in found.copies())
    if found.convolutions >= _FEWEST and found.products >= _PRODUCTS * copied:
        found.apply()


class _Found:
    """Which values are to have their channels last, and who reads them so."""

    def __init__(self, program: Program, target: Target) -> None:
        self._program, self._target, self._uses = program, target, program.uses()
        self._values: dict[Value, TensorDesc] = {}
        """The values, as they are without this."""
        self._readers: dict[Call, list[str]] = {}
        """The inputs that follow, by call."""
        self.convolutions = self.products = 0
        for call in program.calls:
            self._add(call)

    def _add(self, call: Call) -> None:
        desc: Any = call.desc
        kinds: tuple[tuple[bool, Callable[[Call], bool]], ...] = (
            (desc.NAME in _CONVOLUTIONS, self._convolution),
            (desc.NAME in _IMAGES, self._image),
            (desc.NAME in ("JOIN", "FUSED_JOIN") and desc.axis == 1, self._alike),
            (isinstance(desc, FusedPointwise) or fusible(desc), self._alike),
        )
        if any(own and take(call) for own, take in kinds):
            outputs = [(i, tensor) for i, tensor in enumerate(call.outputs()) if tensor is not None]
            self._values |= {(call, i): tensor for i, tensor in outputs if _is_image(tensor)}

    def _convolution(self, call: Call) -> bool:
        """A convolution writes so wherever what it adds lies so; what it reads may lie as it likes."""
        desc: Any = call.desc
        y = desc.output_tensor
        if not _is_image(y, alone=True) or y.data_type is not TensorDataType.FLOAT32:
            return False
        if not never_changes(call.edges["filter_tensor"].source):
            return False
        added = [name for name, tensor, _ in call.inputs() if name.startswith("epilogue") and _is_image(tensor)]
        image = desc.input_tensor
        if not all(map(self._follows, [call] * len(added), added)) or not image.is_packed or image.rank != 4:
            return False
        follows = self._follows(call, "input_tensor")
        changed = {"output_tensor": last(y), **{name: last(y) for name in added}}
        if follows or not _is_image(image):
            changed["input_tensor"] = last(image)
        try:
            if kernel_for(marked(changed_to(desc, changed), ["filter_tensor"]), self._target).name not in KERNELS:
                return False
        except TvmdmlError:
            return False
        self._readers[call] = [*added, *(["input_tensor"] if follows else [])]
        self.convolutions += _is_image(y)
        self.products += desc.products() * y.element_count
        return True

    def _image(self, call: Call) -> bool:
        (*names,) = (name for name, tensor in call.desc.tensors(Role.OUTPUT) if tensor is not None)
        tensors = dict(call.desc.tensors())
        beside = [name for name, tensor, _ in call.inputs() if name.startswith("epilogue") and not _is_repeated(tensor)]
        follow = ["input_tensor", *beside]
        if len(names) != 1 or not all(_is_image(tensors[name]) and self._follows(call, name) for name in follow):  # type: ignore[arg-type]
            return False
        changed = {name: last(tensors[name]) for name in (*follow, *names)}  # type: ignore[arg-type]
        if kernel_for(changed_to(call.desc, changed), self._target).name == _SLOW:
            return False
        self._readers[call] = follow
        return True

    def _alike(self, call: Call) -> bool:
        """All that is read and written lies alike, but for what is repeated for all places."""
        desc, names = call.desc, []
        pointwise = isinstance(desc, Pointwise)
        sizes = desc.outputs()[0].sizes
        for name, tensor, _ in call.inputs():
            if _is_image(tensor) and self._follows(call, name):
                names.append(name)
            elif (pointwise or name.startswith("epilogue")) and tensor.sizes == sizes and _is_repeated(tensor):
                continue
            else:
                return False
        if not names or not all(_is_image(one) and (not pointwise or one.sizes == sizes) for one in desc.outputs()):
            return False
        self._readers[call] = names
        return True

    def _follows(self, call: Call, name: str) -> bool:
        """Whether an input reads a whole value that is to have its channels last."""
        edge, tensor = call.edges[name], dict(call.desc.tensors(Role.INPUT))[name]
        own = self._values.get(edge.value)
        return own is not None and tensor is not None and not edge.offset and tensor.is_like(own)

    def copies(self) -> Iterable[tuple[Value, TensorDesc]]:
        """The values that others need as they were, too."""
        kept = self._program.kept()
        for value, tensor in self._values.items():
            if value in kept or any(use.name not in self._readers.get(use.call, ()) for use in self._uses.get(value, ())):
                yield value, tensor

    def apply(self) -> None:
        """Change strides, and add copies."""
        program = self._program
        instead: dict[Value, Edge] = {}
        behind: dict[Call, list[Call]] = {}
        for (node, output), tensor in self.copies():
            assert isinstance(node, Call)
            desc = ElementWiseIdentity(input_tensor=last(tensor), output_tensor=tensor, scale_bias=None)
            copy = Call(desc, {"input_tensor": Edge(node, output)}, node.name, node.where)
            instead[node, output] = Edge(copy)
            behind.setdefault(node, []).append(copy)
        for call in program.calls:
            follows = self._readers.get(call, ())
            for name, edge in call.edges.items():
                if name not in follows and edge.value in instead:
                    call.edges[name] = instead[edge.value]._replace(offset=edge.offset)
            outputs = [name for i, name in enumerate(call.output_names()) if (call, i) in self._values]
            tensors = dict(call.desc.tensors())
            changed = {name: last(tensors[name]) for name in (*follows, *outputs)}  # type: ignore[arg-type]
            call.desc = changed_to(call.desc, changed)
        program.results = [
            one._replace(edge=instead[one.edge.value]._replace(offset=one.edge.offset)) if one.edge.value in instead else one
            for one in program.results
        ]
        program.calls = [one for call in program.calls for one in (call, *behind.get(call, ()))]


def changed_to(desc: Operator, tensors: Mapping[str, TensorDesc]) -> Operator:
    """The descriptor with other tensors, by their names."""
    changed: dict[str, Any] = {}
    for field in desc.fields():
        if field.role not in (Role.INPUT, Role.OUTPUT):
            continue
        own = getattr(desc, field.name)
        if field.many:
            changed[field.name] = tuple(tensors.get(f"{field.name}[{i}]", one) for i, one in enumerate(own))
        elif field.name in tensors:
            changed[field.name] = tensors[field.name]
    return dataclasses.replace(desc, **changed) if changed else desc  # type: ignore[type-var] # a dataclass, as all are


def _is_repeated(tensor: TensorDesc) -> bool:
    """Whether all places of a channel are the same element."""
    return not any(step for n, step in list(zip(tensor.sizes, tensor.layout, strict=True))[2:] if n > 1)


def _is_image(tensor: TensorDesc, alone: bool = False) -> bool:
    """Whether channels have places, in row-major order without gaps; ``alone``: or a single one each."""
    if tensor.rank != 4 or not tensor.is_packed or not tensor.element_count:
        return False
    return alone or (tensor.sizes[1] > 1 and math.prod(tensor.sizes[2:]) > 1)
