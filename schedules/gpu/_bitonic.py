"""The first K of many entries, each a key and a position, by bitonic networks in a group's shared memory.

The steps of a network do not depend on the data, so all threads have equal work. Among entries with equal keys, the earlier
position comes first. Therefore no two entries are equal, and the order is the same in every run.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

from tvmdml.kernels import tensorir as T
from tvmdml.schedules.gpu import strided
from tvmdml.schedules.gpu._keys import Keys

POSITION = "uint32"
KeyedPosition = tuple[Any, Any]
"""A key and a position."""
Load = Callable[[Any], tuple[Any, ...]]
"""Loads the entry with a given number."""


class Neighbours(NamedTuple):
    """Entries that are loaded in aligned vectors of ``width``; the number of entries is a multiple of it."""

    width: int
    load: Callable[[Any], list[tuple[Any, ...]]]
    """Loads the entries from a given number on."""


def entry_bytes(keys: Keys) -> int:
    """The shared memory of one entry."""
    size: int = keys.bytes
    return size + 4


def i32(value: int) -> Any:
    """An int32 constant, the type of counts within a group."""
    return T.const(value, "int32")


class Entries:
    """Space for entries in shared memory; their number is a power of two. ``lockstep`` is the target's."""

    def __init__(self, keys: Keys, room: int, thread: Any, threads: int, lockstep: int = 1) -> None:
        self.order, self.room, self.thread, self.threads, self.lockstep = keys, room, thread, threads, lockstep
        self.keys, self.positions = T.shared(keys.word, room), T.shared(POSITION, room)

    def put(self, place: Any, key: Any, position: Any) -> None:
        """Write one entry."""
        T.store(self.keys, place, key)
        T.store(self.positions, place, position)

    def pad(self, begin: Any, end: Any) -> None:
        """Fill ``begin`` to ``end`` with entries that sort after all others."""
        with self._share(end - begin) as i:
            self.put(begin + i, self.order.last(), T.word(-1, 32))

    def widen(self, count: Any, least: Any) -> Any:
        """Pad ``count`` entries to a power of two, at least ``least``, with entries that sort last; returns the new number."""
        width = T.Variable("int32", least)
        with T.loop_while(width.value < count):
            width.set(width.value * 2)
        self.pad(count, width.value)
        T.barrier()
        return width.value

    def sort(self, total: Any, segment: Any, keep: Any) -> None:
        """Sort the first ``keep`` entries of each ``segment`` to its start; the contents behind them are lost.

        All numbers are powers of two, and the same for every thread. A barrier stands before and after the work.
        """
        size = T.Variable("int32", i32(2))
        with T.loop_while(size.value <= keep):
            self._merge(total, segment, keep, size.value, size.value, i32(1))
            size.set(size.value * 2)
        # Runs of ``keep`` are now sorted, alternately up and down. Of two such runs, the lesser of each pair of entries form the
        # first ``keep``. They stay in place: a run's elements are contiguous, and runs are ``keep * apart`` apart from each other.
        live, apart = T.Variable("int32", total), T.Variable("int32", i32(1))
        with T.loop_while(keep * apart.value < segment):
            live.set(live.value >> 1)
            with self._share(live.value) as e:
                within = T.let(e & (keep - 1))
                low = T.let(within + (e - within) * (apart.value * 2))
                high = T.let(low + keep * apart.value)
                first, second = self._entry(low), self._entry(high)
                with T.when(_before(second, first)):
                    self.put(low, *second)
            T.barrier()
            apart.set(apart.value * 2)
            self._merge(live.value, segment, keep, keep, keep * apart.value, apart.value)

    def _merge(self, live: Any, segment: Any, keep: Any, size: Any, run: Any, apart: Any) -> None:
        """Merge bitonic runs of ``size``: ascending if the run's start is an even multiple of ``run``, otherwise descending."""
        stride = T.Variable("int32", size >> 1)
        with T.loop_while(stride.value > 0):
            with self._share(live >> 1) as pair:
                number = T.let(2 * pair - (pair & (stride.value - 1)))
                within = T.let(number & (keep - 1))
                low = T.let(within + (number - within) * apart)
                high = T.let(low + stride.value)
                upward = T.let((low & run & (segment - 1)) == 0)  # a whole segment is always ascending
                first, second = self._entry(low), self._entry(high)
                with T.when(_before(second, first) == upward):
                    self.put(low, *second)
                    self.put(high, *first)
            self._wait(size, keep, stride.value)
            stride.set(stride.value >> 1)

    def _wait(self, size: Any, keep: Any, stride: Any) -> None:
        """Wait for the threads whose entries the next step compares: if these are close together, only the own subgroup."""
        if self.lockstep == 1:
            T.barrier()
            return
        near = ((stride <= self.lockstep) & (stride > 1)) | ((stride == 1) & (size <= self.lockstep) & (size < keep))
        T.either(near, T.subgroup_barrier, T.barrier)

    def _entry(self, place: Any) -> KeyedPosition:
        return T.hold(self.keys[place]), T.hold(self.positions[place])

    def _share(self, total: Any) -> Any:
        return strided(self.thread, total, self.threads)


