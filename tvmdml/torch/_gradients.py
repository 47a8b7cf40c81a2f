"""Gradients of functions: what the forward pass saves, and how the backward pass computes the gradient.

A function that is not listed here has no gradient, and raises an error in the backward pass. Integer results never have one.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

import torch

from tvmdml.errors import Unsupported, message


class Gradient(NamedTuple):
    """The gradient of a function."""

    keep: Callable[[Any, Mapping[str, Any], Any], None]
    """``keep(ctx, arguments, results)`` saves data in the forward pass; arguments are by name, with defaults."""
    back: Callable[..., Mapping[str, Any]]
    """``back(ctx, *gradients)`` returns the gradients of the arguments that have one, by the arguments' names."""


def _keep_nothing(ctx: Any, arguments: Mapping[str, Any], results: Any) -> None:
    pass


def _keep_places(ctx: Any, arguments: Mapping[str, Any], results: Any) -> None:
    ctx.save_for_backward(results[1])
    ctx.shape, ctx.axis = arguments["input"].shape, arguments["axis"]


def _to_places(ctx: Any, gradient: Any, _: Any) -> Mapping[str, Any]:
    (indices,) = ctx.saved_tensors
    return {"input": gradient.new_zeros(ctx.shape).scatter(ctx.axis, indices.to(torch.int64), gradient)}


def _keep_band(ctx: Any, arguments: Mapping[str, Any], result: Any) -> None:
    ctx.band = {name: arguments[name] for name in ("diagonal_fill_begin", "diagonal_fill_end")}


def _outside_band(ctx: Any, gradient: Any) -> Mapping[str, Any]:
    return {"input": torch.ops.tvmdml.diagonal_matrix(gradient, value=0, **ctx.band)}


GRADIENTS = {
    "round": Gradient(_keep_nothing, lambda ctx, gradient: {"input": torch.zeros_like(gradient)}),
    "top_k": Gradient(_keep_places, _to_places),
    "diagonal_matrix": Gradient(_keep_band, _outside_band),
}


def no_gradient(name: str) -> Gradient:
    """For a function without a gradient: the backward pass raises an error."""

    def back(ctx: Any, *gradients: Any) -> Any:
        raise without_gradient(f"tvmdml.{name}: gradient")

    return Gradient(_keep_nothing, back)


def without_gradient(where: str) -> Unsupported:
    """The error for a gradient that is needed and does not exist."""
    return Unsupported(message(where, "a backward pass", "none: it has no gradient", "Pass x.detach()."))
