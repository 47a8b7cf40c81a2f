"""What an attention computes, step by step: where elements are, scores of keys, and weighed sums.

``DescribedAttention`` has integers only, of the code or of the launch, so kernels can be written for shapes or classes of them.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any, NamedTuple

from tvmdml.kernels import mathematics
from tvmdml.kernels import tensorir_values as T
from tvmdml.operators._attention_masks import Mask
from tvmdml.operators._contract import Shared
from tvmdml.tensors.sizes import Size

_INTEGERS = (int, Size)
"""What an integer is here: not a flag, nor a member of an enumeration."""
CHANNELS = 8
"""The channels of an item."""


class HeadRows(NamedTuple):
    """Where the rows of all heads are in a tensor."""

    tensor: str
    base: int
    steps: tuple[int, int, int, int]
    """From one batch, head, row and channel to the next."""
    length: int
    """The number of rows."""

    def place(self, *at: Any) -> Any:
        """The offset of an element: of a batch, a head, a row and a channel."""
        return T.dot(at, [T.index(step) for step in self.steps]) + T.index(self.base)


class Joined(NamedTuple):
    """Keys or values: rows of earlier steps, and new ones after them."""

    past: HeadRows | None
    """Those of earlier steps: in a tensor of their own, or in ``present``."""
    new: HeadRows | None
    bias: int
    """Where the bias of the first new channel is in the tensor of biases."""
    present: HeadRows | None
    """Where all rows are kept for the next step."""
    channels: int


class AttentionSizes(NamedTuple):
    """The sizes of an attention."""

    batch: int
    rows: int
    """Query rows."""
    new: int
    """New keys."""
    past: int
    """Keys of earlier steps."""
    total: int
    """All keys; with lengths of the past, all that there is room for."""
    heads: int
    """Heads of queries."""
    joint: int
    """Heads of keys and values."""
    channels: int
    """Channels of a head's queries and keys."""
    value_channels: int


class DescribedAttention(NamedTuple):
    """Where everything is."""

    sizes: AttentionSizes
    query: HeadRows
    keys: Joined
    values: Joined
    result: HeadRows
    mask: Mask | None
    added: tuple[int, ...] | None
    """The strides of what is added to scores: of batches, heads, query rows and keys."""
    bias: int | None
    """The stride of the biases."""
    lengths: int | None
    """The stride of the lengths of the past."""
    most_past: int
    """The most rows of earlier steps."""
    beside: tuple[HeadRows, ...] = ()
    """Where what follows takes elements, which lie as results do but for their strides."""
    sinks: int | None = None
    """The stride of the heads' sinks."""


def numbers(value: Any) -> Iterator[int]:
    """The integers of a description, in order."""
    if type(value) in _INTEGERS:
        yield value
    elif isinstance(value, tuple):
        for one in value:
            yield from numbers(one)


def with_numbers(value: Any, others: Iterator[Any]) -> Any:
    """A description with other integers in place of its own."""
    if type(value) in _INTEGERS:
        return next(others)
    if not isinstance(value, tuple):
        return value
    parts = [with_numbers(one, others) for one in value]
    return type(value)(*parts) if hasattr(value, "_fields") else tuple(parts)


