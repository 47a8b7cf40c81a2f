"""Bindings: the part of a resource that stores a tensor."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from typing import Any, NamedTuple

import numpy as np

from tvmdml.dxdispatch.resources import Buffer, Resource
from tvmdml.enums import TensorFlags
from tvmdml.operators import Operator
from tvmdml.operators._contract import Field, Role
from tvmdml.operators._json.nodes import JsonNode
from tvmdml.tensors import MAX_ELEMENTS, TensorDesc

AnyArray = np.ndarray[Any, np.dtype[Any]]

_FIELDS = ("name", "elementCount", "elementSizeInBytes", "elementOffset", "shape")
# Fields that only shaders use.
_IGNORED = ("counter", "counterOffsetBytes", "elementStride", "format")


class ResourceBinding(NamedTuple):
    """A model's reference to a part of a resource."""

    node: JsonNode
    resource: str
    elements: int | None
    """The number of bound elements; ``None`` means all up to the end."""
    itemsize: int | None
    """The bytes of an element of the binding; ``None`` means the size of the resource's own elements."""
    offset: int
    """The number of elements before the first bound one."""
    shape: tuple[int, ...] = ()
    """The shape of an ONNX model's tensor; empty if the model says it."""

    def view(self, memory: RunBuffers, desc: TensorDesc, frozen: bool = False) -> AnyArray:
        """The tensor in its resource's buffer, or with ``frozen`` a copy of its current elements.

        Raises:
            ModelError: it does not fit in the bound part.
        """
        resource, buffer = memory.resources[self.resource], memory.buffers[self.resource]
        stored = desc.stored
        own = stored.data_type.itemsize
        itemsize = self.itemsize or (own if resource.data_type is None else resource.data_type.itemsize)
        start = self.offset * itemsize
        there = len(buffer) - start
        needed = desc.total_tensor_size_in_bytes or desc.minimum_size_in_bytes
        if there < needed:
            raise self.node.error(f"{max(there, 0)} bytes of {self.resource!r}", f"at least {needed}, for {desc}", _ADVICE)
        if self.elements is not None:
            used = desc.span_in_bytes
            if self.elements * itemsize < used:
                raise self.node.error(
                    f"{self.elements} elements of {itemsize} bytes", f"at least {used} bytes, for {desc}", _ADVICE
                )
            if self.elements * itemsize > there:
                raise self.node.error(
                    f"{self.elements} elements", f"at most {there // itemsize}, which remain in {self.resource!r} from that offset"
                )
        if start % own:
            raise self.node.error(f"an offset of {start} bytes", f"a multiple of {own}, for {desc}")
        dtype = stored.data_type.numpy
        elements: AnyArray = np.ndarray((stored.span,), dtype, buffer, start)  # NumPy checks the bounds
        if frozen:
            elements = elements.copy()
        return np.ndarray(stored.sizes, dtype, elements, 0, [step * own for step in stored.layout])


class RunBuffers(NamedTuple):
    """The buffers of a run."""

    resources: Mapping[str, Resource]
    """Their declarations."""
    buffers: dict[str, Buffer]
    """Deferred resources have none before a result is written to them."""
    there: Callable[[Any], Any] = lambda part: part
    """Maps a part of a buffer to the same part in the memory of the target that a dispatch runs on."""


_ADVICE = "Enlarge the buffer with more initial values or with sizeInBytes."

Bindings = dict[str, list[ResourceBinding]]
"""The bindings by the name of a descriptor's field; several for an array of tensors."""


def read(node: JsonNode, desc: Operator, resources: Mapping[str, Resource], owned: bool) -> Bindings:
    """The bindings of a dispatch; with ``owned``, those of a dispatchable, which are for tensors OWNED_BY_DML.

    Raises:
        ModelError: a binding is missing, or is not allowed here.
    """
    points = {field.dml_name: tensors for field, tensors in _points(desc) if _is_owned(tensors) == owned}
    node = node.renamed(desc.SYNONYMS)
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
        found[name] = [not_deferred(one(source, resources), resources) for source in sources]
    return found


def arrays(desc: Operator, found: Bindings, memory: RunBuffers, frozen: bool = False) -> dict[str, list[AnyArray]]:
    """The bound tensors, by field; with ``frozen``, copies of their current elements.

    Raises:
        ModelError: a tensor does not fit in its binding.
    """
    return {
        field.dml_name: [
            binding.view(memory, tensor, frozen) for binding, tensor in zip(found[field.dml_name], tensors, strict=True)
        ]
        for field, tensors in _points(desc)
        if field.dml_name in found
    }


def _points(desc: Operator) -> Iterator[tuple[Field, tuple[TensorDesc, ...]]]:
    """The tensor fields that are present, with their tensors."""
    for field in desc.fields():
        if field.role in (Role.INPUT, Role.OUTPUT):
            value = getattr(desc, field.name)
            tensors = value if field.many else (value,)
            if value is not None and tensors:
                yield field, tensors


def _is_owned(tensors: tuple[TensorDesc, ...]) -> bool:
    return any(tensor.flags is TensorFlags.OWNED_BY_DML for tensor in tensors)


def one(node: JsonNode, resources: Mapping[str, Resource]) -> ResourceBinding:
    """The binding that a node describes: the name of a resource, or an object.

    Raises:
        ModelError: a field is invalid, or the model declares no such resource.
    """
    if not isinstance(node.value, dict):
        return ResourceBinding(node, reference(node, resources, "resource"), None, None, 0)
    node.only(_FIELDS, ignored=_IGNORED)
    name = node.need("name", "the name of a resource")
    # In DxDispatch zero means "as in the resource".
    count, itemsize, offset = (found.integer() if (found := node.get(field)) else 0 for field in _FIELDS[1:4])
    sizes = node.get("shape")
    shape = tuple(size.integer(1, MAX_ELEMENTS) for size in sizes.items()) if sizes else ()
    return ResourceBinding(node, reference(name, resources, "resource"), count or None, itemsize or None, offset, shape)


def not_deferred(found: ResourceBinding, resources: Mapping[str, Resource]) -> ResourceBinding:
    """The binding itself, of a resource that is not deferred.

    Raises:
        ModelError: the resource is deferred.
    """
    if resources[found.resource].deferred:
        raise found.node.error(f"{found.resource!r}, which is deferred", "a resource with initial values")
    return found


def reference(node: JsonNode, known: Mapping[str, Any], kind: str) -> str:
    """The name of a resource or dispatchable that the model declares.

    Raises:
        ModelError: the model does not declare it.
    """
    name = node.text()
    if name not in known:
        raise node.wrong(f"the name of a {kind} of this model: {', '.join(known) or 'it declares none'}")
    return name
