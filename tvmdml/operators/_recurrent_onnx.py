"""RNN, LSTM and GRU of ONNX: tensors with fewer dimensions, in another order, and functions by their names."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

from tvmdml.enums import RecurrentNetworkDirection
from tvmdml.operators._onnx import OnnxNode, Refused
from tvmdml.tensors import ArrayTensorDesc, TensorDataType

if TYPE_CHECKING:
    from tvmdml.operators._contract import Operator

_DIRECTIONS = dict(zip(("forward", "reverse", "bidirectional"), RecurrentNetworkDirection, strict=True))
_KNOWN = {
    "activations", "activation_alpha", "activation_beta", "clip", "direction", "hidden_size", "input_forget", "layout",
    "linear_before_reset",
}  # fmt: skip
_ACTIVATION = "ACTIVATION_"


class _Function(NamedTuple):
    name: str
    """DirectML's, without ``ACTIVATION_``."""
    numbers: Mapping[str, float] = {}
    """What it has of ``activation_alpha`` and ``activation_beta``, with their usual values."""
    others: Mapping[str, float] = {}


_FUNCTIONS = {
    "affine": _Function("LINEAR", {"alpha": 1.0, "beta": 0.0}),
    "elu": _Function("ELU", {"alpha": 1.0}),
    "hardsigmoid": _Function("HARD_SIGMOID", {"alpha": 0.2, "beta": 0.5}),
    "leakyrelu": _Function("LEAKY_RELU", {"alpha": 0.01}),
    "relu": _Function("RELU"),
    "scaledtanh": _Function("SCALED_TANH", {"alpha": 1.0, "beta": 1.0}),
    "sigmoid": _Function("SIGMOID"),
    "softplus": _Function("SOFTPLUS", others={"steepness": 1.0}),
    "softsign": _Function("SOFTSIGN"),
    "tanh": _Function("TANH"),
    "thresholdedrelu": _Function("THRESHOLDED_RELU", {"alpha": 1.0}),
}
"""ONNX's functions, in small letters."""


def activation(name: str, **numbers: float) -> Operator:
    """An activation as a part of another operator, by its name in DirectML without ``ACTIVATION_``."""
    from tvmdml.operators import by_name

    return by_name(f"{_ACTIVATION}{name}").fused(**numbers)


def from_node(cls: Any, node: OnnxNode, **attributes: Any) -> Operator:
    """The descriptor of a node; one that names no functions has DirectML's usual ones."""
    given = node.attributes
    unknown = sorted(set(given) - _KNOWN)
    if unknown:
        raise Refused(f"its attribute {unknown[0]} has no counterpart in DirectML")
    if node.integer("layout", 0):
        raise Refused("its layout is 1: DirectML's sequences have the time before the batch")
    if "clip" in given and "use_clip_threshold" not in attributes:
        raise Refused("its attribute clip has no counterpart in DirectML")
    direction = _text(given.get("direction", "forward"))
    if direction not in _DIRECTIONS:
        raise Refused(f"its direction is {direction}")
    names = [_text(one) for one in given.get("activations", ())]
    tensors = node.tensors()
    found: dict[str, ArrayTensorDesc | None] = {}
    for position, field in zip(cls.ONNX_INPUTS, _inputs(cls), strict=True):
        tensor = tensors[position] if position < len(tensors) else None
        found[field] = None if tensor is None else _of_rank_4(tensor, lengths=field == "sequence_lengths_tensor")
    draft = cls.of(
        *found.values(),
        activation_descs=None
        if not names
        else tuple(_activations(names, given.get("activation_alpha", ()), given.get("activation_beta", ()))),
        direction=_DIRECTIONS[direction],
        **attributes,
    )
    outputs = {name: desc for (name, desc), asked in zip(draft.infer().items(), node.outputs, strict=False) if asked}
    return cls.of(*found.values(), **_attributes(draft), **outputs)


def _inputs(cls: Any) -> list[str]:
    from tvmdml.operators._contract import Role

    return [field.name for field in cls.fields() if field.role is Role.INPUT]


def _attributes(desc: Operator) -> dict[str, Any]:
    from tvmdml.operators._roles import TENSORS

    return {field.name: getattr(desc, field.name) for field in desc.fields() if field.role not in TENSORS}


def _of_rank_4(tensor: ArrayTensorDesc, lengths: bool) -> ArrayTensorDesc:
    """With sizes of 1 before the others. Lengths are unsigned in DirectML; none of them is negative."""
    data_type = TensorDataType.UINT32 if lengths and tensor.data_type is TensorDataType.INT32 else tensor.data_type
    return ArrayTensorDesc(data_type, (1, 1, 1, 1, *tensor.sizes)[-max(4, tensor.rank) :])


def _activations(names: Sequence[str], alphas: Sequence[float], betas: Sequence[float]) -> Iterator[Operator]:
    """The functions; each that has a number takes the next one."""
    rest = {"alpha": iter(alphas), "beta": iter(betas)}
    for name in names:
        if name.lower() not in _FUNCTIONS:
            raise Refused(f"its activation {name} has no counterpart in DirectML")
        own = _FUNCTIONS[name.lower()]
        numbers = {one: next(rest[one], value) for one, value in own.numbers.items()}
        yield activation(own.name, **numbers, **own.others)


def _text(value: Any) -> str:
    return value.decode() if isinstance(value, bytes) else str(value)
