"""Nodes of ONNX models with windows: the numbers of a descriptor from a node's attributes."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from tvmdml.operators._onnx import NotConvertible, OnnxNode
from tvmdml.operators._window import flattened
from tvmdml.tensors import ArrayTensorDesc


def image(node: OnnxNode, position: int = 0) -> ArrayTensorDesc:
    """An input with a batch, channels and two or three spatial dimensions; a single one gets another of size 1 in front of it."""
    x = node.tensor(position)
    if x.rank not in (3, 4, 5):
        raise NotConvertible(f"its input has {x.rank} dimensions; DirectML's windows have 1 to 3 spatial ones")
    found = flattened(x) if x.rank == 3 else x
    assert isinstance(found, ArrayTensorDesc)
    return found


def numbers_of(node: OnnxNode, name: str, usual: int, k: int, count: int = 1) -> list[int]:
    """An attribute with so many numbers for each of ``k`` dimensions, or the usual one; those of a dimension of size 1 in front."""
    given = list(node.attributes.get(name, []))
    own = len(given) // count
    if not given:
        return [usual] * k * count
    if len(given) != own * count or own not in (k, k - 1):
        raise NotConvertible(f"its {name} has {len(given)} numbers")
    parts = [given[i * own : (i + 1) * own] for i in range(count)]
    return [one for part in parts for one in [usual] * (k - own) + part]


def pooled(node: OnnxNode, x: ArrayTensorDesc) -> dict[str, Any]:
    """The numbers of windows that the node states, and the output's sizes, which ``ceil_mode`` and ``auto_pad`` change."""
    k = x.rank - 2
    given = node.attributes.get("kernel_shape")
    if not given:
        raise NotConvertible("it has no kernel_shape")
    window = [1] * (k - len(given)) + list(given)
    strides, dilations = numbers_of(node, "strides", 1, k), numbers_of(node, "dilations", 1, k)
    pads = numbers_of(node, "pads", 0, k, 2)
    if min([*window, *strides, *dilations]) < 1 or min(pads) < 0 or len(window) != k:
        raise NotConvertible("its windows have numbers that DirectML does not allow")
    spans = [(size - 1) * dilation + 1 for size, dilation in zip(window, dilations, strict=True)]
    mode = node.attributes.get("auto_pad", b"NOTSET").decode()
    if mode not in ("NOTSET", "VALID", "SAME_UPPER", "SAME_LOWER"):
        raise NotConvertible(f"its auto_pad is {mode}")
    starts, ends = ([0] * k, [0] * k) if mode == "VALID" else (pads[:k], pads[k:])
    if mode.startswith("SAME"):
        starts, ends = same_padding(x.sizes[2:], spans, strides, mode == "SAME_UPPER")
    sizes = []
    for i, n in enumerate(x.sizes[2:]):
        room = n + starts[i] + ends[i] - spans[i]
        if -strides[i] < room < 0:  # ONNX divides towards 0: there is one window, of which a part is outside of the padding, too
            window[i] = max(n + starts[i] + ends[i] - 1, 0) // dilations[i] + 1
            room = 0
        count = room // strides[i] + 1
        # A window more, unless it begins behind the tensor.
        if node.integer("ceil_mode", 0) and room % strides[i] and count * strides[i] < n + starts[i]:
            count += 1
        sizes.append(count)
    if any(n < 1 for n in sizes):
        raise NotConvertible("its windows do not fit into its input")
    numbers = {"strides": strides, "window_size": window, "dilations": dilations, "start_padding": starts, "end_padding": ends}
    return {**numbers, "output_tensor": x.with_sizes((*x.sizes[:2], *sizes))}


def same_padding(sizes: Sequence[int], spans: Sequence[int], strides: Sequence[int], upper: bool) -> tuple[list[int], list[int]]:
    """Padding for as many windows as there are steps in each dimension; an odd element is behind it, or with lower before."""
    found = []
    for n, span, stride in zip(sizes, spans, strides, strict=True):
        total = max((-(-n // stride) - 1) * stride + span - n, 0)
        found.append((total // 2, total - total // 2) if upper else (total - total // 2, total // 2))
    return [start for start, _ in found], [end for _, end in found]


def everywhere(x: ArrayTensorDesc) -> dict[str, Any]:
    """The numbers of one window over all spatial dimensions."""
    k = x.rank - 2
    numbers = {"strides": [1] * k, "window_size": list(x.sizes[2:]), "start_padding": [0] * k, "end_padding": [0] * k}
    return {**numbers, "output_tensor": x.with_sizes((*x.sizes[:2], *[1] * k))}
