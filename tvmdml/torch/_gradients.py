"""Gradients of operators in PyTorch's backward pass, from the formulas that the classes state (``tvmdml.operators._gradients``)."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any

import torch

from tvmdml.errors import Unsupported, message
from tvmdml.operators._gradients import Formulas
from tvmdml.torch import _convolutions
from tvmdml.torch._schemas import Schema

_SCALED = "scale_bias"


class Gradient:
    """The gradient of a function: what the forward pass keeps, and the backward pass."""

    def __init__(self, schema: Schema) -> None:
        operator = getattr(schema.function, "operator", None)
        self._where = f"tvmdml.{schema.function.__name__}: gradient"
        self._formulas: Formulas = getattr(operator, "GRADIENT", {})
        self._arguments = list(schema.arguments)
        self._results = schema.results
        self._tensors = [name for name, kind in schema.arguments.items() if kind.startswith("Tensor")]
        self._broadcasts = len(self._tensors) > 1 and getattr(operator, "BROADCAST", False)

    def keep(self, ctx: Any, inputs: tuple[Any, ...], output: Any, keyword_only_inputs: Mapping[str, Any] | None = None) -> None:
        """Save the arguments and results that the formulas name."""
        given = {**dict(zip(self._arguments, inputs, strict=False)), **(keyword_only_inputs or {})}
        tensors = {name: given[name] for name in self._tensors if isinstance(given[name], torch.Tensor)}
        given |= dict(zip(self._results, output if isinstance(output, tuple) else (output,), strict=True))
        ctx.names = self._arguments[: len(inputs)]
        used = {_SCALED}
        for name, needed in zip(ctx.names, ctx.needs_input_grad, strict=False):
            if needed and name in self._formulas:
                used.update(self._formulas[name].co_names)
        kept = {name: value for name, value in given.items() if name in used}
        ctx.saved = [name for name, value in kept.items() if isinstance(value, torch.Tensor)]
        ctx.save_for_backward(*(kept.pop(name) for name in ctx.saved))
        ctx.forms = {name: (tensor.shape, tensor.dtype) for name, tensor in tensors.items()}
        ctx.kept = {**kept, **{f"{name}_sizes": tensor.shape for name, tensor in tensors.items()}}

    def back(self, ctx: Any, *gradients: Any) -> tuple[Any, ...]:
        """The gradient of each argument; ``None`` for those that need none.

        Raises:
            Unsupported: the operator has no gradient for an argument that needs one.
        """
        values = _Names({**ctx.kept, **dict(zip(ctx.saved, ctx.saved_tensors, strict=True))})
        values.update(zip((f"{name}_gradient" for name in self._results), gradients, strict=True))
        values["gradient"] = gradients[0]
        scale = None
        if values.get(_SCALED) is not None:  # the operator is one of the scaled input
            scale, first = values[_SCALED][0], self._tensors[0]
            if first in values:
                values[first] = _run("identity", values[first], scale_bias=values[_SCALED])
        needed = zip(ctx.names, ctx.needs_input_grad, strict=False)
        return tuple(self._of(name, values, scale, *ctx.forms[name]) if needs else None for name, needs in needed)

    def _of(self, name: str, values: _Names, scale: float | None, shape: Any, dtype: Any) -> Any:
        if name not in self._formulas:
            raise without_gradient(f"{self._where} of {name}" if self._formulas else self._where)
        gradient = eval(self._formulas[name], {}, values)  # noqa: S307 - an operator's own text
        if scale is not None:
            gradient = _run("multiply", gradient, scale)
        if self._broadcasts:
            gradient = gradient.sum_to_size(shape)
        return gradient if gradient.dtype == dtype else _run("cast", gradient, dtype=dtype)


def without_gradient(where: str) -> Unsupported:
    """The error for a gradient that is needed and does not exist."""
    return Unsupported(message(where, "a backward pass", "none: it has no gradient", "Pass x.detach()."))


class _Names(dict[str, Any]):
    """What the names in formulas mean: values, otherwise functions."""

    def __missing__(self, name: str) -> Callable[..., Any]:
        return _WORDS.get(name) or partial(_run, name)


def _run(function: str, /, *tensors: Any, **attributes: Any) -> Any:
    """Call a function of tvmdml, with numbers as tensors."""
    like = next(x for x in tensors if isinstance(x, torch.Tensor) and x.dtype.is_floating_point)
    arguments = (like.new_full((), x) if isinstance(x, (int, float)) else x for x in tensors)
    return getattr(torch.ops.tvmdml, function)(*arguments, **attributes)


def _scattered(sizes: Sequence[Any], axis: int, indices: Any, elements: Any) -> Any:
    return elements.new_zeros(sizes).scatter(axis, indices.to(torch.int64), elements)


def _opposite(direction: str) -> str:
    return "increasing" if direction.lower().endswith("decreasing") else "decreasing"


def _undilated(strides: Any, dilations: Any) -> Any:
    """The strides, unless there are dilations."""
    if any(one != 1 for one in dilations or ()):
        raise Unsupported(message("tvmdml: gradient", f"dilations {tuple(dilations)}", "dilations of 1", "Pass x.detach()."))
    return strides


def _undefined(argument: str) -> Any:
    raise Unsupported(message("gradient", argument, "a call without it: there is no gradient with it", "Pass x.detach()."))


def _factor(gradient: Any, b: Any, trans_a: str, trans_b: str, alpha: float, a_sizes: Any, b_sizes: Any) -> Any:
    """The gradient of a product's first factor: the product with the second one, transposed."""
    whole, turned_a, turned_b = _as_matrices(gradient, trans_a, trans_b, a_sizes, b_sizes)
    b = b.unsqueeze(-1) if len(b_sizes) == 1 else b
    if turned_a:
        found = _run("gemm", b, whole, trans_a=_TRANSFORMS[turned_b], trans_b="transpose", alpha=alpha)
    else:
        found = _run("gemm", whole, b, trans_b=_TRANSFORMS[not turned_b], alpha=alpha)
    return found


