"""Attention on a GPU with a block of sums for each thread: for every type, and for devices without tensor cores.

Queries, keys and weights of a block are in shared memory, and values in the place of the keys. Each thread has some query rows and,
of them, some keys and some channels; sums are in its registers.
"""

from __future__ import annotations

from typing import Any

from tvmdml.kernels import tensorir_values as T
from tvmdml.operators._attention_steps import Joined
from tvmdml.schedules.gpu._attention_frame import Frame

_MOST_SUMS = 128
"""The most sums in a thread's registers."""


class PlainAttention(Frame):  # type: ignore[misc] # mypy knows these modules by another name
    """Writes the kernel."""

    name = "plain"

    def choose(self) -> None:
        """As many rows and keys as shared memory has room for."""
        target, knobs = self.target, self.knobs
        s = self.desc.sizes()
        self.threads = min(knobs.threads, target.max_threads)
        self.keys, self.rows = knobs.keys, knobs.rows
        self.busy = target.tasks() // 2
        while self.rows > 1 and self.rows // 2 >= s.rows:
            self.rows //= 2
        wide = max(s.channels, s.value_channels) + 1
        while self._bytes(s.channels, wide) > target.max_shared_bytes and self.keys > 4:
            if self.rows > self.keys:
                self.rows //= 2
            else:
                self.keys //= 2
        self.of_thread = min(knobs.rows_per_thread, self.rows)
        self.across = self.threads * self.of_thread // self.rows
        while self.across < 1:
            self.of_thread *= 2
            self.across = self.threads * self.of_thread // self.rows
        self.own_keys = -(-self.keys // self.across)
        self.own_channels = -(-s.value_channels // self.across)
        self.wide = wide
        self.rounds = max(s.channels, self.keys) + -(-self.keys * wide // self.threads) + 1
        self.choices = (self.of_thread,)
        self.fits = (
            self._bytes(s.channels, wide) <= target.max_shared_bytes
            and self.of_thread * (self.own_channels + self.own_keys) <= _MOST_SUMS
        )

    def _bytes(self, channels: int, wide: int) -> int:
        """Shared memory: queries, keys or values, weights, and the largest scores of each thread."""
        return int(4 * (self.rows * channels + self.keys * wide + self.rows * (self.keys + 1) + self.threads * 4) + 64)

    def begin(self) -> None:
        """Shared memory, and where the thread's part of a block is."""
        s = self.steps.d.sizes
        self.query = T.shared("float32", self.rows * s.channels)
        self.held = T.shared("float32", self.keys * self.wide)
        self.weights = T.shared("float32", self.rows * (self.keys + 1))
        self.largest = T.shared("float32", self.threads * self.of_thread)
        self.lane = T.hold(self.thread % T.index(self.across))
        self.row = T.hold(T.truncdiv(self.thread, T.index(self.across)) * T.index(self.of_thread))

    def unit(self, batch: Any, head: Any, block: Any, part: Any) -> None:
        """A block of query rows of a head, and a part of its keys."""
        steps, d = self.steps, self.steps.d
        s = d.sizes
        joint = head if steps.group == 1 else T.hold(T.truncdiv(head, T.index(steps.group)))
        past = T.hold(steps.past(batch))
        first = T.hold(block * T.index(self.rows))
        last = T.index(s.rows - 1)
        T.barrier()  # the block before is done with what is shared
        with self.each(self.rows * s.channels) as (i, element):
            row, channel = self.split(element, s.channels)
            with T.when(i):
                value = steps.element(d.query, 0, (batch, head, T.hold(T.min(first + row, last)), channel))
                T.store(self.query, element, value)
        zero = T.const(0.0, "float32")
        most, total = steps.begin(head, T.expression(part == T.index(0)))
        total = total if d.sinks is None else T.hold(T.Select(T.expression(self.lane == T.index(0)), total, zero))
        self.most = [T.Variable("float32", most) for _ in range(self.of_thread)]
        self.total = [T.Variable("float32", total) for _ in range(self.of_thread)]
        self.sums = [[T.Variable("float32", zero) for _ in range(self.own_channels)] for _ in range(self.of_thread)]
        limit = T.index(s.total)
        if d.lengths is not None:
            limit = T.hold(past + T.min(first + T.index(self.rows), T.index(s.rows)))
        begin, limit, rounds = self.keys_of(part, limit, steps.first_seen(past, first) if steps.window else None)
        self.at = (batch, head, first, past, limit)
        with T.loop(rounds) as number:
            key = T.hold(begin + number * T.index(self.keys))
            self._load(d.keys, s.channels, joint, key)
            T.barrier()
            scores = self._scores(key)
            self._weigh(scores)
            self._load(d.values, s.value_channels, joint, key)
            T.barrier()
            self._add(T.hold(T.min(T.index(self.keys), limit - key)))
            T.barrier()
        self._results(part)

    def _load(self, own: Joined, channels: int, joint: Any, key: Any) -> None:
        """A block of keys or values into shared memory; 0 after the last one."""
        batch, _, _, past, limit = self.at
        with self.each(self.keys * channels) as (i, element):
            row, channel = self.split(element, channels)
            value = T.Variable("float32", T.const(0.0, "float32"))
            with T.when(i & (key + row < limit)):
                value.set(self.steps.joined(own, past, (batch, joint, T.hold(key + row), channel)))
            with T.when(i):
                T.store(self.held, row * T.index(self.wide) + channel, value.value)

    def _scores(self, key: Any) -> list[list[Any]]:
        """The scores of a thread's rows and keys; -inf of a key that a row does not see."""
        s = self.steps.d.sizes
        zero = T.const(0.0, "float32")
        sums = [[T.Variable("float32", zero) for _ in range(self.own_keys)] for _ in range(self.of_thread)]
        own = [T.hold(T.min(self.lane + T.index(i * self.across), T.index(self.keys - 1))) for i in range(self.own_keys)]
        with T.loop(T.index(s.channels)) as c:
            queries = [T.hold(self.query[(self.row + T.index(r)) * T.index(s.channels) + c]) for r in range(self.of_thread)]
            for k, place in enumerate(own):
                value = T.hold(self.held[place * T.index(self.wide) + c])
                for r, query in enumerate(queries):
                    sums[r][k].set(sums[r][k].value + query * value)
        batch, head, first, past, limit = self.at
        found: list[list[Any]] = []
        for r, of_row in enumerate(sums):
            row = T.hold(first + self.row + T.index(r))
            here = T.hold(T.min(row, T.index(s.rows - 1)))
            found.append([])
            for k, one in enumerate(of_row):
                number = T.hold(key + self.lane + T.index(k * self.across))
                seen = (number < limit) & (self.lane + T.index(k * self.across) < T.index(self.keys))
                if self.steps.d.lengths is not None:
                    seen = seen & (number <= past + here)
                    if self.steps.window:
                        seen = seen & (number > past + here - T.index(self.steps.window))
                score = T.Variable("float32", T.like(zero, float("-inf")))
                with T.when(seen):
                    scaled = T.hold(T.rounded(one.value * T.like(zero, self.desc.scale)))
                    score.set(self.steps.filtered(self.steps.limited(scaled), (batch, head, here, number)))
                found[-1].append(score)
        return found

    def _weigh(self, scores: list[list[Any]]) -> None:
        """Weights of the largest score so far, in shared memory; sums of other weights are adjusted."""
        zero = T.const(0.0, "float32")
        least = T.like(zero, float("-inf"))
        for r, of_row in enumerate(scores):
            largest = self.most[r].value
            for one in of_row:
                largest = T.hold(T.Select(one.value > largest, one.value, largest))
            T.store(self.largest, (self.row + T.index(r)) * T.index(self.across) + self.lane, largest)
        T.barrier()
        for r, of_row in enumerate(scores):
            most = T.Variable("float32", least)
            with T.loop(T.index(self.across)) as i:
                one = T.hold(self.largest[(self.row + T.index(r)) * T.index(self.across) + i])
                most.set(T.Select(one > most.value, one, most.value))
            base = T.hold(T.select(T.expression(most.value == least), 0.0, most.value))
            old = T.hold(self.weight(T.hold(self.most[r].value - base)))
            self.most[r].set(most.value)
            self.total[r].set(self.total[r].value * old)
            for own in self.sums[r]:
                own.set(own.value * old)
            for k, score in enumerate(of_row):
                place = T.hold(self.lane + T.index(k * self.across))
                with T.when(place < T.index(self.keys)):
                    weight = T.hold(self.weight(T.hold(score.value - base)))
                    self.total[r].set(self.total[r].value + weight)
                    T.store(self.weights, (self.row + T.index(r)) * T.index(self.keys + 1) + place, weight)

    def _add(self, count: Any) -> None:
        """Weighed sums of the values in shared memory."""
        s = self.steps.d.sizes
        own = [T.hold(T.min(self.lane + T.index(i * self.across), T.index(s.value_channels - 1))) for i in range(self.own_channels)]
        with T.loop(count, most=self.keys) as k:
            weights = [T.hold(self.weights[(self.row + T.index(r)) * T.index(self.keys + 1) + k]) for r in range(self.of_thread)]
            for c, place in enumerate(own):
                value = T.hold(self.held[k * T.index(self.wide) + place])
                for r, weight in enumerate(weights):
                    self.sums[r][c].set(self.sums[r][c].value + weight * value)

    def _results(self, part: Any) -> None:
        """The results of a block; or, of a part of its keys, sums, the largest score and the sum of weights."""
        batch, head, first, _, _ = self.at
        steps, s = self.steps, self.steps.d.sizes
        zero = T.const(0.0, "float32")
        for r in range(self.of_thread):
            T.store(self.largest, (self.row + T.index(r)) * T.index(self.across) + self.lane, self.total[r].value)
        T.barrier()
        for r in range(self.of_thread):
            total = T.Variable("float32", zero)
            with T.loop(T.index(self.across)) as i:
                total.set(total.value + self.largest[(self.row + T.index(r)) * T.index(self.across) + i])
            row = T.hold(first + self.row + T.index(r))
            if self.part_keys:
                place = self.place_found(batch, head, row, part)
                with T.when((row < T.index(s.rows)) & (self.lane == T.index(0))):
                    T.store(self.found, place + T.index(s.value_channels), self.most[r].value)
                    T.store(self.found, place + T.index(s.value_channels + 1), total.value)
            for c, own in enumerate(self.sums[r]):
                channel = T.hold(self.lane + T.index(c * self.across))
                if self.part_keys:
                    with T.when((row < T.index(s.rows)) & (channel < T.index(s.value_channels))):
                        T.store(self.found, place + channel, own.value)
                    continue
                found = T.hold(T.select(T.expression(total.value == zero), 0.0, own.value / total.value))
                with T.when((row < T.index(s.rows)) & (channel < T.index(s.value_channels))):
                    steps.put((batch, head, row, channel), found)
