"""Attention with pointwise operators behind it, as one operator: without rows that are kept, since these would be more results."""

from __future__ import annotations

from typing import Any

from tvmdml.operators._attention import Attention
from tvmdml.operators._followed import Followed, followed_classes
from tvmdml.operators.multihead_attention import MultiheadAttention, MultiheadAttention1
from tvmdml.tensors import TensorDataType, TensorDesc


class FollowedAttention(Followed, Attention):
    """Base class of those of the attention family."""

    def check(self) -> None:
        """There is one result."""
        super().check()
        kept = self.output_present_key_tensor
        self.require(kept is None, "output_present_key_tensor", kept, "None: there is one result")

    def beside(self) -> tuple[tuple[str, TensorDesc], ...]:
        """The other inputs of what follows."""
        return tuple((f"epilogue_tensors[{i}]", tensor) for i, tensor in enumerate(self.epilogue_tensors))

    def computed(self) -> TensorDataType:
        """That of the head's result."""
        return self._chain.input_tensors[0].data_type

    def finished(self, value: Any, *others: Any) -> Any:
        """A result, passed on."""
        return self.after(value, *others)

    def behind(self) -> tuple[tuple[str, str], ...]:
        """What follows, without its sizes."""
        return self.key_behind()


CLASSES = followed_classes(FollowedAttention, MultiheadAttention, MultiheadAttention1)
