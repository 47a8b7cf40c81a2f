"""Attention of many query rows: blocks of query rows by blocks of keys, with the scores of a block in a cache.

A vector has one element of each of several query rows: of a product with a key, of the weights of that key. So neither a row's
largest score nor its sum of weights needs another order of elements. Weighed sums of values have a vector of channels.
"""

from __future__ import annotations

from typing import Any, NamedTuple

from tvmdml.enums import MultiheadAttentionMaskType as MaskType
from tvmdml.kernels import mathematics
from tvmdml.kernels import tensorir_values as T
from tvmdml.kernels.contraction import multiply_add
from tvmdml.operators._attention_steps import AttentionSteps, HeadRows, Joined
from tvmdml.schedules.cpu._ahead import read_ahead
from tvmdml.schedules.cpu._attention_tiles import Registers, safe_base
from tvmdml.schedules.cpu._sums import Sums, zeros
from tvmdml.schedules.cpu._tiles import SIDE, transposed

AHEAD = 12
"""How many rows before it is copied a row is asked for: rows of one head may be far from each other."""
UNROLLED = 4
"""Keys whose weights are found together."""


class BlockForm(NamedTuple):
    """The sizes of blocks, and what is known about layouts."""

    registers: Registers
    vectors: int
    """Vectors of a block of query rows."""
    keys: int
    """Keys of a block."""
    parts: int
    """Parts of a block of query rows, each of so many vectors, for which keys and values are read once."""
    units: tuple[str, ...]
    """The tensors whose channels, or keys, are contiguous."""

    @property
    def lanes(self) -> int:
        """The elements of a vector."""
        return int(self.registers.lanes)

    @property
    def rows(self) -> int:
        """Query rows of a part of a block."""
        return self.vectors * self.lanes

    @property
    def block(self) -> int:
        """Query rows of a block."""
        return self.rows * self.parts


