"""Recurrent networks whose weights are bytes: two ELEMENT_WISE_DEQUANTIZE_LINEAR and a network as one operator.

They are no operators of DirectML, and have no functions: ``graph/passes/recurrent_bytes.py`` makes them. Weights are not floats
in memory.
"""

from __future__ import annotations

from typing import Any, ClassVar

import numpy as np

from tvmdml.operators._accuracy import Expected
from tvmdml.operators._contract import Bool, Input, NumpyArray, Operator, OptionalInput, Role, defaults
from tvmdml.operators._recurrent import Recurrent
from tvmdml.operators._support import support
from tvmdml.operators.recurrent import Gru, Lstm, Rnn

_SUPPORT = support(
    "1.0 f32 r4",
    sequence_lengths_tensor="1.0 u r4 · ext +iL",
    **dict.fromkeys(
        ("weight_tensor", "weight_zero_point_tensor", "recurrence_tensor", "recurrence_zero_point_tensor"),
        "1.0 bytes r4",
    ),
)


class FusedParameters(Operator):
    """Fields that come before those of a network: inputs are before outputs."""

    weight_scale_tensor: Input
    weight_zero_point_tensor: OptionalInput = None
    recurrence_scale_tensor: Input
    recurrence_zero_point_tensor: OptionalInput = None


class QuantizedRecurrent(Recurrent):
    """Base class. A weight is ``(q - zero) * scale``; a unit's gate has one scale and one zero point.

    Vectors are multiplied by weights in integers: an element is rounded to a multiple of a part of the vector's largest magnitude,
    by 2**-23 of it at most, which is about what sums of float32 lose. A vector with an element that is not finite makes all its
    sums NaN. Kernels may also compute with floats.

    Args:
        weight_scale_tensor: {1, 1, directions, gates x hidden}, and so are the next three.
        weight_zero_point_tensor: of the weights' type; without it 0.
        may_round: whether 127 multiples are enough, which is a 254th of the largest magnitude.
    """

    SCHEDULE = "recurrent"
    FUNCTION = ""
    QUANTIZED = True
    HEAD: ClassVar[type[Recurrent]]

    may_round: Bool

    def modules(self) -> tuple[str, ...]:
        """The network's file, and those of its activations."""
        return tuple(dict.fromkeys((self.SCHEDULE, *super().modules()[1:])))

    @classmethod
    def _sizes(cls, t: int, b: int, i: int, h: int, d: int) -> dict[str, tuple[int, ...]]:
        own = [f"{name}_{one}_tensor" for name in ("weight", "recurrence") for one in ("scale", "zero_point")]
        return {**super()._sizes(t, b, i, h, d), **dict.fromkeys(own, (1, 1, d, cls.GATES * h))}

    def type_like(self, name: str) -> str:
        """Zero points have the type of their weights."""
        if name in ("weight_tensor", "recurrence_tensor"):
            return name
        return name.replace("zero_point_", "") if "zero_point" in name else super().type_like(name)

    @property
    def rounding(self) -> float:
        """Half a step of the integers, and what computing them may add."""
        return 0.5001 / 127 if self.may_round else 2.0**-23

    def reference(self, *inputs: NumpyArray | None) -> tuple[Expected, ...]:
        """That of the network with exact weights."""
        given = dict(zip((name for name, _ in self.tensors(Role.INPUT)), inputs, strict=True))
        for name in ("weight", "recurrence"):
            q, scale, zero = (given[f"{name}{one}_tensor"] for one in ("", "_scale", "_zero_point"))
            assert q is not None
            assert scale is not None
            less, factor = (0 if one is None else one.astype(np.float64)[0, 0][None, :, :, None] for one in (zero, scale))
            given[f"{name}_tensor"] = (q.astype(np.float64) - less) * factor
        return super().reference(*given.values())


class QuantizedRnn(QuantizedRecurrent, Rnn, FusedParameters):
    """A simple recurrent network."""

    NAME = "FUSED_QUANTIZED_RNN"
    SUPPORT = _SUPPORT
    DEFAULTS = defaults(may_round=False)
    HEAD = Rnn


class QuantizedLstm(QuantizedRecurrent, Lstm, FusedParameters):
    """Long short-term memory."""

    NAME = "FUSED_QUANTIZED_LSTM"
    SUPPORT = _SUPPORT
    DEFAULTS = defaults(**Lstm.DEFAULTS, may_round=False)
    HEAD = Lstm


class QuantizedGru(QuantizedRecurrent, Gru, FusedParameters):
    """Gated recurrent units."""

    NAME = "FUSED_QUANTIZED_GRU"
    SUPPORT = _SUPPORT
    DEFAULTS = defaults(may_round=False)
    HEAD = Gru


CLASSES: tuple[type[Any], ...] = (QuantizedRnn, QuantizedLstm, QuantizedGru)
