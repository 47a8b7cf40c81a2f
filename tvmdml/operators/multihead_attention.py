"""DML_OPERATOR_MULTIHEAD_ATTENTION and DML_OPERATOR_MULTIHEAD_ATTENTION1."""

from __future__ import annotations

from types import MappingProxyType

from tvmdml.enums import MultiheadAttentionMaskType
from tvmdml.operators._attention import Attention
from tvmdml.operators._attention_onnx import attention, multi_head_attention
from tvmdml.operators._contract import Float, Operator, OptionalInput, OptionalOutput, Output, Shared, Uint
from tvmdml.operators._onnx import OnnxNode
from tvmdml.operators._support import Support, support
from tvmdml.tensors import TensorDesc


def supported(level: str, positions: str, **more: str) -> tuple[Support, ...]:
    """The types and ranks of the tensors, of which ``positions`` is what is added to scores."""
    stacked = dict.fromkeys(
        ("stacked_query_key_tensor", "stacked_key_value_tensor", "stacked_query_key_value_tensor"), f"{level} F r5-5"
    )
    kept = ("past_key_tensor", "past_value_tensor", "output_present_key_tensor", "output_present_value_tensor")
    return support(
        f"{level} F r3-5",
        bias_tensor=f"{level} F r1-5",
        mask_tensor=f"{level} i r1-5",
        **stacked,
        **dict.fromkeys((positions, *kept), f"{level} F r4-5"),
        **more,
    )


class MultiheadAttention(Attention):
    """Weighed sums of values, for each head (``DML_MULTIHEAD_ATTENTION_OPERATOR_DESC``).

    The weights of a query are ``softmax(scale * query @ keys.T)``, with what is added to that: a bias of positions, and a filter
    value for keys that a mask does not keep. Queries, keys and values come apart or stacked; keys and values of earlier steps come
    before the new ones, and all of them can be kept for the next step.
    """

    SUPPORT = supported("6.1", "relative_position_bias_tensor")
    ONNX = ("com.microsoft.MultiHeadAttention",)
    POSITIONS = "relative_position_bias_tensor"
    SYNONYMS = MappingProxyType({"AttentionBiasTensor": "RelativePositionBiasTensor"})

    query_tensor: OptionalInput = None
    key_tensor: OptionalInput = None
    value_tensor: OptionalInput = None
    stacked_query_key_tensor: OptionalInput = None
    stacked_key_value_tensor: OptionalInput = None
    stacked_query_key_value_tensor: OptionalInput = None
    bias_tensor: OptionalInput = None
    mask_tensor: OptionalInput = None
    relative_position_bias_tensor: OptionalInput = None
    past_key_tensor: OptionalInput = None
    past_value_tensor: OptionalInput = None
    output_tensor: Output
    output_present_key_tensor: OptionalOutput = None
    output_present_value_tensor: OptionalOutput = None
    scale: Float
    mask_filter_value: Float
    head_count: Uint
    mask_type: MultiheadAttentionMaskType

    @classmethod
    def from_onnx(cls, node: OnnxNode) -> Operator:
        """ONNX Runtime's operator."""
        return multi_head_attention(cls, node)

    def onnx_inputs(self) -> tuple[int, ...]:
        """Keys and values of four dimensions, which are those of earlier steps here, come after the bias, the mask and the rest."""
        return (0, 3, 4, 5, 1, 2, 6, 7) if self.given() == ("query_tensor",) else (0, 1, 2, 3, 4, 5, 6, 7)

    @property
    def head_counts(self) -> tuple[int, int]:
        """As many heads of keys as of queries."""
        return self.head_count, self.head_count


class MultiheadAttention1(Attention):
    """The same with heads of keys that several heads of queries share (``DML_MULTIHEAD_ATTENTION1_OPERATOR_DESC``).

    With ``past_sequence_lengths_tensor``, each batch has so many rows of earlier steps. The new rows are stored after them, and a
    query sees no key after its own. Rows behind the new ones are those of the past, and 0 where it has none. The tensors of the
    past may be those in which rows are kept: then only new rows are written. Without tensors of the past, the rows of earlier
    steps are in those in which rows are kept.
    """

    SUPPORT = supported("6.3", "attention_bias_tensor", past_sequence_lengths_tensor="6.3 i r1-5")
    ONNX = ("Attention",)
    POSITIONS = "attention_bias_tensor"
    SYNONYMS = MappingProxyType({"RelativePositionBiasTensor": "AttentionBiasTensor"})
    SHARES = (
        ("past_key_tensor", "output_present_key_tensor"),
        ("past_value_tensor", "output_present_value_tensor"),
    )

    query_tensor: OptionalInput = None
    key_tensor: OptionalInput = None
    value_tensor: OptionalInput = None
    stacked_query_key_tensor: OptionalInput = None
    stacked_key_value_tensor: OptionalInput = None
    stacked_query_key_value_tensor: OptionalInput = None
    bias_tensor: OptionalInput = None
    mask_tensor: OptionalInput = None
    attention_bias_tensor: OptionalInput = None
    past_key_tensor: OptionalInput = None
    past_value_tensor: OptionalInput = None
    past_sequence_lengths_tensor: OptionalInput = None
    output_tensor: Output
    output_present_key_tensor: OptionalOutput = None
    output_present_value_tensor: OptionalOutput = None
    scale: Float
    mask_filter_value: Float
    query_head_count: Uint
    key_value_head_count: Uint
    mask_type: MultiheadAttentionMaskType

    @classmethod
    def from_onnx(cls, node: OnnxNode) -> Operator:
        """ONNX's Attention."""
        return attention(cls, node)

    @property
    def head_counts(self) -> tuple[int, int]:
        """Each head of keys is for as many heads of queries."""
        return self.query_head_count, self.key_value_head_count

    @property
    def lengths(self) -> TensorDesc | None:
        """The rows of earlier steps of each batch."""
        return self.past_sequence_lengths_tensor

    def shareable(self) -> Shared:
        """Only where lengths say which rows are new: otherwise all rows move."""
        return super().shareable() if self.lengths is not None else ()

    def _head_names(self) -> tuple[str, ...]:
        return "query_head_count", "key_value_head_count"