def padded(count: int, lanes: int) -> int:
    """A number of elements in whole vectors."""
    return -(-count // lanes) * lanes


def scratch_sizes(form: BlockForm, channels: int, value_channels: int) -> tuple[int, ...]:
    """The elements of a task's temporaries: keys, values, weights, numbers of keys, and what each part of query rows has."""
    wide = padded(value_channels, form.lanes)
    keys = form.keys + 16
    return keys * channels, keys * wide, keys * form.rows, keys, form.parts * part_size(form, channels, wide)


def part_size(form: BlockForm, channels: int, wide: int) -> int:
    """The elements for a part of query rows: queries, sums, and three numbers of each row."""
    return form.rows * (channels + wide + 3)


class AttentionBlocks:
    """Writes the work of a task."""

    def __init__(self, steps: AttentionSteps, form: BlockForm, scratch: Any, first: Any) -> None:
        self.steps, self.form, self.scratch = steps, form, scratch
        s = steps.d.sizes
        self.channels, self.value_channels = int(s.channels), int(s.value_channels)
        self.wide = padded(self.value_channels, form.lanes)
        at, places = 0, []
        for size in scratch_sizes(form, self.channels, self.value_channels):
            places.append(T.let(first + at))
            at += size
        self.keys, self.values, self.weights, self.filters, self.parts = places
        mask, own = steps.d.mask, steps.desc.mask()
        self.by_row = own is not None and own.by_row
        self.by_key = mask is not None and not self.by_row

    def _load(self, at: Any) -> Any:
        return self.scratch[T.run(at, self.form.lanes)]

    def _store(self, at: Any, value: Any) -> None:
        T.store(self.scratch, T.run(at, self.form.lanes), value)

    def enter(self) -> None:
        """What a task begins with."""

    def leave(self) -> None:
        """What a task ends with."""

    def unit(self, batch: Any, head: Any, block: Any) -> None:
        """A block of query rows of a head."""
        steps, form = self.steps, self.form
        s = steps.d.sizes
        joint = head if steps.group == 1 else T.hold(T.truncdiv(head, T.i64(steps.group)))
        first = T.let(block * form.block)
        rows = T.hold(T.min(T.i64(form.block), s.rows - first))
        parts = T.let(T.truncdiv(rows + (form.rows - 1), T.i64(form.rows)))
        past = steps.past(batch)
        with T.loop(parts) as part:
            self._part(part, first, rows)
            self._queries(batch, head, self.first, self.rows)
            self._begin(head)
        limit = T.index(s.total) if steps.d.lengths is None else T.hold(past + first + rows)
        least = T.hold(T.truncdiv(steps.first_seen(past, first), T.i64(form.keys))) if steps.window else T.i64(0)
        with T.loop(T.let(T.truncdiv(limit + (form.keys - 1), T.i64(form.keys)) - least)) as number:
            key = T.let((number + least) * form.keys)
            count = T.hold(T.min(T.i64(form.keys), limit - key))
            self._copy(steps.d.keys, self.keys, self.channels, (batch, joint), past, key, count)
            self._copy(steps.d.values, self.values, self.wide, (batch, joint), past, key, count)
            if self.by_key:
                self._key_filters(batch, head, key, count)
            with T.loop(parts) as part:
                self._part(part, first, rows)
                if steps.d.lengths is None:
                    self._keys(batch, head, past, key, count)
                else:
                    own = T.hold(T.min(count, past + self.first + self.rows - key))
                    with T.when(own > 0):
                        self._keys(batch, head, past, key, own)
        with T.loop(parts) as part:
            self._part(part, first, rows)
            self._results(batch, head, self.first, self.rows)

    def _part(self, part: Any, first: Any, rows: Any) -> None:
        """What follows is about a part of the block's query rows."""
        form = self.form
        self.first = T.let(first + part * form.rows)
        self.rows = T.hold(T.min(T.i64(form.rows), rows - part * form.rows))
        self.query = T.let(self.parts + part * part_size(form, self.channels, self.wide))
        self.sums = T.let(self.query + form.rows * self.channels)
        self.most = T.let(self.sums + form.rows * self.wide)
        self.total, self.old = T.let(self.most + form.rows), T.let(self.most + 2 * form.rows)

    def _begin(self, head: Any) -> None:
        form, lanes = self.form, self.form.lanes
        most, total = self.steps.begin(head)
        for v in range(form.vectors):
            self._store(self.most + v * lanes, T.splat(most, lanes))
            self._store(self.total + v * lanes, T.splat(total, lanes))
        with T.loop(T.i64(form.rows * self.wide // lanes)) as i:
            self._store(self.sums + i * lanes, zeros(lanes))

    def _keys(self, batch: Any, head: Any, past: Any, key: Any, count: Any) -> None:
        """A block of keys, for a part of the query rows."""
        self._scores(count)
        if self.steps.d.added is not None or self.by_row:
            self._filter((batch, head), self.first, self.rows, key, count)
        if self.steps.d.lengths is not None:
            self._hide(past, self.first, key, count)
        self._weigh(count)
        self._sum(count)

    # -- Reading

    def _vector(self, rows: HeadRows, bias: Any, at: tuple[Any, ...], lanes: int) -> Any:
        """Neighbouring channels, with their biases, as float32."""
        steps = self.steps
        if lanes == 1:
            return steps.element(rows, bias, at)
        value = T.wide(steps.buffers[rows.tensor][T.run(rows.place(*at), lanes)])
        if steps.d.bias is None or bias is None:
            return value
        per_head = self.value_channels if rows.tensor == "value_tensor" else self.channels
        own = T.let(at[1] * per_head + at[3] + bias)
        return T.wide(T.to(value + T.wide(steps.buffers["bias_tensor"][T.run(own, lanes)]), steps.stored))

    def _is_contiguous(self, rows: HeadRows, biased: bool) -> bool:
        own = self.form.units
        return rows.tensor in own and (not biased or self.steps.d.bias is None or "bias_tensor" in own)

    def _queries(self, batch: Any, head: Any, first: Any, rows: Any) -> None:
        """The block's queries: of each channel a vector of rows. What is past the last row is a copy of that."""
        form, query = self.form, self.steps.d.query
        last = T.let(first + rows - 1)
        tiles = form.lanes == SIDE and self._is_contiguous(query, True)
        whole = self.channels // SIDE * SIDE if tiles else 0
        if whole:
            with T.loop(T.i64(form.vectors)) as v, T.loop(T.i64(whole // SIDE)) as c:
                own = []
                for i in range(SIDE):
                    row = T.let(T.min(first + v * SIDE + i, last))
                    own.append(T.hold(self._vector(query, T.i64(0), (batch, head, row, T.let(c * SIDE)), SIDE)))
                for i, column in enumerate(transposed(own)):
                    self._store(self.query + (c * SIDE + i) * form.rows + v * SIDE, column)
        if whole < self.channels:
            with T.loop(T.i64(form.rows)) as i:
                row = T.let(T.min(first + i, last))
                with T.loop(T.i64(self.channels - whole)) as c:
                    value = self.steps.element(query, T.i64(0), (batch, head, row, T.let(c + whole)))
                    T.store(self.scratch, self.query + (c + whole) * form.rows + i, value)

    def _copy(self, own: Joined, to: Any, width: int, of: tuple[Any, Any], past: Any, key: Any, count: Any) -> None:
        """Rows of keys or values, contiguous, as float32."""
        before, after = own.past, own.new
        if not self.steps.joins:
            rows = after or before
            assert rows is not None
            self._copy_rows(rows, own.bias if after else None, own.channels, to, width, of, key, count)
            return
        assert before is not None
        assert after is not None
        earlier = T.hold(T.max(T.min(past - key, count), T.i64(0)))
        self._copy_rows(before, None, own.channels, to, width, of, key, earlier)
        start = T.let(key + earlier - past)
        self._copy_rows(after, own.bias, own.channels, T.let(to + earlier * width), width, of, start, T.let(count - earlier))

    def _copy_rows(self, rows: HeadRows, bias: Any, channels: int, to: Any, width: int, of: Any, first: Any, count: Any) -> None:
        lanes = self.form.lanes
        channels = int(channels)
        whole = channels // lanes if self._is_contiguous(rows, bias is not None) else 0
        with T.loop(count) as i:
            row, place = T.let(first + i), T.let(to + i * width)
            if whole:
                line = 64 // self.steps.desc.computed().itemsize
                ahead = T.let(rows.place(*of, row + AHEAD, T.i64(0)))
                for c in range(0, channels, line):
                    read_ahead(self.steps.buffers[rows.tensor], ahead + c)
            for c in range(whole):
                self._store(place + c * lanes, self._vector(rows, bias, (*of, row, T.i64(c * lanes)), lanes))
            if whole * lanes < channels:
                with T.loop(T.i64(channels - whole * lanes)) as c:
                    at = T.let(c + whole * lanes)
                    T.store(self.scratch, place + at, self._vector(rows, bias, (*of, row, at), 1))
            if channels < width:
                with T.loop(T.i64(width - channels)) as c:
                    T.store(self.scratch, place + channels + c, T.const(0.0, "float32"))

    # -- Scores

    def _scores(self, count: Any) -> None:
        """Products of all queries with a few keys at a time, scaled."""
        form, lanes = self.form, self.form.lanes
        height = form.registers.rows(form.vectors)
        scale = T.splat(T.const(self.steps.desc.scale, "float32"), lanes)
        with T.loop(T.let(T.truncdiv(count + (height - 1), T.i64(height)))) as panel:
            first = T.let(panel * height)
            base = T.let(self.keys + first * self.channels)
            tile = Sums(height, form.vectors, lambda i, v: zeros(lanes), multiply_add)
            with T.loop(T.i64(self.channels)) as c:
                queries = [T.let(self._load(self.query + c * form.rows + v * lanes)) for v in range(form.vectors)]
                tile.add(lambda i: self.scratch[base + i * self.channels + c], queries)
            for i in range(height):
                more = T.let(T.splat(self.scratch[self.filters + first + i], lanes)) if self.by_key else None
                for v in range(form.vectors):
                    value = self.steps.limited(T.rounded(tile.get(i, v) * scale))
                    self._store(self.weights + (first + i) * form.rows + v * lanes, value if more is None else value + more)

    def _key_filters(self, batch: Any, head: Any, key: Any, count: Any) -> None:
        """What a mask adds to the scores of each key."""
        mask, zero = self.steps.d.mask, T.const(0.0, "float32")
        assert mask is not None
        with T.loop(count) as i:
            kept = mask.kept(self.steps.buffers["mask_tensor"], (batch, head, T.i64(0), T.let(key + i)))
            T.store(self.scratch, self.filters + i, T.Select(kept, zero, T.const(self.steps.desc.mask_filter_value, "float32")))

    def _filter(self, of: tuple[Any, Any], first: Any, rows: Any, key: Any, count: Any) -> None:
        """Add to scores what there is for each query row and key."""
        form, steps = self.form, self.steps
        begin = T.i64(0)
        if self._adds_tiles():
            whole = T.let(T.truncdiv(count, T.i64(SIDE)))
            last = T.let(first + rows - 1)
            with T.loop(T.i64(form.vectors)) as v, T.loop(whole) as k:
                own = []
                for i in range(SIDE):
                    row = T.let(T.min(first + v * SIDE + i, last))
                    own.append(T.hold(self._more((*of, row, T.let(key + k * SIDE)))))
                for i, column in enumerate(transposed(own)):
                    at = T.let(self.weights + (k * SIDE + i) * form.rows + v * SIDE)
                    self._store(at, self._load(at) + column)
            begin = T.let(whole * SIDE)
        with T.loop(rows) as i, T.loop(T.let(count - begin)) as k:
            at = T.let(self.weights + (begin + k) * form.rows + i)
            place = (*of, T.let(first + i), T.let(key + begin + k))
            value = self.scratch[at]
            if self.by_key:  # that of the mask is there already
                own = T.dot(place, steps.d.added)
                T.store(self.scratch, at, value + T.wide(steps.buffers[steps.desc.POSITIONS][own]))
            else:
                T.store(self.scratch, at, steps.filtered(value, place))

    def _adds_tiles(self) -> bool:
        mask = self.steps.desc.mask() if self.by_row else None
        wanted = [self.steps.desc.POSITIONS] * (self.steps.d.added is not None) + ["mask_tensor"] * self.by_row
        plain = mask is None or mask.kind is MaskType.BOOLEAN
        return self.form.lanes == SIDE and plain and all(name in self.form.units for name in wanted)

    def _more(self, at: tuple[Any, ...]) -> Any:
        """What is added to the scores of neighbouring keys."""
        steps, found = self.steps, None
        if steps.d.added is not None:
            own = T.dot(at, steps.d.added)
            found = T.wide(steps.buffers[steps.desc.POSITIONS][T.run(own, SIDE)])
        if self.by_row:
            own = T.dot(at, steps.d.mask.steps)  # type: ignore[union-attr]
            words = steps.buffers["mask_tensor"][T.run(own, SIDE)]
            kept = T.expression(words != T.splat(T.const(0, "int32"), SIDE))
            limit = T.splat(T.const(steps.desc.mask_filter_value, "float32"), SIDE)
            masked = T.Select(kept, zeros(SIDE), limit)
            found = masked if found is None else found + masked
        return found

    def _hide(self, past: Any, first: Any, key: Any, count: Any) -> None:
        """No row sees a key after its own, nor one before its window."""
        form, lanes, window = self.form, self.form.lanes, self.steps.window
        some = key + count - 1 > past + first
        some = some | (key < past + first + (form.rows - window)) if window else some
        with T.when(some), T.loop(count) as i:
            own = T.let(key + i - past - first)
            least = T.hold(T.cast(T.max(own, T.i64(-1)), "int32"))
            most = T.hold(T.cast(T.min(own + (window - 1), T.i64(form.rows)), "int32"))
            for v in range(form.vectors):
                at = T.let(self.weights + i * form.rows + v * lanes)
                row = T.run(T.const(v * lanes, "int32"), lanes)
                hidden = T.splat(T.const(float("-inf"), "float32"), lanes)
                found = T.Select(row >= T.splat(least, lanes), self._load(at), hidden)
                self._store(at, T.Select(row <= T.splat(most, lanes), found, hidden) if window else found)

    # -- Weights

    def _weigh(self, count: Any) -> None:
        """Scores become weights of the largest score so far; sums of other weights are adjusted."""
        form, lanes = self.form, self.form.lanes
        rounds = T.let(T.truncdiv(count + (UNROLLED - 1), T.i64(UNROLLED)))
        with T.loop(T.let(rounds * UNROLLED - count)) as i:
            for v in range(form.vectors):
                none = T.splat(T.const(float("-inf"), "float32"), lanes)
                self._store(self.weights + (count + i) * form.rows + v * lanes, none)
        with T.loop(T.i64(form.vectors)) as v:
            column = T.let(self.weights + v * lanes)
            own = [T.Variable(f"float32x{lanes}", self._load(self.most + v * lanes)) for _ in range(UNROLLED)]
            with T.loop(rounds) as k:
                for i, one in enumerate(own):
                    score = T.let(self._load(column + (k * UNROLLED + i) * form.rows))
                    one.set(_larger(score, one.value))
            before = T.hold(self._load(self.most + v * lanes))
            most = T.hold(_larger(T.hold(_larger(own[0].value, own[1].value)), T.hold(_larger(own[2].value, own[3].value))))
            base = safe_base(most)
            old = T.hold(mathematics.decay(T.hold(before - base)))
            self._store(self.most + v * lanes, most)
            self._store(self.old + v * lanes, old)
            sums = [T.Variable(f"float32x{lanes}", zeros(lanes)) for _ in range(UNROLLED)]
            with T.loop(rounds) as k:
                for i, one in enumerate(sums):
                    at = T.let(column + (k * UNROLLED + i) * form.rows)
                    weight = mathematics.decay(T.hold(self._load(at) - base))
                    self._store(at, weight)
                    one.set(one.value + weight)
            more = T.hold((sums[0].value + sums[1].value) + (sums[2].value + sums[3].value))
            self._store(self.total + v * lanes, self._load(self.total + v * lanes) * old + more)

    def _sum(self, count: Any) -> None:
        """Weighed sums of a block's values, added to those of the blocks before."""
        form, lanes = self.form, self.form.lanes
        vectors = self.wide // lanes
        widest = min(4, vectors)
        for start in range(0, vectors, widest):
            some = min(widest, vectors - start)
            height = form.registers.rows(some, form.rows)
            whole, rest = divmod(form.rows, height)
            with T.loop(T.i64(whole)) as panel:
                self._sum_tile(T.let(panel * height), height, start, some, count)
            if rest:
                self._sum_tile(T.i64(whole * height), rest, start, some, count)

    def _sum_tile(self, first: Any, height: int, start: int, vectors: int, count: Any) -> None:
        form, lanes = self.form, self.form.lanes
        place = T.let(self.sums + first * self.wide + start * lanes)

        olds = [T.let(T.splat(self.scratch[self.old + first + i], lanes)) for i in range(height)]
        tile = Sums(height, vectors, lambda i, v: self._load(place + (i * self.wide + v * lanes)) * olds[i], multiply_add)
        with T.loop(count) as k:
            row, values = T.let(self.weights + k * form.rows + first), T.let(self.values + k * self.wide + start * lanes)
            tile.add(lambda i: self.scratch[row + i], [T.let(self._load(values + v * lanes)) for v in range(vectors)])
        for i in range(height):
            for v in range(vectors):
                self._store(place + (i * self.wide + v * lanes), tile.get(i, v))

    def _results(self, batch: Any, head: Any, first: Any, rows: Any) -> None:
        steps, form, lanes = self.steps, self.form, self.form.lanes
        whole = self.value_channels // lanes if steps.d.result.tensor in form.units else 0
        with T.loop(rows) as i:
            total = T.let(self.scratch[self.total + i])
            none = T.hold(T.cast(T.expression(total == T.const(0.0, "float32")), "float32"))
            divisor = T.hold(total + none)  # sums of no weights are 0 already
            at, row = T.let(self.sums + i * self.wide), T.let(first + i)
            for c in range(whole):
                value = self._load(at + c * lanes) / T.splat(divisor, lanes)
                steps.put((batch, head, row, T.i64(c * lanes)), T.hold(self._cleared(value, none, lanes)))
            with T.loop(T.i64(self.value_channels - whole * lanes)) as c:
                own = T.let(c + whole * lanes)
                value = self._cleared(self.scratch[at + own] / divisor, none, 1)
                steps.put((batch, head, row, own), value)

    def _cleared(self, value: Any, none: Any, lanes: int) -> Any:
        """What a row without weights has, whatever the values are."""
        none = T.splat(none, lanes) if lanes > 1 else none
        return T.Select(none > T.like(none, 0), T.like(value, self.steps.desc.WITHOUT_WEIGHTS), value)


def _larger(a: Any, b: Any) -> Any:
    """The larger of two, by one instruction; ``b`` if one is NaN."""
    return T.Select(a > b, a, b)
