"""The attention family: rows of queries, weighed sums of rows of values, and the rows that are kept for the next step.

DirectML's tensors come in many layouts: apart, stacked, with rows of an earlier step. The family makes one description of them
(``HeadRows``, ``Joined``): where the element of a batch, a head, a row and a channel is. Computation and schedules see no more.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, ClassVar

from tvmdml.enums import MultiheadAttentionMaskType as MaskType
from tvmdml.kernels import tensorir_values as T
from tvmdml.operators._accuracy import Expected
from tvmdml.operators._attention_masks import Mask, mask_of, mask_sizes
from tvmdml.operators._attention_steps import AttentionSizes, AttentionSteps, DescribedAttention, HeadRows, Joined
from tvmdml.operators._contract import Float, NumpyArray, Operator, OptionalInput, OptionalOutput, Output, Role, Shared
from tvmdml.tensors import TensorDataType, TensorDesc

_WAYS = (
    ("query_tensor", "key_tensor", "value_tensor"),
    ("value_tensor", "stacked_query_key_tensor"),
    ("query_tensor", "stacked_key_value_tensor"),
    ("stacked_query_key_value_tensor",),
    ("query_tensor",),
)
"""The tensors that queries, keys and values may be in. Queries alone need keys and values of earlier steps."""
_LAYOUTS = {
    "query_tensor": (0, 1),
    "key_tensor": (1, 1),
    "value_tensor": (2, 1),
    "stacked_query_key_tensor": (0, 2),
    "stacked_key_value_tensor": (1, 2),
    "stacked_query_key_value_tensor": (0, 3),
}
"""What is first in each tensor, of query, key and value, and how many of them it has."""


class Attention(Operator):
    """Base class of the family."""

    SUMS = True
    FAMILY: ClassVar[str] = "attention"
    CONSTANT_SHAPES = "where heads are follows from the sizes"
    POSITIONS: ClassVar[str] = ""
    """The name of the tensor that is added to the scores."""
    BFLOAT16: ClassVar[bool] = False
    """Whether factors, which are float32, are rounded to bfloat16."""
    WITHOUT_WEIGHTS: ClassVar[float] = 0.0
    """The results of a row whose scores are all negative infinity."""

    if TYPE_CHECKING:  # the fields stand in DirectML's order, in each class
        bias_tensor: OptionalInput
        mask_tensor: OptionalInput
        past_key_tensor: OptionalInput
        past_value_tensor: OptionalInput
        output_tensor: Output
        output_present_key_tensor: OptionalOutput
        output_present_value_tensor: OptionalOutput
        scale: Float
        mask_filter_value: Float
        mask_type: MaskType

    # -- What an operator defines

    @property
    def head_counts(self) -> tuple[int, int]:
        """The heads of queries, and of keys and values."""
        raise NotImplementedError(self.NAME)

    @property
    def lengths(self) -> TensorDesc | None:
        """How many rows of earlier steps each batch has, if a tensor says so."""
        return None

    @property
    def sinks(self) -> TensorDesc | None:
        """Of each head a score that no key has: it takes its part of the weights."""
        return None

    @property
    def window_rows(self) -> int:
        """With lengths of the past: how many keys a query sees at most, its own the last; 0 for all."""
        return 0

    @property
    def most_score(self) -> float:
        """What products do not come beyond; 0 if they may."""
        return 0.0

    @property
    def is_limited(self) -> bool:
        """Whether there is any of these."""
        return bool(self.sinks or self.window_rows or self.most_score)

    # -- The description

    @property
    def added(self) -> TensorDesc | None:
        """What is added to the scores."""
        return getattr(self, self.POSITIONS)

    def given(self) -> tuple[str, ...]:
        """The tensors that queries, keys and values are in."""
        return tuple(name for name in _LAYOUTS if getattr(self, name) is not None)

    def sizes(self) -> AttentionSizes:
        """The sizes, of tensors that need not fit together."""
        heads, joint = self.head_counts
        batch, rows, channels = self._shape(0)
        past = 0 if self.past_key_tensor is None else self.past_key_tensor.sizes[-2]
        if self.given() == _WAYS[-1]:
            kept = self.past_value_tensor
            return AttentionSizes(batch, rows, 0, past, past, heads, joint, channels, 1 if kept is None else kept.sizes[-1])
        new, value_channels = self._shape(1)[1], self._shape(2)[2]
        total = past + new
        if self.lengths is not None and self.output_present_key_tensor is not None:
            total = self.output_present_key_tensor.sizes[-2]
        return AttentionSizes(batch, rows, new, past, total, heads, joint, channels, value_channels)

    def _source(self, part: int) -> tuple[str, int, int]:
        """The tensor of queries (0), keys (1) or values (2), the position in it, and whether it is stacked."""
        for name in self.given():
            first, count = _LAYOUTS[name]
            if first <= part < first + count:
                return name, part - first, count
        raise LookupError(part)

    def _shape(self, part: int) -> tuple[int, int, int]:
        """Batch, rows, and channels of a head."""
        name, _, count = self._source(part)
        sizes = getattr(self, name).sizes
        if count > 1:
            return sizes[0], sizes[1], sizes[4]
        return sizes[-3], sizes[-2], sizes[-1] // self.head_counts[min(part, 1)]

    def queries(self) -> HeadRows:
        """Where queries are."""
        return self._rows(0)

    def results(self) -> HeadRows:
        """Where results are."""
        s = self.sizes()
        return _apart("output_tensor", self.output_tensor, s.value_channels)

    def joined(self, part: int) -> Joined:
        """Where keys (1) or values (2) are."""
        s, (kept, name) = self.sizes(), _KEPT[part]
        past, present = (
            None if tensor is None else HeadRows(one, 0, tuple(tensor.layout[-4:]), tensor.sizes[-2])
            for one, tensor in ((kept, getattr(self, kept)), (name, getattr(self, name)))
        )
        if past is None and self.lengths is not None:
            past = present
        new = self._rows(part) if s.new else None
        bias = (s.heads if part == 1 else s.heads + s.joint) * s.channels
        return Joined(past, new, bias, present, s.channels if part == 1 else s.value_channels)

    def _rows(self, part: int) -> HeadRows:
        name, position, count = self._source(part)
        tensor = getattr(self, name)
        if count == 1:
            return _apart(name, tensor, self._shape(part)[2])
        batch, row, head, stacked, channel = tensor.layout
        return HeadRows(name, position * stacked, (batch, head, row, channel), tensor.sizes[1])

    def mask(self) -> Mask | None:
        """What masks keys out."""
        return None if self.mask_tensor is None else mask_of(self.mask_type, self.mask_tensor, self.sizes())

    # -- The contract

    def check(self) -> None:
        """Sources, heads, and sizes that fit together."""
        given = self.given()
        allowed = "; ".join(" + ".join(way) for way in _WAYS[:-1])
        self.require(given in _WAYS, "query_tensor", " + ".join(given) or "no tensor", f"{allowed}; or query_tensor with the past")
        heads, joint = self.head_counts
        names = self._head_names()
        for name, count in zip(names, (heads, joint), strict=False):
            self.require(count >= 1, name, count, "1 or more")
        self.require(heads % joint == 0, names[0], heads, f"a multiple of {joint}, the {self.named(names[-1])}")
        for name in given:
            self._check_source(name)
        self._check_types()
        self._check_pairs()
        s = self.sizes()
        if given == _WAYS[-1]:
            self.require(self.past_key_tensor is not None, "past_key_tensor", "None", "a tensor, if there are no new keys")
            self.require(self.lengths is None, "past_sequence_lengths_tensor", "a tensor", "None, if there are no new keys")
        for name in given:
            sizes = getattr(self, name).sizes
            batch, rows = (sizes[0], sizes[1]) if _LAYOUTS[name][1] > 1 else (sizes[-3], sizes[-2])
            self.require(batch == s.batch, f"{name}.sizes", sizes, f"{s.batch} batches, as in {self.named(given[0])}")
            if _LAYOUTS[name][0] > 0:
                self.require(rows == s.new, f"{name}.sizes", sizes, f"{s.new} rows, as the keys have")
        if any(_LAYOUTS[name][0] == 1 for name in given):
            found = self._shape(1)[2]
            name = self._source(1)[0]
            self.require(found == s.channels, f"{name}.sizes", getattr(self, name).sizes, f"{s.channels} channels for each head")
        self._check_kept(s)
        wanted = (s.batch, s.rows, s.heads * s.value_channels)
        self._check_sizes("output_tensor", wanted)
        if self.bias_tensor is not None:
            self._check_sizes("bias_tensor", ((s.heads + s.joint) * s.channels + s.joint * s.value_channels,))
        if self.added is not None:
            self._check_sizes(self.POSITIONS, (s.batch, s.heads, s.rows, s.total))
        self._check_mask(s)

    def _head_names(self) -> tuple[str, ...]:
        return ("head_count",)

    def _check_source(self, name: str) -> None:
        """Leading sizes of 1, and heads."""
        tensor, (first, count) = getattr(self, name), _LAYOUTS[name]
        heads, joint = self.head_counts
        own = heads if first == 0 else joint
        if count == 1:
            self._check_leading(name, tensor, 3)
            shown = f"a multiple of {own} channels, one part for each head"
            self.require(tensor.sizes[-1] % own == 0, f"{name}.sizes", tensor.sizes, shown)
            return
        self.require(tensor.sizes[2:4] == (own, count), f"{name}.sizes", tensor.sizes, f"(batch, rows, {own}, {count}, channels)")
        if first == 0:
            self.require(heads == joint, name, f"{heads} heads of queries and {joint} of keys", "as many of both")

    def _check_leading(self, name: str, tensor: TensorDesc, rank: int) -> None:
        leading = tensor.sizes[: max(len(tensor.sizes) - rank, 0)]
        self.require(all(size == 1 for size in leading), f"{name}.sizes", tensor.sizes, f"1 before the last {rank}")

    def _check_sizes(self, name: str, wanted: tuple[Any, ...], shown: str = "") -> None:
        """These sizes, after any of 1."""
        tensor = getattr(self, name)
        fits = tensor.rank >= len(wanted) and tuple(tensor.sizes[tensor.rank - len(wanted) :]) == tuple(wanted)
        fits = fits and all(size == 1 for size in tensor.sizes[: tensor.rank - len(wanted)])
        self.require(fits, f"{name}.sizes", tensor.sizes, shown or f"{wanted}")

    def _check_types(self) -> None:
        first = self.given()[0]
        integers = ("mask_tensor", "past_sequence_lengths_tensor")
        for name, tensor in self.tensors():
            if tensor is not None and name not in (first, *integers):
                self.require_same("data_type", name, first)

    def _check_pairs(self) -> None:
        """Both tensors of the past, and both that are kept, or neither."""
        pairs = ("past_key_tensor", "past_value_tensor"), ("output_present_key_tensor", "output_present_value_tensor")
        for pair in pairs:
            for name, other in (pair, pair[::-1]):
                one = getattr(self, name) is not None or getattr(self, other) is None
                self.require(one, name, "None", f"a tensor, as there is {self.named(other)}")

    def _check_kept(self, s: AttentionSizes) -> None:
        """Rows of earlier steps, and those that are kept."""
        for part, (kept, name) in _KEPT.items():
            channels = s.channels if part == 1 else s.value_channels
            if getattr(self, kept) is not None:
                self._check_sizes(kept, (s.batch, s.joint, s.past, channels))
            if self.lengths is not None:
                self.require(getattr(self, name) is not None, name, "None", "a tensor, with past_sequence_lengths_tensor")
            if getattr(self, name) is not None:
                self._check_sizes(name, (s.batch, s.joint, s.total, channels))
        if self.lengths is not None:
            self._check_sizes("past_sequence_lengths_tensor", (s.batch,))
            shown = self.output_present_key_tensor
            room = s.total >= s.new
            self.require(room, "output_present_key_tensor.sizes", shown and shown.sizes, f"room for {s.new} rows or more")
            given = f"{s.rows} query rows, {s.new} keys"
            self.require(s.rows == s.new, "past_sequence_lengths_tensor", given, "as many query rows as new keys")

    def _check_mask(self, s: AttentionSizes) -> None:
        kind, tensor = self.mask_type, self.mask_tensor
        absent = (kind is MaskType.NONE) == (tensor is None)
        given = f"{kind.name.lower()!r}, {'no mask' if tensor is None else 'with a mask'}"
        self.require(absent, "mask_type", given, "'none' without mask_tensor, and another type with it")
        if tensor is not None:
            short = kind is MaskType.KEY_SEQUENCE_LENGTH and tensor.rank == 1
            self._check_sizes("mask_tensor", mask_sizes(kind, s)[-1:] if short else mask_sizes(kind, s))

    def infer(self) -> dict[str, Any]:
        """The results of all query rows; and all keys and values, if they are asked for."""
        found: dict[str, Any] = {}
        self.require(self.given() in _WAYS, "query_tensor", " + ".join(self.given()) or "no tensor", "query_tensor, with keys")
        first = getattr(self, self.given()[0])
        for name, count in zip(self._head_names(), self.head_counts, strict=False):
            self.require(count >= 1, name, count, "1 or more")
        s = self.sizes()
        extra = (1,) * max(first.rank - 3, 0) if _LAYOUTS[self.given()[0]][1] == 1 else ()
        found["output_tensor"] = first.with_sizes((*extra, s.batch, s.rows, s.heads * s.value_channels))
        for part, (_, name) in _KEPT.items():
            channels = s.channels if part == 1 else s.value_channels
            found[name] = first.with_sizes((s.batch, s.joint, s.total, channels))
        return found

    def bounds(self, name: str) -> tuple[int, int] | None:
        """Of lengths and limits: those that keep some keys."""
        s = self.sizes()
        if name == "past_sequence_lengths_tensor":
            return 0, s.total - s.new
        if name != "mask_tensor":
            return None
        if self.mask_type is MaskType.BOOLEAN:
            return 0, 1
        many = s.batch if self.mask_type is MaskType.KEY_QUERY_SEQUENCE_LENGTH_START_END else 1
        return 0, many * max(s.rows, s.total)

    def shape_class(self) -> dict[str, int | str]:
        """The numbers of rows, keys and heads, and of the channels of a head."""
        s = self.sizes()
        return {
            "rows": s.rows, "keys": s.total, "heads": s.batch * s.heads, "channels": s.channels, "layout": self.layout(),
        }  # fmt: skip

    # -- The computation

    def described(self) -> DescribedAttention:
        """Where everything is."""
        s, lengths, added, bias = self.sizes(), self.lengths, self.added, self.bias_tensor
        return DescribedAttention(
            s, self.queries(), self.joined(1), self.joined(2), self.results(), self.mask(),
            None if added is None else tuple(added.layout[-4:]),
            None if bias is None else bias.layout[-1],
            None if lengths is None else lengths.layout[-1],
            self.most_past(s),
            tuple(_apart(name, tensor, s.value_channels) for name, tensor in self.beside()),
            None if self.sinks is None else self.sinks.layout[-1],
        )  # fmt: skip

    def beside(self) -> tuple[tuple[str, TensorDesc], ...]:
        """The inputs that what follows in the kernel takes."""
        return ()

    def computed(self) -> TensorDataType:
        """The type of a result before it is passed on."""
        return self.output_tensor.data_type

    def finished(self, value: Any, *others: Any) -> Any:
        """A result, passed on to what follows."""
        return value

    def behind(self) -> tuple[tuple[str, str], ...]:
        """What a kernel depends on of what follows."""
        return ()

    def most_past(self, s: AttentionSizes) -> int:
        """The most rows of earlier steps that there is room for."""
        most = s.past if self.lengths is None else s.total - s.new
        return min(most, 2**31 - 1, s.past if self.past_key_tensor is not None else most)

    def computation(self, each: T.Each, shared: Shared = ()) -> T.PrimFunc:
        """First the rows that are kept; then an item for some channels of each row of results, from its first key to its last."""
        with T.function() as f:
            buffers = f.tensors(self, shared)
            steps = AttentionSteps(self, self.described(), buffers)
            for own in (steps.d.keys, steps.d.values):
                for count, keep in steps.kept(own, shared):
                    with each(count) as item:
                        keep(item)
            with each(steps.items) as item:
                steps.weigh(item)
        return f.result()

    # -- The reference

    def reference(self, *inputs: NumpyArray | None) -> tuple[Expected, ...]:
        """The operator in NumPy, in float64."""
        from tvmdml.operators._attention_reference import attention

        names = [name for name, _ in self.tensors(Role.INPUT)]
        return attention(self, dict(zip(names, inputs, strict=False)))  # functions have one more


_KEPT = {
    1: ("past_key_tensor", "output_present_key_tensor"),
    2: ("past_value_tensor", "output_present_value_tensor"),
}
"""The tensors of earlier rows and of all rows, of keys and of values."""


def _apart(name: str, tensor: TensorDesc, channels: int) -> HeadRows:
    batch, row, channel = tensor.layout[-3:]
    return HeadRows(name, 0, (batch, channels * channel, row, channel), tensor.sizes[-2])
