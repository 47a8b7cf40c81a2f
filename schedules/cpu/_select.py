"""Selection: the K best of a row, without sorting the row.

The row is read in chunks. The best element of each lane of each chunk is kept. The K-th best of these is a bound that at least K
elements reach, so an element below the bound is not one of the K best. Only chunks that reach the bound are read again, and their
elements that reach it are collected. When the collection is full, it is reduced to its K best, which raises the bound. The new
bound is higher than the K-th: later elements equal to the K-th would lose to earlier ones, so they are not collected.
"""

from __future__ import annotations

from typing import Any

from tvmdml.kernels import tensorir as T
from tvmdml.schedules.cpu._leaves import Leaves
from tvmdml.schedules.cpu._order import Order

Temporaries = tuple[tuple[str, int], ...]

DENSE = 8
"""With this many elements or more in a word, they are collected a register at a time: one by one would take longer."""
BLOCK = 64
"""Keys are counted in whole blocks of this size."""


def blocks(count: int) -> int:
    """A number of keys, rounded up to whole blocks."""
    return -(-count // BLOCK) * BLOCK


class Selection:
    """Collects the K best elements of a row for each of several tasks: keys and positions, in order of position."""

    def __init__(self, order: Order, leaves: Leaves, chunk_vectors: int, few: bool) -> None:
        self.order, self.leaves, self.few = order, leaves, few
        self.lanes = order.lanes
        self.vectors = chunk_vectors
        self.chunk = chunk_vectors * order.lanes
        self.look = min(64, self.chunk)  # elements compared with the bound in one word

    def temporaries(self, tasks: int, room: int, bests: int) -> Temporaries:
        """The scratch memory it needs: for collections of ``room`` elements, and for ``bests`` keys of chunks."""
        return (
            (self.order.word, tasks * room),
            ("uint32", tasks * room),
            ("int32", tasks * room),
            ("uint32", tasks * room),
            (self.order.word, tasks * bests),
        )

    def declare(self, f: T.Function) -> None:
        """Declare the scratch as parameters."""
        self.keys, self.positions = f.buffer("keys", self.order.word), f.buffer("positions", "uint32")
        self.ranks, self.ordered = f.buffer("ranks", "int32"), f.buffer("ordered", "uint32")
        self.bests = f.buffer("bests", self.order.word)

    def begin(self, task: Any, room: Any, bests: Any, fold: Any, k: Any) -> None:
        """Select a task's part of the scratch for the statements that follow. The bound is chosen among ``fold`` bests."""
        self.room, self.fold, self.k = room, fold, k
        self.base, self.best_base = T.let(task * room), T.let(task * bests)
        self.count = T.Variable("int64")
        self.bound = T.Variable(self.order.word)
        self.open = T.Variable("int32")

    # -- Collecting -----------------------------------------------------------------------------------------------

    def collect(self, source: Any, start: Any, length: Any, first: Any) -> None:
        """Collect from contiguous elements; the first has position ``first``. There must be at least K."""
        self.source, self.start, self.first = source, start, first
        self.count.set(T.i64(0))
        self.open.set(T.const(1, "int32"))
        chunks = T.let(T.truncdiv(length, T.i64(self.chunk)))
        with T.loop(chunks) as c:
            T.store(self.bests, T.run(self.best_base + c * self.lanes, self.lanes), self._best_of_chunk(T.let(c * self.chunk)))
        self.first_bound = T.let(self._first_bound(T.let(chunks * self.lanes)))
        self.bound.set(self.first_bound)
        self._look_again(chunks, length)
        # There are fewer than K only if another thread writes to the row at the same time. Then any elements may be returned.
        with T.loop(T.let(T.max(self.k - self.count.value, T.i64(0)))):
            self.take(self.order.least(), T.cast(first, "uint32"))

    def collect_all(self, source: Any, start: Any, length: Any, first: Any) -> None:
        """Collect every element of a short row."""
        self.source, self.start, self.first = source, start, first
        with T.loop(length) as i:
            T.store(self.keys, self.base + i, self._key(i))
            T.store(self.positions, self.base + i, T.cast(first + i, "uint32"))
        self.count.set(length)

    def take(self, key: Any, position: Any) -> None:
        """Collect an element by its key and position."""
        T.store(self.keys, self.base + self.count.value, key)
        T.store(self.positions, self.base + self.count.value, position)
        self.count.set(self.count.value + 1)

    def _key(self, i: Any) -> Any:
        return self.order.key(self.source[self.start + i])

    def _is_open(self) -> Any:
        return self.open.value != T.const(0, "int32")

    def _best_of_chunk(self, at: Any) -> Any:
        """The best element of each lane of a chunk."""
        words = [T.hold(self.source[T.run(self.start + at + v * self.lanes, self.lanes)]) for v in range(self.vectors)]
        if not self.order.has_float_registers:
            return _chains(T.max, [T.hold(self.order.key(word)) for word in words])
        # Floats are compared directly, one instruction each, and converted to keys when few are left. No element may be NaN then.
        floats = [T.hold(self.order.as_float(word)) for word in words]
        pairs = zip(floats[::2], floats[1::2] or floats[:1], strict=True)
        nan = self.leaves.bits(_chains(lambda x, y: x | y, [T.isnan(x) | T.isnan(y) for x, y in pairs]))
        best = T.local(self.order.word, self.lanes)
        whole = T.run(T.i64(0), self.lanes)
        T.store(best, whole, self.order.key(self.order.as_word(_chains(self.order.better_float, floats))))
        with T.when(nan != T.const(0, f"uint{self.lanes}")):
            T.store(best, whole, _chains(T.max, [T.hold(self.order.key(word)) for word in words]))
        return best[whole]

    def _look_again(self, chunks: Any, length: Any) -> None:
        """Read the chunks that reach the bound again, and the rest after the last chunk. The bests are read 64 at a time."""
        together = 64 // self.lanes
        with T.loop(T.let(T.truncdiv(chunks + together, T.i64(together)))) as group:
            bests = self.bests[T.run(self.best_base + group * 64, 64)]
            reach = self.leaves.bits(bests >= T.splat(self.bound.value, 64))
            left = T.let(group * together + (together - 1) >= chunks)
            with T.when(((reach != T.const(0, "uint64")) | left) & self._is_open()), T.loop(T.i64(together)) as j:
                chunk = T.let(group * together + j)
                its_own = T.word((1 << self.lanes) - 1, 64) << T.cast(j * self.lanes, "uint64")
                hot = ((reach & its_own) != T.const(0, "uint64")) & (chunk < chunks)
                begin = T.let(chunk * self.chunk)
                size = T.hold(T.Select(hot, T.i64(self.chunk), T.Select(chunk == chunks, length - begin, T.i64(0))))
                with T.loop(T.let(T.truncdiv(size + (self.look - 1), T.i64(self.look)))) as u, T.when(self._is_open()):
                    first = T.let(begin + u * self.look)
                    at = T.hold(T.min(first, length - self.look))  # the last read overlaps elements that were read before
                    self._look(at, seen=T.let(first - at))

    def _first_bound(self, groups: Any) -> Any:
        """The K-th best of the bests; if there are more bests than needed, they are first reduced to ``fold`` maxima."""
        fold = T.let(T.min(self.fold, groups))
        rounds = T.let(T.truncdiv(groups - 1, fold))
        end = T.let(self.best_base + groups)  # the fold is after the bests, in whole blocks
        with T.loop(fold) as i:
            T.store(self.bests, end + i, self.bests[self.best_base + i])
        with T.loop(rounds) as r, T.loop(T.let(T.min(fold, groups - (r + 1) * fold))) as i:
            T.store(self.bests, end + i, T.max(self.bests[end + i], self.bests[self.best_base + (r + 1) * fold + i]))
        if self.few:
            return self._bound_among_few(end, fold)
        return self._kth(self.bests, end, fold, enough=self._a_few_more())[0]

    def _bound_among_few(self, base: Any, count: Any) -> Any:
        """The largest of a register of evenly spaced bests that at least K bests reach: near the K-th, without branches."""
        lanes, word = self.lanes, self.order.word
        candidates = T.hold(self.bests[T.ramp(base, T.let(T.truncdiv(count, T.i64(lanes))), lanes)])
        reach, register = T.local(word, lanes), T.run(T.i64(0), lanes)
        T.store(reach, register, T.splat(T.const(0, word), lanes))
        with T.loop(count) as i:
            reaches = T.splat(self.bests[base + i], lanes) >= candidates
            T.store(reach, register, reach[register] + T.cast(reaches, f"{word}x{lanes}"))
        enough = reach[register] >= T.splat(T.cast(self.k, word), lanes)
        T.store(reach, register, T.Select(enough, candidates, T.splat(self.order.least(), lanes)))
        bound = T.Variable(word, self.order.least())
        with T.loop(T.i64(lanes)) as lane:
            bound.set(T.max(bound.value, reach[lane]))
        return bound.value

    def _look(self, at: Any, seen: Any) -> None:
        """Collect the elements that reach the bound among the next ``look`` elements, except the first ``seen``."""
        unsigned = f"uint{self.look}"
        words = T.let(self.source[T.run(self.start + at, self.look)])
        reach = T.Variable(unsigned)
        if self.order.has_float_registers:
            is_number = T.let(self.order.is_number(self.bound.value))
            with T.when(is_number):
                bound = T.splat(T.let(self.order.float_of(self.bound.value)), self.look)
                floats = self.order.as_float(words)  # NaN come first in descending order, and last in ascending order
                reaches = self.leaves.not_less(floats, bound) if self.order.decreasing else floats <= bound
                reach.set(self.leaves.bits_here(reaches))
            with T.when(~is_number):
                reach.set(self.leaves.bits_here(self.order.key(words) >= T.splat(self.bound.value, self.look)))
        else:
            reach.set(self.leaves.bits(self.order.key(words) >= T.splat(self.bound.value, self.look)))
        reach.set(reach.value & (T.word(-1, self.look) << T.cast(seen, unsigned)))
        with T.when(reach.value != T.const(0, unsigned)):
            with T.when(self.count.value > self.room - self.look):
                self.cut()
            if self.order.bits == 32 and self.leaves.has("compress"):
                with T.when(T.popcount(reach.value) >= T.const(DENSE, unsigned)):
                    self._append_dense(reach, at)
            with T.loop_while(reach.value != T.const(0, unsigned)):
                lowest = T.popcount((reach.value & (~reach.value + T.const(1, unsigned))) - T.const(1, unsigned))
                number = T.let(at + T.cast(lowest, "int64"))
                self.take(self._key(number), T.cast(self.first + number, "uint32"))
                reach.set(reach.value & (reach.value - T.const(1, unsigned)))
            # K elements reach the bound now: a later element that is equal to the bound is not one of the K best.
            with T.when((self.count.value >= self.k) & (self.bound.value == self.first_bound)):
                self._demand_more(self.first_bound)

    def _append_dense(self, reach: T.Variable, at: Any) -> None:
        """Collect all elements marked in a word, a register at a time, without an unpredictable branch."""
        unsigned = f"uint{self.look}"
        numbers = T.ramp(T.const(0, "int32"), T.const(1, "int32"), 16)
        for part in range(self.look // 16):
            these = T.let(T.cast(reach.value >> T.const(16 * part, unsigned), "uint16"))
            key = self.order.key(self.source[T.run(self.start + at + 16 * part, 16)])
            place = T.run(T.let(self.base + self.count.value), 16)
            position = numbers + T.splat(T.cast(self.first + at + 16 * part, "int32"), 16)
            T.store(self.keys, place, self.leaves.compress(these, key))
            T.store(self.positions, place, T.reinterpret("uint32x16", self.leaves.compress(these, position)))
            self.count.set(self.count.value + T.cast(T.popcount(these), "int64"))
        reach.set(T.const(0, unsigned))

    # -- Reducing the collection -----------------------------------------------------------------------------------

    def cut(self, exactly: bool = False) -> None:
        """Keep the K best of the collection, the earlier of equals; or a few more than K, which takes less time."""
        bound, exact = self._kth(self.keys, self.base, self.count.value, self.k if exactly else self._a_few_more())
        better = T.let(self._count(self.keys, self.base, self.count.value, lambda key: key > T.splat(bound, self.lanes)))
        equals = T.Variable("int64", T.Select(exact, self.k - better, self.room))
        kept = T.Variable("int64", T.i64(0))
        with T.loop(self.count.value) as i:
            key, position = T.let(self.keys[self.base + i]), T.let(self.positions[self.base + i])
            T.store(self.keys, self.base + kept.value, key)
            T.store(self.positions, self.base + kept.value, position)
            equal = T.let(T.cast((key == bound) & (equals.value > 0), "int64"))
            equals.set(equals.value - equal)
            kept.set(kept.value + T.cast(key > bound, "int64") + equal)
        self.count.set(kept.value)
        self.bound.set(bound)
        with T.when(exact):
            self._demand_more(bound)

    def _demand_more(self, bound: Any) -> None:
        """From now on, an element must be better than the bound."""
        self.bound.set(T.Select(bound < self.order.most(), bound + T.const(1, self.order.word), bound))
        with T.when(bound == self.order.most()):
            self.open.set(T.const(0, "int32"))

    def _a_few_more(self) -> Any:
        return T.let(self.k + T.truncdiv(self.k, T.i64(4)) + 4)

    def _kth(self, buffer: Any, base: Any, count: Any, enough: Any) -> tuple[Any, Any]:
        """The largest key that at least K of the keys reach, by binary search between the smallest and the largest key.

        The search ends early at a key that K to ``enough`` keys reach. The second result says whether the key is the largest one.
        """
        order = self.order
        low, high = T.Variable(order.word, order.most()), T.Variable(order.word, order.least())
        with T.loop(count) as i:
            low.set(T.min(low.value, buffer[base + i]))
            high.set(T.max(high.value, buffer[base + i]))
        self._fill_register(buffer, base, count)
        exact = T.Variable("int32", T.const(1, "int32"))
        with T.loop_while(low.value < high.value):
            middle = T.let((low.value | high.value) - ((low.value ^ high.value) >> T.const(1, order.word)))  # rounded up
            reach = T.let(self._count(buffer, base, count, lambda key: key >= T.splat(middle, self.lanes)))
            # The branch would be unpredictable: use selects.
            reached, done = T.let(reach >= self.k), T.let((reach >= self.k) & (reach <= enough))
            low.set(T.Select(reached, middle, low.value))
            high.set(T.Select(reached, T.Select(done, middle, high.value), middle - T.const(1, order.word)))
            exact.set(T.Select(done, T.const(0, "int32"), exact.value))
        return T.let(low.value), T.let(exact.value) != T.const(0, "int32")

    def _count(self, buffer: Any, base: Any, count: Any, holds: Any) -> Any:
        """How many keys satisfy a condition that is false for the least key, which pads the last register."""
        found = T.Variable("int32", T.const(0, "int32"))
        with T.loop(T.let(T.truncdiv(count + (self.lanes - 1), T.i64(self.lanes)))) as b:
            word = self.leaves.bits(holds(buffer[T.run(base + b * self.lanes, self.lanes)]))
            found.set(found.value + T.cast(T.popcount(word), "int32"))
        return T.cast(found.value, "int64")

    def _fill_register(self, buffer: Any, base: Any, count: Any) -> None:
        """Pad the keys to a whole register with keys that come before no other key."""
        whole = T.truncdiv(count + (self.lanes - 1), T.i64(self.lanes)) * self.lanes
        with T.loop(T.let(whole - count)) as i:
            T.store(buffer, base + count + i, self.order.least())

    # -- Sorting ---------------------------------------------------------------------------------------------------

    def put_in_order(self) -> None:
        """Write the positions of the collected elements to ``ordered``, the best first."""
        self._rank()
        with T.loop(T.let(self.count.value)) as i:
            place = T.let(T.cast(self.ranks[self.base + i], "int64"))
            T.store(self.ordered, self.base + place, self.positions[self.base + i])

    def _rank(self) -> None:
        """Write to ``ranks``, for each collected element, how many of the others come before it."""
        lanes = self.lanes
        count = self.count.value
        whole = T.let(T.truncdiv(count + (lanes - 1), T.i64(lanes)))
        self._fill_register(self.keys, self.base, count)
        register, numbers = T.run(T.i64(0), lanes), T.ramp(T.const(0, "int32"), T.const(1, "int32"), lanes)
        with T.loop(whole) as b:
            at = T.let(b * lanes)
            mine = T.let(self.keys[T.run(self.base + at, lanes)])
            rank = T.local("int32", lanes)
            T.store(rank, register, T.splat(T.const(0, "int32"), lanes))

            def others(first: Any, number: Any, goes_before: Any) -> None:
                with T.loop(number) as i:
                    key = T.splat(self.keys[self.base + first + i], lanes)
                    T.store(rank, register, rank[register] + T.cast(goes_before(key, i), f"int32x{lanes}"))

            others(T.i64(0), at, lambda key, i: key >= mine)
            others(
                at,
                T.i64(lanes),
                lambda key, i: (key > mine) | ((key == mine) & (T.splat(T.cast(i, "int32"), lanes) < numbers)),
            )
            others(T.let(at + lanes), T.let(T.max(count - at - lanes, T.i64(0))), lambda key, i: key > mine)
            T.store(self.ranks, T.run(self.base + at, lanes), rank[register])


def _chains(combine: Any, values: list[Any]) -> Any:
    """Combine values in four independent chains: in a single chain, each instruction would wait for the one before it."""
    chains = values[:4]
    for i, value in enumerate(values[4:]):
        chains[i % 4] = T.hold(combine(chains[i % 4], value))
    while len(chains) > 1:
        chains = [T.hold(combine(a, b)) for a, b in zip(chains[::2], chains[1::2], strict=True)]
    return chains[0]