def _second_factor(gradient: Any, a: Any, trans_a: str, trans_b: str, alpha: float, a_sizes: Any, b_sizes: Any) -> Any:
    """The same of its second factor."""
    whole, turned_a, turned_b = _as_matrices(gradient, trans_a, trans_b, a_sizes, b_sizes)
    a = a.unsqueeze(0) if len(a_sizes) == 1 else a
    if turned_b:
        found = _run("gemm", whole, a, trans_a="transpose", trans_b=_TRANSFORMS[turned_a], alpha=alpha)
    else:
        found = _run("gemm", a, whole, trans_a=_TRANSFORMS[not turned_a], alpha=alpha)
    return found.squeeze(-1) if len(b_sizes) == 1 else found


_TRANSFORMS = ("none", "transpose")


def _as_matrices(gradient: Any, trans_a: str, trans_b: str, a_sizes: Any, b_sizes: Any) -> tuple[Any, bool, bool]:
    """A product's gradient with the dimensions that vectors do not have, and whether each factor is transposed: no vector is."""
    whole = gradient.unsqueeze(-1) if len(b_sizes) == 1 else gradient
    whole = whole.unsqueeze(-2) if len(a_sizes) == 1 else whole
    turned = (trans.lower().endswith("transpose") and len(sizes) > 1 for trans, sizes in ((trans_a, a_sizes), (trans_b, b_sizes)))
    return (whole, *turned)


_WORDS: Mapping[str, Callable[..., Any]] = {
    "zeros": torch.zeros_like,
    "scattered": _scattered,
    "opposite": _opposite,
    "undilated": _undilated,
    "undefined": _undefined,
    "factor": _factor,
    "second_factor": _second_factor,
    **_convolutions.WORDS,
}
"""The words of formulas that are not functions of tvmdml."""
