"""The functions of ``tvmdml.pydirectml``: ``tvmdml.directml``'s, with the names, order and defaults of the older one."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping
from typing import Any

from tvmdml import directml
from tvmdml.directml.older import Expression, GraphBuilder, TensorDesc
from tvmdml.system.names import takes

_ONE, _TWO = "input", "a b"
_WINDOWS = "start_padding end_padding"

TABLE: Mapping[str, tuple[str, str, Mapping[str, str]]] = {
    "convolution": (
        "convolution",
        "input filter bias? mode? direction? strides? dilations? start_padding? end_padding? output_padding? group_count? "
        "fused_activation? output_sizes?",
        {},
    ),
    "up_sample_2d": ("upsample_2d", "input scale_size interpolation_mode", {}),
    **{f"activation_{name}": (f"activation_{name}", _ONE, {}) for name in ("relu", "sigmoid", "identity", "tanh")},
    "activation_soft_max": ("activation_softmax", _ONE, {}),
    "activation_linear": ("activation_linear", "input alpha beta", {}),
    "add": ("add", f"{_TWO} fused_activation?", {}),
    **{name: (name, _TWO, {}) for name in ("subtract", "multiply", "divide")},
    "padding": ("padding", f"input padding_mode padding_value {_WINDOWS}", {}),
    "slice": ("slice", "input input_window_offsets input_window_sizes input_window_strides", {}),
    "value_scale_2d": ("value_scale_2d", "input scale bias", {}),
    "batch_normalization": ("batch_normalization", "input mean variance scale bias spatial epsilon fused_activation?", {}),
    "local_response_normalization": ("local_response_normalization", "input cross_channel local_size alpha beta bias", {}),
    "gemm": ("gemm", f"{_TWO} c? trans_a? trans_b? alpha? beta? fused_activation?", {}),
    "max_pooling": ("max_pooling", "input window_sizes strides? start_padding? end_padding? dilations? output_indices?", {}),
    "reinterpret": (
        "reinterpret",
        "input new_type new_size new_strides",
        {"new_type": "dtype", "new_size": "sizes", "new_strides": "strides"},
    ),
    "join": ("join", "input axis", {"input": "inputs"}),
    "gru": (
        "gru",
        "input weight recurrence bias? hidden_init? sequence_lengths? activation_descs? direction? linear_before_reset? "
        "output_options?",
        {},
    ),
    "gather": ("gather", "input indices axis index_dimensions", {}),
}
"""For each function: the name of the newer one, the parameters in their order (with ``?`` they may be left out), and those of the
newer one that have other names."""


def _made(name: str, newer: str, parameters: str, renamed: Mapping[str, str]) -> Callable[..., Any]:
    call = getattr(directml, newer)
    defaults = {one: parameter.default for one, parameter in inspect.signature(call).parameters.items()}
    kind = inspect.Parameter.POSITIONAL_OR_KEYWORD
    stated, behind = [], False
    for one in parameters.split():
        plain = one.rstrip("?")
        behind |= plain != one
        usual = defaults.get(plain) if behind else inspect.Parameter.empty
        stated.append(inspect.Parameter(plain, kind, default=None if behind and usual is inspect.Parameter.empty else usual))
    signature = inspect.Signature(stated)

    def function(*given: Any, **named: Any) -> Any:
        try:
            bound = signature.bind(*given, **named).arguments
        except TypeError as error:
            raise TypeError(f"{name}(): {error}; allowed: {takes(function)}") from None
        return call(**{renamed.get(one, one): value for one, value in bound.items()})

    function.__name__ = function.__qualname__ = name
    function.__doc__ = f"``tvmdml.directml.{newer}``."
    function.__signature__ = signature  # type: ignore[attr-defined]
    return function


def input_tensor(scope: GraphBuilder, input_index: int, tensor_desc: TensorDesc) -> Expression:
    """An input of a graph. The first has the number 0."""
    return scope.add_input(input_index, tensor_desc)


def mean_variance_normalization(
    input: Expression,  # noqa: A002
    scale: Expression | None = None,
    bias: Expression | None = None,
    axes: Any = (),
    normalize_variance: bool = True,
    *more: Any,
    **named: Any,
) -> Any:
    """``tvmdml.directml.mean_variance_normalization``: behind ``normalize_variance`` comes ``normalize_mean``, which may be left
    out, and then ``epsilon`` and ``fused_activation``.
    """
    names = ["normalize_mean", "epsilon", "fused_activation"]
    rest = names if more and isinstance(more[0], int) else names[1:]  # a truth value may be written as 1
    if len(more) > len(rest):
        raise TypeError(f"mean_variance_normalization(): given {5 + len(more)} arguments; allowed: up to {5 + len(rest)}")
    given = {**dict(zip(rest, more, strict=False)), **named}
    return directml.mean_variance_normalization(  # type: ignore[attr-defined]
        input, scale, bias, axes=axes, normalize_variance=normalize_variance, **given
    )


def average_pooling(
    input: Expression,  # noqa: A002
    strides: Any,
    window_sizes: Any,
    start_padding: Any = (),
    end_padding: Any = (),
    *more: Any,
    **named: Any,
) -> Any:
    """``tvmdml.directml.average_pooling``: behind ``end_padding`` come ``dilations``, which may be left out or 0, and then
    ``include_padding``.
    """
    rest = ["dilations", "include_padding"] if more and not isinstance(more[0], int) else ["include_padding"]
    if len(more) > len(rest):
        raise TypeError(f"average_pooling(): given {5 + len(more)} arguments; allowed: up to {5 + len(rest)}")
    given = {**dict(zip(rest, more, strict=False)), **named}
    given["dilations"] = [step or 1 for step in given.get("dilations", ())]
    return directml.average_pooling(  # type: ignore[attr-defined]
        input, strides=strides, window_sizes=window_sizes, start_padding=start_padding, end_padding=end_padding, **given
    )


FUNCTIONS: dict[str, Callable[..., Any]] = {
    **{name: _made(name, *row) for name, row in TABLE.items()},
    "input_tensor": input_tensor,
    "mean_variance_normalization": mean_variance_normalization,
    "average_pooling": average_pooling,
}
"""All functions, by name."""