class AttentionSteps:
    """The steps of a kernel: of an operator's descriptor, with where everything is, and its buffers."""

    def __init__(self, desc: Any, described: DescribedAttention, buffers: dict[str, Any]) -> None:
        self.desc, self.d, self.buffers = desc, described, buffers
        self.stored = desc.computed().tvm
        own = desc.described()
        self.group = own.sizes.heads // own.sizes.joint
        self.parts = -(-own.sizes.value_channels // CHANNELS)
        self.joins = own.keys.new is not None and (desc.lengths is not None or own.sizes.past > 0)
        """Whether there are both earlier and new rows."""
        self.copies = own.most_past > 0 or desc.lengths is not None
        """Whether rows that are kept may be others than the new ones."""
        self.along = [one.steps[3] for one in own.beside]
        self.window: int = desc.window_rows

    def past(self, batch: Any) -> Any:
        """How many rows of earlier steps a batch has: a length is cut to what there is room for."""
        if self.d.lengths is None:
            return T.index(self.d.sizes.past)
        length = T.hold(self.buffers["past_sequence_lengths_tensor"][batch * T.index(self.d.lengths)])
        most = T.cast(T.index(self.d.most_past), "int32")
        return T.hold(T.cast(T.max(T.min(length, most), T.const(0, "int32")), T.type_of(T.index(0))))

    def seen(self, past: Any, row: Any) -> Any:
        """How many keys a query row sees."""
        return T.index(self.d.sizes.total) if self.d.lengths is None else T.hold(past + row + 1)

    def first_seen(self, past: Any, row: Any) -> Any:
        """The first key that a query row sees."""
        return T.index(0) if not self.window else T.hold(T.max(past + row + T.index(1 - self.window), T.index(0)))

    def begin(self, head: Any, mine: Any = None) -> tuple[Any, Any]:
        """The largest score of a row before any key, and the sum of weights: those of the head's sink.

        ``mine`` says whether the sink belongs here, where a row's keys are in several parts.
        """
        zero = T.const(0.0, "float32")
        least = T.like(zero, float("-inf"))
        if self.d.sinks is None:
            return least, zero
        sink, one = T.hold(T.wide(self.buffers["sink_tensor"][head * T.index(self.d.sinks)])), T.like(zero, 1.0)
        if mine is None:
            return sink, one
        return T.hold(T.Select(mine, sink, least)), T.hold(T.Select(mine, one, zero))

    def element(self, rows: HeadRows, bias: Any, at: Any) -> Any:
        """An element of a query, a new key or a new value as it is computed with: with its bias, in the tensors' type."""
        value = T.wide(self.buffers[rows.tensor][rows.place(*at)])
        if self.d.bias is None or bias is None:
            return value
        _, head, _, channel = at
        per_head = self.d.sizes.value_channels if rows.tensor == "value_tensor" else self.d.sizes.channels
        own = (head * T.index(per_head) + channel + T.index(bias)) * T.index(self.d.bias)
        return T.wide(T.to(value + T.wide(self.buffers["bias_tensor"][own]), self.stored))

    def joined(self, own: Joined, past: Any, at: Any) -> Any:
        """An element of the keys or values, from where it is."""
        before, after = own.past, own.new
        if not self.joins or before is None or after is None:
            rows = after or before
            assert rows is not None
            return self.element(rows, own.bias if after else None, at)
        batch, head, row, channel = at
        found = T.Variable("float32")
        T.either(
            row < past,
            lambda: found.set(self.element(before, None, at)),
            lambda: found.set(self.element(after, own.bias, (batch, head, row - past, channel))),
        )
        return found.value

    def score(self, product: Any, at: Any) -> Any:
        """The score of a key for a query row: of a batch, a head, a row and a key."""
        return self.filtered(self.limited(T.hold(T.rounded(product * T.like(product, self.desc.scale)))), at)

    def limited(self, score: Any) -> Any:
        """A product, or several, that is scaled: bent so that it does not come beyond the limit."""
        limit = self.desc.most_score
        if not limit:
            return score
        return T.hold(T.rounded(mathematics.tanh(T.hold(score / T.like(score, limit))) * T.like(score, limit)))

    def filtered(self, found: Any, at: Any) -> Any:
        """A product that is scaled, with what is added to it."""
        if self.d.added is not None:
            own = T.dot(at, [T.index(step) for step in self.d.added])
            found = T.hold(found + T.wide(self.buffers[self.desc.POSITIONS][own]))
        if self.d.mask is not None:
            kept = self.d.mask.kept(self.buffers["mask_tensor"], at)
            found = T.hold(T.Select(kept, found, found + T.like(found, self.desc.mask_filter_value)))
        return found

    def put(self, at: Any, value: Any) -> None:
        """Pass results on, of a batch, a head, a row, and a channel or several that are contiguous; and store them."""
        lanes = T.lanes(value)

        def places(rows: HeadRows, step: int = 1) -> Any:
            place = rows.place(*at)
            return place if lanes == 1 or step == 0 else T.run(T.let(place), lanes)

        beside = []
        for rows, step in zip(self.d.beside, self.along, strict=True):
            one = self.buffers[rows.tensor][places(rows, step)]
            beside.append(T.repeated(one, lanes) if lanes > 1 and step == 0 else one)
        found = self.desc.finished(T.to(value, self.stored), *beside)
        T.store(self.buffers[self.d.result.tensor], places(self.d.result), found)

    # -- The plain computation

    def kept(self, own: Joined, shared: Shared) -> Iterator[tuple[Any, Callable[[Any], None]]]:
        """What is kept for the next step: how many elements, and how each is stored. In the past's memory other rows stay."""
        s, present, before, after = self.d.sizes, own.present, own.past, own.new
        if present is None:
            return
        here = before is None or before.tensor == present.tensor or any(one == before.tensor for one, _ in shared)

        def copied(item: Any) -> None:
            at = T.unravel(item, (s.batch, s.joint, self.other_rows, own.channels))
            self.copy(own, at, self.past(at[0]))

        def new(item: Any) -> None:
            batch, head, row, channel = T.unravel(item, (s.batch, s.joint, s.new, own.channels))
            value = T.to(self.element(after, own.bias, (batch, head, row, channel)), self.stored)  # type: ignore[arg-type]
            T.store(self.buffers[present.tensor], present.place(batch, head, self.past(batch) + row, channel), value)

        if not here and self.copies:
            yield s.batch * s.joint * self.other_rows * own.channels, copied
        if after is not None:
            yield s.batch * s.joint * s.new * own.channels, new

    @property
    def other_rows(self) -> Any:
        """The rows among which those that are kept and not new are."""
        return self.d.sizes.past if self.d.lengths is None else self.d.sizes.total

    def copy(self, own: Joined, at: Any, past: Any) -> None:
        """Keep an element of a row that is not new: the past's, also behind the new rows, and 0 where the past has none."""
        present, before, row = own.present, own.past, at[2]
        assert present is not None
        assert before is not None

        def store(value: Any) -> None:
            T.store(self.buffers[present.tensor], present.place(*at), value)

        def copied() -> None:
            store(self.buffers[before.tensor][before.place(*at)])

        if self.d.lengths is None:
            copied()
            return
        with T.when((row < past) | (row >= past + T.index(self.d.sizes.new))):
            T.either(row < T.index(self.d.sizes.past), copied, lambda: store(T.const(0.0, self.stored)))

    @property
    def items(self) -> Any:
        """An item is some channels of a row of results."""
        s = self.d.sizes
        return s.batch * s.heads * s.rows * self.parts

    def weigh(self, item: Any) -> None:
        """The weighed sums of an item, from the first key to the last."""
        s = self.d.sizes
        batch, head, row, part = T.unravel(item, (s.batch, s.heads, s.rows, self.parts))
        joint = head if self.group == 1 else T.hold(T.truncdiv(head, T.index(self.group)))
        past = self.past(batch)
        channels = [T.hold(T.min(part * CHANNELS + i, T.index(s.value_channels - 1))) for i in range(CHANNELS)]
        zero = T.const(0.0, "float32")
        least = T.like(zero, float("-inf"))
        most, total = (T.Variable("float32", one) for one in self.begin(head))
        sums = [T.Variable("float32", zero) for _ in channels]
        first = self.first_seen(past, row)
        with T.loop(T.hold(self.seen(past, row) - first), most=s.total) as i:
            key = T.hold(first + i)
            product = T.Variable("float32", zero)
            with T.loop(T.index(s.channels)) as channel:
                q = self.element(self.d.query, 0, (batch, head, row, channel))
                product.set(product.value + q * self.joined(self.d.keys, past, (batch, joint, key, channel)))
            score = self.score(product.value, (batch, head, row, key))
            before = T.hold(most.value)
            most.set(T.Select(score > before, score, before))
            base = T.hold(T.select(T.expression(most.value == least), 0.0, most.value))
            old, weight = T.hold(mathematics.exp(T.hold(before - base))), T.hold(mathematics.exp(T.hold(score - base)))
            total.set(total.value * old + weight)
            for own, one in zip(sums, channels, strict=True):
                own.set(own.value * old + weight * self.joined(self.d.values, past, (batch, joint, key, one)))
        for i, (own, one) in enumerate(zip(sums, channels, strict=True)):
            found = T.hold(T.select(T.expression(total.value == zero), self.desc.WITHOUT_WEIGHTS, own.value / total.value))
            with T.when(part * CHANNELS + i < T.index(s.value_channels)):
                self.put((batch, head, row, one), found)
