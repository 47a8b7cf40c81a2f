"""Attention of a few query rows: keys and values are read once, in parts that are combined in their order.

A vector has some channels of a key, or of a value. All query rows of the heads that share keys are done together. What a part of
the keys comes to does not depend on tasks, and neither does the order in which parts are combined.
"""

from __future__ import annotations

from typing import Any, NamedTuple

from tvmdml.kernels import mathematics
from tvmdml.kernels import tensorir_values as T
from tvmdml.kernels.contraction import multiply_add
from tvmdml.operators._attention_steps import AttentionSteps, HeadRows, Joined
from tvmdml.schedules.cpu._ahead import read_ahead
from tvmdml.schedules.cpu._attention_blocks import padded
from tvmdml.schedules.cpu._attention_tiles import Registers, safe_base
from tvmdml.schedules.cpu._sums import zeros
from tvmdml.schedules.cpu._tiles import SIDE, transposed

KEYS = 64
"""Keys of a block."""
RowsAddress = tuple[Any, Any, Any]
"""Where a block's rows are: a buffer, the first element, and the step from one row to the next."""


class FewRows(NamedTuple):
    """The query rows, the keys of a part, and what is known about layouts."""

    registers: Registers
    rows: int
    """Query rows of a head: 1, or 0 for as many as a launch says. One kernel serves those."""
    keys: int
    """Keys of a part."""
    units: tuple[str, ...]
    """The tensors whose channels, or keys, are contiguous."""

    @property
    def lanes(self) -> int:
        """The elements of a vector."""
        return int(self.registers.lanes)


def few_scratch(few: FewRows, count: Any, channels: int, value_channels: int) -> tuple[Any, ...]:
    """The elements of a task's temporaries, for so many query rows: queries, weights, keys and values."""
    high, wide = padded(channels, few.lanes), padded(value_channels, few.lanes)
    return count * high, count * KEYS, KEYS * high, KEYS * wide


def found_size(few: FewRows, count: Any, value_channels: int) -> Any:
    """The elements of what a part comes to: for each of so many query rows sums, the largest score and the sum of weights."""
    return count * (padded(value_channels, few.lanes) + 2 * few.lanes)


