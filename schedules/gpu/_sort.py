"""``Sort``: rows with so large a K that they are sorted completely."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from tvmdml.kernels import tensorir as T
from tvmdml.schedules.gpu import strided
from tvmdml.schedules.gpu._bitonic import POSITION, i32, stream
from tvmdml.schedules.gpu._radix import TileSort
from tvmdml.schedules.gpu._select import Counters, PrefixSums
from tvmdml.schedules.gpu._way import SCANNED_BYTES, SPARE_BYTES, Way, above
from tvmdml.targets._device import DeviceTarget


class Sort(Way):  # type: ignore[misc] # imported as Any here; checked in its own file
    """A least-significant-digit radix sort of each row. For each digit: count, scan, move."""

    threads: int
    each_turn = ("shifts",)

    def plan(self, target: DeviceTarget) -> tuple[dict[str, Any], int, dict[str, Any]]:
        batch, each = self.batch, self.knobs.tile_per_thread
        room = target.max_shared_bytes - SPARE_BYTES - PrefixSums.shared_bytes(TileSort.BINS) - 2 * SCANNED_BYTES
        while TileSort.shared_bytes(self.threads, each) > room:
            self.threads, each = (self.threads // 2, each) if self.threads > 64 else (self.threads, each // 2)
        self.each, self.copies = each, self.knobs.copies
        tile = self.threads * each
        tiles = -(-batch.length // tile)
        wanted = max(min(self.knobs.sort_groups, target.tasks()) // batch.rows, -(-batch.length // self.knobs.part_most))
        blocks = max(1, min(tiles, wanted))
        block = -(-tiles // blocks) * tile
        blocks = -(-batch.length // block)
        self.single = blocks == 1
        self.passes = -(-self.keys.bits // TileSort.BITS)
        elements, counts = batch.rows * batch.length, batch.rows * TileSort.BINS * blocks
        self.scratch = (counts,) if self.single else (counts, batch.rows * TileSort.BINS)
        self.rooms = (elements,) * min(self.passes - 1, 2)
        self.sum_threads = max(min(32, self.threads), min(self.threads, above(blocks)))
        numbers = {
            "blocks": blocks, "block": block, "shifts": tuple(range(0, self.keys.bits, TileSort.BITS)),
            "groups": self.groups(batch.rows * blocks), "sum_groups": self.groups(batch.rows * TileSort.BINS),
        }  # fmt: skip
        own = {"each": each, "single": self.single, "sum_threads": self.sum_threads, "loads": self.knobs.batch}
        own["copies"] = self.copies
        return own, max(elements, counts, batch.length + 8 * tile), numbers

    def launches(self) -> None:
        for turn in range(self.passes):
            with self.launch(turn, "groups", self.threads) as (group, thread):
                self._count(turn, group, thread)
            if not self.single:
                with self.launch(turn, "sum_groups", self.sum_threads) as (group, thread):
                    self._add_up(group, thread)
            with self.launch(turn, "groups", self.threads) as (group, thread):
                self._move(turn, group, thread)

    @contextmanager
    def _blocks(self, group: Any) -> Iterator[tuple[Any, Any, Any, Any]]:
        """The blocks of a group: row, number, first element and end."""
        n = self.n
        with strided(self.number(group), T.let(n.rows * n.blocks), n.groups) as item:
            row = T.hold(T.truncdiv(item, n.blocks))
            block = T.let(item - row * n.blocks)
            small = self.small("block", "length")
            begin = T.let(T.cast(block, "int32") * small.block)
            yield row, block, begin, T.hold(T.min(begin + small.block, small.length))

    def _key(self, turn: int, row: Any) -> Any:
        """The function that gives a row's key by its place before a pass."""
        if turn == 0:
            start = self.rows.start(row, 0)
            return lambda place: self.rows.key(start, self.number(place))
        first = T.let(row * self.n.length)
        return lambda place: self.found[(turn - 1) % 2][0][first + self.number(place)]

    def _count(self, turn: int, group: Any, thread: Any) -> None:
        """Count each block's digits."""
        bins = TileSort.BINS
        counters = Counters(bins, self.copies, thread, self.threads)
        with self._blocks(group) as (row, block, begin, end):
            counters.clear()
            key = self._key(turn, row)
            load = lambda place: (T.hold(self.keys.digit(key(place), self._shift(), bins)),)  # noqa: E731
            stream(thread, self.threads, T.Variable("int32", begin), end, self.knobs.batch, load, counters.add)
            T.barrier()
            with strided(thread, i32(bins), self.threads) as digit:
                T.store(self.counts[0], self._counter(row, digit) + block, counters.total(digit))
            T.barrier()

    def _shift(self) -> Any:
        return T.cast(self.n.shifts, "int32")

    def _counter(self, row: Any, digit: Any) -> Any:
        """The index of a row's counts of a digit, one for each block."""
        return (row * TileSort.BINS + self.number(digit)) * self.n.blocks

    def _add_up(self, group: Any, thread: Any) -> None:
        """For each row and digit: the number of elements in earlier blocks, and in all blocks."""
        n, threads = self.n, self.sum_threads
        sums = PrefixSums(threads, thread, threads, self.lockstep)
        with strided(self.number(group), T.let(n.rows * TileSort.BINS), n.sum_groups) as line:
            carry, blocks = T.Variable("int32", i32(0)), self.small("blocks").blocks
            with strided(i32(0), blocks, threads) as begin:
                own, at = T.Variable("int32", i32(0)), T.let(line * n.blocks + self.number(begin + thread))
                with T.when(begin + thread < blocks):
                    own.set(self.counts[0][at])
                T.store(sums.numbers, thread, own.value)
                T.barrier()
                base = T.let(sums.run())
                with T.when(begin + thread < blocks):
                    T.store(self.counts[0], at, carry.value + sums.numbers[base + thread] - own.value)
                carry.set(carry.value + sums.numbers[base + threads - 1])
                T.barrier()
            with T.when(thread == 0):
                T.store(self.counts[1], line, carry.value)

    def _move(self, turn: int, group: Any, thread: Any) -> None:
        """Move each element to its place by a digit; the last pass writes the K best to the outputs."""
        bins = TileSort.BINS
        tiles = TileSort(thread, self.threads, self.each, self.lockstep)
        sums = PrefixSums(bins, thread, self.threads, self.lockstep)
        with self._blocks(group) as (row, block, begin, end):
            totals = self.counts[-1]
            with strided(thread, i32(bins), self.threads) as digit:
                T.store(sums.numbers, digit, totals[row * bins + self.number(digit)])
            T.barrier()
            base = T.let(sums.run())
            with strided(thread, i32(bins), self.threads) as digit:
                first = T.Variable("int32", i32(0))
                with T.when(digit > 0):
                    first.set(sums.numbers[base + digit - 1])
                if not self.single:
                    first.set(first.value + self.counts[0][self._counter(row, digit) + block])
                tiles.begin(digit, first.value)
            T.barrier()
            self._tiles(turn, tiles, row, begin, end)

    def _tiles(self, turn: int, tiles: TileSort, row: Any, begin: Any, end: Any) -> None:
        n, last = self.n, turn == self.passes - 1
        key, first = self._key(turn, row), T.let(row * n.length)
        starts = self.rows.starts(row) if last else []
        with strided(begin, end, tiles.size) as tile:

            def move(entry: Any, to: Any) -> None:
                place, to = T.let(tile + entry), T.let(self.number(to))
                before = self.found[(turn - 1) % 2][1] if turn else None
                position = T.cast(place, POSITION) if before is None else T.hold(before[first + self.number(place)])
                if last:
                    with T.when(to < n.k):
                        self.rows.emit(starts, to, position)
                else:
                    keys, positions = self.found[turn % 2]
                    T.store(keys, first + to, key(place))
                    T.store(positions, first + to, position)

            digit = lambda entry: self.keys.digit(key(tile + entry), self._shift(), TileSort.BINS)  # noqa: E731
            tiles.scatter(T.hold(T.min(end - tile, i32(tiles.size))), digit, move)
