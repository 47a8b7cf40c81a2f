"""Attention in the place of two products and the softmax between: tensors have four dimensions, and strides may be any.

These are no operators of DirectML, and have no functions: ``graph/passes/attention.py`` makes them.
"""

from __future__ import annotations

from typing import Any, ClassVar

import numpy as np

from tvmdml.operators._accuracy import Expected, Near
from tvmdml.operators._attention import Attention
from tvmdml.operators._attention_reference import weighed
from tvmdml.operators._attention_steps import AttentionSizes, DescribedAttention, HeadRows, Joined
from tvmdml.operators._contract import Float, Input, NumpyArray, OptionalInput, Output
from tvmdml.operators._support import support
from tvmdml.tensors import TensorDataType, TensorDesc


class SoftmaxAttention(Attention):
    """Weighed sums of values of all heads: ``softmax(scale * query @ key.T + bias) @ value``.

    A row without weights is NaN, as the softmax of nothing but negative infinity is.

    Args:
        query_tensor: of {batch, heads, rows, channels}, as the others; strides may be any.
        attention_bias_tensor: what is added to scores, of {batch, heads, rows, keys}.
    """

    NAME = "FUSED_SOFTMAX_ATTENTION"
    SUPPORT = support("1.0 f32 r4")
    SCHEDULE = "multihead_attention"
    POSITIONS = "attention_bias_tensor"
    WITHOUT_WEIGHTS: ClassVar[float] = float("nan")
    mask_filter_value = 0.0  # no field here: there is no mask

    query_tensor: Input
    key_tensor: Input
    value_tensor: Input
    attention_bias_tensor: OptionalInput = None
    output_tensor: Output
    scale: Float

    def modules(self) -> tuple[str, ...]:
        """That of multi-head attention."""
        return (self.SCHEDULE,)

    def check(self) -> None:
        """Sizes fit together."""
        batch, heads, rows, channels = self.query_tensor.sizes
        keys, values = self.key_tensor.sizes[2], self.value_tensor.sizes[3]
        wanted = {
            "key_tensor": (batch, heads, keys, channels),
            "value_tensor": (batch, heads, keys, values),
            "output_tensor": (batch, heads, rows, values),
            **({"attention_bias_tensor": (batch, heads, rows, keys)} if self.added is not None else {}),
        }
        for name, sizes in wanted.items():
            self._check_sizes(name, sizes)

    def infer(self) -> dict[str, Any]:
        """The results of all query rows."""
        return {"output_tensor": self.query_tensor.with_sizes((*self.query_tensor.sizes[:3], self.value_tensor.sizes[3]))}

    @property
    def head_counts(self) -> tuple[int, int]:
        """As many heads of keys as of queries."""
        return self.query_tensor.sizes[1], self.query_tensor.sizes[1]

    def mask(self) -> None:
        """There is none."""

    def sizes(self) -> AttentionSizes:
        """The sizes of its tensors."""
        batch, heads, rows, channels = self.query_tensor.sizes
        keys, values = self.value_tensor.sizes[2:]
        return AttentionSizes(batch, rows, keys, 0, keys, heads, heads, channels, values)

    def described(self) -> DescribedAttention:
        """Where everything is."""

        def rows(name: str) -> HeadRows:
            tensor: TensorDesc = getattr(self, name)
            batch, head, row, channel = tensor.layout
            return HeadRows(name, 0, (batch, head, row, channel), tensor.sizes[2])

        s, added = self.sizes(), self.added
        keys, values = (
            Joined(None, rows(name), 0, None, channels)
            for name, channels in (("key_tensor", s.channels), ("value_tensor", s.value_channels))
        )
        positions = None if added is None else tuple(added.layout)
        return DescribedAttention(s, rows("query_tensor"), keys, values, rows("output_tensor"), None, positions, None, None, 0)

    def computed(self) -> TensorDataType:
        """Results are float32."""
        return TensorDataType.FLOAT32

    def reference(self, *inputs: NumpyArray | None) -> tuple[Expected, ...]:
        """In float64."""
        q, k, v, *more = inputs
        assert q is not None
        assert k is not None
        assert v is not None
        with np.errstate(all="ignore"):
            found, error, _ = weighed(self, q, k, v, more[0] if more else None)
        return (Near(found, np.dtype(np.float32), 0, error),)