class Fews:
    """Writes the work of a task."""

    def __init__(self, steps: AttentionSteps, few: FewRows, scratch: Any, first: Any, parts: Any) -> None:
        self.steps, self.few, self.scratch, self.parts = steps, few, scratch, parts
        s = steps.d.sizes
        self.channels, self.value_channels = int(s.channels), int(s.value_channels)
        self.high, self.wide = (padded(n, few.lanes) for n in (self.channels, self.value_channels))
        self.count = T.i64(steps.group) if few.rows else T.let(s.rows * T.i64(steps.group))
        self.least = steps.group if few.rows else 2 * steps.group
        """So many query rows there are at least."""
        at, places = first, []
        for size in few_scratch(few, self.count, self.channels, self.value_channels):
            places.append(T.let(at))
            at = at + size
        self.query, self.weights, self.keys, self.values = places
        self.each = self.wide + 2 * few.lanes
        self.plain = steps.d.added is None and steps.d.mask is None and (steps.d.lengths is None or few.rows == 1)

    def _load(self, buffer: Any, at: Any) -> Any:
        return T.wide(buffer[T.run(at, self.few.lanes)])

    def _store(self, at: Any, value: Any) -> None:
        T.store(self.scratch, T.run(at, self.few.lanes), value)

    def _row(self, number: Any) -> tuple[Any, Any]:
        """The head of those that share keys, and the query row."""
        if self.few.rows == 1:
            return number, T.i64(0)
        rows = self.steps.d.sizes.rows
        head = T.hold(T.truncdiv(number, rows))
        return head, T.let(number - head * rows)

    def unit(self, batch: Any, joint: Any, part: Any, found: Any) -> None:
        """A part of the keys of a head. ``found`` is where what it comes to is kept."""
        steps, few, lanes = self.steps, self.few, self.few.lanes
        past = steps.past(batch)
        limit = T.index(steps.d.sizes.total) if steps.d.lengths is None else T.hold(past + (1 if few.rows else steps.d.sizes.rows))
        begin = T.let(part * few.keys)
        end = T.hold(T.min(begin + few.keys, limit))
        begin = T.hold(T.max(begin, steps.first_seen(past, T.i64(0)))) if steps.window else begin
        self.found = found
        with T.loop(self.count) as r:
            at = T.let(found + r * self.each)
            head, row = self._row(r)
            most, total = steps.begin(joint * steps.group + head, part < 1)
            with T.loop(T.i64(self.wide // lanes)) as i:
                T.store(self.parts, T.run(at + i * lanes, lanes), zeros(lanes))
            of_lane = T.hold(total * T.like(total, 1 / lanes))  # a power of 2: their sum is the total
            T.store(self.parts, T.run(at + self.wide, lanes), T.splat(of_lane, lanes))
            T.store(self.parts, T.run(at + self.wide + lanes, lanes), T.splat(most, lanes))
            with T.loop(T.i64(self.high)) as c:
                own = T.Variable("float32", T.const(0.0, "float32"))
                with T.when(c < self.channels):
                    own.set(steps.element(steps.d.query, T.i64(0), (batch, joint * steps.group + head, row, c)))
                T.store(self.scratch, self.query + r * self.high + c, own.value)
        blocks = T.let(T.truncdiv(T.max(end - begin, T.i64(0)) + (KEYS - 1), T.i64(KEYS)))
        with T.loop(blocks) as block:
            key = T.let(begin + block * KEYS)
            count = T.hold(T.min(T.i64(KEYS), end - key))
            self._block(batch, joint, past, key, count)

    def _block(self, batch: Any, joint: Any, past: Any, key: Any, count: Any) -> None:
        """A block of keys: where they are if they can be read there, else copied."""
        keys, values = self.steps.d.keys, self.steps.d.values
        copied = (self.scratch, self.keys, self.high), (self.scratch, self.values, self.wide)

        def work(of_keys: RowsAddress, of_values: RowsAddress) -> None:
            self._scores(batch, joint, past, key, count, *of_keys)
            with T.loop(self.count) as r:
                self._weigh(r, count, of_values, of_keys)

        def copy() -> None:
            self._copy(keys, self.keys, self.high, (batch, joint), past, key, count)
            self._copy(values, self.values, self.wide, (batch, joint), past, key, count)
            work(*copied)

        def there(own: list[HeadRows]) -> None:
            found = []
            for rows in own:
                place = T.let(rows.place(batch, joint, key, T.i64(0)))
                found.append((self.steps.buffers[rows.tensor], place, rows.steps[2]))
            work(*found)

        own = [one.past if self.steps.joins or one.new is None else one.new for one in (keys, values)]
        biased = self.steps.d.bias is not None and keys.new is not None and not self.steps.joins
        whole = self.channels == self.high and self.value_channels == self.wide
        rows = [one for one in own if one is not None and one.tensor in self.few.units]
        if not whole or biased or len(rows) < 2:
            copy()
        elif self.steps.joins:
            T.either(key + count <= past, lambda: there(rows), copy)
        else:
            there(rows)

    def _copy(self, own: Joined, to: Any, width: int, of: tuple[Any, Any], past: Any, key: Any, count: Any) -> None:
        channels = int(own.channels)
        with T.loop(count) as i:
            place = T.let(to + i * width)
            with T.loop(T.i64(channels)) as c:
                T.store(self.scratch, place + c, self.steps.joined(own, past, (*of, T.let(key + i), c)))
            if channels < width:
                with T.loop(T.i64(width - channels)) as c:
                    T.store(self.scratch, place + channels + c, T.const(0.0, "float32"))

    def _scores(self, batch: Any, joint: Any, past: Any, key: Any, count: Any, buffer: Any, place: Any, step: Any) -> None:
        """The scores of all rows with a block's keys; -inf after the last key."""
        lanes, steps = self.few.lanes, self.steps
        scale = T.const(steps.desc.scale, "float32")
        with T.loop(T.let(T.truncdiv(count + (SIDE - 1), T.i64(SIDE)))) as some:
            first = T.let(some * SIDE)
            places = [T.let(place + T.min(first + i, count - 1) * step) for i in range(SIDE)]
            with T.loop(self.count) as r:
                sums = [T.Variable(f"float32x{lanes}", zeros(lanes)) for _ in range(SIDE)]
                query = T.let(self.query + r * self.high)
                with T.loop(T.i64(self.high // lanes)) as c:
                    q = T.let(self._load(self.scratch, query + c * lanes))
                    for one, at in zip(sums, places, strict=True):
                        one.set(multiply_add(self._load(buffer, at + c * lanes), q, one.value))
                at = T.let(self.weights + r * KEYS + first)
                if lanes == SIDE:
                    columns = transposed([T.hold(one.value) for one in sums])
                    while len(columns) > 1:
                        columns = [T.hold(a + b) for a, b in zip(columns[::2], columns[1::2], strict=True)]
                    self._store(at, steps.limited(T.rounded(columns[0] * T.splat(scale, lanes))))
                    apart = []
                else:
                    apart = sums
                for i, one in enumerate(apart):
                    zero = T.const(0.0, "float32")
                    total = T.call_llvm_pure_intrin("float32", "llvm.vector.reduce.fadd", zero, one.value)
                    T.store(self.scratch, at + i, steps.limited(T.rounded(total * scale)))
        with T.loop(self.count) as r:
            at = T.let(self.weights + r * KEYS)
            if not self.plain:
                head, row = self._row(r)
                of = (batch, T.let(joint * steps.group + head), row)
                with T.loop(count) as i:
                    number = T.let(key + i)
                    value = T.hold(steps.filtered(self.scratch[at + i], (*of, number)))
                    if steps.d.lengths is not None:
                        seen = number <= past + row
                        seen = seen & (number > past + row - steps.window) if steps.window else seen
                        value = T.Select(seen, value, T.const(float("-inf"), "float32"))
                    T.store(self.scratch, at + i, value)
            with T.loop(T.let(T.i64(KEYS) - count)) as i:
                T.store(self.scratch, at + count + i, T.const(float("-inf"), "float32"))

    def _weigh(self, r: Any, count: Any, of_values: RowsAddress, of_keys: RowsAddress) -> None:
        """Scores become weights, and weighed sums of values."""
        buffer, place, step = of_values
        lanes = self.few.lanes
        own, weights = T.let(self.found + r * self.each), T.let(self.weights + r * KEYS)
        kept = T.let(own + self.wide)
        vectors = KEYS // lanes
        before = T.hold(self.parts[T.run(kept + lanes, lanes)])
        largest = before
        for v in range(vectors):
            score = T.hold(self._load(self.scratch, weights + v * lanes))
            largest = T.hold(T.Select(score > largest, score, largest))
        half = lanes // 2
        while half:  # each lane becomes the largest of all
            other = T.hold(T.Shuffle([largest], [i ^ half for i in range(lanes)]))
            largest = T.hold(T.Select(other > largest, other, largest))
            half //= 2
        base = safe_base(largest)
        old = T.hold(mathematics.decay(T.hold(before - base)))
        total = T.hold(self.parts[T.run(kept, lanes)] * old)
        for v in range(vectors):
            weight = mathematics.decay(T.hold(self._load(self.scratch, weights + v * lanes) - base))
            self._store(weights + v * lanes, weight)
            total = T.hold(total + weight)
        T.store(self.parts, T.run(kept, lanes), total)
        T.store(self.parts, T.run(kept + lanes, lanes), largest)
        every = self.wide // lanes
        for start in range(0, every, 8):
            some = range(start, min(start + 8, every))
            sums = [T.Variable(f"float32x{lanes}", self.parts[T.run(own + v * lanes, lanes)] * old) for v in some]
            with T.loop(count) as k:
                weight = T.let(T.splat(self.scratch[weights + k], lanes))
                at = T.let(place + k * step)
                if start == 0 and self.least > 1 and buffer is not self.scratch:
                    self._ask(r, k, of_values, self.value_channels)
                    self._ask(r, k, of_keys, self.channels)
                for v, one in zip(some, sums, strict=True):
                    one.set(multiply_add(self._load(buffer, at + v * lanes), weight, one.value))
            for v, one in zip(some, sums, strict=True):
                T.store(self.parts, T.run(own + v * lanes, lanes), one.value)

    def _ask(self, r: Any, k: Any, rows: RowsAddress, channels: int) -> None:
        """Each query row asks for some lines of the next block's rows: while several are done, memory would have a rest."""
        buffer, place, step = rows
        line = 64 // self.steps.desc.computed().itemsize
        some = -(-channels // line // self.least)
        for i in range(some):
            read_ahead(buffer, place + (k + KEYS) * step + (r * some + i) * line)

    def join(self, batch: Any, joint: Any, first: Any, parts: Any, size: Any) -> None:
        """What the parts of a head's keys come to, combined in their order."""
        steps, lanes = self.steps, self.few.lanes
        whole = self.value_channels // lanes if steps.d.result.tensor in self.few.units else 0
        with T.loop(self.count) as r:
            own = T.let(first + r * self.each)
            vector = f"float32x{lanes}"
            most = T.Variable(vector, T.splat(T.const(float("-inf"), "float32"), lanes))
            with T.loop(parts) as part:
                one = T.hold(self.parts[T.run(own + part * size + (self.wide + lanes), lanes)])
                most.set(T.Select(one > most.value, one, most.value))
            base = safe_base(T.hold(most.value))
            total = T.Variable(vector, zeros(lanes))
            with T.loop(parts) as part:
                at = T.let(own + part * size + self.wide)
                factor = mathematics.decay(T.hold(self.parts[T.run(at + lanes, lanes)] - base))
                T.store(self.parts, T.run(at + lanes, lanes), factor)
                total.set(total.value + self.parts[T.run(at, lanes)] * factor)
            half = lanes // 2
            while half:
                mixed = T.hold(T.Shuffle([T.hold(total.value)], [i ^ half for i in range(lanes)]))
                total.set(total.value + mixed)
                half //= 2
            zero = zeros(lanes)
            none = T.hold(T.cast(T.expression(total.value == zero), "float32"))
            divisor = T.hold(total.value + none)
            head, row = self._row(r)
            of = (batch, T.let(joint * steps.group + head), row)
            with T.loop(T.i64(self.wide // lanes)) as c:
                value = T.Variable(vector, zero)
                with T.loop(parts) as part:
                    at = T.let(own + part * size)
                    factor = self.parts[T.run(at + (self.wide + lanes), lanes)]
                    value.set(value.value + self.parts[T.run(at + c * lanes, lanes)] * factor)
                found = T.hold(T.Select(none > zero, T.like(zero, steps.desc.WITHOUT_WEIGHTS), value.value / divisor))
                place = T.let(c * lanes)

                def all_(found: Any = found, place: Any = place) -> None:
                    steps.put((*of, place), found)

                def rest(found: Any = found, place: Any = place) -> None:
                    self._store(self.query, found)  # the queries are not needed any more
                    with T.loop(T.let(T.min(T.i64(lanes), self.value_channels - place))) as i:
                        steps.put((*of, place + i), self.scratch[self.query + i])

                T.either(c < whole, all_, rest) if whole else rest()
