"""``tvmdml.rnn``, ``tvmdml.lstm`` and ``tvmdml.gru``."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any, NamedTuple

from tvmdml.doors._made import as_tuple, door
from tvmdml.enums import RecurrentNetworkDirection
from tvmdml.errors import InvalidArgument, message, safe_repr
from tvmdml.functions import AnyArray, Described, call, describes
from tvmdml.operators import Operator
from tvmdml.operators._recurrent import Recurrent
from tvmdml.operators.recurrent import Gru, Lstm, Rnn

__all__ = ["GruResult", "LstmResult", "LstmStates", "RnnResult", "gru", "lstm", "rnn"]


class RnnResult(NamedTuple):
    """The results of ``rnn``."""

    sequence: AnyArray
    """The hidden state after each step."""
    single: AnyArray
    """The hidden state after the last step."""


class GruResult(NamedTuple):
    """The results of ``gru``."""

    sequence: AnyArray
    """The hidden state after each step."""
    single: AnyArray
    """The hidden state after the last step."""


class LstmStates(NamedTuple):
    """The results of ``lstm(output_options="single")``."""

    single: AnyArray
    """The hidden state after the last step."""
    cell_single: AnyArray
    """The cells after the last step."""


class LstmResult(NamedTuple):
    """The results of ``lstm``."""

    sequence: AnyArray
    """The hidden state after each step."""
    single: AnyArray
    """The hidden state after the last step."""
    cell_single: AnyArray
    """The cells after the last step."""


def _forms(states: str, both: str) -> Iterator[tuple[dict[str, str], str]]:
    """The types of a network whose last states alone are ``states``."""
    last = "AnyArray" if states == "AnyArray" else "Sequence[AnyArray]"
    yield {"output_options": 'Literal["sequence"]', "out": "AnyArray | None"}, "AnyArray"
    yield {"output_options": 'Literal["single"]', "out": f"{last} | None"}, states
    yield {"out": "Sequence[AnyArray] | None"}, both


@door(Rnn, *_forms("AnyArray", "RnnResult"))
def rnn(
    input: AnyArray,  # noqa: A002
    weight: AnyArray,
    recurrence: AnyArray,
    bias: AnyArray | None = None,
    hidden_init: AnyArray | None = None,
    sequence_lengths: AnyArray | None = None,
    *,
    activation_descs: Sequence[Operator] | None = None,
    direction: RecurrentNetworkDirection | str = RecurrentNetworkDirection.FORWARD,
    output_options: str = "both",
    out: AnyArray | Sequence[AnyArray] | None = None,
    device: str | None = None,
) -> Any:
    """Run a simple recurrent network over sequences (DML_OPERATOR_RNN).

    The hidden state becomes ``f(x @ W.T + y @ R.T + bias)``, where ``x`` is an element of the sequence, and ``y`` the state before.

    Args:
        weight: the weights W of the input: 1, directions, hidden, inputs.
        recurrence: the weights R of the hidden state: 1, directions, hidden, hidden.
        bias: the input's biases, then the recurrence's: 1, 1, directions, 2 x hidden.
        activation_descs: the functions of each direction, 1 for each, such as ``tvmdml.ActivationTanh.fused()``; given once
            they are both directions'. By default the hyperbolic tangent.

    Returns:
        A ``RnnResult``: sequence, of sizes steps, directions, batch, hidden, and single, of 1, directions, batch,
        hidden; or with other ``output_options`` a part of it.
    """
    inputs = (input, weight, recurrence, bias, hidden_init, sequence_lengths)
    results = _run(_describe_rnn, inputs, activation_descs, (direction,), output_options, out, device)
    return RnnResult(*results) if output_options == "both" else results[0]


@door(Lstm, *_forms("LstmStates", "LstmResult"))
def lstm(
    input: AnyArray,  # noqa: A002
    weight: AnyArray,
    recurrence: AnyArray,
    bias: AnyArray | None = None,
    hidden_init: AnyArray | None = None,
    cell_mem_init: AnyArray | None = None,
    sequence_lengths: AnyArray | None = None,
    peephole: AnyArray | None = None,
    *,
    activation_descs: Sequence[Operator] | None = None,
    direction: RecurrentNetworkDirection | str = RecurrentNetworkDirection.FORWARD,
    clip_threshold: float | None = None,
    couple_input_forget: bool = False,
    output_options: str = "both",
    out: AnyArray | Sequence[AnyArray] | None = None,
    device: str | None = None,
) -> Any:
    """Run a network of long short-term memory over sequences (DML_OPERATOR_LSTM).

    The gates are in the order i, o, f, c, as in ONNX; PyTorch's is i, f, g, o: ``torch.cat([w.chunk(4)[k] for k in (0, 3, 1, 2)])``
    is a weight of PyTorch's in this order. Each is ``f(x @ W.T + y @ R.T + bias)``, with the cell times a peephole
    weight in the sums of i, o and f; the cell becomes ``f * cell + i * g(sum of c)``, and the hidden state ``o * h(cell)``.

    Args:
        weight: the weights W of the input: 1, directions, 4 x hidden, inputs.
        recurrence: the weights R of the hidden state: 1, directions, 4 x hidden, hidden.
        bias: the input's biases, then the recurrence's: 1, 1, directions, 2 x 4 x hidden.
        cell_mem_init: the cells before the first step, likewise.
        peephole: weights of the cell in the gates i, o and f: 1, 1, directions, 3 x hidden.
        activation_descs: the functions of each direction, 3 for each, such as ``tvmdml.ActivationTanh.fused()``; given once
            they are both directions'. By default sigmoid and twice the hyperbolic tangent.
        clip_threshold: the sums of gates are clipped to numbers between this and its negative; by default they are not.
        couple_input_forget: whether the gate f is 1 - i.

    Returns:
        A ``LstmResult``: sequence, of sizes steps, directions, batch, hidden, and single and cell_single, of 1, directions, batch,
        hidden; or with other ``output_options`` a part of it.
    """
    inputs = (input, weight, recurrence, bias, hidden_init, cell_mem_init, sequence_lengths, peephole)
    attributes = (direction, clip_threshold, couple_input_forget)
    results = _run(_describe_lstm, inputs, activation_descs, attributes, output_options, out, device)
    if output_options == "both":
        return LstmResult(*results)
    return LstmStates(*results) if output_options == "single" else results[0]


@door(Gru, *_forms("AnyArray", "GruResult"))
def gru(
    input: AnyArray,  # noqa: A002
    weight: AnyArray,
    recurrence: AnyArray,
    bias: AnyArray | None = None,
    hidden_init: AnyArray | None = None,
    sequence_lengths: AnyArray | None = None,
    *,
    activation_descs: Sequence[Operator] | None = None,
    direction: RecurrentNetworkDirection | str = RecurrentNetworkDirection.FORWARD,
    linear_before_reset: bool = True,
    output_options: str = "both",
    out: AnyArray | Sequence[AnyArray] | None = None,
    device: str | None = None,
) -> Any:
    """Run a network of gated recurrent units over sequences (DML_OPERATOR_GRU).

    The gates are in the order z, r, h, as in ONNX; PyTorch's is r, z, n: ``torch.cat([w.chunk(3)[k] for k in (1, 0, 2)])`` is a
    weight of PyTorch's in this order, and its networks are those with ``linear_before_reset``. The hidden state ``y`` becomes
    ``(1 - z) * n + z * y``, where ``n`` is ``g(x @ W.T + Wb + r * (y @ R.T + Rb))``, or without
    ``linear_before_reset`` ``g(x @ W.T + Wb + (r * y) @ R.T + Rb)``.

    Args:
        weight: the weights W of the input: 1, directions, 3 x hidden, inputs.
        recurrence: the weights R of the hidden state: 1, directions, 3 x hidden, hidden.
        bias: the input's biases, then the recurrence's: 1, 1, directions, 2 x 3 x hidden.
        activation_descs: the functions of each direction, 2 for each, such as ``tvmdml.ActivationTanh.fused()``; given once
            they are both directions'. By default sigmoid and the hyperbolic tangent.
        linear_before_reset: whether the reset gate multiplies what the state contributes, and not the state.

    Returns:
        A ``GruResult``: sequence, of sizes steps, directions, batch, hidden, and single, of 1, directions, batch,
        hidden; or with other ``output_options`` a part of it.
    """
    inputs = (input, weight, recurrence, bias, hidden_init, sequence_lengths)
    results = _run(_describe_gru, inputs, activation_descs, (direction, linear_before_reset), output_options, out, device)
    return GruResult(*results) if output_options == "both" else results[0]


_OUTPUTS = {
    "both": ("output_sequence_tensor", "output_single_tensor", "output_cell_single_tensor"),
    "sequence": ("output_sequence_tensor",),
    "single": ("output_single_tensor", "output_cell_single_tensor"),
}


def _run(
    describe: Any, inputs: Any, activation_descs: Any, attributes: Any, options: Any, out: Any, device: Any
) -> tuple[Any, ...]:
    if not isinstance(options, str) or options not in _OUTPUTS:
        where = f"{describe.function}: output_options"
        raise InvalidArgument(message(where, safe_repr(options), ", ".join(map(repr, _OUTPUTS))))
    return call(describe, inputs, (as_tuple(activation_descs), options, *attributes), out, device, optional=True)


def _described(cls: type[Recurrent], inputs: Any, activations: Any, options: str, direction: Any, **attributes: Any) -> Described:
    if inputs[0] is None:
        raise InvalidArgument(message(cls.where("input_tensor"), "None", "an array"))
    direction = RecurrentNetworkDirection.parse(direction, cls.where("direction"))
    both = direction is RecurrentNetworkDirection.BIDIRECTIONAL
    own = activations
    if both and isinstance(own, (list, tuple)) and len(own) == len(cls.USUAL):
        own = [*own, *own]  # one direction's are those of the other, too
    fields = [field.name for field in cls.fields()]
    wanted = {name: inputs[0].data_type for name in _OUTPUTS[options] if name in fields}
    return Described(cls.of(*inputs, activation_descs=own, direction=direction, **wanted, **attributes))


@describes("tvmdml.rnn", "input", "weight", "recurrence", "bias", "hidden_init", "sequence_lengths")
def _describe_rnn(*given: Any) -> Described:
    *inputs, activations, options, direction = given
    return _described(Rnn, inputs, activations, options, direction)


@describes("tvmdml.lstm", "input", "weight", "recurrence", "bias", "hidden_init", "cell_mem_init", "sequence_lengths", "peephole")
def _describe_lstm(*given: Any) -> Described:
    *inputs, activations, options, direction, clip, couple = given
    clips = {} if clip is None else {"clip_threshold": clip, "use_clip_threshold": True}
    return _described(Lstm, inputs, activations, options, direction, couple_input_forget=couple, **clips)


@describes("tvmdml.gru", "input", "weight", "recurrence", "bias", "hidden_init", "sequence_lengths")
def _describe_gru(*given: Any) -> Described:
    *inputs, activations, options, direction, linear = given
    return _described(Gru, inputs, activations, options, direction, linear_before_reset=linear)
