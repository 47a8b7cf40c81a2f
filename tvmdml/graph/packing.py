"""Weights in the form that kernels read: packed once, and shared by the compiled graphs of one model."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable, Mapping, MutableMapping
from typing import Any

from tvmdml.graph.laid import Weights
from tvmdml.graph.nodes import Constant
from tvmdml.graph.packers import packed
from tvmdml.graph.plan import Packed
from tvmdml.targets import Target
from tvmdml.tensors import TensorDesc
from tvmdml.tensors.sizes import is_open

SharedWeights = MutableMapping[object, Weights]
"""The packed weights of several graphs whose constants never change. Usually it keeps none that no graph keeps."""


def _tensors(one: Packed) -> dict[str, TensorDesc]:
    """Without what is repeated along them: how often that is may be an open size, and is packed nowhere."""
    found = {}
    for name, tensor in one.call.desc.tensors():
        if tensor is None:
            continue
        steps = tuple(0 if is_open(step) else step for step in tensor.layout)  # of a single element, or of none
        sizes = tuple(size if step else 1 for size, step in zip(tensor.sizes, steps, strict=True))
        found[name] = dataclasses.replace(tensor, sizes=sizes, strides=steps)
    return found


def pack(wanted: Iterable[Packed], owned: Mapping[int, Any], target: Target, shared: SharedWeights | None) -> list[Weights]:
    """The packed weights.

    Args:
        wanted: what kernels read.
        owned: the arrays of owned inputs, by the identities of their nodes.
        target: where they are.
        shared: those that other graphs have; it gets those that are made of constants.
    """
    found = []
    for one in wanted:
        sources = [(edge.source.array, edge.offset) for edge in one.edges if isinstance(edge.source, Constant)]
        if shared is None or len(sources) < len(one.edges):
            found.append(Weights(_packed(one, owned, target)))
            continue
        layout = one.packing.owned.layout
        key = (layout, *((array.ctypes.data, offset) for array, offset in sources))
        if (known := shared.get(key)) is None:
            known = shared[key] = Weights(_packed(one, owned, target), layout, sources)
        found.append(known)
    target.wait()
    return found


def _packed(one: Packed, owned: Mapping[int, Any], target: Target) -> Any:
    tensors = _tensors(one)
    read: list[Any] = []
    for name, edge in zip(one.packing.owned.inputs, one.edges, strict=True):
        memory = edge.source.array if isinstance(edge.source, Constant) else owned[id(edge.source)]
        read.append((memory, edge.offset, tensors[name]))
    return packed(one.packing, read, target)