def _before(one: KeyedPosition, other: KeyedPosition) -> Any:
    return (one[0] < other[0]) | ((one[0] == other[0]) & (one[1] < other[1]))


class BitonicQueue:
    """The first K of many entries; entries that cannot be among them are not stored.

    Each thread's best few entries give a bound for the K-th. Entries up to the bound are collected, and reduced to K when the space
    is full.
    """

    def __init__(self, entries: Entries, batch: int) -> None:
        self.entries, self.batch = entries, batch
        self._count = T.shared("int32", 1)

    def collect(self, load: Load | Neighbours, total: Any, k: Any, keep: Any, bests: Any, head: Any) -> None:
        """The first ``k`` of ``total`` entries, in order; ``keep`` is ``k`` rounded up to a power of two.

        The bound is one of ``bests`` entries, a power of two and at least ``keep``, from the first ``head`` entries, which are
        more.
        """
        own = self.entries
        first, count = T.Variable("int32", i32(0)), T.Variable("int32", i32(0))
        bound = T.Variable(own.order.word, own.order.last()), T.Variable(POSITION, T.word(-1, 32))
        with T.when(total > bests):
            self._find_bests(load, T.hold(T.min(total, head)), bests)
            own.sort(bests, bests, keep)
            for variable, kept in zip(bound, (own.keys, own.positions), strict=True):
                variable.set(kept[k - 1])
            T.barrier()

        def take(key: Any, position: Any) -> None:
            with T.when((key < bound[0].value) | ((key == bound[0].value) & (position <= bound[1].value))):
                own.put(T.let(T.atomic("add", self._count, 0, i32(1))), key, position)

        def look() -> None:
            T.barrier()
            count.set(self._count[0])
            T.barrier()

        most = own.room - self.batch * own.threads
        more = T.Variable("int32", i32(1))
        with T.loop_while(more.value == 1):
            with T.when(own.thread == 0):
                T.store(self._count, 0, count.value)
            T.barrier()
            stream(
                own.thread, own.threads, first, total, self.batch, load, take, after=look, going=lambda: count.value <= most
            )  # fmt: skip
            with T.when(first.value >= total):
                more.set(i32(0))
            width = own.widen(count.value, keep)
            own.sort(width, width, keep)
            count.set(k)
            bound[0].set(own.keys[k - 1])
            bound[1].set(own.positions[k - 1])

    def _find_bests(self, load: Load | Neighbours, total: Any, bests: Any) -> None:
        """The best entry of each of ``bests`` parts; a thread handles one or more parts."""
        own = self.entries
        with strided(own.thread, bests, own.threads) as part:
            best = T.Variable(own.order.word, own.order.last()), T.Variable(POSITION, T.word(-1, 32))

            def compare(key: Any, position: Any) -> None:
                with T.when(_before((key, position), (best[0].value, best[1].value))):
                    best[0].set(key)
                    best[1].set(position)

            stream(part, bests, T.Variable("int32", i32(0)), total, self.batch, load, compare)
            own.put(part, best[0].value, best[1].value)
        T.barrier()


def stream(
    lane: Any,
    lanes: Any,
    first: T.Variable,
    total: Any,
    batch: int,
    load: Load | Neighbours,
    use: Callable[..., None],
    after: Callable[[], None] = lambda: None,
    going: Callable[[], Any] | None = None,
) -> None:
    """``use`` each entry from ``first`` on while ``going`` holds; each thread loads a ``batch`` of entries before it uses any.

    ``after`` runs after each batch, in all threads.
    """
    condition = first.value < total
    width = load.width if isinstance(load, Neighbours) else 1

    def load_all(place: Any) -> list[tuple[Any, ...]]:
        return load.load(place) if isinstance(load, Neighbours) else [load(place)]

    with T.loop_while(condition if going is None else condition & going()):
        places = [T.let(first.value + (lane + lanes * n) * width) for n in range(batch // width)]
        loaded = [load_all(T.hold(T.min(place, total - width))) for place in places]
        for place, entries in zip(places, loaded, strict=True):
            with T.when(place < total):
                for entry in entries:
                    use(*entry)
        after()
        first.set(first.value + lanes * batch)
