"""Words of formulas for gradients of convolutions, each of which is a convolution.

With ``t`` a place of the image forward, or of the output backward, products are those of an element of the *near* tensor at ``t``
and one of the *far* tensor at ``t * stride + j * dilation - start_padding``, for each place ``j`` of the filter.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch


def _convolution(*tensors: Any, **numbers: Any) -> Any:
    return torch.ops.tvmdml.convolution(*tensors, **numbers)


def _given(numbers: Sequence[Any] | None, usual: int, k: int) -> list[Any]:
    return [usual] * k if numbers is None else list(numbers)


def _is_backward(direction: Any) -> bool:
    return "backward" in str(direction).lower()


def _without(gradient: Any, zeros: Sequence[Any] | None) -> Any:
    """A gradient without that of the output's padding, which follows from nothing."""
    for i, count in enumerate(zeros or (), 2):
        gradient = gradient.narrow(i, 0, gradient.shape[i] - count)
    return gradient


def _fitted(
    far: Any, near: Sequence[Any], filters: Sequence[Any], strides: Sequence[Any], dilations: Sequence[Any], starts: Sequence[Any]
) -> tuple[Any, list[Any]]:
    """The far tensor, and the padding behind it, with which a filter has so many places as the near tensor has.

    Elements at its end that no filter would meet are left out where there must be fewer.
    """
    ends = []
    for i, (count, size, stride, dilation, start) in enumerate(zip(near, filters, strides, dilations, starts, strict=True), 2):
        least = (count - 1) * stride + (size - 1) * dilation + 1 - start - far.shape[i]
        if least + stride <= 0:
            far = far.narrow(i, 0, far.shape[i] + least + stride - 1)
        ends.append(max(least, 0))
    return far, ends


def input_gradient(
    gradient: Any,
    sizes: Sequence[Any],
    filters: Any,
    mode: Any,
    direction: Any,
    strides: Any,
    dilations: Any,
    starts: Any,
    ends: Any,
    zeros: Any,
    groups: Any,
) -> Any:
    """The gradient of a convolution's input: the convolution of its result's gradient in the other direction."""
    gradient, k = _without(gradient, zeros), len(sizes) - 2
    strides, dilations = _given(strides, 1, k), _given(dilations, 1, k)
    starts, ends = _given(starts, 0, k), _given(ends, 0, k)
    numbers = {"strides": strides, "dilations": dilations, "start_padding": starts, "group_count": groups, "mode": mode}
    if _is_backward(direction):
        gradient, ends = _fitted(gradient, sizes[2:], filters.shape[2:], strides, dilations, starts)
        return _convolution(gradient, filters, direction="forward", end_padding=ends, **numbers)
    # Padding behind the image that no filter met is not in the way.
    for i in range(k):
        reached = (gradient.shape[i + 2] - 1) * strides[i] + (filters.shape[i + 2] - 1) * dilations[i] + 1 - starts[i]
        if reached < 1:  # filters meet nothing but padding
            return gradient.new_zeros(tuple(sizes))
        ends[i] = max(reached - sizes[i + 2], 0)
    return _convolution(gradient, filters, direction="backward", end_padding=ends, output_sizes=list(sizes), **numbers)


def filter_gradient(
    gradient: Any,
    given: Any,
    sizes: Sequence[Any],
    mode: Any,
    direction: Any,
    strides: Any,
    dilations: Any,
    starts: Any,
    zeros: Any,
    groups: Any,
) -> Any:
    """The gradient of a convolution's filter: the far tensor, whose batch are its channels, convolved with the near one as filter.

    Strides are then dilations, and dilations strides.
    """
    gradient, k = _without(gradient, zeros), len(sizes) - 2
    near, far = (given, gradient) if _is_backward(direction) else (gradient, given)
    strides, dilations, starts = _given(strides, 1, k), _given(dilations, 1, k), _given(starts, 0, k)
    far, ends = _fitted(far, sizes[2:], near.shape[2:], dilations, strides, starts)
    batch, channels, *spatial = far.shape
    if groups == 1:
        image = far.transpose(0, 1)
    else:
        parts = far.reshape(batch, groups, channels // groups, *spatial).transpose(0, 2)
        image = parts.reshape(channels // groups, groups * batch, *spatial)
    numbers = {"strides": dilations, "dilations": strides, "start_padding": starts, "end_padding": ends, "group_count": groups}
    found = _convolution(image, near.transpose(0, 1), **numbers).transpose(0, 1)
    return found if "cross" in str(mode).lower() else found.flip(tuple(range(2, k + 2)))


def bias_gradient(gradient: Any, sizes: Sequence[Any]) -> Any:
    """The gradient of what is added to each channel."""
    axes = [i for i in range(gradient.ndim) if i != 1]
    return torch.ops.tvmdml.reduce(gradient, function="sum", axes=axes).reshape(tuple(sizes))


WORDS: Mapping[str, Callable[..., Any]] = {
    "input_gradient": input_gradient,
    "filter_gradient": filter_gradient,
    "bias_gradient": bias_gradient,
}
