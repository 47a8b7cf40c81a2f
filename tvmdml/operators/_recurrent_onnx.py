"""RNN, LSTM and GRU of ONNX: tensors with fewer dimensions, in another order, and functions by their names."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING, Any, NamedTuple

from tvmdml.enums import RecurrentNetworkDirection
from tvmdml.operators._onnx import NotConvertible, OnnxNode
from tvmdml.tensors import ArrayTensorDesc, TensorDataType

if TYPE_CHECKING:
    from tvmdml.operators._contract import Operator

_DIRECTIONS = dict(zip(("forward", "reverse", "bidirectional"), RecurrentNetworkDirection, strict=True))
_KNOWN = {
    "activations", "activation_alpha", "activation_beta", "clip", "direction", "hidden_size", "input_forget", "layout",
    "linear_before_reset",
}  # fmt: skip
_ACTIVATION = "ACTIVATION_"


class OnnxActivation(NamedTuple):
    """An activation."""

    name: str
    """DirectML's, without ``ACTIVATION_``."""
    numbers: Mapping[str, float] = {}
    """What it has of ``activation_alpha`` and ``activation_beta``, with their usual values."""
    others: Mapping[str, float] = {}

    def fused(self) -> Operator:
        """The activation as a part of another operator."""
        return activation(self.name, **self.numbers, **self.others)


_FUNCTIONS = {
    "affine": OnnxActivation("LINEAR", {"alpha": 1.0, "beta": 0.0}),
    "elu": OnnxActivation("ELU", {"alpha": 1.0}),
    "hardsigmoid": OnnxActivation("HARD_SIGMOID", {"alpha": 0.2, "beta": 0.5}),
    "leakyrelu": OnnxActivation("LEAKY_RELU", {"alpha": 0.01}),
    "relu": OnnxActivation("RELU"),
    "scaledtanh": OnnxActivation("SCALED_TANH", {"alpha": 1.0, "beta": 1.0}),
    "sigmoid": OnnxActivation("SIGMOID"),
    "softplus": OnnxActivation("SOFTPLUS", others={"steepness": 1.0}),
    "softsign": OnnxActivation("SOFTSIGN"),
    "tanh": OnnxActivation("TANH"),
    "thresholdedrelu": OnnxActivation("THRESHOLDED_RELU", {"alpha": 1.0}),
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
        raise NotConvertible(f"its attribute {unknown[0]} has no counterpart in DirectML")
    if node.integer("layout", 0):
        raise NotConvertible("its layout is 1: DirectML's sequences have the time before the batch")
    if "clip" in given and "use_clip_threshold" not in attributes:
        raise NotConvertible("its attribute clip has no counterpart in DirectML; tvmdml.onnx.load computes it with other operators")
    direction = _text(given.get("direction", "forward"))
    if direction not in _DIRECTIONS:
        raise NotConvertible(f"its direction is {direction}")
    functions = tuple(one.fused() for one in functions_of(given))
    tensors = node.tensors()
    found: dict[str, ArrayTensorDesc | None] = {}
    for position, field in zip(cls.ONNX_INPUTS, _inputs(cls), strict=True):
        tensor = tensors[position] if position < len(tensors) else None
        found[field] = None if tensor is None else _of_rank_4(tensor, lengths=field == "sequence_lengths_tensor")
    draft = cls.of(
        *found.values(),
        activation_descs=functions or None,
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


def functions_of(attributes: Mapping[str, Any]) -> Iterator[OnnxActivation]:
    """The functions that a node names; each that has a number takes the next one."""
    rest = {one: iter(attributes.get(f"activation_{one}", ())) for one in ("alpha", "beta")}
    for name in map(_text, attributes.get("activations", ())):
        if name.lower() not in _FUNCTIONS:
            raise NotConvertible(f"its activation {name} has no counterpart in DirectML")
        own = _FUNCTIONS[name.lower()]
        yield own._replace(numbers={one: next(rest[one], value) for one, value in own.numbers.items()})


def _text(value: Any) -> str:
    return value.decode() if isinstance(value, bytes) else str(value)
