"""Bindings: which part of which resource a tensor lies in."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any, NamedTuple

import numpy as np

from tvmdml.dxdispatch.nodes import Node
from tvmdml.dxdispatch.resources import Buffer, Resource
from tvmdml.enums import TensorFlags
from tvmdml.operators import Operator
from tvmdml.operators._contract import Field, Role
from tvmdml.tensors import TensorDesc

AnyArray = np.ndarray[Any, np.dtype[Any]]

_FIELDS = ("name", "elementCount", "elementSizeInBytes", "elementOffset")
# What only shaders and ONNX models take from a binding.
_IGNORED = ("counter", "counterOffsetBytes", "elementStride", "format", "shape")


class Binding(NamedTuple):
    """A view that a model asks for."""

    node: Node
    resource: str
    elements: int | None
    """How many are bound; ``None`` for all up to the end."""
    itemsize: int | None
    """Bytes an element of the binding has; ``None`` for the size of the resource's own elements."""
    offset: int
    """Elements before the first."""

    def view(self, resource: Resource, buffer: Buffer, desc: TensorDesc, frozen: bool) -> AnyArray:
        """The tensor in its resource's buffer, or a copy of it as it is now.

        Raises:
            ModelError: it does not lie in the part that is bound.
        """
        own = desc.data_type.itemsize
        itemsize = self.itemsize or (own if resource.data_type is None else resource.data_type.itemsize)
        start = self.offset * itemsize
        there = len(buffer) - start
        needed = desc.total_tensor_size_in_bytes or desc.minimum_size_in_bytes
        if there < needed:
            raise self.node.error(f"{max(there, 0)} bytes of {self.resource!r}", f"at least {needed}, for {desc}", _ADVICE)
        if self.elements is not None:
            used = desc.span * own
            if self.elements * itemsize < used:
                raise self.node.error(
                    f"{self.elements} elements of {itemsize} bytes", f"at least {used} bytes, for {desc}", _ADVICE
                )
            if self.elements * itemsize > there:
                raise self.node.error(
                    f"{self.elements} elements", f"at most {there // itemsize}, which {self.resource!r} has there"
                )
        if start % own:
            raise self.node.error(f"an offset of {start} bytes", f"a multiple of {own}, for {desc}")
        dtype = desc.data_type.numpy
        elements: AnyArray = np.ndarray((desc.span,), dtype, buffer, start)  # NumPy checks that both lie inside
        if frozen:
            elements = elements.copy()
        tensor: AnyArray = np.ndarray(desc.sizes, dtype, elements, 0, [step * own for step in desc.layout])
        return tensor


_ADVICE = "A larger buffer comes with more initial values or with sizeInBytes."

Bindings = dict[str, list[Binding]]
"""By the name of a descriptor's field; more than one for an array of tensors."""


def read(node: Node, desc: Operator, resources: Mapping[str, Any], owned: bool) -> Bindings:
    """The bindings of a dispatch, or those of a dispatchable itself, which are for tensors OWNED_BY_DML.

    Raises:
        ModelError: a tensor is bound that should not be, or one that should be is not.
    """
    points = {field.dml_name: tensors for field, tensors in _points(desc) if _is_owned(tensors) == owned}
    bound = node.members()
    for name, binding in bound.items():
        if name not in points:
            advice = "Tensors OWNED_BY_DML are bound in the dispatchable, all others in the dispatch."
            raise binding.error("a binding", f"bindings for {', '.join(points) or 'no tensors'}", advice)
    found = {}
    for name, tensors in points.items():
        binding = node.need(name, f"a resource for {' and '.join(map(str, tensors))}")
        sources = binding.items() if isinstance(binding.value, list) else [binding]
        if len(sources) != len(tensors):
            raise binding.error(f"{len(sources)} resources", f"{len(tensors)}, one for each tensor")
        found[name] = [_binding(source, resources) for source in sources]
    return found


def arrays(
    desc: Operator, found: Bindings, resources: Mapping[str, Resource], buffers: Mapping[str, Buffer], frozen: bool = False
) -> dict[str, list[AnyArray]]:
    """The tensors that bindings mean, by field; copies, if they shall stay what they are now.

    Raises:
        ModelError: a tensor does not lie in what is bound to it.
    """
    return {
        field.dml_name: [
            binding.view(resources[binding.resource], buffers[binding.resource], tensor, frozen)
            for binding, tensor in zip(found[field.dml_name], tensors, strict=True)
        ]
        for field, tensors in _points(desc)
        if field.dml_name in found
    }


def _points(desc: Operator) -> Iterator[tuple[Field, tuple[TensorDesc, ...]]]:
    """The tensor fields that are there, with their tensors."""
    for field in desc.fields():
        if field.role in (Role.INPUT, Role.OUTPUT):
            value = getattr(desc, field.name)
            tensors = value if field.many else (value,)
            if value is not None and tensors:
                yield field, tensors


def _is_owned(tensors: tuple[TensorDesc, ...]) -> bool:
    return any(tensor.flags is TensorFlags.OWNED_BY_DML for tensor in tensors)


def _binding(node: Node, resources: Mapping[str, Any]) -> Binding:
    if isinstance(node.value, dict):
        node.only(_FIELDS, ignored=_IGNORED)
        name = node.need("name", "the name of a resource")
        # Zero is DxDispatch's way to say "as the resource has it".
        count, itemsize, offset = (found.integer() if (found := node.get(field)) else 0 for field in _FIELDS[1:])
    else:
        name, count, itemsize, offset = node, 0, 0, 0
    return Binding(node, reference(name, resources, "resource"), count or None, itemsize or None, offset)


def reference(node: Node, known: Mapping[str, Any], kind: str) -> str:
    """The name of something that the model declares.

    Raises:
        ModelError: it does not.
    """
    name = node.text()
    if name not in known:
        raise node.wrong(f"the name of a {kind} of this model: {', '.join(known) or 'there is none'}")
    return name
