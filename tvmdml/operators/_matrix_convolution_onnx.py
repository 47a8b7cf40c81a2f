"""Nodes of ONNX models that are convolutions: the numbers of a descriptor from a node's attributes."""

from __future__ import annotations

from typing import Any

from tvmdml.operators._onnx import NotConvertible, OnnxNode
from tvmdml.operators._window_onnx import numbers_of, same_padding
from tvmdml.tensors import TensorDesc


def forward(node: OnnxNode, x: TensorDesc, w: TensorDesc) -> dict[str, Any]:
    """The numbers of a convolution; ``auto_pad`` gives as many elements as there are steps."""
    k, mode = _checked(node, x, w)
    strides, dilations, pads = (numbers_of(node, *one) for one in (("strides", 1, k), ("dilations", 1, k), ("pads", 0, k, 2)))
    _check_positive(strides, dilations)
    starts, ends = ([0] * k, [0] * k) if mode == "VALID" else (pads[:k], pads[k:])
    if mode.startswith("SAME"):
        spans = [(size - 1) * dilation + 1 for size, dilation in zip(w.sizes[2:], dilations, strict=True)]
        starts, ends = same_padding(x.sizes[2:], spans, strides, mode == "SAME_UPPER")
    return _numbers(node, strides, dilations, starts, ends)


def backward(node: OnnxNode, x: TensorDesc, w: TensorDesc) -> tuple[dict[str, Any], list[int]]:
    """The numbers of a transposed convolution, and the output's spatial sizes.

    ``output_padding`` is of ONNX's kind: elements more that are computed. ``output_shape`` and ``auto_pad`` say how much padding is
    left out, of which an odd element is before the tensor, with SAME_UPPER behind it. As in ONNX Runtime, ``auto_pad`` adds nothing
    where there are fewer elements than steps.
    """
    k, mode = _checked(node, x, w)
    strides, dilations, pads = (numbers_of(node, *one) for one in (("strides", 1, k), ("dilations", 1, k), ("pads", 0, k, 2)))
    _check_positive(strides, dilations)
    more = numbers_of(node, "output_padding", 0, k)
    whole = [
        (size - 1) * stride + (kernel - 1) * dilation + 1 + extra
        for size, stride, kernel, dilation, extra in zip(x.sizes[2:], strides, w.sizes[2:], dilations, more, strict=True)
    ]
    shape = list(node.attributes.get("output_shape", []))[-k:]
    if mode.startswith("SAME") and not shape:
        shape = [min(size * stride, n) for size, stride, n in zip(x.sizes[2:], strides, whole, strict=True)]
    if not shape:
        starts, ends = ([0] * k, [0] * k) if mode == "VALID" else (pads[:k], pads[k:])
        return _numbers(node, strides, dilations, starts, ends), [n - a - b for n, a, b in zip(whole, starts, ends, strict=True)]
    if len(shape) != k:
        raise NotConvertible(f"its output_shape has {len(shape)} numbers")
    cut = [max(n - wanted, 0) for n, wanted in zip(whole, shape, strict=True)]
    halves = [n // 2 for n in cut], [n - n // 2 for n in cut]
    starts, ends = halves if mode == "SAME_UPPER" else halves[::-1]
    return _numbers(node, strides, dilations, starts, ends), shape


def _checked(node: OnnxNode, x: TensorDesc, w: TensorDesc) -> tuple[int, str]:
    """The number of spatial dimensions, and the mode of padding."""
    k = x.rank - 2
    if k not in (1, 2, 3) or w.rank != x.rank:
        raise NotConvertible(f"its input has {x.rank} dimensions; DirectML's convolutions have 1 to 3 spatial ones")
    given = node.attributes.get("kernel_shape")
    if given and tuple(given) != tuple(w.sizes[2:]):
        raise NotConvertible(f"its kernel_shape is {list(given)}, and its filter has {list(w.sizes[2:])}")
    mode = node.attributes.get("auto_pad", b"NOTSET").decode() or "NOTSET"
    if mode not in ("NOTSET", "VALID", "SAME_UPPER", "SAME_LOWER"):
        raise NotConvertible(f"its auto_pad is {mode}")
    return k, mode


def _check_positive(*some: list[int]) -> None:
    if min(one for numbers in some for one in numbers) < 1:
        raise NotConvertible("its numbers are some that DirectML does not allow")


def _numbers(node: OnnxNode, strides: list[int], dilations: list[int], starts: list[int], ends: list[int]) -> dict[str, Any]:
    groups = node.integer("group", 1)
    if groups < 1 or min([*starts, *ends]) < 0:
        raise NotConvertible("its numbers are some that DirectML does not allow")
    numbers = {"strides": strides, "dilations": dilations, "start_padding": starts, "end_padding": ends}
    return {**numbers, "group_count": groups}
