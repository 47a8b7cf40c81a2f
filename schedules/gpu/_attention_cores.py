"""Attention of float16 on a GPU with tensor cores: each subgroup has 16 query rows, and goes over blocks of keys.

Queries, scores, weights and sums are in registers, as small matrices that the subgroup's threads hold together: weights are the
first factor of their product with the values as they come from the scores. A block's keys and values are in shared memory; with
asynchronous copies, values come while scores are computed, and the next keys while values are summed.

Weights are rounded to float16 before they meet the values. What a block adds to a sum is summed by itself, and added with a
rounding to the nearest, which tensor cores do not have. Rows of the heads that have the same keys are stacked: decoding with
grouped heads reads the keys once.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any, NamedTuple

from tvmdml.enums import MultiheadAttentionMaskType as MaskType
from tvmdml.kernels import tensorir_values as T
from tvmdml.schedules.gpu._attention_frame import Frame
from tvmdml.schedules.gpu._attention_loads import slots, sources_of
from tvmdml.schedules.gpu._words import words

_ROWS = 16
"""Query rows of a subgroup."""


class _Tile(NamedTuple):
    """What suits heads of up to so many channels."""

    channels: int
    subgroups: int
    """The most of a group."""
    keys: int
    """Keys of a block."""
    holds_query: bool
    """Whether queries are in registers; or else they stay in shared memory."""


_TILES = {
    True: (_Tile(128, 4, 64, True), _Tile(192, 2, 32, False)),
    False: (_Tile(64, 4, 64, True), _Tile(128, 4, 32, True)),
}
"""What fits into registers, with asynchronous copies and without; heads of more channels are left to the other way."""
_FOLDED = 2.0**80
"""With a scale below, scores may be multiplied by another number: they stay finite."""


class AttentionCores(Frame):  # type: ignore[misc] # mypy knows these modules by another name
    """Writes the kernel."""

    name = "cores"

    def choose(self) -> None:
        """The tile for the channels, and how everything is moved."""
        desc, target, s = self.desc, self.target, self.desc.sizes()
        types = {getattr(desc, name).data_type.tvm for name in desc.given()}
        d = desc.described()
        self.queries, self.own_keys, self.own_values = sources_of(d)
        self.meanwhile = target.has("async_copies") and self.own_keys.run > 1 and self.own_values.run > 1
        tiles = _TILES[self.meanwhile]
        tile = next((one for one in tiles if max(s.channels, s.value_channels) <= one.channels), None)
        self.fits = tile is not None and types == {"float16"} and s.total > 0 and target.has("tensor_cores")
        self.fits = self.fits and not self.desc.is_limited
        if tile is None or not self.fits:
            return
        self.stacked = s.heads // s.joint
        subgroups = max(1, min(tile.subgroups, self.knobs.threads // 32))
        while subgroups > 1 and subgroups // 2 * _ROWS >= s.rows * self.stacked:
            subgroups //= 2
        self.threads, self.rows, self.keys = 32 * subgroups, _ROWS * subgroups, tile.keys
        self.holds_query, self.busy = tile.holds_query, target.tasks() // 8
        limit = abs(desc.scale) < _FOLDED
        self.folds = d.added is None and d.mask is None and limit
        self.rounds = self.keys
        self.choices = (self.queries.run, self.own_keys.run, self.own_values.run, self.meanwhile)

    # -- The group

    def begin(self) -> None:
        """Shared memory, registers, and what a thread reads of a small matrix."""
        keys, values = self.own_keys.pitch * self.keys, self.own_values.pitch * self.keys
        queries = self.queries.pitch * self.rows
        self.values_at = keys
        self.query_at = keys + (0 if self.holds_query else values)
        room = keys + (max(values, queries) if self.holds_query else values + queries)
        self.memory = T.shared("float16", max(room, self.own_values.pitch * self.rows))
        self.memory_words = words(self.memory)
        lane = T.let(self.own & T.const(31, "int32"))
        warp = T.let(self.own >> T.const(5, "int32"))
        row, eighth = T.let(lane & T.const(7, "int32")), T.let(lane >> T.const(3, "int32"))
        low, high = T.let(eighth & T.const(1, "int32")), T.let(eighth >> T.const(1, "int32"))
        self.line = T.let(warp * _ROWS + (lane >> T.const(2, "int32")))
        self.column = T.let((lane & T.const(3, "int32")) * 2)
        self.reads_query = T.let((warp * _ROWS + low * 8 + row) * self.queries.pitch + high * 8 + self.query_at)
        self.reads_keys = T.let((high * 8 + row) * self.own_keys.pitch + low * 8)
        self.reads_values = T.let((low * 8 + row) * self.own_values.pitch + high * 8 + self.values_at)
        self.query = T.local("uint32", self.queries.width // 4) if self.holds_query else None
        self.scores = T.local("float32", self.keys // 2)
        self.weights = T.local("uint32", self.keys // 4)
        self.sums = T.local("float32", self.own_values.width // 2)
        self.most, self.total = ([T.Variable("float32") for _ in (0, 1)] for _ in (0, 1))

    def unit(self, batch: Any, head: Any, block: Any, part: Any) -> None:
        """A block of query rows, and a part of its keys."""
        d, s = self.steps.d, self.steps.d.sizes
        self.batch, self.joint, self.past = batch, head, T.hold(self.steps.past(batch))
        self.first = T.hold(block * T.index(self.rows))
        self.count = s.rows if self.stacked == 1 else T.hold(s.rows * T.index(self.stacked))
        limit = least = T.index(s.total)
        if d.lengths is not None:
            lowest, highest = self._ends()
            limit, least = T.hold(self.past + highest + 1), T.hold(self.past + lowest + 1)
        begin, self.limit, rounds = self.keys_of(part, limit)
        self.least = T.hold(T.min(least, self.limit))
        self._begin_rows()
        T.barrier()  # the block before is done with what is shared
        self.queries.load(self, self.first, self.query_at, self.rows)
        if self.meanwhile:
            T.end_copies()
            self.own_keys.load(self, begin, 0, self.keys)
            T.end_copies()
            T.await_copies(1)
        T.barrier()
        if self.query is not None:
            for i in range(self.queries.width // 16):
                T.load_tiles(self.query, 4 * i, self.memory, T.let(self.reads_query + 16 * i))
            T.barrier()
        with T.loop(rounds, most=1) as number:
            key = T.hold(begin + number * T.index(self.keys))
            self.own_values.load(self, key, self.values_at, self.keys)
            if self.meanwhile:
                T.end_copies()
                T.await_copies(1)
            else:
                self.own_keys.load(self, key, 0, self.keys)
            T.barrier()
            self._multiply_keys()
            if self.meanwhile:
                T.barrier()
                with T.when(number + 1 < rounds):
                    self.own_keys.load(self, T.hold(key + T.index(self.keys)), 0, self.keys)
                T.end_copies()
            self._finish_scores(key)
            old = self._weigh()
            if self.meanwhile:
                T.await_copies(1)
                T.barrier()
            self._add_values(old)
            T.barrier()
        if self.meanwhile:
            T.await_copies(0)
            T.barrier()
        self._results(part)

    def _ends(self) -> tuple[Any, Any]:
        """The least and the greatest number of a query row in the block."""
        rows = self.steps.d.sizes.rows
        last = T.hold(T.min(self.first + T.index(self.rows), self.count) - 1)
        if self.stacked == 1:
            return self.first, last
        heads = [T.hold(T.truncdiv(one, rows)) for one in (self.first, last)]
        one_head = T.expression(heads[0] == heads[1])
        return (
            T.hold(T.Select(one_head, self.first - heads[0] * rows, T.index(0))),
            T.hold(T.Select(one_head, last - heads[1] * rows, T.cast(rows - 1, self.dtype))),
        )

    def row_of(self, row: Any) -> tuple[Any, Any]:
        """The head and the number of a query row, of a row of the block; the last one of what is beyond."""
        row = T.hold(T.min(self.first + row, self.count - 1))
        if self.stacked == 1:
            return self.joint, row
        rows = self.steps.d.sizes.rows
        head = T.hold(T.truncdiv(row, rows))
        return T.hold(self.joint * T.index(self.stacked) + head), T.hold(row - head * rows)

    def _begin_rows(self) -> None:
        """The thread's two rows: what they see, and where what is added to their scores is."""
        steps, d = self.steps, self.steps.d
        zero = T.const(0.0, "float32")
        for i in (0, 1):
            self.most[i].set(T.like(zero, float("-inf")))
            self.total[i].set(zero)
        for i in range(self.own_values.width // 2):
            T.store(self.sums, i, zero)
        self.seen, self.added, self.masked, self.kept = [], [], [], []
        mask = d.mask
        limits = None
        if mask is not None and mask.kind is not MaskType.BOOLEAN:
            limits = [T.hold(one) for one in mask.limits(steps.buffers["mask_tensor"], self.batch)]
            if mask.by_row:
                limits += [T.hold(one) for one in mask.row_limits(steps.buffers["mask_tensor"], self.batch)]
        self.limits = limits
        for i in (0, 1):
            head, row = self.row_of(self._cast(self.line + 8 * i))
            seen = self.limit if d.lengths is None else T.hold(T.min(self.limit, self.past + row + 1))
            self.seen.append(seen)
            at = (self.batch, head, row)
            if d.added is not None:
                self.added.append(T.hold(T.dot(at, [T.index(step) for step in d.added[:3]])))
            if mask is not None and mask.kind is MaskType.BOOLEAN:
                self.masked.append(T.hold(T.dot(at, [T.index(step) for step in mask.steps[:3]])))
            if limits is not None and len(limits) > 2:
                own = T.cast(row, "int32")
                self.kept.append(T.hold(T.to((own >= limits[2]) & (own < limits[3]), "int32")))

    # -- The products

    def _multiply_keys(self) -> None:
        """Scores of the keys that are in shared memory, not scaled."""
        for i in range(self.keys // 2):
            T.store(self.scores, i, T.const(0.0, "float32"))
        query = self.query if self.query is not None else T.local("uint32", 4)
        b = T.local("uint32", 4)
        for k in range(self.queries.width // 16):
            if self.query is None:
                T.load_tiles(query, 0, self.memory, T.let(self.reads_query + 16 * k))
            own = [query[(0 if self.query is None else 4 * k) + i] for i in range(4)]
            for j in range(self.keys // 16):
                T.load_tiles(b, 0, self.memory, T.let(self.reads_keys + (16 * j * self.own_keys.pitch + 16 * k)))
                for i in (0, 1):
                    T.multiply_tiles(("float16", "float16"), self.scores, 8 * j + 4 * i, own, [b[2 * i], b[2 * i + 1]])

    def _finish_scores(self, key: Any) -> None:
        """Scores, scaled, with what is added to them; -inf of a key that a row does not see."""
        steps, d = self.steps, self.steps.d
        factor = self.desc.scale * (math.log2(math.e) if self.folds else 1)
        number = T.hold(key + self._cast(self.column))
        last = T.hold(T.index(d.sizes.total) - 1)
        mask, looks = d.mask, bool(self.added or self.masked)
        for j in range(self.keys // 8):
            for one in (0, 1):
                own = T.hold(number + T.index(8 * j + one)) if looks or self.limits else None
                here = T.hold(T.min(own, last)) if looks else own
                narrow = T.hold(T.cast(own, "int32")) if self.limits else None
                for half in (0, 1):
                    place = 4 * j + 2 * half + one
                    found = T.hold(self.scores[place] * T.like(self.scores[place], factor))
                    if d.added is not None:
                        at = self.added[half] + here * T.index(d.added[3])
                        found = T.hold(found + T.wide(steps.buffers[self.desc.POSITIONS][at]))
                    if mask is not None:
                        if self.limits is None:
                            at = self.masked[half] + here * T.index(mask.steps[3])
                            kept: Any = T.expression(steps.buffers["mask_tensor"][at] != T.const(0, "int32"))
                        else:
                            kept = (narrow >= self.limits[0]) & (narrow < self.limits[1])
                            if self.kept:
                                kept = kept & T.expression(self.kept[half] != T.const(0, "int32"))
                        found = T.Select(kept, found, found + T.like(found, self.desc.mask_filter_value))
                    T.store(self.scores, place, found)
        with T.when(key + T.index(self.keys) > self.least):
            least = T.like(T.const(0.0, "float32"), float("-inf"))
            for j in range(self.keys // 8):
                for half, one in ((0, 0), (0, 1), (1, 0), (1, 1)):
                    place, own = 4 * j + 2 * half + one, number + T.index(8 * j + one)
                    T.store(self.scores, place, T.Select(own < self.seen[half], self.scores[place], least))

    def weight(self, score: Any) -> Any:
        """2 to the power of the score if that is in such units already, e otherwise."""
        return T.near_exp2(score if self.folds else score * T.const(math.log2(math.e), "float32"))

    def _weigh(self) -> list[Any]:
        """Weights of the largest score so far, as a factor; what sums of other weights are multiplied by."""
        zero = T.const(0.0, "float32")
        least, olds = T.like(zero, float("-inf")), []
        places = [[4 * j + 2 * half + one for j in range(self.keys // 8) for one in (0, 1)] for half in (0, 1)]
        for half in (0, 1):
            largest = self.most[half].value
            for place in places[half]:
                largest = T.hold(T.call_extern("float32", "fmaxf", largest, self.scores[place]))
            for by in (1, 2):
                other = T.subgroup("shuffle_xor", "float32", largest, T.const(by, "int32"))
                largest = T.hold(T.call_extern("float32", "fmaxf", largest, T.hold(other)))
            base = T.hold(T.select(T.expression(largest == least), 0.0, largest))
            old = T.hold(self.weight(T.hold(self.most[half].value - base)))
            self.most[half].set(largest)
            total = T.const(0.0, "float32")
            for i, place in enumerate(places[half]):
                weight = T.hold(self.weight(T.hold(self.scores[place] - base)))
                T.store(self.scores, place, weight)
                total = T.hold(total + weight) if i else weight
            self.total[half].set(self.total[half].value * old + total)
            olds.append(old)
        for j in range(self.keys // 8):
            for half in (0, 1):
                place = 4 * j + 2 * half
                T.store(self.weights, 2 * j + half, T.halves(self.scores[place], self.scores[place + 1]))
        return olds

    def _add_values(self, old: Sequence[Any]) -> None:
        """Weighed sums of the values in shared memory, 32 channels at a time."""
        pairs = self.own_values.width // 16
        b = T.local("uint32", 4)
        more = T.local("float32", 16)
        for first in range(0, pairs, 2):
            some = range(first, min(first + 2, pairs))
            for i in range(8 * len(some)):
                T.store(more, i, T.const(0.0, "float32"))
            for k in range(self.keys // 16):
                own = [self.weights[4 * k + i] for i in range(4)]
                for turn, j in enumerate(some):
                    place = T.let(self.reads_values + (16 * k * self.own_values.pitch + 16 * j))
                    T.load_tiles(b, 0, self.memory, place, turned=True)
                    for i in (0, 1):
                        T.multiply_tiles(("float16", "float16"), more, 8 * turn + 4 * i, own, [b[2 * i], b[2 * i + 1]])
            for turn, j in enumerate(some):
                for i in range(8):
                    place = 8 * j + i
                    T.store(self.sums, place, T.fused(self.sums[place], old[i // 2 % 2], more[8 * turn + i]))

    # -- Results

    def _results(self, part: Any) -> None:
        """The results of a block; or, of a part of its keys, sums, the largest score and the sum of weights."""
        s = self.steps.d.sizes
        zero = T.const(0.0, "float32")
        totals = []
        for half in (0, 1):
            total = self.total[half].value
            for by in (1, 2):
                total = T.hold(total + T.hold(T.subgroup("shuffle_xor", "float32", total, T.const(by, "int32"))))
            totals.append(total)
        columns = self.own_values.width // 8
        if self.part_keys:
            for half in (0, 1):
                line = T.hold(self._cast(self.line + 8 * half))
                head, row = self.row_of(line)
                with T.when(self.first + line < self.count):
                    place = self.place_found(self.batch, head, row, part)
                    channel = T.hold(self._cast(self.column))
                    for j in range(columns):
                        for one in (0, 1):
                            own = channel + T.index(8 * j + one)
                            with T.when(own < T.index(s.value_channels)):
                                T.store(self.found, place + own, self.sums[4 * j + 2 * half + one])
                    with T.when(T.expression(channel == T.index(0))):
                        T.store(self.found, place + T.index(s.value_channels), self.most[half].value)
                        T.store(self.found, place + T.index(s.value_channels + 1), totals[half])
            return
        for half in (0, 1):
            none, without = T.expression(totals[half] == zero), self.steps.desc.WITHOUT_WEIGHTS
            factor = T.hold(T.const(1.0, "float32") / totals[half])
            begin = T.let((self.line + 8 * half) * (self.own_values.pitch // 2) + (self.column >> T.const(1, "int32")))
            for j in range(columns):
                two = [T.hold(T.select(none, without, self.sums[4 * j + 2 * half + one] * factor)) for one in (0, 1)]
                T.store(self.memory_words, begin + 4 * j, T.halves(*two))
        T.barrier()
        count = self.rows * s.value_channels
        for inside, element in slots(self, count):
            line, channel = self.split(element, s.value_channels)
            head, row = self.row_of(line)
            found = self.first + line < self.count
            with T.when(found if inside is None else found & inside):
                value = T.hold(self.memory[line * T.index(self.own_values.pitch) + channel])
                self.steps.put((self.batch, head, row, channel), value)
