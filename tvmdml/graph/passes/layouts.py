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
from tvmdml.graph.passes.asking import offered
from tvmdml.graph.passes.owned import marked
from tvmdml.graph.program import NodeOutput, Program
from tvmdml.kernels.kernel import Offers
from tvmdml.operators._contract import Operator, Role
from tvmdml.operators._pointwise import Pointwise
from tvmdml.operators._pointwise_fused import FusedPointwise, fusible
from tvmdml.operators.element_wise_unary import ElementWiseIdentity
from tvmdml.targets import Target
from tvmdml.tensors import TensorDataType, TensorDesc

_CONVOLUTIONS = ("CONVOLUTION", "FUSED_CONVOLUTION")
_IMAGES = (
    *("AVERAGE_POOLING", "AVERAGE_POOLING1", "LP_POOLING", "LP_POOLING1", "MAX_POOLING", "MAX_POOLING1", "MAX_POOLING2"),
    *("RESAMPLE", "RESAMPLE1", "RESAMPLE2", "RESAMPLE3", "UPSAMPLE_2D", "FUSED_UPSAMPLE_2D"),
)
"""Operators of one image and one result, which may be as fast with channels last."""
_FEWEST = 2
"""The least convolutions that are worth copies."""
_PRODUCTS = 1024
"""The least products for each element that is copied."""
_CHANNELS = 16
"""The least neighbours of a place that are read without the others: with fewer, the lines that are read are mostly others'."""


def last(tensor: TensorDesc) -> TensorDesc:
    """The same with channels last."""
    _, c, h, w = tensor.sizes
    return dataclasses.replace(tensor, strides=(c * h * w, 1, w * c, c), total_tensor_size_in_bytes=None)


def part(whole: TensorDesc, tensor: TensorDesc, offset: int) -> tuple[TensorDesc, int] | None:
    """Some channels of an image, and the byte where they begin, with channels last; ``None`` if these are no such part of it."""
    if tensor.is_like(whole):
        return None if offset else (last(tensor), 0)
    sizes = list(zip(tensor.sizes, whole.sizes, strict=True)) if tensor.rank == whole.rank else []
    steps = zip(tensor.sizes, tensor.layout, whole.layout, strict=False)
    same = tensor.data_type is whole.data_type and all(mine == its for mine, its in (*sizes[:1], *sizes[2:]))
    if not sizes or not same or any(n > 1 and mine != its for n, mine, its in steps) or tensor.sizes[1] < _CHANNELS:
        return None
    size = whole.data_type.itemsize
    first, rest = divmod(offset, whole.layout[1] * size)
    if rest or first + tensor.sizes[1] > whole.sizes[1]:
        return None
    return dataclasses.replace(tensor, strides=last(whole).strides, total_tensor_size_in_bytes=None), first * size


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
        self._values: dict[NodeOutput, TensorDesc] = {}
        """The values, as they are without this."""
        self._readers: dict[Call, dict[str, tuple[TensorDesc, int]]] = {}
        """The inputs that follow, by call: how each lies then, and from which byte of the value on."""
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
        image = desc.input_tensor
        added = [name for name, tensor, _ in call.inputs() if name.startswith("epilogue") and not _is_repeated(tensor)]
        follow = self._follow(call, added)
        if follow is None or image.rank != 4:
            return False
        follow |= self._follow(call, ["input_tensor"]) or {}
        changed = {"output_tensor": last(y), **{name: tensor for name, (tensor, _) in follow.items()}}
        if "input_tensor" not in follow:
            if not image.is_packed:
                return False
            changed |= {} if _is_image(image) else {"input_tensor": last(image)}
        try:
            if Offers.CHANNELS_LAST not in offered(marked(changed_to(desc, changed), ["filter_tensor"]), self._target):
                return False
        except TvmdmlError:
            return False
        self._readers[call] = follow
        self.convolutions += _is_image(y)
        self.products += desc.products() * y.element_count
        return True

    def _image(self, call: Call) -> bool:
        (*names,) = (name for name, tensor in call.desc.tensors(Role.OUTPUT) if tensor is not None)
        tensors = dict(call.desc.tensors())
        beside = [name for name, tensor, _ in call.inputs() if name.startswith("epilogue") and not _is_repeated(tensor)]
        follow = self._follow(call, ["input_tensor", *beside])
        if len(names) != 1 or follow is None:
            return False
        changed = {names[0]: last(tensors[names[0]]), **{name: tensor for name, (tensor, _) in follow.items()}}  # type: ignore[arg-type]
        if Offers.OWN not in offered(changed_to(call.desc, changed), self._target):
            return False
        self._readers[call] = follow
        return True

    def _alike(self, call: Call) -> bool:
        """All that is read and written lies alike, but for what is repeated for all places."""
        desc, names = call.desc, list[str]()
        pointwise = isinstance(desc, Pointwise)
        sizes = desc.outputs()[0].sizes
        for name, tensor, _ in call.inputs():
            if not ((pointwise or name.startswith("epilogue")) and tensor.sizes == sizes and _is_repeated(tensor)):
                names.append(name)
        follow = self._follow(call, names)
        if not follow or not all(_is_image(one) and (not pointwise or one.sizes == sizes) for one in desc.outputs()):
            return False
        self._readers[call] = follow
        return True

    def _follow(self, call: Call, names: Iterable[str]) -> dict[str, tuple[TensorDesc, int]] | None:
        """How inputs lie that read values that are to have their channels last, or some channels; ``None`` if not all do."""
        tensors, found = dict(call.desc.tensors(Role.INPUT)), {}
        for name in names:
            edge, tensor = call.edges[name], tensors[name]
            whole = self._values.get(edge.value)
            own = None if whole is None or tensor is None else part(whole, tensor, edge.offset)
            if own is None:
                return None
            found[name] = own
        return found

    def copies(self) -> Iterable[tuple[NodeOutput, TensorDesc]]:
        """The values that others need as they were, too."""
        kept = self._program.kept()
        for value, tensor in self._values.items():
            if value in kept or any(use.name not in self._readers.get(use.call, ()) for use in self._uses.get(value, ())):
                yield value, tensor

    def apply(self) -> None:
        """Change strides, and add copies."""
        program = self._program
        instead: dict[NodeOutput, Edge] = {}
        behind: dict[Call, list[Call]] = {}
        for (node, output), tensor in self.copies():
            assert isinstance(node, Call)
            desc = ElementWiseIdentity(input_tensor=last(tensor), output_tensor=tensor, scale_bias=None)
            copy = Call(desc, {"input_tensor": Edge(node, output)}, node.name, node.where)
            instead[node, output] = Edge(copy)
            behind.setdefault(node, []).append(copy)
        for call in program.calls:
            follow = self._readers.get(call, {})
            for name, edge in call.edges.items():
                if name in follow:
                    call.edges[name] = edge._replace(offset=follow[name][1])
                elif edge.value in instead:
                    call.edges[name] = instead[edge.value]._replace(offset=edge.offset)
            outputs = [(name, self._values.get((call, i))) for i, name in enumerate(call.output_names())]
            changed = {name: last(tensor) for name, tensor in outputs if tensor is not None}
            call.desc = changed_to(call.desc, changed | {name: tensor for name, (tensor, _) in follow.items()})
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
