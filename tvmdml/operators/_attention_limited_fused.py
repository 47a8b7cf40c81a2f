"""Attention after rows of earlier steps, with what language models have beside DirectML's: windows, soft limits, and sinks.

It is no operator of DirectML, and has no function: as several of DirectML's operators it would keep a matrix of all scores.
"""

from __future__ import annotations

from tvmdml.operators._contract import Float, OptionalInput, Uint
from tvmdml.operators.multihead_attention import MultiheadAttention1, supported
from tvmdml.tensors import TensorDesc


class LimitedAttention(MultiheadAttention1):
    """``MultiheadAttention1`` with lengths of the past, and limits.

    Args:
        window: how many keys a query sees at most, its own the last; 0 for all.
        softcap: scores are ``softcap * tanh(scores / softcap)``, before anything is added to them; 0 if they stay as they are.
        sink_tensor: of each head of queries a score that no key has: it takes its part of the weights.
    """

    NAME = "FUSED_LIMITED_ATTENTION"
    SUPPORT = supported("6.3", "attention_bias_tensor", past_sequence_lengths_tensor="6.3 i r1-5", sink_tensor="6.3 F r1")
    SCHEDULE = "multihead_attention"

    sink_tensor: OptionalInput = None
    window: Uint
    softcap: Float

    @property
    def sinks(self) -> TensorDesc | None:
        """The tensor of them."""
        return self.sink_tensor

    @property
    def window_rows(self) -> int:
        """The window."""
        return self.window

    @property
    def most_score(self) -> float:
        """The soft limit."""
        return self.softcap

    def modules(self) -> tuple[str, ...]:
        """That of the operator without limits."""
        return (self.SCHEDULE,)

    def check(self) -> None:
        """There are lengths, and a sink for each head."""
        super().check()
        self.require(self.lengths is not None, "past_sequence_lengths_tensor", "None", "a tensor")
        self.require(0 <= self.softcap < float("inf"), "softcap", self.softcap, "a finite number, 0 or more")
        if self.sink_tensor is not None:
            self._check_sizes("sink_tensor", (self.query_head_count,))
